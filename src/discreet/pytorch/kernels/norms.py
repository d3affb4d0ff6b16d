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
import torch.nn.functional as functional
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from discreet.pytorch.kernels.tiles import LANES, add_tile

_WORTH_A_THREAD = 1 << 20
LEAST_SQUARES = 2.0**-80  # a float32 sum of squares below it may have lost some of them
LEAST_TRACE = 2.0**-60  # the same for the sum of many such sums
PIECE = (
    512  # numbers of an inner product that are added up in float32: a sum goes through 68 additions at most
)
STRIP = 32  # rows of a Gram matrix that exist at once
CHUNK = 1 << 21  # numbers: the largest scratch array of per-example gradients that is not kept
# Squared: an input or output gradient longer than this counts as zero. With weights as large as clipping makes
# them, its product with the other factor could fall among numbers that have lost their digits.
REACH = 2.0**128  # of float32


def on_host(tensor: Tensor) -> bool:
    """Return whether a tensor is in the memory of this process, where nobody has to be waited for."""
    return tensor.device.type == "cpu"


def squared_norms(rows: Tensor) -> Tensor:
    """Of float32 rows on the CPU, in float64. The twin is :func:`squared_norms_by_torch`."""
    values = rows.numpy()
    out = np.empty(len(values))
    in_threads(lambda part: _squares(values[part], out[part]), len(values), values.size)
    return torch.from_numpy(out)


