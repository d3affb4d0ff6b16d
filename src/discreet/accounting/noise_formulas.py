"""Noise multipliers and hit rates by formula. A charge never rests on them: the accountant prices the event anew.

>>> round(analytic_gaussian_noise(epsilon=1.0, delta=1e-5), 10)
3.7306316348

In docs/accountants.md: A1, A2.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri

from discreet.accounting.gaussian import ALLOWANCE, gaussian_mu
from discreet.errors import probability, real
from discreet.guarantee import Bounds


def analytic_gaussian_noise(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier for one release at any epsilon (Balle and Wang 2018), rounded up.

    Guarantee: noise of this many times the sensitivity makes the release (epsilon, delta)-DP.
    """
    return math.nextafter(1 / gaussian_mu(epsilon, delta), math.inf)


def classic_gaussian_noise(epsilon: float, delta: float) -> float:
    """The textbook noise multiplier sqrt(2 ln(1.25/delta)) / epsilon (Dwork and Roth 2014), rounded up.

    Guarantee: noise of this many times the sensitivity makes the release (epsilon, delta)-DP. The theorem is
    for epsilon below 1 and fails for large epsilon (at delta = 1e-5 from 8.42 on), so others are refused.

    >>> round(classic_gaussian_noise(epsilon=0.5, delta=1e-5), 10)
    9.6896105252
    """
    remedy = (
        "The classic formula is proved for epsilon < 1 only; use analytic_gaussian_noise for any epsilon."
    )
    epsilon, delta = real("epsilon", epsilon, above=0, below=1, remedy=remedy), probability("delta", delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon * (1 + 1e-15)


def gaussian_power(false_alarms: float, mu: float) -> float:
    """The best hit rate of any membership test with this false-alarm rate, rounded up (Dong, Roth, Su 2022).

    Guarantee: no test of whether a record was used finds more of them. The best one finds as many.

    >>> round(gaussian_power(false_alarms=0.01, mu=1.0), 10)
    0.0923622481
    """
    false_alarms = real("false_alarms", false_alarms, at_least=0, at_most=1)
    mu = real("mu", mu, above=0, remedy="It is the sensitivity divided by the noise's deviation.")
    return min(1.0, float(ndtr(ndtri(false_alarms) + mu)) * (1 + ALLOWANCE))


def gaussian_power_bounds(false_alarms: float, mu: float) -> Bounds:
    """Certified bounds on :func:`gaussian_power`, which differ by rounding only."""
    power = gaussian_power(false_alarms, mu)
    return Bounds(power * (1 - 1e-12), power * (1 + 1e-12))


def laplace_noise(epsilon: float) -> float:
    """The smallest scale for one release, as a multiple of the l1 sensitivity, rounded up unless exact.

    Guarantee: noise of this scale makes the release (epsilon, 0)-DP.

    >>> laplace_noise(epsilon=0.5)
    2.0
    """
    epsilon = real("epsilon", epsilon, above=0, remedy="No noise hides everything.")
    inverse = 1 / epsilon
    return inverse if math.frexp(epsilon)[0] == 0.5 else math.nextafter(inverse, math.inf)
