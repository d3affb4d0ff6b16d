"""Subjects of an audit: our own engines on made-up records, and the estimator of a certificate, made again.

The two tables for an estimator differ by a group of records that lie in a corner and have an extreme target, unlike a
crowd that lies there, too: so their gradients stay long, whatever was learnt. Where people are the unit, the group is
one of people with several rows each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.gaussian import gaussian_mu
from discreet.audit import GradientCanaries, ModelCanaries
from discreet.audit.examine import Subject
from discreet.certificate import Certificate
from discreet.core.clipping import clip_rows
from discreet.core.noise import BoundedSum, add_noise
from discreet.errors import InvalidParameter
from discreet.events import Event
from discreet.guarantee import Budget
from discreet.linear import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    PrivateSVC,
)
from discreet.linear.column_kinds import Category, Column, Date, Flag, Numeric
from discreet.linear.losses import Loss
from discreet.linear.model_folder import spending
from discreet.linear.row_source import Table
from discreet.linear.schema import schema_of
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage

Floats = NDArray[np.float64]

_WIDTH, _EXAMPLES, _MOST_STEPS, _MOST_CELLS = 100, 40, 200, 2**25
_SHIFT = 0.1  # how far canaries move a coefficient in all: where their gradients are still clipped


@dataclass(frozen=True)
class AuditTarget:
    """Subject of a canary attack, with the method and the claimed event."""

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


def core_attack(stage: Stage, canaries: int, runs: int) -> AuditTarget:
    """Canary gradients in the first steps of the stage."""
    short = _shorten(stage)

    def train(gradients: Floats) -> Floats:
        released = []
        for batch in short.batches(rows=len(gradients)):
            total = clip_rows(gradients[batch], stage.clip_norm).sum(0)
            released.append(add_noise(BoundedSum(total, stage.clip_norm), stage.noise))
        return np.array(released)

    method = GradientCanaries(count=canaries, runs=runs, clip_norm=stage.clip_norm)
    return AuditTarget(train, method, short.event, short.steps)


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


def linear_attack(plan: Plan, canaries: int, runs: int) -> AuditTarget:
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
    return AuditTarget(train, method, plan.event, stage.steps)


def _shorten(stage: Stage) -> Stage:
    """The first steps of a stage, few enough to be looked at; whole epochs where it is made of them."""
    most = max(1, min(_MOST_STEPS, _MOST_CELLS // stage.records))
    each = stage.steps_per_charge
    return replace(stage, steps=min(stage.steps, max(each, most // each * each)))


_ESTIMATORS = {
    kind.__name__: kind
    for kind in (
        PrivateAdditiveClassifier,
        PrivateAdditiveRegressor,
        PrivateLinearRegression,
        PrivateLogisticRegression,
        PrivatePoissonRegressor,
        PrivateSVC,
    )
}
_ORDINARY, _CROWD = 2000, 500  # records of every table: in its middle, and in the corner of the group
ROWS_EACH = 8  # of a person
_SEPARATION = 3.0  # of the group in the claimed curve: seen well in a few hundred fits, and far from certain


@dataclass(frozen=True, eq=False)
class Estimator:
    """An estimator as a certificate describes it: how to make one, and what its fit claims."""

    make: Callable[[], Any]
    budget: Budget
    settings: Mapping[str, Any]
    stages: list[dict[str, Any]]

    @classmethod
    def of(cls, certificate: Certificate) -> Estimator:
        """From a certificate; refused if this library cannot fit what it certifies again."""
        plan = certificate.plan
        if plan.name not in _ESTIMATORS:
            remedy = "certifies neither a plan nor a fit of this library; hand it in with --subject."
            raise InvalidParameter("document", plan.name or "a plan", remedy)
        settings = {key: value for key, value in plan.settings.items() if key != "run"}
        if settings.get("sample") is not None:
            remedy = (
                "was a secret sample, whose draws a replay does not repeat; audit a fit of the whole table."
            )
            raise InvalidParameter("sample", settings["sample"], remedy)
        if settings.get("method", "recipe") != "recipe":
            remedy = "is a method with theorems; only fits by the recipe are audited. Or use --subject."
            raise InvalidParameter("method", settings.get("method"), remedy)
        kind, settings = _ESTIMATORS[plan.name], _restore(settings)
        made = kind(**settings)
        return cls(lambda: kind(**settings), made._budget(), settings, spending(certificate))

    @property
    def name(self) -> str:
        """The name of its class."""
        return type(self.make()).__name__

    @property
    def people(self) -> bool:
        """Whether the unit is a person with all rows."""
        return self.budget.unit == "person"

    @property
    def group(self) -> int:
        """Number of records or persons that the attack adds at once."""
        return max(1, round(_SEPARATION / gaussian_mu(self.budget.epsilon, self.budget.delta)))

    def loss(self) -> Loss:
        """The loss that its gradients are of; for classes, that of two."""
        model = self.make()
        model.target_bounds_ = None
        model.classes_ = np.array([0, 1])
        loss: Loss = model._loss()
        return loss


def _restore(settings: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they were before they became JSON, which knows no labels but texts; classes are declared."""
    if settings.get("classes") == "from-data":
        settings["classes"] = [0, 1]
    weights, classes = settings.get("class_weight"), settings.get("classes")
    if isinstance(weights, dict) and isinstance(classes, list):
        named = {str(label): label for label in classes}
        settings |= {"class_weight": {named.get(text, text): weight for text, weight in weights.items()}}
    return settings


