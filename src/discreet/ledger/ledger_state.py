"""What the entries of a ledger say. Entries are JSON, there are seven kinds, and they only ever add up.

    ["ledger", format, name, rule]                 the first entry: the rule by which the ledger spends
    ["run", run, plan, data, event, distance]      a run is opened: its plan's hash, its data, what it may release,
                                                   and how far the distribution of all of it is from the event's, in
                                                   total variation; left out if that is 0
    ["resume", run, attempt]                       a new attempt takes it over; the attempt before may not go on
    ["reserve", run, attempt, step, steps, part, done, "seed"]
                                                   so many steps of one part of the run's event are spent, from
                                                   ``step`` on, whether or not they will happen; "seed" is left out
                                                   unless a seed makes their noise, so that they are not private
    ["commit", run, attempt, done]                 the attempt's steps up to ``done`` have happened
    ["mark", run, attempt, place]                  the run may have come as far as ``place``, in whatever it counts
                                                   beside steps; costs nothing
    ["issued", kind, digest]                       a certificate or a report with this SHA-256 was issued; costs
                                                   nothing

Nothing here reads a clock, and no entry holds an epsilon: what was spent is a collection of events.

**How a ledger notices that it was altered**: a hash chain, a keyed seal on its head, and an anchor elsewhere.

* The hash of a ledger is the SHA-256 of its entries, one per line. Each entry continues the hash of those before
  it, so the last hash stands for all of them, and anybody can recompute it, even with ``sha256sum``.
* The head (the number and hash of the last entry) is sealed with a key kept outside the database. There is one
  seal, and each new entry overwrites it: who cannot make seals can neither alter, add nor cut off entries.
* An old copy of the whole database is still in order. Only someone who remembers a later head can tell; an
  :class:`Anchor` is such a memory, to be kept in checkpoints, certificates and with other parties.

>>> from discreet import Budget, Gaussian
>>> from discreet.ledger import FixedPlan, Ledger
>>> event = Gaussian(noise_multiplier=20.0) * 10
>>> with Ledger.in_memory(FixedPlan(event, Budget(epsilon=1.0, delta=1e-5))) as ledger:
...     lease = ledger.run(event, plan_hash=event.digest()).reserve(4)
...     Statement.of_entries(ledger.entries()).to_dict() == ledger.statement().to_dict()
True
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from discreet.errors import DiscreetError, InvalidParameter, LedgerCorrupted, real, whole
from discreet.events import Event
from discreet.ledger import ledger_texts
from discreet.ledger.filters import SpendingRule
from discreet.ledger.store import LedgerRow

FORMAT = 2
Entry = list[Any]
Issued = Literal["certificate", "report"]
"""What a ledger may say was issued under it."""

_NO_SENSE = DiscreetError, ValueError, LookupError, TypeError, RecursionError, AttributeError


@dataclass
class RunRecord:
    """What the ledger knows of one run. Steps count from 1; ``taken`` counts those of each part of the event."""

    name: str
    plan_hash: str
    event: Event
    data: str | None = None
    attempt: int = 1
    reserved: int = 0
    committed: int = 0
    reserved_before: int = 0
    marked: int = 0
    taken: list[int] = field(default_factory=list)
    distance: float = 0.0
    seeded: bool = False
    """Whether a seed made noise of the run, in any attempt."""

    def left(self, event: Event) -> int:
        """How many steps of ``event`` the run's plan still holds."""
        parts = zip(self.event.parts(), self.taken, strict=True)
        return sum(count - taken for (part, count), taken in parts if part == event)


