"""How to look for a certified answer: which lattices to build, how fine, and when to stop.

Nothing here is a guarantee. The search returns lower bounds and designs of lattices. The upper end of an answer is
the one that its :class:`~discreet.accounting.certified_bounds.Proof` kept while it built what the search proposed,
whatever the search returns. A bad search makes bounds wide or slow, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from discreet.accounting.attained import has_other_floor, without_boxes
from discreet.accounting.certified_bounds import (
    ROUGH,
    Evidence,
    Proof,
    SingleRelease,
    ignore_fp_errors,
    mixtures,
)
from discreet.accounting.convolve_direct import Direct
from discreet.accounting.discretisation import CUT, Design, LossDistribution, build
from discreet.accounting.dominating import Direction, Tolerances
from discreet.accounting.grids import design, step_for
from discreet.accounting.lattice import (
    OMITTED,
    PESSIMISTIC,
    LossLattice,
    largest_weight,
    times_exp,
)
from discreet.accounting.max_loss import ULPS, delta_near_largest, epsilon_near_largest
from discreet.accounting.optimistic import delta_lower, refuted_epsilon
from discreet.accounting.saddlepoint import Bound, SaddlepointEstimate, SaddlepointTarget, crossing_point
from discreet.errors import AccuracyNotReached, DiscreetError, real
from discreet.guarantee import Bounds

if TYPE_CHECKING:
    from discreet.accounting.curve import PrivacyCurve

LONG, LOUD = 2**17, 20.0  # grid points, and logarithm of the enlargement, from which lattices are not tried
FINE = 2e-4  # tolerances that positive arithmetic does not reach
COARSE, FINEST = 1 / 32, 1 / 110  # resolutions of sums in positive arithmetic, in standard deviations
TOLERANCE = 1e-3  # relative, of an epsilon for which none was asked
# Positive arithmetic is slow. Without a tolerance that was asked for, this must do at deltas and epsilons of no use.
FAR_TOLERANCE, FAR_DELTA, FAR_EPSILON = 2e-3, 1e-30, 100.0
ROUNDING_OF_DIRECT = 6e-14  # of a loss, in positive arithmetic, at least
SMALLEST_EPSILON = 1e-4  # below this the tolerance is absolute
LEAST_DELTA = 1e-290  # below which no arithmetic follows


class CurveSearch:
    """The search for bounds on a whole privacy curve: which directions, and which kinds of bounds.

    Its results are lower ends. Upper ends are what a :class:`~discreet.accounting.certified_bounds.Proof` noted
    meanwhile.
    """

    def __init__(self, curve: PrivacyCurve, is_floor: bool) -> None:
        self._curve, self._is_floor = curve, is_floor
        self.in_direction = lru_cache(maxsize=8)(self._in_direction)

    def _in_direction(self, direction: Direction, tolerances: Tolerances) -> DirectionSearch:
        plds = self._curve._plds_of(direction, tolerances)
        single = len(plds) == 1 and plds[0].count == 1
        return OneStepSearch(plds, direction, tolerances) if single else Search(plds, direction, tolerances)

    @cached_property
    def floor(self) -> PrivacyCurve | None:
        """The curve that bounds this one from below, where that of its pair is larger than any two data sets'."""
        curve = self._curve
        if self._is_floor or not has_other_floor(curve.event):
            return None
        return type(curve)(curve.event, curve.neighbours, curve.group_size, floor=True)

    @cached_property
    def without_boxes(self) -> PrivacyCurve:
        """Everything but black boxes: no more is known from below."""
        curve = self._curve
        rest = without_boxes(curve.event)
        return type(curve)(rest, curve.neighbours, curve.group_size, floor=self._is_floor)

    @cached_property
    def largest(self) -> float:
        """The epsilon of pure differential privacy, up to ``ULPS``."""
        proof = self._curve._proof()
        return max(proof.largest_loss(name) for name in proof.parts.directions())

    def vanishes(self, epsilon: float) -> bool:
        """Whether nothing is left of delta but rounding."""
        return epsilon >= self.largest * (1 - 1e-12)

    def lower_epsilon(self, delta: float, hidden: Bounds, tolerance: float) -> float:
        """The lower bound on epsilon at ``delta``, given the bounds of everything but full exposure."""
        infinity_mass = self._curve._parts.infinity_mass
        lower = hidden.lower
        if infinity_mass.upper > 0:
            share = (
                (delta - infinity_mass.lower) / (1 - infinity_mass.lower) * (1 + ULPS)
                if infinity_mass.lower < 1
                else -1.0
            )
            lower = self._curve._hidden_epsilon(share, tolerance).lower
        if self.floor is not None:
            lower = self.floor.epsilon_bounds(delta).lower
        return min(lower, hidden.upper) if self.floor is not None else lower

    def lower_delta(self, epsilon: float, hidden: Bounds, upper: float) -> float:
        """The lower bound on delta at ``epsilon``, given the bounds of everything but full exposure."""
        if self.floor is not None:
            return min(self.floor.delta_bounds(epsilon).lower, upper)
        exposed = self._curve._parts.infinity_mass.lower
        return (exposed + (1 - exposed) * hidden.lower) * (1 - ULPS)

    def epsilon(self, proof: Proof, delta: float, tolerance: float) -> float:
        """A lower bound on epsilon at ``delta``, after upper bounds were proved."""
        if delta == 0:
            return self.largest * (1 - ULPS)
        if proof.parts.boxes:
            if delta < LEAST_DELTA:
                return self._curve._hidden_epsilon(LEAST_DELTA, tolerance).lower
            self._note_simple_epsilon(proof, delta)
            return self.without_boxes._hidden_epsilon(delta, tolerance).lower
        if delta < LEAST_DELTA:  # as if it were 0, from above
            proof.note_epsilon_without_sampling(delta)
            # The upper one is far away.
            return self._curve._hidden_epsilon(LEAST_DELTA, max(tolerance, 0.02)).lower
        lower, top = self._near_largest(proof, delta), self.largest * (1 + ULPS)
        if top < np.inf and top - lower <= 1e-9 * top:
            return lower
        for bounds in self._epsilons(proof, delta, tolerance):
            lower = max(lower, bounds.lower)
        upper = proof.epsilon(delta)
        if not upper - lower <= tolerance * min(max(upper, SMALLEST_EPSILON), 1e300):
            self._note_simple_epsilon(proof, delta)
        return lower

    def _epsilons(self, proof: Proof, delta: float, tolerance: float) -> Iterator[Bounds]:
        """Bounds for every direction that can be the worst one."""
        tolerances = Tolerances(delta * 1e-5, tolerance)
        largest = {name: proof.largest_loss(name) for name in proof.parts.directions()}
        estimates = {
            name: min(self.in_direction(name, tolerances).estimate_epsilon(delta), largest[name])
            for name in largest
        }
        top = max(estimates.values())
        lower = upper = 0.0
        for direction in sorted(estimates, key=lambda name: -estimates[name]):
            if largest[direction] * (1 + ULPS) <= min(lower, upper):
                continue
            search = self.in_direction(direction, tolerances)
            # A direction that is clearly not the worst one is only shown to be that.
            room = 0.5 * (top - estimates[direction]) / max(top, SMALLEST_EPSILON)
            if room > tolerance and search.stays_below(proof, delta, upper, min(0.03, room)):
                continue
            bounds = search.epsilon_bounds(proof, delta, tolerance)
            lower, upper = max(lower, bounds.lower), max(upper, bounds.upper)
            yield bounds

    @staticmethod
    def _near_largest(proof: Proof, delta: float) -> float:
        """A lower bound on epsilon from the atoms of largest loss, where there are any."""
        names = proof.parts.directions()
        if max(proof.largest_loss(name) for name in names) == np.inf:
            return 0.0
        return max(epsilon_near_largest(proof.plds(name), delta).lower for name in names)

    @staticmethod
    def _note_simple_epsilon(proof: Proof, delta: float) -> None:
        """The bounds that always exist: by moments, and without the help of sampling."""
        proof.note_epsilon_by_moments(delta, delta)
        proof.note_epsilon_without_sampling(delta)

    def simple_epsilon(self, delta: float) -> float:
        """The best of the bounds that always exist."""
        proof = self._curve._proof()
        self._note_simple_epsilon(proof, delta)
        return proof.epsilon(delta)

    def delta(self, proof: Proof, epsilon: float, tolerance: float) -> float:
        """A lower bound on delta at ``epsilon``, after upper bounds were proved."""
        if proof.parts.boxes:
            for about in (1e-15, 0.0):
                proof.note_delta_by_moments(epsilon, about or max(proof.delta(epsilon), LEAST_DELTA))
                proof.note_delta_without_sampling(epsilon)
            return self.without_boxes._hidden_delta(epsilon, tolerance).lower
        lower = 0.0
        for name in proof.parts.directions():
            if not epsilon >= proof.largest_loss(name) * (1 + ULPS):
                lower = max(lower, self._delta_in(name, proof, epsilon, tolerance))
        upper = proof.delta(epsilon)
        if not upper - lower <= tolerance * upper:
            proof.note_delta_by_moments(epsilon, max(lower, LEAST_DELTA))
            proof.note_delta_without_sampling(epsilon)
        return lower

    def _delta_in(self, direction: Direction, proof: Proof, epsilon: float, tolerance: float) -> float:
        proof.note_near_largest(direction, epsilon)
        near_top = delta_near_largest(proof.plds(direction), epsilon)
        if near_top.upper - near_top.lower <= 1e-9 * near_top.upper:
            return near_top.lower
        tolerances = Tolerances(1e-12, tolerance)
        for _ in range(8):  # what is cut off must be small beside delta, which is not known yet
            guess = self.in_direction(direction, tolerances).estimate_delta(epsilon)
            if guess * 1e-5 >= tolerances.tail or tolerances.tail <= LEAST_DELTA:
                break
            tolerances = Tolerances(max(guess * 1e-6, LEAST_DELTA), tolerance)
        search = self.in_direction(direction, tolerances)
        return max(near_top.lower, search.delta_bounds(proof, epsilon, tolerance).lower)


