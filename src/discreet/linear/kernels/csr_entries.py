"""Passes over the entries of sparse rows (CSR) that do a few operations on each; what is not there counts as 0.

Sums of integers come out as they would for the same rows with all their zeros: those of a column are counted
together, as all rows less the ones that have an entry there. Indices must be in range, each once in a row.
"""

from __future__ import annotations

import numpy as np

from discreet.linear.kernels.coefficients import Array, compiled


@compiled
def in_order(data: Array, indices: Array, indptr: Array, columns: int) -> bool:
    """Whether all rows lie within the entries, and their columns, in rising order, within the table."""
    end = np.int64(0)
    for i in range(indptr.size):
        if not end <= indptr[i] <= data.size:
            return False
        end = np.int64(indptr[i])
    if indices.size != data.size:
        return False
    for i in range(indptr.size - 1):
        before = np.int64(-1)
        for p in range(indptr[i], indptr[i + 1]):
            if not before < indices[p] < columns:
                return False
            before = np.int64(indices[p])
    return True


@compiled
def entries_are_finite(data: Array, indptr: Array, out: Array) -> bool:
    """Whether each row is finite as float32; tells whether all are."""
    everything = True
    for i in range(out.size):
        finite = True
        for p in range(indptr[i], indptr[i + 1]):
            value = np.float32(data[p])
            finite &= value - value == np.float32(0)
        out[i] = finite
        everything &= finite
    return everything


@compiled
def add_cut_entries(
    data: Array, indices: Array, indptr: Array, factors: Array, offset: float, counts: Array
) -> None:
    """``counts += trunc(factors[i] * (rows[i] - offset))`` for every row i.

    Guarantee: the very sums that :func:`~discreet.linear.kernels.rowwise.add_cut_rows` gives of the rows with their
    zeros, less the offset in their own type.
    """
    shift, everybody = data.dtype.type(offset), np.int64(0)
    for i in range(factors.size):
        factor = factors[i]
        empty = np.int64(factor * np.float64(-shift))
        everybody += empty
        for p in range(indptr[i], indptr[i + 1]):
            counts[indices[p]] += np.int64(factor * np.float64(data[p] - shift)) - empty
    for j in range(counts.size):
        counts[j] += everybody


@compiled
def count_cells(
    cells: Array, indices: Array, indptr: Array, steps: Array, zeros: Array, width: int, counts: Array
) -> None:
    """Add ``steps[i]`` to a cell of each column, of ``width`` cells each, for every row i.

    ``cells`` are those of the entries, negative if they do not count; ``zeros`` are those of a 0 in each column.
    """
    everybody = np.int64(0)
    for i in range(steps.size):
        everybody += steps[i]
        for p in range(indptr[i], indptr[i + 1]):
            first = np.int64(indices[p]) * width
            counts[first + zeros[indices[p]]] -= steps[i]
            if cells[p] >= 0:
                counts[first + cells[p]] += steps[i]
    for j in range(zeros.size):
        counts[j * width + zeros[j]] += everybody


@compiled
def scale_entries(data: Array, indices: Array, lower: Array, upper: Array, scale: Array, out: Array) -> None:
    """``out = clip(data, lower, upper) / scale``, by the columns of the entries."""
    for p in range(data.size):
        j = indices[p]
        out[p] = min(max(data[p], lower[j]), upper[j]) / scale[j]


@compiled
def multiply_rows(data: Array, indptr: Array, factors: Array) -> None:
    """Each row times its factor, in place."""
    for i in range(factors.size):
        for p in range(indptr[i], indptr[i + 1]):
            data[p] = data[p] * factors[i]


@compiled
def bound_entries(data: Array, indices: Array, upper: Array, out: Array) -> None:
    """``out = clip(data / upper, 0, 1)`` by the columns of the entries, NaN to 1/2; ``out`` is float32."""
    for p in range(data.size):
        inside = np.float64(data[p]) / upper[indices[p]]
        bounded = min(max(inside, 0.0), 1.0)
        out[p] = bounded if inside == inside else 0.5
