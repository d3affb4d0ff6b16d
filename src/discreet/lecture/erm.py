"""Four ways to fit one linear model privately, behind one call: ``private_minimiser(..., method=...)``.

=============================  =====================================================================================
method                         in short
=============================  =====================================================================================
``"descent"``                  noisy gradients, T times; the only one for losses without bounded slope
``"output-perturbation"``      minimise, then add noise; simplest, needs a strong regularisation
``"objective-perturbation"``   add a random linear function, then minimise; best for few columns and smooth losses
``"exponential"``              a draw from the Gibbs distribution; exact, needs no exact minimiser, for few columns
=============================  =====================================================================================

All take the same public knowledge: rows of norm at most ``row_bound`` (longer ones are scaled down), and a guess of
the norm of the best parameter, from which steps and regularisation follow. All return coefficients with their
guarantee and a bound on their expected excess risk. The estimators' default recipe does better than any of them on
tables; these are for comparison, for small models and for those who want a theorem.

>>> from discreet import Budget
>>> from discreet.linear.losses import Logistic
>>> X = np.random.default_rng(0).normal(size=(4000, 2)) / 2
>>> budget = Budget(1.0, 1e-6, neighbours="replace-one")
>>> y = X[:, 0] > 0
>>> fits = [private_minimiser(Logistic(), X, y, budget, method=method) for method in METHODS]
>>> all(fit.guarantee.within(budget) for fit in fits)
True
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, one_of
from discreet.guarantee import Budget
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.exponential import exponential_sampling
from discreet.lecture.gradient_sum import BoundedData
from discreet.lecture.lecture_noise import exact_noise
from discreet.lecture.perturbation import objective_perturbation, output_perturbation
from discreet.lecture.release import LinearRelease
from discreet.lecture.risk import MinimiserRequest
from discreet.lecture.utility import smooth_average_excess, smooth_step_size
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.losses import Loss

Method = Literal["descent", "output-perturbation", "objective-perturbation", "exponential"]
METHODS: tuple[Method, ...] = get_args(Method)

_MOST_STEPS = 2000


def private_minimiser(
    loss: Loss,
    X: ArrayLike,
    y: ArrayLike,
    budget: Budget,
    *,
    method: Method = "descent",
    regularisation: float | None = None,
    row_bound: float = 1.0,
    norm_guess: float = 1.0,
    records: int | None = None,
    stream: RandomStream | None = None,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
) -> LinearRelease:
    """Coefficients of low empirical risk, by the chosen method, for a convex loss of bounded slope.

    The regularisation, on the scale of the mean loss, is chosen by the predicted excess risk if left out;
    ``norm_guess`` is a public guess of the norm of the best parameter for it. ``records`` is declared under
    add-remove neighbours.

    Guarantee: ``result.guarantee``, which is within the budget; see each method for what it assumes.
    """
    if one_of("method", method, METHODS) == "descent" and regularisation is not None:
        raise InvalidParameter("regularisation", regularisation, "is not used by descent; leave it out.")
    stream = system_stream() if stream is None else stream
    problem = MinimiserRequest(
        loss, X, y, budget, regularisation, row_bound, norm_guess, records, stream, ledger, ledger_key
    )
    return _BY_NAME[method](problem)


def descent_by_theory(problem: MinimiserRequest) -> LinearRelease:
    """Full-batch descent whose steps, step size and average are those of the bound for smooth losses.

    Guarantee: as :func:`~discreet.lecture.certified_descent.private_descent`.
    """
    loss, budget, (setting, _) = problem.loss, problem.budget, problem.pose()
    route = BoundedData(setting.row_bound)
    one_step = exact_noise(budget, route.bound(loss, None), setting.records, 1)
    # With so many steps, noise and smoothness ask for the same step size; more steps do not improve the bound.
    wanted = setting.norm_guess * setting.smoothness / (one_step * math.sqrt(2 * setting.dimension))
    steps = min(max(math.ceil(wanted), 1), _MOST_STEPS)
    noise = one_step * math.sqrt(steps)
    known = (setting.norm_guess, setting.smoothness, noise, setting.dimension, steps)
    step_size = smooth_step_size(*known)
    fit = private_descent(
        loss,
        problem.X,
        problem.y,
        budget,
        steps=steps,
        step_size=step_size,
        route=route,
        average="released",
        records=problem.records,
        stream=problem.stream,
        ledger=problem.ledger,
        ledger_key=problem.ledger_key,
    )
    settings = setting.describe("descent", 0.0) | {"steps": steps, "step_size": step_size}
    predicted = smooth_average_excess(*known) * (
        1 + 1e-3
    )  # calibration is within a thousandth of the exact noise
    return LinearRelease(
        np.asarray(fit.value), fit.event, fit.guarantee, "float", fit.trusted, predicted, settings
    )


_BY_NAME = {
    "descent": descent_by_theory,
    "output-perturbation": output_perturbation,
    "objective-perturbation": objective_perturbation,
    "exponential": exponential_sampling,
}
