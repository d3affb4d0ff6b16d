"""The Renyi accountant: the modern form of the moments accountant, and the library's second opinion.

The Renyi divergence of order a between the outputs on neighbouring data sets is a number that simply adds up
over adaptive steps (Mironov 2017). Every order gives a valid epsilon (Canonne, Kamath, Steinke 2020):

    epsilon = divergence(a) + ln(1 - 1/a) - ln(a delta) / (a - 1)

and the best order is found by search. The result is an upper bound like that of ``account``, somewhat larger,
and reached by other means: closed forms and one integral instead of convolutions. No guarantee rests on it: where a
certificate is verified, it can only reject one that the first accountant accepts.

>>> from discreet.events import Gaussian, PoissonSampled
>>> step = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
>>> round(renyi_epsilon(step * 10_000, delta=1e-5), 6)
1.035384

In docs/accountants.md: A10.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from discreet.accounting.divergences import MAX_ORDER, Divergence, divergence_of
from discreet.errors import probability, real
from discreet.events import Event
from discreet.guarantee import Neighbours


def renyi_epsilon(event: Event, delta: float, neighbours: Neighbours = "add-remove") -> float:
    """Guarantee: ``event`` is (this epsilon, delta)-DP for these neighbours."""
    return epsilon_of_divergence(divergence_of(event, neighbours), delta)


def renyi_divergence(event: Event, order: float, neighbours: Neighbours = "add-remove") -> float:
    """Guarantee: the Renyi divergence of this order, in both directions, is at most this.

    >>> from discreet.events import Gaussian
    >>> round(renyi_divergence(Gaussian(2.0) * 3, order=1.5), 12)
    0.5625
    """
    return divergence_of(event, neighbours)(real("order", order, above=1, at_most=MAX_ORDER))


def epsilon_of_divergence(divergence: Divergence, delta: float) -> float:
    """Guarantee: whatever has this Renyi divergence, for all orders, is (this epsilon, delta)-DP."""
    log_delta = math.log(probability("delta", delta))

    def epsilon(order: float) -> float:
        rest = order - 1
        terms = (divergence(order), math.log(rest), -math.log(order), -(log_delta + math.log(order)) / rest)
        return sum(terms) + 1e-15 * sum(map(abs, terms))

    return max(0.0, _smallest(epsilon))


def delta_of_divergence(divergence: Divergence, epsilon: float) -> float:
    """Guarantee: whatever has this Renyi divergence, for all orders, is (epsilon, this delta)-DP."""
    epsilon = real("epsilon", epsilon, at_least=0)

    def log_delta(order: float) -> float:
        rest = order - 1
        terms = (rest * divergence(order), -rest * epsilon, rest * math.log(rest / order), -math.log(order))
        return sum(terms) + 1e-15 * sum(map(abs, terms))

    return math.exp(min(0.0, _smallest(log_delta)))


def _smallest(objective: Callable[[float], float]) -> float:
    """About the smallest value over all orders above 1. Every order is valid, so the search may be rough."""

    def at(exponent: float) -> float:
        return objective(min(1 + 10.0**exponent, MAX_ORDER))

    best, place, rising = math.inf, 0.0, 0
    for exponent in np.linspace(-7, 6, 40).tolist():
        value = at(exponent)
        best, place, rising = (value, exponent, 0) if value < best else (best, place, rising + 1)
        if rising == 4:
            break
    for halving in range(1, 14):
        for exponent in (place - 0.34 / 2**halving, place + 0.34 / 2**halving):
            value = at(exponent)
            best, place = (value, exponent) if value < best else (best, place)
    return best


def mean_of_stopping(stop: float, shape: float) -> float:
    """The mean of the truncated negative binomial distribution."""
    growth = -math.log(stop) if shape == 0 else -math.expm1(shape * math.log(stop)) / shape
    return (1 - stop) / (stop * growth)
