"""Curves as columns: hats between knots, and products of two of them: :class:`Basis`.

A numeric column x between two knots a < b is (b - x) / (b - a) of the hat at a and (x - a) / (b - a) of the hat at b;
all other hats are zero. A linear combination of hats is a curve with straight pieces. One hat of each column, the
heaviest, is left out: the constant stands for it.

Guarantee: the hats of a column are between 0 and 1, at most two of them are not zero and they sum to at most 1, so
their norm is at most 1. So do the products of the hats of two columns. Hence the encoded row is as
``Columns(0, groups)`` promises, one group for each curve, pair and category; ``admitted`` enforces it for every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation, whole
from discreet.linear.gate.data import refuse_bad_knots
from discreet.linear.gate.declared_columns import Columns

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Curve:
    """The hats of one column: its place, the knots, which of them have a column, and the flag of missing values."""

    column: int
    knots: Array
    kept: NDArray[np.intp]
    missing: int | None = None


@dataclass(frozen=True, eq=False)
class Pair:
    """The products of the hats of two columns, at knots of their own.

    ``kept`` are the cells that have a column, ``shares`` what share of the records is in each cell, without what
    noise explains.
    """

    columns: tuple[int, int]
    knots: tuple[Array, Array]
    kept: NDArray[np.intp]
    shares: Array


@dataclass(frozen=True, eq=False)
class Basis:
    """How rows of ``inputs`` become rows of ``columns``: curves, then the categories as they are, then pairs."""

    inputs: Columns
    curves: tuple[Curve, ...]
    pairs: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        if self.inputs.text:
            raise PlanViolation("A basis is of numbers and categories, without text.")
        sides = [(curve.column, curve.knots) for curve in self.curves]
        sides += [side for pair in self.pairs for side in zip(pair.columns, pair.knots, strict=True)]
        for column, knots in sides:
            refuse_bad_knots(knots)
            whole("column", column, at_least=0, at_most=self.inputs.numerics - 1)
        for curve in self.curves:
            if curve.missing is not None:
                whole("missing", curve.missing, at_least=0, at_most=self.inputs.width - 1)
        for curve in self.curves:
            _refuse_other_cells(curve.kept, len(curve.knots))
        for pair in self.pairs:
            _refuse_other_cells(pair.kept, len(pair.knots[0]) * len(pair.knots[1]))

    @cached_property
    def columns(self) -> Columns:
        """What is promised of the encoded rows."""
        sizes = [len(curve.kept) for curve in self.curves]
        return Columns(0, (*sizes, *self.inputs.groups, *(len(pair.kept) for pair in self.pairs)))

    @cached_property
    def starts(self) -> list[int]:
        """The first encoded column of each group, and the width."""
        return [0, *np.cumsum(self.columns.groups).tolist()]


def _refuse_other_cells(kept: NDArray[Any], cells: int) -> None:
    if not np.isin(kept, np.arange(cells)).all():
        raise PlanViolation(f"A part of a basis has {cells} cells. It keeps others.")


def between(values: NDArray[Any], knots: Array) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """For each value the knot to the left of it, and its share of the one to the right."""
    inside = np.clip(values.astype(np.float64), knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    return left, ((inside - knots[left]) / (knots[left + 1] - knots[left])).astype(np.float32)
