"""Encoded records that answer queries and nothing else: :class:`Records`.

>>> from discreet.linear.losses import Logistic
>>> records = Records(Logistic(), np.zeros((3, 1)), np.array([0, 1, 1]), Columns(numerics=1))
>>> records
Records(columns=1)
>>> len(records)
Traceback (most recent call last):
    ...
TypeError: Private rows have no length, no items and no truth value. Ask a query of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.linear.gate.basis import Basis
from discreet.linear.gate.block_cache import BlockCache
from discreet.linear.gate.block_sums import Blocks
from discreet.linear.gate.clipped_gradients import ClippedGradient, CountExcess, HalfOctaves, ScoreLine
from discreet.linear.gate.curve_rows import CurveStore
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.newton import NewtonStep
from discreet.linear.gate.people import People
from discreet.linear.gate.record_store import RecordStore
from discreet.linear.gate.second_moments import SecondMoments
from discreet.linear.gate.sparse_rows import NARROW
from discreet.linear.losses import Loss
from discreet.trusted.opaque import AnyRows

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

CATALOGUE = (Blocks, HalfOctaves, SecondMoments, ClippedGradient, ScoreLine, CountExcess, NewtonStep)
"""The queries that records answer."""


class Records(AnyRows):
    """Encoded records with their targets: the columns are public, the rows are not.

    Made of what a :class:`~discreet.linear.gate.record_store.RecordStore` takes.
    """

    __slots__ = ("_store", "basis")

    _answers: ClassVar[tuple[type, ...]] = CATALOGUE

    def __init__(self, *known: Any, **options: Any) -> None:
        self._store = RecordStore(*known, **options)
        self.basis: Basis | None = None

    @classmethod
    def of(
        cls,
        loss: Loss,
        x: Any,
        y: Any,
        columns: Columns,
        weights: Any = None,
        people: People | None = None,
        shelf: BlockCache | None = None,
        whole_rows: bool = False,
    ) -> Records:
        """Records that stay sparse where they are wide, unless queries about ``whole_rows`` will be asked."""
        wide = issparse(x) and columns.width > NARROW and not columns.groups
        return cls(loss, x, y, columns, weights, people, shelf, wide and people is None and not whole_rows)

    @property
    def columns(self) -> Columns:
        """The kinds of the columns."""
        return self._store.columns

    @property
    def loss(self) -> Loss:
        """The loss that says which targets count."""
        return self._store.loss

    @property
    def sparse(self) -> bool:
        """Whether rows stay sparse."""
        return self._store.sparse

    def as_text(self, norm: float) -> Records:
        """The same sparse records with rows of at most this norm: a block of text, whatever they were."""
        return self._with(self._store.as_text(norm))

    def in_curves(self, basis: Basis) -> Records:
        """The same records as rows of a basis."""
        found = self._with(CurveStore(self._store, basis))
        found.basis = basis
        return found

    def fill_missing(self, values: Array) -> None:
        """From now on let every missing number be the value of its column, which is public."""
        self._store.fill_missing(values)

    def filled(self, values: Array) -> Records:
        """The same records with every missing number replaced by the value of its column."""
        found = self._with(self._store.copy())
        found.fill_missing(values)
        return found

    def _with(self, store: RecordStore) -> Records:
        found: Records = object.__new__(Records)
        found._store, found.basis = store, None
        return found

    def _row_count(self) -> int:
        return len(self._store)

    def _sum(self, query: Any, grid: float) -> Integers:
        return np.asarray(query.total(self._store, grid))

    def __repr__(self) -> str:
        return f"Records(columns={self.columns.width})"
