"""Composition of (epsilon, delta) guarantees: basic, advanced and optimal.

From the simplest theorem to the best when nothing but (epsilon, delta) of each step is known:

    basic     steps * epsilon                                                         Dwork et al. 2006
    strong    epsilon sqrt(2 steps ln(1/extra_delta)) + steps epsilon^2               the lecture notes
    advanced  the same with drift steps epsilon tanh(epsilon/2), at most basic        Kairouz et al. 2015
    optimal   the exact answer: steps of randomised response, the worst mechanism     Kairouz et al. 2015

All of them hold for adaptive steps, under whatever neighbours each step's guarantee was proved for. Where the
mechanism itself is known, accounting for it directly is far better: see the last two functions, which show
what the strong composition theorem makes of noisy SGD (Figure 2 of Abadi et al. 2016).

>>> for compose in (basic_composition, strong_composition, advanced_composition, optimal_composition):
...     extra = () if compose is basic_composition else (1e-6,)
...     print(compose.__name__, round(compose(0.1, 0.0, 1000, *extra).epsilon, 4))
basic_composition 100.0
strong_composition 26.6226
advanced_composition 21.6184
optimal_composition 19.3447

In docs/accountants.md: A4 to A7.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from discreet.accounting.gaussian import gaussian_epsilon_bounds
from discreet.errors import InvalidParameter, probability, real, whole
from discreet.events.common import MAX_COUNT
from discreet.guarantee import ROUND_UP, EpsilonDelta, checked_pair, round_up
from discreet.lecture.amplification import poisson_amplification

_MAX_OPTIMAL = 10**6
_SUM_ERROR = 1e-9  # allowed for in a sum of at most a million binomial probabilities; measured below 1e-13


def basic_composition(epsilon: float, delta: float, steps: int) -> EpsilonDelta:
    """Guarantee: ``steps`` (epsilon, delta)-DP releases are (steps epsilon, steps delta)-DP together."""
    epsilon, delta, steps = _step(epsilon, delta, steps)
    return EpsilonDelta(round_up(steps * Fraction(epsilon)), min(1.0, round_up(steps * Fraction(delta))))


def basic_composition_of(guarantees: Iterable[tuple[float, float]]) -> EpsilonDelta:
    """Guarantee: releases that are (epsilon, delta)-DP each, all different, add up in both numbers.

    >>> basic_composition_of([(0.5, 1e-6), (1.0, 0.0), (0.25, 1e-6)])
    EpsilonDelta(epsilon=1.75, delta=2e-06)
    """
    total_epsilon, total_delta = Fraction(0), Fraction(0)
    for guarantee in guarantees:
        if not (isinstance(guarantee, tuple) and len(guarantee) == 2):
            raise InvalidParameter("guarantees", guarantee, "must hold pairs (epsilon, delta).")
        pair = checked_pair(*guarantee)
        total_epsilon += Fraction(pair.epsilon)
        total_delta += Fraction(pair.delta)
    return EpsilonDelta(round_up(total_epsilon), min(1.0, round_up(total_delta)))


def strong_composition(epsilon: float, delta: float, steps: int, extra_delta: float) -> EpsilonDelta:
    """Guarantee: strong composition as in the lecture notes, with the generous drift steps epsilon^2.

    The total delta is 1 - (1 - delta)^steps (1 - extra_delta).
    """
    epsilon, delta, steps = _step(epsilon, delta, steps)
    extra_delta = probability("extra_delta", extra_delta)
    total = _deviation(epsilon, steps, extra_delta) + steps * epsilon * epsilon
    return EpsilonDelta(total * ROUND_UP, _total_delta(delta, steps, extra_delta))


def advanced_composition(epsilon: float, delta: float, steps: int, extra_delta: float) -> EpsilonDelta:
    """Guarantee: strong composition with the exact drift epsilon tanh(epsilon/2) per step; never above basic.

    The drift is the mean privacy loss of randomised response, the largest that an epsilon-DP step can have.
    The total delta is 1 - (1 - delta)^steps (1 - extra_delta).
    """
    epsilon, delta, steps = _step(epsilon, delta, steps)
    extra_delta = probability("extra_delta", extra_delta)
    total = _deviation(epsilon, steps, extra_delta) + steps * epsilon * math.tanh(epsilon / 2)
    basic = round_up(steps * Fraction(epsilon))
    return EpsilonDelta(min(basic, total * ROUND_UP), _total_delta(delta, steps, extra_delta))


def optimal_composition(epsilon: float, delta: float, steps: int, total_delta: float) -> EpsilonDelta:
    """Guarantee: the smallest epsilon at ``total_delta`` that (epsilon, delta) of every step implies.

    No theorem about (epsilon, delta) can do better (Kairouz, Oh, Viswanath 2015).
    """
    epsilon, delta, steps = _step(epsilon, delta, steps, _MAX_OPTIMAL)
    total_delta = real("total_delta", total_delta, at_least=0, below=1)
    target = _log_extra_delta(delta, steps, total_delta) - _SUM_ERROR
    responses = _RandomisedResponses(epsilon, steps)
    basic = round_up(steps * Fraction(epsilon))
    lower, upper = 0.0, 0.0 if responses.log_delta(0.0) <= target else basic
    while upper - lower > 1e-14 * upper:
        middle = 0.5 * (lower + upper)
        lower, upper = (lower, middle) if responses.log_delta(middle) <= target else (middle, upper)
    return EpsilonDelta(min(basic, upper * (1 + 1e-12)), total_delta)


def optimal_composition_delta(epsilon: float, delta: float, steps: int, total_epsilon: float) -> EpsilonDelta:
    """Guarantee: the smallest delta at ``total_epsilon`` that (epsilon, delta) of every step implies.

    >>> round(optimal_composition_delta(0.1, 0.0, steps=100, total_epsilon=4.30679137).delta, 10)
    1e-05
    """
    epsilon, delta, steps = _step(epsilon, delta, steps, _MAX_OPTIMAL)
    total_epsilon = real("total_epsilon", total_epsilon, at_least=0)
    if Fraction(total_epsilon) >= steps * Fraction(epsilon):
        return EpsilonDelta(total_epsilon, _total_delta(delta, steps, 0.0))
    log_delta = _RandomisedResponses(epsilon, steps).log_delta(total_epsilon * (1 - 1e-12))
    extra_delta = math.exp(min(0.0, log_delta + _SUM_ERROR))
    return EpsilonDelta(total_epsilon, _total_delta(delta, steps, extra_delta))


def strong_composition_of_noisy_sgd(
    rate: float, noise_multiplier: float, steps: int, delta: float
) -> EpsilonDelta:
    """Guarantee: noisy SGD by theorems about (epsilon, delta) alone, for add-remove neighbours.

    Classic Gaussian noise per step, Poisson amplification ln(1 + rate (e^epsilon - 1)), advanced composition,
    and the best split of delta between the steps and the composition. Sound, but twenty times the truth in the
    setting of Figure 2: this is what the moments accountant was invented to replace.

    >>> round(strong_composition_of_noisy_sgd(0.01, 4.0, steps=10_000, delta=1e-5).epsilon, 6)
    21.16959
    """
    rate, noise_multiplier, steps, delta = _noisy_sgd(rate, noise_multiplier, steps, delta)

    def epsilon(share: float) -> float:
        per_step = _per_step(share * delta / ROUND_UP, rate, steps)
        # The classic formula is a theorem for epsilon < 1 only; beyond, the exact curve has the last word.
        classic = _classic_epsilon(noise_multiplier, per_step) * ROUND_UP
        base = max(classic, gaussian_epsilon_bounds(per_step, 1 / noise_multiplier).upper)
        sampled = poisson_amplification(base, per_step, rate, neighbours="add-remove")
        return advanced_composition(sampled.epsilon, 0.0, steps, delta - share * delta).epsilon

    best = minimize_scalar(epsilon, bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-9})
    return EpsilonDelta(float(best.fun), delta)


def figure_2_curve_not_a_guarantee(rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """The "strong composition" curve that reproduces Figure 2 of Abadi et al. 2016. NOT a theorem.

    It multiplies epsilon of a step by the sampling rate, although ln(1 + rate (e^epsilon - 1)) is larger.
    Kept to redraw the figure; for a guarantee use :func:`strong_composition_of_noisy_sgd`.

    >>> round(figure_2_curve_not_a_guarantee(0.01, 4.0, steps=10_000, delta=1e-5), 6)
    9.339065
    """
    rate, noise_multiplier, steps, delta = _noisy_sgd(rate, noise_multiplier, steps, delta)
    per_step = rate * _classic_epsilon(noise_multiplier, _per_step(delta / 2, rate, steps))
    return _deviation(per_step, steps, delta / 2) + steps * per_step * per_step


class _RandomisedResponses:
    """``steps`` independent randomised responses: the worst that pure epsilon-DP steps can do.

    Of J truthful answers, J binomial with chance e^epsilon/(1 + e^epsilon), the privacy loss is
    (2 J - steps) epsilon.
    """

    def __init__(self, epsilon: float, steps: int) -> None:
        count = np.arange(steps)
        ratios = np.log((steps - count) / (count + 1)) + epsilon  # of neighbouring probabilities; decreasing
        mode = int(np.count_nonzero(ratios > 0))
        # Summing outwards from the mode keeps the logarithms small, and their rounding with them.
        below, above = -np.cumsum(ratios[:mode][::-1])[::-1], np.cumsum(ratios[mode:])
        log_weights = np.concatenate([below, [0.0], above])
        self._log_probabilities: NDArray[np.float64] = log_weights - logsumexp(log_weights)
        self._losses = (2 * np.arange(steps + 1) - steps) * epsilon

    def log_delta(self, epsilon: float) -> float:
        """log E[(1 - exp(epsilon - loss))_+]."""
        first = int(np.searchsorted(self._losses, epsilon, side="right"))
        if first == len(self._losses):
            return -math.inf
        gains = np.log(-np.expm1(epsilon - self._losses[first:]))
        return float(logsumexp(self._log_probabilities[first:] + gains))


def _deviation(epsilon: float, steps: int, extra_delta: float) -> float:
    return epsilon * math.sqrt(-2 * steps * math.log(extra_delta))


def _per_step(delta: float, rate: float, steps: int) -> float:
    """Delta of each release before sampling, such that all of them after sampling spend ``delta`` at most."""
    return min(0.5, delta / (steps * rate))


def _classic_epsilon(noise_multiplier: float, delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier


def _total_delta(delta: float, steps: int, extra_delta: float) -> float:
    """1 - (1 - delta)^steps (1 - extra_delta), rounded up."""
    if delta == 0:
        return extra_delta
    return min(1.0, -math.expm1(steps * math.log1p(-delta) + math.log1p(-extra_delta)) * ROUND_UP)


def _log_extra_delta(delta: float, steps: int, total_delta: float) -> float:
    """log of what is left of ``total_delta`` after the delta of every step, rounded down."""
    if delta == 0:
        return math.log(total_delta) if total_delta else -math.inf
    spent, total = steps * math.log1p(-delta), math.log1p(-total_delta)
    extra = -math.expm1(total - spent) + 4e-16 * (spent + total)
    if extra <= 0:
        remedy = f"the steps alone spend {-math.expm1(spent):.6g}; allow more than that."
        raise InvalidParameter("total_delta", total_delta, remedy)
    return math.log(extra)


def _step(epsilon: Any, delta: Any, steps: Any, most: int = MAX_COUNT) -> tuple[float, float, int]:
    return *checked_pair(epsilon, delta), whole("steps", steps, at_least=1, at_most=most)


def _noisy_sgd(rate: Any, noise_multiplier: Any, steps: Any, delta: Any) -> tuple[float, float, int, float]:
    noise = real("noise_multiplier", noise_multiplier, above=0)
    rate = real("rate", rate, above=0, at_most=1)
    steps = whole("steps", steps, at_least=1, at_most=MAX_COUNT)
    return rate, noise, steps, real("delta", delta, at_least=1e-250, below=1)