def neighbouring_tables(estimator: Estimator) -> list[tuple[Any, ...]]:
    """Two neighbouring tables with their targets, up to the size of the group."""
    ordinary, extreme = (_row(estimator.settings, place) for place in (0, 1))
    first, last = _targets(estimator)
    each = ROWS_EACH if estimator.people else 1
    group, others = each * estimator.group, _ORDINARY + _CROWD
    known = [ordinary] * _ORDINARY + [extreme] * _CROWD

    def world(rows: list[dict[str, Any]], targets: list[Any]) -> tuple[Any, ...]:
        kind = None if type(first) is type(last) else object  # labels of several types stay what they are
        table, labels = _table(estimator.settings, rows), np.array(targets, kind)
        if not estimator.people:
            return table, labels
        place = np.arange(len(rows))
        return table, labels, None, np.where(place < others, place, others + (place - others) // each)

    replaced = group if estimator.budget.neighbours == "replace-one" else 0
    without = world(known + [ordinary] * replaced, [first] * (others + replaced))
    used = world(known + [extreme] * group, [first] * others + [last] * group)
    return [without, used]


def _row(settings: Mapping[str, Any], extreme: int) -> dict[str, Any]:
    """An ordinary record, in the middle of every column, or an extreme one, in a corner."""
    if settings.get("schema") is not None:
        features = schema_of(settings["schema"]).features
        return {name: _cell(column, extreme) for name, column in features.items()}
    if settings.get("row_norm") is not None:
        length = float(settings["row_norm"]) / math.sqrt(_few(settings))
        return dict.fromkeys(_names(settings), extreme * length)
    lower, upper = settings.get("bounds") or (-1.0, 1.0)

    def of(bound: Any, place: int, name: str) -> float:
        return float(bound[name] if isinstance(bound, dict) else np.ravel(bound)[place % np.size(bound)])

    ends = {name: (of(lower, j, name), of(upper, j, name)) for j, name in enumerate(_names(settings))}
    return {name: high if extreme else (low + high) / 2 for name, (low, high) in ends.items()}


def _cell(column: Column, extreme: int) -> Any:
    match column:
        case Date():
            first, last = map(date.fromisoformat, column.to_dict()["bounds"])
            return last if extreme else first + (last - first) / 2
        case Numeric(lower=None):
            return float(extreme)
        case Numeric(lower=lower, upper=upper):
            return upper if extreme else (lower + upper) / 2  # type: ignore[operator]
        case Category(values=values):
            return values[-1 if extreme else 0]
        case Flag(yes=yes):
            return yes if extreme else None


def _few(settings: Mapping[str, Any]) -> int:
    """Default number of columns of the synthetic table."""
    return next((len(bound) for bound in settings.get("bounds") or () if np.ndim(bound)), 5)


def _names(settings: Mapping[str, Any]) -> list[str]:
    bounds = settings.get("bounds") or ()
    named = next((list(bound) for bound in bounds if isinstance(bound, dict)), None)
    return named or [f"column {place}" for place in range(_few(settings))]


def _table(settings: Mapping[str, Any], rows: list[dict[str, Any]]) -> Any:
    columns = {}
    for name in rows[0]:
        columns[name] = np.empty(len(rows), object)
        columns[name][:] = [row[name] for row in rows]
    named = settings.get("schema") is not None or any(
        isinstance(b, dict) for b in settings.get("bounds") or ()
    )
    if named:
        return Table(columns, len(rows))
    return np.column_stack([column.astype(np.float64) for column in columns.values()])


def _targets(estimator: Estimator) -> tuple[Any, Any]:
    """The target of ordinary records and that of extreme ones."""
    if "target_bounds" in estimator.settings:
        lower, upper = estimator.settings["target_bounds"] or (0.0, 1.0)
        return max(0.0, lower) if estimator.loss().kind == "counts" else lower, upper
    classes = estimator.settings["classes"]
    return classes[0], classes[-1]
