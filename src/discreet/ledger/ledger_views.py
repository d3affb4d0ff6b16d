"""What a ledger answers to people, computed from what the trusted part says."""

from __future__ import annotations

from abc import ABC, abstractmethod

from discreet.events import Composition, Event
from discreet.guarantee import Guarantee
from discreet.ledger.ledger_state import Statement


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