class LedgerState:
    """The entries read so far, added up.

    Only entries that make sense after those before are taken; all others raise
    :class:`~discreet.errors.LedgerCorrupted`. Whether nobody altered them is for the reader of :attr:`hash` to say.
    """

    rule: SpendingRule

    def __init__(self) -> None:
        self.name = ""
        self.sequence = -1
        self.runs: dict[str, RunRecord] = {}
        self.issued: set[tuple[str, str]] = set()
        self._state = hashlib.sha256()
        self._before_issued: Anchor | None = None

    @property
    def hash(self) -> str:
        """The hash of all entries."""
        return self._state.hexdigest()

    @property
    def head(self) -> Anchor:
        """The number and the hash of the last entry."""
        return Anchor(self.sequence, self.hash)

    @property
    def last_spending(self) -> Anchor:
        """The head before the trailing entries that only say what was issued.

        Issuing a certificate therefore does not change what the next certificate of the same spending says.
        """
        return self._before_issued or self.head

    def spent(self) -> dict[Event, int]:
        """All that was reserved: simple events, and how often."""
        return _spent_by(self.runs.values())

    def follow(self, entries: Iterable[str]) -> None:
        """Take the entries that come next."""
        for text in entries:
            try:
                kind, *fields = json.loads(text)
                self._before_issued = self.last_spending if kind == "issued" else None
                getattr(self, f"_take_{kind}")(*fields)
                self._state.update(_line(text))
            except _NO_SENSE as error:
                raise LedgerCorrupted(ledger_texts.no_sense(self.sequence + 1, error)) from error
            self.sequence += 1

    def _take_ledger(self, format: int, name: str, rule: object) -> None:
        _insist(self.sequence == -1, "a ledger has one first entry")
        _insist(format == FORMAT, f"format {format} is not known to this version")
        self.name, self.rule = name, SpendingRule.from_dict(rule)

    def _take_run(
        self, name: str, plan: str, data: str | None, event: object, distance: object = 0.0
    ) -> None:
        _insist(self.sequence >= 0, "the first entry is missing")
        _insist(name not in self.runs, "the run exists")
        planned, apart = Event.from_dict(event), checked_distance(distance)
        self.runs[name] = RunRecord(
            name, plan, planned, data, taken=[0] * len(planned.parts()), distance=apart
        )

    def _take_resume(self, name: str, attempt: int) -> None:
        record = self.runs[name]
        _insist(attempt == record.attempt + 1, "an attempt is missing")
        record.attempt, record.reserved_before = attempt, record.reserved

    def _take_reserve(
        self, name: str, attempt: int, step: int, steps: int, part: int, done: int, *randomness: str
    ) -> None:
        record = self._current(name, attempt)
        _insist(step == record.reserved + 1 and steps > 0 and part >= 0, "its steps do not follow")
        _insist(record.committed <= done < step, "its steps cannot have happened")
        _insist(randomness in ((), ("seed",)), "its randomness is not known to this version")
        record.reserved += steps
        record.committed = done
        record.taken[part] += steps
        record.seeded |= bool(randomness)

    def _take_commit(self, name: str, attempt: int, done: int) -> None:
        record = self._current(name, attempt)
        _insist(record.committed < done <= record.reserved, "its step was not reserved")
        record.committed = done

    def _take_mark(self, name: str, attempt: int, place: int) -> None:
        record = self._current(name, attempt)
        _insist(type(place) is int and record.marked < place, "a mark moves forward only")
        record.marked = place

    def _take_issued(self, kind: str, digest: str) -> None:
        _insist(kind in get_args(Issued), "nothing of this kind is issued")
        self.issued.add((kind, hex_digest("digest", digest)))

    def _current(self, name: str, attempt: int) -> RunRecord:
        record = self.runs[name]
        _insist(attempt == record.attempt, "the attempt was over")
        return record

    def next_row(self, entry: Entry) -> LedgerRow:
        """``entry`` as the row that follows."""
        text = _canonical(entry)
        slot = _canonical(entry[:4])[:-1] if entry[0] == "reserve" else ""
        return LedgerRow(self.sequence + 1, slot or None, text[len(slot) :])

    def hash_after(self, row: LedgerRow) -> str:
        """The hash of all entries and of this next one."""
        state = self._state.copy()
        state.update(_line(row.text))
        return state.hexdigest()


def first_entry(rule: SpendingRule) -> Entry:
    """The entry that begins a ledger. The random name keeps any two ledgers apart."""
    return ["ledger", FORMAT, secrets.token_hex(16), rule.to_dict()]


def checked_distance(distance: object) -> float:
    """A bound on a total variation distance, or :class:`~discreet.errors.InvalidParameter`."""
    return real("distance", distance, at_least=0, below=1, remedy="It bounds a total variation distance.")


def _canonical(entry: Entry) -> str:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"))


def _line(entry: str) -> bytes:
    """An entry as it is hashed. Entries are JSON and hold no line break, so lines and entries are the same."""
    return f"{entry}\n".encode()


