"""Second moments of rows in integers: :class:`SecondMoments`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from discreet.core.clipping import clip_rows
from discreet.errors import PlanViolation
from discreet.linear.gate.basis import Basis
from discreet.linear.gate.coordinates import Marginals, standardise
from discreet.linear.gate.curve_rows import gather_rows
from discreet.linear.gate.data import checked_bound, dense
from discreet.linear.gate.record_store import RecordStore
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import put_ones_before
from discreet.linear.kernels.whole_products import add_products, pairs_for, totals_for
from discreet.trusted.plain_data import Data, conform

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = NDArray[np.float32]

_BLOCK = 2**17  # numbers that are multiplied at once: they stay in the cache
_PART = 2**22  # numbers of rows of a basis that are made at once


@dataclass(frozen=True, eq=False)
class StandardRows(Data):
    """The rows (x - centre) / scale, with x clamped to its limits first."""

    marginals: Marginals

    @property
    def width(self) -> int:
        return len(self.marginals.centre)

    @property
    def part(self) -> int:
        """How many rows are made at once: so few that they stay in the cache."""
        return max(1, _BLOCK // (self.width + 1))

    def __call__(self, x: Any) -> Any:
        return standardise(x, self.marginals)

    def content(self) -> tuple[Any, ...]:
        """What moves rows."""
        return self.marginals[:4]


@dataclass(frozen=True, eq=False)
class CurveDirections(Data):
    """The rows of a basis times a public matrix, plus a constant."""

    basis: Basis
    matrix: Array
    constant: Array

    @property
    def width(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def part(self) -> int:
        """How many rows are made at once."""
        return max(1, _PART // self.width)

    def __call__(self, x: Any) -> Matrix:
        return gather_rows(x, self.basis, self.matrix, self.constant)


@dataclass(frozen=True, eq=False)
class SecondMoments(Data):
    """The sum of w w' over the records, w = (1, z) clipped to norm ``limit``, where ``view`` makes rows z.

    What is released is the upper triangle, its entries off the diagonal times a number just below sqrt(2).

    Guarantee: a record adds a vector of norm |w|^2, which is at most ``limit``^2 (docs/engines.md: E15).
    """

    view: StandardRows | CurveDirections
    limit: float

    def __post_init__(self) -> None:
        conform(self)
        checked_bound("limit", self.limit)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return self.limit**2

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return (self.view.width + 1) * (self.view.width + 2) // 2

    def total(self, store: RecordStore, grid: float) -> Integers:
        """The sum in grid steps."""
        size = self.view.width + 1
        lattice, total = Lattice.of(grid), totals_for(size)
        clip = self.limit - lattice.rounding(size)
        if not clip > 0:
            raise PlanViolation("The grid is too coarse for second moments of so many numbers.")
        rows = np.empty((max(1, _BLOCK // size), size), np.float32)
        for z, weights in self._rows(store):
            for start in range(0, len(z), len(rows)):
                own = slice(start, start + len(rows))
                part = rows[: len(z[own])]
                put_ones_before(readable(z[own]), part)
                clip_rows(part, clip, out=part)
                lattice.add_products(part, None if weights is None else weights[own], total)
        return lattice.pack(total, size)

    def _rows(self, store: RecordStore) -> Iterator[tuple[Any, Array | None]]:
        step = self.view.part
        for x, _, weights, _ in store.chunks():
            for start in range(
                0, max(1, len(dense(x))), step
            ):  # checks must not depend on whether there are rows
                own = slice(start, start + step)
                yield self.view(x[own]), None if weights is None else weights[own]


@dataclass(frozen=True)
class Lattice:
    """Integers for second moments (docs/engines.md: E15).

    Rows are rounded to multiples of ``step``, so a product is a multiple of ``step**2``. That many units of the
    sum's grid make one such product on the diagonal, and ``beside`` of them off it: about sqrt(2) times as many, and
    not more.
    """

    step: float
    diagonal: int
    beside: int

    @classmethod
    def of(cls, grid: float) -> Lattice:
        exponent = math.frexp(grid)[1] - 1
        bits = 7 if (exponent + 7) % 2 == 0 else 8  # the step's square must be a square
        return cls(math.ldexp(1.0, (exponent + bits) // 2), 2**bits, math.isqrt(2 * 4**bits))

    def rounding(self, size: int) -> float:
        """What rounding may add to the norm of a row of so many numbers."""
        return 0.5 * math.sqrt(size) * self.step * (1 + 1e-6)

    def products(self, rows: NDArray[np.float32 | np.float64], weights: Array | None) -> NDArray[np.int64]:
        """The sum of w w' over the rows, its upper triangle in units of the grid; see :meth:`add_products`."""
        total = totals_for(rows.shape[1])
        self.add_products(rows, weights, total)
        return self.pack(total, rows.shape[1])

    def add_products(
        self, rows: NDArray[np.float32 | np.float64], weights: Array | None, total: NDArray[np.int64]
    ) -> None:
        """Add w w' over the rows to ``total``, which is :func:`totals_for` their columns, in squares of the step.

        Guarantee: all sums on the way are integers that their type holds, in whatever order they are taken, so
        each row adds what it would add alone. A weight below 1 shortens the row by its root, and what it leaves is
        cut toward zero: rows whose weights sum to at most 1 add no more than one row could, however many they are.
        """
        size = rows.shape[1]
        block = max(1, _BLOCK // size)
        pairs = pairs_for(min(block, len(rows)), size)
        roots = np.empty(0) if weights is None else np.sqrt(weights)
        for start in range(0, len(rows), block):
            own = slice(start, start + block)
            part = readable(rows[own])
            if not add_products(part, roots[own], 1 / self.step, pairs, total):
                steps = self._steps(part, roots[own])
                steps[~np.isfinite(steps).all(axis=1)] = 0.0
                total[:size, :size] += dsyrk(1.0, steps.T).astype(np.int64)

    def _steps(self, rows: NDArray[Any], roots: Array) -> Array:
        """The rows in whole steps, too large for the sums of small numbers, as float64."""
        wide = rows.astype(np.float64)
        nearest = np.rint(wide / self.step)
        if not len(roots):
            return nearest
        return np.where(roots[:, None] == 1, nearest, np.trunc(wide * roots[:, None] / self.step))

    def pack(self, total: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """What :meth:`add_products` gave, its upper triangle as a vector in units of the grid."""
        upper = np.triu_indices(size)
        return np.asarray(total[upper] * np.where(upper[0] == upper[1], self.diagonal, self.beside))
