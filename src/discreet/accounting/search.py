"""How to look for a certified answer: which lattices to build, how fine, and when to stop.

Nothing here is a guarantee. The search returns lower bounds and designs of lattices. The upper end of an answer is
the one that its :class:`~discreet.accounting.certified_bounds.Proof` kept while it built what the search proposed,
whatever the search returns. A bad search makes bounds wide or slow, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from discreet.accounting.certified_bounds import Composed, Proof, epsilon_on, largest_epsilon, mixtures
from discreet.accounting.convolve_direct import Direct
from discreet.accounting.discretisation import CUT, Design, LossDistribution, build
from discreet.accounting.grids import design, step_for
from discreet.accounting.lattice import (
    OMITTED,
    PESSIMISTIC,
    LossLattice,
    largest_weight,
    times_exp,
)
from discreet.accounting.optimistic import delta_lower, refuted_epsilon
from discreet.accounting.saddlepoint import SaddlepointEstimate, SaddlepointTarget
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

    def __init__(self, plds: Sequence[LossDistribution]) -> None:
        self.plds = tuple(plds)
        self.direct = bool(mixtures(plds))  # whether positive arithmetic covers them
        self.steps = sum(pld.count for pld in plds)
        self._targets: dict[float, tuple[SaddlepointEstimate, SaddlepointTarget]] = {}

    def estimate(self, log_delta: float) -> SaddlepointEstimate:
        return SaddlepointEstimate(
            [(pld.upper, pld.count) for pld in self.plds], log_delta + float(np.log(CUT / self.steps))
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

    def at_delta(self, log_delta: float) -> tuple[SaddlepointEstimate, SaddlepointTarget]:
        if log_delta not in self._targets:
            estimate = self.estimate(log_delta)
            self._targets[log_delta] = estimate, estimate.target_at_delta(log_delta)
        return self._targets[log_delta]

    def at_epsilon(self, epsilon: float) -> tuple[SaddlepointEstimate, SaddlepointTarget]:
        estimate = self.estimate(0.0)
        target = estimate.target_at_epsilon(epsilon)
        if target.log_delta < -2.0:  # rarer outcomes matter: look again with longer tails
            estimate = self.estimate(max(target.log_delta, -690.0))
            target = estimate.target_at_epsilon(epsilon)
        return estimate, target

    def epsilon(self, delta: float, tolerance: float, proof: Proof) -> float:
        """A lower bound on epsilon at ``delta``, after upper bounds were proved."""
        log_delta = float(np.log(delta))
        estimate, target = self.at_delta(log_delta)
        best = Bounds(0.0, np.inf)
        for _ in range(3):
            found = self._refine(estimate, target, tolerance, EpsilonAt(delta, target), proof)
            best = best.also(found)
            missed = abs(found.upper - target.epsilon) > 0.02 * found.upper
            if best.upper - best.lower <= tolerance * max(best.upper, SMALLEST_EPSILON) or not missed:
                break
            target = replace(estimate.target_at_epsilon(min(best.upper, 1e12)), log_delta=log_delta)
            if target.tilt > 1e10:  # beyond the largest loss
                break
        return self._closer(best, target, delta, tolerance, EpsilonAt(delta, target), proof).lower

    def delta(self, epsilon: float, tolerance: float, proof: Proof) -> float:
        """A lower bound on delta at ``epsilon``, after upper bounds were proved."""
        estimate, target = self.at_epsilon(epsilon)
        answer = DeltaAt(epsilon)
        best = self._refine(estimate, target, tolerance, answer, proof)
        smallest = max(best.lower, min(best.upper, float(np.exp(target.log_delta))), 1e-280)
        return self._closer(best, target, smallest, tolerance, answer, proof).lower

    def design_at(self, delta: float, tolerance: float) -> tuple[Design, SaddlepointTarget] | None:
        """A lattice at ``delta`` that fits ``tolerance``; None where positive arithmetic is better."""
        estimate, target = self.at_delta(float(np.log(delta)))
        step = self.first_step(estimate, target, tolerance, EpsilonAt(delta, target))
        if tolerance >= FINE and self.is_unsuited(estimate, target, step) and self.direct:
            return None
        return design(self.plds, estimate, target, step)[0], target

    def bounds_on_grid(self, at: float, deltas: Sequence[float], tolerance: float) -> list[Bounds] | None:
        """Bounds on epsilon at many deltas from the one grid that suits the delta ``at``; wide where it does not."""
        try:
            proposed = self.design_at(at, tolerance)
            if proposed is None:
                return None
            lattice, target = build(self.plds, proposed[0]), proposed[1]
        except FloatingPointError:
            return None
        return [EpsilonAt(delta, target).measure(lattice)[0] for delta in deltas]

    def is_unsuited(self, estimate: SaddlepointEstimate, target: SaddlepointTarget, step: float) -> bool:
        """A lattice would be very long, or its rounding, e^{K - t epsilon} / delta times enlarged, all there is."""
        longest = max(float(losses[-1]) for losses, _, _ in estimate.parts)
        enlarged = estimate.moments(target.tilt).value - target.tilt * target.epsilon - target.log_delta
        return longest > LONG * step or (target.tilt > 0 and enlarged > LOUD)

    def _closer(
        self,
        best: Bounds,
        target: SaddlepointTarget,
        delta: float,
        tolerance: float,
        answer: LatticeQuery,
        proof: Proof,
    ) -> Bounds:
        """Where the lattice is not at home: the same question in positive arithmetic."""
        resolution = COARSE
        if answer.is_rounded_away(ROUNDING_OF_DIRECT * self.steps, 1.0):
            return best
        if tolerance == TOLERANCE and (delta < FAR_DELTA or target.epsilon > FAR_EPSILON):
            tolerance = FAR_TOLERANCE
        while answer.gap(best) > tolerance and resolution >= FINEST and self.direct:
            try:
                bounds, gap = answer.bounds(*proof.directly(delta, resolution, target.epsilon))
            except FloatingPointError:
                break
            best = best.also(bounds)
            finer = resolution * min(0.8 * float(np.sqrt(tolerance / max(gap, 1e-12))), 0.7)
            # Near the goal the finest may do, where each end is taken from whoever knows it best.
            near = answer.gap(best) <= 5 * tolerance and resolution > FINEST
            resolution = max(finer, FINEST) if near else finer
        return best

    def lattice_near(self, epsilon: float, tolerance: float) -> LossLattice | None:
        """A lattice for what happens near ``epsilon``; none beyond the range of double precision."""
        estimate, target = self.at_epsilon(epsilon)
        spread = float(np.sqrt(max(estimate.moments(target.tilt).variance, 1e-300)))
        step = step_for(0.3 * tolerance * DeltaAt(epsilon).scale(target, spread), self.steps, target.tilt)
        try:
            return build(self.plds, design(self.plds, estimate, target, step)[0])
        except FloatingPointError:
            return None

    def bulk(self, tolerance: float) -> LossLattice:
        """A lattice for the bulk of the distribution: trade-offs at false-alarm rates that are not tiny."""
        estimate = self.estimate(float(np.log(1e-9)))
        moments = estimate.moments(0.0)
        target = SaddlepointTarget(0.0, max(moments.mean, 0.0), float(np.log(1e-9)))
        step = step_for(tolerance * np.sqrt(moments.variance), self.steps, 0.0)
        return build(self.plds, design(self.plds, estimate, target, step)[0])

    def first_step(
        self, estimate: SaddlepointEstimate, target: SaddlepointTarget, tolerance: float, answer: LatticeQuery
    ) -> float:
        """A grid that should bring the two distributions as near as ``tolerance``."""
        spread = float(np.sqrt(max(estimate.moments(target.tilt).variance, 1e-300)))
        width = tolerance * answer.scale(target, spread)
        step = estimate.suit_step(step_for(width, self.steps, target.tilt), target.tilt, width)
        return min(step, 0.1 * spread) if target.tilt == 0 and spread > 1e-12 else step

    def _refine(
        self,
        estimate: SaddlepointEstimate,
        target: SaddlepointTarget,
        tolerance: float,
        answer: LatticeQuery,
        proof: Proof,
    ) -> Bounds:
        """Finer grids until the answer is close enough, or finer ones stop helping."""
        step = self.first_step(estimate, target, tolerance, answer)
        best, last_gap, drowned = Bounds(0.0, np.inf), np.inf, False
        for attempt in range(6):
            if tolerance >= FINE and self.is_unsuited(estimate, target, step) and self.direct:
                break
            try:
                proposed, limit = design(self.plds, estimate, target, step)
                lattice, upper = proof.on_grid(proposed, target.epsilon)
            except FloatingPointError:
                break
            bounds, gap = answer.bounds(lattice, upper)
            best = best.also(bounds)
            stuck = limit >= step or (attempt > 1 and 0.8 * last_gap < gap < 1.0)
            drowned, before = answer.is_drowned(lattice), drowned
            rounded_away = answer.is_rounded_away(lattice.rounding(target.epsilon)[0], tolerance)
            if gap <= tolerance or stuck or (drowned and before) or rounded_away:
                break
            last_gap = gap
            step *= max(0.2, 0.85 * np.sqrt(tolerance / gap)) if np.isfinite(gap) else 0.2
        return Bounds(float(best.lower), float(best.upper))


def composed(plds: Sequence[LossDistribution]) -> Composed:
    """One direction of a composition, with this search."""
    return Composed(plds, Search(plds))


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


class LatticeQuery(Protocol):
    """What is asked of a lattice."""

    def scale(self, target: SaddlepointTarget, spread: float) -> float:
        """How far apart in epsilon the two distributions may be, per unit of tolerance."""

    def bounds(self, curve: LossLattice | Direct, upper: float) -> tuple[Bounds, float]:
        """Bounds of which the upper one was proved on ``curve``, and their relative gap."""

    def gap(self, bounds: Bounds) -> float:
        """The relative gap of bounds."""

    def is_drowned(self, lattice: LossLattice) -> bool:
        """The lattice's own errors are as large as the answer, so finer grids do not help."""

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        """Losses that rounding moved by ``shift`` show nothing as close as ``tolerance``, on whatever grid."""


