"""Per-example gradients of a convolution's weight as one product per example, without unfolding the input.

Entry k of the gradient (a channel and a place in the kernel) is the sum over output positions t of the input
at ``rows[k] + steps[t]`` times the output gradient at t, for all output channels at once. Two tables of
offsets stand for every stride, dilation and number of dimensions.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from discreet.pytorch.kernels.norms import LEAST_SQUARES
from discreet.pytorch.kernels.panels import panel_product

_STEPS = 64  # positions whose output gradients stay in the first cache
_wide, _middle, _narrow = panel_product(4, 3), panel_product(2, 6), panel_product(1, 10)


class Geometry:
    """The offsets of one convolution for one input shape, and the padded sizes of its gradient.

    An example may have several ``images``, one after the other.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        channels: int,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        positions: tuple[int, ...],
        images: int = 1,
    ) -> None:
        strides = np.cumprod((1, *shape[:0:-1]))[::-1]  # of the channel, then of each dimension
        within = [
            sum(o * d * s for o, d, s in zip(place, dilation, strides[1:], strict=True))
            for place in product(*map(range, kernel))
        ]
        entries = [c * strides[0] + w for c in range(shape[0]) for w in within]
        steps = [
            sum(o * d * s for o, d, s in zip(place, stride, strides[1:], strict=True))
            for place in product(*map(range, positions))
        ]
        steps = [image * math.prod(shape) + step for image in range(images) for step in steps]
        self.entries, self.channels = len(entries), channels
        self.columns = -(-channels // 8) * 8
        unit = np.lcm.reduce([1, *self._rows_at_once()])
        spare = -len(entries) % unit
        # Spare entries repeat the first one and are left out of everything that follows.
        self.rows = np.array(entries + entries[:1] * spare, np.int64) * 4
        self.steps = np.array(steps, np.int64) * 4

    def _rows_at_once(self) -> list[int]:
        left = self.columns % 32
        return [3] * (self.columns >= 32) + [6] * (left >= 16) + [10] * (left % 16 >= 8)

    def workspace(self, examples: int) -> tuple[int, int, int]:
        return examples, len(self.rows), self.columns


@lru_cache(maxsize=256)
def geometry(*key: Any) -> Geometry:
    return Geometry(*key)


def gradients(x: Tensor, g: Tensor, places: Geometry, out: Tensor | None, threads: int) -> Tensor:
    """Squared norms per example; the gradients themselves go to ``out`` if it is given.

    ``x`` is the padded input, contiguous, ``g`` the output gradient as (examples, channels, positions), the positions
    of all images of an example one after the other.
    """
    examples = len(x)
    squares = torch.zeros(examples, dtype=torch.float64)
    keep = out is not None
    place = torch.empty(places.workspace(threads)) if out is None else out
    arrays = (x.reshape(examples, -1).numpy(), g.contiguous().numpy(), place.numpy(), squares.numpy())
    cuts = [examples * i // threads for i in range(threads + 1)]

    def part(i: int) -> None:
        _part(*arrays, places.rows, places.steps, places.entries, cuts[i], cuts[i + 1], -1 if keep else i)

    if threads == 1:
        part(0)
    else:
        with ThreadPoolExecutor(threads - 1) as pool:
            others = pool.map(part, range(1, threads))
            part(0)
            list(others)
    return squares


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _part(
    x: NDArray[Any],
    g: NDArray[Any],
    out: NDArray[Any],
    squares: NDArray[Any],
    rows: NDArray[Any],
    steps: NDArray[Any],
    entries: int,
    start: int,
    stop: int,
    scratch: int,
) -> None:
    """Some of the examples; all results go to row ``scratch`` of ``out`` if it is not negative."""
    channels, positions, columns = g.shape[1], g.shape[2], out.shape[2]
    across = np.zeros((positions, columns), np.float32)  # the output gradient with channels inside
    for example in range(start, stop):
        for t0 in range(0, positions, 16):
            for c in range(channels):
                for t in range(t0, min(positions, t0 + 16)):
                    across[t, c] = g[example, c, t]
        target = example if scratch < 0 else scratch
        out[target] = np.float32(0)
        here, there = (
            x.ctypes.data + example * x.shape[1] * 4,
            out.ctypes.data + target * rows.size * columns * 4,
        )
        for t0 in range(0, positions, _STEPS):
            count = min(_STEPS, positions - t0)
            _block(here, rows, steps, t0, count, across.ctypes.data, there, columns)
        total = 0.0
        for k in range(entries):
            short = np.float32(0)
            for c in range(columns):
                short += out[target, k, c] * out[target, k, c]
            wide = np.float64(short)
            if not LEAST_SQUARES <= wide < np.inf:
                wide = np.float64(0)
                for c in range(columns):
                    wide += np.float64(out[target, k, c]) * np.float64(out[target, k, c])
            total += wide
        squares[example] = total


@njit(cache=True, nogil=True, error_model="numpy")
def _block(
    x: int, rows: NDArray[Any], steps: NDArray[Any], t0: int, count: int, across: int, out: int, columns: int
) -> None:
    row, step, panel = rows.ctypes.data, steps.ctypes.data + 8 * t0, across + t0 * columns * 4
    width, c = columns * 4, 0
    while columns - c >= 32:
        for k in range(0, rows.size, 3):
            _wide(x, row + 8 * k, step, count, panel + 4 * c, width, out + k * width + 4 * c, width)
        c += 32
    if columns - c >= 16:
        for k in range(0, rows.size, 6):
            _middle(x, row + 8 * k, step, count, panel + 4 * c, width, out + k * width + 4 * c, width)
        c += 16
    if columns - c >= 8:
        for k in range(0, rows.size, 10):
            _narrow(x, row + 8 * k, step, count, panel + 4 * c, width, out + k * width + 4 * c, width)
