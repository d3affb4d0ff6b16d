"""What is public of encoded columns before anything is released: their middle, variance and limits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.declared_columns import Columns

Array = NDArray[np.float64]


def public_centre(columns: Columns) -> Array:
    """The middle of every column before anything is known."""
    centre = np.zeros(columns.width)
    centre[: columns.numerics] = 0.5
    centre[columns.categories] = 1.0 / _choices(columns)
    return centre


def public_variance(columns: Columns) -> Array:
    """The variance of every column if values were spread evenly."""
    variance = np.full(columns.width, 1.0 / 12)
    choices = _choices(columns)
    variance[columns.categories] = (1 - 1 / choices) / choices
    variance[columns.words] = columns.text_square / max(columns.text, 1)
    return variance


def public_limits(columns: Columns) -> tuple[Array, Array]:
    """The least and the largest value of every column."""
    lower, upper = np.zeros(columns.width), np.ones(columns.width)
    lower[columns.words], upper[columns.words] = -columns.text_norm, columns.text_norm
    return lower, upper


def _choices(columns: Columns) -> Array:
    """For each one-hot column, how many values its group can take."""
    return np.repeat([float(max(size, 2)) for size in columns.groups], columns.groups)
