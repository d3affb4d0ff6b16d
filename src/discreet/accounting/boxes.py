"""Black boxes that come with a Renyi curve: how much they add to the moments of everything else.

For an adaptive composition with a box whose Renyi divergences are at most D_a, in both directions and at every
history, E_P e^{tL} of the total loss is at most that of the rest times e^{t D_{1+t}}: condition on the history. So
boxes join the moment bound (:mod:`~discreet.accounting.chernoff`), which is an upper bound and no more: nothing is
known of a box that would bound it from below.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from discreet.accounting.pairs import Array
from discreet.errors import UnsupportedEvent
from discreet.events import RenyiDP, ZeroConcentratedDP

LogMoment = Callable[[Array], Array]
"""Tilts t > 0 -> an upper bound on t D_{1+t}."""


def log_moment_of(box: RenyiDP | ZeroConcentratedDP, group_size: int) -> LogMoment:
    """What ``box`` adds to log E e^{tL}, for groups of that size."""
    if isinstance(box, ZeroConcentratedDP):
        rho = box.rho * group_size**2 * (1 + 1e-15)  # Bun and Steinke 2016, proposition 27
        return lambda tilts: np.asarray(rho * tilts * (1 + tilts) * (1 + 1e-15))
    if group_size > 1:
        raise UnsupportedEvent(
            "a Renyi curve at some orders says little about groups; use ZeroConcentratedDP, or group_size=1."
        )
    # Divergences grow with the order, and t D_{1+t} is convex in t and 0 at 0: it lies below its chords.
    values = np.minimum.accumulate(np.array(box.values)[::-1])[::-1]
    knots = np.concatenate([[0.0], np.array(box.orders) - 1.0])
    heights = np.concatenate([[0.0], knots[1:] * values])
    return lambda tilts: np.asarray(np.interp(tilts, knots, heights, right=np.inf) * (1 + 1e-14))
