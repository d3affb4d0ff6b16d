"""The exact privacy curve of Laplace noise.

Noise of ``scale`` times the l1 sensitivity is (1/scale)-DP, with delta = 0. For a smaller epsilon it needs

    delta(epsilon) = 1 - exp((epsilon - 1/scale) / 2)

which one coordinate that moves by the whole sensitivity attains. The variance of each coordinate is
2 (scale * sensitivity)^2.

>>> round(laplace_delta(epsilon=0.5, scale=1.0), 10)
0.2211992169
>>> laplace_epsilon(delta=0.0, scale=2.0)
0.5

In docs/accountants.md: A3.
"""

from __future__ import annotations

import math
from fractions import Fraction

from discreet.accounting.epsilon_delta import ROUND_UP, checked_pair
from discreet.errors import InvalidParameter, real


def laplace_delta(epsilon: float, scale: float) -> float:
    """Guarantee: one release is (epsilon, this delta)-DP; no smaller delta will do."""
    epsilon, scale = real("epsilon", epsilon, at_least=0), _scale(scale)
    if Fraction(epsilon) * Fraction(scale) >= 1:
        return 0.0
    return min(1.0, -math.expm1(0.5 * (epsilon - ROUND_UP / scale)) * ROUND_UP)


def laplace_epsilon(delta: float, scale: float) -> float:
    """Guarantee: one release is (this epsilon, delta)-DP; no smaller epsilon will do."""
    delta, scale = real("delta", delta, at_least=0, below=1), _scale(scale)
    if delta == 0:
        return _inverse_up(scale)
    return max(0.0, ROUND_UP / scale + 2 * math.log1p(-delta) / ROUND_UP)


def laplace_noise(epsilon: float, delta: float = 0.0) -> float:
    """The smallest scale for one release, as a multiple of the l1 sensitivity, rounded up.

    Guarantee: noise of this scale makes the release (epsilon, delta)-DP.

    >>> laplace_noise(epsilon=0.5)
    2.0
    """
    epsilon, delta = checked_pair(epsilon, delta)
    if epsilon == delta == 0:
        raise InvalidParameter(
            "epsilon", epsilon, "must be above 0 where delta is 0: no noise hides everything."
        )
    if delta == 0:
        return _inverse_up(epsilon)
    return ROUND_UP / (epsilon - 2 * math.log1p(-delta))


def laplace_power(false_alarms: float, scale: float) -> float:
    """Guarantee: no membership test of one release with this false-alarm rate has a higher hit rate.

    >>> round(laplace_power(false_alarms=0.01, scale=1.0), 10)
    0.0271828183
    """
    false_alarms = real("false_alarms", false_alarms, at_least=0, at_most=1)
    shrink = math.exp(-1 / _scale(scale))
    if false_alarms <= 0.5 * shrink:
        return min(1.0, false_alarms / shrink * ROUND_UP)
    miss = shrink / (4 * false_alarms) if false_alarms < 0.5 else shrink * (1 - false_alarms)
    return min(1.0, 1 - miss + 1e-15)


def _scale(value: object) -> float:
    return real("scale", value, above=0, remedy="It is the noise's scale divided by the l1 sensitivity.")


def _inverse_up(x: float) -> float:
    """1 / x, rounded up unless exact."""
    inverse = 1 / x
    return inverse if math.frexp(x)[0] == 0.5 else math.nextafter(inverse, math.inf)
