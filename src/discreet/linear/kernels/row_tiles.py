"""Rows of white coordinates as small integers, 64 rows side by side: half the bytes, and exact sums.

A descent goes through the same rows again and again. Their numbers have variance 1 or less, so steps of 1/512 tell
them apart far better than noise lets anybody see, and 16 bits hold 64 standard deviations. In a tile of 64 rows a
vector instruction takes one column of many rows: scores need no sum across a vector, and a sum of gradients takes
one multiplication for two rows.

Guarantee: what a row becomes depends on that row alone. Its gradient is an integer times integers, which are
added up without rounding (docs/engines.md: E21).

>>> tiles, norms = tiles_of(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
>>> tiles.shape, (tiles[0, :, :2] * STEP).tolist(), norms.round(6).tolist()
((1, 2, 64), [[1.0, 3.0], [2.0, 4.0]], [2.236068, 5.0])
>>> tile_scores(tiles, 2, np.array([1.0, 0.5]), plus=1.0).tolist()
[3.0, 6.0]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import bare, compiled
from discreet.linear.kernels.vectors import _I64, LINE_BYTES, MatrixView, cgutils

Array = NDArray[Any]
Tiles = NDArray[np.int16]

STEP = 2.0**-9
"""What a number of a row is a multiple of."""

TILE, LANES = 64, 16
"""Rows of a tile; rows of a vector of scores, and pairs of rows of a vector of sums."""

LARGEST = 2**15 - 1
"""The largest number of steps; rows with larger ones are shortened."""

_NUMBERS = ir.VectorType(ir.IntType(16), LANES)
_PAIRS = ir.VectorType(ir.IntType(16), 2 * LANES)
_SUMS = ir.VectorType(ir.IntType(32), LANES)
_PRODUCTS = ir.VectorType(ir.IntType(32), 2 * LANES)


class _Memory:
    """Vectors at the address of an array, some bytes on."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self.builder, self.shape = builder, cgutils.unpack_tuple(builder, array.shape)
        self.start = builder.ptrtoint(array.data, _I64)

    def pointer(self, offset: Any, kind: Any) -> Any:
        return self.builder.inttoptr(self.builder.add(self.start, offset), kind.as_pointer())

    def load(self, offset: Any, kind: Any) -> Any:
        loaded = self.builder.load(self.pointer(offset, kind), typ=kind)
        loaded.align = 2
        return loaded

    def store(self, value: Any, offset: Any) -> None:
        self.builder.store(value, self.pointer(offset, value.type)).align = 4


