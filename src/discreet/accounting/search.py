"""How to look for a certified answer: which lattices to build, how fine, and when to stop.

Nothing here is a guarantee. The search returns lower bounds and designs of lattices. The upper end of an answer is
the one that its :class:`~discreet.accounting.certify.Proof` kept while it built what the search proposed, whatever
the search returns. A bad search makes bounds wide or slow, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from discreet.accounting.building import CUT, Design, Law, build
from discreet.accounting.certify import Composed, Proof, epsilon_on, largest_epsilon, mixtures
from discreet.accounting.direct import Direct
from discreet.accounting.grids import design, step_for
from discreet.accounting.lattice import (
    OMITTED,
    PESSIMISTIC,
    Lattice,
    largest_weight,
    times_exp,
)
from discreet.accounting.optimistic import delta_lower, refuted_epsilon
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


class Search:
    """The search in one direction of a composition."""

    def __init__(self, laws: Sequence[Law]) -> None:
        self.laws = tuple(laws)
        self.direct = bool(mixtures(laws))  # whether positive arithmetic covers them
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
            return float(np.exp(self.at_epsilon(epsilon)[1].log_delta))
        except FloatingPointError:
            return 1.0

    def at_delta(self, log_delta: float) -> tuple[Scout, Aim]:
        if log_delta not in self._aims:
            scout = self.scout(log_delta)
            self._aims[log_delta] = scout, scout.aim_at_delta(log_delta)
        return self._aims[log_delta]

    def at_epsilon(self, epsilon: float) -> tuple[Scout, Aim]:
        scout = self.scout(0.0)
        aim = scout.aim_at_epsilon(epsilon)
        if aim.log_delta < -2.0:  # rarer outcomes matter: look again with longer tails
            scout = self.scout(max(aim.log_delta, -690.0))
            aim = scout.aim_at_epsilon(epsilon)
        return scout, aim

    def epsilon(self, delta: float, tolerance: float, proof: Proof) -> float:
        """A lower bound on epsilon at ``delta``, after upper bounds were proved."""
        log_delta = float(np.log(delta))
        scout, aim = self.at_delta(log_delta)
        best = Bounds(0.0, np.inf)
        for _ in range(3):
            found = self._refine(scout, aim, tolerance, EpsilonAt(delta, aim), proof)
            best = best.also(found)
            missed = abs(found.upper - aim.epsilon) > 0.02 * found.upper
            if best.upper - best.lower <= tolerance * max(best.upper, SMALLEST_EPSILON) or not missed:
                break
            aim = replace(scout.aim_at_epsilon(min(best.upper, 1e12)), log_delta=log_delta)
            if aim.tilt > 1e10:  # beyond the largest loss
                break
        return self._closer(best, aim, delta, tolerance, EpsilonAt(delta, aim), proof).lower

    def delta(self, epsilon: float, tolerance: float, proof: Proof) -> float:
        """A lower bound on delta at ``epsilon``, after upper bounds were proved."""
        scout, aim = self.at_epsilon(epsilon)
        answer = DeltaAt(epsilon)
        best = self._refine(scout, aim, tolerance, answer, proof)
        smallest = max(best.lower, min(best.upper, float(np.exp(aim.log_delta))), 1e-280)
        return self._closer(best, aim, smallest, tolerance, answer, proof).lower

    def design_at(self, delta: float, tolerance: float) -> tuple[Design, Aim] | None:
        """A lattice at ``delta`` that fits ``tolerance``; None where positive arithmetic suits the laws better."""
        scout, aim = self.at_delta(float(np.log(delta)))
        step = self.first_step(scout, aim, tolerance, EpsilonAt(delta, aim))
        if tolerance >= FINE and self.is_unsuited(scout, aim, step) and self.direct:
            return None
        return design(self.laws, scout, aim, step)[0], aim

    def bounds_on_grid(self, at: float, deltas: Sequence[float], tolerance: float) -> list[Bounds] | None:
        """Bounds on epsilon at many deltas from the one grid that suits the delta ``at``; wide where it does not."""
        try:
            proposed = self.design_at(at, tolerance)
            if proposed is None:
                return None
            lattice, aim = build(self.laws, proposed[0]), proposed[1]
        except FloatingPointError:
            return None
        return [EpsilonAt(delta, aim).measure(lattice)[0] for delta in deltas]

    def is_unsuited(self, scout: Scout, aim: Aim, step: float) -> bool:
        """A lattice would be very long, or its rounding, e^{K - t epsilon} / delta times enlarged, all there is."""
        longest = max(float(losses[-1]) for losses, _, _ in scout.parts)
        enlarged = scout.moments(aim.tilt).value - aim.tilt * aim.epsilon - aim.log_delta
        return longest > LONG * step or (aim.tilt > 0 and enlarged > LOUD)

    def _closer(
        self, best: Bounds, aim: Aim, delta: float, tolerance: float, answer: Answer, proof: Proof
    ) -> Bounds:
        """Where the lattice is not at home: the same question in positive arithmetic."""
        resolution = COARSE
        if answer.is_rounded_away(ROUNDING_OF_DIRECT * self.steps, 1.0):
            return best
        if tolerance == TOLERANCE and (delta < FAR_DELTA or aim.epsilon > FAR_EPSILON):
            tolerance = FAR_TOLERANCE
        while answer.gap(best) > tolerance and resolution >= FINEST and self.direct:
            try:
                bounds, gap = answer.bounds(*proof.directly(delta, resolution, aim.epsilon))
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
        scout, aim = self.at_epsilon(epsilon)
        spread = float(np.sqrt(max(scout.moments(aim.tilt).variance, 1e-300)))
        step = step_for(0.3 * tolerance * DeltaAt(epsilon).scale(aim, spread), self.steps, aim.tilt)
        try:
            return build(self.laws, design(self.laws, scout, aim, step)[0])
        except FloatingPointError:
            return None

    def bulk(self, tolerance: float) -> Lattice:
        """A lattice for the bulk of the law: trade-offs at false-alarm rates that are not tiny."""
        scout = self.scout(float(np.log(1e-9)))
        moments = scout.moments(0.0)
        aim = Aim(0.0, max(moments.mean, 0.0), float(np.log(1e-9)))
        step = step_for(tolerance * np.sqrt(moments.variance), self.steps, 0.0)
        return build(self.laws, design(self.laws, scout, aim, step)[0])

    def first_step(self, scout: Scout, aim: Aim, tolerance: float, answer: Answer) -> float:
        """A grid that should bring the two laws as near as ``tolerance``."""
        spread = float(np.sqrt(max(scout.moments(aim.tilt).variance, 1e-300)))
        width = tolerance * answer.scale(aim, spread)
        step = scout.suit_step(step_for(width, self.steps, aim.tilt), aim.tilt, width)
        return min(step, 0.1 * spread) if aim.tilt == 0 and spread > 1e-12 else step

    def _refine(self, scout: Scout, aim: Aim, tolerance: float, answer: Answer, proof: Proof) -> Bounds:
        """Finer grids until the answer is close enough, or finer ones stop helping."""
        step = self.first_step(scout, aim, tolerance, answer)
        best, last_gap, drowned = Bounds(0.0, np.inf), np.inf, False
        for attempt in range(6):
            if tolerance >= FINE and self.is_unsuited(scout, aim, step) and self.direct:
                break
            try:
                proposed, limit = design(self.laws, scout, aim, step)
                lattice, upper = proof.on_grid(proposed, aim.epsilon)
            except FloatingPointError:
                break
            bounds, gap = answer.bounds(lattice, upper)
            best = best.also(bounds)
            stuck = limit >= step or (attempt > 1 and 0.8 * last_gap < gap < 1.0)
            drowned, before = answer.is_drowned(lattice), drowned
            rounded_away = answer.is_rounded_away(lattice.rounding(aim.epsilon)[0], tolerance)
            if gap <= tolerance or stuck or (drowned and before) or rounded_away:
                break
            last_gap = gap
            step *= max(0.2, 0.85 * np.sqrt(tolerance / gap)) if np.isfinite(gap) else 0.2
        return Bounds(float(best.lower), float(best.upper))


def composed(laws: Sequence[Law]) -> Composed:
    """One direction of a composition, with this search."""
    return Composed(laws, Search(laws))


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


class Answer(Protocol):
    """What is asked of a lattice."""

    def scale(self, aim: Aim, spread: float) -> float:
        """How far apart in epsilon the two laws may be, per unit of tolerance."""

    def bounds(self, curve: Lattice | Direct, upper: float) -> tuple[Bounds, float]:
        """Bounds of which the upper one was proved on ``curve``, and their relative gap."""

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

    def bounds(self, curve: Lattice | Direct, upper: float) -> tuple[Bounds, float]:
        top, guess = min(upper, largest_epsilon(curve)), self.aim.epsilon
        lower = refuted_epsilon(lambda epsilon: delta_lower(curve, epsilon), self.delta, guess, top)
        bounds = Bounds(float(lower), float(upper))
        return bounds, self.gap(bounds)

    def measure(self, curve: Lattice) -> tuple[Bounds, float]:
        """Bounds that ``curve`` proves, and their relative gap."""
        return self.bounds(curve, epsilon_on(curve, self.delta, self.aim.epsilon))

    def gap(self, bounds: Bounds) -> float:
        lower, upper = bounds
        return (upper - lower) / max(upper, SMALLEST_EPSILON) if upper < np.inf else np.inf

    def is_drowned(self, lattice: Lattice) -> bool:
        return _floor(lattice, self.aim.epsilon) > 0.3 * self.delta

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        return shift > tolerance * max(self.aim.epsilon, SMALLEST_EPSILON * tolerance)


@dataclass(frozen=True)
class DeltaAt:
    epsilon: float

    def scale(self, aim: Aim, spread: float) -> float:
        return 1.0 / max(aim.tilt, 1.0 / spread)

    def bounds(self, curve: Lattice | Direct, upper: float) -> tuple[Bounds, float]:
        lower = delta_lower(curve, self.epsilon)[0]
        bounds = Bounds(lower if lower > 0 else 0.0, upper)
        return bounds, bounds.gap

    def gap(self, bounds: Bounds) -> float:
        return bounds.gap

    def is_drowned(self, lattice: Lattice) -> bool:
        return _floor(lattice, self.epsilon) > 0.3 * lattice.delta_upper(self.epsilon)[0]

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        return shift > max(tolerance * self.epsilon, tolerance)


def _floor(lattice: Lattice, epsilon: float) -> float:
    """What numerical errors alone add to a delta, about: no finer grid brings it down."""
    errors = lattice.error * largest_weight(lattice.tilt) + OMITTED
    return times_exp(errors, lattice.log_unit(PESSIMISTIC, epsilon))
