"""Tables in files, CSV or Parquet, read in chunks of rows and without a word about any cell.

A CSV file holds records as spreadsheets and databases write them: a cell in quotes may hold line breaks, and a quote
in it is doubled. One record more or less, written so, changes one row of the table. A quote that is opened and not
closed by one before a delimiter or the end of a line, within a million characters, ends with its own line. So a stray
quote, which no such writer makes, costs its own record, unless a later cell in quotes begins with a delimiter. Blank
lines are no records. Records with too few or too many cells, and cells that are not what the schema says, count as
missing. What is refused is refused by the names in the header line, which are public; the error names only what was
declared.
"""

from __future__ import annotations

import csv
import glob
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from discreet.core.columns import floats_of
from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear.cells import dates, declared_numbers, forgiven
from discreet.linear.column_kinds import Category, Column, Date, Flag, Numeric, Unit
from discreet.linear.declarations import missing_column
from discreet.linear.schema import schema_of

Cells = NDArray[Any]
Read = Callable[[Any], Cells]
"""From the cells of a column, as they are in the file, to an array for the library."""

CHUNK = 2**17  # characters of a CSV file that are parsed at once: what fits into a processor's cache
DELIMITERS = ",;\t"
_LONGEST = 2**20  # characters of a record with line breaks in it
_ODD = re.compile('["\x1c-\x1f]')  # quotes, and blanks to numpy's parser that are none to float


class ColumnTable:
    """Columns by name, of equal length: what the estimators take for a frame. ``kept`` are columns as in the file."""

    def __init__(
        self, columns: Mapping[str, Cells], rows: int, kept: Mapping[str, Cells] | None = None
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

    def drop_columns(self, names: Sequence[str]) -> ColumnTable:
        """The same table without these columns."""
        left = {name: cells for name, cells in self._columns.items() if name not in names}
        return ColumnTable(left, self._rows, self.kept)

    def take(self, rows: NDArray[np.int64]) -> ColumnTable:
        """These rows, in this order."""
        return ColumnTable({name: cells[rows] for name, cells in self._columns.items()}, len(rows))

    def __len__(self) -> int:
        return self._rows


class TableSource(ABC):
    """A table in a file: the names of its columns, and its rows in chunks."""

    path: Path
    names: tuple[str, ...]

    def chunks(self, columns: Mapping[str, Column | Unit], keep: Sequence[str] = ()) -> Iterator[ColumnTable]:
        """The rows, with these columns as they are declared, and those in ``keep`` as they are.

        The first chunk is empty, so that there is always one.
        """
        for name in (*columns, *keep):
            if self.names.count(name) != 1:
                raise missing_column(str(self.path), name, self.names)
        readers = {name: reader(column) for name, column in columns.items()}
        nothing = ColumnTable(
            {name: read(()) for name, read in readers.items()}, 0, dict.fromkeys(keep, as_they_are(()))
        )
        return chain([nothing], self._chunks(readers, keep))

    def whole(self, columns: Mapping[str, Column | Unit]) -> ColumnTable:
        """All rows at once."""
        return join_chunks(self.chunks(columns), columns)

    @abstractmethod
    def _chunks(self, readers: Mapping[str, Read], keep: Sequence[str]) -> Iterator[ColumnTable]:
        """The rows, each column read as its reader says, and columns to keep."""

    @abstractmethod
    def progress(self) -> float:
        """The part of the file that was read, from 0 to 1."""


def read_table(path: str | os.PathLike[str], schema: Any) -> ColumnTable:
    """The columns of a schema (or of a ``schema.toml``) in a CSV or Parquet file, for ``fit`` and ``predict``.

    Guarantee: a record of the file is a row. What is refused is refused by names and types, never by a cell.
    """
    return table_in(Path(path)).whole(schema_of(schema).to_read())


def join_chunks(chunks: Iterable[ColumnTable], columns: Iterable[str]) -> ColumnTable:
    """Chunks of rows as one table."""
    parts = list(chunks)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in columns}
    return ColumnTable(whole, sum(map(len, parts)))


def table_in(path: Path) -> TableSource:
    """The table in a file, or in those that a pattern names; ``-`` is standard input, as CSV."""
    if not path.exists() and any(mark in str(path) for mark in "*?["):
        return ManySources(str(path), [table_in(Path(file)) for file in files_of(str(path))])
    if path.is_dir():
        requirement = f"is a folder; name its files by a pattern, such as '{path / '*.parquet'}'."
        raise InvalidParameter("table", str(path), requirement)
    if path.suffix.lower() in (".arrow", ".feather", ".ipc"):
        from discreet.linear.sources import arrow_file

        return arrow_file(path)
    if path.suffix.lower() in (".parquet", ".pq"):
        from discreet.linear.parquet import ParquetSource

        return ParquetSource(path)
    return CsvSource(path)


