"""What follows from a plan and the ledger that it was charged to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from discreet.errors import BudgetExceeded, one_of, real
from discreet.events import Composition, Event
from discreet.guarantee import Guarantee
from discreet.ledger.book import Statement
from discreet.ledger.filters import SpendingRule
from discreet.plan.plan import Plan


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


def promises(
    plan: Plan,
    ledger: Statement,
    arithmetic: Arithmetic,
    claimed: tuple[float, float] = (math.inf, math.inf),
) -> tuple[Guarantee, Guarantee]:
    """What follows for the plan, and for all runs of the ledger together.

    Where an epsilon that is ``claimed`` is a little smaller, more digits are computed.

    Guarantee: proved for what the ledger shows, as far as the rules were kept along the way.
    """
    own = promise_of(plan.rule, ledger.spent(plan.digest()), claimed[0])
    together = promise_of(ledger.rule, ledger.spent(), claimed[1])
    noted = [run.distance for run in ledger.runs if run.plan_hash == plan.digest()]
    others = [run.distance for run in ledger.runs if run.plan_hash != plan.digest()]
    of_plan = max(arithmetic.distance, _sum_of(noted))  # older versions noted none
    of_all = min(1.0, _sum_of([of_plan, *others]))
    return own.at_distance(of_plan), together.at_distance(of_all)


def promise_of(rule: SpendingRule, spent: dict[Event, int], claimed: float = math.inf) -> Guarantee:
    """What ``rule`` promises, if ``spent`` kept to it and it keeps its own budget."""
    if spent and rule.room({}, Composition(tuple(spent.items()))) < 1:
        raise BudgetExceeded("The ledger shows more than the rule of the plan allows; nothing is certified.")
    guarantee = rule.guarantee(spent)
    if guarantee.epsilon.upper > min(claimed, rule.budget.epsilon):
        guarantee = rule.closer_guarantee(spent)
    if not guarantee.within(rule.budget):
        raise BudgetExceeded(f"The rule promises {guarantee}, which exceeds its {rule.budget}.")
    return guarantee


def _sum_of(distances: list[float]) -> float:
    """Their sum, rounded up unless it is one of them."""
    some = [distance for distance in distances if distance]
    return math.fsum(some) * (1 + 1e-15 if len(some) > 1 else 1)
