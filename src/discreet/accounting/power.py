"""The attacker's view: the best hit rate at a false-alarm rate.

An attack with hit rate h and false-alarm rate f has h <= H_a + a f for every a, and the best one has h equal to the
smallest of these (Neyman and Pearson). So any a gives an upper bound.

For a lower bound, G(a) = H_a + a f is convex. The optimistic row of a lattice bounds it from below, up to an error
that grows towards small a. From some a_1 on the error is that of a_1, and the smallest value of the row, which is
convex too, less that error is a bound. Left of a_1 nothing smaller can be if G falls there, which is so if what is
proved at a_1 is above what is proved at some larger a.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from discreet.accounting.lattice import OPTIMISTIC, PESSIMISTIC, Lattice
from discreet.guarantee import Bounds

_FAR = 700.0


def power_on(lattice: Lattice, alarms: float) -> Bounds:
    """Guarantee: the best hit rate at the false-alarm rate ``alarms`` lies within the bounds."""
    at = min(_crossing(lattice, PESSIMISTIC, alarms), _FAR)
    upper = min(1.0, lattice.delta_upper(at)[0] + float(np.exp(at)) * alarms)
    at = _crossing(lattice, OPTIMISTIC, alarms)
    for distance in (1.0, 3.0, 10.0, 30.0) if lattice.tilt > 0 else (np.inf,):
        left = at - distance / lattice.tilt if lattice.tilt > 0 else -np.inf
        lower = _lower_power(lattice, alarms, at, left)
        if left == -np.inf or lattice.delta_lower(left)[0] + float(np.exp(left)) * alarms >= upper:
            # a = 0: the attacker always says yes, so the left end counts as well
            everything = lattice.total_lower() if left == -np.inf else 1.0
            return Bounds(max(0.0, min(lower, everything, upper)), upper)
    return Bounds(min(alarms, upper), upper)


def _lower_power(lattice: Lattice, alarms: float, at: float, left: float) -> float:
    """The smallest value right of ``left`` of the optimistic row, which has its corners at grid points."""
    corner = np.floor((at - lattice.start) / lattice.step)
    grid = [lattice.start + lattice.step * (corner + k) for k in (-1.0, 0.0, 1.0, 2.0)]
    values = [
        lattice.delta_lower(float(loss), max(left, -1e3))[0] + float(np.exp(min(loss, _FAR))) * alarms
        for loss in grid
    ]
    return float(min(values))


class AtEpsilon(Protocol):
    """A composition in one direction that can be looked at closely near an epsilon."""

    def estimate_epsilon(self, delta: float) -> float: ...

    def lattice_near(self, epsilon: float, tolerance: float) -> Lattice | None: ...


def power_of(composed: AtEpsilon, alarms: float, tolerance: float) -> Bounds:
    """Guarantee: as :func:`power_on`, on lattices that are moved to where the alarms are raised."""
    best = Bounds(0.0, 1.0)
    epsilon = composed.estimate_epsilon(alarms)
    for _ in range(4):
        lattice = composed.lattice_near(epsilon, tolerance)
        if lattice is None:
            break
        found = power_on(lattice, alarms)
        best = Bounds(max(best.lower, found.lower), min(best.upper, found.upper))
        if best.upper - best.lower <= tolerance * best.upper:
            break
        epsilon = max(_crossing(lattice, PESSIMISTIC, alarms), 0.0)
    return best


def _crossing(lattice: Lattice, row: int, alarms: float) -> float:
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
