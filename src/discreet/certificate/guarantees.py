"""Guarantees that follow from a plan and the ledger that it was charged to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from discreet.errors import BudgetExceeded, one_of, real
from discreet.events import Composition, Event
from discreet.guarantee import Guarantee
from discreet.ledger.filters import SpendingRule
from discreet.ledger.ledger_state import Statement, hex_digest
from discreet.plan.explanation import NOT_COVERED
from discreet.plan.procedure import Procedure

SEEDED = "other runs of this ledger whose noise a seed made: they have no guarantee, and neither do all runs together"


@dataclass(frozen=True)
class Arithmetic:
    """How the releases were computed.

    ``"float"``: the guarantee is proved for real numbers. ``"hardened"``: for the bits that were released; then
    ``distance`` bounds the total variation between the noise of all releases of the plan and the noise as
    accounted (:func:`discreet.core.noise.distance_to_continuous`, added up over the whole plan).
    """

    kind: Literal["float", "hardened"] = "float"
    distance: float = 0.0

    def __post_init__(self) -> None:
        if one_of("kind", self.kind, ("float", "hardened")) == "float":
            object.__setattr__(self, "distance", real("distance", self.distance, at_least=0, at_most=0))
        else:
            remedy = "It is the sum of distance_to_continuous() over all releases."
            object.__setattr__(
                self, "distance", real("distance", self.distance, above=0, below=1, remedy=remedy)
            )

    @property
    def caution(self) -> str:
        """What a reader should know of the arithmetic; empty if the proof covers every bit."""
        if self.kind == "hardened":
            return ""
        return "proved for real numbers and computed in floating point, whose last bits can tell more"


def guarantees(
    plan: Procedure,
    ledger: Statement,
    arithmetic: Arithmetic,
    claimed: tuple[Guarantee | None, Guarantee | None] = (None, None),
) -> tuple[Guarantee, Guarantee]:
    """Return the guarantees of the plan, and of all runs of the ledger together.

    A plan that continues others (``"continues"`` in its settings) answers for their runs as well. Where an epsilon
    that is ``claimed`` is a little smaller, more digits are computed.

    Guarantee: proved for what the ledger shows, as far as the rules were kept along the way.
    """
    plans = plans_of(plan)
    noted = [run.distance for run in ledger.runs if run.plan_hash in plans]
    others = [run.distance for run in ledger.runs if run.plan_hash not in plans]
    of_plan = max(arithmetic.distance, _sum_of(noted))  # older versions noted none
    of_all = min(1.0, _sum_of([of_plan, *others]))
    return (
        guarantee_of(plan.rule, ledger.spent(*plans), of_plan, claimed[0]),
        guarantee_of(ledger.rule, ledger.spent(), of_all, claimed[1]),
    )


def plans_of(plan: Procedure) -> set[str]:
    """The digests of the plan and of those that it continues."""
    return {plan.digest(), *continued_plans(plan)}


def seeded(plan: Procedure, ledger: Statement) -> bool:
    """Whether a seed made noise of the plan: by its own runs, or by those that it continues."""
    return any(run.seeded and run.plan_hash in plans_of(plan) for run in ledger.runs)


def not_covered_in(plan: Procedure, ledger: Statement) -> tuple[str, ...]:
    """Return the limits that a certificate of the plan has to name as not covered."""
    others = any(run.seeded and run.plan_hash not in plans_of(plan) for run in ledger.runs)
    return (*NOT_COVERED, SEEDED) if others else NOT_COVERED


def continued_plans(plan: Procedure) -> tuple[str, ...]:
    """The digests of the plans that this one continues: its guarantee is for their runs and its own together."""
    found = plan.settings.get("continues", ())
    return tuple(hex_digest("continues", one) for one in found) if isinstance(found, list | tuple) else ()


def guarantee_of(
    rule: SpendingRule, spent: dict[Event, int], distance: float = 0.0, claimed: Guarantee | None = None
) -> Guarantee:
    """Return the guarantee of ``rule``, if ``spent`` kept to it and it keeps its own budget.

    ``distance`` is that of all releases to the ones accounted for. Versions before 0.2 added what it costs to the
    delta of the rule's budget; what they ``claimed`` is recomputed in the same way.
    """
    if spent and rule.room({}, Composition(tuple(spent.items()))) < 1:
        raise BudgetExceeded("The ledger shows more than the rule of the plan allows; nothing is certified.")
    guarantee = rule.guarantee(spent)
    if guarantee.epsilon.upper > min(
        math.inf if claimed is None else claimed.epsilon.upper, rule.budget.epsilon
    ):
        guarantee = rule.closer_guarantee(spent)
    if not guarantee.within(rule.budget):
        raise BudgetExceeded(f"The rule promises {guarantee}, which exceeds its {rule.budget}.")
    if claimed is not None and claimed.delta > rule.budget.delta:
        return guarantee.at_distance(distance)
    return rule.at_distance(guarantee, distance)


def _sum_of(distances: list[float]) -> float:
    """Their sum, rounded up unless it is one of them."""
    some = [distance for distance in distances if distance]
    return math.fsum(some) * (1 + 1e-15 if len(some) > 1 else 1)
