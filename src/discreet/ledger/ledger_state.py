"""The entries of a ledger and the state that they add up to. Entries are JSON, of seven kinds:

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
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from discreet.errors import DiscreetError, InvalidParameter, LedgerCorrupted, real, whole
from discreet.events import Event
from discreet.ledger import ledger_texts
from discreet.ledger.filters import SpendingRule

FORMAT = 2
Entry = list[Any]
Issued = Literal["certificate", "report"]
"""Documents whose digests a ledger records."""

_NO_SENSE = DiscreetError, ValueError, LookupError, TypeError, RecursionError, AttributeError


@dataclass(frozen=True)
class RunRecord:
    """One run: the event that it may carry out, and how many steps of each part of it are spent.

    Steps count from 1. The fields after ``distance`` are in the entries alone and not in certificates, which state in
    words of their own whether a seed made the noise.
    """

    name: str
    plan_hash: str
    event: Event
    taken: tuple[int, ...]
    distance: float = 0.0
    seeded: bool = field(default=False, compare=False)
    """Whether a seed made noise of the run, in any attempt."""
    data: str | None = field(default=None, compare=False)
    attempt: int = field(default=1, compare=False)
    committed: int = field(default=0, compare=False)
    reserved_before: int = field(default=0, compare=False)
    marked: int = field(default=0, compare=False)

    @classmethod
    def of(
        cls, name: object, plan_hash: object, event: object, taken: Iterable[object] | None, distance: object
    ) -> RunRecord:
        """Return the run of plain data, or raise. Without ``taken`` no step is spent."""
        if not isinstance(name, str):
            raise InvalidParameter("run", name, "is not a run of a ledger.")
        planned = Event.from_dict(event)
        counts = [count for _, count in planned.parts()]
        steps = tuple(
            whole("taken", number, at_least=0, at_most=count, remedy="A run takes no step beyond its plan.")
            for number, count in zip([0] * len(counts) if taken is None else taken, counts, strict=True)
        )
        return cls(name, hex_digest("plan_hash", plan_hash), planned, steps, checked_distance(distance))

    @property
    def reserved(self) -> int:
        """The highest step that was reserved, by all attempts."""
        return sum(self.taken)

    def left(self, event: Event) -> int:
        """Return how many steps of ``event`` the run's plan still holds."""
        parts = zip(self.event.parts(), self.taken, strict=True)
        return sum(count - taken for (part, count), taken in parts if part == event)

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain data for JSON; versions before 0.2 wrote no distance."""
        data = {"name": self.name, "plan_hash": self.plan_hash, "event": self.event.to_dict()}
        return data | {"taken": list(self.taken)} | ({"distance": self.distance} if self.distance else {})


class LedgerState:
    """The state of a ledger: the fold of the entries read so far.

    Only entries that make sense after those before are taken; all others raise
    :class:`~discreet.errors.LedgerCorrupted`. The reader of :attr:`hash` compares it with a sealed or signed one.
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

    def statement(self) -> Statement:
        """Return rule, runs, and the head before the trailing entries that only say what was issued.

        Issuing a certificate therefore does not change what the next certificate of the same spending says.
        """
        return Statement(self.rule, tuple(self.runs.values()), self._before_issued or self.head)

    def spent(self) -> dict[Event, int]:
        """Return all that was reserved: simple events, and how often."""
        return _spent_by(self.runs.values())

    def follow(self, entries: Iterable[str]) -> None:
        """Take the entries that come next."""
        for text in entries:
            try:
                kind, *fields = json.loads(text)
                self._before_issued = (self._before_issued or self.head) if kind == "issued" else None
                getattr(self, f"_take_{kind}")(*fields)
                self._state.update(f"{text}\n".encode())
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
        self.runs[name] = replace(RunRecord.of(name, plan, event, None, distance), data=data)

    def _take_resume(self, name: str, attempt: int) -> None:
        record = self.runs[name]
        _insist(attempt == record.attempt + 1, "an attempt is missing")
        self.runs[name] = replace(record, attempt=attempt, reserved_before=record.reserved)

    def _take_reserve(
        self, name: str, attempt: int, step: int, steps: int, part: int, done: int, *randomness: str
    ) -> None:
        record = self._current(name, attempt)
        _insist(step == record.reserved + 1 and steps > 0 and part >= 0, "its steps do not follow")
        _insist(record.committed <= done < step, "its steps cannot have happened")
        _insist(randomness in ((), ("seed",)), "its randomness is not known to this version")
        taken = list(record.taken)
        taken[part] += whole("steps", steps, at_least=1, at_most=record.event.parts()[part][1] - taken[part])
        seeded = record.seeded or bool(randomness)
        self.runs[name] = replace(record, taken=tuple(taken), committed=done, seeded=seeded)

    def _take_commit(self, name: str, attempt: int, done: int) -> None:
        record = self._current(name, attempt)
        _insist(record.committed < done <= record.reserved, "its step was not reserved")
        self.runs[name] = replace(record, committed=done)

    def _take_mark(self, name: str, attempt: int, place: int) -> None:
        record = self._current(name, attempt)
        _insist(type(place) is int and record.marked < place, "a mark moves forward only")
        self.runs[name] = replace(record, marked=place)

    def _take_issued(self, kind: str, digest: str) -> None:
        _insist(kind in get_args(Issued), "nothing of this kind is issued")
        self.issued.add((kind, hex_digest("digest", digest)))

    def _current(self, name: str, attempt: int) -> RunRecord:
        record = self.runs[name]
        _insist(attempt == record.attempt, "the attempt was over")
        return record


