"""How to look for a certified answer: which lattices to build, how fine, and when to stop.

Nothing here is a guarantee. The search returns lower bounds and designs of lattices. The upper end of an answer is
the one that its :class:`~discreet.accounting.certify.Proof` kept while it built what the search proposed, whatever
the search returns. A bad search makes bounds wide or slow, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from discreet.accounting.attained import has_other_floor, without_boxes
from discreet.accounting.building import CUT, Design, Law, build
from discreet.accounting.certify import ROUGH, Evidence, OneStep, Proof, mixtures, quiet
from discreet.accounting.direct import Direct
from discreet.accounting.dominating import Direction, Quality
from discreet.accounting.grids import design, step_for
from discreet.accounting.largest import ULPS, delta_near_largest, epsilon_near_largest
from discreet.accounting.lattice import (
    OMITTED,
    PESSIMISTIC,
    Lattice,
    largest_weight,
    times_exp,
)
from discreet.accounting.optimistic import delta_lower, refuted_epsilon
from discreet.accounting.steering import Aim, Bound, Scout, crossing
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

    Its results are lower ends. Upper ends are what a :class:`~discreet.accounting.certify.Proof` noted meanwhile.
    """

    def __init__(self, curve: PrivacyCurve, is_floor: bool) -> None:
        self._curve, self._is_floor = curve, is_floor
        self.in_direction = lru_cache(maxsize=8)(self._in_direction)

    def _in_direction(self, direction: Direction, quality: Quality) -> DirectionSearch:
        laws = self._curve._laws_of(direction, quality)
        single = len(laws) == 1 and laws[0].count == 1
        return OneStepSearch(laws, direction, quality) if single else Search(laws, direction, quality)

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
        exposure = self._curve._parts.exposure
        lower = hidden.lower
        if exposure.upper > 0:
            share = (
                (delta - exposure.lower) / (1 - exposure.lower) * (1 + ULPS) if exposure.lower < 1 else -1.0
            )
            lower = self._curve._hidden_epsilon(share, tolerance).lower
        if self.floor is not None:
            lower = self.floor.epsilon_bounds(delta).lower
        return min(lower, hidden.upper) if self.floor is not None else lower

    def lower_delta(self, epsilon: float, hidden: Bounds, upper: float) -> float:
        """The lower bound on delta at ``epsilon``, given the bounds of everything but full exposure."""
        if self.floor is not None:
            return min(self.floor.delta_bounds(epsilon).lower, upper)
        exposed = self._curve._parts.exposure.lower
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
        quality = Quality(delta * 1e-5, tolerance)
        largest = {name: proof.largest_loss(name) for name in proof.parts.directions()}
        estimates = {
            name: min(self.in_direction(name, quality).estimate_epsilon(delta), largest[name])
            for name in largest
        }
        top = max(estimates.values())
        lower = upper = 0.0
        for direction in sorted(estimates, key=lambda name: -estimates[name]):
            if largest[direction] * (1 + ULPS) <= min(lower, upper):
                continue
            search = self.in_direction(direction, quality)
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
        return max(epsilon_near_largest(proof.laws(name), delta).lower for name in names)

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
        near_top = delta_near_largest(proof.laws(direction), epsilon)
        if near_top.upper - near_top.lower <= 1e-9 * near_top.upper:
            return near_top.lower
        quality = Quality(1e-12, tolerance)
        for _ in range(8):  # what is cut off must be small beside delta, which is not known yet
            guess = self.in_direction(direction, quality).estimate_delta(epsilon)
            if guess * 1e-5 >= quality.tail or quality.tail <= LEAST_DELTA:
                break
            quality = Quality(max(guess * 1e-6, LEAST_DELTA), tolerance)
        search = self.in_direction(direction, quality)
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
    epsilon = max(crossing(upper, delta, guess, top, accuracy), 0.0)
    nudge = max(accuracy * epsilon, 1e-15)
    while epsilon <= min(top, 1e300):
        if upper(epsilon)[0] <= delta:
            return epsilon
        epsilon, nudge = epsilon + nudge, 4 * nudge
    return np.inf


def epsilon_on(curve: Lattice | Direct, delta: float, guess: float) -> float:
    """The epsilon that ``curve`` proves at ``delta``, looked for near ``guess``."""
    return float(proved_epsilon(curve.delta_upper, delta, guess, largest_epsilon(curve)))


def largest_epsilon(curve: Lattice | Direct) -> float:
    """An epsilon beyond which nobody looks."""
    end = curve.end + 700.0 / max(curve.tilt, 1e-3) if isinstance(curve, Lattice) else np.inf
    return float(min(end, 1e15))


Curve = TypeVar("Curve", Lattice, Direct)


