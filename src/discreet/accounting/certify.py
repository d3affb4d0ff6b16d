"""Certified bounds for one direction of a composition: steer, put on a lattice, check, refine.

The search is heuristic, the answer is not: every number returned was checked against the proved
``delta_upper`` or ``delta_lower`` of a lattice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.lattice import Lattice, cell_accuracy, coarsen, compose, discretise, mass_outside
from discreet.accounting.pairs import Array, Pair
from discreet.accounting.steering import Aim, Scout
from discreet.guarantee import Bounds

CUT = 1e-6  # share of delta that cut tails and wrapped windows may cost, each
LARGEST = 2**21  # grid points; beyond that a coarser grid, and wider bounds, must do
MANY = 200_000  # releases from which a second, coarser grid pays
CORE = 0.2  # P-mass of a cell from which the grid is shifted onto its loss
SMALLEST_EPSILON = 1e-4  # below this the tolerance is absolute


def _quiet() -> np.errstate:
    """No warnings: a NaN or infinity turns an upper bound into 1 and a lower one into 0, never the other way."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")


@dataclass(frozen=True, eq=False)
class Law:
    """``count`` releases whose exact one-step curve lies between those of ``lower`` and ``upper``."""

    upper: Pair
    lower: Pair
    count: int


class Composed:
    """One direction of a composition. Both methods return proved bounds, as tight as ``tolerance`` if possible."""

    def __init__(self, laws: Sequence[Law]) -> None:
        self.laws = tuple(laws)
        self.steps = sum(law.count for law in laws)
        self._aims: dict[float, tuple[Scout, Aim]] = {}

    def _scout(self, log_delta: float) -> Scout:
        return Scout(
            [(law.upper, law.count) for law in self.laws], log_delta + float(np.log(CUT / self.steps))
        )

    def estimate_epsilon(self, delta: float) -> float:
        """Epsilon by the saddle-point method: about three digits, no guarantee."""
        return self._at_delta(float(np.log(delta)))[1].epsilon

    def estimate_delta(self, epsilon: float) -> float:
        """Delta by the saddle-point method: no guarantee."""
        return float(np.exp(self._at_epsilon(epsilon)[1].log_delta))

    def _at_delta(self, log_delta: float) -> tuple[Scout, Aim]:
        if log_delta not in self._aims:
            scout = self._scout(log_delta)
            self._aims[log_delta] = scout, scout.aim_at_delta(log_delta)
        return self._aims[log_delta]

    def _at_epsilon(self, epsilon: float) -> tuple[Scout, Aim]:
        scout = self._scout(0.0)
        aim = scout.aim_at_epsilon(epsilon)
        if aim.log_delta < -2.0:  # rarer outcomes matter: look again with longer tails
            scout = self._scout(max(aim.log_delta, -690.0))
            aim = scout.aim_at_epsilon(epsilon)
        return scout, aim

    def epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        """Bounds on epsilon at ``delta``; ``tolerance`` is relative to the upper one."""
        with _quiet():
            return self._epsilon_bounds(delta, tolerance)

    def _epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        log_delta = float(np.log(delta))
        scout, aim = self._at_delta(log_delta)
        best = Bounds(0.0, np.inf)
        for _ in range(3):
            found = self._refined(scout, aim, tolerance, _EpsilonAt(delta, aim))
            best = Bounds(max(best.lower, found.lower), min(best.upper, found.upper))
            missed = abs(found.upper - aim.epsilon) > 0.02 * found.upper
            if best.upper - best.lower <= tolerance * max(best.upper, SMALLEST_EPSILON) or not missed:
                break
            aim = replace(scout.aim_at_epsilon(min(best.upper, 1e12)), log_delta=log_delta)
            if aim.tilt > 1e10:  # beyond the largest loss
                break
        return best

    def delta_bounds(self, epsilon: float, tolerance: float) -> Bounds:
        """Bounds on delta at ``epsilon``; ``tolerance`` is relative to the upper one."""
        with _quiet():
            scout, aim = self._at_epsilon(epsilon)
            return self._refined(scout, aim, tolerance, _DeltaAt(epsilon))

    def untilted(self, tolerance: float) -> Lattice:
        """A lattice for the bulk of the law: trade-offs at false-alarm rates that are not tiny."""
        with _quiet():
            return self._untilted(tolerance)

    def _untilted(self, tolerance: float) -> Lattice:
        scout = self._scout(float(np.log(1e-9)))
        moments = scout.moments(0.0)
        aim = Aim(0.0, max(moments.mean, 0.0), float(np.log(1e-9)))
        return build(self.laws, scout, aim, _step(tolerance * np.sqrt(moments.variance), self.steps, 0.0))[0]

    def _refined(self, scout: Scout, aim: Aim, tolerance: float, answer: Answer) -> Bounds:
        """Finer grids until the answer is close enough, or finer ones stop helping."""
        spread = float(np.sqrt(max(scout.moments(aim.tilt).variance, 1e-300)))
        width = tolerance * answer.scale(aim, spread)
        step = scout.suited(_step(width, self.steps, aim.tilt), aim.tilt, width)
        step = min(step, 0.1 * spread) if aim.tilt == 0 and spread > 1e-12 else step
        best, last_gap = Bounds(0.0, np.inf), np.inf
        for attempt in range(6):
            try:
                lattice, limit = build(self.laws, scout, aim, step)
            except FloatingPointError:
                break
            bounds, gap = answer.measure(lattice)
            best = Bounds(max(best.lower, bounds.lower), min(best.upper, bounds.upper))
            if gap <= tolerance or limit >= step or (attempt > 1 and 0.8 * last_gap < gap < 1.0):
                break
            last_gap = gap
            step *= max(0.2, 0.85 * np.sqrt(tolerance / gap)) if np.isfinite(gap) else 0.2
        return Bounds(float(best.lower), float(best.upper))


