"""The privacy curve of an event that is repeated a random number of times.

Where a coordinator draws who is asked, the number N of uses of a record is random, but it does not depend on the
data, and the observer sees it. So the observer's curve is the mean of the curves:

    delta(epsilon) = E_N delta_N(epsilon)                  N ~ Binomial(trials, chance)

The curve rises with N. Rounding N up to the end of a bracket, and counting the unlikely far tail as full
exposure, bounds it from above; rounding N down bounds it from below. (Putting N's mean in its place does neither.)

>>> from discreet.events import Gaussian
>>> seen = RandomRepeats(Gaussian(noise_multiplier=164.73), trials=1000**2, chance=1 / 1000)
>>> curve = MixtureCurve(seen, "replace-one")
>>> round(curve.epsilon(delta=1e-10), 3)
2.354
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from discreet.accounting.certified_bounds import DELTA_REMEDY
from discreet.accounting.curve import PrivacyCurve, account
from discreet.errors import InvalidParameter, real, whole
from discreet.events import Event, Gaussian
from discreet.events.common import MAX_COUNT
from discreet.guarantee import Bounds, Guarantee, Neighbours, neighbours_named
from discreet.parties.observation.binomial import ALLOWANCE, brackets, chance_above, most_likely_count

_MEANINGLESS = 100.0  # an epsilon that no longer needs its digits
_TAIL = 1e-4  # of delta: what the counts that are left out may cost


class _Effort(NamedTuple):
    """How finely counts are told apart, by how many curves at most, and how exactly delta is met."""

    width: float
    number: int
    accuracy: float


_GAUSSIAN, _SAMPLED = _Effort(4e-4, 1000, 1e-3), _Effort(4e-3, 16, 1.5e-2)  # sampled curves are dear


@dataclass(frozen=True)
class RandomRepeats:
    """``event``, repeated N times with N ~ Binomial(``trials``, ``chance``), or ``most`` times if N is larger."""

    event: Event
    trials: int
    chance: float
    most: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise InvalidParameter("event", self.event, "must be an event, for instance Gaussian(1.0).")
        trials = whole("trials", self.trials, at_least=1, at_most=MAX_COUNT)
        object.__setattr__(self, "trials", trials)
        object.__setattr__(self, "chance", real("chance", self.chance, above=0, at_most=1))
        if self.most is not None:
            object.__setattr__(self, "most", whole("most", self.most, at_least=1, at_most=MAX_COUNT))

    @property
    def typical(self) -> Event:
        """The event repeated as often as on average. Good for a first guess, never for a guarantee."""
        count = max(1, round(self.trials * self.chance))
        return self.event * min(count, self.most or count)


class MixtureCurve:
    """What randomly repeated events cost, like a :class:`~discreet.accounting.curve.PrivacyCurve`.

    Guarantee: the exact mean of the curves lies between the two ends of every bound.
    """

    def __init__(self, repeats: RandomRepeats, neighbours: Neighbours) -> None:
        self.repeats, self.neighbours = repeats, neighbours_named(neighbours)
        self._effort = _GAUSSIAN if isinstance(repeats.event, Gaussian) else _SAMPLED
        self._curve = cache(self._make_curve)

    def __repr__(self) -> str:
        return f"MixtureCurve({self.repeats!r}, neighbours={self.neighbours!r})"

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon proved at ``delta``: never below the exact one."""
        return self.epsilon_bounds(delta).upper

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Certified bounds on epsilon at ``delta``, some parts in a thousand apart."""
        delta = real("delta", delta, at_least=1e-100, below=1, remedy=DELTA_REMEDY)
        mean = self._mean(delta * _TAIL)
        typical = account(self.repeats.typical, self.neighbours)
        start = typical.epsilon_bounds(delta).upper
        if start > _MEANINGLESS and self._effort is _SAMPLED:
            return self._coarse_bounds(delta)
        slope = math.log(2) / max(typical.epsilon_bounds(delta / 2).upper - start, 1e-9 * max(start, 1.0))
        accuracy = self._effort.accuracy
        upper = _crossing(lambda at: mean(at).upper, delta, start, slope, accuracy, above=True)
        lower = _crossing(lambda at: mean(at).lower, delta, start, slope, accuracy, above=False)
        return Bounds(lower, upper) if upper < math.inf else self._coarse_bounds(delta)

    def _coarse_bounds(self, delta: float) -> Bounds:
        """Epsilon of a small and of a large count, of which one is likely exceeded and the other hardly ever."""
        repeats = self.repeats
        trials, chance, most = repeats.trials, repeats.chance, repeats.most or repeats.trials
        small = math.floor(trials * chance - 3 * math.sqrt(trials * chance))
        large = max(1, most_likely_count(trials, chance, delta * _TAIL))
        upper = self._curve(min(large, most)).epsilon_bounds(delta * (1 - 2 * _TAIL)).upper
        if small < 1 or delta > 0.5:
            return Bounds(0.0, upper)
        share = chance_above(small - 1, trials, chance) * (1 - 2 * ALLOWANCE)
        return Bounds(self._curve(min(small, most)).epsilon_bounds(delta / share).lower, upper)

    def delta(self, epsilon: float) -> float:
        """The smallest delta proved at ``epsilon``: never below the exact one."""
        return self.delta_bounds(epsilon).upper

    def delta_bounds(self, epsilon: float) -> Bounds:
        """Certified bounds on delta at ``epsilon``."""
        epsilon = real("epsilon", epsilon, at_least=0)
        tail = 1e-6
        for _ in range(4):  # the tail must be small beside delta, which is not known yet
            bounds = self._mean(tail)(epsilon)
            if tail <= 1e-3 * bounds.lower or tail <= 1e-100:
                break
            tail = max(1e-4 * bounds.lower, 1e-4 * tail, 1e-100)
        return bounds

    def guarantee(self, delta: float) -> Guarantee:
        """The proved point at ``delta``."""
        return Guarantee(self.epsilon_bounds(delta), delta, self.neighbours)

    def _mean(self, tail: float) -> Callable[[float], Bounds]:
        """Bounds on E delta_N(epsilon), as a function of epsilon that remembers its answers."""
        repeats = self.repeats
        ends, shares, beyond = brackets(
            repeats.trials, repeats.chance, tail, self._effort.width, self._effort.number
        )
        counts, most = ends.tolist(), repeats.most or MAX_COUNT

        @cache
        def mean(epsilon: float) -> Bounds:
            curves = [self._delta(min(count, most), epsilon) for count in counts]
            upper = beyond * (curves[-1].upper if most <= counts[-1] else 1.0)
            lower = beyond * curves[-1].lower
            previous, floor = -1, 0.0
            for count, share, here in zip(counts, shares.tolist(), curves, strict=True):
                upper += share * here.upper
                lower += share * (here.lower if count == previous + 1 else floor)
                previous, floor = count, here.lower
            return Bounds(lower * (1 - ALLOWANCE), min(1.0, upper * (1 + ALLOWANCE)))

        return mean

    def _delta(self, count: int, epsilon: float) -> Bounds:
        return self._curve(count).delta_bounds(epsilon) if count else Bounds(0.0, 0.0)

    def _make_curve(self, count: int) -> PrivacyCurve:
        return account(self.repeats.event * count, self.neighbours)


def _crossing(
    falling: Callable[[float], float],
    delta: float,
    start: float,
    slope: float,
    accuracy: float,
    *,
    above: bool,
) -> float:
    """Close to where ``falling`` crosses ``delta``: ``above`` it, or below it.

    Newton steps on the logarithm, each aimed a little beyond the crossing, further after each miss. What is
    returned was evaluated, so neither start nor slope need be trusted.
    """
    sign, best = (1.0, math.inf) if above else (-1.0, 0.0)
    epsilon, push, before = start, accuracy / 4, None
    for _ in range(50):
        excess = math.log(max(falling(epsilon), 1e-320) / delta)
        if excess * sign <= 0:
            best = min(best, epsilon) if above else max(best, epsilon)
            if abs(excess) < accuracy or epsilon == 0:
                break
        elif epsilon == 0:
            break  # delta alone covers everything: nothing is below
        else:
            push *= 1.5
        if before is not None and (excess - before[1]) * (epsilon - before[0]) < 0:
            slope = (before[1] - excess) / (epsilon - before[0])
        before = (epsilon, excess)
        epsilon = max(0.0, epsilon + (excess + sign * push) / slope)
        if (epsilon - best) * sign >= 0:
            break
    return best