@dataclass
class Attempt:
    """Proposes to a proof in one direction, and reads the results near a guess.

    ``read`` notes a point of a curve and returns the upper bound that was asked for.
    """

    proof: Proof
    direction: Direction
    quality: Quality
    read: Callable[[Evidence[Any], float], float]
    upper: float = np.inf

    def on_grid(self, proposed: Design, guess: float) -> tuple[Lattice, float]:
        """A lattice and the upper bound that it proves."""
        return self._read(self.proof.on_grid(self.direction, self.quality, proposed, False), guess)

    def directly(self, delta: float, resolution: float, guess: float) -> tuple[Direct, float]:
        """Sums in positive arithmetic and the upper bound that they prove."""
        return self._read(self.proof.directly(self.direction, self.quality, delta, resolution), guess)

    def _read(self, evidence: Evidence[Curve], guess: float) -> tuple[Curve, float]:
        bound = self.read(evidence, guess)
        self.upper = min(self.upper, bound)
        return evidence.curve, bound


class DirectionSearch(Protocol):
    """The search in one direction."""

    laws: tuple[Law, ...]

    def estimate_epsilon(self, delta: float) -> float: ...

    def estimate_delta(self, epsilon: float) -> float: ...

    def epsilon_bounds(self, proof: Proof, delta: float, tolerance: float) -> Bounds: ...

    def delta_bounds(self, proof: Proof, epsilon: float, tolerance: float) -> Bounds: ...

    def stays_below(self, proof: Proof, delta: float, epsilon: float, tolerance: float) -> bool:
        """Try to prove that delta at ``epsilon`` is no more than ``delta``."""


class OneStepSearch:
    """A single release: its curve is known in closed form."""

    def __init__(self, laws: Sequence[Law], direction: Direction, quality: Quality) -> None:
        self.laws, self.direction, self.quality = tuple(laws), direction, quality
        self._upper, self._lower = OneStep(laws[0].upper), OneStep(laws[0].lower)
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
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        upper = self.estimate_epsilon(delta)
        self._note(proof, upper)
        return Bounds(refuted_epsilon(self.delta_lower, delta, upper * (1 - 1e-9), upper, 1e-13), upper)

    def stays_below(self, proof: Proof, delta: float, epsilon: float, tolerance: float) -> bool:
        return self._note(proof, epsilon) <= delta

    def delta_bounds(self, proof: Proof, epsilon: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        return Bounds(self.delta_lower(epsilon)[0], self._note(proof, epsilon))

    def _note(self, proof: Proof, epsilon: float) -> float:
        evidence = proof.one_step(self.direction, self.quality)
        return evidence.note(epsilon) if evidence else 1.0

    def delta_lower(self, epsilon: float) -> tuple[float, float]:
        """A proved lower bound on delta(epsilon), and the slope of its logarithm (not proved)."""
        delta, tail, error, _ = self._lower.exact(epsilon * (1 + 1e-13) + 4e-16)
        return max(0.0, delta - error), -max(tail - delta, 1e-300) / max(delta, 1e-300)


class Search:
    """The search in one direction of a composition."""

    def __init__(
        self, laws: Sequence[Law], direction: Direction = "remove", quality: Quality = ROUGH
    ) -> None:
        self.laws, self.direction, self.quality = tuple(laws), direction, quality
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

    def epsilon_bounds(self, proof: Proof, delta: float, tolerance: float) -> Bounds:
        """Bounds on epsilon at ``delta``, as tight as ``tolerance`` of the upper one, if possible."""

        def read(evidence: Evidence[Any], guess: float) -> float:
            epsilon = epsilon_on(evidence.curve, delta, guess)
            evidence.note(epsilon)
            return epsilon

        attempt = Attempt(proof, self.direction, self.quality, read)
        with quiet():
            try:
                return Bounds(self.epsilon(delta, tolerance, attempt), attempt.upper)
            except FloatingPointError:  # nothing is known here
                return Bounds(0.0, np.inf)

    def delta_bounds(self, proof: Proof, epsilon: float, tolerance: float) -> Bounds:
        """Bounds on delta at ``epsilon``, as tight as ``tolerance`` of the upper one, if possible."""
        attempt = Attempt(
            proof, self.direction, self.quality, lambda evidence, _: max(evidence.note(epsilon), 1e-300)
        )
        with quiet():
            try:
                return Bounds(self.delta(epsilon, tolerance, attempt), attempt.upper)
            except FloatingPointError:
                return Bounds(0.0, 1.0)

    def stays_below(self, proof: Proof, delta: float, epsilon: float, tolerance: float) -> bool:
        """Try to prove that delta at ``epsilon`` is no more than ``delta``, on a grid that fits ``tolerance``.

        That is all that is asked of a direction which is not the worst one, and needs no optimistic law. False only
        says that this grid does not show it.
        """
        with quiet():
            try:
                proposed = self.design_at(delta, tolerance)
                if proposed is None:
                    return False
                evidence = proof.on_grid(self.direction, self.quality, proposed[0], True)
                return evidence.note(epsilon) <= delta
            except FloatingPointError:
                return False

    def epsilon(self, delta: float, tolerance: float, proof: Attempt) -> float:
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

    def delta(self, epsilon: float, tolerance: float, proof: Attempt) -> float:
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
        self, best: Bounds, aim: Aim, delta: float, tolerance: float, answer: Answer, proof: Attempt
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

    def _refine(self, scout: Scout, aim: Aim, tolerance: float, answer: Answer, proof: Attempt) -> Bounds:
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