class Answer(Protocol):
    """What is asked of a lattice."""

    def scale(self, aim: Aim, spread: float) -> float:
        """How far apart in epsilon the two laws may be, per unit of tolerance."""
        ...

    def measure(self, lattice: Lattice) -> tuple[Bounds, float]:
        """Proved bounds, and their relative gap."""
        ...


@dataclass(frozen=True)
class _EpsilonAt:
    delta: float
    aim: Aim

    def scale(self, aim: Aim, spread: float) -> float:
        return max(aim.epsilon, SMALLEST_EPSILON)

    def measure(self, lattice: Lattice) -> tuple[Bounds, float]:
        top = min(lattice.end + 700.0 / max(lattice.tilt, 1e-3), 1e15)
        upper = proved_epsilon(lattice.delta_upper, self.delta, self.aim.epsilon, top)
        lower = refuted_epsilon(lattice.delta_lower, self.delta, self.aim.epsilon, min(top, upper))
        gap = (upper - lower) / max(upper, SMALLEST_EPSILON) if upper < np.inf else np.inf
        return Bounds(float(lower), float(upper)), gap


@dataclass(frozen=True)
class _DeltaAt:
    epsilon: float

    def scale(self, aim: Aim, spread: float) -> float:
        return 1.0 / max(aim.tilt, 1.0 / spread)

    def measure(self, lattice: Lattice) -> tuple[Bounds, float]:
        lower, upper = lattice.delta_lower(self.epsilon)[0], lattice.delta_upper(self.epsilon)[0]
        bounds = Bounds(lower if lower > 0 else 0.0, max(upper, 1e-300))
        return bounds, bounds.gap


def _step(width: float, steps: int, tilt: float) -> float:
    """Grid step at which chords and tangents are about ``width`` apart in epsilon after ``steps`` releases."""
    return float(np.sqrt(4.0 * width / (steps * (tilt + 1))))


