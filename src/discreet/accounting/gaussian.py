"""The exact privacy curve of Gaussian noise.

A release whose noise has standard deviation ``sensitivity / mu`` compares, in the worst case, N(0, 1) with
N(mu, 1). Its privacy curve has a closed form (Balle and Wang 2018), with u = epsilon/mu - mu/2:

    delta(epsilon) = Phi(-u) - exp(epsilon) Phi(-u - mu)  =  phi(u) (M(u) - M(u + mu))

where M(x) = Phi(-x) / phi(x) is the Mills ratio. The second form never overflows, and the difference can be
had without cancellation. Several releases are one: mu = sqrt(mu_1^2 + ... + mu_k^2), exactly.

The plain functions return the value to about twelve digits. The ``_bounds`` functions enclose the exact one:
they widen what was computed by ``ALLOWANCE``, which exceeds its error wherever 1e-8 <= mu <= 1e4. Below, a release
is hardly one; above, M(u + mu) lies between 0 and 1 / (u + mu), which is all that is needed of it.

>>> round(gaussian_epsilon(delta=1e-5, mu=1.0), 10)
4.3771780957

In docs/accountants.md: A1, A2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, erfinv, ndtr, ndtri

from discreet.accounting.roots import root_of
from discreet.errors import probability, real
from discreet.guarantee import Bounds

ALLOWANCE = 1e-12
"""Error allowed for in log(delta / (1 - delta)): relative in delta, or in 1 - delta where that is smaller."""

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_TINY = math.ulp(0.0)
_NODES, _WEIGHTS = (0.5 * part for part in np.polynomial.legendre.leggauss(10))
_NODES = _NODES + 0.5  # on (0, 1)
_LEAST_MU, _MOST_MU = 1e-8, 1e4  # between these the closed form is certified
_FAR = 10**6  # |u| beyond this gives a delta of exactly 0 or 1 in floating point


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact delta at ``epsilon``, to about twelve digits."""
    return math.exp(_point(*_check_point(epsilon, mu)).log_delta)


