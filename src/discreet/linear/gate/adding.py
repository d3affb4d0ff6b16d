"""How records are added to a sum in grid steps, within a limit each.

All additions are cut toward zero to whole steps of a public grid and added up as 64-bit integers, so no record
changes what another one adds (docs/engines.md: E14). Weights are in [0, 1] and multiply what a record adds and its
limit alike.

>>> counts = np.zeros(2, np.int64)
>>> add_cells(counts, np.array([0, 1, 7]), None, grid=0.5)
>>> counts.tolist()
[2, 2]
>>> add_values(counts, np.array([[0.5, 9.0], [np.nan, -1.0]]), None, grid=0.5, limits=(1.0, 2.0))
>>> counts.tolist()
[3, 4]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.linear.gate.sparse_rows import triple
from discreet.linear.kernels.csr_entries import add_cut_entries, count_cells
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import add_capped_rows, add_cut_ones, add_cut_rows, count_bins

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Weights = NDArray[Any] | None


def add_cells(counts: Integers, cells: Integers, weights: Weights, grid: float, unit: float = 1.0) -> None:
    """Add ``unit`` times its weight to the cell of each record; nothing if the cell is out of range.

    Guarantee: a record changes one number, by at most ``unit``.
    """
    inside = (cells >= 0) & (cells < len(counts))
    if not inside.all():
        cells, weights = cells[inside], None if weights is None else weights[inside]
    if weights is None:
        counts += int(unit / grid) * np.bincount(cells, minlength=len(counts))
    else:
        add_cut_ones(cells, np.asarray(weights, np.float64) * (unit / grid), counts)


def add_signed(counts: Integers, cells: Integers, values: Array, weights: Weights, grid: float) -> None:
    """Add its value, clamped to [-1, 1], times its weight to the cell of each record; NaN counts as 0.

    Guarantee: a record changes one number, by at most 1.
    """
    inside = (cells >= 0) & (cells < len(counts))
    own = np.clip(np.where(np.isfinite(values), values, 0.0), -1.0, 1.0)
    own = own if weights is None else own * weights
    add_cut_ones(cells[inside], own[inside] / grid, counts)


def add_values(
    counts: Integers,
    rows: Any,
    weights: Weights,
    grid: float,
    limits: tuple[float, ...],
    unit: float = 1.0,
    less: float = 0.0,
) -> None:
    """Add ``unit`` times its row minus ``less`` for each record, each number clamped to its limit; NaN counts as 0.

    Guarantee: a record changes number j by at most ``limits[j]``.
    """
    factors, whole = _factors(rows, weights, unit / grid), _factors(rows, weights, 1.0 / grid)
    add_capped_rows(readable(rows), factors, less, whole, np.array(limits), counts)


def add_rows(
    counts: Integers, rows: Any, weights: Weights, grid: float, unit: float = 1.0, less: float = 0.0
) -> None:
    """Add ``unit`` times its row minus ``less`` for each record; rows may be sparse.

    Guarantee: a record's row of norm c changes the sum by at most ``unit * c``, but for one rounding in float64.
    """
    factors = _factors(rows, weights, unit / grid)
    if issparse(rows):
        add_cut_entries(*triple(rows), factors, less, counts)
    else:
        add_cut_rows(readable(rows), factors, less, counts)


def add_even_bins(counts: Integers, rows: Any, bins: int, weights: Weights, grid: float) -> None:
    """Add 1 times its weight to the bin of each number of each record: ``bins`` over [0, 1] for each column.

    Guarantee: a record, with numbers in [0, 1], changes one of the ``bins`` numbers of each column, by at most 1.
    """
    if issparse(rows):
        places = np.minimum((rows.data * np.float32(bins)).astype(np.int64), bins - 1)
        add_sparse_cells(counts, rows, places, np.zeros(rows.shape[1], np.int64), bins, weights, grid)
    elif weights is None:
        narrow = np.int32 if len(rows) < 2**31 else np.int64  # small enough for the cache
        found = np.zeros(len(counts), narrow)
        count_bins(readable(rows), bins, found)
        counts += int(1.0 / grid) * found.astype(np.int64)
    else:
        for column in range(rows.shape[1]):
            cells = np.minimum((rows[:, column] * bins).astype(np.int64), bins - 1)
            add_cells(counts[column * bins : (column + 1) * bins], cells, weights, grid)


def add_sparse_cells(
    counts: Integers,
    rows: Any,
    cells: Integers,
    zeros: Integers,
    width: int,
    weights: Weights,
    grid: float,
) -> None:
    """Add 1 times its weight to a cell of every column of sparse rows, of ``width`` each, for each record.

    ``cells`` are those of the entries, negative where they are not counted, and ``zeros`` those of all others.

    Guarantee: a record changes at most one of the ``width`` numbers of each column, by at most 1.
    """
    _, indices, indptr = triple(rows)
    steps = np.full(rows.shape[0], int(1.0 / grid), np.int64)
    if weights is not None:
        steps = (np.asarray(weights, np.float64) * (1.0 / grid)).astype(np.int64)
    places = np.minimum(cells.astype(np.int64), width - 1)
    first = np.clip(zeros.astype(np.int64), 0, width - 1)
    count_cells(places, indices, indptr, steps, first, width, counts)


def _factors(rows: Any, weights: Weights, steps: float) -> NDArray[Any]:
    """Return the grid steps of each record, in float64: weights may be float32, in which the product can overflow."""
    return np.full(rows.shape[0], steps) if weights is None else np.asarray(weights, np.float64) * steps
