"""Near the largest possible loss: where delta comes down to zero.

A composition of bounded losses has a largest one, M, the sum of the largest of its parts; epsilon = M is pure
differential privacy. Just below it nothing is left of a law but its atoms there, which no grid resolves:

    top (1 - e^{epsilon - M})  <=  delta(epsilon)  <=  near (1 - e^{epsilon - M}),

where top is the P-mass of outcomes all of whose losses are the largest of their part, and near that of outcomes none
of whose losses is further than M - epsilon below it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from discreet.accounting.building import Law
from discreet.accounting.pairs import Pair
from discreet.guarantee import Bounds

ULPS = 1e-14


def largest_loss(laws: Sequence[Law]) -> float:
    """The largest total loss of these releases, up to ``ULPS``; infinite for Gaussian noise."""
    return float(sum(law.largest_loss for law in laws))


def delta_near_largest(laws: Sequence[Law], epsilon: float) -> Bounds:
    """Guarantee: delta at ``epsilon`` lies within the bounds, in the direction of ``laws``."""
    largest = largest_loss(laws)
    distance = largest * (1 + ULPS) - epsilon
    if distance <= 0:
        return Bounds(0.0, 0.0)
    if largest == np.inf:
        return Bounds(0.0, 1.0)
    log_near = sum(law.count * min(0.0, _log_mass_near_top(law.upper, distance) + 1e-12) for law in laws)
    upper = -float(np.expm1(-distance)) * float(np.exp(log_near)) * (1 + 1e-12)
    least = largest * (1 - ULPS) - epsilon
    log_top = _log_top(laws)
    lower = -float(np.expm1(-least)) * float(np.exp(log_top)) * (1 - 1e-12) if least > 0 else 0.0
    return Bounds(lower, min(1.0, upper))


def epsilon_near_largest(laws: Sequence[Law], delta: float) -> Bounds:
    """Guarantee: epsilon at ``delta`` lies within the bounds: top (1 - e^{epsilon - M}) <= delta says how low."""
    largest = largest_loss(laws)
    log_share = float(np.log(delta)) + ULPS - _log_top(laws)
    lower = largest + float(np.log1p(-np.exp(log_share))) if log_share < 0 and largest < np.inf else 0.0
    return Bounds(max(0.0, lower) * (1 - ULPS), largest * (1 + ULPS))


def _log_top(laws: Sequence[Law]) -> float:
    """log of the P-mass at the largest total loss, not more than it; minus infinity without atoms."""
    if not all(law.lower.atoms for law in laws):
        return -np.inf
    return float(sum(law.count * (_log_mass_near_top(law.lower, 0.0) - 1e-9) for law in laws))


def _log_mass_near_top(pair: Pair, distance: float) -> float:
    """log P(L >= largest loss - distance), with a margin for the rounding of losses."""
    top = pair._limits[1]
    low = (top - distance) - 1e-12 * abs(top) - 1e-15
    with np.errstate(divide="ignore"):
        cells = pair.cells(np.array([low, np.inf]))
        return float(np.log(cells.p[0] + max(cells.p_above, 0.0)))
