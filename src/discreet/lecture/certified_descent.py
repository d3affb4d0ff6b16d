"""``private_descent``: plan, certify, then descend.

>>> from discreet import Budget
>>> from discreet.linear.losses import Logistic
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(2000, 3))
>>> y = X[:, 0] > 0
>>> budget = Budget(epsilon=1.0, delta=1e-6, neighbours="replace-one")
>>> model = private_descent(Logistic(), X, y, budget, steps=50, step_size=2.0, route=Clip(1.0))
>>> print(model.guarantee)
(1, 1e-06)-differentially private for one record, replace-one neighbours, against an observer who sees every release
>>> bool(np.mean((X @ model.value > 0) == y) > 0.9)
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.accounting.calibration import calibrate
from discreet.accounting.curve import account
from discreet.core.descent import Average, Path, Projection, Schedule, Update, descend
from discreet.core.mechanisms import Release, laplace_event
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import BudgetExceeded, InvalidParameter, PlanViolation, one_of, whole
from discreet.events import Event, Gaussian, Laplace
from discreet.guarantee import Budget, Guarantee, of_records
from discreet.lecture.gradient_sum import Clip, GradientSum, Route
from discreet.lecture.release import charge
from discreet.lecture.table import Floats, RecordTable
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.losses import Loss
from discreet.plan.plan import Plan
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling, Stage
from discreet.statistics.mean.error_bounds import deviation
from discreet.trusted.permits import Draw, StepNoise


@dataclass(frozen=True, eq=False)
class ReleasedDescent(Release):
    """A descent as released: ``value`` is the chosen point of ``path``, and all of the path is public.

    ``noise_std`` is the standard deviation of the noise on each coordinate of the averaged gradient.
    """

    path: Path
    clip_norm: float
    noise_std: float
    records: int


def private_descent(
    loss: Loss,
    X: ArrayLike,
    y: ArrayLike,
    plan: Plan | Budget,
    *,
    step_size: float | Schedule,
    steps: int | None = None,
    batch_size: int | None = None,
    route: Route | None = None,
    average: Average = "mean",
    project: Projection | None = None,
    update: Update | None = None,
    noise: Literal["gaussian", "laplace"] = "gaussian",
    records: int | None = None,
    stream: RandomStream | None = None,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
) -> ReleasedDescent:
    """Noisy gradient descent from 0 on the mean loss, one record in each row of ``X``.

    Give a :class:`Plan`, which has everything, or a :class:`Budget` with the number of ``steps``. Each step uses
    all records (the lectures' full batch), or, with ``batch_size``, a Poisson sample of so many on average.
    ``route`` bounds the gradients; the default clips them to norm 1, or to the plan's. Laplace noise is for models
    of one coefficient, full batches and pure budgets (delta 0). ``records`` is declared under add-remove
    neighbours, where the number of rows is private. A column of ones is the intercept.

    Guarantee: the whole path costs ``result.guarantee``, which is within the budget, whatever the rows hold, for
    real numbers and if the stream is trusted. No error or warning depends on the values of a row.
    """
    stream = system_stream() if stream is None else stream
    table = RecordTable.of(X, y, _wish(plan).neighbours, plan.records if isinstance(plan, Plan) else records)
    route = Clip(plan.clip_norm if isinstance(plan, Plan) else 1.0) if route is None else route
    gradients = GradientSum(loss, table, route, project)
    decided = _decide(plan, gradients, steps, batch_size, table.records, noise)
    settings = {"method": "descent", "clip_norm": gradients.clip_norm}
    permit = charge(
        *(ledger, ledger_key, decided.step_noise, gradients.clip_norm, stream, decided.guarantee, settings),
        times=decided.steps // decided.step_noise.steps,
    )
    batches = decided.batches(stream, len(table.rows))

    def noisy_mean(theta: Floats) -> Floats:
        total = gradients.at(theta, next(batches), decided.norm)
        released: Floats = permit.release(total)
        return released / decided.divisor

    path = descend(noisy_mean, np.zeros(gradients.shape), decided.steps, step_size, average, project, update)
    return ReleasedDescent(
        value=path.result,
        event=decided.event,
        guarantee=decided.guarantee,
        arithmetic="float",
        trusted=stream.trusted,
        path=path,
        clip_norm=gradients.clip_norm,
        noise_std=deviation(decided.noise) * gradients.clip_norm / decided.divisor,
        records=table.records,
    )


@dataclass(frozen=True)
class _Decided:
    """Schedule and total cost of the descent, fixed before the data is read."""

    noise: Gaussian | Laplace
    steps: int
    divisor: float
    event: Event
    guarantee: Guarantee
    stage: Stage | None = None  # None: full batches

    @property
    def step_noise(self) -> StepNoise:
        """The noise of a step, which is independent of that of the others, with the event that is charged for it."""
        if self.stage is None:
            return StepNoise.of_event(self.noise)
        return StepNoise(self.stage, {"sum": Draw(self.noise)})

    @property
    def norm(self) -> Literal["l2", "l1"]:
        return "l2" if isinstance(self.noise, Gaussian) else "l1"

    def batches(self, stream: RandomStream, rows: int) -> Iterator[NDArray[np.int64] | None]:
        if self.stage is None or self.stage.sampling == "full-batch":
            return repeat(None, self.steps)
        return self.stage.batches(stream, rows=rows)


def _decide(
    plan: Plan | Budget,
    gradients: GradientSum,
    steps: int | None,
    batch_size: int | None,
    records: int,
    noise: str,
) -> _Decided:
    if one_of("noise", noise, ("gaussian", "laplace")) == "laplace":
        return _laplace(plan, gradients, steps, batch_size, records)
    if isinstance(plan, Plan):
        _refuse_departures(plan, gradients, steps, batch_size)
    else:
        sampling: Sampling = "full-batch" if batch_size is None else "poisson"
        count, clip_norm = _steps(steps), gradients.clip_norm
        plan = Recipe(records, batch_size, steps=count, clip_norm=clip_norm, sampling=sampling).calibrate(
            plan
        )
    stage = plan.stage()
    return _Decided(stage.noise, stage.steps, stage.divisor, plan.event, plan.guarantee, stage)


def _laplace(
    plan: Plan | Budget, gradients: GradientSum, steps: int | None, batch_size: int | None, records: int
) -> _Decided:
    """Full batches with Laplace noise on the one coordinate: epsilon / steps for each of them, if delta is 0."""
    if isinstance(plan, Plan) or batch_size is not None:
        requirement = "'laplace' is for full batches and a Budget; leave batch_size and the plan out."
        raise InvalidParameter("noise", "laplace", requirement)
    if math.prod(gradients.shape) != 1:
        requirement = "'laplace' is for models of one coefficient; use 'gaussian' noise for several."
        raise InvalidParameter("noise", "laplace", requirement)
    count = _steps(steps)
    if plan.delta == 0:
        scale = laplace_event(replace(plan, epsilon=plan.epsilon / count)).scale
    else:
        scale = calibrate(lambda scale: Laplace(scale) * count, plan, parameter="scale")
    event = Laplace(scale) * count
    guarantee = account(event, plan.neighbours, plan.group_size).guarantee(plan.delta)
    if not guarantee.within(plan):
        raise BudgetExceeded(f"{event} would cost {guarantee}, which exceeds {plan}; nothing was released.")
    return _Decided(Laplace(scale), count, float(records), event, guarantee)


def _refuse_departures(plan: Plan, gradients: GradientSum, steps: int | None, batch_size: int | None) -> None:
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if value is not None:
            raise InvalidParameter(name, value, "is fixed by the plan; leave it out, or pass a Budget.")
    if gradients.clip_norm > plan.clip_norm:
        raise PlanViolation(
            f"The route bounds gradients by {gradients.clip_norm:g}, and the plan is for {plan.clip_norm:g}; "
            "plan again with that clip_norm, or leave the route out."
        )


def _wish(plan: object) -> Plan | Budget:
    if isinstance(plan, Plan):
        of_records(plan.rule.budget)
        return plan
    if isinstance(plan, Budget):
        return of_records(plan)
    raise InvalidParameter("plan", plan, "must be a Plan, or a Budget such as Budget(1.0, 1e-6).")


def _steps(steps: int | None) -> int:
    return whole("steps", steps, at_least=1, remedy="With a budget, say how many steps to make.")
