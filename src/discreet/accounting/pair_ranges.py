"""Where to look at a privacy loss distribution: ranges that hold nearly all of it, and boundaries that follow it.

Nothing here is a guarantee. Every pair inherits one of these classes. A grid that is chosen from a range is sound for
any range: mass above the grid counts as an infinite loss, mass below it moves up. A bad range makes bounds wide or
slow, never wrong. The exact limits of a loss, on which pure differential privacy rests, are ``Pair._limits``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri_exp

if TYPE_CHECKING:
    from discreet.accounting.pairs import Pair

Array = NDArray[np.float64]
Range = tuple[float, float]


class LossRange:
    """The methods that every pair has to have for the search."""

    @property
    def atoms(self) -> Range | None:
        """The two ends of a distribution that has atoms there: a grid should hold both."""
        return None

    @abstractmethod
    def p_range(self, log_tail: float) -> Range:
        """Losses beyond which P has at most mass exp(log_tail), on each side."""

    @abstractmethod
    def q_range(self, log_tail: float) -> Range:
        """Losses beyond which Q has at most mass exp(log_tail), on each side."""

    @abstractmethod
    def nodes(self, log_tail: float) -> Array:
        """A few hundred boundaries that follow the distribution."""


class GaussianRange(LossRange):
    """Quantiles of normal losses."""

    mu: float

    def p_range(self, log_tail: float) -> Range:
        width = self.mu * normal_quantile(log_tail)
        return self.mu**2 / 2 - width, self.mu**2 / 2 + width

    def q_range(self, log_tail: float) -> Range:
        low, high = self.p_range(log_tail)
        return low - self.mu**2, high - self.mu**2

    def nodes(self, log_tail: float) -> Array:
        low, high = self.p_range(log_tail)
        return np.linspace(low, high, 400)


class LaplaceRange(LossRange):
    """Losses between two atoms."""

    width: float

    @property
    def atoms(self) -> Range:
        return -self.width, self.width

    def p_range(self, log_tail: float) -> Range:
        return -self.width, self.width

    q_range = p_range

    def nodes(self, log_tail: float) -> Array:
        return self.width * (1 + 1e-9) * np.linspace(-1.0, 1.0, 200)  # both atoms inside


class BoundedLossRange(LossRange):
    """Losses of a bounded range, without atoms."""

    epsilon: float

    def p_range(self, log_tail: float) -> Range:
        return -self.epsilon, self.epsilon

    q_range = p_range

    def nodes(self, log_tail: float) -> Array:
        return self.epsilon * np.linspace(-1.0, 1.0, 401)


class SampledRange(LossRange):
    """The range of the base, moved by the function from its losses to those of the sample."""

    base: Pair
    rate: float

    @abstractmethod
    def _loss(self, base_loss: Array) -> Array: ...

    @abstractmethod
    def _range(self, low: float, high: float) -> Range: ...

    @property
    def atoms(self) -> Range | None:
        return None if self.base.atoms is None else self._range(*self.base.atoms)

    def p_range(self, log_tail: float) -> Range:
        q_low, q_high = self.base.q_range(log_tail - np.log(2))
        p_low, p_high = self.base.p_range(min(log_tail - np.log(2 * self.rate), 0.0))
        return self._range(min(q_low, p_low), max(q_high, p_high))

    def q_range(self, log_tail: float) -> Range:
        return self._range(*self.base.q_range(log_tail))

    def nodes(self, log_tail: float) -> Array:
        # Even steps of the base loss, wide enough for both the sampled and the unsampled world.
        q_low, q_high = self.base.q_range(log_tail - np.log(2))
        p_low, p_high = self.base.p_range(min(log_tail - np.log(2 * self.rate), 0.0))
        if isinstance(self.base, LaplaceRange):
            return self._loss(self.base.nodes(log_tail))
        if isinstance(self.base, LabelledRange):
            sampled: Any = self
            seen = self.base.common_pairs(log_tail)
            return np.unique(np.concatenate([replace(sampled, base=pair).nodes(tail) for pair, tail in seen]))
        low, high = min(q_low, p_low), max(q_high, p_high)
        count = int(np.clip((high - low) / (0.05 * (q_high - q_low) / 14), 400, 4000))
        return increasing(self._loss(np.linspace(low, high, count)))


class ReversedRange(LossRange):
    """The range of the other direction, with the sign changed."""

    of: Pair

    @property
    def atoms(self) -> Range | None:
        return None if self.of.atoms is None else (-self.of.atoms[1], -self.of.atoms[0])

    def p_range(self, log_tail: float) -> Range:
        low, high = self.of.q_range(log_tail)
        return -high, -low

    def q_range(self, log_tail: float) -> Range:
        low, high = self.of.p_range(log_tail)
        return -high, -low

    def nodes(self, log_tail: float) -> Array:
        return -self.of.nodes(log_tail)[::-1]


class LabelledRange(LossRange):
    """The union of the ranges of several pairs."""

    pairs: tuple[Pair, ...]
    weights: tuple[float, ...]

    def common_pairs(self, log_tail: float) -> list[tuple[Pair, float]]:
        """The pairs that are not rarer than the tail, each with the tail that it may lose."""
        tails = [log_tail - float(np.log(len(self.pairs) * weight)) for weight in self.weights]
        return [(pair, tail) for pair, tail in zip(self.pairs, tails, strict=True) if tail < 0]

    def p_range(self, log_tail: float) -> Range:
        return widest(pair.p_range(tail) for pair, tail in self.common_pairs(log_tail))

    def q_range(self, log_tail: float) -> Range:
        return widest(pair.q_range(tail) for pair, tail in self.common_pairs(log_tail))

    def nodes(self, log_tail: float) -> Array:
        return np.unique(np.concatenate([pair.nodes(tail) for pair, tail in self.common_pairs(log_tail)]))


class DiscreteRange(LossRange):
    """Quantiles of finitely many losses."""

    losses: Array
    p: Array
    q: Array
    p_infinite: float

    @property
    def atoms(self) -> Range | None:
        return (float(self.losses[0]), float(self.losses[1])) if len(self.losses) == 2 else None

    def _trim(self, masses: Array, log_tail: float) -> Range:
        tail = np.exp(log_tail)
        low = int(np.searchsorted(np.cumsum(masses), tail))
        high = len(masses) - 1 - int(np.searchsorted(np.cumsum(masses[::-1]), tail))
        low = min(low, len(masses) - 1)
        return float(self.losses[low]), float(self.losses[max(high, low)])

    def p_range(self, log_tail: float) -> Range:
        return self._trim(self.p, log_tail)

    def q_range(self, log_tail: float) -> Range:
        return self._trim(self.q, log_tail)

    def nodes(self, log_tail: float) -> Array:
        low, high = self.p_range(log_tail)
        inside = self.losses[(self.losses >= low) & (self.losses <= high)]
        chosen = inside if len(inside) <= 2000 else inside[:: len(inside) // 1000]
        return np.concatenate([[np.nextafter(chosen[0], -np.inf)], chosen, [high]]) if len(chosen) else chosen


class MixtureRange(LossRange):
    """Ranges of outcomes of a mixture of Gaussians, and the losses at their ends."""

    noise: float
    leaving: int
    joining: int

    @property
    @abstractmethod
    def _limits(self) -> Range: ...

    @abstractmethod
    def _mixture(self, size: int) -> tuple[Array, Array]: ...

    @abstractmethod
    def _loss(self, outcome: Array) -> tuple[Array, Array]: ...

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Outcomes and their losses, as first guesses."""
        outcomes = np.linspace(-60.0 * self.noise - self.joining, 60.0 * self.noise + self.leaving, 6000)
        return outcomes, np.maximum.accumulate(self._loss(outcomes)[0])

    def propose_outcomes(self, losses: Array) -> Array:
        """About the outcomes at which the loss takes these values, by Newton's method."""
        outcomes, known = self._table
        guess: Array = np.interp(losses, known, outcomes)
        for _ in range(8):
            value, slope = self._loss(guess)
            error = value - losses
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = np.where(error == 0, 0.0, np.clip(error / slope, -self.noise, self.noise))
            guess = guess - np.nan_to_num(step)
            if np.all(np.abs(error) <= 1e-8 * np.maximum(1.0, np.abs(losses))):
                return np.asarray(guess)  # whose error is the square of this one
        missed = ~(np.abs(self._loss(guess)[0] - losses) <= 1e-9)  # beside a flat part: bisect
        low, high = (np.full(int(missed.sum()), end) for end in (outcomes[0], outcomes[-1]))
        for _ in range(70):
            middle = (low + high) / 2
            below = self._loss(middle)[0] < losses[missed]
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        guess[missed] = high
        return np.asarray(guess)

    def outcome_range(self, log_tail: float, size: int) -> Range:
        """Outcomes beyond which the mixture of ``size`` records has about the mass exp(log_tail), on each side."""
        shifts, weights = self._mixture(size)
        z = np.array([normal_quantile(min(log_tail - np.log(w * len(shifts)), 0.0)) for w in weights])
        return float(np.min(shifts - self.noise * z)), float(np.max(shifts + self.noise * z))

    def _range(self, low: float, high: float) -> Range:
        if np.isinf(low) or np.isinf(high):
            return self._limits
        losses, _ = self._loss(np.array([low, high]))
        return float(losses[0]), float(losses[1])

    def p_range(self, log_tail: float) -> Range:
        return self._range(*self.outcome_range(log_tail, self.leaving))

    def q_range(self, log_tail: float) -> Range:
        low, high = self.outcome_range(log_tail, self.joining)
        return self._range(-high, -low)

    def nodes(self, log_tail: float) -> Array:
        low, high = self.outcome_range(log_tail, self.leaving)
        count = int(np.clip((high - low) / (0.05 * self.noise), 400, 4000))
        return increasing(self._loss(np.linspace(low, high, count))[0])


