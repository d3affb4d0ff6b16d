"""The data of a plan, its digest, and the rule by which a ledger spends for it.

Ledgers, engines and certificates rest on this file and on :mod:`discreet.plan.stage`. They do not rest on
:class:`~discreet.plan.plan.Plan`, which reads, checks and shows plans: whatever that class computes, what is charged
is the event of a stage, and what is certified follows from the fields below and from the entries of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import Any, Self

from discreet.errors import InvalidParameter, PlanViolation, UnsupportedEvent
from discreet.events import Event
from discreet.files import digest
from discreet.guarantee import Budget, Neighbours, Unit, without_usual_unit
from discreet.ledger.filters import FixedPlan, SpendingRule
from discreet.plan.stage import Stage

FORMAT = "discreet plan 1"
ADAPTIVE_FORMAT = "discreet procedure 1"  # of adaptive plans: what the first version called them


@dataclass(frozen=True)
class Procedure:
    """Everything that is decided before data is touched: ``stages``, or a rule that it ``adapts_by``."""

    stages: tuple[Stage, ...]
    delta: float
    neighbours: Neighbours = "add-remove"
    group_size: int = 1
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    adapts_by: SpendingRule | None = None
    unit: Unit = "record"

    @classmethod
    def adaptive(cls, name: str, rule: SpendingRule, settings: Mapping[str, Any] | None = None) -> Self:
        """A plan that chooses its releases along the way, under ``rule``.

        ``name`` is a few words for people; ``settings`` are declared numbers and words, never anything that was
        computed from private records.
        """
        if not isinstance(rule, SpendingRule):
            raise InvalidParameter("rule", rule, "must be a spending rule, such as GaussianFilter(budget).")
        wish = rule.budget.delta, rule.budget.neighbours, rule.budget.group_size
        return cls((), *wish, name, {} if settings is None else settings, rule, rule.budget.unit)

    def to_dict(self) -> dict[str, Any]:
        """The decided numbers as plain data; all others follow from them."""
        if self.adapts_by is not None:
            rule = self.adapts_by.to_dict()
            return {"format": ADAPTIVE_FORMAT, "name": self.name, "settings": self.settings, "rule": rule}
        wish = {"delta": self.delta, "neighbours": self.neighbours, "group_size": self.group_size}
        wish = without_usual_unit({**wish, "unit": self.unit})
        return {"format": FORMAT, "stages": [stage.to_dict() for stage in self.stages]} | wish

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the name of this plan in ledgers and certificates."""
        return digest(self.to_dict())

    @cached_property
    def rule(self) -> SpendingRule:
        """The rule of a ledger for this plan alone. A fixed one releases what it says, and costs what that costs."""
        wish = self.delta, self.neighbours, self.group_size, self.unit
        if self.adapts_by is None:
            refuse_uncovered_bands(self.stages, Budget(1.0, *wish))
            return FixedPlan.at_its_cost(compose(self.stages), *wish)
        budget = self.adapts_by.budget
        if self.stages or wish != (budget.delta, budget.neighbours, budget.group_size, budget.unit):
            raise InvalidParameter("adapts_by", self.adapts_by, "is for adaptive plans: use Plan.adaptive().")
        return self.adapts_by

    @property
    def steps(self) -> int:
        """The number of releases, over all stages."""
        return sum(stage.steps for stage in self._fixed_stages())

    @property
    def records(self) -> int:
        """The declared number of records, or of people if they are the unit."""
        return self._fixed_stages()[0].records

    def _fixed_stages(self) -> tuple[Stage, ...]:
        if self.stages:
            return self.stages
        raise PlanViolation(f"{self.name!r} is an adaptive plan, which chooses its releases along the way.")


def compose(stages: tuple[Stage, ...]) -> Event:
    """The event of all stages, one after the other."""
    return reduce(add, (stage.event for stage in stages))


def refuse_uncovered_bands(stages: tuple[Stage, ...], budget: Budget) -> None:
    """Refuse correlated noise where its theorem does not hold."""
    if (budget.neighbours, budget.group_size) != ("add-remove", 1) and any(s.bands > 1 for s in stages):
        raise UnsupportedEvent(
            "correlated noise (bands above 1) has a proof for add-remove neighbours and single records only; plan "
            "for these, or with bands=1."
        )
