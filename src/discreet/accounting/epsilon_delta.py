"""A guarantee of which only (epsilon, delta) is known, and what it says about groups.

The classical theorems speak of such pairs. They hold for whatever neighbours the pair was proved for; where
that matters, the function asks. Sums and products are rounded up, so a pair never promises too much.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from discreet.errors import real, whole
from discreet.events.common import MAX_COUNT

ROUND_UP = 1 + 1e-14
"""More than the rounding of the closed formulas that are multiplied by it."""


class EpsilonDelta(NamedTuple):
    """A proved (epsilon, delta); its neighbours are those of the guarantees it was made of."""

    epsilon: float
    delta: float


def group_privacy(epsilon: float, delta: float, group_size: int) -> EpsilonDelta:
    """Guarantee: what (epsilon, delta) for one record promises a group of records.

    (group_size epsilon, delta (1 + e^epsilon + ... + e^{(group_size - 1) epsilon})), by going from one data
    set to the other one record at a time.

    >>> group_privacy(epsilon=0.0, delta=1e-6, group_size=3)
    EpsilonDelta(epsilon=0.0, delta=3e-06)
    """
    pair = checked_pair(epsilon, delta)
    group_size = whole("group_size", group_size, at_least=1, at_most=MAX_COUNT)
    total_epsilon = round_up(group_size * Fraction(pair.epsilon))
    if pair.epsilon == 0:
        return EpsilonDelta(0.0, min(1.0, round_up(group_size * Fraction(pair.delta))))
    if pair.delta == 0 or group_size == 1:
        return EpsilonDelta(total_epsilon, pair.delta)
    # log of (e^{k epsilon} - 1) / (e^epsilon - 1), which may overflow
    log_sum = (group_size - 1) * pair.epsilon
    log_sum += math.log(-math.expm1(-group_size * pair.epsilon)) - math.log(-math.expm1(-pair.epsilon))
    log_delta = math.log(pair.delta) + log_sum
    return EpsilonDelta(total_epsilon, min(1.0, math.exp(min(0.0, log_delta)) * (1 + 1e-12)))


def checked_pair(epsilon: object, delta: object) -> EpsilonDelta:
    """The pair as floats, or :class:`~discreet.errors.InvalidParameter`."""
    return EpsilonDelta(real("epsilon", epsilon, at_least=0), real("delta", delta, at_least=0, below=1))


def round_up(exact: Fraction) -> float:
    """The smallest float that is not below ``exact``."""
    try:
        rounded = float(exact)
    except OverflowError:
        return math.inf
    return rounded if rounded >= exact else math.nextafter(rounded, math.inf)
