"""Batches of a fixed size: the pairs of which no single data set is the worst at every a.

For a >= 1 one data set is the worst, for a < 1 another, and a curve made of both halves is needed to compose
(Lebeda et al. 2024): the positive losses of one pair, the negative losses of another, and an atom at zero for the
rest. docs/mathematics.md, (3a), (3d) and (3e).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import bdtrc, ndtr

from discreet.accounting.pairs import (
    Array,
    Cells,
    GaussianPair,
    Labelled,
    Pair,
    Reversed,
    Sampled,
    normal_masses,
    normal_quantile,
)


class Halves(Pair):
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
        return float(1.0 - self.positive.cells(line[1:]).p[0] - self.negative.cells(line[:2]).p[0])

    def cells(self, boundaries: Array) -> Cells:
        line = np.array([-np.inf, boundaries[0], boundaries[-1], np.inf])
        p, q = self.masses(boundaries)
        outside, _ = self.masses(line)
        return Cells(p, q, float(outside[0]), float(outside[2]))

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        above = self.positive.masses(np.maximum(boundaries, 0.0))
        below = self.negative.masses(np.minimum(boundaries, 0.0))
        at_zero = np.where((boundaries[:-1] < 0) & (boundaries[1:] >= 0), self._atom, 0.0)
        return above[0] + below[0] + at_zero, above[1] + below[1] + at_zero

    def p_range(self, log_tail: float) -> tuple[float, float]:
        return self.negative.p_range(log_tail)[0], self.positive.p_range(log_tail)[1]

    def q_range(self, log_tail: float) -> tuple[float, float]:
        return self.negative.q_range(log_tail)[0], self.positive.q_range(log_tail)[1]

    def nodes(self, log_tail: float) -> Array:
        below, above = self.negative.nodes(log_tail), self.positive.nodes(log_tail)
        return np.concatenate([below[below < 0], [0.0], above[above > 0]])


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
    """``batch_size`` draws, each of any of ``records`` records: one that is drawn k times moves the sum by 2k.

    Numbers of draws beyond 32 are rounded up to a few, which dominates, as does a law with larger tails.
    """
    levels = [*range(1, min(32, batch_size) + 1)]
    while levels[-1] < batch_size:
        levels.append(min(batch_size, levels[-1] * 9 // 8 + 1))
    beyond = np.minimum(bdtrc(np.array([0.0, *levels]), batch_size, 1 / records) * (1 + 1e-6), 1.0)
    weights = -np.diff(beyond) / beyond[0]
    pairs = [(GaussianPair(2 * k / noise), float(w)) for k, w in zip(levels, weights, strict=True) if w > 0]
    base = Labelled(*zip(*pairs, strict=True)) if len(pairs) > 1 else pairs[0][0]
    return FixedSize(base, float(beyond[0])) if beyond[0] < 1 else base


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
class _Opposite(Pair):
    """(1 - rate) N(0) + rate N(2) against (1 - rate) N(0) + rate N(1), where the loss is positive: it grows there."""

    noise: float
    rate: float

    def _outcome(self, loss: Array) -> Array:
        """Where the loss has these values: a quadratic equation in e^{x / noise^2}, a sum of positive terms."""
        near = np.exp(-loss) * -np.expm1(-loss)
        v = 4 * (1 - self.rate) / self.rate * np.exp(-1 / self.noise**2) * near
        more = np.where(np.isinf(loss), 0.0, loss) + np.log1p(v / (2 * (1 + np.sqrt(1 + v))))
        return np.asarray(np.where(np.isinf(loss), loss, 1.5 + self.noise**2 * more))

    def _loss(self, outcome: Array) -> Array:
        one, two = ((2 * outcome * shift - shift**2) / (2 * self.noise**2) for shift in (1.0, 2.0))
        kept = np.log1p(-self.rate) if self.rate < 1 else -np.inf
        return np.asarray(
            np.logaddexp(kept, np.log(self.rate) + two) - np.logaddexp(kept, np.log(self.rate) + one)
        )

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        z = self._outcome(np.maximum(boundaries, 0.0)) / self.noise
        common = (1 - self.rate) * normal_masses(z)
        return (
            common + self.rate * normal_masses(z - 2 / self.noise),
            common + self.rate * normal_masses(z - 1 / self.noise),
        )

    def cells(self, boundaries: Array) -> Cells:
        p, q = self.masses(boundaries)
        low, high = self._outcome(np.maximum(boundaries[[0, -1]], 0.0)) / self.noise
        below, above = (
            (1 - self.rate) * float(ndtr(z)) + self.rate * float(ndtr(z + move))
            for z, move in ((low, -2 / self.noise), (-high, 2 / self.noise))
        )
        return Cells(p, q, below, above)

    def _range(self, log_tail: float, shift: float) -> tuple[float, float]:
        apart = normal_quantile(log_tail - np.log(2))
        moved = normal_quantile(min(log_tail - np.log(2 * self.rate), 0.0))
        high = max(self.noise * apart, shift + self.noise * moved, 1.5)
        return 0.0, float(self._loss(np.array([high]))[0]) if high < np.inf else np.inf

    def p_range(self, log_tail: float) -> tuple[float, float]:
        return self._range(log_tail, 2.0)

    def q_range(self, log_tail: float) -> tuple[float, float]:
        return self._range(log_tail, 1.0)

    def nodes(self, log_tail: float) -> Array:
        high = float(self._outcome(np.array([self._range(log_tail, 2.0)[1]]))[0])
        count = int(np.clip((high - 1.5) / (0.05 * self.noise), 400, 4000))
        return np.unique(np.maximum(self._loss(np.linspace(1.5, high, count)), 0.0))