def refuse_wide(bounds: Bounds, name: str, tolerance: float | None, floor: float) -> None:
    """Raise if bounds contradict each other, or do not keep a tolerance that was asked for."""
    lower, upper = bounds
    if lower > upper * (1 + 1e-9):
        raise DiscreetError(f"the bounds {bounds} on {name} contradict each other; please report the event")
    if tolerance is None or lower == upper or upper - lower <= tolerance * min(max(upper, floor), 1e300):
        return
    raise AccuracyNotReached(
        f"{name} is between {lower:.6g} and {upper:.6g}, which is wider than the tolerance "
        f"{tolerance:g}; ask for a larger tolerance, or for none.",
        (lower, upper),
    )


def tolerance_asked(asked: float | None, default: float) -> float:
    """The tolerance that was asked for, checked, or the default."""
    if asked is None:
        return default
    wanted = real("tolerance", asked, at_least=1e-6, below=1)
    # One that was asked for is kept everywhere.
    return wanted if wanted != default else math.nextafter(default, 0.0)


def proved_epsilon(upper: Bound, delta: float, guess: float, top: float, accuracy: float = 1e-9) -> float:
    """An epsilon >= 0, as small as found, with upper(epsilon) <= delta; infinity if there is none below ``top``."""
    if upper(0.0)[0] <= delta:
        return 0.0
    epsilon = max(crossing_point(upper, delta, guess, top, accuracy), 0.0)
    nudge = max(accuracy * epsilon, 1e-15)
    while epsilon <= min(top, 1e300):
        if upper(epsilon)[0] <= delta:
            return epsilon
        epsilon, nudge = epsilon + nudge, 4 * nudge
    return np.inf


