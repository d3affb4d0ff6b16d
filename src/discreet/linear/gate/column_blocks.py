"""Blocks about every column of a row, by compiled passes: bins, sums and cells of columns.

The rows are those that were admitted: numbers in [0, 1], one-hot columns and text within their norms. All additions
are cut toward zero to whole steps of a public grid and added up as 64-bit integers, so no record changes what
another one adds (docs/engines.md: E14).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.errors import PlanViolation, whole
from discreet.linear.gate.checks import dense, refuse_bad_knots
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.kernels.csr_entries import add_cut_entries, count_cells
from discreet.linear.kernels.csr_rows import squares_of, triple
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import add_cut_rows, count_bins
from discreet.linear.kernels.uneven_bins import Edges, count_between
from discreet.trusted.queries import Block, Cells, Norm, Part, View, evaluate

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_ROUNDED = Fraction(1) + Fraction(9, 10**10)  # the norm of an admitted row over its limit


def _steps(part: Part, amount: float) -> Array:
    """Return an amount in grid steps for each record, times its weight."""
    return np.full(part.x.shape[0], amount) if part.weights is None else part.weights * amount


class _ColumnBlock(Block):
    """A block whose limits bound the l2 norm only."""

    square: Any

    def power_sum(self, power: int) -> Fraction:
        if power != 2:
            raise PlanViolation("Sums of all columns are bounded in the l2 norm.")
        return Fraction(self.square)


@dataclass(frozen=True, eq=False)
class EvenBins(_ColumnBlock):
    """Each record adds 1 to the bin of each of its numeric columns: ``bins`` over [0, 1] for each."""

    columns: Columns
    bins: int

    def __post_init__(self) -> None:
        whole("bins", self.bins, at_least=1, at_most=2**20)

    @property
    def size(self) -> int:
        return self.columns.numerics * self.bins

    @property
    def square(self) -> int:
        return self.columns.numerics

    def add(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        rows = _between(part.x, 0, self.columns.numerics)
        if issparse(rows):
            cells = np.minimum((rows.data * np.float32(self.bins)).astype(np.int64), self.bins - 1)
            zeros = np.zeros(rows.shape[1], np.int64)
            _add_sparse_cells(total, part._replace(x=rows), cells, zeros, self.bins, grid)
        elif part.weights is None:
            narrow = np.int32 if len(rows) < 2**31 else np.int64  # small enough for the cache
            counts = np.zeros(len(total), narrow)
            count_bins(readable(rows), self.bins, counts)
            total += int(1.0 / grid) * counts.astype(np.int64)
        else:
            steps = _steps(part, 1.0 / grid).astype(np.int64)
            for column, own in enumerate(total.reshape(-1, self.bins)):
                cells = np.minimum((rows[:, column] * self.bins).astype(np.int64), self.bins - 1)
                np.add.at(own, cells, steps)


@dataclass(frozen=True, eq=False)
class Bins(_ColumnBlock):
    """Each record adds 1 to the bin of each numeric column, between its ``edges``; the outer bins have no end."""

    edges: tuple[Array, ...]

    def __post_init__(self) -> None:
        for edges in self.edges:
            refuse_bad_knots(edges)

    @property
    def size(self) -> int:
        return sum(len(edges) - 1 for edges in self.edges)

    @property
    def square(self) -> int:
        return len(self.edges)

    def add(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        if dense(part.x).shape[1] < len(self.edges):
            raise PlanViolation(f"There are no {len(self.edges)} columns to count.")
        count_between(part.x, self._edges, _steps(part, 1.0 / grid).astype(np.int64), total)

    @cached_property
    def _edges(self) -> Edges:
        return Edges.of(self.edges)


@dataclass(frozen=True, eq=False)
class ColumnSums(_ColumnBlock):
    """Each record adds its columns, less 1/2 where they are numbers; with ``squares`` also x^2 / b of its text.

    Since they were admitted, numbers are in [0, 1], one-hot columns have a norm of at most the root of the number of
    groups, and the text has a norm of at most b, so that sum x^4 / b^2 <= b^2.
    """

    columns: Columns
    squares: bool = False

    @property
    def size(self) -> int:
        return self.columns.width + self.squares * self.columns.text

    @property
    def square(self) -> Fraction:
        text = (Fraction(self.columns.text_norm) * _ROUNDED) ** 2 if self.columns.text else Fraction(0)
        return Fraction(self.columns.numerics, 4) + len(self.columns.groups) + (1 + self.squares) * text

    def add(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        x, k, width = part.x, self.columns.numerics, self.columns.width
        steps = _steps(part, 1.0 / grid)
        if k:
            _add_rows(total[:k], _between(x, 0, k), steps, less=0.5)
        if width > k:
            _add_rows(total[k:width], _between(x, k, width), steps)
        if self.squares and self.columns.text:
            words = squares_of(x) if issparse(x) else x[:, self.columns.words].astype(np.float64) ** 2
            _add_rows(total[width:], words, _steps(part, 1 / self.columns.text_norm / grid))


def _add_rows(total: Integers, rows: Any, steps: Array, less: float = 0.0) -> None:
    """Add each row minus ``less``, times its steps."""
    if issparse(rows):
        add_cut_entries(*triple(rows), steps, less, total)
    else:
        add_cut_rows(readable(rows), steps, less, total)


def _between(x: Any, first: int, last: int) -> Any:
    """Some columns; slicing all columns of sparse rows would copy them."""
    return x if (first, last) == (0, x.shape[1]) else x[:, first:last]


@dataclass(frozen=True, eq=False)
class ColumnCells(_ColumnBlock):
    """Each record adds 1, for each of ``square`` columns, to the one of ``cells`` cells that its view names.

    Of sparse rows the view is asked about the stored numbers (``entries``) and about zero.
    """

    view: View
    square: int
    cells: int

    @property
    def size(self) -> int:
        return self.square * self.cells

    def add(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        if part.x.shape[1] != self.square:
            raise PlanViolation(f"The query is about {self.square} columns. The rows have {part.x.shape[1]}.")
        if not issparse(part.x):
            own = Cells(self.view, (self.cells,) * self.square, (1.0,) * self.square)
            own.add(total, part, grid, norm)
            return
        view: Any = self.view
        (cells,) = evaluate(view.entries, Part(part.x.data.astype(np.float64), part.x.indices), np.int64)
        columns = np.arange(self.square)
        (zeros,) = evaluate(view.entries, Part(np.zeros(self.square), columns), np.int64)
        if cells.shape != part.x.data.shape or zeros.shape != columns.shape:
            raise PlanViolation("A view of the query gives other cells than there are numbers.")
        _add_sparse_cells(total, part, cells, zeros, self.cells, grid)


def _add_sparse_cells(
    total: Integers, part: Part, cells: Integers, zeros: Integers, width: int, grid: float
) -> None:
    """Add 1 to a cell of every column of sparse rows, of ``width`` each, for each record.

    ``cells`` are those of the entries, negative where they are not counted, and ``zeros`` those of all others.

    Guarantee: a record changes at most one of the ``width`` numbers of each column, by at most 1.
    """
    _, indices, indptr = triple(part.x)
    steps = _steps(part, 1.0 / grid).astype(np.int64)
    places, first = np.minimum(cells, width - 1), np.clip(zeros, 0, width - 1)
    count_cells(places, indices, indptr, steps, first, width, total)
