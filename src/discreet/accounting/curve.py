"""The privacy curve of an event: every (epsilon, delta) that holds for it, with proof from both sides."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.accounting.certify import Composed, OneStep
from discreet.accounting.dominating import Direction, Dominating, Quality, Relation, dominating
from discreet.accounting.gaussian import (
    gaussian_delta_bounds,
    gaussian_epsilon,
    gaussian_epsilon_bounds,
    gaussian_power,
)
from discreet.accounting.lattice import OPTIMISTIC, PESSIMISTIC, Lattice
from discreet.accounting.pairs import Pair
from discreet.errors import AccuracyNotReached, DiscreetError, real, whole
from discreet.events import Event
from discreet.guarantee import Bounds, Guarantee, Neighbours, neighbours_named

ULPS = 1e-14
TINY = 1e-12
LEAST_MU, MOST_MU = 1e-8, 1e4  # between these the closed form is certified
_USELESS = 1e-3  # a lattice with a larger error shows nothing: very much noise, seen without a tilt


class PrivacyCurve:
    """What an event costs. Made by :func:`~discreet.accounting.account.account`.

    Guarantee: the exact curve of the event's dominating pair lies between the two ends of every bound. For
    Gaussian, Laplace, Poisson-sampled and randomly allocated releases that pair is attained, so the lower end
    is a lower bound for the release itself; for fixed-size batches it belongs to the pair only.
    """

    def __init__(self, event: Event, neighbours: Neighbours, group_size: int) -> None:
        self.event = event
        self.neighbours = neighbours_named(neighbours)
        self.group_size = whole("group_size", group_size, at_least=1, at_most=10_000)
        self._parts: Dominating = dominating(event, Relation(self.neighbours, self.group_size))
        self._composed = lru_cache(maxsize=8)(self._make_composed)
        self._bulk = lru_cache(maxsize=2)(self._make_bulk)

    def __repr__(self) -> str:
        return f"PrivacyCurve({self.event!r}, neighbours={self.neighbours!r}, group_size={self.group_size})"

    # ---- epsilon ----

    def epsilon(self, delta: float, *, tolerance: float = 1e-3) -> float:
        """The smallest epsilon proved at ``delta``: never below the exact one."""
        return self.epsilon_bounds(delta, tolerance=tolerance).upper

    def epsilon_bounds(self, delta: float, *, tolerance: float = 1e-3) -> Bounds:
        """Certified bounds on epsilon at ``delta``; their gap is at most ``tolerance`` of the upper bound.

        Infinite where some outcome of a black box reveals everything with more than this probability.
        """
        delta = real("delta", delta, at_least=0, below=1, remedy=DELTA_REMEDY)
        tolerance = _tolerance(tolerance)
        exposure = self._parts.exposure
        if delta < exposure.lower:
            return Bounds(np.inf, np.inf)
        if exposure.upper == 0:
            bounds = self._hidden_epsilon(delta, tolerance)
        else:
            upper = self._hidden_epsilon(_hidden_share(delta, exposure.upper, 1 - ULPS), tolerance).upper
            lower = self._hidden_epsilon(_hidden_share(delta, exposure.lower, 1 + ULPS), tolerance).lower
            bounds = Bounds(lower, upper)
        return self._close_enough(
            Bounds(float(bounds.lower), float(bounds.upper)), "epsilon", tolerance, 1e-4
        )

    def _hidden_epsilon(self, delta: float, tolerance: float) -> Bounds:
        """Epsilon of everything but full exposure; a negative ``delta`` is more than can be hidden."""
        if delta < 0:
            return Bounds(0.0, np.inf)
        largest = self._largest_loss
        if delta == 0:
            return Bounds(largest * (1 - ULPS), largest * (1 + ULPS))
        near_top = self._near_largest_loss(delta)
        if near_top.upper < np.inf and near_top.upper - near_top.lower <= 1e-9 * near_top.upper:
            return near_top
        if not self._parts.laws and self._parts.mu > MOST_MU:  # concentrated differential privacy
            mu = self._mu_bounds.upper
            return Bounds(0.0, (mu**2 / 2 + mu * float(np.sqrt(-2 * np.log(delta)))) * (1 + ULPS))
        if not self._parts.laws:
            return self._gaussian(lambda mu: gaussian_epsilon_bounds(delta, mu), 0.0)
        quality = Quality(delta * 1e-5, tolerance)
        estimates = {
            direction: self._composed(direction, quality).estimate_epsilon(delta)
            for direction in self._parts.directions()
        }
        top = max(estimates.values())
        lower = upper = 0.0
        for direction in sorted(estimates, key=lambda name: -estimates[name]):
            composed = self._composed(direction, quality)
            # A direction that is clearly not the worst one is only shown to be that.
            room = 0.5 * (top - estimates[direction]) / max(top, 1e-4)
            bounds = composed.epsilon_bounds(delta, max(tolerance, min(0.03, room)))
            if bounds.upper > max(upper, lower) and room > tolerance:
                bounds = composed.epsilon_bounds(delta, tolerance)
            lower, upper = max(lower, bounds.lower), max(upper, bounds.upper)
        return Bounds(max(lower, near_top.lower), min(upper, near_top.upper))

    def _near_largest_loss(self, delta: float) -> Bounds:
        """Bounds from the atoms of largest loss M: delta(epsilon) >= P(L = M) (1 - e^{epsilon - M})."""
        largest = self._largest_loss
        if largest == np.inf:
            return Bounds(0.0, np.inf)
        lower = 0.0
        for direction in self._parts.directions():
            laws = self._parts.composed(direction, Quality(1e-12, 1e-2))
            if all(law.lower.atoms for law in laws):
                top = sum(law.count * law.lower.p_range(-np.inf)[1] for law in laws)
                log_mass = sum(law.count * _log_top_mass(law.lower) for law in laws)
                log_share = float(np.log(delta)) + ULPS - log_mass
                lower = max(lower, top + float(np.log1p(-np.exp(log_share)))) if log_share < 0 else lower
        return Bounds(lower * (1 - ULPS), largest * (1 + ULPS))

    def estimate_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` to about three digits, in a millisecond. An estimate: never report it."""
        delta = _hidden_share(real("delta", delta, above=0, below=1), self._parts.exposure.upper, 1.0)
        if delta <= 0:
            return np.inf
        if not self._parts.laws:
            return gaussian_epsilon(delta, self._mu_bounds.upper)
        # Removing a record is the worse direction wherever the two were compared.
        return self._composed("remove", Quality(delta * 1e-5, 0.02)).estimate_epsilon(delta)

    # ---- delta ----

    def delta(self, epsilon: float, *, tolerance: float = 1e-2) -> float:
        """The smallest delta proved at ``epsilon``: never below the exact one."""
        return self.delta_bounds(epsilon, tolerance=tolerance).upper

    def delta_bounds(self, epsilon: float, *, tolerance: float = 1e-2) -> Bounds:
        """Certified bounds on delta at ``epsilon``; their gap is at most ``tolerance`` of the upper bound."""
        epsilon = real("epsilon", epsilon, at_least=0)
        tolerance = _tolerance(tolerance)
        hidden = self._hidden_delta(epsilon, tolerance)
        exposure = self._parts.exposure
        lower = float((exposure.lower + (1 - exposure.lower) * hidden.lower) * (1 - ULPS))
        upper = min(1.0, float((exposure.upper + (1 - exposure.upper) * hidden.upper) * (1 + ULPS)))
        if epsilon >= self._largest_loss * (1 - 1e-12):  # delta vanishes; only rounding is left
            return Bounds(lower, upper)
        return self._close_enough(Bounds(lower, upper), "delta", tolerance, 1e-280)

    def deltas(self, epsilons: ArrayLike) -> NDArray[np.float64]:
        """The delta proved at each of many epsilons, in the time of a few: looser than :meth:`delta` where tiny.

        Guarantee: never below the exact ones.
        """
        found = np.array([real("epsilons", value, at_least=0) for value in np.ravel(epsilons)])
        lattices = (
            [self._bulk(direction) for direction in self._parts.directions()] if self._parts.laws else []
        )
        if not lattices or max(lattice.error for lattice in lattices) > _USELESS:
            return np.array([_upper(self.delta_bounds, value) for value in found])
        exposed = self._parts.exposure.upper
        hidden = [max(lattice.delta_upper(float(value))[0] for lattice in lattices) for value in found]
        return np.minimum(1.0, (exposed + (1 - exposed) * np.array(hidden)) * (1 + ULPS))

    def _hidden_delta(self, epsilon: float, tolerance: float) -> Bounds:
        if epsilon >= self._largest_loss * (1 + ULPS):
            return Bounds(0.0, 0.0)
        if not self._parts.laws and self._parts.mu > MOST_MU:
            return Bounds(0.0, 1.0)
        if not self._parts.laws and self._parts.mu < LEAST_MU:
            upper = self._parts.mu / float(np.sqrt(2 * np.pi))  # delta(0) = 2 Phi(mu / 2) - 1
            return Bounds(upper * (1 - 1e-12) if epsilon == 0 else 0.0, upper * (1 + 1e-12))
        if not self._parts.laws:
            return self._gaussian(lambda mu: gaussian_delta_bounds(epsilon, mu), 0.0)
        found = []
        for direction in self._parts.directions():
            quality = Quality(1e-12, tolerance)
            for _ in range(8):  # what is cut off must be small beside delta, which is not known yet
                guess = self._composed(direction, quality).estimate_delta(epsilon)
                if guess * 1e-5 >= quality.tail or quality.tail <= 1e-290:
                    break
                quality = Quality(max(guess * 1e-6, 1e-290), tolerance)
            found.append(self._composed(direction, quality).delta_bounds(epsilon, tolerance))
        return Bounds(max(bounds.lower for bounds in found), max(bounds.upper for bounds in found))

    # ---- the attacker's view ----

    def advantage(self) -> float:
        """The best attacker's hit rate minus false-alarm rate, at most: delta at epsilon 0."""
        return self.delta(0.0)

    def power(self, false_alarms: float) -> float:
        """The best attacker's hit rate at this false-alarm rate, at most."""
        return self.power_bounds(false_alarms).upper

    def power_bounds(self, false_alarms: float) -> Bounds:
        """Certified bounds on the best attacker's hit rate at this false-alarm rate (the ROC curve).

        The attacker knows both data sets and sees every release. Hit and false alarm are the errors of a test
        between the two; the worse direction counts.
        """
        alarms = real("false_alarms", false_alarms, at_least=0, at_most=1)
        low, high = self._parts.exposure
        lower = low + (1 - low) * self._hidden_power(min(1.0, alarms / max(1 - low, TINY))).lower
        upper = high + (1 - high) * self._hidden_power(min(1.0, alarms / max(1 - high, TINY))).upper
        upper = min(1.0, upper * (1 + ULPS))
        return Bounds(float(min(max(alarms, lower * (1 - ULPS)), upper)), float(upper))

    def _hidden_power(self, alarms: float) -> Bounds:
        if not self._parts.laws:
            return self._gaussian(lambda mu: _around(gaussian_power(alarms, mu), 1e-12), alarms)
        lattices = [self._bulk(direction) for direction in self._parts.directions()]
        if max(lattice.error for lattice in lattices) > _USELESS:
            at_zero = self._hidden_delta(0.0, 1e-2)  # nobody has more hits than alarms + delta(0)
            return Bounds(alarms, min(1.0, (alarms + at_zero.upper) * (1 + ULPS)))
        found = [_power(lattice, alarms) for lattice in lattices]
        return Bounds(max(bounds.lower for bounds in found), max(bounds.upper for bounds in found))

    # ---- a point as a guarantee ----

    def guarantee(self, delta: float, *, tolerance: float = 1e-3) -> Guarantee:
        """The proved point at ``delta`` with its neighbours and unit."""
        return Guarantee(
            self.epsilon_bounds(delta, tolerance=tolerance), delta, self.neighbours, self.group_size
        )

    # ---- parts ----

    @property
    def _mu_bounds(self) -> Bounds:
        """The total of all plain Gaussian releases, with the rounding of its sum; at least what can be computed."""
        mu = self._parts.mu
        return Bounds(mu * (1 - 4e-16) if mu > LEAST_MU else 0.0, max(mu * (1 + 4e-16), LEAST_MU))

    def _gaussian(self, bounds_at: Callable[[float], Bounds], nothing: float) -> Bounds:
        """Bounds of a release that is Gaussian only; ``nothing`` is the value for no release at all."""
        low, high = self._mu_bounds
        if self._parts.mu == 0:
            return Bounds(nothing, nothing)
        return Bounds(bounds_at(low).lower if low > 0 else nothing, bounds_at(high).upper)

    @cached_property
    def _largest_loss(self) -> float:
        """The epsilon of pure differential privacy; infinite for Gaussian noise."""
        if self._parts.mu > 0:
            return np.inf
        quality = Quality(1e-12, 1e-2)
        return max(
            sum(law.count * law.upper.p_range(-np.inf)[1] for law in self._parts.composed(direction, quality))
            for direction in self._parts.directions()
        )

    def _make_composed(self, direction: Direction, quality: Quality) -> Composed | OneStep:
        laws = self._parts.composed(direction, quality)
        return OneStep(laws[0]) if len(laws) == 1 and laws[0].count == 1 else Composed(laws)

    def _make_bulk(self, direction: Direction) -> Lattice:
        return Composed(self._parts.composed(direction, Quality(1e-14, 1e-3))).untilted(1e-3)

    def _close_enough(self, bounds: Bounds, name: str, tolerance: float, floor: float) -> Bounds:
        if bounds.lower > bounds.upper * (1 + 1e-9):
            raise DiscreetError(
                f"the bounds {bounds} on {name} contradict each other; please report {self!r}"
            )
        if bounds.lower == bounds.upper or bounds.upper - bounds.lower <= tolerance * min(
            max(bounds.upper, floor), 1e300
        ):
            return bounds
        raise AccuracyNotReached(
            f"{name} is between {bounds.lower:.6g} and {bounds.upper:.6g}, which is wider than the tolerance "
            f"{tolerance:g}; ask for a larger tolerance.",
            bounds,
        )


