"""Questions of an evaluation to the records of a table, and their counts: :class:`EvaluationQuestion`.

A question holds what was declared, and nothing of a record: it is the same for all parts of a table. Counts are
integers, so those of several parts add up to those of the table, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.columns import list_cells
from discreet.errors import InvalidParameter
from discreet.evaluation.answers import answers
from discreet.evaluation.asking import how_to_ask
from discreet.evaluation.count_layout import CountLayout, Grouping
from discreet.evaluation.declared_task import columns_of, declared_groups, target_of
from discreet.evaluation.splitting import row_count, unit_ids
from discreet.evaluation.tasks import Task
from discreet.guarantee import Neighbours
from discreet.linear.column_kinds import Column, distinct
from discreet.linear.encoder import declared_labels, one_for_each_row
from discreet.linear.inputs import codes, column_names, column_values, without_column
from discreet.linear.partition_results import PartitionReply, reply
from discreet.linear.private_reader import DeclaredTarget
from discreet.linear.sources import source_of
from discreet.linear.tables import as_they_are, join_chunks
from discreet.linear.user_routing import Share
from discreet.trusted.queries import Blocks
from discreet.trusted.rows import PrivateRows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class EvaluationQuestion:
    """``y``, ``by`` and ``unit`` as they were given to :func:`~discreet.evaluation.evaluate.evaluate`."""

    model: Any
    task: Task
    y: Any
    by: Any
    unit: Any

    def ask(self, x: Any, neighbours: Neighbours = "add-remove") -> Encoded:
        """The records of ``x``, which may have to be read. Refusals depend on names and shapes."""
        x, unit = self._in_memory(x)
        rows, (name, column) = row_count(x), target_of(self.model)
        y, x = _target(x, self.y, name)
        truth = DeclaredTarget(column, self.task.labels or None).read(y, rows)[:]
        groups = _groups(self.by, x, rows, columns_of(self.model))
        persons = None if unit is None else unit_ids(x, unit, rows)
        found = answers(*how_to_ask(self.model, self.task), x, type(self.model).__name__)
        numbers = np.column_stack([truth, found, *(codes for _, codes in groups)])
        layout = CountLayout(self.task, tuple(one for one, _ in groups))
        return Encoded(layout, PrivateRows(numbers, neighbours, persons))

    def _in_memory(self, x: Any) -> tuple[Any, Any]:
        """The columns of the model's schema, and whose each row is, if ``x`` is read from elsewhere."""
        source, unit = source_of(x), self.unit
        if source is None:
            return x, unit
        columns = columns_of(self.model)
        if not columns:
            raise InvalidParameter("x", type(x).__name__, "must be in memory for a model without a schema.")
        named = isinstance(unit, str)
        if named and unit not in source.names:
            raise InvalidParameter("unit", unit, "is not a column of the table.")
        chunks = list(source.chunks(columns, [unit] if named else []))
        ids = np.concatenate([as_in_the_file(chunk.kept[unit]) for chunk in chunks]) if named else unit
        return join_chunks(chunks, columns), ids


class Encoded(NamedTuple):
    """The records of a table as label, answers and groups, behind the gate, and what is counted of them."""

    layout: CountLayout
    rows: PrivateRows


Places = tuple[Grouping, NDArray[np.int64]]
"""A grouping, and the place of each record's value in it; the last one is for others."""


def _groups(by: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> list[Places]:
    if by is None:
        return []
    wanted = dict(by) if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by)
    return [_group(name, declared, x, rows, schema) for name, declared in wanted.items()]


def _group(name: str, declared: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> Places:
    values = None
    if isinstance(declared, tuple) and len(declared) == 2 and hasattr(declared[0], "__len__"):
        values, declared = (None, declared) if isinstance(declared[0], str) else declared
    if values is None:
        if name not in (column_names(x) or ()):
            remedy = "must be a column of x, or come with an array: by={name: (array, declared values)}."
            raise InvalidParameter("by", name, remedy)
        values = column_values(x, name)
    column = schema.get(name)
    if declared is None:
        declared = declared_groups(name, column)
        assert column is not None
        values = declared_labels(column, one_for_each_row("by", values, rows))
    known = tuple(distinct("by", declared))
    places = codes(one_for_each_row("by", values, rows), known)
    return Grouping(name, known), np.where(places < 0, len(known), places)


def _target(x: Any, y: Any, name: str | None) -> tuple[Any, Any]:
    """The target, and the table without it if it is one of its columns."""
    if y is None and name is None:
        raise InvalidParameter("y", None, "must be the labels, or the name of their column in x.")
    wanted = name if y is None else y
    if not isinstance(wanted, str):
        return wanted, x
    if wanted not in (column_names(x) or ()):
        raise InvalidParameter("y", wanted, "is not a column of x.")
    return column_values(x, wanted), without_column(x, wanted)


def as_in_the_file(cells: Any) -> NDArray[Any]:
    """Integers stay what they are: as floats, large ids would be others than beside a missing one."""
    return as_they_are(list_cells(cells) if hasattr(cells, "to_pylist") else cells)


class Counting(NamedTuple):
    """What a worker is asked: the counts of a share of the table."""

    share: Share
    question: EvaluationQuestion
    query: Blocks
    grid: float


def counts_there(task: Counting) -> PartitionReply:
    """The counts of a share of the table, or a code. Never raises: an exception could carry a record."""

    def counts() -> PartitionReply:
        layout, rows = task.question.ask(task.share.source())
        total, public = rows._total(task.query, task.grid).astype(np.int64), layout.digest(task.query)
        return PartitionReply("sum", task.share.place, 0, total, task.query.bound, task.grid, public)

    return reply(task.share, counts)
