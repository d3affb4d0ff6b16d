"""Certified bounds for one direction of a composition: steer, put on a lattice, check, refine.

The search is heuristic, the answer is not: every number returned was checked against the proved
``delta_upper`` or ``delta_lower`` of a lattice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from discreet.accounting.building import CUT, Law, build, step_for
from discreet.accounting.direct import Direct, mixture
from discreet.accounting.lattice import Lattice, cell_accuracy
from discreet.accounting.pairs import Pair
from discreet.accounting.sampled_pairs import GroupPair
from discreet.accounting.steering import Aim, Scout
from discreet.guarantee import Bounds

LONG, LOUD = 2**17, 20.0  # grid points, and logarithm of the enlargement, from which lattices are not tried
FINE = 2e-4  # tolerances that positive arithmetic does not reach
COARSE, FINEST = 1 / 32, 1 / 110  # resolutions of sums in positive arithmetic, in standard deviations
TOLERANCE = 1e-3  # relative, of an epsilon for which none was asked
# Positive arithmetic is slow. Without a tolerance that was asked for, this must do at deltas and epsilons of no use.
FAR_TOLERANCE, FAR_DELTA, FAR_EPSILON = 2e-3, 1e-30, 100.0
ROUNDING_OF_DIRECT = 6e-14  # of a loss, in positive arithmetic, at least
SMALLEST_EPSILON = 1e-4  # below this the tolerance is absolute


def quiet() -> np.errstate:
    """No warnings: a NaN or infinity turns an upper bound into 1 and a lower one into 0, never the other way."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")


