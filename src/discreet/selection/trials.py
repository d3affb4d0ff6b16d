"""How many trials a private search makes: a random number, drawn once and kept secret.

Both laws know what their randomness costs: the ``s`` of the theorem in :mod:`discreet.selection`, and the form that
Papernot and Steinke gave it for Renyi divergences.

>>> geometric_trials(mean=10)
NegativeBinomialTrials(stop=0.1, shape=1.0)
>>> logarithmic_trials(mean=10).draw() >= 1
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Protocol

import numpy as np
from scipy.optimize import brentq

from discreet.accounting.renyi import Divergence, delta_of_divergence
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import real

MOST_TRIALS = 10_000
ROUND_UP = 1 + 1e-12  # more than the rounding of the closed formulas multiplied by it

_DIGITS = Context(prec=100)


class TrialCurve(Protocol):
    """The privacy curve of one trial."""

    def epsilon(self, delta: float) -> float:
        """Proved epsilon at ``delta``."""

    def estimate(self, delta: float) -> float:
        """About the same, quickly."""

    def advantage(self) -> float:
        """Proved delta at epsilon 0."""


@dataclass(frozen=True)
class NegativeBinomialTrials:
    """At least one trial; P(K = k) proportional to (1 - stop)^k (shape + k - 1 choose k).

    A smaller ``shape`` costs less privacy for the same mean, and spreads the number of trials wider. It lies above
    -1; 1 is the geometric law and 0 the logarithmic one.
    """

    stop: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        shape = real("shape", self.shape, above=-1, at_most=100)
        shape = shape if abs(shape) > 1e-20 else 0.0  # the law is the same to 1e-18
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stop", real("stop", self.stop, at_least=1e-12, below=1))
        real("mean", self.mean, at_least=1, at_most=2 * MOST_TRIALS, remedy="Choose a larger stop.")

    @property
    def mean(self) -> float:
        """The expected number of trials, rounded up."""
        return _mean(self.stop, self.shape) * ROUND_UP

    @property
    def chance_of_any(self) -> float:
        """There is always a trial."""
        return 1.0

    def extra_epsilon(self, trial: TrialCurve) -> float:
        """(1 + shape) e, for some e with delta(e) <= (exp(e) - 1) stop / (1 - stop).

        Let d(x) be the right side at x, which grows with x. For every x, e = max(x, epsilon(d(x))) satisfies the
        condition, for delta(e) <= d(x) <= d(e). The estimate finds a good x.
        """

        def allowed(x: float) -> float:
            return min(math.expm1(min(x, 700.0)) * self.stop / (1 - self.stop), 0.999)

        def excess(x: float) -> float:
            return trial.estimate(allowed(x)) - x

        most = 1e-6
        while excess(most) > 0:
            most *= 2
        x = float(brentq(excess, most / 2, most, rtol=1e-4)) if most > 1e-6 else most
        return (1 + self.shape) * max(x, trial.epsilon(allowed(x) / ROUND_UP)) * ROUND_UP

    def renyi(self, divergence: Divergence) -> Divergence:
        """Renyi divergence of the search from that of a trial (Papernot and Steinke 2022).

        d(a) + (1 + shape) ((1 - 1/b) d(b) - ln(stop) / b) + ln(mean) / (a - 1), for any orders a, b > 1.
        """
        orders: list[float] = [1 + 10**exponent for exponent in np.linspace(-2.0, 4.0, 61).tolist()]
        other: float = min((1 - 1 / b) * divergence(b) - math.log(self.stop) / b for b in orders)

        def total(order: float) -> float:
            rest = (1 + self.shape) * other + math.log(self.mean) / (order - 1)
            return (divergence(order) + rest) * ROUND_UP

        return total

    def draw(self, stream: RandomStream | None = None) -> int:
        """A number of trials. It is a secret: against whoever learns it there is no guarantee."""
        stop, shape, one = Decimal(self.stop), Decimal(self.shape), Decimal(1)
        go_on, log_stop = _DIGITS.subtract(one, stop), _DIGITS.ln(stop)
        if shape:
            total = _DIGITS.subtract(_DIGITS.exp(_DIGITS.multiply(-shape, log_stop)), one)
            first = _DIGITS.divide(_DIGITS.multiply(go_on, shape), total)
        else:
            first = _DIGITS.divide(go_on, -log_stop)

        def ratio(k: int) -> Decimal:
            return _DIGITS.divide(_DIGITS.multiply(go_on, _DIGITS.add(shape, Decimal(k))), Decimal(k + 1))

        return _drawn(1, first, ratio, stream)


@dataclass(frozen=True)
class PoissonTrials:
    """A Poisson number of trials, possibly none. Cheap in privacy for a few trials only."""

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", real("mean", self.mean, at_least=0.01, at_most=MOST_TRIALS))

    @property
    def chance_of_any(self) -> float:
        """The chance that something is selected."""
        return -math.expm1(-self.mean)

    def extra_epsilon(self, trial: TrialCurve) -> float:
        """mean delta(0)."""
        return self.mean * trial.advantage() * ROUND_UP

    def renyi(self, divergence: Divergence) -> Divergence:
        """Renyi divergence of the search from that of a trial (Papernot and Steinke 2022).

        d(a) + mean delta(e) + ln(mean) / (a - 1) at e = ln(1 + 1 / (a - 1)).
        """

        def total(order: float) -> float:
            delta = delta_of_divergence(divergence, math.log1p(1 / (order - 1)) / ROUND_UP)
            fixed = math.log(self.mean) / (order - 1)
            return (divergence(order) + self.mean * delta) * ROUND_UP + fixed + 1e-12 * abs(fixed)

        return total

    def draw(self, stream: RandomStream | None = None) -> int:
        """A number of trials. It is a secret: against whoever learns it there is no guarantee."""
        mean = Decimal(self.mean)
        return _drawn(0, _DIGITS.exp(-mean), lambda k: _DIGITS.divide(mean, Decimal(k + 1)), stream)


Trials = NegativeBinomialTrials | PoissonTrials
"""The law of the number of trials."""


def geometric_trials(mean: float) -> NegativeBinomialTrials:
    """After every trial the search ends with the same chance, 1 / mean."""
    return NegativeBinomialTrials(1 / _checked(mean), 1.0)


def logarithmic_trials(mean: float) -> NegativeBinomialTrials:
    """Cheaper than geometric trials of the same mean: more often very few, now and then very many."""
    mean = _checked(mean)
    log_stop = brentq(lambda x: _mean(math.exp(x), 0.0) - mean, math.log(1e-12), -1e-12, xtol=1e-15)
    return NegativeBinomialTrials(math.exp(log_stop), 0.0)


def _checked(mean: object) -> float:
    remedy = "It is the expected number of trials."
    return real("mean", mean, at_least=1.001, at_most=MOST_TRIALS, remedy=remedy)


def _mean(stop: float, shape: float) -> float:
    growth = -math.log(stop) if shape == 0 else -math.expm1(shape * math.log(stop)) / shape
    return (1 - stop) / (stop * growth)


def _drawn(
    least: int, probability: Decimal, ratio: Callable[[int], Decimal], stream: RandomStream | None
) -> int:
    """A draw from probabilities with known ratios, by 256 random bits and 100 digits: exact to about 1e-77."""
    bits = int.from_bytes((stream or system_stream()).bytes(32), "big")
    left, count = _DIGITS.divide(Decimal(2 * bits + 1), Decimal(2**257)), least
    while left > probability and not (probability < Decimal("1e-80") and ratio(count) < 1):
        left = _DIGITS.subtract(left, probability)
        probability = _DIGITS.multiply(probability, ratio(count))
        count += 1
    return count