def build(laws: Sequence[Law], scout: Scout, aim: Aim, step: float) -> tuple[Lattice, float]:
    """The composed lattice around ``aim``, and the smallest step of a one-step grid that memory allows."""
    here = scout.moments(aim.tilt)
    # The tilted mass that wraps around the window may change delta by the share CUT.
    log_mass = np.log(CUT) + aim.log_delta - (here.value - aim.tilt * aim.epsilon)
    log_mass = float(np.clip(log_mass, -34.0, -12.0)) - 1.0
    window, slopes = scout.chernoff(aim.tilt, log_mass, step)
    window = (min(window) - 4 * step, max(window) + 4 * step)
    width = window[1] - window[0]
    two_levels = scout.steps >= MANY and width / step > 2**16
    block = round(np.sqrt(scout.steps)) if two_levels else 1
    factor = int(np.sqrt(block)) | 1
    step = step / np.sqrt(2) if two_levels else step
    log_tail = aim.log_delta + float(np.log(CUT / scout.steps))
    ranges = [
        (max(law.upper.p_range(log_tail)[0], floor), law.upper.p_range(log_tail)[1])
        for law, floor in zip(laws, scout.floors(aim.tilt, CUT / 100), strict=True)
    ]
    longest = max([width / factor, *(high - low for low, high in ranges)])
    limit = longest / LARGEST
    step = max(step, limit)
    for atoms in (law.upper.atoms for law in laws):
        if atoms and atoms[1] - atoms[0] > step / 4:
            step = (atoms[1] - atoms[0]) / float(np.ceil((atoms[1] - atoms[0]) / step))  # both onto the grid
    widest = factor // 4 if two_levels else 256  # a coarser grid must not see the gaps
    parts = []
    for law, (low, high), (losses, log_p, _) in zip(laws, ranges, scout.parts, strict=True):
        offset = _offset(law.upper, float(losses[np.argmax(log_p)]), step, low, high)
        first, last = int(np.floor((low - offset) / step - 1e-6)), int(np.ceil((high - offset) / step + 1e-6))
        if max(abs(first), abs(last)) > 2**60:
            raise FloatingPointError("a privacy loss beyond the range of double precision")
        vertices = _graded(
            first, max(last, first + 2), (losses - offset) / step, log_p + aim.tilt * losses, widest
        )
        # Charged as if delta were as small as the tails that are cut: more rounding than there is, never less.
        parts.append(
            (discretise(law.upper, law.lower, aim.tilt, step, offset, vertices, log_tail), law.count)
        )
    if two_levels:
        parts = _in_blocks(parts, scout, aim.tilt, block, factor, log_mass)
    return compose(parts, window, mass_outside(parts, window, slopes)), limit


