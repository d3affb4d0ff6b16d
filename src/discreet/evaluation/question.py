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
from discreet.evaluation.splitting import unit_ids
from discreet.evaluation.tasks import Task
from discreet.guarantee import Neighbours
from discreet.linear.cells import as_they_are
from discreet.linear.column_kinds import Column, distinct
from discreet.linear.encoder import declared_labels, one_for_each_row
from discreet.linear.inputs import codes, column_names, without_column
from discreet.linear.partition_results import PartitionReply, reply
from discreet.linear.read_parts import DeclaredTarget
from discreet.linear.row_source import join_chunks
from discreet.linear.rows_alone import read_compared, row_count
from discreet.linear.sources import source_of
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
        groups = _groups(self.by, x, columns_of(self.model))
        target = DeclaredTarget(column, self.task.labels or None)
        declared = read_compared(
            lambda y, *values: _numbers(target, y, groups, values), y, *(group.values for group in groups)
        )
        if len(declared) != rows:
            raise InvalidParameter("y", "another length", "X and y must have the same number of rows.")
        persons = None if unit is None else unit_ids(x, unit, rows)
        found = answers(*how_to_ask(self.model, self.task), x, type(self.model).__name__)
        numbers = np.column_stack([declared[:, :1], found, declared[:, 1:]])
        layout = CountLayout(self.task, tuple(group.grouping for group in groups))
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


class _Group(NamedTuple):
    """A grouping, the values of the records, and the column of the schema that says what they mean, if any."""

    grouping: Grouping
    values: Any
    column: Column | None

    def places(self, values: Any, rows: int) -> NDArray[np.int64]:
        """The place of each record's value in the grouping; the last one is for others."""
        cells = one_for_each_row("by", values, rows)
        if self.column is not None:
            cells = declared_labels(self.column, cells)
        places = codes(cells, self.grouping.declared)
        return np.where(places < 0, len(self.grouping.declared), places)


def _numbers(target: DeclaredTarget, y: Any, groups: list[_Group], values: tuple[Any, ...]) -> Array:
    """The target of each record, and its places in the groups."""
    truth = target.read(y, row_count(y))[:]
    places = [group.places(own, len(truth)) for group, own in zip(groups, values, strict=True)]
    return np.column_stack([truth, *places])


def _groups(by: Any, x: Any, schema: Mapping[str, Column]) -> list[_Group]:
    if by is None:
        return []
    wanted = dict(by) if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by)
    return [_group(name, declared, x, schema) for name, declared in wanted.items()]


def _group(name: str, declared: Any, x: Any, schema: Mapping[str, Column]) -> _Group:
    values = None
    if isinstance(declared, tuple) and len(declared) == 2 and hasattr(declared[0], "__len__"):
        values, declared = (None, declared) if isinstance(declared[0], str) else declared
    if values is None:
        if name not in (column_names(x) or ()):
            remedy = "must be a column of x, or come with an array: by={name: (array, declared values)}."
            raise InvalidParameter("by", name, remedy)
        values = x[name]
    column = None
    if declared is None:
        column = schema.get(name)
        declared = declared_groups(name, column)
    return _Group(Grouping(name, tuple(distinct("by", declared))), values, column)


def _target(x: Any, y: Any, name: str | None) -> tuple[Any, Any]:
    """The target, and the table without it if it is one of its columns."""
    if y is None and name is None:
        raise InvalidParameter("y", None, "must be the labels, or the name of their column in x.")
    wanted = name if y is None else y
    if not isinstance(wanted, str):
        return wanted, x
    if wanted not in (column_names(x) or ()):
        raise InvalidParameter("y", wanted, "is not a column of x.")
    return x[wanted], without_column(x, wanted)


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
