"""Rows times a matrix, each on its own: :func:`times`.

A product of matrices by BLAS rounds a row differently when other rows come or go, because it treats the rows at the
edge of its blocks in another way. Hardened sums promise that a record changes nothing but its own contribution.

>>> times(np.eye(2, dtype=np.float32), np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
[[1.0, 2.0], [3.0, 4.0]]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import (
    LANES,
    LOGISTIC,
    SQUARED,
    Array,
    OneScore,
    compiled,
    reordered,
    replace_by_residuals,
)
from discreet.linear.kernels.dense_kernel import norms_of
from discreet.linear.kernels.row_products import multiply_rows, pad_columns

# Work in equal tasks, shared by threads.
#
# Each task has its own result and the results are put together in order, so what comes out does not depend on
# the number of threads. The tasks run machine code without the GIL, in threads that live for one call:
# numba's own would change torch's number of threads, and a pool that is kept would be without its threads
# after a fork.


def thread_count() -> int:
    """The processors this process may use, or what NUMBA_NUM_THREADS says."""
    config: Any = numba.config
    return int(config.NUMBA_NUM_THREADS)


def in_threads(tasks: int, work: Callable[[int], None]) -> None:
    """Call ``work(task)`` for every task from 0 on; the next free thread takes the next task."""
    threads, turns = min(thread_count(), tasks), itertools.count()

    def run() -> None:
        while (task := next(turns)) < tasks:
            work(task)

    if threads <= 1:
        run()
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(run) for _ in range(threads - 1)]
        run()
        for other in others:
            other.result()


Matrix = NDArray[Any]

_FEW = 64  # rows that stay in the cache
_TASK = 2**23  # multiplications that are worth a task


def times(rows: Matrix, matrix: NDArray[Any], plus: NDArray[Any] | None = None) -> Matrix:
    """``rows @ matrix (+ plus)`` in float32, or in float64 if the rows are; the matrix may be a vector.

    Guarantee: every row of the result depends on its own row alone, bit for bit.
    """
    if rows.shape[1] != len(matrix) or (
        plus is not None and np.size(plus) != np.size(matrix) // max(len(matrix), 1)
    ):
        raise ValueError(
            f"A matrix of shape {np.shape(matrix)} does not fit rows of {rows.shape[1]} numbers."
        )
    kind = np.float64 if rows.dtype == np.float64 else np.float32
    right = np.ascontiguousarray(matrix, kind).reshape(len(matrix), -1)
    rows, width = np.ascontiguousarray(rows, kind), right.shape[1]
    added = np.zeros(width, kind) if plus is None else np.ascontiguousarray(plus, kind).reshape(-1)
    tasks = max(1, min(len(rows), rows.size * width // _TASK))
    cuts = [len(rows) * task // tasks for task in range(tasks + 1)]
    out, wide = np.empty((len(rows), width), kind), pad_columns(right)

    def work(task: int) -> None:
        if width == 1:
            _add_scores(rows, right[:, 0], added[0], out[:, 0], cuts[task], cuts[task + 1])
        else:
            multiply_rows(rows, wide, added, out, cuts[task], cuts[task + 1])

    in_threads(tasks, work)
    return out.reshape(len(rows), *matrix.shape[1:])


@compiled
def _add_scores(rows: Matrix, weights: Matrix, plus: float, out: Matrix, first: int, last: int) -> None:
    """The same for one column of results: four rows at a time, whose sums do not wait for one another."""
    whole, zero = first + (last - first) // 4 * 4, rows.dtype.type(0)
    for i in range(first, whole, 4):
        a, b, c, d = zero, zero, zero, zero
        for j in range(weights.size):
            a += rows[i, j] * weights[j]
            b += rows[i + 1, j] * weights[j]
            c += rows[i + 2, j] * weights[j]
            d += rows[i + 3, j] * weights[j]
        out[i], out[i + 1], out[i + 2], out[i + 3] = a + plus, b + plus, c + plus, d + plus
    for i in range(whole, last):
        a = zero
        for j in range(weights.size):
            a += rows[i, j] * weights[j]
        out[i] = a + plus


@compiled
def add_cut_rows(rows: Array, factors: Array, less: float, counts: Array) -> None:
    """``counts += trunc(factors[i] * (rows[i] - less))`` for every row i, the difference in the type of the rows.

    Guarantee: no number gets longer, but for the one rounding of its product in float64.
    """
    shift = rows.dtype.type(less)
    for i in range(rows.shape[0]):
        factor = factors[i]
        for j in range(rows.shape[1]):
            counts[j] += np.int64(factor * np.float64(rows[i, j] - shift))


@compiled
def add_capped_rows(
    rows: Array, factors: Array, less: float, whole: Array, limits: Array, counts: Array
) -> None:
    """As :func:`add_cut_rows`, with number j of row i clamped to ``whole[i] * limits[j]`` steps; NaN adds nothing."""
    shift = rows.dtype.type(less)
    for i in range(rows.shape[0]):
        factor, most = factors[i], whole[i]
        for j in range(rows.shape[1]):
            steps, cap = factor * np.float64(rows[i, j] - shift), np.float64(most * limits[j])
            if steps == steps:
                counts[j] += np.int64(min(max(steps, -cap), cap))


@compiled
def add_cut_ones(cells: Array, factors: Array, counts: Array) -> None:
    """``counts[cells[i]] += trunc(factors[i])`` for every i; cells must be in range."""
    for i in range(cells.size):
        counts[cells[i]] += np.int64(factors[i])


@compiled
def count_scores(scores: Array, classes: Array, cells: float, counts: Array) -> None:
    """Add 1 to the cell of each score, ``cells`` to 1 around the middle of ``counts``, in the column of its class.

    Scores beyond the last cell count there; those that are not numbers, and classes but 0 and 1, do not count.
    """
    middle = counts.shape[0] // 2
    for i in range(scores.size):
        place = np.rint(np.float64(scores[i]) * cells)
        if place == place and (classes[i] == 0 or classes[i] == 1):
            counts[
                middle + np.int64(min(max(place, -float(middle)), float(middle))), np.int64(classes[i])
            ] += 1


@compiled
def find_half_octaves(values: Array, lowest: int, highest: int, out: Array) -> None:
    """``out = floor(2 log2(values))``, moved into [lowest, highest]: the exponent of the square; NaN is highest."""
    for i in range(values.size):
        square = np.float64(np.float64(values[i]) * np.float64(values[i]))
        exponent = (square.view(np.int64) >> 52) - 1023
        known = min(max(exponent, np.int64(lowest)), np.int64(highest))
        out[i] = (
            known if square == square else np.int64(highest)
        )  # the sign of a NaN depends on the instruction


@compiled
def gradient_of_row(
    loss: OneScore, row: Array, target: float, theta: Array, constant: float, limit: float, out: Array
) -> None:
    """Overwrite ``out``, which holds zeros, with the residual, moved into [-limit, limit], times (constant, row).

    A residual that is not a number leaves the zeros.

    Guarantee: norm at most ``limit`` times that of (constant, row), up to the rounding of the products.
    """
    score = theta[0] * constant
    for column in range(row.size):
        score += row[column] * theta[column + 1]
    scores, targets = np.zeros(LANES), np.zeros(LANES)  # the kernels for many rows know no fewer
    scores[0], targets[0] = score, target
    replace_by_residuals(loss.code, scores, targets, loss.parameter)
    residual = scores[0]
    if residual == residual:
        residual = min(max(residual, -limit), limit)
        out[0] = residual * constant
        for column in range(row.size):
            out[column + 1] = row[column] * residual


# Passes over whole tables that do a few operations on every number: each row on its own, in one go.
#
# The same operations in numpy make an array for each of them, and cost more than the gradients of a fit. The results
# are the same to the bit.


@compiled
def scale_rows(rows: Array, lower: Array, upper: Array, missing: Array, out: Array) -> None:
    """``out = clip((rows - lower) / (upper - lower), 0, 1)`` for each column in float32, NaN to ``missing``."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            inside = (np.float64(rows[i, j]) - lower[j]) / (upper[j] - lower[j])
            bounded = min(max(inside, 0.0), 1.0)
            out[i, j] = bounded if inside == inside else missing[j]


