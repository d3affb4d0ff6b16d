"""Rows of a basis written out: hats of curves, levels of categories, products of pairs.

Fits never write rows out (``linear/row_views/curve_bases.py``); models that predict do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.row_views.curve_bases import Basis, Curve, Pair, between

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]


def expand(basis: Basis, rows: NDArray[Any]) -> Matrix:
    """The rows as hats, levels and products."""
    encoded = np.zeros((len(rows), basis.columns.width), np.float32)
    starts = basis.starts
    for curve, start in zip(basis.curves, starts, strict=False):
        encoded[:, start : start + len(curve.kept)] = _curve(curve, rows)
    first = starts[len(basis.curves)]
    levels = sum(basis.inputs.groups)
    encoded[:, first : first + levels] = rows[:, basis.inputs.categories]
    for pair, start in zip(basis.pairs, starts[len(basis.curves) + len(basis.inputs.groups) :], strict=False):
        encoded[:, start : start + len(pair.kept)] = products(pair, rows)
    return encoded


def _curve(curve: Curve, rows: NDArray[Any]) -> Matrix:
    found = hats(rows[:, curve.column], curve.knots)[:, curve.kept]
    if curve.missing is not None:  # a missing value is on no curve; its flag is its level
        found *= 1 - rows[:, [curve.missing]]
    return found


def hats(values: NDArray[Any], knots: Array) -> Matrix:
    """For each value its hats at all knots, at most two of them above 0, that sum to 1.

    >>> hats(np.array([0.25, 2.0]), np.array([0.0, 1.0])).tolist()
    [[0.75, 0.25], [0.0, 1.0]]
    """
    encoded = np.zeros((len(values), len(knots)), np.float32)
    left, share = between(values, knots)
    row = np.arange(len(values))
    encoded[row, left] = np.float32(1) - share
    encoded[row, left + 1] = share
    return encoded


def products(pair: Pair, rows: NDArray[Any]) -> Matrix:
    """For each row the products of the hats of two columns, in the cells that are kept."""
    first = hats(rows[:, pair.columns[0]], pair.knots[0])
    second = hats(rows[:, pair.columns[1]], pair.knots[1])
    cells = first[:, :, None] * second[:, None, :]
    return np.asarray(cells.reshape(len(rows), first.shape[1] * second.shape[1])[:, pair.kept])


def paired(basis: Basis) -> set[int]:
    """The columns that act together with others."""
    return {column for pair in basis.pairs for column in pair.columns}
