"""A :class:`Plan`: all that is decided before data is touched.

A fixed plan is made of stages. They fix the declared number of records, the sampling, the divisor, the clip norm, the
steps, the noise and the neighbours together; the event to account for follows from them and is never passed in. So
the run, the accounting and the certificate cannot take their numbers from different places. Fixed plans are made by a
:class:`~discreet.plan.recipe.Recipe`, or from stages:

>>> stage = Stage("descent", "poisson", 60_000, 600, steps=1000, clip_norm=1.0, noise_multiplier=2.0)
>>> plan = Plan((stage,), delta=1e-6)
>>> round(plan.guarantee.epsilon.upper, 2)
0.72
>>> Plan.from_json(plan.to_json()) == plan
True

An adaptive plan is a rule with its budget: each release is chosen from what was released before, and none that the
rule has no room for happens. The estimators plan so, and each party of a study:

>>> from discreet.ledger.filters import GaussianFilter
>>> fit = Plan.adaptive("my fit", GaussianFilter(Budget(epsilon=1.0, delta=1e-6)), {"degree": 3})
>>> fit.guarantee.epsilon.upper, fit.stages, Plan.from_json(fit.to_json()) == fit
(1.0, (), True)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

from discreet.accounting.curve import PrivacyCurve, account
from discreet.core.sampling import Sampler
from discreet.errors import InvalidParameter, UnsupportedEvent, one_of
from discreet.events import Event
from discreet.files import parse_json, read_text, write_whole
from discreet.guarantee import Budget, Guarantee
from discreet.ledger.filters import SpendingRule
from discreet.plan.plan_views import PlanViews
from discreet.plan.procedure import ADAPTIVE_FORMAT, FORMAT, Procedure, compose, refuse_uncovered_bands
from discreet.plan.stage import Stage
from discreet.plan.stage_views import USUAL_LENGTH

_WISH = {"delta", "neighbours", "group_size", "unit"}


@dataclass(frozen=True)
class Plan(Procedure, PlanViews):
    """All that is decided before data is touched, as one value that may be published.

    Fixed if it has ``stages``; else adaptive, made by :meth:`adaptive`: a name, public settings and the rule that it
    spends by. It adds checks, costs and texts to the data of a :class:`~discreet.plan.procedure.Procedure`; nothing
    that is charged or certified rests on them.
    """

    def __post_init__(self) -> None:
        if self.adapts_by is not None:
            object.__setattr__(self, "settings", _checked_settings(self, self.adapts_by.budget))
            return
        if self.name or self.settings:
            raise InvalidParameter("name", self.name, "belongs to an adaptive plan; stages have names.")
        object.__setattr__(self, "stages", consistent(as_tuple("stages", self.stages)))
        wish = Budget(1.0, self.delta, self.neighbours, self.group_size, self.unit)
        budget = checked_budget(wish, self.records)
        object.__setattr__(self, "delta", budget.delta)
        object.__setattr__(self, "group_size", budget.group_size)
        refuse_uncovered_bands(self.stages, budget)
        _ = self.curve  # a combination that no theorem covers is refused here

    def __reduce__(self) -> tuple[Any, ...]:
        values = (self.stages, self.delta, self.neighbours, self.group_size)
        return type(self), (*values, self.name, self.settings, self.adapts_by, self.unit)

    @cached_property
    def event(self) -> Event:
        """What the whole plan releases; only a fixed plan knows."""
        return compose(self._fixed_stages())

    @cached_property
    def curve(self) -> PrivacyCurve:
        """The certified privacy curve of the event, or of all that the rule of an adaptive plan allows."""
        if self.adapts_by is None:
            return account(self.event, self.neighbours, self.group_size)
        curve = self.adapts_by.curve()
        if curve is None:
            raise UnsupportedEvent(f"all that is known of {self.name!r} is its guarantee: {self.guarantee}.")
        return curve

    @cached_property
    def guarantee(self) -> Guarantee:
        """The certified cost of the whole plan at its delta."""
        if self.adapts_by is not None:
            return self.adapts_by.guarantee({})
        return replace(self.curve.guarantee(self.delta), unit=self.unit)

    def stage(self, name: str | None = None) -> Stage:
        """The stage of this name; without a name, the only one."""
        names = [stage.name for stage in self._fixed_stages()]
        if name is not None:
            return self.stages[names.index(one_of("name", name, names))]
        if len(names) == 1:
            return self.stages[0]
        raise InvalidParameter(
            "name", name, f"this plan has several stages, choose one of {', '.join(names)}."
        )

    @property
    def noise_multiplier(self) -> float:
        """Of the only stage: standard deviation of the noise on the sum / clip norm."""
        return self.stage().noise_multiplier

    @property
    def clip_norm(self) -> float:
        """Of the only stage: the most that one record adds to the sum."""
        return self.stage().clip_norm

    def learning_rate(self, parameters: int, length: float = USUAL_LENGTH) -> float:
        """Of the only stage: a learning rate for a model of so many weights, see :meth:`Stage.learning_rate`."""
        return self.stage().learning_rate(parameters, length)

    @property
    def rate(self) -> float:
        """Of the only stage: the chance of one record to be in a batch."""
        return self.stage().rate

    @property
    def divisor(self) -> float:
        """Of the only stage: the public number that every sum is divided by."""
        return self.stage().divisor

    @property
    def noise_std_of_sum(self) -> float:
        """Of the only stage: noise on each coordinate of the sum."""
        return self.stage().noise_std_of_sum

    @property
    def noise_std_of_mean(self) -> float:
        """Of the only stage: noise on each coordinate of the averaged gradient."""
        return self.stage().noise_std_of_mean

    def sampler(self) -> Sampler:
        """Of the only stage: the sampler that realises its event."""
        return self.stage().sampler()

    @classmethod
    def from_dict(cls, data: object) -> Plan:
        """The inverse of :meth:`to_dict`; anything else is refused."""
        fields = dict(data) if isinstance(data, dict) else {}
        form = fields.pop("format", None)
        if form == ADAPTIVE_FORMAT and set(fields) == {"name", "settings", "rule"}:
            return cls.adaptive(fields["name"], SpendingRule.from_dict(fields["rule"]), fields["settings"])
        stages = fields.pop("stages", None)
        if form != FORMAT or not isinstance(stages, list) or not fields.keys() <= _WISH:
            raise InvalidParameter("plan", data, f"is not a {FORMAT!r}.")
        try:
            return cls(tuple(Stage(**stage) for stage in stages), **fields)
        except TypeError as error:
            raise InvalidParameter("plan", data, f"is not a plan ({error}).") from None

    def to_json(self) -> str:
        """The plan and its digest as JSON for people and programs."""
        return json.dumps(self.to_dict() | {"digest": self.digest()}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of :meth:`to_json`. A text that does not match its digest was altered and is refused."""
        data = parse_json(text, "plan")
        claimed = data.pop("digest", None)
        plan = cls.from_dict(data)
        if plan.digest() != claimed:
            remedy = "does not match the plan, which was altered after it was made; plan again."
            raise InvalidParameter("digest", claimed, remedy)
        return plan

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file."""
        write_whole(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan from a file."""
        return cls.from_json(read_text(path, most_bytes=2**20))