def _insist(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


# What a ledger says at one moment, as a value: its rule, its runs, and the head of all entries. It can be published:
# it holds events and counts of steps, no clock and nothing about the data. Whoever has the entries can make it again,
# without the key.


@dataclass(frozen=True)
class RunStatement:
    """One run: the event that it may carry out, and how many steps of each part are spent."""

    name: str
    plan_hash: str
    event: Event
    taken: tuple[int, ...]
    distance: float = 0.0
    seeded: bool = field(default=False, compare=False)
    """Whether the entries say that a seed made noise of the run. Certificates say so in their own words."""

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
        object.__setattr__(self, "distance", checked_distance(self.distance))

    def to_dict(self) -> dict[str, Any]:
        """The run as plain data for JSON; without a distance it is what it was before there were any."""
        data = asdict(self) | {"event": self.event.to_dict(), "taken": list(self.taken)}
        left_out = {"seeded"} if self.distance else {"seeded", "distance"}
        return {key: value for key, value in data.items() if key not in left_out}


@dataclass(frozen=True)
class Statement:
    """The rule, the runs and the head of a ledger, all of one moment; see :attr:`LedgerState.last_spending`."""

    rule: SpendingRule
    runs: tuple[RunStatement, ...]
    anchor: Anchor

    @classmethod
    def of_book(cls, ledger_state: LedgerState) -> Statement:
        """What these entries say."""
        runs = (
            RunStatement(run.name, run.plan_hash, run.event, tuple(run.taken), run.distance, run.seeded)
            for run in ledger_state.runs.values()
        )
        return cls(ledger_state.rule, tuple(runs), ledger_state.last_spending)

    @classmethod
    def of_entries(cls, entries: Iterable[str]) -> Statement:
        """The same from the entries as text: their chain and their sense are checked on the way."""
        ledger_state = LedgerState()
        ledger_state.follow(entries)
        return cls.of_book(ledger_state)

    def spent(self, *plan_hashes: str) -> dict[Event, int]:
        """All steps that were reserved, or those under some plans: simple events, and how often."""
        return _spent_by(run for run in self.runs if not plan_hashes or run.plan_hash in plan_hashes)

    @property
    def distance(self) -> float:
        """How far the distribution of all releases is from the one of their events, at most; rounded up."""
        return min(1.0, math.fsum(run.distance for run in self.runs) * (1 + 1e-15))

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain data for JSON."""
        runs = [run.to_dict() for run in self.runs]
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
    event, taken = Event.from_dict(fields.pop("event")), tuple(fields.pop("taken"))
    return RunStatement(event=event, taken=taken, seeded=False, **fields)


def _spent_by(runs: Iterable[RunRecord | RunStatement]) -> dict[Event, int]:
    """All steps that these runs have reserved: simple events, and how often."""
    total: dict[Event, int] = {}
    for run in runs:
        for (event, _), taken in zip(run.event.parts(), run.taken, strict=True):
            if taken:
                total[event] = total.get(event, 0) + taken
    return total


def seal_of(key: bytes, sequence: int, head: str) -> str:
    """The seal of a ledger whose last entry has this number and hash."""
    return hmac.digest(key, f"discreet ledger head {sequence} {head}".encode(), "sha256").hex()


@dataclass(frozen=True)
class Anchor:
    """A head of a ledger, remembered outside of it: entry number ``sequence`` had this hash."""

    sequence: int
    hash: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "sequence", whole("sequence", self.sequence, at_least=0))
        hex_digest("hash", self.hash)

    @classmethod
    def of(cls, entries: Iterable[str]) -> Anchor:
        """The anchor of a ledger with these entries. It needs no key, so anybody can check an anchor."""
        lines = list(map(_line, entries))
        return cls(len(lines) - 1, hashlib.sha256(b"".join(lines)).hexdigest())

    def to_json(self) -> str:
        """The anchor as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Anchor:
        """The inverse of :meth:`to_json`."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise InvalidParameter("anchor", text, "is not JSON text written by Anchor.to_json().") from None


def hex_digest(name: str, value: object) -> str:
    """Return ``value`` if it is a SHA-256 digest in hexadecimal, or raise."""
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return value
    raise InvalidParameter(name, value, "must be a SHA-256 digest: 64 hexadecimal digits, in lower case.")