@dataclass(frozen=True)
class EpsilonAt:
    delta: float
    target: SaddlepointTarget

    def scale(self, target: SaddlepointTarget, spread: float) -> float:
        return max(target.epsilon, SMALLEST_EPSILON)

    def bounds(self, curve: LossLattice | Direct, upper: float) -> tuple[Bounds, float]:
        top, guess = min(upper, largest_epsilon(curve)), self.target.epsilon
        lower = refuted_epsilon(lambda epsilon: delta_lower(curve, epsilon), self.delta, guess, top)
        bounds = Bounds(float(lower), float(upper))
        return bounds, self.gap(bounds)

    def measure(self, curve: LossLattice) -> tuple[Bounds, float]:
        """Bounds that ``curve`` proves, and their relative gap."""
        return self.bounds(curve, epsilon_on(curve, self.delta, self.target.epsilon))

    def gap(self, bounds: Bounds) -> float:
        lower, upper = bounds
        return (upper - lower) / max(upper, SMALLEST_EPSILON) if upper < np.inf else np.inf

    def is_drowned(self, lattice: LossLattice) -> bool:
        return _floor(lattice, self.target.epsilon) > 0.3 * self.delta

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        return shift > tolerance * max(self.target.epsilon, SMALLEST_EPSILON * tolerance)


@dataclass(frozen=True)
class DeltaAt:
    epsilon: float

    def scale(self, target: SaddlepointTarget, spread: float) -> float:
        return 1.0 / max(target.tilt, 1.0 / spread)

    def bounds(self, curve: LossLattice | Direct, upper: float) -> tuple[Bounds, float]:
        lower = delta_lower(curve, self.epsilon)[0]
        bounds = Bounds(lower if lower > 0 else 0.0, upper)
        return bounds, bounds.gap

    def gap(self, bounds: Bounds) -> float:
        return bounds.gap

    def is_drowned(self, lattice: LossLattice) -> bool:
        return _floor(lattice, self.epsilon) > 0.3 * lattice.delta_upper(self.epsilon)[0]

    def is_rounded_away(self, shift: float, tolerance: float) -> bool:
        return shift > max(tolerance * self.epsilon, tolerance)


def _floor(lattice: LossLattice, epsilon: float) -> float:
    """What numerical errors alone add to a delta, about: no finer grid brings it down."""
    errors = lattice.error * largest_weight(lattice.tilt) + OMITTED
    return times_exp(errors, lattice.log_unit(PESSIMISTIC, epsilon))