class Composed:
    """One direction of a composition. Both methods return proved bounds, as tight as ``tolerance`` if possible."""

    def __init__(self, laws: Sequence[Law]) -> None:
        self.laws = tuple(laws)
        self.steps = sum(law.count for law in laws)
        self._aims: dict[float, tuple[Scout, Aim]] = {}

    def scout(self, log_delta: float) -> Scout:
        return Scout(
            [(law.upper, law.count) for law in self.laws], log_delta + float(np.log(CUT / self.steps))
        )

    def estimate_epsilon(self, delta: float) -> float:
        """Epsilon by the saddle-point method: about three digits, no guarantee."""
        try:
            return self.at_delta(float(np.log(delta)))[1].epsilon
        except FloatingPointError:
            return np.inf

    def estimate_delta(self, epsilon: float) -> float:
        """Delta by the saddle-point method: no guarantee."""
        try:
            return float(np.exp(self._at_epsilon(epsilon)[1].log_delta))
        except FloatingPointError:
            return 1.0

    def at_delta(self, log_delta: float) -> tuple[Scout, Aim]:
        if log_delta not in self._aims:
            scout = self.scout(log_delta)
            self._aims[log_delta] = scout, scout.aim_at_delta(log_delta)
        return self._aims[log_delta]

    def _at_epsilon(self, epsilon: float) -> tuple[Scout, Aim]:
        scout = self.scout(0.0)
        aim = scout.aim_at_epsilon(epsilon)
        if aim.log_delta < -2.0:  # rarer outcomes matter: look again with longer tails
            scout = self.scout(max(aim.log_delta, -690.0))
            aim = scout.aim_at_epsilon(epsilon)
        return scout, aim

    def epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        """Bounds on epsilon at ``delta``; ``tolerance`` is relative to the upper one."""
        with quiet():
            try:
                return self._epsilon_bounds(delta, tolerance)
            except FloatingPointError:  # nothing is known here
                return Bounds(0.0, np.inf)

    def _epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        log_delta = float(np.log(delta))
        scout, aim = self.at_delta(log_delta)
        best = Bounds(0.0, np.inf)
        for _ in range(3):
            found = self._refine(scout, aim, tolerance, EpsilonAt(delta, aim))
            best = best.also(found)
            missed = abs(found.upper - aim.epsilon) > 0.02 * found.upper
            if best.upper - best.lower <= tolerance * max(best.upper, SMALLEST_EPSILON) or not missed:
                break
            aim = replace(scout.aim_at_epsilon(min(best.upper, 1e12)), log_delta=log_delta)
            if aim.tilt > 1e10:  # beyond the largest loss
                break
        return self._closer(best, aim, delta, tolerance, EpsilonAt(delta, aim))

    def bounds_on_grid(self, at: float, deltas: Sequence[float], tolerance: float) -> list[Bounds] | None:
        """Bounds on epsilon at many deltas from the one grid that suits the delta ``at``; wide where it does not."""
        with quiet():
            try:
                scout, aim = self.at_delta(float(np.log(at)))
                step = self.first_step(scout, aim, tolerance, EpsilonAt(at, aim))
                if self.is_unsuited(scout, aim, step) and self._mixtures:
                    return None
                lattice, _ = build(self.laws, scout, aim, step)
            except FloatingPointError:
                return None
            return [EpsilonAt(delta, aim).measure(lattice)[0] for delta in deltas]

    def stays_below(self, delta: float, epsilon: float, tolerance: float) -> bool:
        """Proved that delta at ``epsilon`` is no more than ``delta``, on a grid that fits ``tolerance``.

        That is all that is asked of a direction which is not the worst one, and needs no optimistic law. No proof, no
        claim: False only says that this grid does not show it.
        """
        with quiet():
            try:
                scout, aim = self.at_delta(float(np.log(delta)))
                step = self.first_step(scout, aim, tolerance, EpsilonAt(delta, aim))
                if tolerance >= FINE and self.is_unsuited(scout, aim, step) and self._mixtures:
                    return False
                lattice, _ = build(self.laws, scout, aim, step, upper_only=True)
            except FloatingPointError:
                return False
            return lattice.delta_upper(epsilon)[0] <= delta

    def delta_bounds(self, epsilon: float, tolerance: float) -> Bounds:
        """Bounds on delta at ``epsilon``; ``tolerance`` is relative to the upper one."""
        with quiet():
            try:
                scout, aim = self._at_epsilon(epsilon)
            except FloatingPointError:
                return Bounds(0.0, 1.0)
            answer = _DeltaAt(epsilon)
            best = self._refine(scout, aim, tolerance, answer)
            smallest = max(best.lower, min(best.upper, float(np.exp(aim.log_delta))), 1e-280)
            return self._closer(best, aim, smallest, tolerance, answer)

    @cached_property
    def _mixtures(self) -> list[tuple[GroupPair, int]]:
        """The laws as mixtures of Gaussians; empty if one of them is none."""
        pairs = [mixture(law.upper) if law.upper is law.lower else None for law in self.laws]
        parts = [(pair, law.count) for pair, law in zip(pairs, self.laws, strict=True) if pair]
        return parts if len(parts) == len(pairs) else []

    def is_unsuited(self, scout: Scout, aim: Aim, step: float) -> bool:
        """A lattice would be very long, or its rounding, e^{K - t epsilon} / delta times enlarged, all there is."""
        longest = max(float(losses[-1]) for losses, _, _ in scout.parts)
        enlarged = scout.moments(aim.tilt).value - aim.tilt * aim.epsilon - aim.log_delta
        return longest > LONG * step or (aim.tilt > 0 and enlarged > LOUD)

    def _closer(self, best: Bounds, aim: Aim, delta: float, tolerance: float, answer: Answer) -> Bounds:
        """Where the lattice is not at home: the same question in positive arithmetic."""
        resolution = COARSE
        if answer.is_rounded_away(ROUNDING_OF_DIRECT * self.steps, 1.0):
            return best
        if tolerance == TOLERANCE and (delta < FAR_DELTA or aim.epsilon > FAR_EPSILON):
            tolerance = FAR_TOLERANCE
        while answer.gap(best) > tolerance and resolution >= FINEST and self._mixtures:
            try:
                bounds, gap = answer.measure(Direct(self._mixtures, delta, resolution))
            except FloatingPointError:
                break
            best = best.also(bounds)
            finer = resolution * min(0.8 * float(np.sqrt(tolerance / max(gap, 1e-12))), 0.7)
            # Near the goal the finest may do, where each end is taken from whoever knows it best.
            near = answer.gap(best) <= 5 * tolerance and resolution > FINEST
            resolution = max(finer, FINEST) if near else finer
        return best

    def lattice_near(self, epsilon: float, tolerance: float) -> Lattice | None:
        """A lattice for what happens near ``epsilon``; none beyond the range of double precision."""
        with quiet():
            scout, aim = self._at_epsilon(epsilon)
            spread = float(np.sqrt(max(scout.moments(aim.tilt).variance, 1e-300)))
            step = step_for(0.3 * tolerance * _DeltaAt(epsilon).scale(aim, spread), self.steps, aim.tilt)
            try:
                return build(self.laws, scout, aim, step)[0]
            except FloatingPointError:
                return None

    def bulk(self, tolerance: float) -> Lattice:
        """A lattice for the bulk of the law: trade-offs at false-alarm rates that are not tiny."""
        with quiet():
            return self._bulk(tolerance)

    def _bulk(self, tolerance: float) -> Lattice:
        scout = self.scout(float(np.log(1e-9)))
        moments = scout.moments(0.0)
        aim = Aim(0.0, max(moments.mean, 0.0), float(np.log(1e-9)))
        return build(self.laws, scout, aim, step_for(tolerance * np.sqrt(moments.variance), self.steps, 0.0))[
            0
        ]

    def first_step(self, scout: Scout, aim: Aim, tolerance: float, answer: Answer) -> float:
        """A grid that should bring the two laws as near as ``tolerance``."""
        spread = float(np.sqrt(max(scout.moments(aim.tilt).variance, 1e-300)))
        width = tolerance * answer.scale(aim, spread)
        step = scout.suit_step(step_for(width, self.steps, aim.tilt), aim.tilt, width)
        return min(step, 0.1 * spread) if aim.tilt == 0 and spread > 1e-12 else step

    def _refine(self, scout: Scout, aim: Aim, tolerance: float, answer: Answer) -> Bounds:
        """Finer grids until the answer is close enough, or finer ones stop helping."""
        step = self.first_step(scout, aim, tolerance, answer)
        best, last_gap, drowned = Bounds(0.0, np.inf), np.inf, False
        for attempt in range(6):
            if tolerance >= FINE and self.is_unsuited(scout, aim, step) and self._mixtures:
                break
            try:
                lattice, limit = build(self.laws, scout, aim, step)
            except FloatingPointError:
                break
            bounds, gap = answer.measure(lattice)
            best = best.also(bounds)
            stuck = limit >= step or (attempt > 1 and 0.8 * last_gap < gap < 1.0)
            drowned, before = answer.is_drowned(lattice), drowned
            rounded_away = answer.is_rounded_away(lattice.rounding(aim.epsilon)[0], tolerance)
            if gap <= tolerance or stuck or (drowned and before) or rounded_away:
                break
            last_gap = gap
            step *= max(0.2, 0.85 * np.sqrt(tolerance / gap)) if np.isfinite(gap) else 0.2
        return Bounds(float(best.lower), float(best.upper))


