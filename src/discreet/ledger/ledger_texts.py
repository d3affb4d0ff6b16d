"""The sentences of a ledger's refusals. Whether something is refused is decided where they are raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from discreet.errors import InvalidParameter, cut
from discreet.events import Event
from discreet.guarantee import Budget

if TYPE_CHECKING:
    from discreet.ledger.ledger_state import RunRecord

RESTORE = "Restore the ledger from a backup and open it with its anchor."
NEWEST = "Bring back the newest copy; what was spent after an older one would be forgotten."

FORKED = "A ledger cannot be used in a forked process; open it there anew."
CLOSED = "This ledger is closed; open it again."
INTERRUPTED = "This ledger was interrupted while it was read or written; open it again."
NO_HEAD = "The ledger has lost its head. Restore it from a backup and open it with its anchor."
OTHER_SEAL = (
    "The seal on the ledger's head is not from this key: the ledger was altered, or the key is another's."
)
CREATED_MEANWHILE = "was created by another process just now; open it."
BEYOND_PLAN = "What goes beyond the plan needs a run of its own."


def no_sense(entry: int, error: BaseException) -> str:
    """An entry that contradicts those before."""
    return f"Entry {entry} of the ledger makes no sense: {error}. It was altered by another hand. {RESTORE}"


def failed_before(error: BaseException) -> str:
    """A handle whose last write may or may not be on disk."""
    return f"This ledger has failed before; open it again. Then it said: {error}"


def rolled_back(found: int, known: int) -> str:
    """A ledger that ends before an entry that is known."""
    known_entry = f"its last entry is {found}, but entry {known} is known to have existed"
    return f"The ledger was rolled back: {known_entry}. {NEWEST}"


def before_anchor(found: int, known: int) -> str:
    """A ledger that ends before its anchor."""
    return f"{rolled_back(found, known)} Or it is not the one of this checkpoint."


def other_entries(last: int, head: int) -> str:
    """Entries that do not lead to the sealed head."""
    return (
        f"The ledger's entries end at {last} and do not lead to its sealed head, {head}: some were altered, removed "
        f"or added by another hand. {RESTORE}"
    )


def other_anchor(sequence: int) -> str:
    """Entries that do not lead through an anchor."""
    return (
        f"Entry {sequence} is not the one that the anchor remembers: this is another ledger, or one that was rolled "
        "back and then written to."
    )


def list_parts(event: Event, count: int = 1) -> str:
    """The simple events of ``count`` such events, and how often each of them happens."""
    return " + ".join(f"{count * number} x {part}" for part, number in event.parts())


def beyond_plan(run: str, left: int, event: Event, steps: int) -> str:
    """More steps than the plan of a run has left."""
    return f"The plan of run {run!r} has {left} more steps of {event}, not {steps}. {BEYOND_PLAN}"


def not_reserved(run: str, step: int) -> str:
    """A step that cannot have happened."""
    return f"Step {step} of run {run!r} was not reserved by this attempt."


def taken_over(run: str, by: int, attempt: int) -> str:
    """An attempt that is over."""
    return f"The run {run!r} was taken over by attempt {by}, so attempt {attempt} may not go on."


def not_planned(run: str, event: object, planned: list[Event]) -> str:
    """A step that is not in the plan of a run."""
    return (
        f"The plan of run {run!r} has no step {event}; its steps are {', '.join(map(str, planned))}. Release one of "
        "those, or make a plan for the other rate, sampler or noise and give it a run of its own."
    )


def beyond_budget(event: Event, count: int, budget: Budget, room: int) -> str:
    """Events that do not fit into the budget."""
    return (
        f"{cut(list_parts(event, count))} would exceed the ledger's budget (epsilon={budget.epsilon:g}, "
        f"delta={budget.delta:g}): there is room for {room}. Nothing was reserved."
    )


def beyond_spare(distance: float, budget: Budget) -> str:
    """Noise in integers for which too little of delta is held back."""
    return (
        f"The noise of this run is in integers, at a distance of {distance:.3g} from continuous noise. With it, "
        f"the ledger (epsilon={budget.epsilon:g}, delta={budget.delta:g}) would exceed its delta. Choose "
        "arithmetic='float', or a ledger of a smaller epsilon or a larger delta. Nothing was reserved."
    )


def departed(run: RunRecord, event: Event, plan_hash: str, nearer: bool, distance: float) -> str:
    """A run that is resumed otherwise than it began."""
    if run.event.parts() != event.parts():
        how = f"to release {list_parts(run.event)}, not {list_parts(event)}"
    elif run.plan_hash != plan_hash:
        how = f"with plan {run.plan_hash[:12]}, not {plan_hash[:12]}"
    elif nearer:
        how = f"with noise that is {run.distance:.3g} from the event's, not {distance:.3g}"
    else:
        how = "for data of another name (data=)"
    return (
        f"The run {run.name!r} was opened {how}. Resume it with the plan and the data it began with, or choose "
        "another name for a new run."
    )


def beyond_own_budget(guarantee: object, epsilon: float) -> str:
    """A rule that exceeds its own budget."""
    return (
        f"The plan is {guarantee}, and the budget is epsilon={epsilon:g} at that delta. Calibrate the plan to the "
        "budget."
    )


def no_key(path: object, error: BaseException) -> str:
    """A key file that cannot be read."""
    return (
        f"The ledger's key cannot be read from {path} ({error}). Without it nobody can tell whether the ledger was "
        "altered: restore the key file, or give its place with key=."
    )


def key_without_ledger() -> str:
    """A key file whose ledger is missing."""
    return (
        "is there and its ledger is not: restore the ledger, or name another place for both. To begin another one "
        "with this key, call Ledger.create."
    )


def replaced(file: object) -> str:
    """A file that is no longer the one that was opened."""
    return (
        f"{file} was deleted or replaced while it was in use, so nothing was granted. Bring back the newest copy of "
        "the ledger, with its key, and open it again; what was spent after an older one would be forgotten."
    )


def on_network(path: object, kind: str) -> str:
    """A file on a network file system."""
    return (
        f"{path} is on a network file system ({kind}), where locks and syncs cannot be relied upon. Keep the ledger "
        "on a local disk, or use PostgreSQL."
    )


def unusable(path: object, error: BaseException) -> str:
    """A database that cannot be written now."""
    return (
        f"The ledger {path} cannot be used ({error}): nothing was granted, so nothing may be released. Free the disk "
        "or the lock, then open the ledger again."
    )


def damaged(what: object, error: BaseException | None = None) -> str:
    """A database that is not in order."""
    reason = "" if error is None else f" ({error})"
    return f"{what} is damaged{reason}. Restore it from a backup and open it with its anchor."


def server_forgets(setting: str) -> str:
    """A server that may lose what it confirmed."""
    return (
        f"This PostgreSQL server runs with {setting} = off and may forget what it confirmed. Turn it on, or keep the "
        "ledger on another server."
    )


def server_unusable(reason: str) -> str:
    """A server that cannot be reached or answers no more."""
    return (
        f"The ledger's database cannot be used ({reason}). Whatever was being reserved counts as spent if it "
        "arrived; nothing may be released. Open the ledger again when the database is back."
    )


def server_read_only(reason: str) -> str:
    """A server that refuses to write."""
    return (
        f"The ledger's database may not be written to ({reason}), so nothing was granted. The role needs SELECT, "
        "INSERT and UPDATE on ledger_entries and ledger_head, on a server that is no read-only copy."
    )


def other_neighbours(ledger: str, plan: str) -> str:
    """A ledger for other neighbours than those that a cost was proved for."""
    return f"is for {ledger} neighbours, and what this costs was proved for {plan} ones: use the same."


HIDES_THE_NUMBER = (
    "is for add-remove neighbours and hides the number of records, which this plan for replace-one ones makes "
    "public: use the same."
)
KEY_OF_AN_OPEN_LEDGER = (
    "goes with a path or an address; a Ledger was opened with its key, and one in memory has none."
)
KEY_ITSELF = "must be the name of the ledger's key file; who has the key itself opens the Ledger with it."


@contextmanager
def name_as_typed() -> Iterator[None]:
    """Refusals name the parameters of the engines, not those of the ledger's own methods."""
    try:
        yield
    except InvalidParameter as error:
        typed = {"place": "ledger", "key": "ledger_key"}.get(error.name)
        if typed is None:
            raise
        raise InvalidParameter(typed, error.value, error.requirement) from None


def not_local(path: object) -> str:
    """A file that SQLite cannot write ahead."""
    return f"{path} cannot be written ahead; a ledger needs a local file system."


def other_tables(path: object) -> str:
    """A database that is no ledger."""
    return f"{path} is not a ledger, or its tables were altered."


def no_ledger(path: object) -> str:
    """A place without a ledger."""
    return f"There is no ledger at {path}. Make one with Ledger.create, or restore it."


def occupied(occupant: str) -> str:
    """A place for a new ledger that is not free."""
    return f"{occupant} exists already. Open that ledger, or choose another name."
