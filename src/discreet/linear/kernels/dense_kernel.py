"""One pass over the rows of a dense matrix: scores, clipped residuals, and the sum, block by block.

A block of rows is read from memory once and stays in the cache while it is used. Scores are taken in the type of
the matrix. Products are rounded to whole steps of a grid, each on its own, and added up as whole numbers: by adding
a number so large that its last digit is one step, and reading the digits of the sum (docs/engines.md: E13).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import (
    BLOCK,
    Data,
    Step,
    clip_residuals,
    compiled,
    fill_block,
    inlined,
)
from discreet.linear.kernels.vectors import DOT_ROWS, SUM_ROWS, add_steps, dot_rows

Array = NDArray[Any]

_UNIT = 2.0**-52  # twice the rounding error of float64
_SAFE_NORM, _SHRINK = 2.0**450, 2.0**-600  # beyond the first, squares of numbers times the second are finite
_LOST = 2.0**-510  # more than the root of a square too small for float64


@compiled
def norms_of(Z: Array, constant: float, first: int, out: Array) -> None:
    """Upper bounds of the norms of (constant, z), from row ``first`` on; infinity where z is not finite."""
    columns = Z.shape[1]
    relative, absolute = 1.0 + (columns + 16) * _UNIT, math.sqrt(columns + 1.0) * _LOST
    for i in range(out.size):
        row = Z[first + i]
        norm = math.sqrt(_squares(row, 1.0) + constant * constant) * relative + absolute
        if not norm <= _SAFE_NORM:
            scaled = constant * _SHRINK
            norm = math.sqrt(_squares(row, _SHRINK) + scaled * scaled) * relative / _SHRINK
        out[i] = norm if norm == norm else math.inf


@compiled
def _scaled(value: Any, scale: float) -> float:
    """A product that _squares must not reorder into a product of squares, which would overflow."""
    return np.float64(value) * scale


def _reordered(function: Any) -> Any:
    return compiled(function, fastmath={"reassoc", "contract"})


@_reordered
def _squares(row: Array, scale: float) -> float:
    total = 0.0
    for j in range(row.size):
        value = _scaled(row[j], scale)
        total += value * value
    return total


class Room(NamedTuple):
    """Memory that serves for one block after the other: the block, and what is known of its rows."""

    rows: Array
    targets: Array
    limits: Array
    weights: Array
    residuals: Array


def room_for(Z: Array, outputs: int) -> Room:
    """Room for blocks of at most BLOCK rows, fewer if they would not fit half the second-level cache."""
    size = 2**17 // max(1, Z.shape[1] * Z.itemsize) // SUM_ROWS * SUM_ROWS
    rows = np.zeros((max(SUM_ROWS, min(BLOCK, size)), Z.shape[1]), Z.dtype)
    targets, limits, weights = np.zeros(BLOCK, Z.dtype), np.zeros(BLOCK, Z.dtype), np.ones(BLOCK, Z.dtype)
    return Room(rows, targets, limits, weights, np.zeros((outputs, BLOCK), Z.dtype))


@compiled
def add_counts(
    step: Step, data: Data, room: Room, first: int, last: int, grid: float, below: Array, counts: Array
) -> None:
    """Add the clipped gradients of the rows ``first <= i < last`` to ``counts``, in whole steps of ``grid``.

    ``counts`` has the shape (outputs, d + 1), its first column for the constant. ``below`` holds int64 zeros,
    outputs by d, padded.

    Guarantee: every number is rounded to the nearest step on its own, exactly, so the sum is one of whole numbers
    that depend on one row each; less than 2**51 steps are needed for any of them.
    """
    size, blocks = room.rows.shape[0], 0
    origin = 1.5 * 2.0**52 * grid
    for start in range(first, last, size):
        if clip_block(step, data, room, start, min(size, last - start)):
            _add_block(room.rows, 0, size, room.residuals, below, origin)
        else:
            _add_block(data.matrix, start, size, room.residuals, below, origin)
        if step.constant > 0.0:
            _add_constants(room.residuals, size, step.constant / grid, counts)
        blocks += 1
    origins = np.int64(blocks * size) * np.float64(origin).view(np.int64)
    for k in range(counts.shape[0]):
        for j in range(counts.shape[1] - 1):
            counts[k, j + 1] += below[k, j] - origins


@inlined
def clip_block(step: Step, data: Data, room: Room, start: int, count: int) -> bool:
    """Fill ``room.residuals``; tells whether ``room.rows`` is to be used, as some rows are missing or not finite."""
    size = room.rows.shape[0]
    complete = fill_block(step, data, start, count, room.targets, room.limits, room.weights)
    copied = not complete or count < size
    if copied:
        _copy_finite(data.matrix, start, count, room.limits, room.rows)
        _score_block(room.rows, 0, size, step.weights, step.offsets, room.residuals)
    else:
        _score_block(data.matrix, start, size, step.weights, step.offsets, room.residuals)
    clip_residuals(step.loss, room.residuals, room.targets, room.limits, room.weights)
    return copied


@inlined
def _score_block(rows: Array, first: int, size: int, weights: Array, offsets: Array, scores: Array) -> None:
    for k in range(scores.shape[0]):
        for r in range(0, size, DOT_ROWS):
            dot_rows(rows, first + r, weights, k, scores, r)
        for r in range(BLOCK):
            scores[k, r] += offsets[k]


@inlined
def _add_block(rows: Array, first: int, size: int, residuals: Array, below: Array, origin: float) -> None:
    for k in range(below.shape[0]):
        for r in range(0, size, SUM_ROWS):
            add_steps(rows, first + r, residuals, k, r, below, origin)


@compiled
def _copy_finite(Z: Array, start: int, count: int, limits: Array, out: Array) -> None:
    """Rows that count; zeros for rows that do not, since 0 times NaN would be NaN, and for missing ones."""
    none = out.dtype.type(0)
    for r in range(out.shape[0]):
        counts = r < count and limits[r] > none
        for j in range(out.shape[1]):
            out[r, j] = Z[start + r, j] if counts else none


@compiled
def _add_constants(residuals: Array, size: int, steps: float, counts: Array) -> None:
    """The constant's part of the gradients, cut to whole steps."""
    for k in range(residuals.shape[0]):
        total = np.int64(0)
        for r in range(size):
            total += np.int64(np.float64(residuals[k, r]) * steps)
        counts[k, 0] += total
