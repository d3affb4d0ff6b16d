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

from discreet.linear.glm.marginals import BINS

Array = NDArray[np.float64]

_HALVINGS, _FINEST = 8, 3
_WELL_SEEN = (
    12.0  # noise of one of the 64 bins, over the records in it if they were spread evenly, is below 1 / this
)
_CLEAR, _SEEN = 3.0, 2.0  # standard deviations of noise above which bins differ, and hold records


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


def settled(histogram: Array, edges: Array, noise: float) -> Array:
    """The numbers of records without what noise explains: none is negative. Post-processing.

    Of the 64 bins those count that stand out; inside, records lie evenly unless two halves clearly differ.
    """
    found = np.zeros(len(histogram))
    home = _homes(edges)
    for place in range(BINS):
        start, stop = np.searchsorted(home, [place, place + 1])
        total = float(histogram[start:stop].sum())
        if total > _SEEN * noise * math.sqrt(stop - start):
            _share_out(histogram, edges, noise, int(start), int(stop), total, found)
        elif histogram[start:stop].max() > _CLEAR * noise * math.sqrt(
            2
        ):  # a spike in the noise of its neighbours
            spike = int(start + np.argmax(histogram[start:stop]))
            found[spike] = histogram[spike]
    return found


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


def _homes(edges: Array) -> NDArray[np.int64]:
    """For each bin the one of the 64 that it is part of."""
    return np.minimum(((edges[:-1] + edges[1:]) / 2 * BINS).astype(np.int64), BINS - 1)
