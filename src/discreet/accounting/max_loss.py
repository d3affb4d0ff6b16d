"""Near the largest possible loss: where delta comes down to zero.

A composition of bounded losses has a largest one, M, the sum of the largest of its parts; epsilon = M is pure
differential privacy. Just below it nothing is left of a distribution but its atoms there, which no grid resolves:

    top (1 - e^{epsilon - M})  <=  delta(epsilon)  <=  near (1 - e^{epsilon - M}),

where top is the P-mass of outcomes all of whose losses are the largest of their part, and near that of outcomes none
of whose losses is further than M - epsilon below it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from discreet.accounting.discretisation import LossDistribution
from discreet.accounting.pairs import Pair
from discreet.guarantee import Bounds

ULPS = 1e-14


def largest_loss(plds: Sequence[LossDistribution]) -> float:
    """The largest total loss of these releases, up to ``ULPS``; infinite for Gaussian noise."""
    return float(sum(pld.largest_loss for pld in plds))


def delta_near_largest(plds: Sequence[LossDistribution], epsilon: float) -> Bounds:
    """Guarantee: delta at ``epsilon`` lies within the bounds, in the direction of ``plds``."""
    largest = largest_loss(plds)
    distance = largest * (1 + ULPS) - epsilon
    if distance <= 0:
        return Bounds(0.0, 0.0)
    if largest == np.inf:
        return Bounds(0.0, 1.0)
    log_near = sum(pld.count * min(0.0, _log_mass_near_top(pld.upper, distance) + 1e-12) for pld in plds)
    upper = -float(np.expm1(-distance)) * float(np.exp(log_near)) * (1 + 1e-12)
    least = largest * (1 - ULPS) - epsilon
    log_top = _log_top(plds)
    lower = -float(np.expm1(-least)) * float(np.exp(log_top)) * (1 - 1e-12) if least > 0 else 0.0
    return Bounds(lower, min(1.0, upper))


def epsilon_near_largest(plds: Sequence[LossDistribution], delta: float) -> Bounds:
    """Guarantee: epsilon at ``delta`` lies within the bounds: top (1 - e^{epsilon - M}) <= delta says how low."""
    largest = largest_loss(plds)
    log_share = float(np.log(delta)) + ULPS - _log_top(plds)
    lower = largest + float(np.log1p(-np.exp(log_share))) if log_share < 0 and largest < np.inf else 0.0
    return Bounds(max(0.0, lower) * (1 - ULPS), largest * (1 + ULPS))


def _log_top(plds: Sequence[LossDistribution]) -> float:
    """log of the P-mass at the largest total loss, not more than it; minus infinity without atoms."""
    if not all(pld.lower.atoms for pld in plds):
        return -np.inf
    return float(sum(pld.count * (_log_mass_near_top(pld.lower, 0.0) - 1e-9) for pld in plds))


def _log_mass_near_top(pair: Pair, distance: float) -> float:
    """log P(L >= largest loss - distance), with a margin for the rounding of losses."""
    top = pair._limits[1]
    low = (top - distance) - 1e-12 * abs(top) - 1e-15
    with np.errstate(divide="ignore"):
        cells = pair.cells(np.array([low, np.inf]))
        return float(np.log(cells.p[0] + max(cells.p_above, 0.0)))
