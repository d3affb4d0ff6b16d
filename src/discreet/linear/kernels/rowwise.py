"""Rows times a matrix, each on its own: :func:`times`.

A product of matrices by BLAS rounds a row differently when other rows come or go, because it treats the rows at the
edge of its blocks in another way. Hardened sums promise that a record changes nothing but its own contribution.

>>> times(np.eye(2, dtype=np.float32), np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
[[1.0, 2.0], [3.0, 4.0]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discreet.linear.kernels.threads import in_threads

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
