"""One pass over the rows of a dense matrix: scores, clipped residuals, and their sum, for records or for people.

Two loops are vector instructions: products with weights, and sums of integers. A step of a linear model is
bound by reading the matrix, so the arithmetic has to be free. The loops that a compiler makes of plain Python need
twice the time: they guard against overlapping arrays, and their scalar remainder of up to 31 columns is slow. Here
the loops are written down as LLVM vectors, for any number of columns, and numba compiles them with the rest.

What a row is given depends on that row alone, bit for bit: every row takes the same path, wherever it stands.
So a record that comes or goes leaves the others' contributions as they are.

A block of rows is read from memory once, in order, and stays in the cache while it is used. Products are rounded to
whole steps, each on its own, by adding a number so large that its last digit is one step, and reading the digits of
the sum (docs/engines.md: E13). Rows of float32 stay in their type: their steps are coarser, and sums move on to 64
bits before they could leave 32.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import (
    LANES,
    RecordArrays,
    Spare,
    Step,
    bare,
    clip_residuals,
    compiled,
    fill_block,
    inlined,
    spare_for,
)
from discreet.linear.kernels.vectors import DOT_ROWS, LINE_BYTES, add_steps, dot_rows

Array = NDArray[Any]

_UNIT = 2.0**-52  # twice the rounding error of float64
_SAFE_NORM, _SHRINK = 2.0**450, 2.0**-600  # beyond the first, squares of numbers times the second are finite
_CARRIED = 256  # rows, after which sums are moved on: 511 of them would not leave 32 bits
_LOST = 2.0**-510  # more than the root of a square too small for float64


@compiled
def norms_of(Z: Array, constant: float, first: int, out: Array) -> None:
    """Upper bounds of the norms of (constant, z), from row ``first`` on; infinity where z is not finite."""
    columns = Z.shape[1]
    relative, absolute = 1.0 + (columns + 16) * _UNIT, math.sqrt(columns + 1.0) * _LOST
    for i in range(out.size):
        row = Z[first + i]
        norm = math.sqrt(_squares(row, 1.0) + constant * constant) * relative + absolute
        if not norm <= _SAFE_NORM:
            scaled = constant * _SHRINK
            norm = math.sqrt(_squares(row, _SHRINK) + scaled * scaled) * relative / _SHRINK
        out[i] = norm if norm == norm else math.inf


@compiled
def _scale(value: Any, scale: float) -> float:
    """A product that _squares must not reorder into a product of squares, which would overflow."""
    return np.float64(value) * scale


def _reordered(function: Any) -> Any:
    return compiled(function, fastmath={"reassoc", "contract"})


@_reordered
def _squares(row: Array, scale: float) -> float:
    total = 0.0
    for j in range(row.size):
        value = _scale(row[j], scale)
        total += value * value
    return total


class DenseWorkspace(NamedTuple):
    """Memory that serves for one block after the other: the block, and what is known of its rows."""

    rows: Array
    targets: Array
    limits: Array
    weights: Array
    residuals: Array
    spare: Spare


def room_for(Z: Array, outputs: int) -> DenseWorkspace:
    """Room for blocks of some kilobytes: they stay in the first-level cache, and memory has little time to rest."""
    rows = np.zeros((_block_rows(Z.shape[1] * Z.itemsize), Z.shape[1]), Z.dtype)
    size = max(LANES, len(rows))
    targets, limits, weights = np.zeros(size, Z.dtype), np.zeros(size, Z.dtype), np.ones(size, Z.dtype)
    residuals = np.zeros((outputs, size), Z.dtype)
    return DenseWorkspace(rows, targets, limits, weights, residuals, spare_for(Z.dtype))


def _block_rows(row_bytes: int) -> int:
    """So many rows fill a fourth of a small cache; of wide ones a few, that wait for each other only once."""
    if row_bytes > 2**10:
        return 32
    size = min(128, 2**13 // max(1, row_bytes))
    return max(DOT_ROWS, size // LANES * LANES)


class StepGrid(NamedTuple):
    """Multiples of ``steps`` grid steps; ``origin`` is a number whose last digit is one of them."""

    origin: Any
    bits: int
    steps: int


def lattice_for(dtype: Any, clip_norm: float, grid: float) -> StepGrid:
    """The finest lattice on which a product of the rows' type can be rounded, or ``grid`` itself.

    A product of at most ``clip_norm`` is then at most a fourth of the numbers that the type can tell apart.
    """
    digits, kind = (22, np.float32) if np.dtype(dtype).itemsize == 4 else (51, np.float64)
    step = max(grid, math.ldexp(1.0, math.frexp(clip_norm)[1] - digits))
    origin = kind(1.5 * 2.0 ** (digits + 1) * step)
    return StepGrid(origin, int(origin.view(np.int32 if digits == 22 else np.int64)), int(step / grid))


def padded_width(columns: int, itemsize: int) -> int:
    """The number of columns, rounded up to whole lines: the weights and the sums are padded with zeros."""
    width = LINE_BYTES // itemsize
    return -(-columns // width) * width


def sums_for(Z: Array, outputs: int) -> Array:
    """Zeros for :func:`add_counts` to add up in: integers of the size of those in ``Z``, padded."""
    return np.zeros((outputs, padded_width(Z.shape[1], Z.itemsize)), f"i{Z.itemsize}")


@bare
def add_counts(
    step: Step,
    data: RecordArrays,
    room: DenseWorkspace,
    first: int,
    last: int,
    lattice: StepGrid,
    grid: float,
    below: Array,
    counts: Array,
) -> None:
    """Add the clipped gradients of the rows ``first <= i < last`` to ``counts``, in whole steps of ``grid``.

    ``counts`` has the shape (outputs, d + 1), its first column for the constant. ``below`` is :func:`sums_for` the
    rows, ``lattice`` is :func:`lattice_for` them.

    Guarantee: every number is rounded to the nearest one of the lattice on its own, exactly, so the sum is one of
    integers that depend on one row each.
    """
    size, added = room.rows.shape[0], 0
    for start in range(first, last, size):
        rows, at = clip_block(step, data, room, start, min(size, last - start))
        for k in range(below.shape[0]):
            add_steps(rows, at, size, room.residuals, k, below, lattice.origin)
        if step.constant > 0.0:
            _add_constants(room.residuals, step.constant / grid, counts)
        added += size
        if added >= _CARRIED or start + size >= last:
            _carry(below, np.int64(added) * lattice.bits, lattice.steps, counts)
            added = 0


@bare
def _carry(below: Array, origins: Any, steps: int, counts: Array) -> None:
    """Move what was added up to ``counts``. It wrapped around, and does so again when the origins are taken off."""
    kind = below.dtype.type
    for k in range(counts.shape[0]):
        for j in range(counts.shape[1] - 1):
            counts[k, j + 1] += np.int64(kind(np.int64(below[k, j]) - origins)) * steps
            below[k, j] = 0


@inlined
def clip_block(
    step: Step, data: RecordArrays, room: DenseWorkspace, start: int, count: int
) -> tuple[Array, int]:
    """Fill ``room.residuals``; gives the rows of the block, and where they begin: a copy if some do not count."""
    rows, at = data.matrix, start
    complete = fill_block(step, data, start, count, room.targets, room.limits, room.weights)
    if not complete or count < room.rows.shape[0]:
        _copy_finite(data.matrix, start, count, room.limits, room.rows)
        rows, at = room.rows, 0
    for k in range(room.residuals.shape[0]):
        for r in range(0, room.rows.shape[0], DOT_ROWS):
            dot_rows(rows, at + r, step.weights, k, step.offsets[k], room.residuals, r)
    clip_residuals(step.loss, room.residuals, room.targets, room.limits, room.weights, room.spare)
    return rows, at


@bare
def _copy_finite(Z: Array, start: int, count: int, limits: Array, out: Array) -> None:
    """Rows that count; zeros for rows that do not, since 0 times NaN would be NaN, and for missing ones."""
    none = out.dtype.type(0)
    for r in range(out.shape[0]):
        counts = r < count and limits[r] > none
        for j in range(out.shape[1]):
            out[r, j] = Z[start + r, j] if counts else none


@bare
def _add_constants(residuals: Array, steps: float, counts: Array) -> None:
    """The constant's part of the gradients, cut to whole steps."""
    for k in range(residuals.shape[0]):
        total = np.int64(0)
        for r in range(residuals.shape[1]):
            total += np.int64(np.float64(residuals[k, r]) * steps)
        counts[k, 0] += total


