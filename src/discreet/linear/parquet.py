"""Tables in record batches of Arrow, and Parquet files, with pyarrow where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from discreet.core.columns import column_to_array
from discreet.errors import InvalidParameter, missing_extra
from discreet.linear.cells import Read
from discreet.linear.declarations import refuse_nested
from discreet.linear.row_source import Source, Table

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


def guarded(batches: Callable[[], Any], kind: str, name: str = "X") -> Iterator[Any]:
    """Yield what ``batches()`` yields.

    Guarantee: an exception of a library, which may quote a record, is replaced by a sentence of ours, and is neither
    its cause nor its context.
    """
    stream, failed = None, False
    while not failed:
        try:
            stream = iter(batches()) if stream is None else stream
            batch = next(stream)
        except StopIteration:
            return
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a panic of polars is no Exception
            failed = True
        else:
            yield batch
    requirement = (
        "could not be read to its end: some record cannot be read or evaluated as the query or the file says. Give "
        "the path of a CSV or Parquet file, or a query that cannot fail, such as one with TRY_CAST or strict=False. "
        "Nothing was released."
    )
    raise InvalidParameter(name, kind, requirement)


def refuse_on_failure(read: Callable[[], Any], kind: str, name: str = "X") -> Any:
    """Return ``read()``, with the guarantee of :func:`guarded`."""
    return next(guarded(lambda: [read()], kind, name))


class ArrowSource(Source):
    """Record batches: ``batches(names)`` reads these columns from the beginning, every time it is called.

    Types are public, as names are: a column of lists is refused, a missing cell is not. A cell that is not of the
    type in the schema, and cannot be converted, is missing.
    """

    _given_as = "X"

    def __init__(self, name: str, schema: Any, batches: Callable[[list[str]], Any]) -> None:
        self.path, self.schema, self._batches, self._done = Path(name), schema, batches, 0
        self.names = tuple(schema.names)

    def batches(self, names: list[str]) -> Iterator[Any]:
        for name in names:
            refuse_nested(str(self.path), name, self.schema.field(name).type)
        for batch in guarded(lambda: self._batches(names), str(self.path), self._given_as):
            self._done += batch.num_rows
            yield batch

    def table(self, batch: Any, readers: Mapping[str, Read], keep: Sequence[str]) -> Table:
        names = (*readers, *keep)
        cells = {name: cast_each(batch.column(name), self.schema.field(name).type) for name in names}
        columns = {name: read(column_to_array(cells[name])) for name, read in readers.items()}
        return Table(columns, batch.num_rows, {name: cells[name] for name in keep})

    def progress(self) -> float:
        return 0.0


class ParquetSource(ArrowSource):
    """A Parquet file."""

    _given_as = "table"

    def __init__(self, path: Path) -> None:
        arrow, found = pyarrow(), None
        with path.open("rb"):  # whether it is there is told as for other files
            pass
        with suppress(Exception):  # pyarrow's messages might quote what is in the file
            found = arrow.parquet.ParquetFile(path, **STREAM)
        if found is None:
            raise InvalidParameter("table", str(path), "is not a Parquet file.")
        self._file = found
        super().__init__(
            str(path), found.schema_arrow, lambda names: found.iter_batches(batch_size=ROWS, columns=names)
        )

    def batches(self, names: list[str]) -> Iterator[Any]:
        with self._file:
            yield from super().batches(names)
        pyarrow().default_memory_pool().release_unused()

    def progress(self) -> float:
        return float(self._done / max(self._file.metadata.num_rows, 1))


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
