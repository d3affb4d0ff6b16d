"""Where a curve may bend: :func:`chosen_knots`, from a histogram without its noise. Post-processing, no data.

Knots lie at quantiles, so that every piece has about as many records. Where many records share a bin, as at the zero
of an amount, the bin's two ends are knots, so the spike gets a level that its neighbours do not share.

>>> histogram = np.full(64, 100.0)
>>> chosen_knots(histogram, np.arange(65) / 64, pieces=4, limits=(0.0, 1.0)).tolist()
[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
>>> histogram[0] = 1e5
>>> chosen_knots(histogram, np.arange(65) / 64, pieces=4, limits=(0.0, 1.0)).round(3).tolist()
[0.0, 0.016, 0.344, 0.672, 1.0]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SPIKE = 1.0  # of a bin's share of the records, in pieces


def chosen_knots(histogram: Array, edges: Array, pieces: int, limits: tuple[float, float]) -> Array:
    """The knots of a curve of about so many linear pieces, from the lower to the upper limit."""
    lower, upper = limits
    mass = np.where((edges[1:] > lower) & (edges[:-1] < upper), histogram, 0.0)
    if pieces < 2 or mass.sum() <= 0:
        return np.array([lower, upper])
    spikes = mass > _SPIKE * mass.sum() / pieces
    ends = np.concatenate([edges[:-1][spikes], edges[1:][spikes]])
    smooth = np.where(spikes, 0.0, mass)
    free = max(pieces - len(np.unique(ends)) + 1, 2)
    quantiles = _quantiles(smooth, edges, free) if smooth.sum() > 0 else np.empty(0)
    return _apart(np.clip(np.concatenate([[lower, upper], ends, quantiles]), lower, upper), edges)


def _quantiles(mass: Array, edges: Array, pieces: int) -> Array:
    """Inner quantiles; records lie evenly in their bin."""
    shares = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
    rising = np.concatenate([[True], np.diff(shares) > 0])
    wanted = np.arange(1, pieces) / pieces
    return np.asarray(np.interp(wanted, shares[rising], edges[rising]))


def _apart(knots: Array, edges: Array) -> Array:
    """Distinct knots, none nearer to the next one than the narrowest bin."""
    least = float(np.diff(edges).min())
    kept: list[float] = []
    for knot in np.unique(knots):
        if not kept or knot - kept[-1] >= 0.999 * least:
            kept.append(float(knot))
    return np.array(kept if len(kept) > 1 else [knots.min(), max(knots.max(), knots.min() + least)])