def epsilon_on(curve: LossLattice | Direct, delta: float, guess: float) -> float:
    """The epsilon that ``curve`` proves at ``delta``, looked for near ``guess``."""
    return float(proved_epsilon(curve.delta_upper, delta, guess, largest_epsilon(curve)))


def largest_epsilon(curve: LossLattice | Direct) -> float:
    """An epsilon beyond which nobody looks."""
    end = curve.end + 700.0 / max(curve.tilt, 1e-3) if isinstance(curve, LossLattice) else np.inf
    return float(min(end, 1e15))


Curve = TypeVar("Curve", LossLattice, Direct)


@dataclass
class Attempt:
    """Proposes to a proof in one direction, and reads the results near a guess.

    ``read`` notes a point of a curve and returns the upper bound that was asked for.
    """

    proof: Proof
    direction: Direction
    tolerances: Tolerances
    read: Callable[[Evidence[Any], float], float]
    upper: float = np.inf

    def on_grid(self, proposed: Design, guess: float) -> tuple[LossLattice, float]:
        """A lattice and the upper bound that it proves."""
        return self._read(self.proof.on_grid(self.direction, self.tolerances, proposed, False), guess)

    def directly(self, delta: float, resolution: float, guess: float) -> tuple[Direct, float]:
        """Sums in positive arithmetic and the upper bound that they prove."""
        return self._read(self.proof.directly(self.direction, self.tolerances, delta, resolution), guess)

    def _read(self, evidence: Evidence[Curve], guess: float) -> tuple[Curve, float]:
        bound = self.read(evidence, guess)
        self.upper = min(self.upper, bound)
        return evidence.curve, bound


class DirectionSearch(Protocol):
    """The search in one direction."""

    plds: tuple[LossDistribution, ...]

    def estimate_epsilon(self, delta: float) -> float: ...

    def estimate_delta(self, epsilon: float) -> float: ...

    def epsilon_bounds(self, proof: Proof, delta: float, tolerance: float) -> Bounds: ...

    def delta_bounds(self, proof: Proof, epsilon: float, tolerance: float) -> Bounds: ...

    def stays_below(self, proof: Proof, delta: float, epsilon: float, tolerance: float) -> bool:
        """Try to prove that delta at ``epsilon`` is no more than ``delta``."""


