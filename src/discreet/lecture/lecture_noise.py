"""The lectures' formulas for the noise of full-batch descent, corrected, next to the exact one.

All of them give the standard deviation of the noise on each coordinate of the *averaged* gradient, for gradients of
norm at most ``clip_norm`` and ``records`` records. Under replace-one neighbours the average moves by
2 clip_norm / records, under add-remove neighbours by half of that.

>>> from discreet import Budget
>>> budget = Budget(1.0, 1e-5, neighbours="replace-one")
>>> round(exact_noise(budget, clip_norm=1.0, records=1000, steps=100), 10)
0.0746126327
>>> round(basic_composition_noise(budget, clip_norm=1.0, records=1000, steps=100), 8)
1.14337183
>>> printed = claim_3_2_noise_not_a_guarantee(budget, clip_norm=1.0, records=1000, steps=100)
>>> round(true_epsilon(printed, budget, clip_norm=1.0, records=1000, steps=100), 4)  # more than 1
1.1099
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from discreet.accounting.curve import account
from discreet.accounting.noise_formulas import classic_gaussian_noise
from discreet.core.clipping import clip_norm_of
from discreet.core.mechanisms import gaussian_event
from discreet.errors import probability, real, whole
from discreet.events import Gaussian
from discreet.guarantee import Budget, of_records


def exact_noise(budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """The least noise for all iterates together: that of one release, times sqrt(steps).

    Guarantee: within the budget, at every epsilon; T Gaussian releases are exactly one of sqrt(T) times the strength.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    return gaussian_event(budget).noise_multiplier * clip_norm / records * math.sqrt(steps)


def classic_noise(budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """The classic Gaussian mechanism applied once to all steps: c sqrt(2 T ln(1.25/delta)) / (n epsilon).

    Guarantee: within the budget; for epsilon below 1, others are refused.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    sensitivity = budget.reach * clip_norm / records
    return sensitivity * math.sqrt(steps) * classic_gaussian_noise(budget.epsilon, budget.delta)


def concentrated_noise(budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """By zero-concentrated DP: sensitivity sqrt(T / (2 rho)), rho from epsilon = rho + 2 sqrt(rho ln(1/delta)).

    Guarantee: within the budget, at every epsilon.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    log = math.log(1 / budget.delta)
    root = budget.epsilon / (math.sqrt(log + budget.epsilon) + math.sqrt(log)) * (1 - 1e-12)
    return budget.reach * clip_norm / records * math.sqrt(steps / 2) / root


def basic_composition_noise(budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """(epsilon / T, delta / T) for each of T steps, by the classic Gaussian mechanism.

    Guarantee: within the budget, since epsilons and deltas add up; for epsilon below T, others are refused.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    sensitivity = budget.reach * clip_norm / records
    return sensitivity * classic_gaussian_noise(budget.epsilon / steps, budget.delta / steps)


def lecture_4_noise(budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """The lecture's own argument carried out: 4 T C sqrt(ln(2T/delta)) / (n epsilon) under replace-one.

    As basic composition, with the lecture's weaker lemma: noise of 2 sensitivities times sqrt(ln(2/delta)) / epsilon.

    Guarantee: within the budget; for epsilon below T, others are refused.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    epsilon = real("epsilon / steps", budget.epsilon / steps, above=0, below=1)
    sensitivity = budget.reach * clip_norm / records
    return 2 * sensitivity * math.sqrt(math.log(2 * steps / budget.delta)) / epsilon * (1 + 1e-15)


def lecture_4_claim_not_a_guarantee(budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """The headline of lecture 4, T C sqrt(ln(1/delta)) / (n epsilon): too little noise for few steps.

    It forgets the 2 of exchanged records and the sqrt(2) of the lemma; from 5 steps on, at (1, 1e-5), the waste of
    basic composition makes up for both.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    return steps * clip_norm * math.sqrt(math.log(1 / budget.delta)) / (budget.epsilon * records)


def claim_3_2_noise_not_a_guarantee(budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """Claim 3.2 of lecture 13, 2 L sqrt(T ln(1/delta)) / (n epsilon): too little noise for replace-one neighbours.

    At delta = 1e-5 it is enough up to epsilon = 0.32 only. Under add-remove neighbours it is enough, and almost
    twice what is needed at epsilon 1.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    return 2 * clip_norm * math.sqrt(steps * math.log(1 / budget.delta)) / (budget.epsilon * records)


def true_epsilon(noise_std: float, budget: Budget, clip_norm: float, records: int, steps: int) -> float:
    """Exact epsilon of noise with this standard deviation, at the budget's delta and neighbours.

    Guarantee: never below the exact value.
    """
    clip_norm, records, steps = _check(budget, clip_norm, records, steps)
    multiplier = real("noise_std", noise_std, above=0) * records / clip_norm
    curve = account(Gaussian(multiplier) * steps, budget.neighbours, budget.group_size)
    return curve.epsilon(probability("delta", budget.delta))


class NoiseBySteps(NamedTuple):
    """One row of a plot: the noise that three ways of accounting ask for."""

    steps: int
    basic: float
    lecture: float
    exact: float


def noise_by_steps(
    budget: Budget, clip_norm: float, records: int, steps: Iterable[int]
) -> list[NoiseBySteps]:
    """Noise by number of steps: linear by basic composition, a square root by exact composition."""
    rules = (basic_composition_noise, lecture_4_noise, exact_noise)
    return [NoiseBySteps(t, *(rule(budget, clip_norm, records, t) for rule in rules)) for t in steps]


def _check(budget: Budget, clip_norm: float, records: int, steps: int) -> tuple[float, int, int]:
    of_records(budget)
    real("delta", budget.delta, above=0, below=1, remedy="Gaussian noise needs a delta above 0.")
    steps = whole("steps", steps, at_least=1, at_most=10**15)
    return clip_norm_of("clip_norm", clip_norm), whole("records", records, at_least=1), steps
