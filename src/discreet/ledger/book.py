"""What the entries of a ledger say. Entries are JSON, there are five kinds, and they only ever add up.

    ledger   the first entry: the rule by which the ledger spends
    run      a run is opened: its name, its plan's hash, the event it may carry out
    resume   a run is taken over by a new attempt; the attempt before may not go on
    reserve  so many steps of one part of the run's event are spent, whether or not they will happen
    commit   the attempt's steps up to this one have happened

Nothing here reads a clock, and no entry holds an epsilon: what was spent is a collection of events.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from discreet.errors import DiscreetError
from discreet.events import Event
from discreet.ledger.filters import SpendingRule
from discreet.ledger.seal import BEFORE_FIRST, LedgerCorrupted, chained
from discreet.ledger.store import Row

FORMAT = 1
Entry = dict[str, Any]


@dataclass
class RunRecord:
    """What the ledger knows of one run. Steps count from 1; ``taken`` counts those of each part of the event."""

    name: str
    plan_hash: str
    event: Event
    attempt: int = 1
    reserved: int = 0
    committed: int = 0
    reserved_before: int = 0
    taken: list[int] = field(default_factory=list)

    def left(self, event: Event) -> int:
        """How many steps of ``event`` the run's plan still holds."""
        return sum(
            count - taken
            for (part, count), taken in zip(self.event.parts(), self.taken, strict=True)
            if part == event
        )


class Book:
    """The entries read so far, added up, and the number and hash of the last one.

    Only entries that are next in the chain and make sense after those before are taken; all others raise
    :class:`~discreet.ledger.seal.LedgerCorrupted`.
    """

    rule: SpendingRule

    def __init__(self) -> None:
        self.sequence = -1
        self.hash = BEFORE_FIRST
        self.runs: dict[str, RunRecord] = {}

    def spent(self) -> dict[Event, int]:
        """All that was reserved: simple events, and how often."""
        total: dict[Event, int] = {}
        for record in self.runs.values():
            for (event, _), taken in zip(record.event.parts(), record.taken, strict=True):
                if taken:
                    total[event] = total.get(event, 0) + taken
        return total

    def follow(self, rows: Iterable[Row]) -> None:
        """Take the entries that come next."""
        rows = iter(rows)
        while chunk := list(islice(rows, 4096)):
            sequence, hash = self._chained(chunk)
            try:
                self._take(chunk)
            except (DiscreetError, ValueError, LookupError, TypeError, RecursionError) as error:
                raise LedgerCorrupted(f"An entry of the ledger makes no sense: {error}.") from error
            self.sequence, self.hash = sequence, hash

    def _chained(self, rows: list[Row]) -> tuple[int, str]:
        """The number and hash of the last of ``rows``, each of which follows the one before."""
        sequence, hash = self.sequence, self.hash
        for row in rows:
            sequence, hash = sequence + 1, chained(hash, str(row.entry))  # a damaged file may hold any type
            if row.sequence != sequence or row.hash != hash:
                raise LedgerCorrupted(
                    f"Entry {sequence} of the ledger was altered, removed or added by another hand. "
                    "Restore the ledger from a backup and open it with its anchor."
                )
        return sequence, hash

    def _take(self, rows: list[Row]) -> None:
        entries = json.loads(
            f"[{','.join([row.entry for row in rows])}]"
        )  # one by one takes three times as long
        for row, entry in zip(rows, entries, strict=True):
            _insist((row.run, row.step, row.attempt) == slot(entry), "its columns contradict it")
            _TAKE[entry["kind"]](self, entry)

    def next_row(self, entry: Entry) -> Row:
        """``entry`` as the row that follows."""
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        return Row(self.sequence + 1, *slot(entry), text, chained(self.hash, text))

    def _take_ledger(self, entry: Entry) -> None:
        _insist(self.sequence == -1, "a ledger has one first entry")
        _insist(entry["format"] == FORMAT, f"format {entry['format']} is not known to this version")
        self.rule = SpendingRule.from_dict(entry["rule"])

    def _take_run(self, entry: Entry) -> None:
        _insist(entry["run"] not in self.runs, "the run exists")
        event = Event.from_dict(entry["event"])
        record = RunRecord(entry["run"], entry["plan"], event, taken=[0] * len(event.parts()))
        self.runs[record.name] = record

    def _take_resume(self, entry: Entry) -> None:
        record = self.runs[entry["run"]]
        _insist(entry["attempt"] == record.attempt + 1, "an attempt is missing")
        record.attempt, record.reserved_before = entry["attempt"], record.reserved

    def _take_reserve(self, entry: Entry) -> None:
        record, steps = self.runs[entry["run"]], entry["steps"]
        _insist(entry["attempt"] == record.attempt, "the attempt was over")
        _insist(entry["step"] == record.reserved + 1 and steps > 0, "its steps do not follow")
        record.reserved += steps
        record.taken[entry["part"]] += steps

    def _take_commit(self, entry: Entry) -> None:
        record = self.runs[entry["run"]]
        _insist(entry["attempt"] == record.attempt, "the attempt was over")
        _insist(record.committed < entry["step"] <= record.reserved, "its step was not reserved")
        record.committed = entry["step"]


_TAKE: dict[str, Callable[[Book, Entry], None]] = {
    "ledger": Book._take_ledger,
    "run": Book._take_run,
    "resume": Book._take_resume,
    "reserve": Book._take_reserve,
    "commit": Book._take_commit,
}


def first_entry(rule: SpendingRule) -> Entry:
    """The entry that begins a ledger. The random name keeps any two ledgers apart."""
    return {"kind": "ledger", "format": FORMAT, "name": secrets.token_hex(16), "rule": rule.to_dict()}


def slot(entry: Entry) -> tuple[str | None, int | None, int | None]:
    """What the database must not see twice: (run, first step, attempt) of a reservation."""
    if entry["kind"] == "reserve":
        return entry["run"], entry["step"], entry["attempt"]
    return None, None, None


def _insist(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