class OnGrid(Protocol):
    """One direction of a composition, on a grid if it has one."""

    def bounds_on_grid(self, at: float, deltas: Sequence[float], tolerance: float) -> list[Bounds] | None: ...


def bounds_by_all(each: Iterable[OnGrid], at: float, deltas: Sequence[float]) -> dict[float, Bounds]:
    """The worst direction's epsilon at those of ``deltas`` where the grids for the delta ``at`` are close enough."""
    shown = []
    for composed in each:
        found = composed.bounds_on_grid(at, deltas, 7e-4)
        if found is None:
            return {}
        shown.append(found)
    worst = {
        delta: Bounds.of_largest(every) for delta, every in zip(deltas, zip(*shown, strict=True), strict=True)
    }
    return {
        delta: Bounds(float(lower), float(upper))
        for delta, (lower, upper) in worst.items()
        if upper - lower <= 1e-3 * max(upper, SMALLEST_EPSILON)
    }


class Enclosed(Protocol):
    """A curve between two that are proved. Both methods return a delta and the slope of its logarithm."""

    def delta_upper(self, epsilon: float) -> tuple[float, float]: ...

    def delta_lower(self, epsilon: float) -> tuple[float, float]: ...


class Answer(Protocol):
    """What is asked of a lattice."""

    def scale(self, aim: Aim, spread: float) -> float:
        """How far apart in epsilon the two laws may be, per unit of tolerance."""

    def measure(self, curve: Enclosed) -> tuple[Bounds, float]:
        """Proved bounds, and their relative gap."""

    def gap(self, bounds: Bounds) -> float:
        """The relative gap of bounds."""

    def is_drowned(self, lattice: Lattice) -> bool:
        """The lattice's own errors are as large as the answer, so finer grids do not help."""

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        """Losses that rounding moved by ``shift`` show nothing as close as ``tolerance``, on whatever grid."""