# Rows that belong to people: the mean gradient of each person, clipped, summed.
#
# Rows of a person follow one another. Their residuals are taken in blocks, as for single rows, with limits that clip
# nothing; the weighted gradients of a person are added up in float64, and their sum is clipped and cut to whole steps
# of the grid, once for each person (docs/engines.md: E17).


@compiled
def add_people(
    step: Step,
    data: RecordArrays,
    people: Array,
    room: DenseWorkspace,
    first: int,
    last: int,
    clip_norm: float,
    grid: float,
    own: Array,
    counts: Array,
) -> None:
    """Add the clipped gradients of the people in rows ``first <= i < last`` to ``counts``, in whole grid steps.

    Both ``counts`` and ``own``, which holds float64 zeros, have the shape (outputs, d + 1), their first column for
    the constant. ``step.clip`` is infinite.

    Guarantee: what is added for a person depends on the person's own rows, bit for bit, and has norm at most
    ``clip_norm / grid``.
    """
    size, current = room.rows.shape[0], people[first]
    for start in range(first, last, size):
        count = min(size, last - start)
        clip_block(step, data, room, start, count)
        for r in range(count):
            if people[start + r] != current:
                _add_person(own, clip_norm, grid, counts)
                current = people[start + r]
            for k in range(own.shape[0]):
                residual = np.float64(room.residuals[k, r])
                if residual != 0.0:  # so that rows that are not finite are not looked at
                    own[k, 0] += residual * step.constant
                    for j in range(data.matrix.shape[1]):
                        own[k, j + 1] += residual * np.float64(data.matrix[start + r, j])
    _add_person(own, clip_norm, grid, counts)


@compiled
def _add_person(own: Array, clip_norm: float, grid: float, counts: Array) -> None:
    """Add what a person's rows gave, clipped and cut toward zero, and make room for the next one."""
    squares = 0.0
    for k in range(own.shape[0]):
        for j in range(own.shape[1]):
            squares += own[k, j] * own[k, j]
    norm = math.sqrt(squares) * (1.0 + (own.size + 16) * _UNIT) + math.sqrt(own.size) * _LOST
    steps = 1.0 / grid if norm <= clip_norm else clip_norm / norm * (1.0 - 4.0 * _UNIT) / grid
    for k in range(own.shape[0]):
        for j in range(own.shape[1]):
            if norm < math.inf:  # not for NaN, either
                counts[k, j] += np.int64(own[k, j] * steps)
            own[k, j] = 0.0