def gaussian_delta_bounds(epsilon: float, mu: float) -> Bounds:
    """Guarantee: the exact delta at ``epsilon`` lies within the bounds.

    >>> bounds = gaussian_delta_bounds(epsilon=1.0, mu=1.0)
    >>> bounds.lower < 0.126936737506648 < bounds.upper
    True
    """
    epsilon, mu = _check_point(epsilon, mu)
    if mu > _MOST_MU:
        return _far_delta_bounds(epsilon, mu)
    if mu < _LEAST_MU and epsilon <= mu:
        upper = mu / math.sqrt(2 * math.pi)  # delta(0) = 2 Phi(mu / 2) - 1
        return Bounds(upper * (1 - ALLOWANCE) if epsilon == 0 else 0.0, upper * (1 + ALLOWANCE) + _TINY)
    point = _point(epsilon, mu)
    if point.log_odds <= 0:
        delta = math.exp(point.log_delta)
        return Bounds(max(0.0, delta * (1 - ALLOWANCE) - _TINY), delta * (1 + ALLOWANCE) + _TINY)
    rest = math.exp(point.log_rest)
    lower, upper = 1 - rest * (1 + ALLOWANCE), 1 - rest * (1 - ALLOWANCE)
    return Bounds(math.nextafter(lower, 0.0), min(1.0, math.nextafter(upper, 2.0)))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The exact epsilon at ``delta``, to about twelve digits; 0 where delta alone covers the release."""
    delta, mu = probability("delta", delta), _positive("mu", mu)
    target = _log_odds(delta)
    if _point(0.0, mu).log_odds <= target:
        return 0.0
    # delta <= Phi(-u), so the tail bound is at least as large as the root.
    start = max(mu * (mu / 2 - float(ndtri(delta))), mu * mu * ALLOWANCE)

    def excess(epsilon: float) -> tuple[float, float]:
        point = _point(epsilon, mu)
        return target - point.log_odds, point.epsilon_slope

    return max(root_of(excess, start), 0.0)


def gaussian_epsilon_bounds(delta: float, mu: float, error: float = 0.0) -> Bounds:
    """Guarantee: the exact epsilon at ``delta`` lies within the bounds, for every mu (1 +- ``error``).

    Both ends are checked against the curve; the root finder need not be trusted.
    """
    delta, mu = probability("delta", delta), _positive("mu", mu)
    least, most = mu * (1 - error), mu * (1 + error)
    if most > _MOST_MU:
        return Bounds(_far_epsilon_bounds(delta, least).lower, _far_epsilon_bounds(delta, most).upper)
    if least < _LEAST_MU:
        return Bounds(0.0, gaussian_epsilon_bounds(delta, max(_LEAST_MU, most)).upper)
    epsilon = gaussian_epsilon(delta, mu)
    target = _log_odds(delta)
    slack = ALLOWANCE / max(_point(epsilon, mu).epsilon_slope, _TINY) + math.ulp(epsilon)

    upper, step = epsilon, slack
    while _point(upper, most).log_odds > target - ALLOWANCE:
        upper, step = epsilon + step, 2 * step
    lower, step = epsilon, slack
    while lower > 0 and _point(lower, least).log_odds < target + ALLOWANCE:
        lower, step = max(0.0, epsilon - step), 2 * step
    return Bounds(lower, upper)


def _far_epsilon_bounds(delta: float, mu: float) -> Bounds:
    """For a very large mu. Both ends are checked: :func:`_far_delta` encloses the exact curve."""
    centre = -float(ndtri(delta))
    above, below, step = centre, centre, 1e-10 * (1 + abs(centre))
    while _far_delta(above, mu).upper > delta:
        above, step = centre + step, 2 * step
    step = 1e-10 * (1 + abs(centre))
    while _far_delta(below, mu).lower < delta:
        below, step = centre - step, 2 * step
    return Bounds((mu / 2 + below) * mu * (1 - 1e-15), (mu / 2 + above) * mu * (1 + 1e-15))


def _far_delta_bounds(epsilon: float, mu: float) -> Bounds:
    u, error = epsilon / mu - mu / 2, 1e-15 * (epsilon / mu + mu)
    return Bounds(_far_delta(u + error, mu).lower, _far_delta(u - error, mu).upper)


def _far_delta(u: float, mu: float) -> Bounds:
    """Phi(-u) - phi(u) M(u + mu), for u + mu > 0."""
    tail = float(ndtr(-u))
    rest = math.exp(-0.5 * u * u - _LOG_SQRT_2PI) / (u + mu)
    return Bounds(
        max(0.0, tail * (1 - ALLOWANCE) - rest * (1 + ALLOWANCE)), min(1.0, tail * (1 + ALLOWANCE) + _TINY)
    )


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose release costs at most (``epsilon``, ``delta``), rounded down.

    Guarantee: a Gaussian release with this mu, or a smaller one, is (epsilon, delta)-DP. A whole sequence is
    when the root of the sum of its squared mu stays below.

    >>> round(gaussian_mu(epsilon=1.0, delta=1e-5), 10)
    0.2680511232
    """
    epsilon, delta = real("epsilon", epsilon, at_least=0), real("delta", delta, at_least=1e-300, below=1)
    target = _log_odds(delta)
    # Two lower ends: the tail bound delta <= Phi(-u), and the exact answer for epsilon = 0.
    tail = -float(ndtri(delta))
    radius = math.hypot(tail, math.sqrt(2) * math.sqrt(epsilon))
    by_tail = 2 * (epsilon / (tail + radius)) if tail > 0 else radius - tail
    start = max(by_tail, 2 * math.sqrt(2) * float(erfinv(delta)))

    def excess(mu: float) -> tuple[float, float]:
        point = _point(epsilon, mu)
        return point.log_odds - target, point.mu_slope

    mu = root_of(excess, start)
    step = ALLOWANCE / max(mu * _point(epsilon, mu).mu_slope, _TINY) + 1e-16
    safe = mu
    while _point(epsilon, safe).log_odds > target - ALLOWANCE:
        safe, step = mu * math.exp(-step), 2 * step
    return safe


