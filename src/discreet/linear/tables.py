"""Tables in files, CSV or Parquet, without a word about any cell: :func:`table_in`, :func:`read_table`.

Records with too few or too many cells, and cells that are not what the schema says, count as missing. What is refused
is refused by the names in the header line, which are public; the error names only what was declared.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from discreet.errors import InvalidParameter
from discreet.linear.cells import Cells, Read, as_they_are, numbers_in
from discreet.linear.csv_records import CsvRecords, open_text
from discreet.linear.row_source import Source, Table, files_of
from discreet.linear.schema import schema_of

_ODD = re.compile('["\x1c-\x1f]')  # quotes, and blanks to numpy's parser that are none to float


def read_table(path: str | os.PathLike[str], schema: Any) -> Table:
    """The columns of a schema (or of a ``schema.toml``) in a CSV or Parquet file, for ``fit`` and ``predict``.

    Guarantee: a record of the file is a row. What is refused is refused by names and types, never by a cell.
    """
    return table_in(Path(path)).whole(schema_of(schema).to_read())


def table_in(path: Path) -> Source:
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


class ManySources(Source):
    """The files that a pattern names, one after the other, in the order of their names."""

    def __init__(self, pattern: str, sources: Sequence[Source]) -> None:
        self.path, self._sources = Path(pattern), tuple(sources)
        self.names = sources[0].names
        for source in sources:
            if sorted(source.names) != sorted(self.names):
                requirement = f"has other columns than {sources[0].path}; all files must have the same."
                raise InvalidParameter("table", str(source.path), requirement)

    def parts(self) -> Sequence[Source]:
        return self._sources

    def progress(self) -> float:
        return sum(source.progress() for source in self._sources) / len(self._sources)


class CsvSource(Source):
    """A CSV file with names in its first line; commas, semicolons or tabs, whichever that line has most."""

    def __init__(self, path: Path) -> None:
        self.path, self._read, self._size = path, 0, 0
        self._input = open_text(sys.stdin.buffer) if str(path) == "-" else None
        with nullcontext(self._input) if self._input else open_text(path.open("rb")) as file:
            line = file.readline()
            self._records = CsvRecords(line)
            header, *self._after_header = self._records.join([line], file)
        if header.startswith("\ufffd\ufffd") and "\0" in header:
            requirement = "is written in UTF-16; save it as UTF-8, as spreadsheets call 'CSV UTF-8'."
            raise InvalidParameter("table", str(path), requirement)
        self.header = header.rstrip("\n")
        self.names = tuple(name.strip() for name in self._cells(header))

    def batches(self, names: list[str]) -> Iterator[list[str]]:
        return self.records()

    def records(self) -> Iterator[list[str]]:
        """The records as they are written, with the ends of their lines, some at a time."""
        with self._input or open_text(self.path.open("rb")) as file:
            if not self._input:
                self._size = os.fstat(file.fileno()).st_size
                self._records.join([file.readline()], file)
            if self._after_header:
                yield [record for record in self._after_header if not record.isspace()]
            for records, read in self._records.read(file):
                self._read += read
                yield records

    def table(self, batch: list[str], readers: Mapping[str, Read], keep: Sequence[str]) -> Table:
        numbers = self._numbers(batch, [name for name in readers if readers[name] is numbers_in])
        others = [name for name in readers if name not in numbers]
        rows = list(map(self._row, batch)) if others or keep else []
        cells = {name: self._column(rows, name) for name in (*others, *keep)}
        read = {name: readers[name](cells[name]) for name in others}
        kept = {name: as_they_are(cells[name]) for name in keep}
        return Table({name: (numbers | read)[name] for name in readers}, len(batch), kept)

    def _column(self, rows: list[list[str]], name: str) -> list[str]:
        place = self.names.index(name)
        return [row[place] for row in rows]

    def _numbers(self, lines: list[str], names: list[str]) -> dict[str, Cells]:
        """These columns by numpy's parser, twice as fast, if it reads every line as the others below would."""
        delimiters = len(self.names) - 1
        plain = (
            line.count(self._records.delimiter) == delimiters and not _ODD.search(line) for line in lines
        )
        if not (lines and names and all(plain)):
            return {}
        places = [self.names.index(name) for name in names]
        try:
            table = np.loadtxt(
                lines, delimiter=self._records.delimiter, comments=None, usecols=places, ndmin=2
            )
        except ValueError:  # an empty cell, a word
            return {}
        return dict(zip(names, table.T, strict=True))

    def _row(self, line: str) -> list[str]:
        cells = self._cells(line)
        return cells if len(cells) == len(self.names) else [""] * len(self.names)

    def _cells(self, line: str) -> list[str]:
        if '"' not in line:
            return line.rstrip("\n").split(self._records.delimiter)
        try:
            return next(csv.reader(line.splitlines(keepends=True), delimiter=self._records.delimiter))
        except csv.Error:
            return []

    def progress(self) -> float:
        return self._read / self._size if self._size else 0.0
