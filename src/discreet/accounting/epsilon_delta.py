"""A guarantee of which only (epsilon, delta) is known, and what it says about groups.

The classical theorems speak of such pairs. They hold for whatever neighbours the pair was proved for; where
that matters, the function asks. Sums and products are rounded up, so a pair never promises too much.

What (epsilon, delta) means to an attacker who tests whether a record was used.

The test raises *false alarms* on records that were not used and *misses* some that were. No test beats

    miss rate >= max(1 - delta - e^epsilon false_alarms, e^-epsilon (1 - delta - false_alarms), 0)

(Wasserman and Zhou 2010; Kairouz et al. 2015), and some release that is (epsilon, delta)-DP attains it. A
Gaussian release is less exposed than its (epsilon, delta) tells: see ``gaussian_power``.

>>> round(power_bound(epsilon=1.0, delta=1e-5, false_alarms=0.01), 8)
0.02719282
>>> round(advantage_bound(epsilon=1.0, delta=1e-5), 8)
0.46212254

In docs/accountants.md: A15.
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


# ---- what (epsilon, delta) means to an attacker who tests whether a record was used ----


_ROUNDING = 1e-15  # more than the absolute rounding of a few numbers of at most 1


def miss_rate_bound(epsilon: float, delta: float, false_alarms: float) -> float:
    """Guarantee: every membership test with this false-alarm rate misses at least this share of records."""
    return max(0.0, 1 - power_bound(epsilon, delta, false_alarms) - _ROUNDING)


def power_bound(epsilon: float, delta: float, false_alarms: float) -> float:
    """Guarantee: no membership test with this false-alarm rate has a higher hit rate (1 - miss rate)."""
    epsilon, delta = checked_pair(epsilon, delta)
    false_alarms = real("false_alarms", false_alarms, at_least=0, at_most=1)
    log_false_alarms = math.log(false_alarms) if false_alarms else -math.inf
    few_alarms = (delta + math.exp(min(0.0, epsilon + log_false_alarms))) * ROUND_UP
    many_alarms = 1 - math.exp(-epsilon) * max(0.0, 1 - delta - false_alarms) + _ROUNDING
    return min(1.0, few_alarms, many_alarms)


def advantage_bound(epsilon: float, delta: float) -> float:
    """Guarantee: no membership test has a larger difference of hit rate and false-alarm rate.

    It is (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).
    """
    epsilon, delta = checked_pair(epsilon, delta)
    shrink = math.exp(-epsilon)
    return min(1.0, (-math.expm1(-epsilon) + 2 * delta * shrink) / (1 + shrink) * ROUND_UP)


def accuracy_bound(epsilon: float, delta: float) -> float:
    """Guarantee: no membership test is right more often, on a record used with probability one half."""
    return min(1.0, 0.5 + 0.5 * advantage_bound(epsilon, delta) + _ROUNDING)