@reordered
def score_rows(
    rows: Array,
    lower: Array,
    upper: Array,
    missing: Array,
    limits: tuple[Array, Array],
    weights: Array,
    intercept: float,
    out: Array,
) -> None:
    """``out = clip(encoded, *limits) @ weights + intercept``, all in float64 but for what is encoded.

    With bounds, the rows are encoded as by :func:`scale_rows`, float32 included; without (empty ones), they are
    taken as they are. NaN that is not encoded stays NaN.

    Guarantee: every number of the result depends on its own row alone, bit for bit.
    """
    least, most = limits
    for i in range(rows.shape[0]):
        score = 0.0
        for j in range(rows.shape[1]):
            value = np.float64(rows[i, j])
            if lower.size:
                inside = (value - lower[j]) / (upper[j] - lower[j])
                bounded = min(max(inside, 0.0), 1.0)
                value = np.float64(np.float32(bounded if inside == inside else missing[j]))
            value = least[j] if value < least[j] else value
            value = most[j] if value > most[j] else value
            score += value * weights[j]
        out[i] = score + intercept


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
def find_standard_norms(
    rows: Array, lower: Array, upper: Array, centre: Array, scale: Array, out: Array
) -> None:
    """The norms of what :func:`standardise_rows` gives, as by ``row_norms``; a few rows at a time, in the cache."""
    few = np.empty((_FEW, rows.shape[1]), np.float32)
    for first in range(0, rows.shape[0], _FEW):
        last = min(first + _FEW, rows.shape[0])
        standardise_rows(rows[first:last], lower, upper, centre, scale, few)
        norms_of(few, 0.0, 0, out[first:last])


