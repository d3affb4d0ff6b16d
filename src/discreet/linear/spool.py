"""A table that is read once, as its chunks come, and kept outside of memory: :func:`spool_rows`.

Numbers stay numbers, a category becomes the number of its declared value, an id the number of its person. The rows
are written one after the other to a scratch file (:mod:`discreet.linear.storage` says what that is) and mapped; what
an estimator asks for is read from there.

>>> from discreet.linear.column_kinds import Category, Numeric
>>> from discreet.linear.tables import Table
>>> chunks = [Table({"age": np.array([30.0, 40.0]), "job": np.array(["clerk", None], object)}, 2)]
>>> table = spool_rows(chunks, {"age": Numeric(0, 99), "job": Category(("clerk", "farmer"))}, Storage())
>>> table.column_names, len(table), table["job"][:].tolist()
(('age', 'job'), 2, ['clerk', None])
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.grouping import NOBODY, number_of_id
from discreet.linear.cells import dates, declared_codes, declared_numbers
from discreet.linear.column_kinds import Category, Column, Date, Flag, Numeric, Unit
from discreet.linear.gate.shelf import no_room
from discreet.linear.inputs import OnDemand
from discreet.linear.storage import Storage
from discreet.linear.tables import Table

Cells = NDArray[Any]

_IN_MEMORY = 8  # of the bytes for rows, one part in so many is for the spool
_RESIDENT = 2**25  # bytes read before the pages are given back


class Codec:
    """How the cells of a column are kept: as numbers of ``dtype``, and back."""

    dtype: Any = np.float64

    def __init__(self, column: Column | Unit) -> None:
        self.column: Any = column

    def numbers(self, cells: Cells) -> Cells:
        return np.asarray(declared_numbers(self.column, cells))

    def cells(self, numbers: Cells) -> Cells:
        return numbers


class _Days(Codec):
    """Dates, as days since 1970."""

    def cells(self, numbers: Cells) -> Cells:
        return dates(numbers)


class _Values(Codec):
    """Declared values, by their places; what nobody declared is None."""

    dtype = np.int32

    def __init__(self, column: Category | Flag) -> None:
        super().__init__(column)
        self._values = np.array([*column.values, None], object)

    def numbers(self, cells: Cells) -> Cells:
        return declared_codes(self.column, cells)

    def cells(self, numbers: Cells) -> Cells:
        return np.asarray(self._values[numbers])


class _Ids(Codec):
    """Ids, by the order in which they were met; NaN for nobody."""

    def __init__(self, column: Unit) -> None:
        super().__init__(column)
        self._known: dict[Any, int] = {}

    def numbers(self, cells: Cells) -> Cells:
        found = [number_of_id(cell, self._known) for cell in cells.tolist()]
        return np.array([np.nan if number == NOBODY else number for number in found], np.float64)


def codec_for(column: Column | Unit) -> Codec:
    """How such a column is kept."""
    if isinstance(column, Unit):
        return _Ids(column)
    if isinstance(column, Numeric):
        return _Days(column) if isinstance(column, Date) else Codec(column)
    return _Values(column)


def spool_rows(chunks: Iterable[Table], columns: Mapping[str, Column | Unit], storage: Storage) -> Spooled:
    """The rows of all chunks, read once.

    Guarantee: a row of the result depends on the same row of its chunk only. Nothing is said of a cell.
    """
    codecs = {name: codec_for(column) for name, column in columns.items()}
    row = np.dtype([(name, codec.dtype) for name, codec in codecs.items()])
    in_memory, left = [np.empty(0, row)], storage.memory // _IN_MEMORY
    with tempfile.TemporaryFile(prefix="discreet-", dir=storage.folder) as file:
        for chunk in chunks:
            rows = np.empty(len(chunk), row)
            for name, codec in codecs.items():
                rows[name] = codec.numbers(chunk[name])
            left -= rows.nbytes
            in_memory.append(rows)
            if left < 0:
                _write(file, in_memory, storage)
        if left >= 0:
            return Spooled(codecs, np.concatenate(in_memory), None)
        file.flush()
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Spooled(codecs, np.frombuffer(mapping, row), mapping)


def _write(file: IO[bytes], rows: list[Cells], storage: Storage) -> None:
    """Move the rows to the file."""
    try:
        while rows:
            file.write(rows.pop(0).view(np.uint8).data)
    except OSError as error:
        raise no_room(storage.folder, error) from None


class Spooled:
    """A table by columns, as the estimators take a frame; each column is read when some of its rows are asked for."""

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
        return OnDemand((len(self),), lambda rows: codec.cells(self._numbers(name, rows)))

    def drop_columns(self, names: Sequence[str]) -> Spooled:
        """The same table without these columns."""
        left = {name: codec for name, codec in self._codecs.items() if name not in names}
        return Spooled(left, self._rows, self._mapping)

    def numbers(self) -> OnDemand | None:
        """All columns side by side, as they are in the file, if every one is of plain numbers."""
        if not self._codecs or any(type(codec) is not Codec for codec in self._codecs.values()):
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
