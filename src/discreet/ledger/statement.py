"""What a ledger says at one moment, as a value: its rule, its runs, and the head that stands for all entries.

A statement can be published. It holds events and counts of steps, no clock and nothing about the data. Whoever has
the entries can make it again, without the key:

>>> from discreet import Budget, Gaussian
>>> from discreet.ledger import FixedPlan, Ledger
>>> event = Gaussian(noise_multiplier=20.0) * 10
>>> with Ledger.in_memory(FixedPlan(event, Budget(epsilon=1.0, delta=1e-5))) as ledger:
...     lease = ledger.run(event, plan_hash=event.digest()).reserve(4)
...     Statement.of_entries(ledger.entries()).to_dict() == ledger.statement().to_dict()
True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from discreet.errors import InvalidParameter, whole
from discreet.events import Event
from discreet.ledger.book import Book
from discreet.ledger.filters import SpendingRule
from discreet.ledger.seal import Anchor, hex_digest


@dataclass(frozen=True)
class RunStatement:
    """One run: the event that it may carry out, and how many steps of each part are spent."""

    name: str
    plan_hash: str
    event: Event
    taken: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and isinstance(self.event, Event)):
            raise InvalidParameter("run", self.name, "is not a run of a ledger.")
        hex_digest("plan_hash", self.plan_hash)
        counts = [count for _, count in self.event.parts()]
        if len(self.taken) != len(counts):
            raise InvalidParameter("taken", self.taken, f"must hold {len(counts)} numbers of steps.")
        taken = (
            whole("taken", taken, at_least=0, at_most=count, remedy="A run takes no step beyond its plan.")
            for taken, count in zip(self.taken, counts, strict=True)
        )
        object.__setattr__(self, "taken", tuple(taken))


@dataclass(frozen=True)
class Statement:
    """The rule, the runs and the head of a ledger, all of one moment."""

    rule: SpendingRule
    runs: tuple[RunStatement, ...]
    anchor: Anchor

    @classmethod
    def of_book(cls, book: Book) -> Statement:
        """What these entries say."""
        runs = (
            RunStatement(run.name, run.plan_hash, run.event, tuple(run.taken)) for run in book.runs.values()
        )
        return cls(book.rule, tuple(runs), Anchor(book.sequence, book.hash))

    @classmethod
    def of_entries(cls, entries: Iterable[str]) -> Statement:
        """The same from the entries as text: their chain and their sense are checked on the way."""
        book = Book()
        book.follow(entries)
        return cls.of_book(book)

    def spent(self, plan_hash: str | None = None) -> dict[Event, int]:
        """All steps that were reserved, or those under one plan: simple events, and how often."""
        total: dict[Event, int] = {}
        for run in self.runs:
            if plan_hash in (None, run.plan_hash):
                for (event, _), taken in zip(run.event.parts(), run.taken, strict=True):
                    if taken:
                        total[event] = total.get(event, 0) + taken
        return total

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain data for JSON."""
        runs = [asdict(run) | {"event": run.event.to_dict(), "taken": list(run.taken)} for run in self.runs]
        return {"rule": self.rule.to_dict(), "runs": runs, "anchor": asdict(self.anchor)}

    @classmethod
    def from_dict(cls, data: object) -> Statement:
        """The inverse of :meth:`to_dict`; anything else is refused."""
        try:
            fields: dict[str, Any] = dict(data)  # type: ignore[call-overload]
            runs = tuple(_run(run) for run in fields.pop("runs"))
            statement = cls(SpendingRule.from_dict(fields.pop("rule")), runs, Anchor(**fields.pop("anchor")))
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidParameter("ledger", data, f"is not what a ledger says ({error}).") from None
        if fields or len({run.name for run in runs}) < len(runs):
            raise InvalidParameter("ledger", data, "is not what a ledger says.")
        return statement


def _run(data: dict[str, Any]) -> RunStatement:
    fields = dict(data)
    return RunStatement(
        event=Event.from_dict(fields.pop("event")), taken=tuple(fields.pop("taken")), **fields
    )
