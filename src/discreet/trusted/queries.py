"""Sums over records as frozen data: each record adds one part per block, cut to the limits of the block.

A block names a *view*, a function of one record that is computed for many records at once. Views are not trusted:
whatever a view returns is cut, in integer steps of the grid, and :func:`evaluate` compares its results for some
secretly chosen records with its results for them alone. The sensitivity follows from the limits.

>>> from discreet.statistics.statistic_views import Bin, Polynomial
>>> query = Blocks((Cells(Bin(0, (0.0, 1.0, 2.0)), (2,), (0.5,)), Cells(Polynomial(0, 0.0, 2.0), (1,), (0.8,))))
>>> query.size, query.bound
(3, 1.0)
>>> Blocks((Cells(Bin(0, (0.0, 1.0)), (1,), (0.6,)), Cells(Polynomial(0, 0.0, 1.0), (1,), (0.9,))))
Traceback (most recent call last):
    ...
discreet.errors.PlanViolation: The blocks of a query allow a record to add a vector of norm 1.08167. Declared: 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from discreet.core.clipping import clip_rows
from discreet.errors import PlanViolation, one_of, real, whole
from discreet.trusted.plain_data import Array, Data, Integers, conform

Norm = Literal["l2", "l1"]

ROUNDING = 1 + 1e-9
"""Declared bounds are multiplied by it where the products of weights and limits are rounded."""

COMPARED = 2
"""Records of each piece that a view is asked about alone."""

_PIECE = 2**19  # numbers that a view makes at once
_ROUNDED = Fraction(1) + Fraction(1, 2**45)  # a product of a weight and a limit over its exact value


class Part(NamedTuple):
    """Some records: features, targets, weights (None if all are 1), and the number of each record's person.

    The weights of a person's records sum to at most 1. Where ``people`` are given, the records of a person are all
    in one part, next to one another.
    """

    x: Any
    y: Any = None
    weights: Array | None = None
    people: Integers | None = None

    def at(self, records: Any) -> Part:
        """Return the records at a slice or where a mask is true."""
        return Part(*(None if values is None else values[records] for values in self))

    def pieces(self, numbers: int) -> Iterator[Part]:
        """Yield pieces for which a view makes ``numbers`` per record; an empty one if there are no records."""
        step = max(1, _PIECE // max(1, numbers))
        return (self.at(slice(first, first + step)) for first in range(0, max(1, self.x.shape[0]), step))


class View(Data):
    """A function of one record, computed for many at once: from features ``x`` and targets ``y``.

    It returns an array with a row for each record, or a tuple of such arrays.
    """

    def __call__(self, x: Any, y: Any) -> Any:
        raise NotImplementedError


def evaluate(view: Callable[[Any, Any], Any], part: Part, *types: Any) -> list[Any]:
    """Return the arrays that a view makes of some records, at most one for each of ``types``.

    Guarantee: the arrays have these types and a row for each record. For :data:`COMPARED` records, chosen by the
    operating system's randomness, the view was computed from that record alone and gave the same numbers, or this
    raises. A view that mixes a share p of the records stays unseen with chance (1 - p)^COMPARED in each piece.
    """
    found = _arrays(view(part.x, part.y), part.x.shape[0], types)
    chosen = np.frombuffer(os.urandom(8 * COMPARED), np.uint64) % max(1, part.x.shape[0])
    for record in chosen.tolist() if part.x.shape[0] else ():
        one = part.at(slice(record, record + 1))
        for alone, among in zip(_arrays(view(one.x, one.y), 1, types), found, strict=True):
            if not np.array_equal(alone, among[record : record + 1], equal_nan=True):
                raise PlanViolation("A view of the query does not treat each record by itself.")
    return found


def _arrays(result: Any, records: int, types: tuple[Any, ...]) -> list[Any]:
    arrays = list(result) if type(result) is tuple else [result]
    fits = 0 < len(arrays) <= len(types)
    for array, kind in zip(arrays, types, strict=False):
        fits = fits and type(array) is np.ndarray and array.dtype == kind and array.shape[:1] == (records,)
    if not fits:
        raise PlanViolation("A view of the query gives other arrays than are added up.")
    return arrays


class Block(Data):
    """A part of what each record adds."""

    size: Any

    def power_sum(self, power: int) -> Fraction:
        """Return a bound on the sum of the powers of the lengths that a record adds; 2 for l2, 1 for l1."""
        raise NotImplementedError

    def add(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        """Add some records in grid steps.

        Guarantee: a record adds a vector within :meth:`power_sum`; the limits of a record are times its weight.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Cells(Block):
    """Each record adds numbers to cells, in one or several groups of ``sizes`` cells each.

    The view gives the cells, in shape (records, groups, some), and the number for each of them in units of ``unit``;
    without numbers a record adds the limit of each group to one cell. What a record adds to a group has absolute
    values that sum to at most its limit. Cells out of range get nothing, and NaN counts as 0.
    """

    view: View
    sizes: tuple[int, ...]
    limits: tuple[float, ...]
    unit: float = 1.0

    def __post_init__(self) -> None:
        conform(self)
        for size, limit in zip(self.sizes, self.limits, strict=True):
            whole("size", size, at_least=1)
            real("limit", limit, above=0)
        checked_bound("unit", self.unit)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def power_sum(self, power: int) -> Fraction:
        # A weight times a power of two is exact, unlike a weight times another limit.
        exact = [Fraction(limit) * (1 if math.frexp(limit)[0] == 0.5 else _ROUNDED) for limit in self.limits]
        return sum((limit**power for limit in exact), Fraction(0))

    def add(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        groups = np.split(total, np.cumsum(self.sizes)[:-1])
        per_unit = self.unit / grid
        per_unit = float(np.floor(per_unit)) if per_unit >= 1 else per_unit  # shares are of whole steps
        for piece in part.pieces(len(self.sizes)):
            cells, *amounts = evaluate(self.view, piece, np.int64, np.float64)
            if any(amount.shape != cells.shape for amount in amounts):
                raise PlanViolation("A view of the query gives other numbers than cells.")
            each = math.prod(cells.shape[1:]) // len(groups)
            cells, *amounts = (array.reshape(len(array), len(groups), each) for array in (cells, *amounts))
            for place, (own, limit) in enumerate(zip(groups, self.limits, strict=True)):
                left: Any = limit / grid if piece.weights is None else piece.weights * (limit / grid)
                for entry in range(each):
                    steps = np.asarray(left).astype(np.int64)
                    if amounts:
                        wanted = amounts[0][:, place, entry]
                        wanted = wanted if piece.weights is None else wanted * piece.weights
                        steps = np.clip(np.nan_to_num(wanted * per_unit), -left, left).astype(np.int64)
                    left = left - np.abs(steps)
                    _add_to_cells(own, cells[:, place, entry], steps)


def _add_to_cells(counts: Integers, cells: Integers, steps: Any) -> None:
    """Add its steps to the cell of each record, or nothing if that is out of range."""
    inside = (cells >= 0) & (cells < len(counts))
    if np.ndim(steps):
        np.add.at(counts, cells[inside], steps[inside])
    else:
        counts += steps * np.bincount(cells[inside], minlength=len(counts))


@dataclass(frozen=True, eq=False)
class Rows(Block):
    """Each record adds the vector of its view, clipped to norm ``limit``; nothing if it is not finite."""

    view: View
    size: int
    limit: float

    def __post_init__(self) -> None:
        conform(self)
        whole("size", self.size, at_least=1)
        real("limit", self.limit, above=0)

    def power_sum(self, power: int) -> Fraction:
        return Fraction(self.limit) ** power

    def add(self, total: Integers, part: Part, grid: float, norm: Norm) -> None:
        for piece in part.pieces(self.size):
            rows = self._clipped(piece, norm)
            rows = rows if piece.weights is None else rows * piece.weights[:, None]
            total += (rows / grid).astype(np.int64).sum(axis=0)

    def float_sum(self, part: Part, norm: Norm) -> Array:
        """Return the sum of the clipped vectors in floating point."""
        return np.asarray(self._clipped(part, norm).sum(0), np.float64)

    def _clipped(self, part: Part, norm: Norm) -> Array:
        (rows,) = evaluate(self.view, part, np.float64)
        if rows.shape != (part.x.shape[0], self.size):
            raise PlanViolation(f"A view of {self.size} numbers was declared. Got shape {rows.shape[1:]}.")
        return np.asarray(clip_rows(rows, self.limit, norm))


@dataclass(frozen=True, eq=False)
class Blocks(Data):
    """A sum to which each record adds a vector of norm at most ``bound``, one part per block.

    ``of`` names rows that follow from the records, such as scores; None for the records themselves. With
    ``everybody``, records whose target is not accepted count too.

    Guarantee: ``bound`` is at least the norm of what the blocks allow, compared in exact fractions.
    """

    blocks: tuple[Block, ...]
    bound: float = 1.0
    norm: Norm = "l2"
    everybody: bool = False
    of: Data | None = None

    def __post_init__(self) -> None:
        conform(self)
        one_of("norm", self.norm, ("l2", "l1"))
        checked_bound("bound", self.bound)
        for block in self.blocks:
            whole("size", block.size, at_least=0)
        self._check(Fraction(1))

    def _check(self, rounded: Fraction) -> None:
        """Raise if the blocks allow more than the bound, where norms are rounded up by a factor."""
        power = 2 if self.norm == "l2" else 1
        allowed = sum((block.power_sum(power) for block in self.blocks), Fraction(0)) * rounded**power
        if allowed > Fraction(self.bound) ** power:
            raise PlanViolation(
                "The blocks of a query allow a record to add a vector of norm "
                f"{float(allowed) ** (1 / power):g}. Declared: {self.bound:g}."
            )

    @cached_property
    def size(self) -> int:
        """The number of values that are released."""
        return sum(block.size for block in self.blocks)

    def total(self, store: Any, grid: float) -> Integers:
        """Return the sum in grid steps.

        Guarantee: one record, or one person with all records, changes it by a norm of at most ``bound / grid``.
        """
        total = np.zeros(self.size, np.int64)
        for block in self.blocks:
            if getattr(block, "columns", store.row_columns) != store.row_columns:
                raise PlanViolation("A block of the query is for other columns than the records have.")
        for part in self._parts(store):
            if part.weights is not None and any(type(block) is Rows for block in self.blocks):
                self._check(_ROUNDED)
            start = 0
            for block in self.blocks:
                block.add(total[start : start + block.size], part, grid, self.norm)
                start += block.size
        return total

    def float_total(self, store: Any) -> Array:
        """Return the sum of a single block of rows in floating point: proved for real numbers only."""
        (block,) = self.blocks
        if not isinstance(block, Rows):
            raise PlanViolation("Floating-point sums are for one block of rows.")
        return np.asarray(sum(block.float_sum(part, self.norm) for part in self._parts(store)), np.float64)

    def _parts(self, store: Any) -> Iterable[Part]:
        return store.everybody() if self.everybody else store.parts(self.of)  # type: ignore[no-any-return]


def checked_bound(name: str, value: float) -> float:
    """Return a sensitivity of which 64-bit floats and integers hold all multiples that are needed."""
    return real(name, value, at_least=1e-100, at_most=1e100)
