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

In docs/accountants.md: A15.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from scipy.special import ndtri

from discreet.accounting.largest import ULPS
from discreet.accounting.lattice import OPTIMISTIC, PESSIMISTIC, Lattice
from discreet.charts import Picture, attack_chart, html_table
from discreet.errors import probability, real
from discreet.guarantee import ROUND_UP, AnyNeighbours, Bounds, checked_pair

_FAR = 700.0
_SHOWN = (1e-5, 1e-6, 1e-8)  # deltas of which a notebook shows the epsilon


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
    corner, errors_at = np.floor((at - lattice.start) / lattice.step), max(left, -1e3)
    shift = lattice.rounding(errors_at)[0]  # what is proved at a loss is the row at a loss that much larger
    grid = [lattice.start + lattice.step * (corner + k) - shift for k in (-1.0, 0.0, 1.0, 2.0)]
    values = [
        lattice.delta_lower(float(loss), errors_at)[0] + float(np.exp(min(loss, _FAR))) * alarms
        for loss in grid
    ]
    return float(min(values))


class AttackerView(ABC):
    """What a curve says of attacks, and shows in a notebook: it all follows from its points and its hit rates."""

    neighbours: AnyNeighbours

    @abstractmethod
    def epsilon_bounds(self, delta: float) -> Bounds:
        """Certified bounds on epsilon at ``delta``."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The smallest delta proved at ``epsilon``."""

    @abstractmethod
    def power_bounds(self, false_alarms: float, *, tolerance: float | None = None) -> Bounds:
        """Certified bounds on the best attacker's hit rate at this false-alarm rate."""

    def plot(self) -> Picture:
        """The best attack: how many records it finds, at every rate of false alarms."""
        return Picture(attack_chart(self.power))

    def _repr_html_(self) -> str:
        bounds = [(f"{delta:g}", *self.epsilon_bounds(delta)) for delta in _SHOWN]
        rows = [(delta, f"{upper:.4g}", f"{lower:.4g}") for delta, lower, upper in bounds]
        head, caption = ("delta", "epsilon at most", "and at least"), f"{self.neighbours} neighbours"
        return html_table(head, rows, caption) + self.plot().svg

    def advantage(self) -> float:
        """The best attacker's hit rate minus false-alarm rate, at most: delta at epsilon 0."""
        return self.delta(0.0)

    def bayes_risk(self, prior: float) -> float:
        """Guarantee: who believes that the record is there with probability ``prior``, and sees everything, is wrong
        with at least this probability.

        It is min(prior, 1 - prior) without the releases. The best attacker decides by the ratio of both worlds'
        densities, and errs with probability prior - prior H_a, a = (1 - prior) / prior.
        """
        prior = probability("prior", prior)
        rarer = min(prior, 1 - prior)
        odds = (1 - rarer) / rarer * (1 - ULPS)
        return max(0.0, rarer * (1 - self.delta(float(np.log(max(odds, 1.0))))) * (1 - ULPS))

    def mu_estimate(self) -> float:
        """About the mu of the single Gaussian release that is as easy to attack. An estimate: it proves nothing.

        The largest of what the attacker's hit rates at false alarms from 1e-3 to one half amount to. For plain
        Gaussian noise it is exact; for many small steps it is the limit of the central limit theorem.
        """
        alarms = np.array([1e-3, 1e-2, 0.1, 0.3, 0.5])
        hits = np.array([min(self.power(float(at)), 1 - 1e-16) for at in alarms])
        return max(0.0, float(np.max(ndtri(hits) - ndtri(alarms))))

    def power(self, false_alarms: float, *, tolerance: float | None = None) -> float:
        """The best attacker's hit rate at this false-alarm rate, at most."""
        return self.power_bounds(false_alarms, tolerance=tolerance).upper


class AtEpsilon(Protocol):
    """A composition in one direction that can be looked at closely near an epsilon."""

    def estimate_epsilon(self, delta: float) -> float: ...

    def lattice_near(self, epsilon: float, tolerance: float) -> Lattice | None: ...


def power_near(each: Iterable[AtEpsilon], alarms: float, tolerance: float, rough: Bounds) -> Bounds:
    """The worst direction's hit rate within ``rough``: few alarms are raised far out in the law, where a tilted
    lattice looks closely."""
    return rough.also(Bounds.of_largest(_power_of(composed, alarms, tolerance) for composed in each))


def _power_of(composed: AtEpsilon, alarms: float, tolerance: float) -> Bounds:
    """Guarantee: as :func:`power_on`, on lattices that are moved to where the alarms are raised."""
    best = Bounds(0.0, 1.0)
    epsilon = composed.estimate_epsilon(alarms)
    for _ in range(4):
        lattice = composed.lattice_near(epsilon, tolerance)
        if lattice is None:
            break
        found = power_on(lattice, alarms)
        best = best.also(found)
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


# ---- what (epsilon, delta) means to an attacker who tests whether a record was used ----


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
