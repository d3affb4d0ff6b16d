"""A sum of contributions, gathered piece by piece in whole numbers: :class:`Sums`.

Statistics of a table are joint releases: one record adds a 1 to a bin here, a number there. Whoever fills a
:class:`Sums` proves that one record's additions together have norm at most ``clip_norm``. Every addition is rounded
toward zero to a public grid, which keeps that true, and the sum is one of whole numbers: no record changes what
another one adds, however many there are. Only the noise knows two arithmetics: in ``"hardened"`` it is a whole
number, too; in ``"float"`` the sum becomes floats before continuous noise is added (docs/engines.md: E14).

>>> from discreet import Budget
>>> from discreet.linear.glm.spending import Spending
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
from scipy.sparse import issparse

from discreet.core.noise import FLOAT_ROOM, BoundedSum
from discreet.errors import PlanViolation
from discreet.linear.glm.sparse_rows import triple
from discreet.linear.glm.spending import Stage
from discreet.linear.kernels.csr_entries import add_cut_entries, count_cells
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import add_cut_ones, add_cut_rows, count_bins

Array = NDArray[np.float64]


class Sums:
    """One sum of ``size`` numbers; each record may move it by ``clip_norm`` at most."""

    def __init__(self, stage: Stage, size: int, clip_norm: float) -> None:
        self._stage, self._clip_norm = stage, float(clip_norm)
        self.grid = stage.grid(self._clip_norm)
        self._counts = np.zeros(size, np.int64)

    @property
    def total(self) -> Array:
        """What was gathered: private."""
        return np.asarray(self._counts * self.grid, np.float64)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise that each number will get."""
        return self._stage.noise_multiplier * self._clip_norm

    def add_ones(
        self, cells: NDArray[np.int64], weights: NDArray[Any] | None = None, unit: float = 1.0
    ) -> None:
        """For each record ``unit`` times its weight, into its cell."""
        if weights is None:
            self._counts += int(unit / self.grid) * np.bincount(cells, minlength=len(self._counts))
        else:
            add_cut_ones(cells, weights * (unit / self.grid), self._counts)

    def add_bins(self, rows: NDArray[Any], bins: int, weights: NDArray[Any] | None = None) -> None:
        """For each record 1, times its weight, into the bin of each of its numbers: ``bins`` over [0, 1] for each."""
        if weights is None:
            narrow = np.int32 if len(rows) < 2**31 else np.int64  # small enough for the cache
            counts = np.zeros(rows.shape[1] * bins, narrow)
            count_bins(readable(rows), bins, counts)
            self._counts[: len(counts)] += int(1.0 / self.grid) * counts.astype(np.int64)
            return
        for column in range(rows.shape[1]):
            cells = np.minimum((rows[:, column] * bins).astype(np.int64), bins - 1)
            self.add_ones(cells + column * bins, weights)

    def add_cells(
        self,
        rows: Any,
        cells: NDArray[np.int64],
        zeros: NDArray[np.int64],
        width: int,
        weights: NDArray[Any] | None = None,
    ) -> None:
        """For each record 1, times its weight, into a cell of every column of sparse rows, of ``width`` each.

        ``cells`` are those of the entries, negative where they are not counted, and ``zeros`` those of all others.
        """
        _, indices, indptr = triple(rows)
        steps = np.full(rows.shape[0], int(1.0 / self.grid), np.int64)
        if weights is not None:
            steps = (weights * (1.0 / self.grid)).astype(np.int64)
        counts = self._counts[: len(zeros) * width]
        count_cells(cells.astype(np.int64), indices, indptr, steps, zeros.astype(np.int64), width, counts)

    def add_signed(self, cells: NDArray[np.int64], values: Array) -> None:
        """For each record its value, of either sign, into its cell."""
        add_cut_ones(cells, values / self.grid, self._counts)

    def add_rows(
        self, first: int, rows: Any, weights: NDArray[Any] | None = None, unit: float = 1.0, less: float = 0.0
    ) -> None:
        """For each record ``unit`` times its weight times its row, into the cells from ``first`` on.

        ``less`` is what is taken off every number of a row before; rows may be sparse.
        """
        steps, counts = unit / self.grid, self._counts[first : first + rows.shape[1]]
        factors = np.full(rows.shape[0], steps) if weights is None else weights * steps
        if issparse(rows):
            add_cut_entries(*triple(rows), factors, less, counts)
        else:
            add_cut_rows(readable(rows), factors, less, counts)

    def add_total(self, total: NDArray[np.int64]) -> None:
        """A sum that somebody else made, in whole steps of :attr:`grid`."""
        if total.dtype != np.int64:
            raise PlanViolation(f"Whole numbers are gathered here, not {total.dtype}.")
        self._counts += total.reshape(-1)

    def released(self) -> Array:
        """The sum with noise.

        Guarantee: as :class:`~discreet.linear.glm.spending.Stage`, if one record's additions have norm at most
        ``clip_norm`` together.
        """
        if self._stage.arithmetic == "hardened":
            return self._stage.release(BoundedSum(self._counts, self._clip_norm, grid=self.grid))
        return self._stage.release(BoundedSum(self.total, self._clip_norm * (1 + FLOAT_ROOM)))