@compiled
def put_ones_before(rows: Array, out: Array) -> None:
    """``out = (1, rows)``, whose rows are longer by one."""
    for i in range(rows.shape[0]):
        out[i, 0] = 1.0
        for j in range(rows.shape[1]):
            out[i, j + 1] = rows[i, j]


@compiled
def are_bounded(rows: Array, bounded: int) -> bool:
    """Whether :func:`bound_rows` would change nothing: reading takes half the time of writing."""
    none, full = np.float32(0), np.float32(1)
    beyond = np.int64(0)
    for i in range(rows.shape[0]):
        for j in range(bounded):
            beyond += np.int64(not (rows[i, j] >= none and rows[i, j] <= full))
        for j in range(bounded, rows.shape[1]):
            beyond += np.int64(rows[i, j] - rows[i, j] != none)
    return bool(beyond == 0)


@compiled
def bound_rows(rows: Array, bounded: int, out: Array, finite: Array) -> bool:
    """``out = rows`` in float32, its first ``bounded`` columns moved into [0, 1].

    ``finite`` tells of each row whether it was finite as float32, and the answer whether all were.
    """
    none, full = np.float32(0), np.float32(1)
    everything = True
    for i in range(rows.shape[0]):
        known = True
        for j in range(bounded):
            value = np.float32(rows[i, j])
            known &= value - value == none
            out[i, j] = min(max(value, none), full)
        for j in range(bounded, rows.shape[1]):
            value = np.float32(rows[i, j])
            known &= value - value == none
            out[i, j] = value
        finite[i] = known
        everything &= known
    return everything


@compiled
def count_bins(rows: Array, bins: int, counts: Array) -> None:
    """Add 1 to the bin of each number, of ``bins`` over [0, 1] for each column.

    The bins of some rows are found before they are counted: that takes vector instructions, the other does not.
    """
    columns, scale, last = rows.shape[1], rows.dtype.type(bins), np.int32(bins - 1)
    numbers, few = rows.reshape(-1), min(_FEW, rows.shape[0]) * columns
    places, firsts = np.empty(few, np.int32), np.empty(few, np.int32)
    for k in range(few):
        firsts[k] = k % columns * bins
    for start in range(0, numbers.size, max(few, 1)):
        part = numbers[start : start + few]
        for k in range(part.size):
            places[k] = min(np.int32(part[k] * scale), last) + firsts[k]
        for k in range(part.size):
            counts[np.uint32(places[k])] += 1


@compiled
def weigh_rows(
    z: Array,
    y: Array,
    theta: Array,
    code: int,
    slope: float,
    curvature: float,
    square: float,
    clamp: float,
    room: float,
    factors: Array,
) -> None:
    """For each row z: ``slope w r``, and the roots of ``curvature w v`` and of ``square w^2 r^2``, into ``factors``.

    The weight w is ``room`` over the largest norm that (slope r z, curvature v z z', square r^2 z z') can have for
    this z, whatever the target is; ``room`` if that is below 1. Residuals are clamped to +-clamp, where the curvature
    is 0; those of two classes are within 1 anyway.

    Guarantee: the three, with the weight, have norm at most ``room`` together, but for roundings of float64; all
    factors of a row that is not finite are 0. Every row's factors depend on that row alone, bit for bit.
    """
    for i in range(z.shape[0]):
        score, length = 0.0, 0.0
        for j in range(z.shape[1]):
            score += np.float64(z[i, j]) * theta[j]
            length += np.float64(z[i, j]) * np.float64(z[i, j])
        if code == LOGISTIC:
            mean = 1.0 / (1.0 + math.exp(-score))
            bend, most = mean * (1.0 - mean), max(mean, 1.0 - mean)
        elif code == SQUARED:
            mean, bend, most = score, 1.0, clamp
        else:
            mean = math.exp(min(score, 100.0))
            bend, most = mean, clamp
        steep, bent, squared = slope * most, curvature * bend, square * most * most
        norm = math.sqrt(steep * steep * length + (bent * bent + squared * squared) * length * length)
        residual = y[i] - mean
        if not (norm < 1e100 and abs(residual) < 1e100):
            continue
        if abs(residual) > most:
            residual = math.copysign(most, residual)
            bend = 0.0
        weight = room / max(1.0, norm)
        factors[0, i] = slope * weight * residual
        factors[1, i] = math.sqrt(curvature * weight * bend)
        factors[2, i] = math.sqrt(square) * weight * abs(residual)