class HalvesRange(LossRange):
    """The negative part of one range and the positive part of another."""

    @property
    @abstractmethod
    def positive(self) -> Pair: ...

    @property
    @abstractmethod
    def negative(self) -> Pair: ...

    def p_range(self, log_tail: float) -> Range:
        return self.negative.p_range(log_tail)[0], self.positive.p_range(log_tail)[1]

    def q_range(self, log_tail: float) -> Range:
        return self.negative.q_range(log_tail)[0], self.positive.q_range(log_tail)[1]

    def nodes(self, log_tail: float) -> Array:
        below, above = self.negative.nodes(log_tail), self.positive.nodes(log_tail)
        return np.concatenate([below[below < 0], [0.0], above[above > 0]])


class OppositeRange(LossRange):
    """Quantiles of the positive losses of a fixed-size batch of opposite records."""

    noise: float
    rate: float

    @abstractmethod
    def _outcome(self, loss: Array) -> Array: ...

    def _loss(self, outcome: Array) -> Array:
        one, two = ((2 * outcome * shift - shift**2) / (2 * self.noise**2) for shift in (1.0, 2.0))
        kept = np.log1p(-self.rate) if self.rate < 1 else -np.inf
        return np.asarray(
            np.logaddexp(kept, np.log(self.rate) + two) - np.logaddexp(kept, np.log(self.rate) + one)
        )

    def _range(self, log_tail: float, shift: float) -> Range:
        apart = normal_quantile(log_tail - np.log(2))
        moved = normal_quantile(min(log_tail - np.log(2 * self.rate), 0.0))
        high = max(self.noise * apart, shift + self.noise * moved, 1.5)
        return 0.0, float(self._loss(np.array([high]))[0]) if high < np.inf else np.inf

    def p_range(self, log_tail: float) -> Range:
        return self._range(log_tail, 2.0)

    def q_range(self, log_tail: float) -> Range:
        return self._range(log_tail, 1.0)

    def nodes(self, log_tail: float) -> Array:
        high = float(self._outcome(np.array([self._range(log_tail, 2.0)[1]]))[0])
        count = int(np.clip((high - 1.5) / (0.05 * self.noise), 400, 4000))
        return np.unique(np.maximum(self._loss(np.linspace(1.5, high, count)), 0.0))


def normal_quantile(log_tail: float) -> float:
    """The z with upper tail exp(log_tail); minus infinity where that tail is all the mass."""
    return -float(ndtri_exp(log_tail)) if log_tail < 0 else -math.inf


def widest(ranges: Iterable[Range]) -> Range:
    """From the lowest to the highest; upside down if there is none, as where the tail is all the mass."""
    found = list(ranges)
    return min((low for low, _ in found), default=np.inf), max((high for _, high in found), default=-np.inf)


def increasing(values: Array) -> Array:
    """Strictly increasing values only: where the loss is flat, neighbouring nodes coincide."""
    keep = np.concatenate([[True], np.diff(np.maximum.accumulate(values)) > 0])
    return np.asarray(values[keep])
