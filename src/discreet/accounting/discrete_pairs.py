"""Dominating pairs of mechanisms on whole numbers and categories, and of all with a bounded range of losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from discreet.accounting.pairs import Array, Cells, DiscretePair, GroupPair, Pair


@dataclass(frozen=True)
class BoundedRangePair(Pair):
    """Dominates every release whose losses lie in an interval of length ``epsilon``. Symmetric.

    Of all pairs with losses in [t - epsilon, t], the one with both ends only has the largest curve. The largest of
    these over t, which is at t = (epsilon + log a) / 2, is h(a) = (1 - sqrt(a e^-epsilon))^2 / (1 - e^-epsilon) for
    |log a| <= epsilon: convex, with the right slopes at both ends, so it is the curve of a pair, with densities
    proportional to e^{l/2} and e^{-l/2}.
    """

    epsilon: float

    def cells(self, boundaries: Array) -> Cells:
        inner = np.clip(boundaries, -self.epsilon, self.epsilon)
        share = -np.expm1(-np.diff(inner) / 2) / -math.expm1(-self.epsilon)
        p = share * np.exp((inner[1:] - self.epsilon) / 2)
        q = share * np.exp(-(inner[:-1] + self.epsilon) / 2)
        below = math.exp(-self.epsilon) * math.expm1((float(inner[0]) + self.epsilon) / 2)
        above = -math.expm1((float(inner[-1]) - self.epsilon) / 2)
        total = -math.expm1(-self.epsilon)
        return Cells(p, q, below / total, above / total)

    def p_range(self, log_tail: float) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    q_range = p_range

    def nodes(self, log_tail: float) -> Array:
        return self.epsilon * np.linspace(-1.0, 1.0, 401)


def randomised_response(epsilon: float, categories: int) -> DiscretePair:
    """Two records with different categories: each may be told by its own, or by one of the others."""
    if categories == 2:
        return DiscretePair.randomised_response(epsilon)
    lie = 1 / (math.exp(epsilon) + (categories - 1))
    truth, rest = 1 / (1 + (categories - 1) * math.exp(-epsilon)), (categories - 2) * lie
    p = np.array([lie, rest, truth])
    return DiscretePair(np.array([-epsilon, 0.0, epsilon]), p, p[::-1].copy())


@lru_cache(maxsize=16)
def discrete_laplace(scale: float, shift: int) -> DiscretePair:
    """Discrete Laplace noise, and the same moved by ``shift``.

    It has a monotone likelihood ratio, so vectors of whole numbers with that l1 distance are dominated as those of
    continuous noise are.
    """
    rate = 1 / scale
    decay = math.exp(-rate)
    places = np.arange(shift + 1.0)
    p = math.tanh(rate / 2) * np.exp(-rate * (shift - places))
    p[0], p[-1] = math.exp(-rate * shift) / (1 + decay), 1 / (1 + decay)
    return DiscretePair(rate * (2 * places - shift), p, p[::-1].copy())


@lru_cache(maxsize=16)
def discrete_gaussian(deviation: float, shift: int, tail: float) -> tuple[DiscretePair, DiscretePair]:
    """Discrete Gaussian noise, and the same moved by ``shift``: from above and from below.

    The likelihood ratio is monotone, so smaller shifts are dominated. Outcomes of probability ``tail`` at most are
    infinite losses in the first pair, and missing in the second.
    """
    reach = math.ceil(deviation * math.sqrt(-2 * math.log(tail / 4)) + 2)
    wide = np.arange(-math.ceil(40 * deviation) - 1, math.ceil(40 * deviation) + 2.0)
    total = float(np.exp(-(wide**2) / (2 * deviation**2)).sum())
    places = np.arange(-reach, reach + 1.0)
    p = np.exp(-(places**2) / (2 * deviation**2)) / total
    q = np.exp(-((places + shift) ** 2) / (2 * deviation**2)) / total
    losses = shift * (2 * places + shift) / (2 * deviation**2)
    first = math.exp(-((reach + 1) ** 2) / (2 * deviation**2)) / total
    outside = 2 * first / -math.expm1(-(reach + 1) / deviation**2) * (1 + 1e-9)
    return DiscretePair(losses, p, q, outside), DiscretePair(losses, p, q)


# Mixtures of Gaussians: a record, or a person, moves the sum by one of several amounts, each with a probability.


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

    def _limits(self) -> tuple[float, float]:
        return (math.log(self.weights[0]) if self.shifts[0] == 0 else -np.inf), np.inf