class OneStepSearch:
    """A single release: its curve is known in closed form."""

    def __init__(
        self, plds: Sequence[LossDistribution], direction: Direction, tolerances: Tolerances
    ) -> None:
        self.plds, self.direction, self.tolerances = tuple(plds), direction, tolerances
        self._upper, self._lower = SingleRelease(plds[0].upper), SingleRelease(plds[0].lower)
        self._found: dict[float, float] = {}

    def estimate_epsilon(self, delta: float) -> float:
        """The upper bound itself."""
        if delta not in self._found:
            high = max(self._upper.pair.p_range(float(np.log(delta)))[1], 0.0)  # P(L > high) <= delta already
            top = 1.01 * high + 1e-3
            self._found[delta] = proved_epsilon(self._upper.delta_upper, delta, high, top, 1e-13)
        return self._found[delta]

    def estimate_delta(self, epsilon: float) -> float:
        return self._upper.delta_upper(epsilon)[0]

    def epsilon_bounds(self, proof: Proof, delta: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two distributions, if they differ)."""
        upper = self.estimate_epsilon(delta)
        self._note(proof, upper)
        return Bounds(refuted_epsilon(self.delta_lower, delta, upper * (1 - 1e-9), upper, 1e-13), upper)

    def stays_below(self, proof: Proof, delta: float, epsilon: float, tolerance: float) -> bool:
        return self._note(proof, epsilon) <= delta

    def delta_bounds(self, proof: Proof, epsilon: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two distributions, if they differ)."""
        return Bounds(self.delta_lower(epsilon)[0], self._note(proof, epsilon))

    def _note(self, proof: Proof, epsilon: float) -> float:
        evidence = proof.one_step(self.direction, self.tolerances)
        return evidence.note(epsilon) if evidence else 1.0

    def delta_lower(self, epsilon: float) -> tuple[float, float]:
        """A proved lower bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        delta, tail, error, _ = self._lower.exact(epsilon * (1 + 1e-13) + 4e-16)
        return max(0.0, delta - error), -max(tail - delta, 1e-300) / max(delta, 1e-300)


class Search:
    """The search in one direction of a composition."""

    def __init__(
        self,
        plds: Sequence[LossDistribution],
        direction: Direction = "remove",
        tolerances: Tolerances = ROUGH,
    ) -> None:
        self.plds, self.direction, self.tolerances = tuple(plds), direction, tolerances
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

    def epsilon_bounds(self, proof: Proof, delta: float, tolerance: float) -> Bounds:
        """Bounds on epsilon at ``delta``, as tight as ``tolerance`` of the upper one, if possible."""

        def read(evidence: Evidence[Any], guess: float) -> float:
            epsilon = epsilon_on(evidence.curve, delta, guess)
            evidence.note(epsilon)
            return epsilon

        attempt = Attempt(proof, self.direction, self.tolerances, read)
        with ignore_fp_errors():
            try:
                return Bounds(self.epsilon(delta, tolerance, attempt), attempt.upper)
            except FloatingPointError:  # nothing is known here
                return Bounds(0.0, np.inf)

    def delta_bounds(self, proof: Proof, epsilon: float, tolerance: float) -> Bounds:
        """Bounds on delta at ``epsilon``, as tight as ``tolerance`` of the upper one, if possible."""
        attempt = Attempt(
            proof, self.direction, self.tolerances, lambda evidence, _: max(evidence.note(epsilon), 1e-300)
        )
        with ignore_fp_errors():
            try:
                return Bounds(self.delta(epsilon, tolerance, attempt), attempt.upper)
            except FloatingPointError:
                return Bounds(0.0, 1.0)

    def stays_below(self, proof: Proof, delta: float, epsilon: float, tolerance: float) -> bool:
        """Try to prove that delta at ``epsilon`` is no more than ``delta``, on a grid that fits ``tolerance``.

        That is all that is asked of a direction which is not the worst one, and needs no optimistic distribution.
        False only says that this grid does not show it.
        """
        with ignore_fp_errors():
            try:
                proposed = self.design_at(delta, tolerance)
                if proposed is None:
                    return False
                evidence = proof.on_grid(self.direction, self.tolerances, proposed[0], True)
                return evidence.note(epsilon) <= delta
            except FloatingPointError:
                return False

    def epsilon(self, delta: float, tolerance: float, proof: Attempt) -> float:
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

    def delta(self, epsilon: float, tolerance: float, proof: Attempt) -> float:
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
        proof: Attempt,
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
        proof: Attempt,
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
