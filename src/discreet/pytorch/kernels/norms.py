"""Squared norms of rows in one pass: short sums in float32, long ones in float64.

The square of a float32 number below 1e-19 or above 1e19 may be too small or too large for float32. A short sum
that could hold such squares is taken again in float64, in which no square of a float32 number is lost: an
example with tiny inputs and huge gradients would otherwise seem to have no norm at all.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

_WORTH_A_THREAD = 1 << 20
LEAST_SQUARES = 2.0**-80  # a float32 sum of squares below it may have lost some of them
# Squared: an input or output gradient longer than this counts as zero. With weights as large as clipping makes
# them, its product with the other factor could fall among numbers that have lost their digits.
REACH = 2.0**128  # of float32


def squared_norms(rows: Tensor) -> Tensor:
    """Of float32 rows on the CPU, in float64. The twin is :func:`squared_norms_by_torch`."""
    values = rows.numpy()
    out = np.empty(len(values))
    _in_threads(lambda part: _squares(values[part], out[part]), len(values), values.size)
    return torch.from_numpy(out)


def add_norms_of_linear(a: Tensor, g: Tensor, columns: tuple[int, int], out: NDArray[Any]) -> None:
    """Add the squared norms of a linear layer's gradients to ``out``, with a row for each example.

    ``columns`` are those of the weight and of the bias, or -1. Inputs and output gradients are contiguous float32
    rows on the CPU.
    """
    left, right = a.numpy(), g.numpy()
    _in_threads(
        lambda part: _of_linear(left[part], right[part], columns, out[part]), len(out), left.size + right.size
    )


def add_weighted_products(a: Tensor, g: Tensor, weights: Tensor, total: Tensor, row: Tensor) -> None:
    """Add ``g[i].T @ a[i]`` times the weight of each example to ``total``, and ``g[i]`` times it to ``row``.

    For matrices so small that a call to PyTorch takes longer than the arithmetic.
    """
    _products(a.numpy(), g.numpy(), weights.numpy(), total.numpy(), row.numpy())


def gram_norms(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms of ``g[i].T @ a[i]``, of ``a[i]`` and of ``g[i]``, in float32 on the CPU, for a few positions.

    The sum over pairs of positions of the products of their inner products; in float64 nothing is lost of them, and
    what cancels leaves 1e-15 of its parts.
    """
    out = np.empty((3, len(a)))
    left, right = a.numpy(), g.numpy()
    work = a.shape[1] * (left.size + right.size)
    _in_threads(lambda part: _grams(left[part], right[part], out[:, part]), len(left), work)
    total, of_input, of_grad = torch.from_numpy(out)
    return total, of_input, of_grad


def _in_threads(work: Callable[[slice], None], rows: int, numbers: int) -> None:
    """``work`` on all rows, in parts if there are many ``numbers``."""
    threads = min(torch.get_num_threads(), numbers // _WORTH_A_THREAD)
    if threads <= 1:
        work(slice(0, rows))
        return
    cuts = [rows * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, map(slice, cuts[:-1], cuts[1:])))


def squared_norms_by_torch(rows: Tensor) -> Tensor:
    """The same for any type and device.

    ``vector_norm`` adds up float32 one after the other and loses 1e-4 of a long row, always downwards. So it
    is used on short pieces only.
    """
    if rows.dtype == torch.float64:
        return rows.square().sum(1)
    whole = rows.shape[1] // 128 * 128
    pieces = rows[:, :whole].reshape(len(rows), whole // 128, 128)
    norms = torch.linalg.vector_norm(pieces, dim=2).double()
    again = ~((norms >= LEAST_SQUARES**0.5) & (norms < torch.inf))
    norms[again] = torch.linalg.vector_norm(pieces[again], dim=1, dtype=torch.float64)
    total: Tensor = norms.square_().sum(1)
    if whole < rows.shape[1]:
        total += rows[:, whole:].double().square_().sum(1)
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _short_sum(piece: NDArray[Any]) -> Any:
    total = np.float32(0)
    for j in range(
        len(piece)
    ):  # from 0: an index that might be negative would keep the loop from being vectorised
        total += piece[j] * piece[j]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _long_sum(piece: NDArray[Any]) -> float:
    total = 0.0
    for j in range(len(piece)):
        total += np.float64(piece[j]) * np.float64(piece[j])
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _squares_of(row: NDArray[Any]) -> float:
    total = 0.0
    for start in range(0, len(row), 256):
        piece = row[start : start + 256]
        wide = np.float64(_short_sum(piece))
        total += wide if LEAST_SQUARES <= wide < np.inf else _long_sum(piece)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _squares(rows: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(rows.shape[0]):
        out[i] = _squares_of(rows[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _of_linear(a: NDArray[Any], g: NDArray[Any], columns: tuple[int, int], out: NDArray[Any]) -> None:
    of_weight, of_bias = columns
    for i in range(g.shape[0]):
        of_grad = _squares_of(g[i])
        if of_bias >= 0:
            out[i, of_bias] += of_grad
        if of_weight >= 0:
            of_input = _squares_of(a[i])
            beyond = of_input > REACH or of_grad > REACH
            out[i, of_weight] += np.inf if beyond else of_input * of_grad


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _grams(a: NDArray[Any], g: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(a.shape[0]):
        total, of_input, of_grad = 0.0, 0.0, 0.0
        for t in range(a.shape[1]):
            for s in range(t + 1):
                left, right = 0.0, 0.0
                for j in range(a.shape[2]):
                    left += np.float64(a[i, t, j]) * np.float64(a[i, s, j])
                for j in range(g.shape[2]):
                    right += np.float64(g[i, t, j]) * np.float64(g[i, s, j])
                total += left * right if s == t else 2 * left * right
                if s == t:
                    of_input += left
                    of_grad += right
        if total < 0.0:  # all of it cancelled; NaN stays
            total = 0.0
        out[0, i], out[1, i], out[2, i] = total, of_input, of_grad


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _products(
    a: NDArray[Any], g: NDArray[Any], weights: NDArray[Any], total: NDArray[Any], row: NDArray[Any]
) -> None:
    for i in range(a.shape[0]):
        for o in range(g.shape[1]):
            weighted = weights[i] * g[i, o]
            if o < row.shape[0]:
                row[o] += weighted
            for j in range(a.shape[1]):
                total[o, j] += weighted * a[i, j]
