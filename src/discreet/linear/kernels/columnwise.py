"""Passes over whole tables that do a few operations on every number: each row on its own, in one go.

The same operations in numpy make an array for each of them, and cost more than the gradients of a fit. The results
are the same to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import compiled

Array = NDArray[Any]


@compiled
def scale_rows(rows: Array, lower: Array, upper: Array, out: Array) -> None:
    """``out = clip((rows - lower) / (upper - lower), 0, 1)`` for each column, NaN to 1/2; ``out`` is float32."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            inside = (np.float64(rows[i, j]) - lower[j]) / (upper[j] - lower[j])
            bounded = min(max(inside, 0.0), 1.0)
            out[i, j] = bounded if inside == inside else 0.5


@compiled
def standardise_rows(
    rows: Array, lower: Array, upper: Array, centre: Array, scale: Array, out: Array
) -> None:
    """``out = (clip(rows, lower, upper) - centre) / scale`` in float32, as all of them are."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            bounded = min(max(rows[i, j], lower[j]), upper[j])
            out[i, j] = (bounded - centre[j]) / scale[j]


@compiled
def rows_are_finite(rows: Array, out: Array) -> bool:
    """Whether each row is finite as float32; tells whether all are."""
    everything = True
    for i in range(rows.shape[0]):
        finite = True
        for j in range(rows.shape[1]):
            value = np.float32(rows[i, j])
            finite &= value - value == np.float32(0)
        out[i] = finite
        everything &= finite
    return everything


@compiled
def count_bins(rows: Array, bins: int, counts: Array) -> None:
    """Add 1 to the bin of each number, of ``bins`` over [0, 1] for each column."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            place = np.int64(rows[i, j] * rows.dtype.type(bins))
            counts[j * bins + (place if place < bins else bins - 1)] += 1
