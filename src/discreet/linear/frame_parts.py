"""The partitions of a frame that lies on a cluster, as those of files: :class:`FramePart`.

A cluster may compute a partition anew when a worker is lost, and not every computation gives the same rows twice. So
each is known by the digest of its rows, and one that comes back with others stops the fit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear.parquet import ArrowSource, pyarrow
from discreet.linear.partition_results import PartitionReply, PartitionResults
from discreet.linear.partitions import NoRows
from discreet.linear.row_source import Source

Numbers = NDArray[np.int64]

_ROWS = 2**16  # that are read at once
_WRITTEN = 10**300  # integers below are written out


class FramePart(NamedTuple):
    """A partition of a frame, and the digest of its rows. ``frame`` are the rows, where a worker begins with them."""

    path: str
    rows: int
    digest: str
    frame: Any = None

    def __repr__(self) -> str:
        return f"FramePart({self.path})"  # and no rows

    def unchanged(self, thoroughly: bool = True) -> bool:
        """Whether these are the rows of the beginning; where none are needed any more, they are."""
        return self.frame is None or _digest(_arrow(self.frame)) == self.digest

    def source(self) -> Source:
        """The rows, to be read."""
        table = _arrow(self.frame)

        def batches(names: list[str]) -> Any:
            return table.select(names).to_batches(max_chunksize=_ROWS)

        return ArrowSource(self.path, table.schema, batches)


class Frames:
    """All partitions of a frame; ``empty`` is the frame without rows."""

    def __init__(self, parts: Sequence[FramePart], empty: Any) -> None:
        self.parts, self._empty = tuple(parts), empty

    def digest(self) -> str:
        """SHA-256 of what is known of the partitions."""
        return hashlib.sha256(json.dumps([part[:3] for part in self.parts]).encode()).hexdigest()

    def without_rows(self) -> Source:
        """The table as its driver knows it."""
        source: Any = FramePart("frame", 0, "", self._empty).source()
        return NoRows(source.path, source.names, source.schema)


def empty_frame(frame: Any) -> Any:
    """What Dask knows of a frame before it is computed; its arrays, single columns and bags are refused."""
    empty = getattr(frame, "_meta", None)
    if not hasattr(empty, "columns"):
        requirement = "must be a frame with named columns, such as dask.dataframe.from_dask_array(X, names)."
        raise InvalidParameter("X", type(frame).__name__, requirement)
    return empty


class Description(NamedTuple):
    """What a worker is asked of a partition: how many rows it has, and their digest."""

    place: int
    frame: Any

    def __repr__(self) -> str:
        return f"Description({self.place})"


def describe_frame(task: Description) -> PartitionReply:
    """The number of rows and their digest in eight numbers; or a code. Never raises."""
    try:
        table = _arrow(task.frame)
        digest = np.frombuffer(bytes.fromhex(_digest(table)), np.uint32)
        return PartitionReply("sum", task.place, 0, np.array([table.num_rows, *digest], np.int64))
    except BaseException:  # pyarrow's messages quote cells
        return PartitionReply("refused", task.place, 0)


class Descriptions(PartitionResults):
    """What each partition says of itself."""

    def _validate_reply(self, answer: PartitionReply, counts: Numbers) -> None:
        if counts.shape != (9,) or counts[0] < 0:
            raise PlanViolation(f"Partition {answer.place} gave no description; the fit stops.")

    def parts(self) -> list[FramePart]:
        """The partitions."""
        return [
            FramePart(f"partition {place}", int(known[0]), known[1:].astype(np.uint32).tobytes().hex())
            for place, known in enumerate(self.answers())
        ]


def _arrow(frame: Any) -> Any:
    """The rows as a table of arrow, whose types are those of the frame: no cell decides them.

    Columns of objects are texts. A cell that is none, nor a number that can be written as one, is missing.
    """
    arrow = pyarrow()
    objects = [
        place for place, kind in enumerate(frame.dtypes) if isinstance(kind, np.dtype) and kind.kind == "O"
    ]
    table = arrow.Table.from_pandas(frame.drop(columns=frame.columns[objects]), preserve_index=False)
    for place in objects:
        texts = arrow.array([_text(cell) for cell in frame.iloc[:, place].tolist()], arrow.string())
        table = table.add_column(place, str(frame.columns[place]), texts)
    return table.replace_schema_metadata(None)


def _text(cell: Any) -> str | None:
    if not isinstance(cell, str | bool | int | float) or cell != cell:
        return None
    text = str(cell) if isinstance(cell, str | bool | float) or abs(cell) < _WRITTEN else None
    return None if text is None or text.encode("utf-8", "ignore").decode() != text else text


def _digest(table: Any) -> str:
    found = hashlib.sha256()
    arrow = pyarrow()
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    found.update(sink.getvalue())
    return found.hexdigest()