def gram_norms(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms of ``g[i].T @ a[i]``, of ``a[i]`` and of ``g[i]``, in float32 on the CPU, for a few positions.

    The sum over pairs of positions of the products of their inner products; in float64 nothing is lost of them, and
    what cancels leaves 1e-15 of its parts.
    """
    out = np.empty((3, len(a)))
    left, right = a.numpy(), g.numpy()
    work = a.shape[1] * (left.size + right.size)
    in_threads(lambda part: _grams(left[part], right[part], out[:, part]), len(left), work)
    total, of_input, of_grad = torch.from_numpy(out)
    return total, of_input, of_grad


def ghost_norms(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Squared norms of ``g[i].T @ a[i]``, what they were if positions were unrelated, and those of a[i] and g[i].

    In float32 on the CPU. Gram matrices are symmetric, so half of each is enough, and neither is ever held; the last
    two are on their diagonals. The twin is :func:`ghost_norms_by_torch`, which is quicker where rows are not one
    after the other in memory.
    """
    out = np.empty((4, len(a)))
    left, right = _fours(a), _fours(g)
    work = a.shape[1] * (left.size + right.size)
    in_threads(lambda part: _ghosts(left[part], right[part], out[:, part]), len(left), work)
    total, unrelated, of_input, of_grad = torch.from_numpy(out)
    return total, unrelated, of_input, of_grad


def _fours(values: Tensor) -> NDArray[Any]:
    """With positions that are multiples of four, filled up with zeros."""
    more = -values.shape[1] % 4
    found: NDArray[Any] = (functional.pad(values, (0, 0, 0, more)) if more else values.contiguous()).numpy()
    return found


def in_threads(work: Callable[[slice], None], rows: int, numbers: int) -> None:
    """``work`` on all rows, in parts if there are many ``numbers``."""
    threads = min(torch.get_num_threads(), numbers // _WORTH_A_THREAD)
    if threads <= 1:
        work(slice(0, rows))
        return
    cuts = [rows * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, map(slice, cuts[:-1], cuts[1:])))


def squared_norms_by_torch(rows: Tensor) -> Tensor:
    """Return squared norms for any type and device, without synchronisation.

    In float32 ``vector_norm`` adds up one after the other and loses 1e-4 of a long row, always downwards.
    """
    if rows.dtype == torch.float64:
        return rows.square().sum(1)
    total: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
    return total


def ghost_norms_by_torch(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The first two of :func:`ghost_norms` for any type and device, with sums in any order."""
    total = a.new_empty(len(a), dtype=torch.float64)
    unrelated = torch.empty_like(total)
    half = a.shape[1] // 2
    for part in chunks(len(a), a.shape[1] ** 2):
        x, y = (a[part, :half], g[part, :half]), (a[part, half:], g[part, half:])
        own, other, both = (
            torch.bmm(u[0], v[0].mT).mul_(torch.bmm(u[1], v[1].mT)) for u, v in ((x, x), (y, y), (x, y))
        )
        found = [products.sum((1, 2), dtype=torch.float64) for products in (own, other, both)]
        total[part] = found[0] + found[1] + 2 * found[2]
        unrelated[part] = own.diagonal(dim1=1, dim2=2).sum(1) + other.diagonal(dim1=1, dim2=2).sum(1)
    return total, unrelated


def chunks(examples: int, numbers_each: int) -> list[slice]:
    """Parts of the examples whose gradients fit into a scratch array."""
    size = max(1, CHUNK // max(1, numbers_each))
    return [slice(start, min(start + size, examples)) for start in range(0, examples, size)]


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
def squares_of_row(row: NDArray[Any]) -> float:
    """The sum of the squares of float32 numbers."""
    total = 0.0
    for start in range(0, len(row), 256):
        piece = row[start : start + 256]
        wide = np.float64(_short_sum(piece))
        total += wide if LEAST_SQUARES <= wide < np.inf else _long_sum(piece)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def squares_of_rows(rows: NDArray[Any]) -> float:
    """Return the squared norms of several rows together."""
    total = 0.0
    for row in rows:
        total += squares_of_row(row)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _squares(rows: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(rows.shape[0]):
        out[i] = squares_of_row(rows[i])


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


@njit(cache=True, nogil=True, error_model="numpy")
def add_inner_products(rows: NDArray[Any], first: int, last: int, out: NDArray[Any]) -> None:
    """Add the inner products of rows ``first`` to ``last`` with themselves and all before them to ``out``.

    The columns come in pieces: the sums of a piece are float32, those of all pieces float64, and a piece of all rows
    stays in the cache while it is needed.
    """
    columns, width, next_out = rows.shape[1], rows.shape[1] * 4, out.shape[1] * 8
    whole = columns - columns % LANES
    for start in range(0, whole, PIECE):
        vectors, here = min(PIECE, whole - start) // LANES, rows.ctypes.data + 4 * start
        for t in range(first, last, 4):
            to = out.ctypes.data + (t - first) * next_out
            for s in range(0, t + 1, 4):
                add_tile(here + t * width, width, here + s * width, width, vectors, to + 8 * s, next_out)
    for j in range(whole, columns):
        for t in range(first, last):
            for s in range(t + 1):
                out[t - first, s] += np.float64(rows[t, j]) * np.float64(rows[s, j])


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _ghosts(a: NDArray[Any], g: NDArray[Any], out: NDArray[Any]) -> None:
    positions = a.shape[1]
    strip = min(STRIP, positions)
    left, right = np.empty((strip, positions)), np.empty((strip, positions))
    for i in range(a.shape[0]):
        apart, pairs = 0.0, 0.0  # the sums on the diagonal and below it
        of_input, of_grad = 0.0, 0.0
        for first in range(0, positions, strip):
            last = min(first + strip, positions)
            left[:], right[:] = 0.0, 0.0
            add_inner_products(a[i], first, last, left)
            add_inner_products(g[i], first, last, right)
            for t in range(first, last):
                for s in range(t):
                    pairs += left[t - first, s] * right[t - first, s]
                apart += left[t - first, t] * right[t - first, t]
                of_input += left[t - first, t]
                of_grad += right[t - first, t]
        out[0, i], out[1, i] = apart + 2 * pairs, apart
        out[2, i] = of_input if of_input >= LEAST_TRACE else squares_of_rows(a[i])
        out[3, i] = of_grad if of_grad >= LEAST_TRACE else squares_of_rows(g[i])
