"""Output and objective perturbation: minimise once, with noise on the answer or in the question.

Both need a convex loss of bounded slope, rows of bounded norm (they are scaled down to it), and a regularisation
that makes the risk strongly convex. With L the longest gradient of a record, B the largest eigenvalue of its Hessian
and Lambda = n * regularisation:

**Output perturbation** (Chaudhuri, Monteleoni, Sarwate 2011). Adding a record moves the minimiser by L / Lambda at
most; so release it with Gaussian noise. If the gradient at the computed minimiser has norm at most tau, the two
differ by tau / Lambda at most, so the sensitivity is (L + 2 tau) / Lambda.

**Objective perturbation** (Chaudhuri et al. 2011; Kifer, Smith, Thakurta 2012). Minimise the sum plus a random linear
function. The answer is private if it is the exact minimiser; what stopping and rounding leave over is hidden by a
second, much smaller noise. :mod:`discreet.lecture.objective_noise` tells what both cost together.

>>> from discreet import Budget
>>> from discreet.linear.losses import Logistic
>>> rng = np.random.default_rng(0)
>>> X, budget = rng.normal(size=(3000, 2)), Budget(1.0, 1e-6, neighbours="replace-one")
>>> y = X[:, 0] + 0.3 * rng.normal(size=3000) > 0
>>> objective_perturbation(Logistic(), X, y, budget, row_bound=2.0).guarantee.within(budget)
True
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from discreet.core.mechanisms import certified, gaussian_event, laplace_event
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, real
from discreet.events import Gaussian
from discreet.guarantee import Budget
from discreet.lecture.objective_noise import ObjectiveNoise
from discreet.lecture.release import LinearRelease, black_box, charge, deviation
from discreet.lecture.risk import Risk, posed
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.losses import Loss


def output_perturbation(
    loss: Loss,
    X: ArrayLike,
    y: ArrayLike,
    budget: Budget,
    *,
    regularisation: float | None = None,
    row_bound: float = 1.0,
    norm_guess: float = 1.0,
    records: int | None = None,
    stream: RandomStream | None = None,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
) -> LinearRelease:
    """The minimiser of the regularised risk, with noise.

    The regularisation, on the scale of the mean loss, is chosen by the predicted excess risk if left out;
    ``norm_guess`` is a public guess of the norm of the best parameter for it. A budget with delta 0 gets Laplace
    noise. ``records`` is declared under add-remove neighbours.

    Guarantee: ``result.guarantee``, within the budget, whatever the rows hold, for real numbers, if the stream is
    trusted and the minimiser is found to its tolerance.
    """
    setting, table = posed(loss, X, y, budget, row_bound, norm_guess, records)
    noise = laplace_event(budget) if budget.delta == 0 else gaussian_event(budget)
    # An l1 norm is at most sqrt(dimension) times the l2 norm.
    widening = math.sqrt(setting.dimension) * (1 + 1e-12) if budget.delta == 0 else 1.0

    def sensitivity(strength: float) -> float:
        pull = setting.lipschitz + 2 * setting.tolerance(strength)
        return widening * pull / (setting.records * strength) * (1 + 1e-12)

    def excess(strength: float) -> float:
        spread = deviation(noise) * sensitivity(strength)
        curvature = setting.smoothness + strength
        return setting.bias(strength) + curvature * setting.dimension * spread**2 / 2

    strength = setting.best(excess) if regularisation is None else setting.checked(regularisation)
    settings = setting.described("output-perturbation", strength)
    guarantee = certified(noise, budget)
    charge(ledger, ledger_key, noise, guarantee, settings, "output-perturbation")
    untilted = np.zeros(setting.dimension)
    minimiser = Risk(setting, table, strength).minimiser(untilted, setting.tolerance(strength))
    norm: Literal["l2", "l1"] = "l1" if budget.delta == 0 else "l2"
    stream = system_stream() if stream is None else stream
    value = add_noise(BoundedSum(minimiser, sensitivity(strength), norm), noise, stream)
    return LinearRelease(value, noise, guarantee, "float", stream.trusted, excess(strength), settings)


def objective_perturbation(
    loss: Loss,
    X: ArrayLike,
    y: ArrayLike,
    budget: Budget,
    *,
    regularisation: float | None = None,
    row_bound: float = 1.0,
    norm_guess: float = 1.0,
    records: int | None = None,
    stream: RandomStream | None = None,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
) -> LinearRelease:
    """The minimiser of the regularised risk plus a random linear function. Parameters as in output perturbation.

    Guarantee: ``result.guarantee``, within the budget, whatever the rows hold, for real numbers, if the stream is
    trusted and the minimiser is found to its tolerance.
    """
    setting, table = posed(loss, X, y, budget, row_bound, norm_guess, records)
    if budget.group_size != 1:
        remedy = "must be 1: the analysis is for single records; divide the budget, or use descent."
        raise InvalidParameter("group_size", budget.group_size, remedy)
    real("delta", budget.delta, above=0, at_most=0.5, remedy="Gaussian noise needs a delta above 0.")

    one_sided, event = loss.one_sided, black_box(budget, budget.delta)
    wish = replace(budget, epsilon=event.epsilon)

    def noise_at(strength: float) -> ObjectiveNoise:
        return ObjectiveNoise.within(wish, setting.smoothness / (setting.records * strength), one_sided)

    def excess(strength: float) -> float:
        noise, off = noise_at(strength), setting.tolerance(strength)
        pull = math.sqrt(setting.dimension) * noise.noise_multiplier * setting.lipschitz + off
        inner = pull**2 / (2 * setting.records**2 * strength)
        spread = noise.output.noise_multiplier * off / (setting.records * strength)
        outer = (setting.smoothness + strength) * setting.dimension * spread**2 / 2
        return setting.bias(strength) + inner + outer

    least = setting.smoothness / math.expm1(min(budget.epsilon / 2, 50.0)) / setting.records
    strength = setting.best(excess, least) if regularisation is None else setting.checked(regularisation)
    noise = noise_at(strength)
    settings = setting.described("objective-perturbation", strength)
    guarantee = certified(event, budget)
    charge(ledger, ledger_key, event, guarantee, settings, "objective-perturbation")

    stream = system_stream() if stream is None else stream
    nothing = BoundedSum(np.zeros(setting.dimension), setting.lipschitz)
    tilt = add_noise(nothing, Gaussian(noise.noise_multiplier), stream)
    risk, off = Risk(setting, table, strength), setting.tolerance(strength)
    minimiser = BoundedSum(risk.minimiser(tilt, off), off / risk.convexity)
    value = add_noise(minimiser, noise.output, stream)
    return LinearRelease(value, event, guarantee, "float", stream.trusted, excess(strength), settings)
