"""Exclusive, verified access to a ledger, and the runs that reserve steps in it.

In a turn nobody else writes. It first reads what others have added since the last one, checks it against the sealed
head, and adds it to the state. Only then may it add an entry of its own. A :class:`Run` takes such turns: reserve,
release, commit.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from discreet.errors import BudgetExceeded, LedgerCorrupted, LedgerUnavailable, PlanViolation, whole
from discreet.events import Event
from discreet.events.common import MAX_COUNT
from discreet.files import canonical
from discreet.ledger import ledger_texts
from discreet.ledger.interfaces import Store
from discreet.ledger.ledger_state import Entry, LedgerState, RunRecord, seal_of
from discreet.ledger.store import Head, LedgerRow, Transaction


class LedgerLog:
    """A store, the key to its seal, and the state that was read from it. May be shared by threads."""

    _transaction: Transaction

    def __init__(self, store: Store, key: bytes) -> None:
        self.ledger_state = LedgerState()
        self._store, self._key = store, key
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._refusal = ""  # not empty while the state may differ from what is on disk

    @contextmanager
    def turn(self) -> Iterator[LedgerLog]:
        """Begin an exclusive turn. If it fails, nothing that it added is kept."""
        with self._lock:
            self.check_usable()
            self._refusal = ledger_texts.INTERRUPTED
            try:
                with self._store.transaction() as self._transaction:
                    self._catch_up(self._transaction)
                    self._refusal = ""
                    yield self
                self._refusal = ""
            except (LedgerCorrupted, LedgerUnavailable) as error:
                # What is on disk after a failed write is known only after reading all of it anew.
                self._refusal = ledger_texts.failed_before(error)
                raise

    def add(self, entry: Entry) -> None:
        """Write ``entry``, the last act of a turn; it is on disk when the turn is over."""
        self._refusal = ledger_texts.INTERRUPTED
        self._transaction.append(*next_row(self.ledger_state, entry, self._key))

    def data_tag(self, data: str | None) -> str | None:
        """Return the name of the data of a run in entries: only the key tells which name it was."""
        return None if data is None else hmac.digest(self._key, f"data {data}".encode(), "sha256").hex()

    def entries(self) -> list[str]:
        """Return every entry."""
        return list(self._transaction.entries(after=-1, until=self.ledger_state.sequence))

    def check_usable(self) -> None:
        """Raise if this handle was closed, has failed, or belongs to another process."""
        if os.getpid() != self._process:
            raise LedgerUnavailable(ledger_texts.FORKED)
        if self._refusal:
            raise LedgerUnavailable(self._refusal)

    def _catch_up(self, transaction: Transaction) -> None:
        head, ledger_state = transaction.head(), self.ledger_state
        own = seal_of(self._key, head.sequence, head.hash)
        if not hmac.compare_digest(head.seal.encode(), own.encode()):
            raise LedgerCorrupted(ledger_texts.OTHER_SEAL)
        if head.sequence < ledger_state.sequence:
            raise LedgerCorrupted(ledger_texts.rolled_back(head.sequence, ledger_state.sequence))
        ledger_state.follow(transaction.entries(after=ledger_state.sequence, until=head.sequence))
        if not transaction.last() == head.sequence == ledger_state.sequence or head.hash != ledger_state.hash:
            raise LedgerCorrupted(ledger_texts.other_entries(ledger_state.sequence, head.sequence))

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            self._refusal = self._refusal or ledger_texts.CLOSED
            if os.getpid() == self._process:
                self._store.close()


def next_row(ledger_state: LedgerState, entry: Entry, key: bytes) -> tuple[LedgerRow, Head]:
    """Add ``entry`` to the state, and return the row and the sealed head that record it."""
    text = canonical(entry)
    slot = canonical(entry[:4])[:-1] if entry[0] == "reserve" else ""
    ledger_state.follow([text])
    head = Head(
        ledger_state.sequence, ledger_state.hash, seal_of(key, ledger_state.sequence, ledger_state.hash)
    )
    return LedgerRow(ledger_state.sequence, slot or None, text[len(slot) :]), head


LEASES = 100
"""In how many leases :meth:`Run.steps` pays for a plan: so many writes, and a crash loses one of them at most."""


@dataclass(frozen=True)
class Lease:
    """Steps that are paid for. Iterate over it for their numbers; what is not used is not refunded."""

    run: str
    attempt: int
    event: Event
    first: int
    steps: int

    @property
    def last(self) -> int:
        """The number of the last step."""
        return self.first + self.steps - 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.steps


class Run:
    """A run of a ledger. Made by :meth:`~discreet.ledger.ledger.Ledger.run`.

    ``attempt`` is 1 for who opened the run, and one more for each who took it over. Only the last one may spend.
    """

    def __init__(self, journal: LedgerLog, name: str, attempt: int, event: Event) -> None:
        self._journal = journal
        self.name = name
        self.attempt = attempt
        self.event = event
        self.seeded = False
        """Whether a seed makes the noise from now on. Reservations say so, and certificates read it there."""
        self._lock = threading.Lock()
        self._paid: dict[Event, range] = {}  # steps of the last leases that next_step has not given out yet
        self._given = 0

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

    def next_step(self, event: Event | None = None, *, lease: int | None = None) -> int:
        """The number of the next step, which is paid for. For engines that are called step by step.

        To ask again says that the step before has happened; the next write to the ledger records it.

        Guarantee: when this returns, the cost of the step is on disk; no step is given out twice.
        """
        event = self._planned_event(event)
        with self._lock:
            self._journal.check_usable()  # a forked process has a copy of what is paid for, and must not use it
            paid = self._paid.get(event) or self._pay(event, lease)
            self._paid[event], self._given = paid[1:], max(self._given, paid[0])
            return paid[0]

    def _pay(self, event: Event, lease: int | None) -> range:
        planned = dict(self.event.parts())[event]
        usual = max(1, planned // LEASES)
        wanted = usual if lease is None else whole("lease", lease, at_least=1, at_most=MAX_COUNT)
        with self._journal.turn() as turn:
            record, ledger_state = self._record(turn.ledger_state), turn.ledger_state
            # Less than a whole lease may be left. If nothing is, the refusal is about one step.
            fits = min(record.left(event), ledger_state.rule.room(ledger_state.spent(), event))
            paid = self._reserve(
                turn, max(1, min(wanted, fits)), event, max(self._steps_done(), record.committed)
            )
        return range(paid.first, paid.last + 1)

    def _steps_done(self) -> int:
        """All steps up to this one that :meth:`next_step` gave out have happened."""
        return min([self._given, *(paid[0] - 1 for paid in self._paid.values() if paid)])

    def _commit_given(self) -> None:
        with self._journal.turn() as turn:
            if turn.ledger_state.runs[self.name].reserved_before < self._steps_done():
                self._commit(turn, self._steps_done())

    def reserve(self, steps: int = 1, event: Event | None = None) -> Lease:
        """Pay for the next ``steps`` steps; exactly so many, or none.

        ``event`` says what each step releases. It can be left out when the plan repeats a single event.

        Guarantee: when this returns, the cost is on disk, and all that was ever reserved is within the budget.
        """
        steps = whole("steps", steps, at_least=1, at_most=MAX_COUNT)
        event = self._planned_event(event)
        with self._journal.turn() as turn:
            return self._reserve(turn, steps, event, self._record(turn.ledger_state).committed)

    def _reserve(self, turn: LedgerLog, steps: int, event: Event, done: int) -> Lease:
        record = self._record(turn.ledger_state)
        if steps > record.left(event):
            raise PlanViolation(ledger_texts.beyond_plan(self.name, record.left(event), event, steps))
        refuse_beyond_budget(turn.ledger_state, event, steps)
        lease = Lease(self.name, self.attempt, event, record.reserved + 1, steps)
        part = [planned for planned, _ in self.event.parts()].index(event)
        seed = ["seed"] if self.seeded else []
        turn.add(["reserve", self.name, self.attempt, lease.first, steps, part, done, *seed])
        return lease

    def commit(self, step: int) -> None:
        """Record that this attempt's steps up to ``step`` have happened. To say so again changes nothing."""
        step = whole("step", step, at_least=1)
        with self._journal.turn() as turn:
            self._commit(turn, step)

    def _commit(self, turn: LedgerLog, step: int) -> None:
        record = self._record(turn.ledger_state)
        if not record.reserved_before < step <= record.reserved:
            raise PlanViolation(ledger_texts.not_reserved(self.name, step))
        if step > record.committed:
            turn.add(["commit", self.name, self.attempt, step])

    def mark(self, place: int) -> None:
        """Note that this run may have come as far as ``place``, in whatever it counts beside steps. Costs nothing.

        Guarantee: when this returns the mark is on disk, for whoever takes the run over; it never moves back.
        """
        place = whole("place", place, at_least=1, at_most=MAX_COUNT)
        with self._journal.turn() as turn:
            if place > self._record(turn.ledger_state).marked:
                turn.add(["mark", self.name, self.attempt, place])

    def remaining(self, event: Event | None = None) -> int:
        """How many steps of ``event`` this run's plan still holds."""
        with self._journal.turn() as turn:
            return self._record(turn.ledger_state).left(self._planned_event(event))

    @property
    def reserved(self) -> int:
        """The highest step reserved so far, by all attempts. The next one is one more."""
        with self._journal.turn() as turn:
            return self._record(turn.ledger_state).reserved

    @property
    def marked(self) -> int:
        """The last :meth:`mark`, of any attempt; 0 if there is none."""
        with self._journal.turn() as turn:
            return self._record(turn.ledger_state).marked

    def _record(self, ledger_state: LedgerState) -> RunRecord:
        record = ledger_state.runs[self.name]
        if record.attempt != self.attempt:
            raise PlanViolation(ledger_texts.taken_over(self.name, record.attempt, self.attempt))
        return record

    def _planned_event(self, event: Event | None) -> Event:
        planned = [part for part, _ in self.event.parts()]
        if event is None and len(planned) == 1:
            return planned[0]
        parts = event.parts() if isinstance(event, Event) else ()
        if len(parts) == 1 and parts[0][1] == 1 and parts[0][0] in planned:
            return parts[0][0]
        raise PlanViolation(ledger_texts.not_planned(self.name, event, planned))


def refuse_beyond_budget(ledger_state: LedgerState, event: Event, count: int) -> None:
    """Raise unless ``event`` fits ``count`` more times."""
    room = ledger_state.rule.room(ledger_state.spent(), event)
    if room < count:
        raise BudgetExceeded(ledger_texts.beyond_budget(event, count, ledger_state.rule.budget, room))


def refuse_beyond_spare(ledger_state: LedgerState, distance: float) -> None:
    """Raise unless the rule holds enough of delta back for one more run at this distance."""
    noted = math.fsum(run.distance for run in ledger_state.runs.values())
    if distance and (noted + distance) * (1 + 1e-12) > ledger_state.rule.largest_distance:
        raise BudgetExceeded(ledger_texts.beyond_spare(distance, ledger_state.rule.budget))
