"""The budget of one fit of a table: opened on a ledger, spent in stages or at once, certified: :class:`FitBudget`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from discreet.accounting.gaussian import gaussian_epsilon, gaussian_mu
from discreet.certificate import Arithmetic as CertifiedArithmetic
from discreet.certificate import Certificate
from discreet.core.mechanisms import Arithmetic
from discreet.core.noise import SPARED_DELTA_OF_FIT
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, PlanViolation
from discreet.events import ApproximateDP
from discreet.guarantee import Budget
from discreet.ledger import FixedPlan, GaussianFilter, Till
from discreet.ledger.filters import SPARE as LEDGER_SPARE
from discreet.ledger.filters import SpendingRule
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.linear.public_log import PublicLog
from discreet.linear.recording_spending import RecordingSpending, Tape
from discreet.linear.subsampling import amplified_budget
from discreet.plan.plan import Plan
from discreet.trusted.spending import BudgetAllocator


@dataclass(eq=False)
class FitBudget:
    """The budget of one fit, the ledger that pays for it, and its randomness. Made by :func:`open_budget`.

    The plan carries a run name of its own, so that two fits with the same settings are two plans. ``alone``
    if nobody else can charge the ledger.

    Guarantee: :meth:`certificate` states the arithmetic, the distance and the randomness of the very releases that
    :meth:`spending` made.
    """

    budget: Budget
    till: Till
    plan: Plan
    stream: RandomStream
    arithmetic: Arithmetic
    alone: bool = False
    log: PublicLog | None = None
    sample: float | None = None
    tape: Tape | None = None
    _spending: BudgetAllocator | None = None

    @property
    def sampled(self) -> bool:
        """Whether the whole budget is one charge, for which more can be spent on a secret sample."""
        return self.sample is not None and self.budget.neighbours == "add-remove"

    def spending(self) -> BudgetAllocator:
        """The budget, to be spent in stages; of a sample what the sample is worth, on an account of its own."""
        name = str(self.plan.settings["run"])
        if self.sample is not None and self.log is not None:
            raise InvalidParameter("sample", self.sample, "is for tables of one machine; leave it out.")
        if self.sample is not None and self.sampled:
            return self._spending_of_sample(self.sample, name)
        return self._new_spending(self.budget, self.till, self.stream, self.arithmetic, name, self.log)

    def _new_spending(self, *known: Any, **options: Any) -> BudgetAllocator:
        if self._spending is not None:
            raise PlanViolation("The budget of a fit is spent once.")
        recording = None if self.tape is None else RecordingSpending(self.tape, *known, **options)
        self._spending = BudgetAllocator(*known, **options) if recording is None else recording
        return self._spending

    def _spending_of_sample(self, sample: float, name: str) -> BudgetAllocator:
        """What a sample is worth. It is paid for when something is released, and not where that is refused before."""
        self.till.refuse_other_neighbours()
        inner = amplified_budget(_within(self.budget, self.arithmetic), sample)
        try:
            return self._new_spending(
                inner, None, self.stream, self.arithmetic, name, on_first=self.reserve_everything
            )
        except InvalidParameter as error:
            remedy = f"would let the fit spend epsilon={inner.epsilon:.4g} on the sample, which {error.requirement}"
            raise InvalidParameter("sample", sample, remedy) from None

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
        self.till.refuse_other_neighbours()
        event = _black_box(_within(self.budget, self.arithmetic))
        self.till.pay(event, name=str(self.plan.settings["run"]))
        return replace(self.budget, epsilon=event.epsilon, delta=event.delta)

    def certificate(self, not_covered: tuple[str, ...]) -> Certificate:
        """What was spent and what it proves."""
        distance = 0.0 if self._spending is None else self._spending.distance
        return Certificate.of(
            self.till.ledger,
            self.plan,
            arithmetic=self._certified_arithmetic(distance * (1 + 1e-12)),
            trusted=self.stream.trusted and self.tape is None,
            not_covered=not_covered,
        )

    def _certified_arithmetic(self, distance: float) -> CertifiedArithmetic:
        """With the distance that was kept back for; where others share the ledger, with the one that was needed.

        The first makes the guarantee the very budget that was asked for.
        """
        if self.arithmetic == "float":
            return CertifiedArithmetic()
        if self.sampled:  # what was spent on the sample has room for its own distance
            distance = _NONE
        rule = self.plan.rule.budget
        spare = Fraction(self.budget.delta) - Fraction(rule.delta)
        planned = float(spare / (1 + Fraction(math.exp(rule.epsilon) * (1 + 1e-14)))) * (1 - 1e-14)
        return CertifiedArithmetic("hardened", planned if self.alone and distance <= planned else distance)


@contextmanager
def open_budget(
    name: str,
    settings: Mapping[str, Any],
    budget: Budget,
    ledger: AnyLedger,
    ledger_key: KeyFile,
    unsafe_seed: int | None,
    arithmetic: Arithmetic,
    *,
    staged: bool = True,
    sample: float | None = None,
    earlier: Mapping[str, Budget | None] | None = None,
    log: PublicLog | None = None,
    tape: Tape | None = None,
) -> Iterator[FitBudget]:
    """Open the ledger for one fit, and close it again if it was opened here.

    ``staged`` fits spend by a Gaussian filter; others, and those of a secret ``sample`` under add-remove neighbours,
    reserve their whole budget as one release. ``earlier`` has the digests of the plans that made the model so
    far, and the budget of each: the plan of a fit that goes on from it answers for all of them together. A fit whose
    sums go onto a ``tape`` is not certified as private.
    """
    staged = staged and not (sample is not None and budget.neighbours == "add-remove")
    spent = _within(budget, arithmetic)
    rule: SpendingRule = GaussianFilter(spent, spare=0.0) if staged else FixedPlan(_black_box(spent), spent)
    plan = Plan.adaptive(name, rule, {**settings, "run": run_name(name, log)})
    with Till.open(ledger, plan, key=ledger_key) as opened:
        if earlier:
            plan = _continue(plan, opened.ledger.rule, budget, earlier, staged)
        till = Till.open(opened.ledger, plan)
        stream = system_stream() if unsafe_seed is None else RandomStream(unsafe_seed=unsafe_seed)
        till.seeded = not stream.trusted
        yield FitBudget(budget, till, plan, stream, arithmetic, ledger is None, log, sample, tape)


def _continue(
    plan: Plan, ledger: SpendingRule, budget: Budget, earlier: Mapping[str, Budget | None], staged: bool
) -> Plan:
    """The plan of a fit that goes on from others: it promises what all of them cost together.

    If all have the same budget and spend it by Gaussian noise, m fits are as private as one with noise that is
    smaller by the root of m. This is proved for each number m: for the process that stops after m fits at the
    latest, whatever the releases of each fit depend on. It does not cover an m that is chosen by what earlier fits
    showed; then, and where budgets differ, all that can be promised is what the ledger promises of everything.
    """
    known = staged and isinstance(ledger, GaussianFilter) and set(earlier.values()) == {budget}
    if not known or budget.delta <= 0:
        return Plan.adaptive(plan.name, ledger, plan.settings)
    one = gaussian_mu(budget.epsilon, budget.delta)
    epsilon = gaussian_epsilon(budget.delta * (1 - LEDGER_SPARE), one * math.sqrt(1 + len(earlier)))
    rule: SpendingRule = GaussianFilter(replace(budget, epsilon=epsilon * (1 + 1e-9)))
    if rule.budget.epsilon >= ledger.budget.epsilon and budget.delta >= ledger.budget.delta:
        rule = ledger  # which has room for no more
    return Plan.adaptive(plan.name, rule, {**plan.settings, "continues": list(earlier)})


def run_name(name: str, log: PublicLog | None = None) -> str:
    """A name of its own for a fit, or the one under which it began."""
    return f"{name}-{os.urandom(8).hex()}" if log is None else log.run


def _within(budget: Budget, arithmetic: Arithmetic) -> Budget:
    """What the releases may cost if the noise were continuous."""
    if arithmetic != "hardened":
        return budget
    return replace(budget, delta=budget.delta * (1 - SPARED_DELTA_OF_FIT))


def _black_box(budget: Budget) -> ApproximateDP:
    """All of the budget but what the rounding of the accountant may add."""
    return ApproximateDP(budget.epsilon * (1 - 1e-12), budget.delta)


_NONE = 1e-300  # a distance of 0, rounded up
