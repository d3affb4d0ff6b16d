"""Where columns are counted: 64 even bins, divided further where values like to pile up.

People declare generous bounds, and amounts of money crowd at an end or at zero. So the bins that hold the ends of a
column, or its public zero, are halved again and again toward them. A record is in one bin of each column whatever
their number, so this costs no privacy.

>>> edges = bin_edges(None)
>>> len(edges) - 1, float(edges[1])
(80, 6.103515625e-05)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.marginals import BINS

Array = NDArray[np.float64]

_HALVINGS = 8


def bin_edges(zero: float | None) -> Array:
    """The edges of the bins of a column on [0, 1]; ``zero`` is where the number 0 is, if that is inside."""
    near = 0.5 ** np.arange(1, _HALVINGS + 1) / BINS
    marks = [np.arange(BINS + 1) / BINS, near, 1 - near]
    if zero is not None and 0 < zero < 1:
        marks += [zero - near, zero + near]
    edges = np.unique(np.concatenate(marks))
    return np.asarray(edges[(edges >= 0) & (edges <= 1)])


def coarse(histogram: Array, edges: Array, noise: float) -> Array:
    """The same records in 64 even bins; parts of a bin that noise explains do not count."""
    home = np.minimum(((edges[:-1] + edges[1:]) / 2 * BINS).astype(np.int64), BINS - 1)
    parts = np.bincount(home, minlength=BINS)
    seen = np.where((parts[home] == 1) | (histogram > 2 * noise), histogram, 0.0)
    return np.bincount(home, weights=seen, minlength=BINS).astype(np.float64)
