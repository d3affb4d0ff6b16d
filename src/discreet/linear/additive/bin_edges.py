"""Where columns are counted: even bins, divided further where values like to pile up.

People declare generous bounds, and amounts of money crowd at an end or at zero. So the bins that hold the ends of a
column, or its public zero, are halved again and again toward them. A record is in one bin of each column whatever
their number, so this costs no privacy; but every bin has noise, so there are more than 64 only for many records.

>>> edges = bin_edges(None)
>>> len(edges) - 1, float(edges[1])
(80, 6.103515625e-05)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from discreet.linear.glm.marginals import BINS

Array = NDArray[np.float64]

_HALVINGS, _FINEST = 8, 3
_WELL_SEEN = (
    12.0  # noise of one of the 64 bins, over the records in it if they were spread evenly, is below 1 / this
)
_CLEAR, _SEEN = 3.0, 2.0  # standard deviations of noise above which bins differ, and hold records
_CHANCE_MASS, _CHANCE_SQUARE = 0.054, 0.131  # first and second moment of standard noise beyond that
_MOST = 0.6  # of the records are in bins that stand out, if the resolution is good
_EXPONENTS = 2.0 ** (np.arange(-16, 13) / 4)
_FALSE_ALARMS = 1e-5  # the chance that noise alone is taken for records, at one resolution of one column


def finer(noise: float, count: float) -> int:
    """How often each of 64 bins may be halved so that their noise, which then adds up, stays small."""
    ratio = count / BINS / _WELL_SEEN / noise
    return int(min(max(math.floor(2 * math.log2(max(ratio, 1.0))), 0), _FINEST))


def bin_edges(zero: float | None, halved: int = 0) -> Array:
    """The edges of the bins of a column on [0, 1]; ``zero`` is where the number 0 is, if that is inside."""
    near = 0.5 ** np.arange(1, _HALVINGS + 1) / BINS
    bins = BINS * 2**halved
    marks = [np.arange(bins + 1) / bins, near, 1 - near]
    if zero is not None and 0 < zero < 1:
        marks += [zero - near, zero + near]
    edges = np.unique(np.concatenate(marks))
    return np.asarray(edges[(edges >= 0) & (edges <= 1)])


def coarse(histogram: Array, edges: Array, noise: float, halved: int) -> Array:
    """The same records in 64 even bins; parts of a bin near a landmark that noise explains do not count."""
    home = _homes(edges)
    parts = np.bincount(home, minlength=BINS)
    seen = np.where((parts[home] <= 2**halved) | (histogram > _SEEN * noise), histogram, 0.0)
    return np.bincount(home, weights=seen, minlength=BINS).astype(np.float64)


def settle_histogram(histogram: Array, edges: Array, noise: float, count: float) -> tuple[Array, int]:
    """The numbers of records without what noise explains, none negative, and the resolution. Post-processing.

    Of so many even bins, the most for which those that stand out hold most of the ``count`` records, and more than
    noise alone would have them hold, these count; inside, records lie evenly unless two halves clearly differ. A
    resolution of 1 is none: then all numbers are 0.
    """
    bins = BINS
    while bins > 1:
        starts = np.searchsorted(_homes(edges, bins), np.arange(bins + 1))
        totals = np.add.reduceat(histogram, starts[:-1])
        noises = noise * np.sqrt(np.diff(starts))
        clear = totals > _SEEN * noises
        by_noise = _CHANCE_MASS * noises.sum() + math.sqrt(_CHANCE_SQUARE * float(noises @ noises))
        needed = max(by_noise + _MOST * count, most_by_noise(noises))
        if totals[clear].sum() > needed:
            break
        bins //= 2
    found = np.zeros(len(histogram))
    if bins == 1:
        return found, 1
    for start, stop, total, seen in zip(
        *map(np.ndarray.tolist, (starts[:-1], starts[1:], totals, clear)), strict=True
    ):
        if seen:
            _share_out(histogram, edges, noise, start, stop, total, found)
        elif histogram[start:stop].max() > _CLEAR * noise * math.sqrt(
            2
        ):  # a spike in the noise of its neighbours
            spike = start + int(np.argmax(histogram[start:stop]))
            found[spike] = histogram[spike]
    return found, bins


def most_by_noise(noises: Array) -> float:
    """What bins with nothing but noise of these sizes hold above two sizes each, but for one in 1e5 cases.

    Chernoff's bound of a sum of z s over normal z > 2, for the best of some exponents.
    """
    exponents = _EXPONENTS / float(noises.max())
    scaled = exponents[:, None] * noises
    moments = np.log(ndtr(_SEEN) + np.exp(scaled**2 / 2) * ndtr(scaled - _SEEN)).sum(axis=1)
    return float(((moments - math.log(_FALSE_ALARMS)) / exponents).min())


def _share_out(
    histogram: Array, edges: Array, noise: float, start: int, stop: int, total: float, found: Array
) -> None:
    """Divide ``total`` among bins from ``start`` to ``stop``, half by half."""
    if stop - start == 1:
        found[start] = total
        return
    middle = start + int(np.searchsorted(edges[start + 1 : stop], (edges[start] + edges[stop]) / 2, "right"))
    middle = min(max(middle, start + 1), stop - 1)
    left, right = float(histogram[start:middle].sum()), float(histogram[middle:stop].sum())
    even = (edges[middle] - edges[start]) / (edges[stop] - edges[start])
    if abs(left - even * (left + right)) > _CLEAR * noise * math.sqrt(stop - start) * max(even, 1 - even):
        left = left if left > _SEEN * noise * math.sqrt(middle - start) else 0.0
        right = right if right > _SEEN * noise * math.sqrt(stop - middle) else 0.0
        even = left / (left + right) if left + right > 0 else even
    _share_out(histogram, edges, noise, start, middle, even * total, found)
    _share_out(histogram, edges, noise, middle, stop, (1 - even) * total, found)


def _homes(edges: Array, bins: int = BINS) -> NDArray[np.int64]:
    """For each bin the one of so many even ones that it is part of."""
    return np.minimum(((edges[:-1] + edges[1:]) / 2 * bins).astype(np.int64), bins - 1)


# Where a curve may bend.
#
# Knots lie at quantiles, so that every piece has about as many records. Where many records share a bin, as at
# the zero of an amount, the bin's two ends are knots, so the spike gets a level that its neighbours do not
# share. A bin without neighbours, as of integers and flags, has one knot: its records are at one place, and
# nothing could tell the level of a second knot from that of the first.


_SPIKE = 1.0  # of a bin's share of the records, in pieces


def choose_knots(histogram: Array, edges: Array, pieces: int, limits: tuple[float, float]) -> Array:
    """The knots of a curve of about so many linear pieces, from the lower to the upper limit."""
    lower, upper = limits
    mass = np.where((edges[1:] > lower) & (edges[:-1] < upper), histogram, 0.0)
    if pieces < 2 or mass.sum() <= 0:
        return np.array([lower, upper])
    spikes, extents = mass > _SPIKE * mass.sum() / pieces, _extents(mass, edges)
    ends = np.unique(extents[spikes])
    smooth = np.where(spikes, 0.0, mass)
    free = max(pieces - len(ends) + 1, 2)
    quantiles = _quantiles(smooth, extents, free) if smooth.sum() > 0 else np.empty(0)
    return _apart(np.clip(np.concatenate([[lower, upper], ends, quantiles]), lower, upper), edges)


def _extents(mass: Array, edges: Array) -> Array:
    """From where to where the records of each bin lie: one place if both of its neighbours are empty.

    That is an end of the column, if it is one of the bin, and else the middle.
    """
    held = np.concatenate([[False], mass > 0, [False]])
    lonely = ~(held[:-2] | held[2:])
    middle = (edges[:-1] + edges[1:]) / 2
    middle[0], middle[-1] = edges[0], edges[-1]
    return np.column_stack([np.where(lonely, middle, edges[:-1]), np.where(lonely, middle, edges[1:])])


def _quantiles(mass: Array, extents: Array, pieces: int) -> Array:
    """Inner quantiles; records lie evenly in the extent of their bin, and nowhere else."""
    held, shares = mass > 0, np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
    below = np.column_stack([shares[:-1], shares[1:]])[held]
    wanted = np.arange(1, pieces) / pieces
    return np.asarray(np.interp(wanted, below.ravel(), extents[held].ravel()))


def _apart(knots: Array, edges: Array) -> Array:
    """Distinct knots, none nearer to the next one than the narrowest bin."""
    least = float(np.diff(edges).min())
    kept: list[float] = []
    for knot in np.unique(knots):
        if not kept or knot - kept[-1] >= 0.999 * least:
            kept.append(float(knot))
    return np.array(kept if len(kept) > 1 else [knots.min(), max(knots.max(), knots.min() + least)])