def first_entry(rule: SpendingRule) -> Entry:
    """Return the entry that begins a ledger. The random name keeps any two ledgers apart."""
    return ["ledger", FORMAT, secrets.token_hex(16), rule.to_dict()]


def checked_distance(distance: object) -> float:
    """Return a bound on a total variation distance, or raise :class:`~discreet.errors.InvalidParameter`."""
    return real("distance", distance, at_least=0, below=1, remedy="It bounds a total variation distance.")


def _insist(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


@dataclass(frozen=True)
class Statement:
    """The rule, the runs and the head of a ledger, all of one moment; see :meth:`LedgerState.statement`.

    It can be published: it holds events and counts of steps, no clock and nothing about the data. Whoever has the
    entries can compute it without the key.
    """

    rule: SpendingRule
    runs: tuple[RunRecord, ...]
    anchor: Anchor

    @classmethod
    def of_entries(cls, entries: Iterable[str]) -> Statement:
        """Return the statement of a ledger with these entries, which must make sense one after the other."""
        ledger_state = LedgerState()
        ledger_state.follow(entries)
        return ledger_state.statement()

    def spent(self, *plan_hashes: str) -> dict[Event, int]:
        """Return all steps that were reserved, or those under some plans: simple events, and how often."""
        return _spent_by(run for run in self.runs if not plan_hashes or run.plan_hash in plan_hashes)

    @property
    def distance(self) -> float:
        """A bound on the total variation distance of all releases from those of their events, rounded up."""
        return min(1.0, math.fsum(run.distance for run in self.runs) * (1 + 1e-15))

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain data for JSON."""
        runs = [run.to_dict() for run in self.runs]
        return {"rule": self.rule.to_dict(), "runs": runs, "anchor": asdict(self.anchor)}

    @classmethod
    def from_dict(cls, data: object) -> Statement:
        """Return the statement of plain data; refuse all that :meth:`to_dict` does not write."""
        try:
            fields: dict[str, Any] = dict(data)  # type: ignore[call-overload]
            runs = tuple(RunRecord.of(**({"distance": 0.0} | run)) for run in fields["runs"])
            statement = cls(SpendingRule.from_dict(fields["rule"]), runs, Anchor(**fields["anchor"]))
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidParameter("ledger", data, f"is not what a ledger says ({error}).") from None
        if statement.to_dict() != data or len({run.name for run in runs}) < len(runs):
            raise InvalidParameter("ledger", data, "is not what a ledger says.")
        return statement


def _spent_by(runs: Iterable[RunRecord]) -> dict[Event, int]:
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
        lines = [f"{entry}\n" for entry in entries]
        return cls(len(lines) - 1, hashlib.sha256("".join(lines).encode()).hexdigest())

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
