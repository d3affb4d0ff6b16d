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


def squared_norms(rows: Tensor) -> Tensor:
    """Of float32 rows on the CPU, in float64. The twin is :func:`squared_norms_by_torch`."""
    values = rows.numpy()
    out = np.empty(len(values))
    _in_threads(lambda part: _squares(values[part], out[part]), len(values), values.size)
    return torch.from_numpy(out)


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
def _squares(rows: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(rows.shape[0]):
        total = 0.0
        for start in range(0, rows.shape[1], 256):
            short = np.float32(0)
            for j in range(start, min(start + 256, rows.shape[1])):
                short += rows[i, j] * rows[i, j]
            wide = np.float64(short)
            if not LEAST_SQUARES <= wide < np.inf:
                wide = np.float64(0)
                for j in range(start, min(start + 256, rows.shape[1])):
                    wide += np.float64(rows[i, j]) * np.float64(rows[i, j])
            total += wide
        out[i] = total


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
