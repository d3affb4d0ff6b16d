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
from scipy.sparse import csr_array

from discreet.errors import PlanViolation
from discreet.linear.gate.basis import Basis, Curve, Pair
from discreet.linear.gate.data import dense, refuse_other_shapes
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.record_store import Chunk, RecordStore
from discreet.linear.kernels.coefficients import compiled
from discreet.linear.kernels.rowwise import in_threads

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]
Whole = NDArray[np.int64]

_FEW = 0.2  # of the numbers of a matrix: if no more are not zero, only they are gone through
_TASK = 2**23  # multiplications that are worth a task


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

    def owned_chunks(self) -> Iterator[tuple[Chunk, Whole | None]]:
        return self._store.owned_chunks()

    def fill_missing(self, values: Array) -> None:
        """Refuse: rows of curves are made of those of the table, whose missing numbers are filled before."""
        raise PlanViolation("Missing numbers are filled before records become rows of curves.")

    def norms(self, coordinates: Any) -> Iterator[tuple[Array, Any]]:
        """Those of the rows in white coordinates, with their weights."""
        return ((block.norms, block.weights) for block in self._white(coordinates))


def gather_rows(rows: Matrix, basis: Basis, matrix: Array, constant: Array) -> Matrix:
    """``basis.expand(rows) @ matrix + constant`` in float32.

    Guarantee: every row of the result depends on its own row alone, bit for bit.
    """
    refuse_other_shapes(matrix=(matrix, (basis.columns.width, np.shape(matrix)[-1])))
    if dense(rows).shape[1] != basis.inputs.width:
        raise PlanViolation(f"The basis is for {basis.inputs.width} columns. The rows have {rows.shape[1]}.")
    out = np.empty((len(rows), matrix.shape[1]), np.float32)
    begin = np.broadcast_to(constant, matrix.shape[1]).astype(np.float32)
    layout, rows = _Layout.of(basis), np.ascontiguousarray(rows, np.float32)
    full = np.ascontiguousarray(matrix, np.float32)
    mostly_zeros = np.count_nonzero(full) < _FEW * full.size
    few = csr_array(full) if mostly_zeros else csr_array((1, 1), dtype=np.float32)
    numbers = few.data, few.indices, few.indptr
    entries = 2 * len(basis.curves) + len(basis.inputs.groups) + 4 * len(basis.pairs)
    tasks = max(1, min(len(rows), len(rows) * entries * matrix.shape[1] // _TASK))
    cuts = [len(rows) * task // tasks for task in range(tasks + 1)]

    def work(task: int) -> None:
        if mostly_zeros:
            _add_few(rows, layout, numbers, begin, out, cuts[task], cuts[task + 1])
        else:
            _add_entries(rows, layout, full, begin, out, cuts[task], cuts[task + 1])

    in_threads(tasks, work)
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


@compiled
def _hat(value: Any, knots: Array, first: int, last: int) -> tuple[int, Any]:
    """Between which knots a value is, from the first on, and its share of the second, as float32."""
    inside = min(max(np.float64(value), knots[first]), knots[last])
    low, high = first, last
    while high - low > 1:
        middle = (low + high) // 2
        if knots[middle] <= inside:
            low = middle
        else:
            high = middle
    return low - first, np.float32((inside - knots[low]) / (knots[low + 1] - knots[low]))


@compiled
def _find_entries(row: Matrix, layout: Any, entries: Whole, values: Matrix) -> int:
    """The numbers of an encoded row that are not zero, and their columns; tells how many there are."""
    columns, flags, starts, knots, places, curves, numerics, first_level = layout
    one, found = np.float32(1), 0
    for k in range(curves):
        left, share = _hat(row[columns[k]], knots, starts[k], starts[k + 1] - 1)
        here = one if flags[k] < 0 else one - row[flags[k]]
        for side in range(2):
            place = places[starts[k] + left + side]
            value = (share if side else one - share) * here
            if place >= 0 and value != 0:
                entries[found], values[found] = place, value
                found += 1
    for j in range(numerics, row.size):
        if row[j] != 0:
            entries[found], values[found] = first_level + j - numerics, row[j]
            found += 1
    cells = starts[curves]
    for k in range(curves, columns.size, 2):
        left, share = _hat(row[columns[k]], knots, starts[k], starts[k + 1] - 1)
        below, portion = _hat(row[columns[k + 1]], knots, starts[k + 1], starts[k + 2] - 1)
        up = starts[k + 2] - starts[k + 1]
        for side in range(4):
            place = places[cells + (left + side // 2) * up + below + side % 2]
            value = (share if side // 2 else one - share) * (portion if side % 2 else one - portion)
            if place >= 0 and value != 0:
                entries[found], values[found] = place, value
                found += 1
        cells += (starts[k + 1] - starts[k]) * up
    return found


@compiled
def _add_entries(
    rows: Matrix, layout: Any, matrix: Matrix, begin: Matrix, out: Matrix, start: int, stop: int
) -> None:
    """What every row begins with, and its numbers that are not zero, times their rows of the matrix."""
    size = 2 * layout.columns.size + rows.shape[1]
    entries, values = np.empty(size, np.int64), np.empty(size, np.float32)
    for i in range(start, stop):
        found = _find_entries(rows[i], layout, entries, values)
        several = found // 4 * 4
        out[i] = begin
        for e in range(0, several, 4):
            a, b, c, d = values[e], values[e + 1], values[e + 2], values[e + 3]
            p, q, r, s = entries[e], entries[e + 1], entries[e + 2], entries[e + 3]
            for m in range(matrix.shape[1]):
                total = out[i, m] + a * matrix[p, m]
                total = total + b * matrix[q, m]
                total = total + c * matrix[r, m]
                out[i, m] = total + d * matrix[s, m]
        for e in range(several, found):
            for m in range(matrix.shape[1]):
                out[i, m] += values[e] * matrix[entries[e], m]


@compiled
def _add_few(
    rows: Matrix, layout: Any, matrix: Any, begin: Matrix, out: Matrix, start: int, stop: int
) -> None:
    """The same for a matrix of which few numbers are not zero: these, their columns, and where each row begins."""
    numbers, places, begins = matrix
    size = 2 * layout.columns.size + rows.shape[1]
    entries, values = np.empty(size, np.int64), np.empty(size, np.float32)
    for i in range(start, stop):
        out[i] = begin
        for e in range(_find_entries(rows[i], layout, entries, values)):
            for m in range(begins[entries[e]], begins[entries[e] + 1]):
                out[i, places[m]] += values[e] * numbers[m]
