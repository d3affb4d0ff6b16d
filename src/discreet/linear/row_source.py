"""Tables that are read in chunks of rows: :class:`Source`, :class:`Table`.

A source yields batches, in which each record occurs once: texts of CSV records, or record batches of Arrow. What its
columns are read as is not trusted to keep rows apart: :mod:`discreet.linear.rows_alone`.
"""

from __future__ import annotations

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear.cells import Read, as_they_are, reader
from discreet.linear.column_kinds import Column, Unit
from discreet.linear.declarations import missing_column
from discreet.linear.out_of_core import OutOfCoreTable, write_rows
from discreet.linear.rows_alone import chosen_rows, compare_rows, read_alone
from discreet.linear.storage import Storage

Cells = NDArray[Any]


class Table:
    """Columns by name, of equal length, as a frame for estimators. ``kept`` are columns as in the file."""

    def __init__(
        self, columns: Mapping[str, Cells], rows: int, kept: Mapping[str, Any] | None = None
    ) -> None:
        self._columns, self._rows, self.kept = dict(columns), rows, dict(kept or {})
        if any(len(cells) != rows for cells in (*self._columns.values(), *self.kept.values())):
            raise PlanViolation("The columns of a table must be of one length.")

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def __getitem__(self, name: str) -> Cells:
        return self._columns[name]

    def drop_columns(self, names: Sequence[str]) -> Table:
        """Return the table without these columns."""
        left = {name: cells for name, cells in self._columns.items() if name not in names}
        return Table(left, self._rows, self.kept)

    def take(self, rows: NDArray[np.int64]) -> Table:
        """Return these rows, in this order."""
        return Table({name: cells[rows] for name, cells in self._columns.items()}, len(rows))

    def cells(self, row: int) -> list[Any]:
        """Return the cells of a row, each in a column of its own."""
        return [column[row : row + 1] for column in (*self._columns.values(), *self.kept.values())]

    def __len__(self) -> int:
        return self._rows


class Source(ABC):
    """A table in a file or elsewhere: the names of its columns, and its rows in chunks."""

    path: Path
    names: tuple[str, ...]

    def chunks(self, columns: Mapping[str, Column | Unit], keep: Sequence[str] = ()) -> Iterator[Table]:
        """Yield the rows, with these columns as they are declared, and those in ``keep`` as they are.

        The first chunk is empty, so that there is always one.
        """
        for name in (*columns, *keep):
            if self.names.count(name) != 1:
                raise missing_column(str(self.path), name, self.names)
        readers = {name: reader(column) for name, column in columns.items()}
        return self._compared_chunks(readers, keep)

    def _compared_chunks(self, readers: Mapping[str, Read], keep: Sequence[str]) -> Iterator[Table]:
        """Yield the rows, after chosen ones were compared with themselves, read alone."""
        yield Table(
            {name: read(()) for name, read in readers.items()}, 0, dict.fromkeys(keep, as_they_are(()))
        )
        before, names = 0, list(dict.fromkeys((*readers, *keep)))
        for part in self.parts():
            for batch in part.batches(names):
                table = part.table(batch, readers, keep)
                if len(table) != len(batch):
                    raise PlanViolation("A table must have a row for each record; nothing was released.")
                for place in chosen_rows(len(table), before):
                    alone = read_alone(part.table, _one_record(batch, place), readers, keep)
                    compare_rows(table.cells(place), alone.cells(0))
                before += len(table)
                yield table

    def whole(self, columns: Mapping[str, Column | Unit]) -> Table:
        """Return all rows at once."""
        return join_chunks(self.chunks(columns), columns)

    def parts(self) -> Sequence[Source]:
        """Return the sources of which this one consists."""
        return (self,)

    def batches(self, names: list[str]) -> Iterator[Any]:
        """Yield the records, each once: lists of texts, or record batches of Arrow with these columns."""
        return iter(())

    def table(self, batch: Any, readers: Mapping[str, Read], keep: Sequence[str]) -> Table:
        """Return the records of a batch, each column as its reader says, and columns to keep."""
        raise NotImplementedError

    @abstractmethod
    def progress(self) -> float:
        """Return the part of the table that was read, from 0 to 1."""


def _one_record(batch: Any, place: int) -> Any:
    return batch[place : place + 1] if isinstance(batch, list) else batch.slice(place, 1)


def join_chunks(chunks: Iterable[Table], columns: Iterable[str]) -> Table:
    """Return chunks of rows as one table."""
    parts = list(chunks)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in columns}
    return Table(whole, sum(map(len, parts)))


def store_rows(
    chunks: Iterable[Table], columns: Mapping[str, Column | Unit], storage: Storage
) -> OutOfCoreTable:
    """Write the rows of all chunks to a mapped file, and compare chosen ones with themselves, stored alone."""
    chosen: list[tuple[int, Table]] = []

    def sampled() -> Iterator[Table]:
        before = 0
        for chunk in chunks:
            rows = chosen_rows(len(chunk), before)
            chosen.extend((before + place, chunk.take(np.array([place]))) for place in rows)
            before += len(chunk)
            yield chunk

    stored = write_rows(sampled(), columns, storage)
    for place, row in chosen:
        alone = read_alone(stored.store, row)
        compare_rows(stored.cells(place), alone.cells(0))
    return stored


def files_of(pattern: str) -> list[str]:
    """Return the files that a pattern names, sorted; hidden ones, and those that begin with _, are left out.

    >>> files_of("nowhere/*.parquet")
    Traceback (most recent call last):
    discreet.errors.InvalidParameter: table='nowhere/*.parquet': names no file.
    """
    named = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    hidden = (".", "_")  # such as those that show that a job has finished
    files = sorted(path for path in named if not os.path.basename(path).startswith(hidden))
    if not files:
        raise InvalidParameter("table", pattern, "names no file.")
    paths_by_inode: dict[tuple[int, int], str] = {}
    for path in files:
        about = os.stat(path)
        first = paths_by_inode.setdefault((about.st_dev, about.st_ino), path)
        if first != path and about.st_ino:
            requirement = (
                f"names the same file twice, as {first} and as {path}: its records would count twice."
            )
            raise InvalidParameter("table", pattern, requirement)
    return files
