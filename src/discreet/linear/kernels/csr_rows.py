"""Sparse rows (CSR) that are admitted, shortened and squared without their zeros.

Sparse rows are not whitened, and centred in their norms and sums only (:mod:`~discreet.linear.kernels.centred`).
Every sum of the statistics before is the one that the same rows would give with all their zeros, to the last unit.

>>> admit_rows(csr_array([[0.5, 0, 7.0], [np.nan, 1, 0]]), None).toarray().tolist()
[[0.5, 0.0, 1.0]]
>>> admit_rows(csr_array([[3.0, 0, 4.0]]), text_norm=2.5).toarray().round(3)
array([[1.5, 0. , 2. ]], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from discreet.linear.kernels.csr_entries import entries_are_finite, multiply_rows
from discreet.linear.kernels.kernel import readable, row_norms

_ENTRIES = 2**22  # that are kept together
_SHORTER = 1 - 2.0**-20  # more than the rounding of a factor and of its product to float32


def pieces(table: csr_array) -> Iterator[slice]:
    """Rows with about as many entries each, in one piece at least. Where they are cut changes no sum."""
    rows, first = table.shape[0], 0
    if not rows:
        yield slice(0, 0)
    while first < rows:
        reached = int(np.searchsorted(table.indptr, table.indptr[first] + _ENTRIES, side="right")) - 1
        last = min(max(reached, first + 1), rows)
        yield slice(first, last)
        first = last


def finite_rows(table: csr_array) -> NDArray[np.bool_]:
    """Which rows are finite as float32."""
    good = np.empty(table.shape[0], np.bool_)
    with np.errstate(over="ignore"):
        entries_are_finite(readable(table.data), readable(table.indptr), good)
    return good


def admit_rows(rows: csr_array, text_norm: float | None) -> csr_array:
    """The rows moved into what is promised, as float32; rows with NaN or infinity are left out.

    Guarantee: without a norm all numbers are in [0, 1]; with one all rows have at most that norm. Every row depends
    on its own input only.
    """
    good = finite_rows(rows)
    kept = csr_array(rows if good.all() else rows[good])
    with np.errstate(over="ignore"):
        data = np.array(kept.data, np.float32)  # a copy: the caller's rows stay as they are
    kept = csr_array((data, kept.indices, kept.indptr), shape=kept.shape)
    if text_norm is None:
        np.clip(data, 0, 1, out=data)
        return kept
    return shorten_rows(kept, text_norm)


def shorten_rows(rows: csr_array, limit: float) -> csr_array:
    """The rows with a norm of at most ``limit`` each: longer ones in the same direction, all others as they are."""
    norms = row_norms(rows, 0.0)
    longer = norms > limit
    if not longer.any():
        return rows
    factors = np.where(longer, limit / np.where(longer, norms, 1.0) * _SHORTER, 1.0).astype(np.float32)
    data = np.array(rows.data)
    multiply_rows(data, readable(rows.indptr), factors)
    return csr_array((data, rows.indices, rows.indptr), shape=rows.shape)


def squares_of(rows: csr_array) -> csr_array:
    """The squares of all numbers, in float64, where those of float32 are exact."""
    return csr_array((rows.data.astype(np.float64) ** 2, rows.indices, rows.indptr), shape=rows.shape)


def triple(rows: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Entries, their columns, and where rows begin, for machine code."""
    return readable(rows.data), readable(rows.indices), readable(rows.indptr)
