"""Pairs of sampled releases: groups of records, each sampled or not, persons who add various amounts, fixed batches.

The first two are mixtures of Gaussians. Of batches of a fixed size no single data set is the worst at every a: for
a >= 1 one is, for a < 1 another, and a curve made of both halves is needed to compose (Lebeda et al. 2024): the
positive losses of one pair, the negative losses of another, and an atom at zero for the rest. docs/mathematics.md,
(3a), (3d) and (3e).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import bdtrc

from discreet.accounting.pair_ranges import HalvesRange, MixtureRange, OppositeRange
from discreet.accounting.pairs import (
    Array,
    GaussianPair,
    Labelled,
    MassPair,
    Pair,
    Reversed,
    Sampled,
    normal_masses,
)

LARGEST_MISS = 1e-8  # of the loss of an outcome


@lru_cache(maxsize=16)
def _binomial(size: int, rate: float) -> tuple[Array, Array]:
    """The possible numbers of sampled records, with their probabilities."""
    shifts = np.arange(size + 1.0)
    if size <= 1:
        weights = np.array([1 - rate, rate] if size else [1.0])
    else:
        from scipy.stats import binom  # takes half a second to import, and only groups need it

        weights = binom.pmf(shifts, size, rate)
    kept = weights > 0
    return shifts[kept], weights[kept]


@dataclass(frozen=True)
class GroupPair(MixtureRange, MassPair):
    """``leaving`` records of one group against ``joining`` others, each sampled on its own with ``rate``.

    P mixes N(j, noise^2) and Q mixes N(-j, noise^2) over the binomial number j of sampled records. It dominates
    because all inner products of the shifts are extreme together when the shifts are collinear and opposite
    (Kahane's comparison for signed mixtures). ``leaving = joining = 1`` is Poisson sampling under replace-one.
    """

    noise: float
    rate: float
    leaving: int
    joining: int

    def _mixture(self, size: int) -> tuple[Array, Array]:
        return _binomial(size, self.rate)

    def _log_ratio(self, outcome: Array, size: int) -> tuple[Array, Array]:
        """log density ratio of the mixture to N(0), and its derivative."""
        shifts, weights = self._mixture(size)
        shifts = shifts / self.noise
        exponents = np.multiply.outer(outcome / self.noise, shifts) - shifts**2 / 2
        top = exponents.max(axis=-1, keepdims=True)
        terms = weights * np.exp(exponents - top)
        total = terms.sum(axis=-1)
        # Near a ratio of 1 the logarithm of a sum would lose its digits.
        surplus = (weights * np.expm1(np.minimum(exponents, 40.0))).sum(axis=-1)
        near = np.abs(surplus) < 0.5
        value = np.where(near, np.log1p(np.where(near, surplus, 0.0)), top[..., 0] + np.log(total))
        return value, (terms @ shifts) / total / self.noise

    def _loss(self, outcome: Array) -> tuple[Array, Array]:
        up, up_slope = self._log_ratio(outcome, self.leaving)
        down, down_slope = self._log_ratio(-outcome, self.joining)
        return up - down, up_slope + down_slope

    @property
    def _limits(self) -> tuple[float, float]:
        low = self.leaving * np.log1p(-self.rate) if self.joining == 0 and self.rate < 1 else -np.inf
        high = -self.joining * np.log1p(-self.rate) if self.leaving == 0 and self.rate < 1 else np.inf
        return low, high

    def _outcome(self, loss: Array) -> Array:
        """The outcome at which the loss takes these values; the loss increases with the outcome.

        A proposed outcome whose loss is off by s is a threshold that is not quite the best one: H_a is computed too
        small by s^2 / 2 of the tail, which is less than its rounding.
        """
        if self.leaving == self.joining == 1:
            return self._single_outcome(loss)
        low, high = self._limits
        outcomes = np.where(loss <= low, -np.inf, np.inf)
        inside = (loss > low) & (loss < high)
        outcomes[inside] = proposed = np.maximum.accumulate(self.propose_outcomes(loss[inside]))
        miss = self._loss(proposed)[0] - loss[inside]
        # Beyond 40 deviations no mass is left between a proposed outcome and the right one further out.
        far = np.abs(proposed) > 40 * self.noise + max(self.leaving, self.joining)
        if not np.all((np.abs(miss) <= LARGEST_MISS) | (far & (np.sign(proposed) * miss < 0))):
            raise FloatingPointError("no outcome was found for a privacy loss")
        return outcomes

    def _single_outcome(self, loss: Array) -> Array:
        """One record exchanged for another: a quadratic equation in e^{x / noise^2}, solved without overflow."""
        half = np.abs(loss) / 2
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half) / 2)
            log_ratio = log_sinh + np.log1p(-self.rate) - np.log(self.rate) + 1 / (2 * self.noise**2)
            arc = np.where(
                log_ratio > 30.0, log_ratio + np.log(2.0), np.arcsinh(np.exp(np.minimum(log_ratio, 30.0)))
            )
        return np.where(np.isinf(loss), loss, np.sign(loss) * self.noise**2 * (half + arc))

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        outcome = self._outcome(boundaries)
        return self._side(outcome, self.leaving, +1.0), self._side(outcome, self.joining, -1.0)

    def _side(self, outcome: Array, size: int, sign: float) -> Array:
        masses = np.zeros(len(outcome) - 1)
        for shift, weight in zip(*self._mixture(size), strict=True):
            masses += weight * normal_masses((outcome - sign * shift) / self.noise)
        return masses


@dataclass(frozen=True)
class MixturePair(GroupPair):
    """sum_i weights_i N(shifts_i, noise^2) against N(0, noise^2): the direction in which P has the record.

    It dominates all contributions of norm at most shifts_i with probability weights_i, independent of the others: the
    inner products of the shifts are extreme together when they are collinear. Binomial weights are a group.
    """

    shifts: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, noise: float, shifts: tuple[float, ...], weights: tuple[float, ...]) -> MixturePair:
        """``shifts`` increase from 0 or more, ``weights`` are positive and add up to 1."""
        return cls(noise, 0.5, max(1, math.ceil(shifts[-1])), 0, shifts, weights)

    def _mixture(self, size: int) -> tuple[Array, Array]:
        if size == 0:
            return np.zeros(1), np.ones(1)
        return np.array(self.shifts), np.array(self.weights)

    @property
    def _limits(self) -> tuple[float, float]:
        return (math.log(self.weights[0]) if self.shifts[0] == 0 else -np.inf), np.inf


class Halves(HalvesRange, MassPair):
    """The positive losses of one pair and the negative ones of another; both have the same H at a = 1."""

    @property
    @abstractmethod
    def positive(self) -> Pair:
        """The pair whose H_a counts for a >= 1."""

    @property
    @abstractmethod
    def negative(self) -> Pair:
        """The pair whose H_a counts for a < 1."""

    @cached_property
    def _atom(self) -> float:
        line = np.array([-np.inf, 0.0, np.inf])
        return float(1.0 - self.positive.masses(line[1:])[0][0] - self.negative.masses(line[:2])[0][0])

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        above = self.positive.masses(np.maximum(boundaries, 0.0))
        below = self.negative.masses(np.minimum(boundaries, 0.0))
        at_zero = np.where((boundaries[:-1] < 0) & (boundaries[1:] >= 0), self._atom, 0.0)
        return above[0] + below[0] + at_zero, above[1] + below[1] + at_zero

    @property
    def _limits(self) -> tuple[float, float]:
        return self.negative._limits[0], self.positive._limits[1]


@dataclass(frozen=True)
class FixedSize(Halves):
    """A random batch in which a record is with probability ``rate``, replace-one neighbours. Symmetric.

    For a >= 1 it is h(a) = rate * H_{1 + (a-1)/rate}(base) and for a < 1 its mirror image h(a) = 1 - a + a h(1/a).
    Without replacement the base is N(2) against N(0).
    """

    base: Pair
    rate: float

    @cached_property
    def positive(self) -> Sampled:
        return Sampled(self.base, self.rate)

    @cached_property
    def negative(self) -> Reversed:
        return Reversed(self.positive)


def with_replacement(noise: float, batch_size: int, records: int) -> Pair:
    """``batch_size`` draws, each of any of ``records`` records: a pair that dominates.

    A record that is drawn k times moves the sum by 2k. Numbers of draws beyond 32 are rounded up to a few, which
    dominates, as does a distribution with larger tails.
    """
    levels = numbers_of_draws(batch_size)
    tails = bdtrc(np.array([0.0, *levels]), batch_size, 1 / records)  # more than none, more than 1, ...
    beyond = np.minimum(tails * (1 + 1e-6), 1.0)
    weights = -np.diff(beyond) / beyond[0]
    pairs = [(GaussianPair(2 * k / noise), float(w)) for k, w in zip(levels, weights, strict=True) if w > 0]
    base = Labelled(*zip(*pairs, strict=True)) if len(pairs) > 1 else pairs[0][0]
    return FixedSize(base, float(beyond[0])) if beyond[0] < 1 else base


def numbers_of_draws(batch_size: int) -> list[int]:
    """The numbers of draws that are told apart, up to all of the batch."""
    levels = [*range(1, min(32, batch_size) + 1)]
    while levels[-1] < batch_size:
        levels.append(min(batch_size, levels[-1] * 9 // 8 + 1))
    return levels


@dataclass(frozen=True)
class ZeroedFixedSize(Halves):
    """A random batch of fixed size whose records stay; one of them counts for nothing in the second world.

    For a >= 1 everybody else is its opposite, (1-q) N(0) + q N(2) against (1-q) N(0) + q N(1); for a < 1 everybody
    else is like it, and what is left is Poisson sampling.
    """

    noise: float
    rate: float

    @cached_property
    def positive(self) -> Pair:
        return _Opposite(self.noise, self.rate)

    @cached_property
    def negative(self) -> Pair:
        return Reversed(Sampled(GaussianPair(1 / self.noise), self.rate))


@dataclass(frozen=True)
class _Opposite(OppositeRange, MassPair):
    """(1 - rate) N(0) + rate N(2) against (1 - rate) N(0) + rate N(1), where the loss is positive: it grows there."""

    noise: float
    rate: float
    _limits = (0.0, np.inf)

    def _outcome(self, loss: Array) -> Array:
        """Where the loss has these values: a quadratic equation in e^{x / noise^2}, a sum of positive terms."""
        near = np.exp(-loss) * -np.expm1(-loss)
        v = 4 * (1 - self.rate) / self.rate * np.exp(-1 / self.noise**2) * near
        more = np.where(np.isinf(loss), 0.0, loss) + np.log1p(v / (2 * (1 + np.sqrt(1 + v))))
        return np.asarray(np.where(np.isinf(loss), loss, 1.5 + self.noise**2 * more))

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        z = self._outcome(np.maximum(boundaries, 0.0)) / self.noise
        common = (1 - self.rate) * normal_masses(z)
        return (
            common + self.rate * normal_masses(z - 2 / self.noise),
            common + self.rate * normal_masses(z - 1 / self.noise),
        )