class ManySources(TableSource):
    """The files that a pattern names, one after the other, in the order of their names."""

    def __init__(self, pattern: str, sources: Sequence[TableSource]) -> None:
        self.path, self.sources, self._done = Path(pattern), list(sources), 0
        self.names = self.sources[0].names
        for source in self.sources:
            if sorted(source.names) != sorted(self.names):
                requirement = f"has other columns than {self.sources[0].path}; all files must have the same."
                raise InvalidParameter("table", str(source.path), requirement)

    def _chunks(self, readers: Mapping[str, Read], keep: Sequence[str]) -> Iterator[ColumnTable]:
        return chain.from_iterable(self._each(source, readers, keep) for source in self.sources)

    def _each(
        self, source: TableSource, readers: Mapping[str, Read], keep: Sequence[str]
    ) -> Iterator[ColumnTable]:
        yield from source._chunks(readers, keep)
        self._done += 1

    def progress(self) -> float:
        return self._done / len(self.sources)


def files_of(pattern: str) -> list[str]:
    """The files that a pattern names, sorted; hidden ones, and those that begin with _, are none of the table.

    >>> files_of("nowhere/*.parquet")
    Traceback (most recent call last):
    discreet.errors.InvalidParameter: table='nowhere/*.parquet': names no file.
    """
    found = glob.glob(pattern, recursive=True)
    hidden = (".", "_")  # as those that tell that a job has finished
    files = sorted(
        path for path in found if os.path.isfile(path) and not os.path.basename(path).startswith(hidden)
    )
    if not files:
        raise InvalidParameter("table", pattern, "names no file.")
    known: dict[tuple[int, int], str] = {}
    for path in files:
        about = os.stat(path)
        first = known.setdefault((about.st_dev, about.st_ino), path)
        if first != path and about.st_ino:
            requirement = (
                f"names the same file twice, as {first} and as {path}: its records would count twice."
            )
            raise InvalidParameter("table", pattern, requirement)
    return files


class CsvSource(TableSource):
    """A CSV file with names in its first line; commas, semicolons or tabs, whichever that line has most."""

    def __init__(self, path: Path) -> None:
        self.path, self._read, self._size = path, 0, 0
        self._input = _text(sys.stdin.buffer) if str(path) == "-" else None
        with nullcontext(self._input) if self._input else _text(path.open("rb")) as file:
            header = file.readline()
            self._delimiter = max(DELIMITERS, key=header.count)
            self._record, self._open = _patterns(self._delimiter)
            header, *self._after_header = self._joined([header], file)[0]
        if header.startswith("\ufffd\ufffd") and "\0" in header:
            requirement = "is written in UTF-16; save it as UTF-8, as spreadsheets call 'CSV UTF-8'."
            raise InvalidParameter("table", str(path), requirement)
        self.header = header.rstrip("\n")
        self.names = tuple(name.strip() for name in self._cells(header))

    def _chunks(self, readers: Mapping[str, Read], keep: Sequence[str]) -> Iterator[ColumnTable]:
        for records in self.records():
            yield self._chunk(records, readers, keep)

    def records(self) -> Iterator[list[str]]:
        """The records as they are written, with the ends of their lines, some at a time."""
        with self._input or _text(self.path.open("rb")) as file:
            if not self._input:
                self._size = os.fstat(file.fileno()).st_size
                self._joined([file.readline()], file)
            if self._after_header:
                yield [record for record in self._after_header if not record.isspace()]
            while lines := file.readlines(CHUNK):
                records, lines = self._joined(lines, file)
                self._read += sum(map(len, lines))
                yield [record for record in records if not record.isspace()]

    def _joined(self, lines: list[str], file: TextIO) -> tuple[list[str], list[str]]:
        """Records of these lines, and of as many more as the last one needs; and all lines that were read."""
        if not any('"' in line for line in lines):
            return lines, lines
        records, place = [], 0
        while place < len(lines):
            end = place + self._line_count(lines, place, file)
            records.append("".join(lines[place:end]))
            place = end
        return records, lines

    def _line_count(self, lines: list[str], start: int, file: TextIO) -> int:
        """The number of lines of the record that begins at a line; 1 if a quote in it is not closed."""
        text, end, length = lines[start], start + 1, len(lines[start])
        while not (record := self._record.match(text)):
            count, is_open = end - start, self._open.fullmatch(text)
            while is_open and end - start < 2 * count and length <= _LONGEST:
                if end == len(lines):
                    lines.extend(file.readlines(1))
                if end == len(lines):
                    break
                length, end = length + len(lines[end]), end + 1
            if end - start == count:
                return 1
            text = "".join(lines[start:end])
        return text.count("\n", 0, record.end() - 1) + 1

    def _chunk(self, lines: list[str], readers: Mapping[str, Read], keep: Sequence[str]) -> ColumnTable:
        numbers = self._numbers(lines, [name for name in readers if readers[name] is numbers_in])
        others = [name for name in readers if name not in numbers]
        rows = list(map(self._row, lines)) if others or keep else []
        cells = {name: self._column(rows, name) for name in (*others, *keep)}
        read = {name: readers[name](cells[name]) for name in others}
        kept = {name: as_they_are(cells[name]) for name in keep}
        return ColumnTable(numbers | read, len(lines), kept)

    def _column(self, rows: list[list[str]], name: str) -> list[str]:
        place = self.names.index(name)
        return [row[place] for row in rows]

    def _numbers(self, lines: list[str], names: list[str]) -> dict[str, Cells]:
        """These columns by numpy's parser, twice as fast, if it reads every line as the others below would."""
        delimiters = len(self.names) - 1
        plain = (line.count(self._delimiter) == delimiters and not _ODD.search(line) for line in lines)
        if not (lines and names and all(plain)):
            return {}
        places = [self.names.index(name) for name in names]
        try:
            table = np.loadtxt(lines, delimiter=self._delimiter, comments=None, usecols=places, ndmin=2)
        except ValueError:  # an empty cell, a word
            return {}
        return dict(zip(names, table.T, strict=True))

    def _row(self, line: str) -> list[str]:
        cells = self._cells(line)
        return cells if len(cells) == len(self.names) else [""] * len(self.names)

    def _cells(self, line: str) -> list[str]:
        if '"' not in line:
            return line.rstrip("\n").split(self._delimiter)
        try:
            return next(csv.reader(line.splitlines(keepends=True), delimiter=self._delimiter))
        except csv.Error:
            return []

    def progress(self) -> float:
        return self._read / self._size if self._size else 0.0


