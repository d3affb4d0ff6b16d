"""Numbers cut to whole steps, each on its own, and added up as whole numbers: by column, or by cell.

>>> counts = np.zeros(2, np.int64)
>>> add_cut_rows(np.array([[0.6, -0.3], [0.6, 9.0]]), np.array([4.0, 1.0]), counts)
>>> counts.tolist()
[2, 8]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import compiled

Array = NDArray[Any]


@compiled
def add_cut_rows(rows: Array, factors: Array, counts: Array) -> None:
    """``counts += trunc(factors[i] * rows[i])`` for every row i.

    Guarantee: no number gets longer, but for the one rounding of its product in float64.
    """
    for i in range(rows.shape[0]):
        factor = factors[i]
        for j in range(rows.shape[1]):
            counts[j] += np.int64(factor * np.float64(rows[i, j]))


@compiled
def add_cut_ones(cells: Array, factors: Array, counts: Array) -> None:
    """``counts[cells[i]] += trunc(factors[i])`` for every i; cells must be in range."""
    for i in range(cells.size):
        counts[cells[i]] += np.int64(factors[i])