@dataclass(frozen=True)
class EpsilonAt:
    delta: float
    aim: Aim

    def scale(self, aim: Aim, spread: float) -> float:
        return max(aim.epsilon, SMALLEST_EPSILON)

    def measure(self, curve: Enclosed) -> tuple[Bounds, float]:
        top = 1e15
        if isinstance(curve, Lattice):
            top = min(curve.end + 700.0 / max(curve.tilt, 1e-3), top)
        upper = proved_epsilon(curve.delta_upper, self.delta, self.aim.epsilon, top)
        lower = refuted_epsilon(curve.delta_lower, self.delta, self.aim.epsilon, min(top, upper))
        bounds = Bounds(float(lower), float(upper))
        return bounds, self.gap(bounds)

    def gap(self, bounds: Bounds) -> float:
        lower, upper = bounds
        return (upper - lower) / max(upper, SMALLEST_EPSILON) if upper < np.inf else np.inf

    def is_drowned(self, lattice: Lattice) -> bool:
        return lattice.floor(self.aim.epsilon) > 0.3 * self.delta

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        return shift > tolerance * max(self.aim.epsilon, SMALLEST_EPSILON * tolerance)


@dataclass(frozen=True)
class _DeltaAt:
    epsilon: float

    def scale(self, aim: Aim, spread: float) -> float:
        return 1.0 / max(aim.tilt, 1.0 / spread)

    def measure(self, curve: Enclosed) -> tuple[Bounds, float]:
        lower, upper = curve.delta_lower(self.epsilon)[0], curve.delta_upper(self.epsilon)[0]
        bounds = Bounds(lower if lower > 0 else 0.0, max(upper, 1e-300))
        return bounds, bounds.gap

    def gap(self, bounds: Bounds) -> float:
        return bounds.gap

    def is_drowned(self, lattice: Lattice) -> bool:
        return lattice.floor(self.epsilon) > 0.3 * lattice.delta_upper(self.epsilon)[0]

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        return shift > max(tolerance * self.epsilon, tolerance)


# Where a bound on delta crosses a given delta: a search that need not be trusted, and a check that is.


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


class OneStep:
    """A single release: its curve is known in closed form, P(L > epsilon) - e^epsilon Q(L > epsilon)."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._proved: dict[float, float] = {}

    def estimate_epsilon(self, delta: float) -> float:
        """The upper bound itself."""
        if delta not in self._proved:
            high = max(self.law.upper.p_range(float(np.log(delta)))[1], 0.0)  # P(L > high) <= delta already
            self._proved[delta] = proved_epsilon(self._upper, delta, high, 1.01 * high + 1e-3, 1e-13)
        return self._proved[delta]

    def estimate_delta(self, epsilon: float) -> float:
        return self._upper(epsilon)[0]

    def lattice_near(self, epsilon: float, tolerance: float) -> Lattice | None:
        return Composed([self.law]).lattice_near(epsilon, tolerance)

    def epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        upper = self.estimate_epsilon(delta)
        return Bounds(refuted_epsilon(self._lower, delta, upper * (1 - 1e-9), upper, 1e-13), upper)

    def bounds_on_grid(self, at: float, deltas: Sequence[float], tolerance: float) -> None:
        """Nothing: a single release has no grid."""

    def stays_below(self, delta: float, epsilon: float, tolerance: float) -> bool:
        """Proved that delta at ``epsilon`` is no more than ``delta``."""
        return self._upper(epsilon)[0] <= delta

    def delta_bounds(self, epsilon: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        return Bounds(self._lower(epsilon)[0], self._upper(epsilon)[0])

    def _upper(self, epsilon: float) -> tuple[float, float]:
        # A little to the left, so that no rounding of a boundary can hide mass.
        delta, tail, error, infinite = self._exact(self.law.upper, epsilon * (1 - 1e-13) - 4e-16)
        return min(1.0, delta + error + infinite), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    def _lower(self, epsilon: float) -> tuple[float, float]:
        delta, tail, error, _ = self._exact(self.law.lower, epsilon * (1 + 1e-13) + 4e-16)
        return max(0.0, delta - error), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    @staticmethod
    def _exact(pair: Pair, epsilon: float) -> tuple[float, float, float, float]:
        """delta, P(L > epsilon), the error of delta, and the mass at infinite loss."""
        with quiet():
            cells = pair.cells(np.array([-np.inf, epsilon, np.inf]))
        p, q = float(cells.p[1]), float(cells.q[1])
        scaled_q = float(np.exp(min(epsilon + np.log(q), 700.0))) if q > 0 else 0.0
        underflow = float(np.exp(min(epsilon - 690.0, 700.0)))  # what a q below 1e-300 may hide
        error = (
            cell_accuracy(float(np.log(max(p, 1e-300))) - max(epsilon, 0.0)) * (p + scaled_q)
            + underflow
            + 1e-300
        )
        return max(p - scaled_q, 0.0), p, error, cells.p_above
