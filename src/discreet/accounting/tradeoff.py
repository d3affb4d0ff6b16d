"""What (epsilon, delta) means to an attacker who tests whether a record was used.

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

from discreet.accounting.epsilon_delta import ROUND_UP, checked_pair
from discreet.errors import real

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
