"""Charging a plan to a ledger, and the meaning of ``ledger=`` in every engine.

==========================  ==================================================================================
``ledger=``                 what is charged
==========================  ==================================================================================
a ``Ledger``                that one; it stays open
a path                      the ledger there; if there is none, one is begun for this plan alone
``"postgresql://..."``      the same in a database, with the ledger's key file: ``ledger_key="ledger.key"``
None                        a ledger in memory, for this plan alone
==========================  ==================================================================================

>>> from discreet.events import Gaussian
>>> from discreet.guarantee import Budget
>>> from discreet.ledger.filters import GaussianFilter
>>> with Till.open(None, GaussianFilter(Budget(epsilon=1.0, delta=1e-6))) as till:
...     till.pay(Gaussian(40.0), times=20, name="counts")
...     till.ledger.remaining(Gaussian(40.0))
69
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from discreet.errors import InvalidParameter
from discreet.events import Event
from discreet.guarantee import Budget
from discreet.ledger import ledger_texts
from discreet.ledger.filters import FixedPlan, SpendingRule
from discreet.ledger.interfaces import Planned
from discreet.ledger.ledger import Ledger
from discreet.ledger.ledger_log import Run
from discreet.ledger.ledger_state import Anchor

AnyLedger = Ledger | str | os.PathLike[str] | None
"""What ``ledger=`` may be."""

KeyFile = str | os.PathLike[str] | None
"""What ``ledger_key=`` may be: the key file of a ledger that does not lie beside it."""


class Till:
    """A plan and the ledger that pays for it. Made by :meth:`open`.

    Guarantee: what was paid for is in the ledger, on disk if it has one, when :meth:`pay` or a step of :meth:`run`
    returns; all that was ever paid is within the ledger's budget, and nothing is refunded.
    """

    def __init__(
        self,
        ledger: Ledger,
        rule: SpendingRule,
        digest: str | None = None,
        data: str | None = None,
        *,
        closes: bool = False,
    ) -> None:
        self.ledger, self.rule = ledger, rule
        self._digest, self._data, self._closes = digest, data, closes
        self.seeded = False
        """Whether a seed makes the noise of what is paid for: the ledger then says so of its runs."""

    @classmethod
    def open(
        cls,
        ledger: AnyLedger,
        plan: Planned | SpendingRule,
        *,
        key: KeyFile = None,
        data: str | None = None,
        digest: str | None = None,
    ) -> Till:
        """Open what ``ledger`` says, to pay for ``plan``; the table above has all cases.

        ``plan`` may be a bare rule: then runs are known by the digest of what they release, or by ``digest``.
        ``data`` is the name of the data set: see :meth:`~discreet.ledger.Ledger.run`.

        Guarantee: a ledger that was lost is not begun anew while its key file is there.
        """
        if isinstance(plan, SpendingRule):
            rule = plan
        else:
            rule, digest = plan.rule, plan.digest()
        with ledger_texts.name_as_typed():
            found = _ledger(ledger, rule, key)
            try:
                _refuse_another_unit(found.rule.budget, rule.budget)
                _refuse_a_public_number(found.rule.budget, rule.budget)
            except InvalidParameter:
                if found is not ledger:
                    found.close()
                raise
        return cls(found, rule, digest, data, closes=found is not ledger)

    def pay(
        self,
        event: Event | None = None,
        times: int | None = None,
        *,
        name: str = "run",
        distance: float = 0.0,
    ) -> None:
        """Pay for ``event``, or so many of it, at once in a run of this name; without ``event``, for a fixed plan."""
        bought = self._planned_event() if event is None else event if times is None else event * times
        run = self.run(name, bought, distance)
        for part, number in bought.parts():
            run.reserve(number, part)

    def run(self, name: str, event: Event | None = None, distance: float = 0.0) -> Run:
        """Begin the run ``name``, or take it over, to pay for it step by step.

        ``event`` is all that the run may release; it can be left out for a fixed plan. ``distance`` is how far the
        distribution of all its releases is from the event's: see :meth:`~discreet.ledger.Ledger.run`.
        """
        event = self._planned_event() if event is None else event
        digest = self._digest or event.digest()
        run = self.ledger.run(event, digest, name=name, data=self._data, distance=distance)
        run.seeded = self.seeded
        return run

    def refuse_other_neighbours(self) -> None:
        """Raise unless ledger and plan speak of the same neighbours: a release that is known by its epsilon alone,
        which was proved for those of the plan, would be booked as one for those of the ledger."""
        ours, theirs = self.rule.budget.neighbours, self.ledger.rule.budget.neighbours
        if ours != theirs:
            raise InvalidParameter("ledger", theirs, ledger_texts.other_neighbours(theirs, ours))

    def free_name(self, name: str) -> str:
        """``name`` with the first number that no run of the ledger has."""
        taken = {run.partition("/")[0] for run in self.ledger.runs()}
        return next(free for number in count(1) if (free := f"{name}-{number}") not in taken)

    def insist_on(self, anchor: Anchor) -> None:
        """Refuse a ledger that is older than ``anchor``: what was spent in between would be forgotten."""
        self.ledger._check_anchor(anchor)

    def _planned_event(self) -> Event:
        if isinstance(self.rule, FixedPlan):
            return self.rule.event
        raise InvalidParameter("event", None, "is needed: this plan chooses its releases along the way.")

    def close(self) -> None:
        """Let go of the ledger, if it was opened here."""
        if self._closes:
            self.ledger.close()

    def __enter__(self) -> Till:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _ledger(ledger: object, rule: SpendingRule, key: object) -> Ledger:
    if not isinstance(key, str | os.PathLike | None):
        raise InvalidParameter("ledger_key", type(key).__name__, ledger_texts.KEY_ITSELF)
    if key is not None and (ledger is None or isinstance(ledger, Ledger)):
        raise InvalidParameter("ledger_key", str(key), ledger_texts.KEY_OF_AN_OPEN_LEDGER)
    if ledger is None:
        return Ledger.in_memory(rule)
    if isinstance(ledger, Ledger):
        return ledger
    if not isinstance(ledger, str | os.PathLike):
        remedy = "must be a Ledger, the path of one, a postgresql:// address, or None."
        raise InvalidParameter("ledger", type(ledger).__name__, remedy)
    place = ledger if isinstance(ledger, str) else Path(ledger)
    return Ledger.open_or_create(place, rule, key=None if key is None else Path(key))


def _refuse_another_unit(ledger: Budget, plan: Budget) -> None:
    """Raise unless both protect the same: what a record costs and what a person costs do not add up."""
    if ledger.unit != plan.unit:
        remedy = f"protects one {ledger.unit}, and this plan one {plan.unit}: keep a ledger for each unit."
        raise InvalidParameter("ledger", ledger.unit, remedy)


def _refuse_a_public_number(ledger: Budget, plan: Budget) -> None:
    """Raise if a ledger that hides how many records there are would pay for a plan to which that is public.

    Such a plan may release the number, which costs nothing there.
    """
    if (ledger.neighbours, plan.neighbours) == ("add-remove", "replace-one"):
        raise InvalidParameter("ledger", ledger.neighbours, ledger_texts.HIDES_THE_NUMBER)
