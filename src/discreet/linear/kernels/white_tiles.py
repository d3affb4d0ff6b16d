"""Rows on their way into white coordinates, and into tiles: :func:`whiten_into_tiles`.

Standardised, rotated and rounded, 64 rows at a time, while they are in the cache. A sum takes its products in the
order of the columns, each rounded before it is added, as :func:`~discreet.linear.kernels.rowwise.times` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import compiled
from discreet.linear.kernels.row_tiles import LANES, TILE, Tiles, empty_tiles, fill_tile, put_norms, stand_up
from discreet.linear.kernels.rowwise import in_threads, standardise_rows
from discreet.linear.kernels.vectors import _I64, LINE_BYTES, MatrixView, cgutils

Array = NDArray[Any]

_TOGETHER, _PARTS = 4, 2  # columns whose sums are in registers, for so many vectors of rows
_TASK = 2**24  # multiplications that are worth a task


def _rotate_tile(typing: Any, rows: Any, matrix: Any, out: Any) -> Any:
    """``out = matrix' @ rows``, whose 64 columns are rows of a table; the matrix has a multiple of 4 columns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, right, results = (
            MatrixView(context, builder, kind, value, _I64(0), LINE_BYTES)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        count = cgutils.unpack_tuple(builder, array.shape)[0]
        totals = [
            [cgutils.alloca_once(builder, source.vector) for _ in range(_PARTS)] for _ in range(_TOGETHER)
        ]

        def place(of: MatrixView, line: Any, column: Any) -> Any:
            return of.beside(builder.add(of.start, builder.mul(of.pitch, line)), column)

        def every(first: Any) -> None:
            with cgutils.for_range_slice(builder, _I64(0), right.columns, _I64(_TOGETHER)) as (column, _):
                for total in (total for line in totals for total in line):
                    builder.store(source.zeros, total)
                with cgutils.for_range(builder, count) as loop:
                    numbers = [
                        source.vector_at(place(source, loop.index, builder.add(first, _I64(LANES * part))))
                        for part in range(_PARTS)
                    ]
                    for k, line in enumerate(totals):
                        number = right.number_at(place(right, loop.index, builder.add(column, _I64(k))))
                        factor = right.spread(number)
                        for vector, total in zip(numbers, line, strict=True):
                            product = builder.fmul(vector, factor)
                            builder.store(builder.fadd(builder.load(total), product), total)
                for k, line in enumerate(totals):
                    for part, total in enumerate(line):
                        at = place(
                            results, builder.add(column, _I64(k)), builder.add(first, _I64(LANES * part))
                        )
                        results.store(builder.load(total), at)

        with cgutils.for_range_slice(builder, _I64(0), _I64(TILE), _I64(LANES * _PARTS)) as (first, _):
            every(first)
        return context.get_dummy_value()

    return types.void(rows, matrix, out), generate


_rotate: Any = intrinsic(_rotate_tile)


def whiten_into_tiles(
    rows: NDArray[np.float32],
    marginals: tuple[Array, Array, Array, Array],
    rotation: NDArray[np.float64],
) -> tuple[Tiles, NDArray[np.float64]]:
    """(1, standardised row) @ rotation of each row, in tiles, and bounds of the norms.

    ``marginals`` are lower, upper, centre and scale of every column, as float32.

    Guarantee: what a row becomes depends on that row alone, bit for bit.
    """
    width = rotation.shape[1]
    matrix = np.zeros((len(rotation) - 1, -(-width // _TOGETHER) * _TOGETHER), np.float32)
    matrix[:, :width] = rotation[1:]
    plus = rotation[0].astype(np.float32)
    tiles, norms = empty_tiles(len(rows), width), np.empty(len(rows))
    tasks = max(1, min(len(tiles), rows.size * width // _TASK))

    def work(task: int) -> None:
        first, last = len(tiles) * task // tasks, len(tiles) * (task + 1) // tasks
        own = slice(first * TILE, last * TILE)
        _fill(rows[own], *marginals, matrix, plus, tiles[first:last], norms[own])

    in_threads(tasks, work)
    return tiles, norms


@compiled
def _fill(
    rows: Array,
    lower: Array,
    upper: Array,
    centre: Array,
    scale: Array,
    matrix: Array,
    plus: Array,
    tiles: Array,
    norms: Array,
) -> None:
    few, upright = np.empty((TILE, rows.shape[1]), np.float32), np.empty((rows.shape[1], TILE), np.float32)
    turned, known = np.empty((matrix.shape[1], TILE), np.float32), np.empty((2, TILE), np.float32)
    squares = np.empty(TILE, np.int64)
    for t in range(tiles.shape[0]):
        part = rows[t * TILE : (t + 1) * TILE]
        standardise_rows(part, lower, upper, centre, scale, few)
        stand_up(few[: part.shape[0]], upright)
        _rotate(upright, matrix, turned)
        for j in range(plus.size):
            for r in range(TILE):
                turned[j, r] += plus[j]
        if part.shape[0] < TILE:
            turned[:, part.shape[0] :] = 0.0
        fill_tile(turned, plus.size, known, squares, tiles, t)
        put_norms(squares, norms[t * TILE : t * TILE + part.shape[0]])
