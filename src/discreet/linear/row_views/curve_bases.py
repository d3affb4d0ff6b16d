"""Curves as columns: hats between knots, and products of two of them: :class:`Basis`, :func:`gather_rows`.

A numeric column x between two knots a < b is (b - x) / (b - a) of the hat at a and (x - a) / (b - a) of the hat at b;
all other hats are zero. A linear combination of hats is a curve with straight pieces. One hat of each column, the
heaviest, is left out: the constant stands for it.

Guarantee: the hats of a column are between 0 and 1, at most two of them are not zero and they sum to at most 1, so
their norm is at most 1. So do the products of the hats of two columns.

A row has two numbers for each curve, one for each category and four for each pair; all others are zero. So it is
never written out: :func:`gather_rows` finds these numbers and adds up the rows of a matrix that they multiply.

>>> from discreet.linear.gate.declared_columns import Columns
>>> basis = Basis(Columns(1), (Curve(0, np.array([0.0, 0.5, 1.0]), np.array([1, 2])),))
>>> gather_rows(np.array([[0.25]], np.float32), basis, np.eye(2), np.zeros(2)).tolist()
[[0.5, 0.0]]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation, whole
from discreet.linear.gate.checks import dense, refuse_bad_knots, refuse_other_shapes
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.kernels.hat_entries import Layout, gather

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
    def layout(self) -> Layout:
        """The basis as arrays, for compiled code."""
        return _layout_of(self)

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


def gather_rows(rows: Matrix, basis: Basis, matrix: Array, constant: Array) -> Matrix:
    """The rows of the basis, as ``additive.expanded_rows.expand`` writes them, times ``matrix`` plus ``constant``.

    Guarantee: every row of the result depends on its own row alone, bit for bit.
    """
    refuse_other_shapes(matrix=(matrix, (basis.columns.width, np.shape(matrix)[-1])))
    if dense(rows).shape[1] != basis.inputs.width:
        raise PlanViolation(f"The basis is for {basis.inputs.width} columns. The rows have {rows.shape[1]}.")
    out = np.empty((len(rows), matrix.shape[1]), np.float32)
    begin = np.broadcast_to(constant, matrix.shape[1]).astype(np.float32)
    full = np.ascontiguousarray(matrix, np.float32)
    most = 2 * len(basis.curves) + len(basis.inputs.groups) + 4 * len(basis.pairs)
    gather(np.ascontiguousarray(rows, np.float32), basis.layout, full, begin, most, out)
    return out


def _layout_of(basis: Basis) -> Layout:
    """Return a basis as arrays."""
    parts: list[tuple[Curve | Pair, int]] = [
        *zip(basis.curves, basis.starts, strict=False),
        *zip(basis.pairs, basis.starts[len(basis.curves) + len(basis.inputs.groups) :], strict=False),
    ]
    columns: list[int] = []
    flags: list[int] = []
    knots, places = [np.empty(0)], [np.empty(0, np.int64)]
    for part, start in parts:
        sides = [part.knots] if isinstance(part, Curve) else list(part.knots)
        columns += [part.column] if isinstance(part, Curve) else part.columns
        missing = part.missing if isinstance(part, Curve) else None
        flags += [-1 if missing is None else missing] * len(sides)
        knots += sides
        own = np.full(int(np.prod([len(side) for side in sides])), -1, np.int64)
        own[part.kept] = start + np.arange(len(part.kept))
        places.append(own)
    starts = np.cumsum([len(side) for side in knots])
    counted = len(basis.curves), basis.inputs.numerics, basis.starts[len(basis.curves)]
    numbers = np.array(columns, np.int64), np.array(flags, np.int64), starts
    return Layout(*numbers, np.concatenate(knots), np.concatenate(places), *counted)
