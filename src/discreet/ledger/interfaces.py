"""Types that a ledger asks of plans and databases, for type checkers. Nothing here runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from discreet.ledger.filters import SpendingRule
from discreet.ledger.store import Head, LedgerRow, Transaction


class Planned(Protocol):
    """What a till asks of a plan: the rule that it spends by, and the name by which ledgers know it."""

    @property
    def rule(self) -> SpendingRule:
        """The rule of a ledger for this plan alone."""

    def digest(self) -> str:
        """SHA-256 of the plan."""


class Store(Protocol):
    """A database that holds one ledger."""

    @classmethod
    def occupant(cls, place: Path | str) -> str:
        """Name the ledger, or anything else, that ``place`` holds; empty if it is free."""

    @classmethod
    def create(cls, place: Path | str, row: LedgerRow, head: Head) -> None:
        """Make a ledger with its first entry at ``place``, all at once or not at all."""

    @classmethod
    def existing(cls, place: Path | str) -> Store:
        """The store at ``place``, which must hold a ledger, after checking that it keeps what it is given."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """An exclusive transaction, durable when it ends well and undone when it does not."""

    def close(self) -> None:
        """Let go of the database."""
