"""What the records of a table are asked in an evaluation, and how their answers are counted: :class:`Question`.

A question holds what was declared, and nothing of a record: it is the same for all parts of a table. Counts are
whole numbers, so those of several parts add up to those of the table, to the bit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import DiscreetError, InvalidParameter
from discreet.evaluation.answers import answers
from discreet.evaluation.scoring import Shared
from discreet.evaluation.splitting import row_count, unit_ids
from discreet.evaluation.tasks import Cells, Numbers, Task
from discreet.linear.cells import declared_numbers
from discreet.linear.homes import Share
from discreet.linear.inputs import codes, column_names, column_values
from discreet.linear.schema import Category, Column, Flag, Numeric, distinct, schema_of
from discreet.linear.sources import source_of
from discreet.linear.tables import as_they_are, joined
from discreet.linear.tally import Answer
from discreet.linear.targets import declared_labels, one_for_each_row, target_numbers
from discreet.statistics.purchase import MOST_RECORDS

Array = NDArray[np.float64]

MOST_CELLS = 2**22


@dataclass(frozen=True)
class Question:
    """``y``, ``by`` and ``unit`` as they were given to :func:`~discreet.evaluation.evaluate.evaluate`."""

    model: Any
    task: Task
    y: Any
    by: Any
    unit: Any

    def ask(self, x: Any) -> Placed:
        """The cells of the records of ``x``, which may have to be read. Refusals depend on names and shapes."""
        x, unit = self._in_memory(x)
        rows = row_count(x)
        if rows > MOST_RECORDS:
            raise InvalidParameter("x", "too many rows", f"must have at most {MOST_RECORDS}.")
        target = _target_column(self.model)
        y, x = _target(x, self.y, target[0] if target else None)
        truth = _truth(one_for_each_row("y", y, rows), self.task, target[1] if target else None)
        groups = _groups(self.by, x, rows, _schema_columns(self.model))
        weights = None if unit is None else weights_of(unit_ids(x, unit, rows))
        said = answers(self.model, self.task, x)
        placed = Placed(
            self.task, placed_cells(self.task, truth, said), tuple(groups), _crossed(groups, rows), weights
        )
        if placed.number * sum(block.size for block in self.task.blocks) > MOST_CELLS:
            raise InvalidParameter(
                "by", [one.name for one in groups], "makes too many groups; ask for fewer."
            )
        return placed

    def for_workers(self) -> Question:
        """The same without ledger, key and seed of the model."""
        known = {"ledger", "ledger_key", "unsafe_seed"} & set(
            vars(self.model) if hasattr(self.model, "ledger") else ()
        )
        model = copy(self.model) if known else self.model
        for name in known:
            setattr(model, name, None)
        return replace(self, model=model)

    def _in_memory(self, x: Any) -> tuple[Any, Any]:
        """The columns of the model's schema, and whose each row is, if ``x`` is read from elsewhere."""
        source, unit = source_of(x), self.unit
        if source is None:
            return x, unit
        columns = _schema_columns(self.model)
        if not columns:
            raise InvalidParameter("x", type(x).__name__, "must be in memory for a model without a schema.")
        named = isinstance(unit, str)
        if named and unit not in source.names:
            raise InvalidParameter("unit", unit, "is not a column of the table.")
        chunks = list(source.chunks(columns, [unit] if named else []))
        ids = np.concatenate([_as_in_the_file(chunk.kept[unit]) for chunk in chunks]) if named else unit
        return joined(chunks, columns), ids


class Placed(NamedTuple):
    """Where records are counted: in the cells of each block of the task, times those of their group."""

    task: Task
    cells: list[Shared]
    groups: tuple[Groups, ...]
    group: Cells
    weights: Array | None

    @property
    def number(self) -> int:
        """How many groups there are."""
        return math.prod(len(one.declared) + 1 for one in self.groups)

    def digest(self, steps: Sequence[int]) -> str:
        """Of all that is public: those who add up their totals must agree in it."""
        known = (self.task.blocks, [(one.name, one.declared) for one in self.groups], list(steps))
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def totals(self, steps: Sequence[int]) -> list[Cells]:
        """For each block, to whose cells a record adds ``steps`` at most: the sums of all records.

        Guarantee: a person's rows together add no more than a record may, because their weights add up to 1.
        """
        return [
            spread(where, self.group, self.number, block.size, many, self.weights)
            for block, where, many in zip(self.task.blocks, self.cells, steps, strict=True)
        ]


# ---- what is asked for ----


@dataclass(frozen=True)
class Groups:
    """A grouping: the declared values, and the place of each record's value among them; the last is for others."""

    name: str
    declared: tuple[Any, ...]
    places: Cells


def _groups(by: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> list[Groups]:
    if by is None:
        return []
    wanted = dict(by) if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by)
    return [_group(name, declared, x, rows, schema) for name, declared in wanted.items()]


