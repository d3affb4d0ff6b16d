"""A sum of contributions, gathered piece by piece in the arithmetic of its stage: :class:`Sums`.

Statistics of a table are joint releases: one record adds a 1 to a bin here, a number there. Whoever fills a
:class:`Sums` proves that one record's additions together have norm at most ``clip_norm``. In hardened arithmetic
every addition is rounded toward zero to the stage's grid, which keeps that true, and the sum is of whole numbers.

>>> from discreet import Budget
>>> from discreet.linear.recipe.spending import Spending
>>> stage = Spending(Budget(1.0, 1e-6), arithmetic="hardened").stage("example")
>>> sums = Sums(stage, size=3, clip_norm=1.0)
>>> sums.add_ones(np.array([0, 2, 2]))
>>> sums.total.tolist()
[1.0, 0.0, 2.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation
from discreet.linear.recipe.spending import Stage
from discreet.noise import BoundedSum

Array = NDArray[np.float64]
_BLOCK = 2**21  # numbers rounded at once


class Sums:
    """One sum of ``size`` numbers; each record may move it by ``clip_norm`` at most."""

    def __init__(self, stage: Stage, size: int, clip_norm: float) -> None:
        self._stage, self._clip_norm = stage, float(clip_norm)
        self.grid = stage.grid(self._clip_norm)
        self._sum: NDArray[Any] = np.zeros(size, np.float64 if self.grid is None else np.int64)

    @property
    def total(self) -> Array:
        """What was gathered: private."""
        return self._sum * (1.0 if self.grid is None else self.grid)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise that each number will get."""
        return self._stage.noise_multiplier * self._clip_norm

    def add_ones(
        self, cells: NDArray[np.int64], weights: NDArray[Any] | None = None, unit: float = 1.0
    ) -> None:
        """For each record ``unit`` times its weight, into its cell."""
        size = len(self._sum)
        if self.grid is None:
            self._sum += unit * np.bincount(cells, weights, minlength=size)
        elif weights is None:
            self._sum += int(unit / self.grid) * np.bincount(cells, minlength=size)
        else:
            np.add.at(self._sum, cells, (unit * weights / self.grid).astype(np.int64))

    def add_rows(
        self, first: int, rows: NDArray[Any], weights: NDArray[Any] | None = None, unit: float = 1.0
    ) -> None:
        """For each record ``unit`` times its weight times its row, into the cells from ``first`` on."""
        where = self._sum[first : first + rows.shape[1]]
        if self.grid is None:
            where += unit * (rows.sum(0, dtype=np.float64) if weights is None else weights @ rows)
            return
        step = max(1, _BLOCK // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            part = rows[start : start + step].astype(np.float64)
            part *= unit if weights is None else unit * weights[start : start + step, None]
            where += (part / self.grid).astype(np.int64).sum(0)

    def add_total(self, total: NDArray[Any]) -> None:
        """A sum that somebody else made in this arithmetic: numbers, or whole steps of :attr:`grid`."""
        if total.dtype != self._sum.dtype:
            raise PlanViolation(f"A {self._sum.dtype} sum is gathered here, not one of {total.dtype}.")
        self._sum += total.reshape(-1)

    def released(self) -> Array:
        """The sum with noise.

        Guarantee: as :class:`~discreet.linear.recipe.spending.Stage`, if one record's additions have norm at most
        ``clip_norm`` together.
        """
        return self._stage.release(BoundedSum(self._sum, self._clip_norm, grid=self.grid))
