"""Columns whose bounds nobody declared: :class:`RawColumns` answer histograms of them.

>>> RawColumns(np.array([[1.0, np.nan], [3.0, 7.0]]))
RawColumns(columns=2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array, issparse

from discreet.errors import PlanViolation, whole
from discreet.linear.gate.adding import Array, Integers, add_cells, add_sparse_cells
from discreet.linear.gate.data import refuse_other_shapes
from discreet.linear.gate.sparse_rows import pieces
from discreet.linear.on_demand import sane_csr
from discreet.trusted.opaque import AnyRows
from discreet.trusted.plain_data import Checked, Data, conform

SMALLEST, LARGEST = -32, 64
"""Powers of two that are told apart."""
POWERS = LARGEST - SMALLEST + 1

_ROUNDING = 1 + 1e-9
_BLOCK = 2**21  # numbers read at once


class _ColumnCells(Data):
    """Each record adds 1, for each column, to one of some cells, or to none.

    Guarantee: the sensitivity is the square root of the number of columns.
    """

    columns: Any
    cells: Any

    @property
    def size(self) -> int:
        return int(self.columns * self.cells)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return math.sqrt(whole("columns", self.columns, at_least=1)) * _ROUNDING


@dataclass(frozen=True, eq=False)
class PowerCells(_ColumnCells, Checked):
    """Each record adds 1, for each column, to the cell of the power of two of its number; NaN counts for nothing.

    The cells are those of 2**(e-1) < \\|x\\| <= 2**e, below zero from the left, zero in the middle.
    """

    columns: int
    cells = 2 * POWERS + 1

    def cells_of(self, values: Array, columns: Any) -> Array:
        """The cell of each value; NaN for NaN."""
        powers = np.clip(np.ceil(np.log2(np.abs(values))), SMALLEST, LARGEST) - SMALLEST + 1
        powers = np.where(np.abs(values) <= 2.0 ** (SMALLEST - 1), 0.0, powers)
        return np.asarray(POWERS + np.sign(values) * powers)


@dataclass(frozen=True, eq=False)
class RangeCells(_ColumnCells):
    """Each record adds 1, for each column, to one of ``zoom`` even cells across its range, or to one beside it."""

    lower: Array
    width: Array
    zoom: int

    def __post_init__(self) -> None:
        conform(self)
        whole("zoom", self.zoom, at_least=1)
        refuse_other_shapes(lower=(self.lower, (len(self.lower),)), width=(self.width, (len(self.lower),)))

    @property
    def columns(self) -> int:
        return len(self.lower)

    @property
    def cells(self) -> int:
        return self.zoom + 2

    def cells_of(self, values: Array, columns: Any) -> Array:
        """The cell of each value; NaN for NaN."""
        lower, width = self.lower[columns], self.width[columns]
        place = np.floor((values - lower) / width * self.zoom)
        at_the_end = values == lower + width  # powers of two belong to the range that ends there
        return np.asarray(np.clip(np.where(at_the_end, self.zoom - 1, place), -1, self.zoom) + 1)


class RawColumns(AnyRows):
    """Numbers as they were read, an array or a CSR array, with weights in [0, 1] or None."""

    __slots__ = ("_table", "_weights", "columns")

    _answers: ClassVar[tuple[type, ...]] = (PowerCells, RangeCells)

    def __init__(self, table: Any, weights: Array | None = None) -> None:
        self._table = sane_csr(table) if issparse(table) else table
        self._weights = None if weights is None else np.clip(np.nan_to_num(weights), 0.0, 1.0)
        self.columns: int = table.shape[1]

    def _row_count(self) -> int:
        return int(self._table.shape[0])

    def _sum(self, query: PowerCells | RangeCells, grid: float) -> Integers:
        if query.columns != self.columns:
            raise PlanViolation(f"The query is about {query.columns} columns. The rows have {self.columns}.")
        total = np.zeros(query.size, np.int64)
        for rows in pieces(self._table) if issparse(self._table) else self._blocks():
            own = None if self._weights is None else self._weights[rows]
            if issparse(self._table):
                self._add_sparse(total, csr_array(self._table[rows]), own, query, grid)
            else:
                self._add(total, np.asarray(self._table[rows], np.float64), own, query, grid)
        return total

    def _add(self, total: Integers, values: Array, weights: Any, query: Any, grid: float) -> None:
        places = query.cells_of(values, slice(None))
        for column, counts in enumerate(total.reshape(self.columns, query.cells)):
            cells = np.where(np.isnan(places[:, column]), -1.0, places[:, column]).astype(np.int64)
            add_cells(counts, cells, weights, grid)

    def _add_sparse(self, total: Integers, rows: csr_array, weights: Any, query: Any, grid: float) -> None:
        """Add the cells of sparse rows: the sums are those of the same rows with all their zeros."""
        columns = np.arange(self.columns)
        places = query.cells_of(rows.data.astype(np.float64), rows.indices)
        zeros = query.cells_of(np.zeros(len(columns)), columns).astype(np.int64)
        cells = np.nan_to_num(places, nan=-1.0).astype(np.int64)
        add_sparse_cells(total, rows, cells, zeros, query.cells, weights, grid)

    def _blocks(self) -> Iterator[slice]:
        step = max(1, _BLOCK // max(1, self.columns))
        yield from (slice(start, start + step) for start in range(0, max(1, self._row_count()), step))

    def __repr__(self) -> str:
        return f"RawColumns(columns={self.columns})"
