"""What ledgers and runs answer to people, computed from what the trusted part says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from discreet.events import Composition, Event
from discreet.guarantee import Guarantee
from discreet.ledger.book import Statement


class LedgerViews(ABC):
    """What a ledger says of all its runs together."""

    @abstractmethod
    def statement(self) -> Statement:
        """What the ledger says now."""

    def spent(self) -> Event | None:
        """All that was reserved, as one event; None if nothing was."""
        spent = self.statement().spent()
        return Composition(tuple(spent.items())) if spent else None

    def guarantee(self) -> Guarantee:
        """What is promised of everything released under this ledger, computed anew from its events.

        Its delta is that of the budget. Where the rule holds nothing back for noise in integers, as in ledgers of
        versions before 0.2, what such noise adds comes on top.
        """
        statement = self.statement()
        return statement.rule.at_distance(statement.rule.guarantee(statement.spent()), statement.distance)


class RunViews(ABC):
    """The steps of a run as a loop."""

    _paid: dict[Event, range]

    @abstractmethod
    def next_step(self, event: Event | None = None, *, lease: int | None = None) -> int:
        """The number of the next step, which is paid for."""

    @abstractmethod
    def remaining(self, event: Event | None = None) -> int:
        """How many steps of ``event`` this run's plan still holds."""

    @abstractmethod
    def _planned_event(self, event: Event | None) -> Event: ...

    @abstractmethod
    def _commit_given(self) -> None: ...

    def steps(self, event: Event | None = None, *, lease: int | None = None) -> Iterator[int]:
        """The numbers of all steps of ``event`` that the plan still holds, each paid for when it is given out.

        Ask for the next one when the last has been released. Steps are paid for ``lease`` at a time, by default
        a hundredth of the plan: a run of any length is charged in some hundred writes, and a crash loses at most
        a hundredth of it. Steps left over by a loop that ended early are given out first next time.
        """
        event = self._planned_event(event)
        while self._paid.get(event) or self.remaining(event):
            yield self.next_step(event, lease=lease)
        self._commit_given()
