"""Rows of hats, levels and products times a matrix, of which only the numbers that are not zero are gone through.

A layout holds a basis of curves as arrays (``linear/row_views/curve_bases.py``). The reference is ``expand``
in ``linear/additive/expanded_rows.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from discreet.linear.kernels.coefficients import compiled
from discreet.linear.kernels.rowwise import in_threads

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]
Whole = NDArray[np.int64]


class Layout(NamedTuple):
    """A basis as arrays: for each curve and each side of a pair its column, the flag of its missing values (-1: none)
    and its knots from ``starts`` on; ``places`` are the encoded columns of the hats of curves and of the cells of
    pairs, -1 if they have none."""

    columns: Whole
    flags: Whole
    starts: Whole
    knots: Array
    places: Whole
    curves: int
    numerics: int
    first_level: int


_FEW = 0.2  # of the numbers of a matrix: if no more are not zero, only they are gone through
_TASK = 2**23  # multiplications that are worth a task


def gather(rows: Matrix, layout: Any, matrix: Matrix, begin: Matrix, most: int, out: Matrix) -> None:
    """Write to ``out``, for each row, ``begin`` plus its entries times their rows of the matrix.

    A row has about ``most`` entries. Every row of the result depends on its own row alone, bit for bit.
    """
    mostly_zeros = np.count_nonzero(matrix) < _FEW * matrix.size
    few = csr_array(matrix) if mostly_zeros else csr_array((1, 1), dtype=np.float32)
    numbers = few.data, few.indices, few.indptr
    tasks = max(1, min(len(rows), len(rows) * most * matrix.shape[1] // _TASK))
    cuts = [len(rows) * task // tasks for task in range(tasks + 1)]

    def work(task: int) -> None:
        if mostly_zeros:
            _add_few(rows, layout, numbers, begin, out, cuts[task], cuts[task + 1])
        else:
            _add_entries(rows, layout, matrix, begin, out, cuts[task], cuts[task + 1])

    in_threads(tasks, work)


@compiled
def _hat(value: Any, knots: Array, first: int, last: int) -> tuple[int, Any]:
    """Between which knots a value is, from the first on, and its share of the second, as float32."""
    inside = min(max(np.float64(value), knots[first]), knots[last])
    low, high = first, last
    while high - low > 1:
        middle = (low + high) // 2
        if knots[middle] <= inside:
            low = middle
        else:
            high = middle
    return low - first, np.float32((inside - knots[low]) / (knots[low + 1] - knots[low]))


@compiled
def _find_entries(row: Matrix, layout: Any, entries: Whole, values: Matrix) -> int:
    """The numbers of an encoded row that are not zero, and their columns; tells how many there are."""
    columns, flags, starts, knots, places, curves, numerics, first_level = layout
    one, found = np.float32(1), 0
    for k in range(curves):
        left, share = _hat(row[columns[k]], knots, starts[k], starts[k + 1] - 1)
        here = one if flags[k] < 0 else one - row[flags[k]]
        for side in range(2):
            place = places[starts[k] + left + side]
            value = (share if side else one - share) * here
            if place >= 0 and value != 0:
                entries[found], values[found] = place, value
                found += 1
    for j in range(numerics, row.size):
        if row[j] != 0:
            entries[found], values[found] = first_level + j - numerics, row[j]
            found += 1
    cells = starts[curves]
    for k in range(curves, columns.size, 2):
        left, share = _hat(row[columns[k]], knots, starts[k], starts[k + 1] - 1)
        below, portion = _hat(row[columns[k + 1]], knots, starts[k + 1], starts[k + 2] - 1)
        up = starts[k + 2] - starts[k + 1]
        for side in range(4):
            place = places[cells + (left + side // 2) * up + below + side % 2]
            value = (share if side // 2 else one - share) * (portion if side % 2 else one - portion)
            if place >= 0 and value != 0:
                entries[found], values[found] = place, value
                found += 1
        cells += (starts[k + 1] - starts[k]) * up
    return found


@compiled
def _add_entries(
    rows: Matrix, layout: Any, matrix: Matrix, begin: Matrix, out: Matrix, start: int, stop: int
) -> None:
    """What every row begins with, and its numbers that are not zero, times their rows of the matrix."""
    size = 2 * layout.columns.size + rows.shape[1]
    entries, values = np.empty(size, np.int64), np.empty(size, np.float32)
    for i in range(start, stop):
        found = _find_entries(rows[i], layout, entries, values)
        several = found // 4 * 4
        out[i] = begin
        for e in range(0, several, 4):
            a, b, c, d = values[e], values[e + 1], values[e + 2], values[e + 3]
            p, q, r, s = entries[e], entries[e + 1], entries[e + 2], entries[e + 3]
            for m in range(matrix.shape[1]):
                total = out[i, m] + a * matrix[p, m]
                total = total + b * matrix[q, m]
                total = total + c * matrix[r, m]
                out[i, m] = total + d * matrix[s, m]
        for e in range(several, found):
            for m in range(matrix.shape[1]):
                out[i, m] += values[e] * matrix[entries[e], m]


@compiled
def _add_few(
    rows: Matrix, layout: Any, matrix: Any, begin: Matrix, out: Matrix, start: int, stop: int
) -> None:
    """As :func:`_add_entries`, for a matrix in CSR form: its numbers, their columns, and where each row begins."""
    numbers, places, begins = matrix
    size = 2 * layout.columns.size + rows.shape[1]
    entries, values = np.empty(size, np.int64), np.empty(size, np.float32)
    for i in range(start, stop):
        out[i] = begin
        for e in range(_find_entries(rows[i], layout, entries, values)):
            for m in range(begins[entries[e]], begins[entries[e] + 1]):
                out[i, places[m]] += values[e] * numbers[m]
