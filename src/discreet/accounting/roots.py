"""Where a bound on delta crosses a given delta: a search that need not be trusted, and a check that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Bound = Callable[[float], tuple[float, float]]
"""epsilon -> (a proved bound on delta, the slope of its logarithm)"""


def proved_epsilon(upper: Bound, delta: float, guess: float, top: float, accuracy: float = 1e-9) -> float:
    """An epsilon >= 0, as small as found, with upper(epsilon) <= delta; infinity if there is none below ``top``."""
    if upper(0.0)[0] <= delta:
        return 0.0
    epsilon = _crossing(upper, delta, guess, top, accuracy)
    nudge = max(accuracy * epsilon, 1e-15)
    while epsilon <= top:
        if upper(epsilon)[0] <= delta:
            return epsilon
        epsilon, nudge = epsilon + nudge, 4 * nudge
    return np.inf


def refuted_epsilon(lower: Bound, delta: float, guess: float, top: float, accuracy: float = 1e-9) -> float:
    """An epsilon, as large as found, with lower(epsilon) > delta; 0 if there is none."""
    epsilon = _crossing(lower, delta, guess, top, accuracy)
    nudge = max(accuracy * epsilon, 1e-15)
    while epsilon > 0:
        if lower(epsilon)[0] > delta:
            return epsilon
        epsilon, nudge = epsilon - nudge, 4 * nudge
    return 0.0


def _crossing(bound: Bound, delta: float, guess: float, top: float, accuracy: float) -> float:
    """About where the bound crosses ``delta``: Newton's method on its logarithm, kept inside a bracket.

    Far below the aim of a lattice a lower bound is worthless, so the search never leaps down.
    """
    low, high = 0.0, top
    epsilon = guess if low < guess < high else high * (1 - 1e-9)
    for _ in range(100):
        value, slope = bound(epsilon)
        low, high = (epsilon, high) if value > delta else (low, epsilon)
        with np.errstate(over="ignore", divide="ignore"):
            following = epsilon + float(np.log(delta / value) / slope) if value > 0 else low
        following = max(following, 0.7 * epsilon)
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - epsilon) <= accuracy * epsilon:
            return following
        epsilon = following
    return epsilon
