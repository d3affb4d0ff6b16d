"""Renyi divergences of events, which add up over adaptive steps (Mironov 2017), and those of the best of many runs.

The accountant uses them for black boxes and searches (:mod:`~discreet.accounting.chernoff`);
:mod:`~discreet.accounting.renyi` turns them into an epsilon of their own, as a second opinion.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from discreet.accounting.chernoff import LogMoment, log_moment_of
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.events import (
    ApproximateDP,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    RenyiDP,
    RepeatAndSelect,
    TreeAggregation,
    ZeroConcentratedDP,
)
from discreet.guarantee import ROUND_UP, Neighbours, neighbours_named

Divergence = Callable[[float], float]
"""Renyi divergence as a function of its order, which is above 1."""

FIXED_ORDER = (
    "a tree holds records in a fixed order, and one record more moves all that follow it to other steps, so "
    "add-remove neighbours have no theorem; use neighbours='replace-one' or 'zero-out'."
)
MAX_ORDER = 1e6
ROUND_UP_SEARCH = 1 + 1e-12  # more than the rounding of the formulas of a search
_MOST_POINTS = 200_000
_Array = NDArray[np.float64]


def divergence_of(event: Event, neighbours: Neighbours) -> Divergence:
    """The divergences of the parts, added up."""
    width = 1.0 if neighbours_named(neighbours) == "add-remove" else 2.0
    if not isinstance(event, Event):
        raise InvalidParameter("event", event, "must be an event, such as Gaussian(noise_multiplier=4.0).")
    parts = [(_part(part, width), count) for part, count in event.parts()]
    return lambda order: sum(count * part(order) for part, count in parts) * ROUND_UP


def _part(event: Event, width: float) -> Divergence:
    """The divergence of a simple event whose noise hides a shift of ``width`` clip norms."""
    if isinstance(event, TreeAggregation):
        if width == 1:
            raise UnsupportedEvent(FIXED_ORDER)
        return _repeated(_part(Gaussian(event.noise_multiplier), width), event.nodes)
    if isinstance(event, Gaussian):
        mu = width / event.noise_multiplier if event.noise_multiplier else math.inf
        return lambda order: 0.5 * order * mu * mu
    if isinstance(event, Laplace):
        if event.scale == 0:
            return lambda order: math.inf
        return lambda order: _laplace(order, width / event.scale)
    if isinstance(event, ZeroConcentratedDP | RenyiDP):
        moment = log_moment_of(event, 1)
        return lambda order: float(moment(np.array([order - 1]))[0]) / (order - 1)
    if isinstance(event, PoissonSampled) and isinstance(event.of, Gaussian):
        if width != 1:
            raise UnsupportedEvent(
                "the Renyi accountant covers Poisson sampling for add-remove neighbours only; "
                "use account(event, neighbours='replace-one')."
            )
        rate, noise = event.rate, event.of.noise_multiplier
        return lambda order: _sampled_log_moment(order, rate, noise) / (order - 1)
    if isinstance(event, ApproximateDP) and event.epsilon == event.delta == 0:  # nothing was released
        return lambda order: 0.0
    raise UnsupportedEvent(
        f"the Renyi accountant does not cover {type(event).__name__} here; it covers Gaussian, Laplace and "
        "PoissonSampled Gaussian events and their compositions. Use account(event) instead."
    )


def _repeated(divergence: Divergence, count: int) -> Divergence:
    return lambda order: count * divergence(order)


def selected_moment(event: RepeatAndSelect, neighbours: Neighbours) -> LogMoment:
    """What the best of several runs adds to log E e^{tL}, at most."""
    trial = divergence_of(event.trial, neighbours)
    if event.shape is None:
        whole_search = poisson_selected(trial, event.mean)
    else:
        log_stop = log_stopping_chance(event.mean, event.shape)
        whole_search = negative_binomial_selected(trial, log_stop, event.mean, event.shape)
    return lambda tilts: np.array(
        [tilt * whole_search(1 + tilt) if tilt < MAX_ORDER / 2 else math.inf for tilt in tilts.tolist()]
    )


def negative_binomial_selected(
    divergence: Divergence, log_stop: float, mean: float, shape: float
) -> Divergence:
    """d(a) + (1 + shape) ((1 - 1/b) d(b) - ln(stop) / b) + ln(mean) / (a - 1), for any orders a, b > 1.

    There is always a run: the number has no mass at zero.
    """
    orders: list[float] = [1 + 10**exponent for exponent in np.linspace(-2.0, 4.0, 61).tolist()]
    other: float = min((1 - 1 / b) * divergence(b) - log_stop / b for b in orders)

    def total(order: float) -> float:
        rest = (1 + shape) * other + math.log(mean) / (order - 1)
        return (divergence(order) + rest) * ROUND_UP_SEARCH

    return total


def poisson_selected(divergence: Divergence, mean: float) -> Divergence:
    """The smaller of two bounds on the moment: (3f) with the mass of no run, and that of all runs shown.

    e^-mean + mean e^{(a - 1) (d(a) + mean delta(e))} at e = ln(1 + 1 / (a - 1)), and e^{mean (e^{(a - 1) d(a)} - 1)}.
    """
    delta_at = _delta_of_divergence_at_many(divergence)

    def total(order: float) -> float:
        rest, one = order - 1, divergence(order)
        delta = delta_at(math.log1p(1 / rest) / ROUND_UP_SEARCH)
        best = float(np.logaddexp(-mean, math.log(mean) + rest * (one + mean * delta) * ROUND_UP_SEARCH))
        shown = mean * math.expm1(min(rest * one * ROUND_UP_SEARCH, 700.0))
        return min(best, shown if rest * one < 690.0 else math.inf) / rest * ROUND_UP_SEARCH + 1e-15 / rest

    return total


def _delta_of_divergence_at_many(divergence: Divergence) -> Divergence:
    """A bound on delta at each epsilon, with the divergence computed once at some hundred orders."""
    rest = 10.0 ** np.linspace(-7, 6, 261)[:-1]
    orders = 1 + rest
    divergences = np.array([divergence(order) for order in orders.tolist()])
    fixed = (rest * divergences, rest * np.log(rest / orders), -np.log(orders))
    slack = 1e-15 * sum(np.abs(term) for term in fixed)

    def delta(epsilon: float) -> float:
        least = float(np.min(sum(fixed) - rest * epsilon * (1 - 1e-15) + slack))
        return math.exp(min(0.0, least)) * ROUND_UP

    return delta


def log_mean_of_stopping(log_stop: float, shape: float) -> float:
    """Logarithm of the mean of the truncated negative binomial distribution, without cancellation or overflow."""
    top = math.log(-math.expm1(log_stop))  # of 1 - stop
    if shape == 0:
        return top - log_stop - math.log(-log_stop)
    growth = math.log(-math.expm1(-abs(shape * log_stop)) / abs(shape))
    return top - log_stop * (1 + min(shape, 0.0)) - growth


def log_stopping_chance(mean: float, shape: float) -> float:
    """Logarithm of the distribution's other parameter, rounded down: a smaller one costs more.

    It may be far below the smallest float: about 1e-300 for the shape -0.99 and a mean of 1000.
    """
    target, high = math.log(mean), -1e-12
    low = -1.0
    while log_mean_of_stopping(low, shape) <= target:
        low *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if log_mean_of_stopping(middle, shape) > target else (low, middle)
    return low * (1 + 1e-12) - 1e-9


def _laplace(order: float, shift: float) -> float:
    """Divergence of Laplace noise of scale 1 from itself shifted (Mironov 2017, table II), rounded up."""
    rest = order - 1
    up, down = rest * shift, -order * shift
    if up > 1:
        weights = [order / (2 * order - 1), rest / (2 * order - 1)]
        return float(logsumexp([up, down], b=weights)) / rest * (1 + 1e-13)
    # The moment is 1 + (order (e^up - 1 - up) + rest (e^down - 1 - down)) / (2 order - 1): no cancellation.
    excess = (order * _exp_excess(up) + rest * _exp_excess(down)) / (2 * order - 1)
    return math.log1p(excess) / rest * (1 + 1e-13)


def _exp_excess(x: float) -> float:
    """e^x - 1 - x."""
    if abs(x) > 0.5:
        return math.expm1(x) - x
    return math.fsum(x**k / math.factorial(k) for k in range(2, 18))


def _sampled_log_moment(order: float, rate: float, noise: float) -> float:
    """ln E[(1 - rate + rate e^{(2 x - 1)/(2 noise^2)})^order] for x from N(0, noise^2), rounded up.

    This is (order - 1) times the divergence when a record is removed, which is at least that when one is
    added, at every order (Mironov, Talwar, Zhang 2019).
    """
    spacing = _spacing(noise)
    if (
        order / noise + 28
    ) / spacing >= _MOST_POINTS:  # far beyond the orders that are best for so little noise
        return math.inf
    return _integrated_log_moment(order, rate, noise, spacing) * (1 + 1e-11)


def _spacing(noise: float) -> float:
    """Distance of the points, in standard deviations, at which the trapezoidal rule is exact to about e^-90.

    The integrand is analytic for imaginary parts below pi noise (in standard deviations), and there at most
    e^{y^2/2} times as large as on the real line, so the rule's error is at most e^{y^2/2 - 2 pi y/spacing}.
    """
    y = min(14.0, 3.0 * noise)
    return 2 * math.pi * y / (90 + 0.5 * y * y)


def _integrated_log_moment(order: float, rate: float, noise: float, spacing: float) -> float:
    """The moment less 1 is E[(1 + v)^order - 1 - order v] with v = rate (e^{...} - 1), for E[v] = 0.

    The bracket is never negative, so no digits are lost, however close to 1 the moment is.
    """
    x = np.arange(-14.0, order / noise + 14.0, spacing)
    exponent = (x - 0.5 / noise) / noise
    v = rate * np.expm1(np.minimum(exponent, 1 - math.log(rate)))  # right wherever it is below 1
    log_growth = np.where(v < 1, np.log1p(v), math.log(rate) + exponent)
    log_growth[v >= 1] = np.logaddexp(math.log1p(-rate), log_growth[v >= 1])
    log_terms = _log_bernoulli_excess(v, log_growth, order) - 0.5 * x * x
    log_excess = float(logsumexp(log_terms)) + math.log(spacing / math.sqrt(2 * math.pi))
    return float(np.logaddexp(0.0, log_excess))


def _log_bernoulli_excess(v: _Array, log_growth: _Array, order: float) -> _Array:
    """log((1 + v)^order - 1 - order v), given g = log(1 + v); v itself is used only where it is small."""
    rest = order - 1
    # It is e^g (e^{rest g} - 1) - rest (e^g - 1), and is divided by e^{order g} where g > 0.
    up, down = np.maximum(log_growth, 0.0), np.minimum(log_growth, 0.0)
    value = -np.expm1(-rest * up) + rest * np.expm1(-up) * np.exp(-rest * up)
    value += np.exp(down) * np.expm1(rest * down) - rest * np.expm1(down)
    log_scale = order * up
    small = np.abs(v) * order < 0.02
    j = np.arange(9)
    binomials = np.cumprod((order - j) / (j + 1))[1:]  # order choose 2, 3, ..., 9
    value[small] = np.polyval(binomials[::-1], v[small])
    with np.errstate(divide="ignore"):
        log_scale[small] = 2 * np.log(np.abs(v[small]))
        return np.asarray(log_scale + np.log(value))
