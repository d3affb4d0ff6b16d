"""Sums of products of small integers: :func:`add_products`, the second moments of rows on a lattice.

Two rows are rounded at a time and their numbers stand side by side, 16 bits each; one vector instruction multiplies
them with the two of another column and adds both products. Sums move from 32 bits on to 64 before they could wrap:
with numbers of at most m, n rows add at most n m^2. So everything is exact, in whatever order it is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import bare
from discreet.linear.kernels.vectors import cgutils

Array = NDArray[Any]

LANES = 16
"""Columns that are multiplied together: pairs and totals are padded to whole ones."""

_TILE = 8  # columns, whose sums stay in registers
_LARGEST, _FEWEST = 5792, 32  # a number, and how many pairs of rows add less than 2**31 with it: 64 * 5792**2
_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_PAIRS, _SUMS, _WIDE = ir.VectorType(_I16, 2 * LANES), ir.VectorType(_I32, LANES), ir.VectorType(_I64, LANES)


def pairs_for(rows: int, columns: int) -> Array:
    """Room for so many rows, two by two."""
    return np.zeros((-(-rows // 2), -(-columns // LANES) * LANES), np.int32)


def totals_for(columns: int) -> NDArray[np.int64]:
    """Zeros for :func:`add_products` to add up in; their upper triangle is what counts."""
    width = -(-columns // LANES) * LANES
    return np.zeros((width, width), np.int64)


@bare
def add_products(rows: Array, roots: Array, per_unit: float, pairs: Array, totals: Array) -> bool:
    """Add w w' over the rows w, rounded to integers of steps, to the upper triangle of ``totals``.

    ``per_unit`` are the steps in 1. A row with a root other than 1 is multiplied by it, and cut toward zero; no roots
    mean that all are 1. ``pairs`` is :func:`pairs_for` the rows, ``totals`` is :func:`totals_for` them.

    Guarantee: exact, or nothing is added and the answer is False: then the numbers are too large.
    """
    largest = _fill(rows, roots, per_unit, pairs)
    if largest > _LARGEST:
        return False
    count, most = (rows.shape[0] + 1) // 2, _FEWEST * _LARGEST**2 // max(1, largest**2)
    for first in range(0, count, most):
        for j in range(0, totals.shape[1], _TILE):
            for k in range(j // LANES * LANES, totals.shape[1], LANES):
                _add_tile(pairs, first, min(first + most, count), j, k, totals)
    return True


@bare
def _fill(rows: Array, roots: Array, per_unit: float, pairs: Array) -> int:
    """Round the rows, two by two, into ``pairs``; gives the largest magnitude. A last row is beside zeros."""
    largest, one = np.int64(0), 1.0
    for p in range((rows.shape[0] + 1) // 2):
        i, last = 2 * p, 2 * p + 1 == rows.shape[0]
        k = i if last else i + 1
        first = roots[i] if roots.size else one
        second = 0.0 if last else roots[k] if roots.size else one
        if first == one and second == one:
            for j in range(rows.shape[1]):
                a = np.int32(np.rint(np.float64(rows[i, j]) * per_unit))
                b = np.int32(np.rint(np.float64(rows[k, j]) * per_unit))
                largest = max(largest, max(abs(np.int64(a)), abs(np.int64(b))))
                pairs[p, j] = np.int32((b << 16) | (a & 0xFFFF))
            continue
        for j in range(rows.shape[1]):
            a = np.int32(_cut(rows[i, j], first, per_unit))
            b = np.int32(_cut(rows[k, j], second, per_unit))
            largest = max(largest, max(abs(np.int64(a)), abs(np.int64(b))))
            pairs[p, j] = np.int32((b << 16) | (a & 0xFFFF))
    return int(largest)


@bare
def _cut(value: Any, root: float, per_unit: float) -> float:
    if root == 1.0:
        return float(np.rint(np.float64(value) * per_unit))
    return float(np.trunc(np.float64(value) * root * per_unit))


def _add_one_tile(
    typing: Any, pairs: Any, first: Any, last: Any, column: Any, other: Any, totals: Any
) -> Any:
    """``totals[column + r, other + l] += sum of both products`` for _TILE columns r beside LANES columns l."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, pitch = _place(context, builder, signature.args[0], arguments[0], 4)
        own, beside = (builder.add(start, builder.mul(arguments[n], _I64(4))) for n in (3, 4))
        sums = [cgutils.alloca_once(builder, _SUMS) for _ in range(_TILE)]
        for total in sums:
            builder.store(ir.Constant(_SUMS, [0] * LANES), total)
        with cgutils.for_range_slice(builder, arguments[1], arguments[2], _I64(1)) as (pair, _):
            row = builder.mul(pair, pitch)
            factors = _load(builder, builder.add(beside, row), _PAIRS, 4)
            for r, total in enumerate(sums):
                number = _load(builder, builder.add(own, builder.add(row, _I64(4 * r))), _I32, 4)
                products = _pairs_times(builder, builder.bitcast(_spread(builder, number), _PAIRS), factors)
                builder.store(builder.add(builder.load(total), products), total)
        start, pitch = _place(context, builder, signature.args[5], arguments[5], 8)
        for r, total in enumerate(sums):
            line = builder.mul(builder.add(arguments[3], _I64(r)), pitch)
            address = builder.add(builder.add(start, line), builder.mul(arguments[4], _I64(8)))
            wide = builder.sext(builder.load(total), _WIDE)
            pointer = builder.inttoptr(address, _WIDE.as_pointer())
            builder.store(builder.add(_load(builder, address, _WIDE, 8), wide), pointer).align = 8
        return context.get_dummy_value()

    return types.void(pairs, types.intp, types.intp, types.intp, types.intp, totals), generate


_add_tile: Any = intrinsic(_add_one_tile)


def _place(context: Any, builder: Any, kind: Any, value: Any, size: int) -> tuple[Any, Any]:
    """Where a matrix of numbers of so many bytes begins, and the bytes of a row."""
    array = context.make_array(kind)(context, builder, value)
    columns = cgutils.unpack_tuple(builder, array.shape)[1]
    return builder.ptrtoint(array.data, _I64), builder.mul(columns, _I64(size))


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()), typ=kind)
    loaded.align = align
    return loaded


def _spread(builder: Any, number: Any) -> Any:
    """A vector of equal numbers."""
    empty = ir.Constant(_SUMS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(empty, number, _I32(0)), empty, _order([0] * LANES))


def _pairs_times(builder: Any, x: Any, y: Any) -> Any:
    """The two products of each pair, added up: one instruction where there is one."""
    wide = ir.VectorType(_I32, 2 * LANES)
    products = builder.mul(builder.sext(x, wide), builder.sext(y, wide))
    first, second = (
        builder.shuffle_vector(products, products, _order(list(range(half, 2 * LANES, 2)))) for half in (0, 1)
    )
    return builder.add(first, second)


def _order(indices: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_I32, len(indices)), indices)
