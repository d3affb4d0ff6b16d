"""Rows times a matrix, each on its own: :func:`times`.

A product of matrices by BLAS rounds a row differently when other rows come or go, because it treats the rows at the
edge of its blocks in another way. Hardened sums promise that a record changes nothing but its own contribution.

>>> times(np.eye(2, dtype=np.float32), np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
[[1.0, 2.0], [3.0, 4.0]]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import BLOCK, Array, OneScore, compiled, replace_by_residuals

# ---- work in equal tasks, shared by threads ----
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

_TASK = 2**23  # multiplications that are worth a task


def times(rows: Matrix, matrix: NDArray[Any]) -> Matrix:
    """``rows @ matrix`` in float32, or in float64 if the rows are; the matrix may be a vector.

    Guarantee: every row of the result depends on its own row alone, bit for bit.
    """
    kind = np.float64 if rows.dtype == np.float64 else np.float32
    right = np.ascontiguousarray(matrix, kind).reshape(len(matrix), -1)
    rows = np.ascontiguousarray(rows, kind)
    out = np.zeros((len(rows), right.shape[1]), kind)
    tasks = max(1, min(len(rows), rows.size * right.shape[1] // _TASK))
    cuts = [len(rows) * task // tasks for task in range(tasks + 1)]
    in_threads(tasks, lambda task: _add(rows, right, out, cuts[task], cuts[task + 1]))
    return out.reshape(len(rows), *matrix.shape[1:])


@njit(cache=True, nogil=True, error_model="numpy")
def _add(rows: Matrix, matrix: Matrix, out: Matrix, first: int, last: int) -> None:
    for i in range(first, last):
        for j in range(matrix.shape[0]):
            value = rows[i, j]
            for k in range(matrix.shape[1]):
                out[i, k] += value * matrix[j, k]


# ---- numbers cut to whole steps, each on its own, and added up as whole numbers ----


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


# ---- the clipped gradient of a single row, without the preparations that pay off for many ----


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
    scores, targets = np.zeros(BLOCK), np.zeros(BLOCK)  # the kernels for many rows know no smaller block
    scores[0], targets[0] = score, target
    replace_by_residuals(loss.code, scores, targets, loss.parameter)
    residual = scores[0]
    if residual == residual:
        residual = min(max(residual, -limit), limit)
        out[0] = residual * constant
        for column in range(row.size):
            out[column + 1] = row[column] * residual
