"""The moments accountant of Abadi et al. 2016, for noisy SGD with Poisson batches and add-remove neighbours.

The privacy loss of a step is a random variable; the accountant bounds its log moment of order 1, 2, ..., adds
them over the steps (whatever each step has learned from the last) and reads epsilon from the tail bound:

    epsilon = min over orders of (steps * log_moment(order) + ln(1/delta)) / order

For the Poisson-sampled Gaussian the log moment has a closed form at whole orders. The original stops at order
32, which is kept as the default; ``renyi`` is its modern form, with all orders and a better tail bound.

>>> round(moments_accountant(rate=0.01, noise_multiplier=4.0, steps=10_000, delta=1e-5), 10)
1.2585747413

In docs/accountants.md: A9.

Zero-concentrated privacy: one number, rho, instead of a curve (Bun and Steinke 2016).

A release is rho-zCDP when its Renyi divergence of every order a is at most rho a. Gaussian noise has
rho = 1 / (2 noise_multiplier^2), and rho adds up over adaptive releases. It is the accounting that fits on the
back of an envelope:

    epsilon <= rho + 2 sqrt(rho ln(1/delta))

The plain functions use the better conversion of Canonne, Kamath and Steinke 2020, the ``simple_`` ones the line
above. For Gaussian noise alone, ``gaussian_epsilon`` is exact.

>>> round(simple_zcdp_epsilon(rho=0.1, delta=1e-5), 8)
2.24596603
>>> round(zcdp_epsilon(rho=0.1, delta=1e-5), 3)
1.914

In docs/accountants.md: A11.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from discreet.accounting.renyi import epsilon_of_divergence
from discreet.errors import probability, real, whole
from discreet.events import Gaussian, PoissonSampled
from discreet.events.common import MAX_COUNT
from discreet.guarantee import ROUND_UP


def log_moment(rate: float, noise_multiplier: float, order: int) -> float:
    """The log moment of one step, ln E exp(order * privacy loss), at a whole order; rounded up.

    Of the two directions, removing a record has the larger moment (Mironov, Talwar, Zhang 2019). It is a
    binomial sum, ln E[(1 - rate + rate e^{(2 x - 1) / (2 noise^2)})^(order + 1)] for x from N(0, noise^2).
    Taking 1 off it, term by term, leaves only positive terms and all digits of a tiny moment.

    >>> round(log_moment(rate=0.01, noise_multiplier=4.0, order=1), 16)
    6.4494250942e-06
    """
    event = _sampled_gaussian(rate, noise_multiplier)
    if event[0] == 0:
        return 0.0
    return _log_moment(*event, whole("order", order, at_least=1, at_most=10**6))


def _log_moment(rate: float, noise_multiplier: float, order: int) -> float:
    if noise_multiplier < 1e-100:  # beyond floating point, and beyond any privacy
        return math.inf
    power = order + 1
    k = np.arange(2.0, power + 1)
    exponent = k * (k - 1) / (2 * noise_multiplier**2)
    if rate == 1:
        return float(exponent[-1]) * ROUND_UP
    choices = gammaln(power + 1) - gammaln(k + 1) - gammaln(power - k + 1)
    weights = choices + k * math.log(rate) + (power - k) * math.log1p(-rate)
    log_excess = float(logsumexp(weights + exponent + np.log(-np.expm1(-exponent))))
    # The terms are sums of logarithms, each of which is rounded.
    rounding = 1e-15 * (float(gammaln(power + 1)) - power * math.log(rate) + float(exponent[-1]))
    return float(np.logaddexp(0.0, log_excess + rounding)) * ROUND_UP


def _sampled_gaussian(rate: float, noise_multiplier: float) -> tuple[float, float]:
    noise = Gaussian(noise_multiplier)
    return PoissonSampled(rate, noise).rate, noise.noise_multiplier


def moments_accountant(
    rate: float, noise_multiplier: float, steps: int, delta: float, max_order: int = 32
) -> float:
    """Guarantee: ``steps`` steps of noisy SGD are (this epsilon, delta)-DP for add-remove neighbours."""
    steps, moments = _moments(rate, noise_multiplier, steps, max_order)
    surprise = -math.log(probability("delta", delta))
    return min((steps * moment + surprise) / order for order, moment in enumerate(moments, 1)) * ROUND_UP


def moments_accountant_delta(
    rate: float, noise_multiplier: float, steps: int, epsilon: float, max_order: int = 32
) -> float:
    """Guarantee: ``steps`` steps of noisy SGD are (epsilon, this delta)-DP for add-remove neighbours.

    >>> round(moments_accountant_delta(0.01, 4.0, steps=10_000, epsilon=1.2585747413), 12)
    1e-05
    """
    steps, moments = _moments(rate, noise_multiplier, steps, max_order)
    epsilon = real("epsilon", epsilon, at_least=0)
    log_delta = min(steps * moment * ROUND_UP - order * epsilon for order, moment in enumerate(moments, 1))
    return min(1.0, math.exp(min(0.0, log_delta)) * (1 + 1e-12))


def _moments(rate: float, noise_multiplier: float, steps: int, max_order: int) -> tuple[int, list[float]]:
    steps = whole("steps", steps, at_least=1, at_most=MAX_COUNT)
    max_order = whole("max_order", max_order, at_least=1, at_most=10_000)
    return steps, [log_moment(rate, noise_multiplier, order) for order in range(1, max_order + 1)]


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Guarantee: whatever is rho-zCDP is (this epsilon, delta)-DP, for the same neighbours."""
    rho = real("rho", rho, above=0)
    delta = probability("delta", delta)
    return min(epsilon_of_divergence(lambda order: rho * order, delta), simple_zcdp_epsilon(rho, delta))


def simple_zcdp_epsilon(rho: float, delta: float) -> float:
    """Guarantee: whatever is rho-zCDP is (rho + 2 sqrt(rho ln(1/delta)), delta)-DP, for the same neighbours."""
    rho = real("rho", rho, above=0)
    return (rho + 2 * math.sqrt(-rho * math.log(probability("delta", delta)))) * ROUND_UP


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest rho that :func:`zcdp_epsilon` converts to at most ``epsilon``, rounded down.

    Guarantee: whatever is zCDP with this rho is (epsilon, delta)-DP, for the same neighbours.

    >>> rho = zcdp_rho(epsilon=1.0, delta=1e-5)
    >>> 0.999999 < zcdp_epsilon(rho, 1e-5) <= 1.0
    True
    """
    lower = simple_zcdp_rho(epsilon, delta)
    upper = 2 * lower
    while zcdp_epsilon(upper, delta) <= epsilon:
        lower, upper = upper, 2 * upper
    while upper - lower > 1e-9 * lower:
        middle = 0.5 * (lower + upper)
        lower, upper = (middle, upper) if zcdp_epsilon(middle, delta) <= epsilon else (lower, middle)
    return lower


def simple_zcdp_rho(epsilon: float, delta: float) -> float:
    """The rho of the simple conversion: (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))^2, rounded down.

    Guarantee: whatever is zCDP with this rho is (epsilon, delta)-DP, for the same neighbours.
    """
    epsilon = real("epsilon", epsilon, at_least=1e-100)
    surprise = -math.log(probability("delta", delta))
    root = epsilon / (math.sqrt(surprise + epsilon) + math.sqrt(surprise))
    return root**2 / ROUND_UP**3
