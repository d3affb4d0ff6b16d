"""Parquet files, with pyarrow where it is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from discreet.core.columns import list_cells
from discreet.errors import InvalidParameter, missing_extra
from discreet.linear.lenient import guarded
from discreet.linear.tables import Read, Source, Table

ROWS = 2**15  # that are read at once
STREAM = {"pre_buffer": False, "buffer_size": 2**17}
"""Columns come in pieces of so many bytes: otherwise all that was read of a file stays in memory to its end."""


def pyarrow() -> Any:
    """pyarrow, or the sentence that says how to get it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("Parquet files need pyarrow", "parquet", ", or use CSV") from None
    return pyarrow


class ParquetSource(Source):
    """A Parquet file. Types are public, as names are: a column of lists is refused, a missing cell is not."""

    def __init__(self, path: Path) -> None:
        self.path, self._arrow, self._done = path, pyarrow(), 0
        with path.open("rb"):  # whether it is there is told as for other files
            pass
        found = None
        with suppress(Exception):  # pyarrow's messages might quote what is in the file
            found = self._arrow.parquet.ParquetFile(path, **STREAM)
        if found is None:
            raise InvalidParameter("table", str(path), "is not a Parquet file.")
        self._file = found
        self.schema = self._file.schema_arrow
        self.names = tuple(self.schema.names)

    def _chunks(self, readers: Mapping[str, Read], keep: Sequence[str]) -> Iterator[Table]:
        wanted = list(dict.fromkeys((*readers, *keep)))
        for name in wanted:
            refuse_nested(str(self.path), name, self.schema.field(name).type)
        with self._file:
            stored = guarded(
                lambda: self._file.iter_batches(batch_size=ROWS, columns=wanted), str(self.path), "table"
            )
            for batch in stored:
                self._done += batch.num_rows
                columns = {name: read(cells_of(batch.column(name))) for name, read in readers.items()}
                kept = {name: batch.column(name) for name in keep}  # as they are: they keep their types
                yield Table(columns, batch.num_rows, kept)
        self._arrow.default_memory_pool().release_unused()

    def progress(self) -> float:
        return float(self._done / max(self._file.metadata.num_rows, 1))


def refuse_nested(table: str, name: str, kind: Any) -> None:
    """Raise if a column holds anything but numbers and texts."""
    types = pyarrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )
    if not (types.is_primitive(kind) or types.is_decimal(kind) or text):
        requirement = f"its column {name!r} holds {kind}; it must hold numbers or texts."
        raise InvalidParameter("table", table, requirement)


def cells_of(column: Any) -> Any:
    """Numbers as an array, NaN for a missing one; whole numbers with gaps, and anything else, as a list.

    Whole numbers stay what they are: as floats, large ids would be others than beside a missing one. Dates and times
    are an array of numpy's, in which there are days that Python does not have.
    """
    if str(column.type).startswith(("date", "timestamp")):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if str(column.type) in ("double", "float"):
        return column.to_numpy(zero_copy_only=False).astype(np.float64)
    if column.null_count == 0 and str(column.type) in ("int64", "int32", "int16", "int8"):
        return column.to_numpy()
    return list_cells(column)


def cast_each(column: Any, kind: Any) -> Any:
    """An array of texts as one of another type; a text that cannot be converted is missing."""
    if column.type == kind:
        return column
    with suppress(Exception):  # pyarrow's messages quote the cell
        return column.cast(kind)
    arrow = pyarrow()
    nothing, texts = arrow.nulls(1, kind), column.dictionary_encode()
    known = [nothing]
    for place in range(len(texts.dictionary)):
        found = nothing
        with suppress(Exception):
            found = texts.dictionary.slice(place, 1).cast(kind)
        known.append(found)
    places = arrow.compute.add(texts.indices.cast("int64").fill_null(-1), 1)
    return arrow.concat_arrays(known).take(places)


def write(file: Any, chunks: Iterator[Mapping[str, Any]]) -> None:
    """Write columns, chunk by chunk; the first one, which is empty, counts if there is no other."""
    arrow = pyarrow()
    tables = (arrow.table(dict(chunk)) for chunk in chunks)
    empty = next(tables)
    first = next(tables, empty)
    with arrow.parquet.ParquetWriter(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
