"""Mean, variance and limits of a column from its noisy histogram: :func:`moments`. Post-processing, no data.

Bounds are often declared far too wide, so most of the range is empty and its noise must not count. Bins are
merged until those clearly above the noise hold most records; their hull gives mean and variance. Outside of it
only what stands out is added. Records that must be somewhere but stand out nowhere widen the variance.

The limits are where values will be clamped, in training and in prediction: a model whose weights are noisy cannot
afford values that are many standard deviations off.

>>> histogram = np.zeros(64)
>>> histogram[10:14] = 2500.0
>>> column = moments(histogram, noise=5.0, records=10_000.0)
>>> round(64 * column.mean, 6), round(64 * column.variance**0.5, 2), round(64 * column.upper, 2)
(12.0, 1.15, 15.46)
>>> moments(np.zeros(64), noise=5.0, records=10_000.0) is None
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

_CLEAR = 4.5  # standard deviations above which a bin surely holds records
_MOST = 0.7  # share of the records that the clear bins must hold
_CLEAR_RING, _CLEAR_FAR_BIN = 2.5, 3.3  # the same outside of the hull, where fewer tests are made
_LIMIT = 3.0  # standard deviations at which values are clamped
_CONCENTRATED, _TRIMMED, _BEYOND = 0.7, 0.01, 2.0  # see _spike_limits
_UNSEEN_BY_ONE_BIN = 0.7  # doubts allowed for when one bin holds nearly all: the rest may be anywhere


class Moments(NamedTuple):
    """What is known of a column on [0, 1]."""

    mean: float
    variance: float
    lower: float
    upper: float


class Resolved(NamedTuple):
    """A histogram at the finest resolution that can be trusted, and its clear bins."""

    counts: Array
    noise: float
    clear: NDArray[np.intp]


class Outside(NamedTuple):
    """Records that stand out away from the hull."""

    mass: float
    squared_distance: float
    bins: int


def moments(histogram: Array, noise: float, records: float) -> Moments | None:
    """Mean, variance and limits on [0, 1] of a column with this noisy histogram; None if the noise hides the column.

    ``noise`` is the standard deviation of each bin, ``records`` how many records there are.
    """
    resolved = _resolved(histogram, noise, records)
    if resolved is None:
        return None
    counts, noise, clear = resolved
    bins = len(counts)
    middles = (np.arange(bins) + 0.5) / bins
    first, last = max(int(clear[0]) - 1, 0), min(int(clear[-1]) + 2, bins)
    inside = np.maximum(counts[first:last], 0)
    mass = float(inside.sum())
    mean = float(inside @ middles[first:last]) / mass
    variance = float(inside @ (middles[first:last] - mean) ** 2) / mass + 1 / (12 * bins**2)
    far = list(_outside(counts, (middles - mean) ** 2, noise, first, last))
    variance += sum(part.mass * part.squared_distance for part in far) / records
    unseen = 1 - (mass + sum(part.mass for part in far)) / records
    doubt = noise * math.sqrt(last - first + sum(part.bins for part in far)) / records
    unseen = max(unseen - 2.5 * doubt, _UNSEEN_BY_ONE_BIN * doubt if len(clear) == 1 else 0.0)
    near, farthest = max(mean - first / bins, last / bins - mean), max(mean, 1 - mean)
    variance += unseen * near * farthest  # unseen records are between near and far
    lower, upper = _spike_limits(resolved)
    reach = _LIMIT * math.sqrt(variance)
    return Moments(mean, variance, max(0.0, min(mean - reach, lower)), min(1.0, max(mean + reach, upper)))


def _spike_limits(resolved: Resolved) -> tuple[float, float]:
    """Limits for a column with most records in one bin, such as a gain that is nearly always 0.

    Its variance says little of where the others are. They reach as far as the clear bins, without the outermost
    hundredth of the records, and may go twice as far. Other columns have no such limits.
    """
    clear = np.where(resolved.counts > _CLEAR * resolved.noise, resolved.counts, 0.0)
    bins, total = len(clear), clear.sum()
    if clear.max() <= _CONCENTRATED * total:
        return 1.0, 0.0
    first = int(np.argmax(np.cumsum(clear) > _TRIMMED * total))
    last = bins - int(np.argmax(np.cumsum(clear[::-1]) > _TRIMMED * total))
    mean = float(clear @ (np.arange(bins) + 0.5) / total)
    return (mean - _BEYOND * (mean - first)) / bins, (mean + _BEYOND * (last - mean)) / bins


def _resolved(histogram: Array, noise: float, records: float) -> Resolved | None:
    """Halve the number of bins until the clear ones hold most of the records."""
    counts = histogram
    while len(counts) >= 2:
        clear = np.flatnonzero(counts > _CLEAR * noise)
        if len(clear) and counts[clear].sum() > _MOST * records:
            return Resolved(counts, noise, clear)
        counts, noise = counts.reshape(-1, 2).sum(1), noise * math.sqrt(2)
    return None


def _outside(counts: Array, squares: Array, noise: float, first: int, last: int) -> Iterator[Outside]:
    """What stands out on both sides of the hull: rings of doubling width, else single bins."""
    left = ((counts[ring], squares[ring]) for ring in _rings(first))
    right = ((counts[::-1][ring], squares[::-1][ring]) for ring in _rings(len(counts) - last))
    for inside, squared in (*left, *right):
        if inside.sum() > _CLEAR_RING * noise * math.sqrt(len(inside)):
            yield Outside(float(inside.sum()), float(squared.mean()), len(inside))
            continue
        for bin in np.flatnonzero(inside > _CLEAR_FAR_BIN * noise):
            yield Outside(float(inside[bin]), float(squared[bin]), 1)


def _rings(edge: int) -> Iterator[slice]:
    """Slices of width 1, 2, 4, ... from ``edge`` down to 0."""
    width = 1
    while edge > 0:
        yield slice(max(0, edge - width), edge)
        edge, width = edge - width, 2 * width


# ---- the typical size of positive numbers: typical_size ----
#
# A histogram of half octaves, of which the best three neighbours are taken. One record adds 1 to one cell,
# however large its number is.


_LOWEST, _HIGHEST = -28, 28  # half octaves: from 2**-14 to 2**14
_STANDS_OUT = 4.0  # standard deviations: the best of all windows is noise in one release of a thousand


class Typical(NamedTuple):
    """A size near which many numbers lie; ``found`` if their count is clearly above the noise."""

    size: float
    found: bool


def typical_size(numbers: Iterable[tuple[NDArray[Any], NDArray[Any] | None]], stage: Stage) -> Typical:
    """Where most of the numbers lie, from chunks of (numbers, weights or None).

    Guarantee: a record adds at most 1 to one cell, so the sensitivity is 1.
    """
    sums = Sums(stage, _HIGHEST - _LOWEST + 1, clip_norm=1.0)
    for values, weights in numbers:
        half_octaves = np.floor(2 * np.log2(np.maximum(values, 1e-12)))
        sums.add_ones(np.clip(half_octaves, _LOWEST, _HIGHEST).astype(np.int64) - _LOWEST, weights)
    counts = sums.released()
    windows = np.convolve(counts, np.ones(3), "same")
    best = int(np.argmax(windows))
    near = np.arange(max(0, best - 1), min(len(counts), best + 2))
    share = np.maximum(counts[near], 1e-9)
    middle = float(share @ (near + _LOWEST + 0.5) / share.sum())
    return Typical(2.0 ** (middle / 2), bool(windows[best] > _STANDS_OUT * math.sqrt(3) * sums.noise))