def _graded(first: int, last: int, places: Array, log_weights: Array, widest: int) -> NDArray[np.int64]:
    """Grid points from ``first`` to ``last``: all of them in the bulk, ever fewer in the tails.

    Cells may be m times wider where less than 0.005 / m^2 of the tilted law lies beyond; together they add a
    few percent to the error of a full grid. Wide cells in the far tails are cheaper, and lose less to rounding.
    """
    if last - first < 4096:
        return np.arange(first, last + 1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    below, above = np.cumsum(weights), np.cumsum(weights[::-1])
    pieces, low, high, width = [], last, first, 1
    while True:
        share = 0.005 / width**2
        left = int(np.clip(np.floor(places[np.argmax(below > share)]), first, low))
        right = int(np.clip(np.ceil(places[::-1][np.argmax(above > share)]), high, last))
        if 2 * width > widest:
            left, right = first, last
        pieces += (
            [np.arange(low, left, -width), np.arange(high, right, width)]
            if width > 1
            else [np.arange(left, right + 1)]
        )
        if 2 * width > widest:
            return np.unique(np.concatenate([*pieces, [first, last]]))
        low, high, width = left, right, 2 * width


def _in_blocks(
    parts: list[tuple[Lattice, int]], scout: Scout, tilt: float, block: int, factor: int, log_mass: float
) -> list[tuple[Lattice, int]]:
    """The same composition as blocks of releases on a grid ``factor`` times coarser.

    The error of a grid grows with the number of releases put on it, so the sum of a block can be stored on a
    coarser grid than its members.
    """
    coarse = []
    for (lattice, count), picture in zip(parts, scout.parts, strict=True):
        whole, rest = divmod(count, min(block, count))
        for length, repeats in ((min(block, count), whole), (rest, 1)):
            if length == 0:
                continue
            alone = Scout.of_pictures([(picture[0], picture[1], length)])
            window, slopes = alone.chernoff(tilt, log_mass - float(np.log(repeats)), lattice.step)
            window = (min(window) - 4 * lattice.step, max(window) + 4 * lattice.step)
            sums = compose([(lattice, length)], window, mass_outside([(lattice, length)], window, slopes))
            coarse.append((coarsen(sums, factor), repeats))
    return coarse


def _offset(pair: Pair, mode: float, step: float, low: float, high: float) -> float:
    """Shift of the grid that puts a core narrower than a cell on a grid point.

    Seen from the nearer end of the range, the core must not lie beyond that point: there the optimistic curve
    starts (or stops), and would leave out the whole core.
    """
    if pair.atoms and pair.atoms[1] - pair.atoms[0] > 0.99 * step:
        return pair.atoms[1]
    move, before = 0.0, (np.nan, np.nan)
    for _ in range(12):
        cells = pair.cells(np.array([mode - step / 2, mode + step / 2]))
        if cells.p[0] < CORE or cells.q[0] <= 0:
            break
        move = float(np.log(cells.p[0] / cells.q[0])) - mode
        if abs(move) < 1e-15:
            break
        slope = (move - before[1]) / (mode - before[0]) if mode != before[0] else 0.0
        before = (mode, move)
        mode += float(np.clip(-move / slope, -step, step)) if slope < 0 else move  # secant from the second on
    return mode + 2 * abs(move) if mode - low < high - mode else mode - 2 * abs(move)


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
        self._known: dict[float, Bounds] = {}

    def estimate_epsilon(self, delta: float) -> float:
        return self.epsilon_bounds(delta, 1e-3).upper

    def estimate_delta(self, epsilon: float) -> float:
        return self._upper(epsilon)[0]

    def epsilon_bounds(self, delta: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        if delta not in self._known:
            high = max(self.law.upper.p_range(float(np.log(delta)))[1], 0.0)  # P(L > high) <= delta already
            upper = proved_epsilon(self._upper, delta, high, 1.01 * high + 1e-3, 1e-13)
            self._known[delta] = Bounds(refuted_epsilon(self._lower, delta, high, upper, 1e-13), upper)
        return self._known[delta]

    def delta_bounds(self, epsilon: float, tolerance: float) -> Bounds:
        """Bounds that differ by rounding only (and by the gap between the two laws, if they differ)."""
        return Bounds(self._lower(epsilon)[0], self._upper(epsilon)[0])

    def _upper(self, epsilon: float) -> tuple[float, float]:
        # A little to the left, so that no rounding of a boundary can hide mass.
        delta, tail, error, infinite = self._exact(self.law.upper, epsilon * (1 - 1e-13) - 4e-16)
        return min(1.0, delta + error + infinite), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    def _lower(self, epsilon: float) -> tuple[float, float]:
        delta, tail, error, _ = self._exact(self.law.lower, epsilon * (1 + 1e-13) + 4e-16)
        return max(delta - error, 0.0), -max(tail - delta, 1e-300) / max(delta, 1e-300)

    @staticmethod
    def _exact(pair: Pair, epsilon: float) -> tuple[float, float, float, float]:
        """delta, P(L > epsilon), the error of delta, and the mass at infinite loss."""
        cells = pair.cells(np.array([-np.inf, epsilon, np.inf]))
        p, q = float(cells.p[1]), float(cells.q[1])
        scaled_q = float(np.exp(min(epsilon + np.log(q), 700.0))) if q > 0 else 0.0
        underflow = float(np.exp(min(epsilon - 690.0, 700.0)))  # what a q below 1e-300 may hide
        error = cell_accuracy(float(np.log(max(p, 1e-300)))) * (p + scaled_q) + underflow + 1e-300
        return max(p - scaled_q, 0.0), p, error, cells.p_above
