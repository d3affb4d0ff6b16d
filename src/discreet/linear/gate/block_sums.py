"""Sums of blocks: each record adds one part to each block, and the limits of the blocks bound the sensitivity.

>>> query = Blocks((Cells(TargetBin(0.0, 1.0, 64), 64), Values(TargetMoments(0.0, 1.0), (0.5, 0.5))), bound=1.5)
>>> query.size
66
>>> Blocks((Cells(TargetBin(0.0, 1.0, 64), 64), Values(TargetMoments(0.0, 1.0), (0.5, 0.5))), bound=1.2)
Traceback (most recent call last):
    ...
discreet.errors.PlanViolation: The blocks of a query allow a record to add a vector of norm 1.22474. Declared: 1.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.core.clipping import clip_rows
from discreet.errors import PlanViolation, whole
from discreet.linear.gate.adding import (
    Array,
    Integers,
    add_cells,
    add_even_bins,
    add_rows,
    add_values,
)
from discreet.linear.gate.column_pairs import Crossings, HatCells, PairCells, RankProducts
from discreet.linear.gate.data import checked_bound, dense, refuse_bad_knots, refuse_other_shapes
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.record_store import Chunk, RecordStore
from discreet.linear.gate.sparse_rows import squares_of
from discreet.linear.kernels.uneven_bins import Edges, count_between
from discreet.linear.losses import Loss
from discreet.linear.residuals import accepted
from discreet.trusted.plain_data import Data, conform

ROUNDING = 1 + 1e-9
"""What declared bounds of blocks with roundings are multiplied by."""

_ROUNDED = Fraction(1) + Fraction(9, 10**10)  # the norm of a clipped or scaled row over its limit


@dataclass(frozen=True, eq=False)
class Cells(Data):
    """Each record adds ``unit`` to the cell that its view names, or to none."""

    view: ClassOf | TargetBin | TargetHalfOctave | WindowBin
    size: int
    unit: float = 1.0

    @property
    def square(self) -> Fraction:
        return Fraction(self.unit) ** 2

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        add_cells(counts, self.view(chunk), chunk.weights, grid, self.unit)


@dataclass(frozen=True, eq=False)
class Values(Data):
    """Each record adds ``unit`` times the numbers of its view, number j clamped to ``limits[j]``."""

    view: TargetMoments | TargetOffset | RankProducts
    limits: tuple[float, ...]
    unit: float = 1.0

    @property
    def size(self) -> int:
        return len(self.limits)

    @property
    def square(self) -> Fraction:
        return sum((Fraction(limit) ** 2 for limit in self.limits), Fraction(0))

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        rows = self.view(chunk)
        _refuse_other_width(rows, self.size)
        add_values(counts, rows, chunk.weights, grid, self.limits, self.unit)


@dataclass(frozen=True, eq=False)
class Rows(Data):
    """Each record adds the row of its view, clipped to norm ``limit``; nothing if it is not finite."""

    view: Offset
    size: int
    limit: float

    @property
    def square(self) -> Fraction:
        return (Fraction(self.limit) * _ROUNDED) ** 2

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        rows = self.view(chunk)
        _refuse_other_width(rows, self.size)
        add_rows(counts, clip_rows(rows, self.limit), chunk.weights, grid)


@dataclass(frozen=True, eq=False)
class TableRows(Data):
    """Each record adds the row of a public table that its view names, or nothing."""

    view: ClassOf
    table: Array

    @property
    def size(self) -> int:
        return int(self.table.shape[1])

    @property
    def square(self) -> Fraction:
        rows = (sum((Fraction(float(number)) ** 2 for number in row), Fraction(0)) for row in self.table)
        return max(rows) * _ROUNDED**2

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        refuse_other_shapes(table=(self.table, (len(self.table), self.size)))
        places, table = self.view(chunk), np.vstack([self.table, np.zeros(self.size)])
        known = (places >= 0) & (places < len(self.table))
        add_rows(counts, table[np.where(known, places, len(self.table))], chunk.weights, grid)


@dataclass(frozen=True, eq=False)
class EvenBins(Data):
    """Each record adds 1 to the bin of each of its numeric columns: ``bins`` over [0, 1] for each."""

    columns: Columns
    bins: int

    def __post_init__(self) -> None:
        whole("bins", self.bins, at_least=1, at_most=2**20)

    @property
    def size(self) -> int:
        return self.columns.numerics * self.bins

    @property
    def square(self) -> Fraction:
        return Fraction(self.columns.numerics)

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        add_even_bins(counts, _between(chunk.x, 0, self.columns.numerics), self.bins, chunk.weights, grid)


@dataclass(frozen=True, eq=False)
class Bins(Data):
    """Each record adds 1 to the bin of each numeric column, between its ``edges``; the outer bins have no end."""

    edges: tuple[Array, ...]

    def __post_init__(self) -> None:
        for edges in self.edges:
            refuse_bad_knots(edges)

    @property
    def size(self) -> int:
        return sum(len(found) - 1 for found in self.edges)

    @property
    def square(self) -> Fraction:
        return Fraction(len(self.edges))

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        if dense(chunk.x).shape[1] < len(self.edges):
            raise PlanViolation(f"There are no {len(self.edges)} columns to count.")
        steps = (np.ones(len(chunk.x)) if chunk.weights is None else chunk.weights) * (1.0 / grid)
        count_between(chunk.x, self._edges, steps.astype(np.int64), counts)

    @cached_property
    def _edges(self) -> Edges:
        return Edges.of(self.edges)


@dataclass(frozen=True, eq=False)
class ColumnSums(Data):
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

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        x, k, width = chunk.x, self.columns.numerics, self.columns.width
        if k:
            add_rows(counts[:k], _between(x, 0, k), chunk.weights, grid, less=0.5)
        if width > k:
            add_rows(counts[k:width], _between(x, k, width), chunk.weights, grid)
        if self.squares and self.columns.text:
            words = squares_of(x) if issparse(x) else x[:, self.columns.words].astype(np.float64) ** 2
            add_rows(counts[width:], words, chunk.weights, grid, unit=1 / self.columns.text_norm)


def _between(x: Any, first: int, last: int) -> Any:
    """Some columns; slicing all columns of sparse rows would copy them."""
    return x if (first, last) == (0, x.shape[1]) else x[:, first:last]


def _refuse_other_width(rows: NDArray[Any], size: int) -> None:
    if rows.ndim != 2 or rows.shape[1] != size:
        raise PlanViolation(f"A view of {size} numbers was declared. Got shape {rows.shape[1:]}.")


Block = Cells | Values | Rows | TableRows | EvenBins | Bins | ColumnSums | Crossings | PairCells | HatCells


@dataclass(frozen=True, eq=False)
class Blocks(Data):
    """A sum to which each record adds a vector of norm at most ``bound``, one part per block.

    With ``everybody``, records whose target is not accepted count too.

    Guarantee: ``bound`` is at least the norm of what the blocks allow, compared in exact fractions.
    """

    blocks: tuple[Block, ...]
    bound: float
    everybody: bool = False

    def __post_init__(self) -> None:
        conform(self)
        bound = checked_bound("bound", self.bound)
        for block in self.blocks:
            whole("size", block.size, at_least=0)
        allowed = sum((block.square for block in self.blocks), Fraction(0))
        if allowed > Fraction(bound) ** 2:
            raise PlanViolation(
                f"The blocks of a query allow a record to add a vector of norm {math.sqrt(allowed):g}. "
                f"Declared: {bound:g}."
            )

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return sum(block.size for block in self.blocks)

    def total(self, store: RecordStore, grid: float) -> Integers:
        """The sum in grid steps.

        Guarantee: one record changes it by a vector of norm at most ``bound / grid``.
        """
        total = np.zeros(self.size, np.int64)
        for block in self.blocks:
            if getattr(block, "columns", store.row_columns) != store.row_columns:
                raise PlanViolation("A block of the query is for other columns than the records have.")
        for chunk in store.everybody() if self.everybody else store.chunks():
            for block, counts in self._parts(total):
                block.add(counts, chunk, grid)
        return total

    def _parts(self, total: NDArray[Any]) -> Iterator[tuple[Block, NDArray[Any]]]:
        start = 0
        for block in self.blocks:
            yield block, total[start : start + block.size]
            start += block.size


# Views of the target.


@dataclass(frozen=True, eq=False)
class ClassOf(Data):
    """The class of a record: all regression targets are of one. A target that is not accepted has the last cell."""

    loss: Loss

    def __call__(self, chunk: Chunk) -> Integers:
        classes = self.loss.class_count
        known = accepted(self.loss, chunk.y)
        cells = np.full(len(chunk.y), classes)
        cells[known] = 0 if classes == 1 else chunk.y[known].astype(np.int64)
        return cells


def _unit(y: Array, lower: float, width: float) -> Array:
    return np.asarray(np.clip((y - lower) / width, 0, 1))


@dataclass(frozen=True, eq=False)
class TargetBin(Data):
    """The bin of the target, of ``bins`` from ``lower`` over ``width``."""

    lower: float
    width: float
    bins: int

    def __call__(self, chunk: Chunk) -> Integers:
        return np.minimum(
            (_unit(chunk.y, self.lower, self.width) * self.bins).astype(np.int64), self.bins - 1
        )


@dataclass(frozen=True, eq=False)
class TargetMoments(Data):
    """v - 1/2 and 2 (v - 1/2)^2, with v in [0, 1] for the target within its bounds."""

    lower: float
    width: float

    def __call__(self, chunk: Chunk) -> Array:
        unit = _unit(chunk.y, self.lower, self.width)
        return np.column_stack([unit - 0.5, 2 * (unit - 0.5) ** 2])


@dataclass(frozen=True, eq=False)
class TargetHalfOctave(Data):
    """The half octave of 1 + y, for counts y up to ``most``; the last of ``cells`` holds all beyond."""

    most: float
    cells: int

    def __call__(self, chunk: Chunk) -> Integers:
        half_octaves = np.round(2 * np.log2(1 + np.clip(chunk.y, 0, self.most)))
        return np.asarray(np.minimum(half_octaves, self.cells - 1).astype(np.int64))


@dataclass(frozen=True, eq=False)
class TargetOffset(Data):
    """v - ``mean`` clamped to ``reach``, with v in [0, 1] for the target; if ``far``, its distance - reach / 2."""

    lower: float
    width: float
    mean: float
    reach: float
    far: bool = False

    def __call__(self, chunk: Chunk) -> Array:
        away = np.clip(_unit(chunk.y, self.lower, self.width) - self.mean, -self.reach, self.reach)
        return np.column_stack([away, np.abs(away) - self.reach / 2]) if self.far else away[:, None]


# Views of the features.


@dataclass(frozen=True, eq=False)
class WindowBin(Data):
    """The bin of a numeric column, of ``bins`` between ``lower`` and ``upper``; none outside."""

    column: int
    lower: float
    upper: float
    bins: int

    def __call__(self, chunk: Chunk) -> Integers:
        values = dense(chunk.x)[:, self.column].astype(np.float64)
        cells = np.floor((values - self.lower) / (self.upper - self.lower) * self.bins)
        return np.asarray(np.where((cells >= 0) & (cells < self.bins), cells, -1).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Offset(Data):
    """The encoded row minus a public centre."""

    centre: Array

    def __call__(self, chunk: Chunk) -> Array:
        refuse_other_shapes(centre=(self.centre, chunk.x.shape[1:]))
        return np.asarray(dense(chunk.x) - self.centre)
