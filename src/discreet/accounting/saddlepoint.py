"""Where to look: a saddle-point estimate that chooses the tilt and the grid of the certified lattice.

Nothing here is a guarantee. Tilts, windows and epsilons from here are proposals: a lattice is sound for all of them
or refuses them, and an epsilon counts only after its delta was bounded there. A bad choice makes the certified bounds
wide or slow, never wrong.

For the sum of many losses, delta(epsilon) = E[(1 - e^{epsilon - L})_+]. Tilting the distribution by e^{t L} so that
its mean is epsilon, and taking the tilted distribution as normal with the standard deviation s, gives

    delta  ~  e^{K(t) - t epsilon} (R(t s) - R((t+1) s)),   R(u) = e^{u^2/2} Phi(-u),   epsilon = K'(t),

where K is the logarithm of the moment generating function of the total loss under P.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, ndtr

from discreet.accounting.pairs import Array, Pair, Reversed

Parts = Sequence[tuple[Pair, int]]
SMALLEST_TILT = 1e-9
EXPONENTS = np.geomspace(
    2e-3, 2.0, 12
)  # of Chernoff bounds, in units of the best one for a normal distribution


Bound = Callable[[float], tuple[float, float]]
"""epsilon -> (a proved bound on delta, the slope of its logarithm)"""


class LogMoments(NamedTuple):
    """log E e^{t L} of the total loss and its first two derivatives."""

    value: float
    mean: float
    variance: float


@dataclass(frozen=True, eq=False)
class SaddlepointTarget:
    """Where the answer is expected: the tilt to use there, and both coordinates of the point."""

    tilt: float
    epsilon: float
    log_delta: float


class SaddlepointEstimate:
    """A coarse picture of a composition: each one-step distribution as a few hundred weighted losses."""

    def __init__(self, parts: Parts, log_tail: float) -> None:
        """``log_tail``: one-step tails below this P-mass are cut off, which also tames exploding moments."""
        self.parts = [(*_picture(pair, log_tail), count) for pair, count in parts]
        self.steps = sum(count for _, count in parts)
        self._known: dict[float, LogMoments] = {}

    @classmethod
    def of_pictures(cls, parts: list[tuple[Array, Array, int]]) -> SaddlepointEstimate:
        """A scout that looks at pictures taken before, perhaps with other counts."""
        estimate = cls([], 0.0)
        estimate.parts, estimate.steps = parts, sum(count for _, _, count in parts)
        return estimate

    def moments(self, tilt: float) -> LogMoments:
        """The log-moments of the total loss at ``tilt``."""
        if tilt not in self._known:
            self._known[tilt] = self._moments(tilt)
        return self._known[tilt]

    def _moments(self, tilt: float) -> LogMoments:
        value = mean = variance = 0.0
        for losses, log_p, count in self.parts:
            exponent = log_p + tilt * losses
            top = float(exponent.max())
            weights = np.exp(exponent - top)
            total = float(weights.sum())
            centre = float(weights @ losses) / total
            value += count * (top + float(np.log(total)))
            mean += count * centre
            away = losses - centre
            variance += count * float((weights * away) @ away) / total
        return LogMoments(value, mean, variance)

    def values(self, tilts: Array) -> Array:
        """log E e^{t L} at many tilts."""
        total = np.zeros(len(tilts))
        for losses, log_p, count in self.parts:
            exponent = log_p + tilts[:, None] * losses
            top = exponent.max(axis=1)
            total += count * (top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))
        return total

    def target_at_delta(self, log_delta: float) -> SaddlepointTarget:
        """The point of the curve with this delta."""

        def miss(tilt: float) -> tuple[float, float]:
            moments = self.moments(tilt)
            return self._log_delta(tilt, moments) - log_delta, tilt * tilt * moments.variance + 1.0

        tilt = self._root(miss, np.sqrt(max(-2 * log_delta, 0.0)))
        if tilt == 0.0:
            epsilon = self._untilted_epsilon(float(np.exp(log_delta)))
            return SaddlepointTarget(0.0, max(epsilon, 0.0), log_delta)
        moments = self.moments(tilt)
        # Where the tilted distribution is not normal the estimate may fail; this bound (Rényi) always holds.
        bound = (moments.value - log_delta + tilt * np.log(tilt) - (tilt + 1) * np.log1p(tilt)) / tilt
        epsilon = moments.mean + (self._log_delta(tilt, moments) - log_delta) / tilt
        epsilon = float(max(min(epsilon, bound), 0.0))
        return SaddlepointTarget(self.settle(tilt, epsilon, log_delta), epsilon, log_delta)

    @staticmethod
    def _log_delta(tilt: float, moments: LogMoments) -> float:
        """The estimate at epsilon = the tilted mean."""
        return moments.value - tilt * moments.mean + log_shape(tilt, moments.variance)

    def target_at_epsilon(self, epsilon: float) -> SaddlepointTarget:
        """The point of the curve with this epsilon."""

        def miss(tilt: float) -> tuple[float, float]:
            moments = self.moments(tilt)
            return epsilon - moments.mean, tilt * moments.variance

        tilt = self._root(miss, 5.0)
        moments = self.moments(tilt)
        if tilt == 0.0:
            return SaddlepointTarget(0.0, epsilon, float(np.log(max(self._untilted_delta(epsilon), 1e-300))))
        log_delta = float(min(moments.value - tilt * epsilon + log_shape(tilt, moments.variance), 0.0))
        return SaddlepointTarget(self.settle(tilt, epsilon, log_delta), epsilon, log_delta)

    def settle(self, tilt: float, epsilon: float, log_delta: float) -> float:
        """A tilt that does not sit between two modes, where the tilted distribution would be needlessly wide.

        It may cost a few digits of the lattice, whose errors count e^{K(t) - t epsilon} / delta times.
        """
        variance = self.moments(tilt).variance
        for _ in range(20):
            if variance <= 2.5 * self.moments(0.8 * tilt).variance:
                break
            lower = self.moments(0.9 * tilt)
            if lower.value - 0.9 * tilt * epsilon - log_delta > 5.0:
                break
            tilt, variance = 0.9 * tilt, lower.variance
        return tilt

    def suit_step(self, step: float, tilt: float, width: float) -> float:
        """A smaller step where the wanted one does not suit the bulk of a one-step distribution.

        Tangents are poor for a bulk too wide for one grid point and too narrow for many. A bulk on one grid point
        costs its mean deviation times the step, which must stay within ``width`` over all releases.
        """
        for losses, log_p, count in self.parts:
            weights = np.exp(log_p)
            low, middle, high = np.interp([0.25, 0.5, 0.75], np.cumsum(weights), losses)
            fine = 0.14 * float(high - low)
            away = np.abs(losses - middle)
            deviation = float((weights * np.minimum(away, step)).sum())
            if fine < step < 40 * fine and count * deviation * step * tilt > 4 * width:
                step = fine
        return step

    def floors(self, tilt: float, share: float) -> list[float]:
        """For each part a loss to which all mass below may move up, at this share of the tilted distribution."""
        floors = []
        for losses, log_p, _ in self.parts:
            exponent = log_p + tilt * losses
            top = float(exponent.max())
            total = top + float(np.log(np.exp(exponent - top).sum()))
            with np.errstate(divide="ignore"):
                moved = np.log(np.cumsum(np.exp(log_p))) + tilt * losses - total
            place = int(np.searchsorted(moved, np.log(share / self.steps)))
            floors.append(float(losses[max(place - 1, 0)]))
        return floors

    def chernoff(
        self, tilt: float, log_mass: float, step: float
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """A window that should hold all but exp(log_mass) of the tilted distribution, and the exponents that say so.

        On a grid the distribution is never narrower than its ``step``, so the exponents stay below its inverse.
        """
        here = self.moments(tilt)
        scale = np.sqrt(-2 * log_mass / max(here.variance, 1e-300))
        candidates = np.minimum(scale * EXPONENTS, 3.0 / max(step, 1e-100))
        ends = []
        for sign in (-1.0, 1.0):
            reach = sign * (self.values(tilt + sign * candidates) - here.value - log_mass) / candidates
            best = int(np.argmin(sign * reach))
            ends.append((reach[best], candidates[best]))
        (low, down), (high, up) = ends
        return (float(low), float(high)), (float(down), float(up))

    def _root(self, miss: Callable[[float], tuple[float, float]], guess: float) -> float:
        """The tilt at which ``miss`` (decreasing) is zero, and 0 if no positive tilt is needed.

        Newton's method in the logarithm of the tilt, inside a bracket; ``miss`` tells minus its slope there, too.
        """
        spread = np.sqrt(max(self.moments(0.0).variance, 1e-300))
        x, low, high = float(np.log(max(guess / spread, 1e-6))), -np.inf, np.inf
        for _ in range(80):
            value, slope = miss(float(np.exp(x)))
            low, high = (x, high) if value > 0 else (low, x)
            move = float(np.clip(value / max(slope, 1e-300), -3.0, 3.0))
            if abs(move) <= 3e-3 or high - low <= 3e-3:
                break
            following = x + move if low < x + move < high else (low + high) / 2
            if following < np.log(SMALLEST_TILT) and low == -np.inf:
                return 0.0
            if following > 30 and high == np.inf:
                break
            x = following
        return float(np.exp(x))

    def _untilted_delta(self, epsilon: float) -> float:
        """delta of a normal total loss (no tilt: epsilon is below the mean)."""
        moments = self.moments(0.0)
        spread = np.sqrt(max(moments.variance, 1e-300))
        z = (moments.mean - epsilon) / spread
        with np.errstate(over="ignore"):
            return float(
                ndtr(z) - np.exp(min(epsilon - moments.mean + spread**2 / 2, 700.0)) * ndtr(z - spread)
            )

    def _untilted_epsilon(self, delta: float) -> float:
        moments = self.moments(0.0)
        if self._untilted_delta(0.0) <= delta:
            return 0.0
        high = moments.mean + 10 * np.sqrt(moments.variance) + 1.0
        return _zero(lambda epsilon: self._untilted_delta(epsilon) - delta, 0.0, float(high))


@lru_cache(maxsize=32)
def _picture(pair: Pair, log_tail: float) -> tuple[Array, Array]:
    """A distribution as weighted losses: the losses and the logarithms of their P-masses."""
    if isinstance(pair, Reversed):  # the same picture, seen from the other side
        losses, log_p = _picture(pair.of, log_tail)
        return -losses[::-1], (log_p - losses)[::-1]
    p, q = pair.masses(pair.nodes(log_tail))
    kept = (p > 0) & (q > 0)
    if not np.any(kept):
        raise FloatingPointError("a privacy loss beyond the range of double precision")
    log_p = np.log(p[kept])
    return log_p - np.log(q[kept]), log_p


forget_pictures = _picture.cache_clear


def log_shape(tilt: float, variance: float) -> float:
    """log(R(t s) - R((t+1) s))."""
    spread = np.sqrt(max(variance, 1e-300) / 2)
    return float(np.log(max(0.5 * (erfcx(tilt * spread) - erfcx((tilt + 1) * spread)), 1e-300)))


def _zero(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero: false position with halving, so that both ends move.

    To a relative width, because an absolute one may be less than the distance of neighbouring floats.
    """
    at_low, at_high = falling(low), falling(high)
    for _ in range(200):
        if not (high - low > 1e-12 * max(high, 1.0) and at_low > 0 > at_high):
            break
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        middle = min(max(middle, low + 0.02 * (high - low)), high - 0.02 * (high - low))
        value = falling(middle)
        if value > 0:
            low, at_low, at_high = middle, value, at_high / 2
        else:
            high, at_high, at_low = middle, value, at_low / 2
    return low if abs(at_low) < abs(at_high) else high


def crossing_point(bound: Bound, delta: float, guess: float, top: float, accuracy: float) -> float:
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
