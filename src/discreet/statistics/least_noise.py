"""Which noise is least for one release within a budget, and how far it reaches.

Laplace noise needs vectors of bounded l1 norm, Gaussian noise of bounded l2 norm. Counts get integer noise where
delta is 0, which is the least possible at this epsilon (Ghosh, Roughgarden, Sundararajan 2009). At a delta above 0 it
would cost more than Laplace noise of its scale, and is not taken.
"""

from __future__ import annotations

import math
from dataclasses import replace

from scipy.special import ndtri

from discreet.core.mechanisms import gaussian_event, laplace_event
from discreet.core.noise import SPARED_DELTA, distance_to_continuous, grid_for
from discreet.errors import InvalidParameter
from discreet.events import DiscreteLaplace, Gaussian, Laplace
from discreet.guarantee import Budget
from discreet.trusted.queries import Norm
from discreet.trusted.rows import MOST_RECORDS
from discreet.trusted.session import MOST_NUMBERS, Noise

_LARGEST_SCALE = 2.0**30  # of integer noise


def candidates(budget: Budget, l1_excess: float = 1.0, *, counts: bool = False) -> tuple[Noise, ...]:
    """Return the noise that is least for the budget, then Gaussian noise for ledgers that take no other.

    ``l1_excess`` is the largest ratio of the l1 to the l2 norm of a record's vector; ``counts`` says that a record
    adds 1 to one number.
    """
    laplace = laplace_event(budget)
    if budget.delta == 0:
        exact = counts and laplace.scale < _LARGEST_SCALE
        return (DiscreteLaplace(laplace.scale) if exact else laplace,)
    gaussian = _gaussian(budget)
    if math.sqrt(2) * laplace.scale * l1_excess <= gaussian.noise_multiplier:
        return laplace, gaussian
    return (gaussian,)


def _gaussian(budget: Budget) -> Gaussian:
    event = gaussian_event(replace(budget, delta=budget.delta * (1 - SPARED_DELTA)))
    distance = distance_to_continuous(event, 1.0, grid_for(event, 1.0, MOST_RECORDS), MOST_NUMBERS)
    if (1 + math.exp(min(budget.epsilon, 700.0))) * distance > SPARED_DELTA * budget.delta:
        requirement = "is too large for integer noise at this delta; Laplace noise (delta=0) would do."
        raise InvalidParameter("epsilon", budget.epsilon, requirement)
    return event


def norm_of(event: Noise) -> Norm:
    """The norm in which this noise needs a record's vector to be bounded."""
    return "l2" if isinstance(event, Gaussian) else "l1"


def deviation(event: Noise) -> float:
    """The standard deviation of the noise on each number, for a sensitivity of 1."""
    if isinstance(event, Gaussian):
        return event.noise_multiplier
    if isinstance(event, DiscreteLaplace):
        return 1 / (math.sqrt(2) * math.sinh(1 / (2 * event.scale)))
    return math.sqrt(2) * event.scale


def quantile(event: Noise, level: float) -> float:
    """The distance from 0 that the noise on one number keeps within with probability ``level``."""
    if isinstance(event, Gaussian):
        return event.noise_multiplier * float(ndtri(0.5 + level / 2))
    if isinstance(event, Laplace):
        return -event.scale * math.log(1 - level)
    # P(|noise| > m) = 2 a^(m + 1) / (1 + a), where a = exp(-1 / scale).
    least = event.scale * math.log(2 / (1 + math.exp(-1 / event.scale)) / (1 - level))
    return float(max(0, math.ceil(least * (1 + 1e-12)) - 1))
