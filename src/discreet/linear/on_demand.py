"""Rows that are made when they are asked for, and sparse tables that compiled code can follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from discreet.linear.kernels.csr_entries import in_order
from discreet.linear.kernels.kernel import readable


class OnDemand:
    """Rows or a column, made when some are asked for by slice or number: large tables stay where they are."""

    def __init__(self, shape: tuple[int, ...], read_rows: Callable[[Any], NDArray[Any]]) -> None:
        self.shape, self.ndim = shape, len(shape)
        self._read_rows = read_rows

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        return self._read_rows(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


def part_of(values: Any, rows: NDArray[np.int64] | None) -> Any:
    """These rows of a table, a column or weights; all of them for None."""
    if values is None or rows is None:
        return values
    if isinstance(values, np.ndarray) or issparse(values):
        return values[rows]
    return OnDemand((len(rows), *values.shape[1:]), lambda some: values[rows[some]])


def sane_csr(table: csr_array) -> csr_array:
    """Return the sparse table with entries in existing columns only, each at most once.

    SciPy does not check indices, and compiled code would follow them anywhere.
    """
    data, indices, indptr = readable(table.data), readable(table.indices), readable(table.indptr)
    if data.dtype in (np.float32, np.float64) and in_order(data, indices, indptr, table.shape[1]):
        return table
    inside = (table.indices >= 0) & (table.indices < table.shape[1])
    ends = np.clip(np.maximum.accumulate(table.indptr), 0, len(table.data))
    data = np.where(inside, table.data.astype(np.float64), 0.0)
    sane = csr_array((data, np.where(inside, table.indices, 0), ends), shape=table.shape)
    sane.sum_duplicates()
    return sane
