"""The files of a table that lie elsewhere: :class:`Partitions`, and how it is told that one changed.

A fit over them: :mod:`discreet.linear.gate.partitioned_rows` is what the driver does,
:mod:`discreet.linear.partition_answers` what a worker does. Rows of one person in several files:
:mod:`discreet.linear.user_routing`.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from discreet.errors import InvalidParameter
from discreet.linear.row_source import Source, files_of
from discreet.linear.tables import table_in


class PartitionFile(NamedTuple):
    """A Parquet file, and how it is told that it changed."""

    path: str
    size: int
    changed: int
    rows: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, path: str) -> PartitionFile:
        from discreet.linear.parquet import pyarrow

        about = os.stat(path)
        if not path.lower().endswith((".parquet", ".pq")):
            requirement = "must be a Parquet file: it tells how many rows there are, and which columns."
            raise InvalidParameter("partition", path, requirement)
        inside = None
        with suppress(OSError, ValueError):  # pyarrow's messages might quote what is in the file
            inside = pyarrow().parquet.read_metadata(path)
        if inside is None:
            raise InvalidParameter("partition", path, "is not a Parquet file.")
        groups = tuple(inside.row_group(place).total_byte_size for place in range(inside.num_row_groups))
        return cls(path, about.st_size, about.st_mtime_ns, int(inside.num_rows), groups)

    def __repr__(self) -> str:
        return f"PartitionFile({self.path})"  # the number of rows is private

    def unchanged(self, thoroughly: bool = True) -> bool:
        """Whether the file is still this one: by size and time, and thoroughly by what it says of its row groups."""
        about = os.stat(self.path)
        same = (about.st_size, about.st_mtime_ns) == (self.size, self.changed)
        return same and (not thoroughly or PartitionFile.of(self.path) == self)

    def source(self) -> Source:
        """The rows, to be read."""
        return table_in(Path(self.path))


class Partitions:
    """The Parquet files that a pattern names, one partition each: read where a worker is, and never moved.

    All machines must see the files under the same names. A file that changes while a fit goes on stops it.
    """

    def __init__(self, pattern: str | os.PathLike[str]) -> None:
        self.pattern = os.fspath(pattern)
        self.parts = tuple(PartitionFile.of(os.path.abspath(path)) for path in files_of(self.pattern))

    def __len__(self) -> int:
        return len(self.parts)

    def digest(self) -> str:
        """SHA-256 of what is known of the files."""
        return hashlib.sha256(json.dumps(self.parts).encode()).hexdigest()

    def without_rows(self) -> Source:
        """The table as its driver knows it: the columns of the first file, which are those of all."""
        first: Any = self.parts[0].source()
        return NoRows(first.path, first.names, first.schema)


def refuse_other_engines(engine: Any, what: str) -> None:
    """Raise unless an engine knows what it is asked for."""
    if not callable(getattr(engine, what, None)):
        requirement = "must be an engine, such as discreet.adapters.DaskEngine(client)."
        raise InvalidParameter("engine", type(engine).__name__, requirement)


class NoRows(Source):
    """The columns of a table."""

    def __init__(self, path: Path, names: tuple[str, ...], schema: Any = None) -> None:
        self.path, self.names, self.schema = path, names, schema

    def progress(self) -> float:
        return 1.0
