"""Dominating pairs: the two worst-case output distributions behind every event.

An event is as private as the pair (P, Q) that dominates it: for every a >= 0, no pair of neighbouring data
sets has a larger hockey-stick divergence H_a = sup_A P(A) - a Q(A). All that accounting needs of a pair is the
distribution of its privacy loss L = log dP/dQ, under P and under Q. A pair tells it as *cells*: the P-mass and the
Q-mass of the losses between given boundaries. Nothing else about the mechanism is known downstream.

``remove`` is the direction in which P belongs to the larger data set; :class:`Reversed` is the other one. The
direction is fixed for a whole run, so the directions are composed separately and the worse one counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from discreet.accounting.pair_ranges import (
    BoundedLossRange,
    DiscreteRange,
    GaussianRange,
    LabelledRange,
    LaplaceRange,
    LossRange,
    ReversedRange,
    SampledRange,
)

Array = NDArray[np.float64]


class CellMasses(NamedTuple):
    """Masses of the loss cells (b[i], b[i+1]] under P and under Q, and the P-mass outside of all of them.

    ``p_above`` includes the P-mass at an infinite loss.
    """

    p: Array
    q: Array
    p_below: float
    p_above: float


class Pair(LossRange, ABC):
    """The distribution of a privacy loss under P and under Q."""

    @abstractmethod
    def cells(self, boundaries: Array) -> CellMasses:
        """Masses between increasing ``boundaries``, each accurate to a few ulps of the nearer tail."""

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        """The masses of :meth:`cells` alone, which may be cheaper."""
        cells = self.cells(boundaries)
        return cells.p, cells.q

    @property
    def _limits(self) -> tuple[float, float]:
        """The smallest and the largest possible loss. A pair from elsewhere answers by its range without a tail."""
        return self.p_range(-np.inf)


class MassPair(Pair):
    """A pair that knows its masses between all boundaries, infinite ones included."""

    @abstractmethod
    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        """P- and Q-masses of the losses between increasing ``boundaries``."""

    def cells(self, boundaries: Array) -> CellMasses:
        p, q = self.masses(np.concatenate([[-np.inf], boundaries, [np.inf]]))
        return CellMasses(p[1:-1], q[1:-1], float(p[0]), float(p[-1]))


def normal_masses(z: Array) -> Array:
    """Standard normal masses between increasing points, accurate in both tails."""
    tail = ndtr(-np.abs(z))
    masses: Array = np.diff(tail)
    turn = int(np.searchsorted(z, 0.0))
    if turn < len(z):
        masses[turn:] *= -1
        if turn > 0:
            masses[turn - 1] = 1.0 - tail[turn - 1] - tail[turn]
    return masses


@dataclass(frozen=True)
class GaussianPair(GaussianRange, MassPair):
    """N(mu, 1) against N(0, 1): the loss is N(mu^2/2, mu^2) under P. Symmetric."""

    mu: float
    _limits = (-np.inf, np.inf)

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        middle, half = boundaries / self.mu, self.mu / 2
        return normal_masses(middle - half), normal_masses(middle + half)


@dataclass(frozen=True)
class LaplacePair(LaplaceRange, MassPair):
    """Laplace(1 shifted by ``width``) against Laplace(1), ``width`` = shift / scale. Symmetric.

    It also dominates every vector of Laplace releases whose shifts add up to ``width``: moving one coordinate
    after the other is a chain of data sets, and the trade-off function of a sum of shifts is exactly the chain
    of the trade-off functions, because the Laplace family has a monotone likelihood ratio.
    """

    width: float

    @property
    def _limits(self) -> tuple[float, float]:
        return -self.width, self.width

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        inner = np.clip(boundaries, -self.width, self.width)
        p_below = np.where(boundaries < -self.width, 0.0, 0.5 * np.exp((inner - self.width) / 2))
        q_above = np.where(boundaries >= self.width, 0.0, 0.5 * np.exp(-(inner + self.width) / 2))
        p_below = np.where(boundaries >= self.width, 1.0, p_below)
        q_above = np.where(boundaries < -self.width, 1.0, q_above)
        return np.diff(p_below), -np.diff(q_above)


@dataclass(frozen=True)
class Sampled(SampledRange, MassPair):
    """A record takes part with probability ``rate``: ((1 - rate) Q + rate P, Q). The *remove* direction.

    Poisson sampling under add-remove neighbours: condition on the sample of the other records (H is jointly
    convex), then one kernel turns (P, Q) into what this record really did. The loss is
    log(1 + rate (exp(L) - 1)) of the base loss L.
    """

    base: Pair
    rate: float

    @property
    def _limits(self) -> tuple[float, float]:
        return self._range(*self.base._limits)

    def _base_loss(self, loss: Array) -> Array:
        far = loss > 40.0
        with np.errstate(divide="ignore", over="ignore"):
            base = np.log1p(np.maximum(np.expm1(np.minimum(loss, 40.0)) / self.rate, -1.0))
        base[far] = loss[far] - np.log(self.rate) + np.log1p(-(1 - self.rate) * np.exp(-loss[far]))
        return np.asarray(base)

    def _loss(self, base_loss: Array) -> Array:
        far = base_loss > 40.0
        near = np.log1p(self.rate * np.expm1(np.where(far, 0.0, base_loss)))
        shrunk = base_loss + np.log(self.rate)
        return np.where(far, shrunk + np.log1p((1 - self.rate) * np.exp(-np.where(far, shrunk, 0.0))), near)

    def _range(self, low: float, high: float) -> tuple[float, float]:
        low, high = (float(value) for value in self._loss(np.array([low, high])))
        return low, high

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        p, q = self.base.masses(self._base_loss(boundaries))
        return (1 - self.rate) * q + self.rate * p, q


@dataclass(frozen=True)
class Reversed(ReversedRange, MassPair):
    """(Q, P): the other direction. The loss changes its sign and the distributions their places."""

    of: Pair

    @property
    def _limits(self) -> tuple[float, float]:
        return -self.of._limits[1], -self.of._limits[0]

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        # (b, b'] of -L is [-b', -b) of L; stepping one float down turns that into (.., ..] again.
        turned = -boundaries[::-1]
        p, q = self.of.masses(np.where(np.isinf(turned), turned, np.nextafter(turned, -np.inf)))
        return q[::-1], p[::-1]


@dataclass(frozen=True)
class Labelled(LabelledRange, MassPair):
    """One of several pairs, drawn with ``weights`` that add up to 1; which one it was is seen.

    By joint convexity it dominates every mixture of what these pairs dominate. Masses of losses just add up.
    """

    pairs: tuple[Pair, ...]
    weights: tuple[float, ...]

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        p, q = np.tensordot(self.weights, [pair.masses(boundaries) for pair in self.pairs], axes=1)
        return p, q

    @property
    def _limits(self) -> tuple[float, float]:
        low, high = zip(*(pair._limits for pair in self.pairs), strict=True)
        return min(low), max(high)


@dataclass(frozen=True, eq=False)
class DiscretePair(DiscreteRange, MassPair):
    """Finitely many losses, increasing, with their masses; ``p_infinite`` sits at loss +infinity under P."""

    losses: Array
    p: Array
    q: Array
    p_infinite: float = 0.0

    @property
    def _limits(self) -> tuple[float, float]:
        return float(self.losses[0]), np.inf if self.p_infinite > 0 else float(self.losses[-1])

    @classmethod
    def randomised_response(cls, epsilon: float) -> DiscretePair:
        """The pair that dominates everything that is epsilon-DP (Kairouz, Oh, Viswanath 2015)."""
        lie = math.exp(-epsilon)
        masses = np.array([lie / (1 + lie), 1 / (1 + lie)])
        return cls(np.array([-epsilon, epsilon]), masses, masses[::-1].copy())

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        place = np.searchsorted(self.losses, boundaries, side="right")
        filled = np.nonzero(place[1:] > place[:-1])[0]
        masses = np.zeros((2, len(place) - 1))
        if len(filled):
            both = np.stack([self.p, self.q])[:, : place[-1]]
            masses[:, filled] = np.add.reduceat(both, place[filled], axis=1)
        return masses[0], masses[1]

    def cells(self, boundaries: Array) -> CellMasses:
        cells = super().cells(boundaries)
        return cells._replace(p_above=cells.p_above + self.p_infinite)


@dataclass(frozen=True)
class BoundedRangePair(BoundedLossRange, MassPair):
    """Dominates every release whose losses lie in an interval of length ``epsilon``. Symmetric.

    Of all pairs with losses in [t - epsilon, t], the one with both ends only has the largest curve. The largest of
    these over t, which is at t = (epsilon + log a) / 2, is h(a) = (1 - sqrt(a e^-epsilon))^2 / (1 - e^-epsilon) for
    |log a| <= epsilon: convex, with the right slopes at both ends, so it is the curve of a pair, with densities
    proportional to e^{l/2} and e^{-l/2}.
    """

    epsilon: float

    @property
    def _limits(self) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    def masses(self, boundaries: Array) -> tuple[Array, Array]:
        inner = np.clip(boundaries, -self.epsilon, self.epsilon)
        share = -np.expm1(-np.diff(inner) / 2) / -math.expm1(-self.epsilon)
        p = share * np.exp((inner[1:] - self.epsilon) / 2)
        return p, share * np.exp(-(inner[:-1] + self.epsilon) / 2)


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

    It has a monotone likelihood ratio, so vectors of integers with that l1 distance are dominated as those of
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
    radius = math.ceil(deviation * math.sqrt(-2 * math.log(tail / 4)) + 2)
    wide = np.arange(-math.ceil(40 * deviation) - 1, math.ceil(40 * deviation) + 2.0)
    total = float(np.exp(-(wide**2) / (2 * deviation**2)).sum())
    places = np.arange(-radius, radius + 1.0)
    p = np.exp(-(places**2) / (2 * deviation**2)) / total
    q = np.exp(-((places + shift) ** 2) / (2 * deviation**2)) / total
    losses = shift * (2 * places + shift) / (2 * deviation**2)
    first = math.exp(-((radius + 1) ** 2) / (2 * deviation**2)) / total
    outside = 2 * first / -math.expm1(-(radius + 1) / deviation**2) * (1 + 1e-9)
    return DiscretePair(losses, p, q, outside), DiscretePair(losses, p, q)
