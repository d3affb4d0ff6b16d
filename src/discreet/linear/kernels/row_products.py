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
from discreet.linear.kernels.vectors import _I64, VECTOR_BYTES, Numbers, cgutils

Matrix = NDArray[Any]

_ROWS = 8


def _multiply_eight(typing: Any, rows: Any, row: Any, matrix: Any, out: Any) -> Any:
    """``out[k] = rows[row + k] @ matrix`` for eight rows; ``matrix`` and ``out`` are padded to whole vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        source = Numbers(context, builder, kinds[0], arguments[0], arguments[1], VECTOR_BYTES)
        right = Numbers(context, builder, kinds[2], arguments[2], _I64(0), VECTOR_BYTES)
        results = Numbers(context, builder, kinds[3], arguments[3], _I64(0), VECTOR_BYTES)
        totals = [cgutils.alloca_once(builder, right.vector) for _ in range(_ROWS)]

        def line(of: Numbers, number: Any) -> Any:
            return builder.add(of.start, builder.mul(of.pitch, number))

        with right.each(_I64(0), right.columns, 1) as column:
            for total in totals:
                builder.store(right.zeros, total)
            with cgutils.for_range(builder, source.columns) as loop:
                factors = right.vector_at(right.beside(line(right, loop.index), column))
                for k, total in enumerate(totals):
                    number = source.number_at(source.beside(line(source, _I64(k)), loop.index))
                    product = builder.fmul(right.spread(number), factors)
                    builder.store(builder.fadd(builder.load(total), product), total)
            for k, total in enumerate(totals):
                results.store(builder.load(total), results.beside(line(results, _I64(k)), column))
        return context.get_dummy_value()

    return types.void(rows, types.intp, matrix, out), generate


_multiply: Any = intrinsic(_multiply_eight)


def multiply_rows(
    rows: Matrix, matrix: Matrix, plus: NDArray[Any], out: Matrix, first: int, last: int
) -> None:
    """``out = rows @ matrix + plus`` from row ``first`` to ``last``; ``matrix`` is of :func:`pad_columns`.

    Guarantee: every row of the result depends on its own row alone, bit for bit.
    """
    sums, few = np.empty((_ROWS, matrix.shape[1]), out.dtype), np.zeros((_ROWS, rows.shape[1]), out.dtype)
    _multiply_all(rows, matrix, plus, sums, few, out, first, last)


def pad_columns(matrix: Matrix) -> Matrix:
    """The matrix with columns of zeros, up to whole vectors."""
    lanes = VECTOR_BYTES // matrix.itemsize
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
    """Eight rows at a time; the last ones are copied to ``few``, so that nothing beyond them is read."""
    for start in range(first, last, _ROWS):
        count = min(_ROWS, last - start)
        if count == _ROWS:
            _multiply(rows, start, matrix, sums)
        else:
            for k in range(count):
                for j in range(rows.shape[1]):
                    few[k, j] = rows[start + k, j]
            _multiply(few, 0, matrix, sums)
        for k in range(count):
            for j in range(out.shape[1]):
                out[start + k, j] = sums[k, j] + plus[j]
