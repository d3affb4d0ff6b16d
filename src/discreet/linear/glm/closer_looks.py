"""Location and spread of few numbers by looks that come closer and closer: :func:`locate_numbers`.

A histogram of few numbers drowns in noise, and a spread that is taken for three times what it is makes all later
noise three times as large. Here every look clips the numbers to ``reach`` around what is known of their middle, and
tells two things: on which side of it they are, and how far away. The first moves the middle, which is known the
better the less noise a small reach needs. The second says little about the spread as long as a look reaches much
too far or not far enough; all looks together, each with its known noise, say which spread explains them best.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from discreet.linear.gate.block_sums import ROUNDING, Blocks, TargetOffset, Values
from discreet.linear.gate.records import Records
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

UNKNOWN = 12**-0.5
"""The error of a mean that may be anywhere in [0, 1], and the spread of numbers that may be."""

_ERRORS = 3.0  # how far around the middle numbers count in full
_NARROWEST, _SPREADS = 1e-6, 200  # the spreads that are considered: from there to that of the bounds
_OF_MEDIAN = 1.25  # the error of a median over that of a mean, for normal numbers


class Within(NamedTuple):
    """Where targets are [0, 1]: from ``lower`` over ``width``."""

    lower: float
    width: float

    @classmethod
    def of(cls, bounds: tuple[float, float]) -> Within:
        return cls(bounds[0], bounds[1] - bounds[0])


class Location(NamedTuple):
    """The mean of numbers in [0, 1], the standard error of that, and the spread of the numbers."""

    mean: float
    error: float
    spread: float


def locate_numbers(records: Records, within: Within, count: float, stage: Stage) -> Location:
    """Where numbers in [0, 1] are and how far they spread, by ``stage.steps`` looks.

    What is found is between their mean and their median, so its error is at least that of a median. With a for the
    distance of a record's number from a released one, at most ``reach``, it adds a or -a to one sum and a - reach / 2
    to another.
    """
    mean, error = 0.5, UNKNOWN
    spreads = np.geomspace(_NARROWEST, UNKNOWN, _SPREADS)
    likely = np.zeros(_SPREADS)
    for _ in range(stage.steps):
        reach = min(_ERRORS * error, max(mean, 1 - mean))
        view, bound = TargetOffset(*within, mean, reach, far=True), reach * math.sqrt(1.25) * ROUNDING
        noisy, noise, _ = stage.ask(records, Blocks((Values(view, (reach, reach / 2)),), bound))
        side, far = (float(seen) / count for seen in noisy)
        doubt = noise / count
        expected = clipped_distance(np.hypot(spreads, error), reach)
        likely -= 0.5 * ((far + reach / 2 - expected) / doubt) ** 2
        mean = min(max(mean + side * error**2 / (error**2 + doubt**2), 0.0), 1.0)
        error *= doubt / math.hypot(error, doubt)
    weights_of = np.exp(likely - likely.max())
    spread = max(math.exp(float(weights_of @ np.log(spreads) / weights_of.sum())), error)
    return Location(mean, math.hypot(error, _OF_MEDIAN * spread / math.sqrt(count)), spread)


def clipped_distance(deviation: Array, reach: float) -> Array:
    """The mean of min(\\|x\\|, reach), for normal numbers x around 0 with these standard deviations."""
    a = reach / deviation
    return np.asarray(deviation * (math.sqrt(2 / math.pi) * -np.expm1(-(a**2) / 2) + 2 * a * ndtr(-a)))
