"""The attacker's view: the best hit rate at a false-alarm rate.

An attack with hit rate h and false-alarm rate f has h <= H_a + a f for every a, and the best one has h equal to the
smallest of these (Neyman and Pearson). So any a gives an upper bound.

For a lower bound, G(a) = H_a + a f is convex. The optimistic row of a lattice bounds it from below, up to an error
that grows towards small a. From some a_1 on the error is that of a_1, and the smallest value of the row, which is
convex too, less that error is a bound. Left of a_1 nothing smaller can be if G falls there, which is so if what is
proved at a_1 is above what is proved at some larger a.

**Where only (epsilon, delta) is known.** A test raises *false alarms* on records that were not used and
*misses* some that were. No test beats

    miss rate >= max(1 - delta - e^epsilon false_alarms, e^-epsilon (1 - delta - false_alarms), 0)

(Wasserman and Zhou 2010; Kairouz et al. 2015), and some release that is (epsilon, delta)-DP attains it. A
Gaussian release is less exposed than its (epsilon, delta) tells: see ``gaussian_power``.

>>> round(power_bound(epsilon=1.0, delta=1e-5, false_alarms=0.01), 8)
0.02719282
>>> round(advantage_bound(epsilon=1.0, delta=1e-5), 8)
0.46212254

No (epsilon, delta) that is charged or certified is computed here: hit rates are shown beside it, so that no value
returned here can lower it.

In docs/accountants.md: A15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from discreet.accounting.chernoff import ROUNDING, Chernoff, least
from discreet.accounting.lattice import OPTIMISTIC, PESSIMISTIC, LossLattice
from discreet.accounting.optimistic import lattice_lower
from discreet.accounting.pairs import Array
from discreet.accounting.search import Search
from discreet.errors import real
from discreet.guarantee import ROUND_UP, Bounds, checked_pair

_FAR = 700.0


def power_on(lattice: LossLattice, alarms: float) -> Bounds:
    """Guarantee: the best hit rate at the false-alarm rate ``alarms`` lies within the bounds."""
    at = min(_crossing(lattice, PESSIMISTIC, alarms), _FAR)
    upper = min(1.0, lattice.delta_upper(at)[0] + float(np.exp(at)) * alarms)
    at = _crossing(lattice, OPTIMISTIC, alarms)
    for distance in (1.0, 3.0, 10.0, 30.0) if lattice.tilt > 0 else (np.inf,):
        left = at - distance / lattice.tilt if lattice.tilt > 0 else -np.inf
        lower = _lower_power(lattice, alarms, at, left)
        if left == -np.inf or lattice_lower(lattice, left)[0] + float(np.exp(left)) * alarms >= upper:
            # a = 0: the attacker always says yes, so the left end counts as well
            everything = _total_lower(lattice) if left == -np.inf else 1.0
            return Bounds(max(0.0, min(lower, everything, upper)), upper)
    return Bounds(min(alarms, upper), upper)


def _lower_power(lattice: LossLattice, alarms: float, at: float, left: float) -> float:
    """The smallest value right of ``left`` of the optimistic row, which has its corners at grid points."""
    corner, errors_at = np.floor((at - lattice.start) / lattice.step), max(left, -1e3)
    shift = lattice.rounding(errors_at)[0]  # what is proved at a loss is the row at a loss that much larger
    grid = [lattice.start + lattice.step * (corner + k) - shift for k in (-1.0, 0.0, 1.0, 2.0)]
    values = [
        lattice_lower(lattice, float(loss), errors_at)[0] + float(np.exp(min(loss, _FAR))) * alarms
        for loss in grid
    ]
    return float(min(values))


def _total_lower(lattice: LossLattice) -> float:
    """A proved lower bound on the total mass of P, for a lattice that is not tilted."""
    return float((lattice.masses[OPTIMISTIC].sum() - lattice.error) * np.exp(lattice.log_scale[OPTIMISTIC]))


def chernoff_power(bound: Chernoff, alarms: float) -> float:
    """Guarantee: no test with this rate of false alarms, above 0, has more hits in the direction of ``bound``.

    They are at most H_a + a alarms for every a, so for the a that is best for the bound at each tilt.
    """
    log_alarms = float(np.log(alarms))

    def hits(tilts: Array) -> Array:
        height = bound.log_delta(tilts)
        at = np.clip((np.log(tilts) + height - log_alarms) / (1 + tilts), 0.0, 700.0)
        return np.asarray(np.logaddexp(height - tilts * at * (1 - ROUNDING), at + log_alarms))

    return float(min(1.0, np.exp(min(least(hits), 0.0)) * (1 + ROUNDING) + bound.infinite))


class Estimating(Protocol):
    """A composition in one direction, with an estimate of its epsilons."""

    def estimate_epsilon(self, delta: float) -> float: ...


def power_near(
    each: Iterable[tuple[Estimating, Search]], alarms: float, tolerance: float, rough: Bounds
) -> Bounds:
    """The worst direction's hit rate within ``rough``: few alarms are raised far out, where a tilted
    lattice looks closely."""
    return rough.also(Bounds.of_largest(_power_of(*one, alarms, tolerance) for one in each))


def _power_of(composed: Estimating, search: Search, alarms: float, tolerance: float) -> Bounds:
    """Guarantee: as :func:`power_on`, on lattices that are moved to where the alarms are raised."""
    best = Bounds(0.0, 1.0)
    epsilon = composed.estimate_epsilon(alarms)
    for _ in range(4):
        lattice = search.lattice_near(epsilon, tolerance)
        if lattice is None:
            break
        found = power_on(lattice, alarms)
        best = best.also(found)
        if best.upper - best.lower <= tolerance * best.upper:
            break
        epsilon = max(_crossing(lattice, PESSIMISTIC, alarms), 0.0)
    return best


def _crossing(lattice: LossLattice, row: int, alarms: float) -> float:
    """The loss at which the Q-mass above it falls to ``alarms``."""

    def false_alarms(epsilon: float) -> float:
        delta, tail = lattice.curve(row, epsilon)
        return (tail - delta) * float(np.exp(min(lattice.log_unit(row, epsilon) - epsilon, _FAR)))

    return _bisect(false_alarms, alarms, lattice.start - lattice.step, lattice.end)


def _bisect(falling: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > target else (low, middle)
    return high


_ROUNDING = 1e-15  # more than the absolute rounding of a few numbers of at most 1


def miss_rate_bound(epsilon: float, delta: float, false_alarms: float) -> float:
    """Guarantee: every membership test with this false-alarm rate misses at least this share of records."""
    return max(0.0, 1 - power_bound(epsilon, delta, false_alarms) - _ROUNDING)


def power_bound(epsilon: float, delta: float, false_alarms: float) -> float:
    """Guarantee: no membership test with this false-alarm rate has a higher hit rate (1 - miss rate)."""
    epsilon, delta = checked_pair(epsilon, delta)
    false_alarms = real("false_alarms", false_alarms, at_least=0, at_most=1)
    log_false_alarms = math.log(false_alarms) if false_alarms else -math.inf
    few_alarms = (delta + math.exp(min(0.0, epsilon + log_false_alarms))) * ROUND_UP
    many_alarms = 1 - math.exp(-epsilon) * max(0.0, 1 - delta - false_alarms) + _ROUNDING
    return min(1.0, few_alarms, many_alarms)


def advantage_bound(epsilon: float, delta: float) -> float:
    """Guarantee: no membership test has a larger difference of hit rate and false-alarm rate.

    It is (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).
    """
    epsilon, delta = checked_pair(epsilon, delta)
    shrink = math.exp(-epsilon)
    return min(1.0, (-math.expm1(-epsilon) + 2 * delta * shrink) / (1 + shrink) * ROUND_UP)