def _score(typing: Any, tiles: Any, number: Any, weights: Any, plus: Any, out: Any) -> Any:
    """``out[0] = weights[0] @ tiles[number] + plus``: a row's sum in the order of the columns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        rows = _Memory(context, builder, kinds[0], arguments[0])
        factors, results = (
            MatrixView(context, builder, kinds[n], arguments[n], _I64(0), LINE_BYTES) for n in (2, 4)
        )
        pitch, columns = _I64(2 * TILE), rows.shape[1]
        first = builder.mul(arguments[1], builder.mul(columns, pitch))
        totals = [cgutils.alloca_once(builder, factors.vector) for _ in range(TILE // LANES)]
        for total in totals:
            builder.store(factors.spread(arguments[3]), total)
        with cgutils.for_range(builder, columns) as loop:
            factor = factors.spread(factors.number_at(factors.number(loop.index, 0)))
            place = builder.add(first, builder.mul(loop.index, pitch))
            for part, total in enumerate(totals):
                whole = rows.load(builder.add(place, _I64(2 * LANES * part)), _NUMBERS)
                numbers = builder.sitofp(builder.sext(whole, _SUMS), factors.vector)
                builder.store(factors.multiply_add(numbers, factor, builder.load(total)), total)
        for part, total in enumerate(totals):
            results.store(builder.load(total), results.number(_I64(0), LANES * part))
        return context.get_dummy_value()

    return types.void(tiles, types.intp, weights, types.float32, out), generate


def _add(typing: Any, tiles: Any, number: Any, factors: Any, sums: Any) -> Any:
    """``sums[column] += factors * tiles[number, column]``, added up in pairs of rows; all are integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, residuals, totals = (
            _Memory(context, builder, signature.args[n], arguments[n]) for n in (0, 2, 3)
        )
        pitch, columns = _I64(2 * TILE), rows.shape[1]
        first = builder.mul(arguments[1], builder.mul(columns, pitch))
        halves = [_I64(4 * LANES * part) for part in range(TILE // LANES // 2)]
        own = [residuals.load(half, _PAIRS) for half in halves]
        with cgutils.for_range(builder, columns) as loop:
            place, line = (builder.mul(loop.index, bytes_) for bytes_ in (pitch, _I64(4 * LANES)))
            total = totals.load(line, _SUMS)
            for half, residual in zip(halves, own, strict=True):
                whole = rows.load(builder.add(builder.add(first, place), half), _PAIRS)
                total = builder.add(total, _pairs_times(builder, whole, residual))
            totals.store(total, line)
        return context.get_dummy_value()

    return types.void(tiles, types.intp, factors, sums), generate


def _pairs_times(builder: Any, x: Any, y: Any) -> Any:
    """The products of neighbours, added up two by two: one instruction where there is one."""
    products = builder.mul(builder.sext(x, _PRODUCTS), builder.sext(y, _PRODUCTS))
    first, second = (
        builder.shuffle_vector(products, products, ir.Constant(_SUMS, list(range(half, 2 * LANES, 2))))
        for half in (0, 1)
    )
    return builder.add(first, second)


score_tile: Any = intrinsic(_score)
add_tile: Any = intrinsic(_add)


def tiles_of(rows: NDArray[np.float32]) -> tuple[Tiles, NDArray[np.float64]]:
    """The rows in tiles, and upper bounds of the norms that they have there.

    A row with a number beyond 64 is shortened until it has none; one that is not finite becomes zeros.
    """
    tiles, norms = empty_tiles(len(rows), rows.shape[1]), np.empty(len(rows))
    _fill_tiles(np.ascontiguousarray(rows, np.float32), tiles, norms)
    return tiles, norms


def empty_tiles(rows: int, columns: int) -> Tiles:
    """Room for so many rows, which begins where vectors are read fastest."""
    shape = -(-rows // TILE), columns, TILE
    raw = np.empty(math.prod(shape) + LINE_BYTES // 2, np.int16)
    begin = -raw.ctypes.data % LINE_BYTES // 2
    return raw[begin : begin + math.prod(shape)].reshape(shape)


@compiled
def _fill_tiles(rows: Array, tiles: Array, norms: Array) -> None:
    columns, known = np.empty((rows.shape[1], TILE), np.float32), np.empty((2, TILE), np.float32)
    squares = np.empty(TILE, np.int64)
    for t in range(tiles.shape[0]):
        count = min(TILE, rows.shape[0] - t * TILE)
        stand_up(rows[t * TILE : t * TILE + count], columns)
        fill_tile(columns, rows.shape[1], known, squares, tiles, t)
        put_norms(squares, norms[t * TILE : t * TILE + count])


@compiled
def stand_up(rows: Array, columns: Array) -> None:
    """``columns = rows'``, with zeros for the rows that a tile has beyond."""
    for r in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            columns[j, r] = rows[r, j]
    if rows.shape[0] < TILE:
        columns[:, rows.shape[0] :] = 0.0


@compiled
def fill_tile(columns: Array, width: int, known: Array, squares: Array, tiles: Array, t: int) -> None:
    """Round the first ``width`` columns of 64 rows into ``tiles[t]``; ``squares`` become those of the rows' norms."""
    none, most, per_unit = np.float32(0), np.float32(LARGEST - 1), np.float32(1 / STEP)
    largest, doubtful = known[0], known[1]
    for r in range(TILE):
        largest[r], doubtful[r], squares[r] = none, none, 0
    for j in range(width):
        for r in range(TILE):
            size = abs(columns[j, r])
            largest[r] = size if size > largest[r] else largest[r]
            doubtful[r] += columns[j, r] * none  # 0, or NaN
    for r in range(TILE):
        if doubtful[r] != none:
            columns[:, r] = none
            largest[r] = none
        largest[r] = per_unit if largest[r] * per_unit <= most else most / largest[r]
    for j in range(width):
        for r in range(TILE):
            steps = np.int32(np.rint(columns[j, r] * largest[r]))
            squares[r] += np.int64(steps * steps)
            tiles[t, j, r] = np.int16(steps)


@compiled
def put_norms(squares: Array, out: Array) -> None:
    """Norms that are never below the exact ones."""
    for r in range(out.size):
        out[r] = math.sqrt(np.float64(squares[r])) * (1.0 + 2.0**-50) * STEP


def tile_scores(tiles: Tiles, rows: int, weights: NDArray[Any], plus: float) -> NDArray[np.float32]:
    """``z @ weights + plus`` of each row z, in float32."""
    out = np.empty((len(tiles), 1, TILE), np.float32)
    _score_all(tiles, steps_of(weights), np.float32(plus), out)
    return out.reshape(-1)[:rows]


def steps_of(weights: NDArray[Any]) -> NDArray[np.float32]:
    """Weights of rows in whole steps: one line of float32."""
    with np.errstate(all="ignore"):
        return (np.asarray(weights, np.float64) * STEP).astype(np.float32)[None]


@bare
def _score_all(tiles: Array, weights: Array, plus: Any, out: Array) -> None:
    for t in range(tiles.shape[0]):
        score_tile(tiles, t, weights, plus, out[t])
