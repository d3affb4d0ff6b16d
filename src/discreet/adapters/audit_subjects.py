"""Subjects of an audit: our own engines on made-up records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.audit import GradientCanaries, ModelCanaries
from discreet.audit.examine import Subject
from discreet.core.clipping import clip_rows
from discreet.core.noise import BoundedSum, add_noise
from discreet.events import Event
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage

Floats = NDArray[np.float64]

_WIDTH, _EXAMPLES, _MOST_STEPS, _MOST_CELLS = 100, 40, 200, 2**25
_SHIFT = 0.1  # how far canaries move a coefficient in all: where their gradients are still clipped


@dataclass(frozen=True)
class Attacked:
    """What is attacked with canaries, by which method, and the event that it claims to be."""

    train: Callable[..., Any]
    method: GradientCanaries | ModelCanaries
    event: Event
    steps: int


def core_subject(stage: Stage) -> Subject:
    """The stage by the library's own clipping, noise and sampling."""

    def sums(rows: Floats) -> Floats:
        return np.asarray(clip_rows(rows, stage.clip_norm).sum(0), np.float64)

    def noisy(rows: Floats) -> Floats:
        return np.asarray(add_noise(BoundedSum(sums(rows), stage.clip_norm), stage.noise))

    def batches() -> Any:
        return _shorten(stage).batches()

    examples = np.random.default_rng(0).normal(0, stage.clip_norm, (_EXAMPLES, _WIDTH))
    return Subject(examples, sums, noisy, batches=batches, name="the core loop")


def core_attack(stage: Stage, canaries: int, runs: int) -> Attacked:
    """Canary gradients in the first steps of the stage."""
    short = _shorten(stage)

    def train(gradients: Floats) -> Floats:
        released = []
        for batch in short.batches(rows=len(gradients)):
            total = clip_rows(gradients[batch], stage.clip_norm).sum(0)
            released.append(add_noise(BoundedSum(total, stage.clip_norm), stage.noise))
        return np.array(released)

    method = GradientCanaries(count=canaries, runs=runs, clip_norm=stage.clip_norm)
    return Attacked(train, method, short.event, short.steps)


def linear_subject(plan: Plan) -> Subject:
    """A logistic regression by private descent, seen from outside: one step on all records, noise included."""
    from discreet.lecture.certified_descent import private_descent
    from discreet.linear.losses import Logistic

    stage = plan.stage()

    @cache
    def one_step(records: int) -> Plan:
        one = replace(stage, sampling="full-batch", records=records, batch_size=records, steps=1)
        return Plan((one,), min(plan.delta, 0.5 / records), plan.neighbours)

    def noisy(records: tuple[Floats, Floats]) -> Floats:
        # The number of records is public under replace-one neighbours, and declared otherwise.
        count = len(records[0]) if plan.neighbours == "replace-one" else _EXAMPLES
        model = private_descent(Logistic(), *records, one_step(count), step_size=1.0, average="last")
        return np.asarray(-model.value * count)

    rng = np.random.default_rng(0)
    features = rng.normal(0, stage.clip_norm, (_EXAMPLES, _WIDTH))
    return Subject((features, rng.integers(0, 2, _EXAMPLES)), noisy=noisy, name="linear private descent")


def linear_attack(plan: Plan, canaries: int, runs: int) -> Attacked:
    """Canary records for the whole plan; only the final model is seen."""
    from discreet.lecture.certified_descent import private_descent
    from discreet.linear.losses import Logistic

    stage = plan.stage()
    step_size = _SHIFT * stage.divisor / (stage.steps * stage.rate * stage.clip_norm**2)

    def train(rows: Floats, labels: Floats) -> Floats:
        carried_out = plan
        if plan.neighbours == "replace-one":  # the number of records is public, and is that of the canaries
            one = replace(stage, records=len(rows), batch_size=max(1, round(stage.rate * len(rows))))
            carried_out = Plan((one,), min(plan.delta, 0.5 / len(rows)), plan.neighbours)
        model = private_descent(Logistic(), rows, labels, carried_out, step_size=step_size, average="last")
        return np.asarray(model.value)

    method = ModelCanaries(count=canaries, runs=runs + 1, clip_norm=stage.clip_norm)
    return Attacked(train, method, plan.event, stage.steps)


def _shorten(stage: Stage) -> Stage:
    """The first steps of a stage, few enough to be looked at; whole epochs where it is made of them."""
    most = max(1, min(_MOST_STEPS, _MOST_CELLS // stage.records))
    each = stage.steps_per_charge
    return replace(stage, steps=min(stage.steps, max(each, most // each * each)))