def _group(name: str, declared: Any, x: Any, rows: int, schema: Mapping[str, Column]) -> Groups:
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
        if not isinstance(column, Category | Flag):
            remedy = (
                "needs its declared values, such as by={'sex': ('F', 'M')}; those in the records are private."
            )
            raise InvalidParameter("by", name, remedy)
        declared = column.values if isinstance(column, Category) else (True, False)
        values = declared_labels(column, one_for_each_row("by", values, rows))
    known = tuple(distinct("by", declared))
    places = codes(one_for_each_row("by", values, rows), known)
    return Groups(name, known, np.where(places < 0, len(known), places))


def _target(x: Any, y: Any, name: str | None) -> tuple[Any, Any]:
    """The target, and the table without it if it is one of its columns."""
    if y is None and name is None:
        raise InvalidParameter("y", None, "must be the labels, or the name of their column in x.")
    wanted = name if y is None else y
    if not isinstance(wanted, str):
        return wanted, x
    if wanted not in (column_names(x) or ()):
        raise InvalidParameter("y", wanted, "is not a column of x.")
    found = column_values(x, wanted)
    if hasattr(x, "drop_columns"):
        return found, x.drop_columns([wanted])
    if hasattr(x, "drop"):
        return found, x.drop(columns=[wanted]) if hasattr(x, "iloc") else x.drop(wanted)
    return found, x


def _schema_columns(model: Any) -> Mapping[str, Column]:
    schema = getattr(model, "schema", None)
    return {} if schema is None else schema_of(schema).columns


def _target_column(model: Any) -> tuple[str, Column] | None:
    schema = getattr(model, "schema", None)
    target = None if schema is None else schema_of(schema).target
    return None if target is None else (target, schema_of(schema).columns[target])


def _truth(y: NDArray[Any], task: Task, column: Column | None) -> Array:
    """The target as a class's place or a number; NaN for what nobody declared."""
    if isinstance(task, Numbers):
        return target_numbers(declared_numbers(column, y, "y") if isinstance(column, Numeric) else y)
    if isinstance(column, Category | Flag):
        y = declared_labels(column, y)
    places = codes(y, task.labels)
    return np.where(places < 0, np.nan, places)


def _as_in_the_file(cells: Any) -> NDArray[Any]:
    """Whole numbers stay what they are: as floats, large ids would be others than beside a missing one."""
    return as_they_are(cells.to_pylist() if hasattr(cells, "to_pylist") else cells)


# ---- counting ----


def weights_of(ids: list[bytes | None]) -> Array:
    """1 over the number of a person's rows, for each row; 0 for rows of nobody."""
    many: dict[bytes, int] = {}
    for one in ids:
        if one is not None:
            many[one] = many.get(one, 0) + 1
    return np.array([0.0 if one is None else 1.0 / many[one] for one in ids], np.float64)


def placed_cells(task: Task, truth: Array, said: Array) -> list[Shared]:
    """The cells of all records: those that cannot be scored are in the last cell of the first block only."""
    good = np.isfinite(truth) & np.isfinite(said).all(1)
    placed = []
    for number, (block, part) in enumerate(
        zip(task.blocks, task.cells(truth[good], said[good]), strict=True)
    ):
        cells = np.full((len(truth), part.cells.shape[1]), block.size - 1, np.int64)
        shares = np.zeros(cells.shape)
        if number == 0:
            shares[:, 0] = 1.0
        cells[good], shares[good] = part
        placed.append(Shared(cells, shares))
    return placed


def _crossed(groups: Sequence[Groups], rows: int) -> Cells:
    """The number of each record's group among all combinations of groups."""
    place = np.zeros(rows, np.int64)
    for one in groups:
        place = place * (len(one.declared) + 1) + one.places
    return place


def spread(
    where: Shared, group: Cells, groups: int, size: int, steps: int, weights: Array | None = None
) -> Cells:
    """Whole numbers, at most ``steps`` in all from each record, in its cells.

    Each is cut toward zero. What shares and weights are above 1 together by their rounding is less than one step in
    ``steps``, which is below 2^48; so a sum of whole numbers cannot be above ``steps`` by it.
    """
    total = np.zeros(groups * size, np.int64)
    for cells, shares in zip(where.cells.T, where.shares.T, strict=True):
        amounts = (shares if weights is None else shares * weights) * steps
        np.add.at(total, group * size + cells, amounts.astype(np.int64))
    return total


# ---- a part of a table, where it lies ----


class Counting(NamedTuple):
    """What a worker is asked: the counts of a share of the table."""

    share: Share
    question: Question
    steps: tuple[int, ...]
    grid: float


def counts_there(task: Counting) -> Answer:
    """The counts of a share of the table, or a code. Never raises: an exception could carry a record."""
    place = task.share.place
    try:
        if not task.share.is_as_it_was():
            return Answer("changed", place, 0)
        placed = task.question.ask(task.share.source())
        totals, public = placed.totals(task.steps), placed.digest(task.steps)
        if not task.share.is_as_it_was():
            return Answer("changed", place, 0)
        return Answer("sum", place, 0, np.concatenate(totals), 1.0, task.grid, public)
    except OSError:
        return Answer("unreadable", place, 0)
    except DiscreetError:
        return Answer("refused", place, 0)
    except BaseException:
        return Answer("failed", place, 0)
