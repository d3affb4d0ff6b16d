"""The catalogue of queries: what each record adds to a sum, as frozen data.

A query is a list of blocks. Each block names a *view*, a function of one record from a closed list, and a limit on
what the record adds. The sensitivity follows from the limits; :class:`~discreet.trusted.rows.PrivateRows` enforce
them in grid steps for the data at hand.

>>> query = Blocks((Cell(Bin(0, (0.0, 1.0, 2.0)), size=2, limit=0.5), Value(Polynomial(0, 0.0, 2.0), limit=0.8)))
>>> query.size, query.bound
(3, 1.0)
>>> Blocks((Cell(Code(0), 2, 0.6), Value(Polynomial(0, 0.0, 1.0), 0.9)))
Traceback (most recent call last):
    ...
discreet.errors.PlanViolation: The limits of the blocks exceed the declared sensitivity 1 in the l2 norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from discreet.core.clipping import clip_rows
from discreet.core.noise import hardened_sum
from discreet.errors import PlanViolation, one_of, real, whole
from discreet.trusted.outcomes import Outcome
from discreet.trusted.plain_data import Array, Data, Integers, conform

Norm = Literal["l2", "l1"]

_LONGEST = 2**40  # steps of a limit: the most for which weights may be rounded

_MARGIN = 1 - 1e-12  # on every limit: more than the product of a clamped number and a limit is rounded by


# Views of one record. Each computes its result for a row from that row alone.


@dataclass(frozen=True)
class Bin(Data):
    """The bin of a number between increasing edges, the last one inclusive; -1 outside and for NaN."""

    column: int
    edges: tuple[float, ...]

    def __call__(self, rows: Array) -> Integers:
        values, edges = rows[:, self.column], np.array(self.edges)
        cells: Integers = np.searchsorted(edges, values, side="right") - 1
        cells[values == edges[-1]] = len(edges) - 2
        cells[~((values >= edges[0]) & (values <= edges[-1]))] = -1
        return cells


@dataclass(frozen=True)
class Code(Data):
    """The code of a category, which is its place among the declared values; -1 for any other value."""

    column: int

    def __call__(self, rows: Array) -> Integers:
        values = rows[:, self.column]
        return np.where(np.isfinite(values), values, -1.0).astype(np.int64)


@dataclass(frozen=True)
class Polynomial(Data):
    """A polynomial of u = (x - centre) / scale, where x is a number moved into its bounds; NaN for NaN."""

    column: int
    lower: float
    upper: float
    centre: float = 0.0
    scale: float = 1.0
    coefficients: tuple[float, ...] = (0.0, 1.0)

    def __call__(self, rows: Array) -> Array:
        unit = (np.clip(rows[:, self.column], self.lower, self.upper) - self.centre) / self.scale
        result = np.where(np.isnan(unit), math.nan, self.coefficients[-1])
        for coefficient in self.coefficients[-2::-1]:
            result = coefficient + unit * result
        return result


@dataclass(frozen=True)
class Ones(Data):
    """The number 1, for every record."""

    def __call__(self, rows: Array) -> Array:
        return np.ones((len(rows), 1))


@dataclass(frozen=True)
class Offset(Data):
    """The row minus a centre, each coordinate moved into [-half_width, half_width]; NaN where it is not finite."""

    centre: tuple[float, ...]
    half_width: float = math.inf

    def __call__(self, rows: Array) -> Array:
        offsets = rows - np.array(self.centre)
        if self.half_width == math.inf:
            return np.asarray(offsets)
        return np.where(np.isfinite(offsets), np.clip(offsets, -self.half_width, self.half_width), math.nan)


@dataclass(frozen=True)
class Distance(Data):
    """A function of the distance of a row from a centre, minus ``shift``.

    ``"beyond"``: 1 if the distance exceeds ``radius``, else 0. ``"square"``: min(distance / radius, 1)^2.
    """

    centre: tuple[float, ...]
    radius: float
    amount: Literal["beyond", "square"]
    norm: Norm = "l2"
    shift: float = 0.0

    def __call__(self, rows: Array) -> Array:
        order = 2 if self.norm == "l2" else 1
        distances = np.linalg.norm(rows - np.array(self.centre), order, axis=1)[:, None]
        if self.amount == "beyond":
            return np.asarray(~(distances <= self.radius) - self.shift, np.float64)
        return np.asarray(np.minimum(distances / self.radius, 1.0) ** 2 - self.shift)


@dataclass(frozen=True)
class Products(Data):
    """The products z_i z_j / (2 d), i <= j, of z = (sqrt(d), u), off the diagonal times sqrt(2).

    u holds the d columns of a row with their bounds at -1 and 1. The l2 norm is |z|^2 / (2 d), which is at most 1.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    factor: float = 1.0

    def __call__(self, rows: Array) -> Array:
        lower, upper = np.array(self.lower), np.array(self.upper)
        width = len(lower)
        middle, half = (lower + upper) / 2, (upper - lower) / 2
        # Bounds a few roundings apart have no middle: then a column could leave [-1, 1].
        unit = np.clip((np.clip(rows, lower, upper) - middle) / half, -1.0, 1.0)
        first, second = np.triu_indices(width + 1)
        z = np.column_stack([np.full(len(rows), math.sqrt(width)), unit])
        stretch = np.where(first == second, 1.0, math.sqrt(2))
        products = np.asarray(z[:, first] * z[:, second] * (stretch / (2.0 * width)))
        return np.asarray(np.clip(products, -1.0, 1.0) * self.factor)


CellView = Bin | Code
NumberView = Polynomial
RowView = Ones | Offset | Distance | Products


# Blocks: how a view enters the sum.