DELTA_REMEDY = "Choose it well below 1 / number of records, for instance 1e-6."


def _around(value: float, error: float) -> Bounds:
    return Bounds(value * (1 - error), value * (1 + error))


def _log_top_mass(pair: Pair) -> float:
    """log P(L = largest loss), for a pair with atoms; not more than it."""
    top = pair.p_range(-np.inf)[1]
    return float(np.log(pair.cells(np.array([top * (1 - 1e-12) - 1e-15, np.inf])).p[0] * (1 - 1e-9)))


def _upper(bounds: Callable[[float], Bounds], at: float) -> float:
    try:
        return bounds(at).upper
    except AccuracyNotReached as rough:
        return float(rough.bounds[1])


def _hidden_share(delta: float, exposure: float, rounding: float) -> float:
    """delta of the rest, given that nothing is exposed."""
    return (delta - exposure) / (1 - exposure) * rounding if exposure < 1 else -1.0


def _tolerance(value: float) -> float:
    return real("tolerance", value, at_least=1e-6, below=1)


def _power(lattice: Lattice, alarms: float) -> Bounds:
    """min over a of H_a + a * alarms, from both sides; the lattice is untilted."""

    def crossing(row: int) -> float:
        """The loss at which the Q-mass above it falls to ``alarms``."""

        def false_alarms(epsilon: float) -> float:
            delta, tail = lattice.curve(row, epsilon)
            return (tail - delta) * float(np.exp(min(lattice.log_unit(row, epsilon) - epsilon, 700.0)))

        return _bisect(false_alarms, alarms, lattice.start - lattice.step, lattice.end)

    at = min(crossing(PESSIMISTIC), 700.0)
    upper = lattice.delta_upper(at)[0] + float(np.exp(at)) * alarms
    at = crossing(OPTIMISTIC)
    grid = lattice.start + lattice.step * (
        np.floor((at - lattice.start) / lattice.step) + np.arange(-1.0, 3.0)
    )
    # a = 0: the attacker always says yes
    everything = float(
        (lattice.masses[OPTIMISTIC].sum() - lattice.error) * np.exp(lattice.log_scale[OPTIMISTIC])
    )
    lower = min(
        lattice.delta_lower(float(loss))[0] + float(np.exp(min(loss, 700.0))) * alarms for loss in grid
    )
    return Bounds(min(lower, everything, 1.0), min(1.0, upper))


def _bisect(falling: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > target else (low, middle)
    return high
