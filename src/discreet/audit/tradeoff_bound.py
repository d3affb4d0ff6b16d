"""A trade-off curve as straight lines: the form in which the audit asks "may an honest release do this?".

Differential privacy bounds the hit rate of every test by lines in its false-alarm rate:

    hits <= delta + e^epsilon alarms      and      1 - alarms <= delta + e^epsilon (1 - hits)

one pair for each epsilon (Wasserman and Zhou 2010; Dong, Roth and Su 2022). Every line holds by itself, so a
finite number of them is sound, and a few hundred follow a smooth curve to some parts in ten thousand.

>>> curve = TradeoffBound.gaussian(mu=1.0)
>>> curve.most_hits(np.array([0.01, 0.1])).round(4)
array([0.0924, 0.3891])
>>> curve.least_alarms(np.array([0.0924])).round(4)
array([0.01])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from discreet.accounting.curve import PrivacyCurve
from discreet.events import ApproximateDP, Gaussian
from discreet.guarantee import sensitivity_factor

Floats = NDArray[np.float64]

_LEAST_DELTA = 1e-9  # lines beyond it speak of events too rare for any audit
_MOST_EPSILON = 60.0
_SPACING = 0.02  # of the epsilons: the lines then miss the curve by at most 0.02^2 / 8 of it
_ROUNDING = 1e-13  # more than the rounding of a difference of two probabilities


@dataclass(frozen=True, eq=False)
class TradeoffBound:
    """An upper bound of a trade-off curve: hits <= intercept + slope * alarms for every line, steepest first.

    Guarantee: no test of a release that obeys the curve has more hits than :meth:`most_hits`.
    """

    slopes: Floats
    intercepts: Floats

    @classmethod
    def of(cls, curve: PrivacyCurve) -> TradeoffBound:
        """The lines of a certified curve."""
        if isinstance(curve.event, ApproximateDP):
            epsilon, delta = _of_group(curve.event, curve.group_size)
            return cls.at(np.array([epsilon]), np.array([delta]))
        mu = _mu(curve)
        return cls.certified(curve) if mu is None else cls.gaussian(mu)

    @classmethod
    def certified(cls, curve: PrivacyCurve) -> TradeoffBound:
        """The lines of any curve, at 128 epsilons, through its certified deltas."""
        epsilons = np.linspace(0.0, _max_epsilon(curve), 128)
        return cls.at(epsilons, curve.deltas(epsilons)).lowest()

    @classmethod
    def gaussian(cls, mu: float, count: int | None = None) -> TradeoffBound:
        """The lines of a release that tells no more than one draw of N(0, 1) or N(mu, 1)."""
        top = min(mu * (mu / 2 - float(ndtri(_LEAST_DELTA))), 600.0)
        epsilons = np.linspace(0.0, top, count or int(np.clip(top / _SPACING, 128, 1024)))
        u = epsilons / mu - mu / 2
        deltas = np.exp(log_ndtr(-u)) - np.exp(epsilons + log_ndtr(-u - mu)) + _ROUNDING
        return cls.at(epsilons, np.minimum(deltas, 1.0))

    @classmethod
    def at(cls, epsilons: Floats, deltas: Floats) -> TradeoffBound:
        """Both lines of each (epsilon, delta)."""
        slopes = np.concatenate([np.exp(epsilons), np.exp(-epsilons)])
        intercepts = np.concatenate([deltas, 1 - np.exp(-epsilons) * (1 - deltas)])
        order = np.argsort(-slopes, kind="stable")
        return cls(slopes[order], intercepts[order])

    def lowest(self) -> TradeoffBound:
        """Without the lines that are nowhere the lowest."""
        alarms = 1 / (1 + np.exp(np.linspace(30.0, -30.0, 1000)))
        used = np.unique(np.argmin(self.intercepts[:, None] + self.slopes[:, None] * alarms, axis=0))
        return TradeoffBound(self.slopes[used], self.intercepts[used])

    def most_hits(self, alarms: Floats) -> Floats:
        """The highest hit rate at each false-alarm rate."""
        lines: Floats = self.intercepts[:, None] + self.slopes[:, None] * alarms
        return np.asarray(np.clip(lines.min(axis=0), 0.0, 1.0))

    def least_alarms(self, hits: Floats) -> Floats:
        """The lowest false-alarm rate of a test with each hit rate: the inverse."""
        lines: Floats = (hits - self.intercepts[:, None]) / self.slopes[:, None]
        return np.asarray(np.clip(lines.max(axis=0), 0.0, 1.0))


def _mu(curve: PrivacyCurve) -> float | None:
    """The mu of a curve that belongs to Gaussian releases only, rounded up; None for all others."""
    squares = 0.0
    for event, count in curve.event.parts():
        if not isinstance(event, Gaussian) or event.noise_multiplier == 0:
            return None
        squares += count / event.noise_multiplier**2
    sensitivity = sensitivity_factor(curve.neighbours, curve.group_size)
    return math.sqrt(squares) * sensitivity * (1 + 1e-14)


def _of_group(event: ApproximateDP, size: int) -> tuple[float, float]:
    """Group privacy of (epsilon, delta) for ``size`` records, rounded up."""
    epsilon, delta = event.epsilon, event.delta
    factor = math.fsum(math.exp(min(k * epsilon, 600.0)) for k in range(size))
    return size * epsilon * (1 + 1e-15), min(1.0, delta * factor * (1 + 1e-12))


def _max_epsilon(curve: PrivacyCurve) -> float:
    """About where delta becomes too small to matter; any number would be sound."""
    exposed = float(curve.deltas(_MOST_EPSILON)[0])  # of what no epsilon hides
    epsilon = curve.estimate_epsilon(min(_LEAST_DELTA + 2 * exposed, 0.5))
    return min(epsilon, _MOST_EPSILON) if epsilon > 0 else _MOST_EPSILON