class Part(NamedTuple):
    """Some rows at a time, and the weight of each where persons count: one over the number of a person's rows."""

    rows: Array
    weights: Array | None = None

    def unweighted(self) -> Array:
        """Return the rows; raise if persons count."""
        if self.weights is not None:
            raise PlanViolation("Rows of persons answer queries of cells only.")
        return self.rows


def _limits(part: Part, limit: float, grid: float) -> Integers | int:
    """How many steps each row may add to a block: ``limit / grid``, times its weight.

    A person's k rows weigh 1 / k, rounded, each. Their limits are integers, and add up to less than
    (limit / grid) (1 + 2^-42) < limit / grid + 1: so they add up to at most limit / grid.
    """
    steps = int(limit / grid)
    if part.weights is None:
        return steps
    if steps > _LONGEST:
        raise PlanViolation("The grid is too fine for the weights of persons.")
    return (part.weights * (steps * (1 + 2.0**-43))).astype(np.int64)


@dataclass(frozen=True)
class Cell(Data):
    """Each record adds ``limit`` to the one of ``size`` cells that its view names, or to none."""

    view: CellView
    size: int
    limit: float

    def add_to(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        cells = self.view(part.rows)
        inside = (cells >= 0) & (cells < self.size)
        steps = np.broadcast_to(_limits(part, self.limit, grid), cells.shape)
        np.add.at(total, cells[inside], steps[inside])


@dataclass(frozen=True)
class SharedCells(Data):
    """Each record adds ``limit`` to the cells that its view names, in shares that are not below 0.

    Guarantee: what a record adds to all cells together is at most ``limit``, in whole steps, whatever its shares are;
    and what a person's rows add is no more.
    """

    view: Outcome
    limit: float

    @property
    def size(self) -> int:
        return self.view.size

    def add_to(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        cells, shares = self.view(part.rows)
        left = np.broadcast_to(_limits(part, self.limit, grid), len(cells)).astype(np.int64)
        weighted = shares if part.weights is None else shares * part.weights[:, None]
        wanted = np.nan_to_num(weighted, nan=0.0) * int(self.limit / grid)
        for column in range(cells.shape[1]):
            steps = np.clip(wanted[:, column], 0, left).astype(np.int64)
            left -= steps
            inside = (cells[:, column] >= 0) & (cells[:, column] < self.size)
            np.add.at(total, cells[inside, column], steps[inside])


@dataclass(frozen=True)
class Value(Data):
    """Each record adds ``limit`` times its view, clamped to [-1, 1]; nothing if the view is NaN."""

    view: NumberView
    limit: float

    @property
    def size(self) -> int:
        return 1

    def add_to(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        values = self.view(part.unweighted())
        most = int(self.limit / grid)
        clamped = np.clip(np.where(np.isfinite(values), values, 0.0), -1.0, 1.0)
        steps = (clamped * (self.limit * _MARGIN / grid)).astype(np.int64)
        total += np.clip(steps, -most, most).sum()


@dataclass(frozen=True)
class Row(Data):
    """Each record adds its view, a vector that is clipped to norm ``limit``; nothing if it is not finite."""

    view: RowView
    size: int
    limit: float

    def add_to(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        clipped = clip_rows(self._vectors(part), self.limit, norm)
        total += hardened_sum(clipped, self.limit, grid, norm).value

    def float_sum(self, part: Part, norm: Norm) -> Array:
        """Return the sum of the clipped vectors in floating point."""
        return np.asarray(clip_rows(self._vectors(part), self.limit, norm).sum(0), np.float64)

    def _vectors(self, part: Part) -> Array:
        rows = part.unweighted()
        vectors = self.view(rows)
        if vectors.shape != (len(rows), self.size):
            raise PlanViolation(f"A view of {self.size} numbers was declared. Got shape {vectors.shape[1:]}.")
        return vectors


@dataclass(frozen=True)
class Blocks(Data):
    """A sum to which each record adds a vector, made of one part per block, of norm at most ``bound``.

    Guarantee: ``bound`` is at least the norm of the blocks' limits, compared in exact fractions.
    """

    blocks: tuple[Cell | SharedCells | Value | Row, ...]
    bound: float = 1.0
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        conform(self)
        real("bound", self.bound, above=0)
        one_of("norm", self.norm, ("l2", "l1"))
        power = 2 if self.norm == "l2" else 1
        for block in self.blocks:
            whole("size", block.size, at_least=1)
            real("limit", block.limit, above=0)
        if sum(Fraction(block.limit) ** power for block in self.blocks) > Fraction(self.bound) ** power:
            raise PlanViolation(
                f"The limits of the blocks exceed the declared sensitivity {self.bound:g} in the {self.norm} norm."
            )

    @cached_property
    def size(self) -> int:
        """How many numbers are released."""
        return sum(block.size for block in self.blocks)

    def total(self, parts: Iterator[Part], grid: float) -> Integers:
        """Return the sum over all rows in grid steps.

        Guarantee: one row, or one person with all rows where persons count, changes the result by a vector of norm
        at most ``bound / grid``.
        """
        total = np.zeros(self.size, np.int64)
        for part in parts:
            start = 0
            for block in self.blocks:
                block.add_to(total[start : start + block.size], part, grid, self.norm)
                start += block.size
        return total

    def float_total(self, parts: Iterator[Part]) -> Array:
        """Return the sum of a single block of rows in floating point: proved for real numbers only."""
        (block,) = self.blocks
        if not isinstance(block, Row):
            raise PlanViolation("Floating-point sums are for one block of rows.")
        return np.asarray(sum(block.float_sum(part, self.norm) for part in parts), np.float64)
