"""What a fit may spend, from which ledger, and the certificate that follows: :class:`Charge`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from discreet.certificate import Arithmetic as CertifiedArithmetic
from discreet.certificate import Certificate
from discreet.core.mechanisms import Arithmetic
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import PlanViolation
from discreet.events import ApproximateDP
from discreet.guarantee import Budget
from discreet.ledger import FixedPlan, GaussianFilter, SpendingRule, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.glm.spending import SPARE, Elsewhere, Spending
from discreet.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Charge:
    """One fit's right to spend: its till, its plan, its randomness.

    The plan carries a run name of its own, so that two fits with the same settings are two plans. ``alone``
    if nobody else can charge the ledger.
    """

    budget: Budget
    till: Till
    plan: Plan
    stream: RandomStream
    arithmetic: Arithmetic
    alone: bool = False
    elsewhere: Elsewhere | None = None

    def spending(self) -> Spending:
        """The budget, to be spent in stages."""
        name = str(self.plan.settings["run"])
        return Spending(self.budget, self.till, self.stream, self.arithmetic, name, self.elsewhere)

    def refuse_foreign(self, earlier: Iterable[str]) -> None:
        """Raise unless all the plans with these digests were charged to this ledger."""
        known = {run.plan_hash for run in self.till.ledger.statement().runs}
        if not known.issuperset(earlier):
            raise PlanViolation(
                "The model was fitted under another ledger, or none, so this ledger cannot answer for both. Fit it "
                "with this ledger from the beginning."
            )

    def reserve_everything(self) -> Budget:
        """Charge the whole budget at once, for a method that is known by its guarantee only: what it may cost."""
        event = _black_box(self.budget)
        self.till.pay(event, name=str(self.plan.settings["run"]))
        return replace(self.budget, epsilon=event.epsilon)

    def certificate(self, distance: float, not_covered: tuple[str, ...]) -> Certificate:
        """What was spent and what it proves. ``distance`` is of all hardened releases together."""
        return Certificate.of(
            self.till.ledger,
            self.plan,
            arithmetic=self._certified_arithmetic(distance * (1 + 1e-12)),
            trusted=self.stream.trusted,
            not_covered=not_covered,
        )

    def _certified_arithmetic(self, distance: float) -> CertifiedArithmetic:
        """With the distance that was kept back for; where others share the ledger, with the one that was needed.

        The first makes the guarantee the very budget that was asked for.
        """
        if self.arithmetic == "float":
            return CertifiedArithmetic()
        rule = self.plan.rule.budget
        spare = Fraction(self.budget.delta) - Fraction(rule.delta)
        planned = float(spare / (1 + Fraction(math.exp(rule.epsilon) * (1 + 1e-14)))) * (1 - 1e-14)
        return CertifiedArithmetic("hardened", planned if self.alone and distance <= planned else distance)


@contextmanager
def charged(
    name: str,
    settings: Mapping[str, Any],
    budget: Budget,
    ledger: AnyLedger,
    ledger_key: KeyFile,
    unsafe_seed: int | None,
    arithmetic: Arithmetic,
    *,
    staged: bool = True,
    continued: bool = False,
    elsewhere: Elsewhere | None = None,
) -> Iterator[Charge]:
    """Open the ledger for one fit, and close it again if it was opened here.

    ``staged`` fits spend by a Gaussian filter; others reserve their whole budget as one release. A ``continued``
    fit goes on from a model that was made under the same ledger, so all that its plan can promise is what
    the ledger promises of everything.
    """
    rule: SpendingRule = (
        GaussianFilter(_within(budget, arithmetic)) if staged else FixedPlan(_black_box(budget), budget)
    )
    plan = Plan.adaptive(name, rule, {**settings, "run": run_name(name, elsewhere)})
    with Till.open(ledger, plan, key=ledger_key) as opened:
        plan = Plan.adaptive(name, opened.ledger.rule, plan.settings) if continued else plan
        till = Till.open(opened.ledger, plan)
        stream = system_stream() if unsafe_seed is None else RandomStream(unsafe_seed=unsafe_seed)
        yield Charge(budget, till, plan, stream, arithmetic, alone=ledger is None, elsewhere=elsewhere)


def run_name(name: str, elsewhere: Elsewhere | None = None) -> str:
    """A name of its own for a fit, or the one under which it began."""
    begun = None if elsewhere is None else elsewhere.run
    return f"{name}-{os.urandom(8).hex()}" if begun is None else begun


def _within(budget: Budget, arithmetic: Arithmetic) -> Budget:
    """What the releases may cost if the noise were continuous."""
    if arithmetic != "hardened":
        return budget
    return replace(budget, delta=budget.delta * (1 - SPARE))


def _black_box(budget: Budget) -> ApproximateDP:
    """All of the budget but what the rounding of the accountant may add."""
    return ApproximateDP(budget.epsilon * (1 - 1e-12), budget.delta)