def _patterns(delimiter: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of a record, and of lines that end within quotes.

    Quotes that close on their line may be followed by anything. Those with line breaks in them must be followed by a
    delimiter or the end of a line.
    """
    other = f"[^{delimiter}\n]*+"
    one_line = rf'"[^"\n]*+(?:""[^"\n]*+)*+"{other}'
    within = '"[^"]*+(?:""[^"]*+)*+'
    cell = rf'(?>{one_line}|{within}"(?=[{delimiter}\n]|\Z)|(?!"){other})'
    return re.compile(rf"{cell}(?:{delimiter}{cell})*+(?:\n|\Z)"), re.compile(
        f"(?:{cell}{delimiter})*+{within}"
    )


def _text(file: IO[bytes]) -> TextIO:
    return TextIOWrapper(file, encoding="utf-8-sig", errors="replace")


def reader(column: Column | Unit) -> Read:
    """How to read the cells of such a column."""
    if isinstance(column, Unit):
        return as_they_are
    if isinstance(column, Date):
        return lambda cells: dates(declared_numbers(column, _any_array(cells)))
    if isinstance(column, Numeric):
        return numbers_in if column.plain else as_they_are
    return _Known(column).read


def numbers_in(cells: Sequence[Any]) -> NDArray[np.float64]:
    """The cells as numbers, NaN where one is none.

    >>> numbers_in(["1.5", " 2 ", "", "many", None]).tolist()
    [1.5, 2.0, nan, nan, nan]
    """
    array = _any_array(cells)
    return array.astype(np.float64) if array.dtype.kind in "fiu" else floats_of(array)


def _any_array(cells: Sequence[Any]) -> Cells:
    return cells if isinstance(cells, np.ndarray) else as_they_are(cells)


def as_they_are(cells: Sequence[Any]) -> Cells:
    """The cells in an array, whatever they are."""
    kept = np.empty(len(cells), object)
    kept[:] = cells
    return kept


class _Known(dict[Any, Any]):
    """From a cell to the declared value that it stands for; None if it is none of them."""

    def __init__(self, column: Category | Flag) -> None:
        super().__init__({value: value for value in column.values if isinstance(value, str)})
        self._numbers = {value: value for value in column.values if not isinstance(value, str)}
        self._column, self._texts = column, {forgiven(column, value): value for value in self}

    def read(self, cells: Sequence[Any]) -> Cells:
        """The declared values of the cells.

        >>> _Known(Category(("clerk", 1))).read(["clerk", " clerk", "1.0", "pilot", None]).tolist()
        ['clerk', 'clerk', 1, None, None]
        """
        return as_they_are(list(map(self.__getitem__, cells)))

    def __missing__(self, cell: Any) -> Any:
        text = cell.strip() if isinstance(cell, str) else None
        found = dict.get(self, text, self._texts.get(forgiven(self._column, text)))
        if found is None and self._numbers:
            word = {"true": True, "false": False}.get(text.lower(), text) if text is not None else cell
            found = self._numbers.get(numbers_in([word])[0] if isinstance(word, str) else word)
        if len(self) < 10_000:
            self[cell] = found
        return found
