"""Integer arithmetic of second moments: rows in whole steps, and their products in units of a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.whole_products import add_products, pairs_for, totals_for

Array = NDArray[np.float64]

_BLOCK = 2**17  # numbers that are multiplied at once: they stay in the cache


@dataclass(frozen=True)
class MomentLattice:
    """Integers for second moments (docs/engines.md: E15).

    Rows are rounded to multiples of ``step``, so a product is a multiple of ``step**2``. That many units of the
    sum's grid make one such product on the diagonal, and ``beside`` of them off it: about sqrt(2) times as many, and
    not more.
    """

    step: float
    diagonal: int
    beside: int

    @classmethod
    def of(cls, grid: float) -> MomentLattice:
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