class _Point(NamedTuple):
    """One point of the curve, in logarithms, so that neither end loses digits."""

    log_delta: float
    log_rest: float  # of 1 - delta
    log_density: float  # of phi(u)
    log_mills: float  # of M(u + mu)

    @property
    def log_odds(self) -> float:
        return self.log_delta - self.log_rest

    @property
    def mu_slope(self) -> float:
        """Derivative of the log odds in mu, from d delta / d mu = phi(u)."""
        return math.exp(min(self.log_density - self.log_delta - self.log_rest, 700.0))

    @property
    def epsilon_slope(self) -> float:
        """Minus the derivative of the log odds in epsilon: d delta / d epsilon = -phi(u) M(u + mu)."""
        return self.mu_slope * math.exp(self.log_mills)


def _point(epsilon: float, mu: float) -> _Point:
    u = _offset(epsilon, mu)
    log_density = -0.5 * u * u - _LOG_SQRT_2PI
    far_mills = _mills(u + mu)
    if u > -1:
        log_delta = log_density + _log_mills_difference(u, mu)
        log_rest = math.log1p(-math.exp(log_delta))
    else:
        log_rest = log_density + math.log(_mills(-u) + far_mills)
        log_delta = math.log1p(-math.exp(log_rest))
    return _Point(log_delta, log_rest, log_density, math.log(far_mills))


def _offset(epsilon: float, mu: float) -> float:
    """epsilon / mu - mu / 2 in integers, rounded once: the two may agree in most of their digits."""
    (a, b), (c, d) = epsilon.as_integer_ratio(), mu.as_integer_ratio()
    above, below = 2 * a * d * d - b * c * c, 2 * b * c * d
    if abs(above) >= _FAR * below:
        return _FAR if above > 0 else -_FAR
    return above / below


def _log_odds(delta: float) -> float:
    return math.log(delta) - math.log1p(-delta)


def _mills(x: float) -> float:
    """Phi(-x) / phi(x)."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def _log_mills_difference(u: float, mu: float) -> float:
    """log(M(u) - M(u + mu)) for u > -1, without cancellation."""
    if u >= 3:
        return math.log(mu) + _log_mills_quotient(u, u + mu)
    if mu > 0.75:
        return math.log(_mills(u) - _mills(u + mu))
    x = u + mu * _NODES
    slopes = 1 - x * math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))  # -M'(x) = 1 - x M(x)
    return math.log(mu) + math.log(float(_WEIGHTS @ slopes))


def _log_mills_quotient(u: float, v: float) -> float:
    """log((M(u) - M(v)) / (v - u)) for 3 <= u < v, from Laplace's continued fraction.

    M(x) = 1/(x + K_1(x)) with K_j(x) = j/(x + K_{j+1}(x)). The difference quotient of each level follows from
    that of the next: r_j = (1 - r_{j+1}) K_j(u) K_j(v) / j, and no two close numbers are ever subtracted.
    """
    at_u = at_v = quotient = 0.0
    for j in range(12 + int(600 / (u * u)), 0, -1):
        at_u, at_v = j / (u + at_u), j / (v + at_v)
        quotient = (1 - quotient) * at_u * at_v / j
    return math.log1p(-quotient) - math.log(u + at_u) - math.log(v + at_v)


def _positive(name: str, value: float) -> float:
    return real(name, value, above=0, remedy="It is the sensitivity divided by the noise's deviation.")


def _check_point(epsilon: float, mu: float) -> tuple[float, float]:
    return real("epsilon", epsilon, at_least=0), _positive("mu", mu)
