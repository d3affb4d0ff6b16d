"""Rows that lie in partitions: :class:`PartitionedTable` sends each query to all of them and adds up their answers.

A :class:`PartitionQuery` is what a partition needs to answer one query: the view that the query is asked of, what
else is public of the rows, the query and the grid. It is data: its answer is a function of it and of the rows alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.errors import PlanViolation
from discreet.linear.gate.private_table import EncodedRows, View
from discreet.linear.gate.records import RecordQuery
from discreet.linear.losses import Loss
from discreet.linear.packed_questions import Packed
from discreet.linear.partition_results import PartitionSums
from discreet.trusted.opaque import AnyRows, Opaque
from discreet.trusted.plain_data import refuse_foreign
from discreet.trusted.queries import Blocks

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class QueryContext(NamedTuple):
    """A query, and what is public of the rows beside their view: fills of missing numbers, a basis."""

    query: Any
    fills: Array | None = None
    basis: Any = None


class PartitionQuery(NamedTuple):
    """One query to all partitions: a view, what is asked of it (:class:`QueryContext`), both packed, and the grid.

    ``parts`` may leave out what a worker has.
    """

    release: int
    view: bytes
    asked: bytes
    parts: Mapping[bytes, Any]
    grid: float

    @property
    def digest(self) -> str:
        """SHA-256 of view and query; large arrays are in it by their digests."""
        return hashlib.sha256(hashlib.sha256(self.view).digest() + self.asked).hexdigest()


Ask = Callable[[PartitionQuery, PartitionSums], None]
"""Sends a question to all partitions and lets the tally have their answers."""


class PartitionedTable(Opaque):
    """The table that lies in partitions; ``rows`` is how many each has, at most."""

    __slots__ = ("_ask", "_asked", "_rows")

    def __init__(self, rows: Sequence[int], ask: Ask) -> None:
        self._rows, self._ask, self._asked = tuple(rows), ask, 0

    def rows(self, view: View) -> PartitionedRecords:
        """The rows of a view, which answer queries."""
        refuse_foreign(view)
        return PartitionedRecords(self, view)

    def _row_count(self) -> int:
        return sum(self._rows)

    def _add_up(self, view: Packed, asked: QueryContext, grid: float) -> Integers:
        """The sum over all partitions, each counted exactly once. Private."""
        packed = Packed.of(asked)
        question = PartitionQuery(self._asked, view.data, packed.data, {**view.parts, **packed.parts}, grid)
        self._asked += 1
        like = BoundedSum(np.zeros(asked.query.size, np.int64), float(asked.query.bound), grid=grid)
        sums = PartitionSums(question.release, len(self._rows), like, self._rows, question.digest)
        self._ask(question, sums)
        return sums.total()

    def __repr__(self) -> str:
        return f"PartitionedTable(partitions={len(self._rows)})"


class PartitionedRecords(AnyRows):
    """Rows of a view in all partitions. They answer the queries of one table's rows, by the same sums."""

    __slots__ = ("_fills", "_packed", "_table", "_view", "basis")

    _answers: ClassVar[tuple[type, ...]] = (Blocks, RecordQuery)
    _elsewhere = True
    sparse = False

    def __init__(self, table: PartitionedTable, view: View) -> None:
        self._table, self._view, self._packed = table, view, Packed.of(view)
        self._fills: Array | None = None
        self.basis: Any = None

    @property
    def columns(self) -> Any:
        """The kinds of the columns; of raw columns, how many there are."""
        return self._view.columns if self.basis is None else self.basis.columns  # type: ignore[union-attr]

    @property
    def loss(self) -> Loss:
        """The loss that says which targets count."""
        return self._view.loss  # type: ignore[union-attr]

    def fill_missing(self, values: Array) -> None:
        """From now on let every missing number be the value of its column, which is public."""
        self._fills = values

    def in_curves(self, basis: Any) -> PartitionedRecords:
        """The same records as rows of a basis."""
        if not isinstance(self._view, EncodedRows):
            raise PlanViolation("Only encoded records can be rows of a basis.")
        found = PartitionedRecords(self._table, self._view)
        found._fills, found.basis = self._fills, basis
        return found

    def _row_count(self) -> int:
        return self._table._row_count()

    def _sum(self, query: Any, grid: float) -> Integers:
        return self._table._add_up(self._packed, QueryContext(query, self._fills, self.basis), grid)

    def __repr__(self) -> str:
        return f"PartitionedRecords({type(self._view).__name__})"
