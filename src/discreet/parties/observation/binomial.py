"""How often a random schedule asks: binomial counts, with their tails on the safe side."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from discreet.errors import InvalidParameter, probability, real, whole
from discreet.events.common import MAX_COUNT

ALLOWANCE = 1e-6
"""The relative error that computed binomial probabilities are allowed; theirs is far smaller."""


def most_likely_count(trials: int, chance: float, missed: float) -> int:
    """The smallest k such that Binomial(``trials``, ``chance``) exceeds k with probability at most ``missed``.

    Guarantee: rounded up, so that the probability is not larger than asked for.

    >>> most_likely_count(100**2, 1 / 100, missed=1e-9), most_likely_count(1000**2, 1 / 1000, missed=1e-9)
    (165, 1195)
    """
    trials = whole("trials", trials, at_least=1, at_most=MAX_COUNT)
    chance, missed = real("chance", chance, above=0, at_most=1), probability("missed", missed)
    if missed < 1e-200:
        raise InvalidParameter("missed", missed, "is smaller than can be computed; use at least 1e-200.")
    return _quantile(trials, chance, missed)


@lru_cache(maxsize=256)
def _quantile(trials: int, chance: float, missed: float) -> int:
    low, high = -1, trials  # exceeded too often; never exceeded
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance_above(middle, trials, chance) <= missed else (middle, high)
    return high


def chance_above(count: int, trials: int, chance: float) -> float:
    """The probability that Binomial(``trials``, ``chance``) exceeds ``count``, rounded up."""
    return min(1.0, float(binom.sf(count, trials, chance)) * (1 + ALLOWANCE))


class Brackets(NamedTuple):
    """Counts in brackets: each ends at one of ``ends`` and begins above the end before it, the first at 0."""

    ends: NDArray[np.int64]
    shares: NDArray[np.float64]
    beyond: float
    """The chance of a count above the last end."""


def brackets(trials: int, chance: float, tail: float, width: float, most: int) -> Brackets:
    """The likely counts of Binomial(``trials``, ``chance``) in brackets, and the chance of each.

    Around the mean a bracket spans about ``width`` of the count, or more where that would give more than ``most``
    of them, or a single count. The far sides, which hardly matter, are coarser; above the last end is ``tail``.
    """
    mean, deviation = trials * chance, math.sqrt(trials * chance * (1 - chance))
    last = most_likely_count(trials, chance, tail)
    low, high = mean - 3 * deviation - 1, mean + 4 * deviation
    high = high if last - low > most else last + 1.0
    near = np.arange(low, high, max(1.0, width * mean, (high - low) / most))
    far = np.geomspace(max(near[-1], 1.0), max(last, near[-1], 1.0), 4)
    ends = np.unique(np.clip(np.ceil(np.concatenate((near, far, [last]))), 0, last).astype(np.int64))
    below, above = binom.cdf(ends, trials, chance), binom.sf(ends, trials, chance)
    # Differences lose digits in the upper tail if taken of the cdf, in the lower one if of its complement.
    shares = np.where(ends <= mean, np.diff(below, prepend=0.0), -np.diff(above, prepend=1.0))
    return Brackets(ends, shares, float(above[-1]))
