"""Out-of-core tables: a source is read once, chunk by chunk, and kept in a memory-mapped file: :func:`write_rows`.

Numbers stay numbers, a category becomes the index of its declared value, an id the index of its person. The rows are
written one after the other to a scratch file (:mod:`discreet.linear.storage`), which is mapped into memory. Nothing
here has to be trusted: :func:`discreet.linear.row_source.store_rows` compares stored rows with what was read.

>>> from discreet.linear.column_kinds import Category, Numeric
>>> from discreet.linear.tables import Table
>>> chunks = [Table({"age": np.array([30.0, 40.0]), "job": np.array(["clerk", None], object)}, 2)]
>>> table = write_rows(chunks, {"age": Numeric(0, 99), "job": Category(("clerk", "farmer"))}, Storage())
>>> table.column_names, len(table), table["job"][:].tolist()
(('age', 'job'), 2, ['clerk', None])
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.grouping import MISSING_USER, number_of_id
from discreet.linear.cells import dates, declared_codes, declared_numbers
from discreet.linear.column_kinds import Column, Date, Numeric, Unit
from discreet.linear.gate.block_cache import disk_full_message
from discreet.linear.on_demand import OnDemand
from discreet.linear.storage import Storage

Cells = NDArray[Any]

_IN_MEMORY = 8  # of the bytes for rows, one part in so many is for rows as they were read
_RESIDENT = 2**25  # bytes read before the pages are given back


class Codec(NamedTuple):
    """How the cells of a column are stored: a function to numbers of ``dtype``, and the function back, if needed."""

    dtype: Any
    numbers: Callable[[Cells], Cells]
    cells: Callable[[Cells], Cells] | None = None


def codec_for(column: Column | Unit) -> Codec:
    """The codec of a column: its numbers, days since 1970, the indices of declared values, or those of ids."""
    if isinstance(column, Unit):
        known: dict[Any, int] = {}  # ids in the order in which they were met
        return Codec(np.float64, lambda cells: _id_numbers(cells, known), lambda numbers: numbers)
    if isinstance(column, Numeric):
        return Codec(
            np.float64,
            lambda cells: np.asarray(declared_numbers(column, cells)),
            dates if isinstance(column, Date) else None,
        )
    values = np.array([*column.values, None], object)  # -1, for what nobody declared, is the last
    return Codec(
        np.int32, lambda cells: declared_codes(column, cells), lambda numbers: np.asarray(values[numbers])
    )


def _id_numbers(cells: Cells, known: dict[Any, int]) -> Cells:
    """The index of each id, NaN for nobody."""
    found = np.array([number_of_id(cell, known) for cell in cells.tolist()], np.float64)
    return np.where(found == MISSING_USER, np.nan, found)


def write_rows(
    chunks: Iterable[Any], columns: Mapping[str, Column | Unit], storage: Storage
) -> OutOfCoreTable:
    """Write the rows of all chunks. A row of the result depends on the same row of its chunk only."""
    codecs = {name: codec_for(column) for name, column in columns.items()}
    row = np.dtype([(name, codec.dtype) for name, codec in codecs.items()])
    in_memory, left = [np.empty(0, row)], storage.memory // _IN_MEMORY
    with tempfile.TemporaryFile(prefix="discreet-", dir=storage.folder) as file:
        for chunk in chunks:
            rows = _encode(chunk, codecs, row)
            left -= rows.nbytes
            in_memory.append(rows)
            if left < 0:
                _write(file, in_memory, storage)
        if left >= 0:
            return OutOfCoreTable(codecs, np.concatenate(in_memory), None)
        file.flush()
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return OutOfCoreTable(codecs, np.frombuffer(mapping, row), mapping)


def _encode(chunk: Any, codecs: Mapping[str, Codec], row: Any) -> Cells:
    rows = np.empty(len(chunk), row)
    for name, codec in codecs.items():
        rows[name] = codec.numbers(chunk[name])
    return rows


def _write(file: IO[bytes], rows: list[Cells], storage: Storage) -> None:
    """Move the rows to the file."""
    try:
        while rows:
            file.write(rows.pop(0).view(np.uint8).data)
    except OSError as error:
        raise disk_full_message(storage.folder, error) from None


class OutOfCoreTable:
    """A stored table with the interface of a frame; a column is read when some of its rows are requested."""

    def __init__(self, codecs: Mapping[str, Codec], rows: Cells, mapping: Any) -> None:
        self._codecs, self._rows, self._mapping = dict(codecs), rows, mapping
        self._read = 0

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._codecs)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self._codecs)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> OnDemand:
        codec = self._codecs[name]
        decode = codec.cells or (lambda numbers: numbers)
        return OnDemand((len(self),), lambda rows: decode(self._numbers(name, rows)))

    def store(self, chunk: Any) -> OutOfCoreTable:
        """Return other rows, stored as these; an id of these rows has the same number there."""
        return OutOfCoreTable(self._codecs, _encode(chunk, self._codecs, self._rows.dtype), None)

    def take(self, rows: NDArray[np.int64]) -> OutOfCoreTable:
        """Return these rows, in this order, in memory."""
        return OutOfCoreTable(self._codecs, self._rows[rows], None)

    def cells(self, row: int) -> list[Cells]:
        """Return the numbers of a row, each in a column of its own."""
        return [self._numbers(name, slice(row, row + 1)) for name in self._codecs]

    def drop_columns(self, names: Sequence[str]) -> OutOfCoreTable:
        """Return the table without these columns."""
        left = {name: codec for name, codec in self._codecs.items() if name not in names}
        return OutOfCoreTable(left, self._rows, self._mapping)

    def numbers(self) -> OnDemand | None:
        """All columns as one array, if they are plain numbers and adjacent in the file; else None."""
        if not self._codecs or any(codec.cells is not None for codec in self._codecs.values()):
            return None
        fields = [self._rows.dtype.fields[name][1] for name in self._codecs]  # type: ignore[index]
        first, width = fields[0], len(fields)
        if fields != [first + 8 * place for place in range(width)]:
            return None
        bytes_ = self._rows.view(np.uint8).reshape(len(self._rows), self._rows.itemsize)

        def read_rows(rows: Any) -> Cells:
            chosen = np.ascontiguousarray(bytes_[rows][:, first : first + 8 * width]).view(np.float64)
            self._give_back(len(chosen))
            return chosen

        return OnDemand((len(self), width), read_rows)

    def _numbers(self, name: str, rows: Any) -> Cells:
        """Some rows of a column, copied; the pages they were read from are given back now and then."""
        chosen, step = self._rows[rows], max(1, _RESIDENT // self._rows.itemsize)
        found = np.empty(len(chosen), chosen.dtype[name])
        for start in range(0, len(chosen), step):
            found[start : start + step] = chosen[start : start + step][name]
            self._give_back(min(step, len(chosen) - start))
        return found

    def _give_back(self, rows: int) -> None:
        """Let go of the pages after so many more rows were read, if they are many."""
        self._read += rows * self._rows.itemsize
        if self._read > _RESIDENT and self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)
            self._read = 0