def _checked_settings(plan: Plan, budget: Budget) -> dict[str, Any]:
    """The settings of an adaptive plan as plain data, or raise."""
    wish = (plan.stages, plan.delta, plan.neighbours, plan.group_size, plan.unit)
    if wish != ((), budget.delta, budget.neighbours, budget.group_size, budget.unit):
        raise InvalidParameter("adapts_by", plan.adapts_by, "is for adaptive plans: use Plan.adaptive().")
    if not (isinstance(plan.name, str) and 0 < len(plan.name) <= 200):
        raise InvalidParameter("name", plan.name, "must be a few words, such as 'logistic regression'.")
    try:
        if not isinstance(plan.settings, Mapping):
            raise TypeError("not a dict")
        return dict(json.loads(json.dumps(dict(plan.settings), allow_nan=False)))
    except (TypeError, ValueError) as error:
        remedy = f"must be plain data for JSON ({error})."
        raise InvalidParameter("settings", plan.settings, remedy) from None


def as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """``values`` as a tuple, or raise."""
    if isinstance(values, list | tuple):
        return tuple(values)
    raise InvalidParameter(name, values, "must be a tuple.")


def consistent(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages, if together they are a plan for one data set."""
    if not stages or not all(isinstance(stage, Stage) for stage in stages):
        raise InvalidParameter("stages", stages, "must hold at least one Stage; Recipe.calibrate makes them.")
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise InvalidParameter("stages", names, "must have different names; set name= in each recipe.")
    counts = sorted({stage.records for stage in stages})
    if len(counts) > 1:
        raise InvalidParameter("records", counts, "must be the same in all stages: they share one data set.")
    return stages


def checked_budget(budget: object, records: int) -> Budget:
    """The budget, if it means something for this many records."""
    if not isinstance(budget, Budget):
        raise InvalidParameter(
            "budget", budget, "must be a Budget, for instance Budget(epsilon=1.0, delta=1e-6)."
        )
    usual = f"Choose it well below, for instance {min(1e-5, records**-1.1):.0e}."
    if budget.delta == 0:
        raise InvalidParameter(
            "delta", 0.0, f"must be above 0, for Gaussian noise has no pure privacy. {usual}"
        )
    if budget.delta * records >= 1:
        why = "a delta of 1 / records would allow one random record to be published"
        raise InvalidParameter(
            "delta", budget.delta, f"must be below 1 / records = {1 / records:.3g}: {why}. {usual}"
        )
    return budget
