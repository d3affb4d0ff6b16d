"""Tables that are not in memory, whatever brings them: :func:`source_of`.

A path or a pattern of CSV, Parquet or Arrow files, a pyarrow dataset, a polars LazyFrame, a DuckDB relation, and
anything else that can be read again and again as an Arrow stream. None of these packages is imported unless it is
used. What can be read only once is refused: a second fit would find nothing, without a word.

Nothing here has to be believed for the guarantee, which is for the rows that a source yields. These functions choose
the library's own reader and touch no cell. What its batches hold is converted, cell by cell, by
:class:`~discreet.linear.parquet.ArrowSource`, which replaces what a reader raises and refuses columns of different
lengths.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from discreet.errors import InvalidParameter
from discreet.linear.lenient import lenient_lazy_frame, lenient_relation
from discreet.linear.parquet import ArrowSource, pyarrow, refuse_on_failure
from discreet.linear.row_source import Source
from discreet.linear.tables import table_in

_ROWS = 2**16  # that are read at once
_AHEAD = {
    "batch_size": _ROWS,
    "batch_readahead": 1,
    "fragment_readahead": 1,
}  # of a dataset, not sixteen times as much
_ONCE = ("RecordBatchReader", "TextFileReader", "Scanner", "CSVReader", "DuckDBPyReader")


def source_of(X: Any) -> Source | None:
    """The table to be read in chunks that ``X`` stands for; None if it is in memory.

    Guarantee: refusals depend on the kind of ``X``, on names and types.
    """
    kind, home = type(X).__name__, type(X).__module__.partition(".")[0]
    if isinstance(X, str | os.PathLike):
        return table_in(Path(X))
    if isinstance(X, Source):
        return X
    if is_dask_frame(X):
        requirement = (
            "lies on a cluster and is not pulled into this process: fit(X, y=name) and evaluate(model, X) ask it "
            "there; for all else write it to Parquet."
        )
        raise InvalidParameter("X", kind, requirement)
    if kind in _ONCE or (hasattr(X, "__next__") and not hasattr(X, "shape")):
        requirement = "can be read only once; give what it reads: a path, a pattern, a dataset or a table."
        raise InvalidParameter("X", kind, requirement)
    if home == "pyarrow" and hasattr(X, "to_batches") and hasattr(X, "count_rows"):  # a dataset
        return _of_dataset(kind, X)
    if home == "polars" and kind == "LazyFrame":
        return _of_lazy_frame(X)
    if home in ("duckdb", "_duckdb") and kind == "DuckDBPyRelation":
        return _of_relation(X)
    if hasattr(X, "__arrow_c_stream__") and not hasattr(X, "__getitem__"):
        return _of_stream(X)
    if not any(hasattr(X, name) for name in ("__len__", "shape", "__array__")):
        requirement = (
            "must be a table: a frame, an array or a sparse matrix; the path or pattern of CSV, Parquet or Arrow "
            "files; a pyarrow dataset, a polars LazyFrame or a DuckDB relation."
        )
        raise InvalidParameter("X", kind, requirement)
    return None


def is_dask_frame(X: Any) -> bool:
    """Whether a table is a frame of Dask."""
    return type(X).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(X, "npartitions")


def arrow_file(path: Path) -> Source:
    """The table in an Arrow file (IPC, also called Feather)."""
    arrow = pyarrow()
    from pyarrow import dataset

    with path.open("rb"):  # whether it is there is told as for other files
        pass
    found = None
    with suppress(arrow.ArrowInvalid):
        found = dataset.dataset(str(path), format="ipc")
    if found is None:
        raise InvalidParameter("table", str(path), "is not an Arrow file.")
    return ArrowSource(str(path), found.schema, lambda names: found.to_batches(columns=names, **_AHEAD))


def _of_dataset(kind: str, dataset: Any) -> Source:
    """A pyarrow dataset. The cells of CSV files are read as texts, and each is converted by itself."""
    arrow = pyarrow()
    is_csv = type(getattr(dataset, "format", None)).__name__ == "CsvFileFormat"
    read = refuse_on_failure(lambda: _as_texts(arrow, dataset), kind) if is_csv else dataset

    return ArrowSource(kind, dataset.schema, lambda names: read.to_batches(columns=names, **_AHEAD))


def _as_texts(arrow: Any, dataset: Any) -> Any:
    """A dataset of CSV files with texts for all columns but those that the names of its files tell."""
    told = getattr(getattr(dataset, "partitioning", None), "schema", None)
    known = set(told.names) if told is not None else set()
    fields = [field if field.name in known else field.with_type(arrow.string()) for field in dataset.schema]
    return type(dataset).from_paths(
        dataset.files,
        schema=arrow.schema(fields),
        format=dataset.format,
        filesystem=dataset.filesystem,
        partitions=[fragment.partition_expression for fragment in dataset.get_fragments()],
        root_partition=dataset.partition_expression,
    )


def _of_lazy_frame(frame: Any) -> Source:
    schema = refuse_on_failure(lambda: frame.head(0).collect().to_arrow().schema, "LazyFrame")
    lenient = lenient_lazy_frame(frame)

    def batches(names: list[str]) -> Iterator[Any]:
        chosen = lenient.select(names)
        parts = (
            chosen.collect_batches(chunk_size=_ROWS)
            if hasattr(chosen, "collect_batches")
            else [chosen.collect()]
        )
        for part in parts:
            yield from part.to_arrow().to_batches(max_chunksize=_ROWS)

    return ArrowSource("LazyFrame", schema, batches)


def _of_relation(relation: Any) -> Source:
    pyarrow()
    kind = "DuckDBPyRelation"
    schema = refuse_on_failure(lambda: relation.limit(0).to_arrow_table().schema, kind)
    lenient = lenient_relation(relation)

    def batches(names: list[str]) -> Any:
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        return lenient.project(quoted).to_arrow_reader(_ROWS)

    return ArrowSource(kind, schema, batches)


def _of_stream(stream: Any) -> Source:
    arrow = pyarrow()

    def batches(names: list[str]) -> Any:
        return (batch.select(names) for batch in arrow.RecordBatchReader.from_stream(stream))

    kind = type(stream).__name__
    schema = refuse_on_failure(lambda: arrow.RecordBatchReader.from_stream(stream).schema, kind)
    return ArrowSource(kind, schema, batches)
