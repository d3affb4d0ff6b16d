"""Rows of curves, made when they are gone through: :class:`CurveStore`.

A row has two numbers for each curve, one for each category and four for each pair; all others are zero. So it is
never written out: :func:`gather_rows` finds these numbers and adds up the rows of a matrix that they stand before;
only the table's own columns are kept between passes.

>>> from discreet.linear.gate.declared_columns import Columns
>>> basis = Basis(Columns(1), (Curve(0, np.array([0.0, 0.5, 1.0]), np.array([1, 2])),))
>>> gather_rows(np.array([[0.25]], np.float32), basis, np.eye(2), np.zeros(2)).tolist()
[[0.5, 0.0]]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation
from discreet.linear.gate.basis import Basis, Curve, Pair
from discreet.linear.gate.data import dense, refuse_other_shapes
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.record_store import Chunk, RecordStore
from discreet.linear.kernels.hat_entries import gather

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]
Whole = NDArray[np.int64]


class CurveStore(RecordStore):
    """Records as rows of a basis. What a chunk holds are the rows before they are curves."""

    part = sys.maxsize  # whole chunks: nothing else is made when rows are gathered

    def __init__(self, store: RecordStore, basis: Basis) -> None:
        self._store, self.loss, self.columns = store, store.loss, basis.columns
        self.shelf, self.sparse = store.shelf, False
        self._remembered = {}

    def __len__(self) -> int:
        return len(self._store)

    def everybody(self) -> Iterator[Chunk]:
        return self._store.everybody()

    @property
    def row_columns(self) -> Columns:
        """The kinds of the columns of chunks."""
        return self._store.row_columns

    def chunks(self) -> Iterator[Chunk]:
        return self._store.chunks()

    def fill_missing(self, values: Array) -> None:
        """Refuse: rows of curves are made of those of the table, whose missing numbers are filled before."""
        raise PlanViolation("Missing numbers are filled before records become rows of curves.")

    def norms(self, coordinates: Any) -> Iterator[tuple[Array, Any]]:
        """Those of the rows in white coordinates, with their weights."""
        return ((block.norms, block.weights) for block in self._white(coordinates))


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
    gather(np.ascontiguousarray(rows, np.float32), _Layout.of(basis), full, begin, most, out)
    return out


class _Layout(NamedTuple):
    """A basis as arrays: for each curve and each side of a pair its column, the flag of its missing values (-1: none)
    and its knots from ``starts`` on; ``places`` are the encoded columns of the hats of curves and of the cells of
    pairs, -1 if they have none."""

    columns: Whole
    flags: Whole
    starts: Whole
    knots: Array
    places: Whole
    curves: int
    numerics: int
    first_level: int

    @classmethod
    def of(cls, basis: Basis) -> _Layout:
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
        return cls(*numbers, np.concatenate(knots), np.concatenate(places), *counted)
