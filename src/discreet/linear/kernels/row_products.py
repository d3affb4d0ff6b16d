"""A few rows times a matrix, as vector instructions: :func:`multiply_rows`.

The sums of eight rows stay in registers while the columns go by. A sum takes its products in the order of the
columns, each rounded before it is added, whatever the other rows are: a row's result is its own, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import bare
from discreet.linear.kernels.vectors import _I64, LINE_BYTES, MatrixView, cgutils

Matrix = NDArray[Any]

_ROWS = 8


def _multiply_eight(typing: Any, rows: Any, matrix: Any, out: Any) -> Any:
    """``out[k] = rows[:, k] @ matrix`` for eight rows side by side; ``matrix`` and ``out`` are of whole vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, right, results = (
            MatrixView(context, builder, kind, value, _I64(0), LINE_BYTES)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        totals = [cgutils.alloca_once(builder, right.vector) for _ in range(_ROWS)]
        count = cgutils.unpack_tuple(
            builder, context.make_array(signature.args[0])(context, builder, arguments[0]).shape
        )[0]

        def line(of: MatrixView, number: Any) -> Any:
            return builder.add(of.start, builder.mul(of.pitch, number))

        with right.each(_I64(0), right.columns, 1) as column:
            for total in totals:
                builder.store(right.zeros, total)
            with cgutils.for_range(builder, count) as loop:
                factors = right.vector_at(right.beside(line(right, loop.index), column))
                for k, total in enumerate(totals):
                    number = rows.number_at(rows.beside(line(rows, loop.index), _I64(k)))
                    product = builder.fmul(right.spread(number), factors)
                    builder.store(builder.fadd(builder.load(total), product), total)
            for k, total in enumerate(totals):
                results.store(builder.load(total), results.beside(line(results, _I64(k)), column))
        return context.get_dummy_value()

    return types.void(rows, matrix, out), generate


_multiply: Any = intrinsic(_multiply_eight)


def multiply_rows(
    rows: Matrix, matrix: Matrix, plus: NDArray[Any], out: Matrix, first: int, last: int
) -> None:
    """``out = rows @ matrix + plus`` from row ``first`` to ``last``; ``matrix`` is of :func:`pad_columns`.

    Guarantee: every row of the result depends on its own row alone, bit for bit.
    """
    sums, few = np.empty((_ROWS, matrix.shape[1]), out.dtype), np.zeros((rows.shape[1], _ROWS), out.dtype)
    _multiply_all(rows, matrix, plus, sums, few, out, first, last)


def pad_columns(matrix: Matrix) -> Matrix:
    """The matrix with columns of zeros, up to whole vectors."""
    lanes = LINE_BYTES // matrix.itemsize
    wide = np.zeros((len(matrix), -(-matrix.shape[1] // lanes) * lanes), matrix.dtype)
    wide[:, : matrix.shape[1]] = matrix
    return wide


@bare
def _multiply_all(
    rows: Matrix,
    matrix: Matrix,
    plus: NDArray[Any],
    sums: Matrix,
    few: Matrix,
    out: Matrix,
    first: int,
    last: int,
) -> None:
    """Eight rows at a time, which are put side by side in ``few``: so nothing beyond the last ones is read."""
    for start in range(first, last, _ROWS):
        count = min(_ROWS, last - start)
        for k in range(count):
            for j in range(rows.shape[1]):
                few[j, k] = rows[start + k, j]
        _multiply(few, matrix, sums)
        for k in range(count):
            for j in range(out.shape[1]):
                out[start + k, j] = sums[k, j] + plus[j]
