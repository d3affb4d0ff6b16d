"""Norms of a convolution's weight gradients by Gram matrices of pixels, without unfolding the input.

The squared norm is the sum over pairs of output positions of the inner product of their patches times that of their
output gradients. The patches of two positions meet pixel by pixel, so the inner product of two patches is a sum of
inner products of pixels: one for each place in the kernel, shifted by it. Each pair of pixels is multiplied once, and
not once for each place in the kernel. With a stride only pixels of the same remainder ever meet, so the pixels fall
into *classes*, each an image of its own in which positions lie side by side.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from discreet.pytorch.kernels.norms import add_inner_products, in_threads

MOST_PIXELS = 1024
"""Of a class: larger Gram matrices leave the cache."""

Sizes = tuple[int, ...]


class PixelClasses(NamedTuple):
    """The pixels of each class, and where positions are among them; made by :func:`pixel_classes`."""

    pixels: NDArray[np.int64]
    """A row for each class: where its pixels are in an image, in their order; -1 for spare places."""
    shifts: NDArray[np.int64]
    """A row for each place in the kernel: its class, and how far it moves every position there."""
    positions: NDArray[np.int64]
    """A row for each class: where the output positions are in it without a shift."""
    row: int
    """So many positions always lie side by side."""

    @property
    def patches_of_a_pixel(self) -> int:
        """So many at most: no two places of the kernel meet it at the same position, and all are of its class."""
        return int(np.bincount(self.shifts[:, 0]).max())

    def work(self, channels: int) -> int:
        """Multiplications and additions for one example, up to a factor."""
        classes, pixels = self.pixels.shape
        return int(pixels**2 * channels * classes + self.positions.shape[1] ** 2 * len(self.shifts))


@lru_cache(maxsize=256)
def pixel_classes(
    shape: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes, positions: Sizes
) -> PixelClasses:
    """Of images of this shape, which are padded already."""
    places = list(product(*map(range, kernel)))
    moves = [[o * d for o, d in zip(place, dilation, strict=True)] for place in places]
    remainders = [tuple(m % s for m, s in zip(move, stride, strict=True)) for move in moves]
    classes = list(dict.fromkeys(remainders))
    sides = {
        one: tuple(-(-(n - r) // s) for n, r, s in zip(shape, one, stride, strict=True)) for one in classes
    }
    most = max(map(math.prod, sides.values()))
    pixels = np.full((len(classes), -(-most // 4) * 4), -1, np.int64)
    for number, one in enumerate(classes):
        axes = [r + s * np.arange(n) for r, s, n in zip(one, stride, sides[one], strict=True)]
        pixels[number, : math.prod(sides[one])] = np.ravel_multi_index(
            np.meshgrid(*axes, indexing="ij"), shape
        ).ravel()
    shifts = [
        (
            classes.index(one),
            np.ravel_multi_index([m // s for m, s in zip(move, stride, strict=True)], sides[one]),
        )
        for one, move in zip(remainders, moves, strict=True)
    ]
    grid = np.meshgrid(*map(np.arange, positions), indexing="ij")
    starts = [np.ravel_multi_index(grid, sides[one]).ravel() for one in classes]
    return PixelClasses(pixels, np.array(shifts, np.int64), np.array(starts, np.int64), positions[-1])


def ghost_norms_of_images(x: Tensor, g: Tensor, classes: PixelClasses) -> tuple[Tensor, Tensor]:
    """Squared norms, and what they were if positions were unrelated.

    ``x`` are padded images, ``g`` output gradients, both as (examples, channels, places) in float32 on the CPU. An
    inner product of pixels is summed up as in :func:`~discreet.pytorch.kernels.norms.ghost_norms`, and those of
    patches in float64, so the rounding is bounded in the same way: that of a pair of pixels relative to the product
    of their lengths, and these products add up to no more than that of the lengths of the patches.
    """
    out = np.empty((2, len(x)))
    images, gradients = x.contiguous().numpy(), g.contiguous().numpy()
    pixels, shifts, positions, row = classes

    def part(where: slice) -> None:
        _ghosts(images[where], gradients[where], pixels, shifts, positions, row, out[:, where])

    in_threads(part, len(images), len(images) * classes.work(x.shape[1]))
    total, unrelated = torch.from_numpy(out)
    return total, unrelated


@njit(cache=True, nogil=True, error_model="numpy")
def _rows_of(image: NDArray[Any], places: NDArray[Any], rows: NDArray[Any]) -> None:
    """The channels of the pixels at ``places``, side by side, and zeros where there is none."""
    for c in range(image.shape[0]):
        for p in range(len(places)):
            rows[p, c] = image[c, places[p]] if places[p] >= 0 else np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def _add_shifted(
    gram: NDArray[Any], shift: int, positions: NDArray[Any], row: int, out: NDArray[Any]
) -> None:
    """Add what pairs of positions have in the Gram matrix of a class, below and on the diagonal."""
    for t in range(len(positions)):
        here = gram[shift + positions[t]]
        for start in range(0, t + 1, row):
            first, stop = shift + positions[start], min(row, t + 1 - start)
            from_gram, to = here[first : first + stop], out[t, start : start + stop]
            for j in range(len(to)):
                to[j] += from_gram[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _ghosts(
    x: NDArray[Any],
    g: NDArray[Any],
    pixels: NDArray[Any],
    shifts: NDArray[Any],
    positions: NDArray[Any],
    row: int,
    out: NDArray[Any],
) -> None:
    count, most = positions.shape[1], pixels.shape[1]
    spare = -count % 4
    every = np.concatenate((np.arange(count), np.full(spare, -1)))
    given, met = np.empty((count + spare, g.shape[1]), np.float32), np.empty((most, x.shape[1]), np.float32)
    gram, left = np.empty((most, most)), np.empty((count, count))
    right = np.empty((count + spare, count + spare))
    for i in range(x.shape[0]):
        left[:], right[:] = 0.0, 0.0
        _rows_of(g[i], every, given)
        add_inner_products(given, 0, count + spare, right)
        for one in range(pixels.shape[0]):
            gram[:] = 0.0
            _rows_of(x[i], pixels[one], met)
            add_inner_products(met, 0, most, gram)
            for place in range(shifts.shape[0]):
                if shifts[place, 0] == one:
                    _add_shifted(gram, shifts[place, 1], positions[one], row, left)
        pairs, apart = 0.0, 0.0
        for t in range(count):
            for s in range(t):
                pairs += left[t, s] * right[t, s]
            apart += left[t, t] * right[t, t]
        out[0, i], out[1, i] = apart + 2 * pairs, apart
