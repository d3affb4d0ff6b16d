"""Functions of the two ranks of each pair of columns, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import compiled

Array = NDArray[np.float64]

CROSSINGS = 3
"""Of a pair: functions of two ranks, of degree 3."""


@compiled
def cross(every: Array, first: Any, second: Any, weights: Array, factors: Array, out: Array) -> None:
    """Row by row, whatever the others are; the coefficients are in the order of ``views.columns.Crossings``."""
    for i in range(len(every)):
        for p in range(len(first)):
            u, v, factor = every[i, first[p]], every[i, second[p]], factors[i]
            for k in range(CROSSINGS):
                one, u1, v1, u2, v2, u3, v3, uv, uuv, uvv = weights[p, :, k]
                found = one + u * (u1 + u * (u2 + u * u3)) + v * (v1 + v * (v2 + v * v3))
                out[i, CROSSINGS * p + k] = factor * (found + u * v * (uv + u * uuv + v * uvv))


@compiled
def square_parts(rows: Array, out: Array) -> None:
    """The squared norm of every pair's part of a row."""
    for i in range(len(out)):
        for p in range(out.shape[1]):
            total = 0.0
            for k in range(CROSSINGS):
                total += rows[i, CROSSINGS * p + k] ** 2
            out[i, p] = total
