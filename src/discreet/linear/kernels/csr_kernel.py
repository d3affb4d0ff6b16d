"""One pass over the rows of a sparse matrix (CSR): scores, clipped residuals, and the sum, block by block.

Products are cut to whole steps of a grid, each on its own, and added up as integers. ``matrix`` is the triple
(data, indices, indptr). A row whose indices are out of order or out of range is found when its norm is taken:
out of range counts for nothing, as NaN does, and its indices are never used again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import (
    RecordArrays,
    Spare,
    Step,
    bare,
    clip_residuals,
    compiled,
    fill_block,
    spare_for,
)

Array = NDArray[Any]
Csr = tuple[Array, Array, Array]

_UNIT = 2.0**-52  # twice the rounding error of float64
_SAFE_NORM, _SHRINK = 2.0**450, 2.0**-600  # beyond the first, squares of numbers times the second are finite
_LOST = 2.0**-510  # more than the root of a square too small for float64

BLOCK = 64
"""Rows that are handled together."""


@compiled
def norms_of(matrix: Csr, columns: int, constant: float, first: int, out: Array) -> None:
    """Upper bounds of the norms of (constant, z), from row ``first`` on; infinity where z is not finite.

    If a row names a column twice, the magnitudes of its entries count together: that bounds the row's norm,
    and also the norm of what becomes of it when each entry is rounded toward zero.
    """
    data, indices, indptr = matrix
    seen = np.zeros(0)
    for i in range(out.size):
        begin, end = np.int64(indptr[first + i]), np.int64(indptr[first + i + 1])
        state = _order_of(indices, begin, end, columns, data.size)
        if state == _BROKEN:
            out[i] = math.inf
            continue
        if state == _UNSORTED and seen.size == 0:
            seen = np.zeros(columns)
        relative = 1.0 + (2 * (end - begin) + 16) * _UNIT
        absolute = math.sqrt(end - begin + 1.0) * _LOST
        norm = math.sqrt(_squares(matrix, begin, end, constant, 1.0, state, seen)) * relative + absolute
        if not norm <= _SAFE_NORM:
            norm = (
                math.sqrt(_squares(matrix, begin, end, constant, _SHRINK, state, seen)) * relative / _SHRINK
            )
        out[i] = norm if norm == norm else math.inf


_SORTED, _UNSORTED, _BROKEN = range(3)
_LAST_COLUMN = 2**32 - 1


@compiled
def _order_of(indices: Array, begin: Any, end: Any, columns: int, entries: int) -> int:
    if not 0 <= begin <= end <= entries:
        return _BROKEN
    state, before = _SORTED, np.int64(-1)
    for p in range(begin, end):
        column = np.int64(indices[p])
        if column < 0 or column >= columns or column > _LAST_COLUMN:
            return _BROKEN
        if column <= before:
            state = _UNSORTED
        before = column
    return state


@compiled
def _squares(
    matrix: Csr, begin: Any, end: Any, constant: float, scale: float, state: int, seen: Array
) -> float:
    data, indices, _ = matrix
    total = (constant * scale) * (constant * scale)
    if state == _SORTED:
        for p in range(begin, end):
            value = np.float64(data[p]) * scale
            total += value * value
        return total
    for p in range(begin, end):
        seen[indices[p]] += abs(np.float64(data[p]) * scale)
    for p in range(begin, end):
        total += seen[indices[p]] * seen[indices[p]]
        seen[indices[p]] = 0.0
    return total


class SparseWorkspace(NamedTuple):
    """Memory that serves for one block after the other: what is known of its rows, and one row of scores."""

    targets: Array
    limits: Array
    weights: Array
    residuals: Array
    scores: Array
    spare: Spare


def room_for(dtype: Any, outputs: int) -> SparseWorkspace:
    targets, limits, weights = np.zeros(BLOCK, dtype), np.zeros(BLOCK, dtype), np.ones(BLOCK, dtype)
    residuals, scores = np.zeros((outputs, BLOCK), dtype), np.zeros(outputs, dtype)
    return SparseWorkspace(targets, limits, weights, residuals, scores, spare_for(dtype))


@compiled
def add_counts(
    step: Step, data: RecordArrays, room: SparseWorkspace, first: int, last: int, grid: float, counts: Array
) -> None:
    """Add the clipped gradients of the rows ``first <= i < last`` to ``counts``, in whole steps of ``grid``.

    ``counts`` has the shape (d + 1, outputs), its first row for the constant. Every number is cut toward zero.
    """
    values, indices, indptr = data.matrix
    below, per_unit = counts[1:].reshape(-1), 1.0 / grid
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        _clip_block(step, data, room, start, count)
        if step.constant > 0.0:
            for r in range(count):
                for k in range(counts.shape[1]):
                    counts[0, k] += np.int64(np.float64(room.residuals[k, r]) * step.constant * per_unit)
        if counts.shape[1] == 1:
            _add_one(values, indices, indptr, start, count, room.residuals, per_unit, below)
        else:
            _add_many(values, indices, indptr, start, count, room.limits, room.residuals, per_unit, below)


@compiled
def _clip_block(step: Step, data: RecordArrays, room: SparseWorkspace, start: int, count: int) -> None:
    """Fill ``room.residuals``; the rows that do not count are not looked at."""
    values, indices, indptr = data.matrix
    weights = step.weights.reshape(-1)
    fill_block(step, data, start, count, room.targets, room.limits, room.weights)
    if room.residuals.shape[0] == 1:
        _score_one(values, indices, indptr, start, room.limits, weights, step.offsets[0], room.residuals)
    else:
        _score_many(values, indices, indptr, start, room.limits, weights, step.offsets, room)
    clip_residuals(step.loss, room.residuals, room.targets, room.limits, room.weights, room.spare)


# The loops over entries are functions of few arguments, so that all of them stay in registers. Places are numbers
# without a sign: others would be looked at each time.

_ONE, _TWO, _THREE, _FOUR = np.arange(1, 5, dtype=np.uint64)


@bare
def _score_one(
    values: Array,
    indices: Array,
    indptr: Array,
    start: int,
    limits: Array,
    weights: Array,
    offset: Any,
    out: Array,
) -> None:
    """Four sums for each row, because an addition has to wait for the one before it."""
    none = values.dtype.type(0)
    for r in range(BLOCK):
        a, b, c, d = offset, none, none, none
        if limits[r] > none:
            p, end = np.uint64(indptr[start + r]), np.uint64(indptr[start + r + 1])
            while p + _FOUR <= end:
                a += values[p] * weights[np.uint32(indices[p])]
                b += values[p + _ONE] * weights[np.uint32(indices[p + _ONE])]
                c += values[p + _TWO] * weights[np.uint32(indices[p + _TWO])]
                d += values[p + _THREE] * weights[np.uint32(indices[p + _THREE])]
                p += _FOUR
            while p < end:
                a += values[p] * weights[np.uint32(indices[p])]
                p += _ONE
        out[0, r] = (a + b) + (c + d)


@bare
def _add_one(
    values: Array,
    indices: Array,
    indptr: Array,
    start: int,
    count: int,
    residuals: Array,
    per_unit: float,
    counts: Array,
) -> None:
    """A residual is 0 where the indices are out of range."""
    for r in range(count):
        steps = np.float64(residuals[0, r]) * per_unit
        if steps != 0.0:
            p, end = np.uint64(indptr[start + r]), np.uint64(indptr[start + r + 1])
            while p < end:
                counts[np.uint32(indices[p])] += np.int64(steps * np.float64(values[p]))
                p += _ONE


@bare
def _score_many(
    values: Array,
    indices: Array,
    indptr: Array,
    start: int,
    limits: Array,
    weights: Array,
    offsets: Array,
    room: SparseWorkspace,
) -> None:
    outputs, scores, none = offsets.size, room.scores, values.dtype.type(0)
    for r in range(BLOCK):
        for k in range(outputs):
            scores[k] = offsets[k]
        if limits[r] > none:
            for p in range(np.int64(indptr[start + r]), np.int64(indptr[start + r + 1])):
                at, value = np.uint64(indices[p]) * np.uint64(outputs), values[p]
                for k in range(outputs):
                    scores[k] += value * weights[at + np.uint64(k)]
        for k in range(outputs):
            room.residuals[k, r] = scores[k]


@bare
def _add_many(
    values: Array,
    indices: Array,
    indptr: Array,
    start: int,
    count: int,
    limits: Array,
    residuals: Array,
    per_unit: float,
    counts: Array,
) -> None:
    outputs, none = residuals.shape[0], limits.dtype.type(0)
    for r in range(count):
        if limits[r] > none:
            for p in range(np.int64(indptr[start + r]), np.int64(indptr[start + r + 1])):
                at, value = np.uint64(indices[p]) * np.uint64(outputs), np.float64(values[p])
                for k in range(outputs):
                    counts[at + np.uint64(k)] += np.int64(np.float64(residuals[k, r]) * value * per_unit)
