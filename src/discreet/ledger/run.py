"""One training run, as one process carries it out: reserve, release, commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from discreet.errors import BudgetExceeded, PlanViolation, whole
from discreet.events import MAX_COUNT, Event
from discreet.ledger.book import Book, RunRecord
from discreet.ledger.journal import Journal


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

    def __init__(self, journal: Journal, name: str, attempt: int, event: Event) -> None:
        self._journal = journal
        self.name = name
        self.attempt = attempt
        self.event = event

    def reserve(self, steps: int = 1, event: Event | None = None) -> Lease:
        """Pay for the next ``steps`` steps; exactly so many, or none.

        ``event`` says what each step releases. It can be left out when the plan repeats a single event.

        Guarantee: when this returns, the cost is on disk, and all that was ever reserved is within the budget.
        """
        steps = whole("steps", steps, at_least=1, at_most=MAX_COUNT)
        event = self._planned(event)
        with self._journal.turn() as turn:
            record = self._record(turn.book)
            if steps > record.left(event):
                raise PlanViolation(
                    f"The plan of run {self.name!r} has {record.left(event)} more steps of {event}, not {steps}. "
                    "What goes beyond the plan needs a run of its own."
                )
            refuse_beyond_budget(turn.book, event, steps)
            lease = Lease(self.name, self.attempt, event, record.reserved + 1, steps)
            part = [planned for planned, _ in self.event.parts()].index(event)
            turn.add({**self._entry("reserve", lease.first), "steps": steps, "part": part})
        return lease

    def commit(self, step: int) -> None:
        """Record that this attempt's steps up to ``step`` have happened. To say so again changes nothing."""
        step = whole("step", step, at_least=1)
        with self._journal.turn() as turn:
            record = self._record(turn.book)
            if not record.reserved_before < step <= record.reserved:
                raise PlanViolation(f"Step {step} of run {self.name!r} was not reserved by this attempt.")
            if step > record.committed:
                turn.add(self._entry("commit", step))

    def remaining(self, event: Event | None = None) -> int:
        """How many steps of ``event`` this run's plan still holds."""
        with self._journal.turn() as turn:
            return self._record(turn.book).left(self._planned(event))

    @property
    def reserved(self) -> int:
        """The highest step reserved so far, by all attempts. The next one is one more."""
        with self._journal.turn() as turn:
            return self._record(turn.book).reserved

    def _record(self, book: Book) -> RunRecord:
        record = book.runs[self.name]
        if record.attempt != self.attempt:
            raise PlanViolation(
                f"The run {self.name!r} was taken over by attempt {record.attempt}, so attempt {self.attempt} "
                "may not go on."
            )
        return record

    def _entry(self, kind: str, step: int) -> dict[str, object]:
        return {"kind": kind, "run": self.name, "attempt": self.attempt, "step": step}

    def _planned(self, event: Event | None) -> Event:
        planned = [part for part, _ in self.event.parts()]
        if event is None and len(planned) == 1:
            return planned[0]
        parts = event.parts() if isinstance(event, Event) else ()
        if len(parts) == 1 and parts[0][1] == 1 and parts[0][0] in planned:
            return parts[0][0]
        known = ", ".join(map(str, planned))
        raise PlanViolation(f"The plan of run {self.name!r} has no step {event}; its steps are {known}.")


def refuse_beyond_budget(book: Book, event: Event, count: int) -> None:
    """Raise unless ``event`` fits ``count`` more times."""
    room = book.rule.room(book.spent(), event)
    if room < count:
        budget = book.rule.budget
        raise BudgetExceeded(
            f"{count} more of {event} would exceed the budget (epsilon={budget.epsilon:g}, delta={budget.delta:g}): "
            f"there is room for {room}. Nothing was reserved."
        )
