"""Which ledger pays for a table: one for each table, whatever kit or study it is used in, and one process at a time.

A kit can be issued again and a folder can be copied, and a ledger that lay there would begin anew: a second budget
for the same records. So ledgers lie in the user's data folder (``~/.local/share/discreet``, or where
``XDG_DATA_HOME`` says), and beside them is noted for which table each was begun, by its place and by its content. A
table that was moved, or changed in its place, keeps its ledger; only one that was both is taken for another.

Who names a ledger with ``--ledger`` decides for himself; the table's other ledgers are shown with what they spent.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from discreet.accounting.curve import account
from discreet.certificate.verification import file_digest
from discreet.errors import AlreadyRunning, DiscreetError, LedgerUnavailable
from discreet.events import Composition, Event
from discreet.files import hold_lock
from discreet.guarantee import upper_text
from discreet.ledger import Ledger
from discreet.ledger.ledger_state import RunRecord
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Study

_LARGEST = 2**16  # bytes of a note


def user_folder() -> Path:
    """The folder for data of this user that belongs to no kit or study."""
    place = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(place) if place else Path.home() / ".local" / "share") / "discreet"


def paying_ledger(table: Path, named: Path | None, terms: PartyPlan) -> Path:
    """The ledger that pays: the one that was named, the one that has paid for this table before, or a new one."""
    if named is not None:
        return named.resolve()
    ledgers = list(known_ledgers(table))
    fitting = [place for place in ledgers if _could_pay(place, terms)]
    for place in [*(place for place in ledgers if _has_paid(place)), *fitting]:
        return place
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", table.stem)[:40] or "table"
    number = f"-{len(ledgers) + 1}" if ledgers else ""
    return user_folder() / "ledgers" / f"{stem}-{_hash(str(table.resolve()))[:12]}{number}.ledger"


def known_ledgers(table: Path) -> Iterator[Path]:
    """The ledgers that were begun for this table, the first one first; one that is gone was lost, not forgotten."""
    seen = set()
    for page in _notes(table):
        text = page.read_text(encoding="utf-8")[:_LARGEST] if page.exists() else ""
        for line in text.splitlines():
            if line not in seen:
                seen.add(line)
                yield Path(line)


def ledgers_of_user() -> list[Path]:
    """All ledgers that this user has begun or named for any table, whether they are still there or not."""
    found = dict.fromkeys(sorted((user_folder() / "ledgers").glob("*.ledger")))
    for page in sorted(notes_folder().glob("[0-9a-f]" * 64)):
        found |= dict.fromkeys(map(Path, page.read_text(encoding="utf-8")[:_LARGEST].splitlines()))
    return list(found)


def remember(table: Path, ledger: Path) -> None:
    """Note that this ledger pays for this table."""
    if ledger in known_ledgers(table) and all(page.exists() for page in _notes(table)):
        return
    for page in _notes(table):
        page.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(page, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{ledger}\n")


def _has_paid(place: Path) -> bool:
    """True if something was spent from this ledger, or it was lost: then nobody can tell, and it must be restored."""
    if not place.exists():
        raise LedgerUnavailable(
            f"The ledger {place} has paid for this table and is gone. Restore it with its key; who is sure that "
            "nothing was spent from it names another one with --ledger."
        )
    with Ledger.open(place) as book:
        return book.spent() is not None


def _could_pay(place: Path, terms: PartyPlan) -> bool:
    if not place.exists():
        return False
    with Ledger.open(place) as book:
        return book.remaining(terms.event) > 0


def notes_folder() -> Path:
    """Where it is noted which ledger pays for which table, and how far each ledger has come."""
    return user_folder() / "tables"


def _notes(table: Path) -> tuple[Path, Path]:
    """The notes about a table: by its place, and by its content."""
    folder = notes_folder()
    return folder / _hash(f"place {table.resolve()}"), folder / _hash(f"content {file_digest(table)}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def spending(place: Path, table: Path, terms: PartyPlan) -> str:
    """What the ledger has spent so far and will have spent after the study; and the table's other ledgers."""
    delta = f"at delta {terms.study.privacy.delta:g} ({terms.budget.neighbours})"
    lines = [
        f"Your ledger {place}: epsilon {_so_far(place, terms)} spent so far -> {_after(place, terms)} {delta}."
    ]
    for other in known_ledgers(table):
        if other != place:
            lines.append(f"Besides, {other} has spent epsilon {_so_far(other, terms)} on this table.")
    return "\n".join(lines)


def spent_elsewhere(place: Path, table: Path, terms: PartyPlan) -> list[str]:
    """What this user's ledgers of other tables have spent, a line for each: they may hold the same records.

    Nobody can tell that from the files: an export with another name and one byte more is another table.
    """
    ours = {place, *known_ledgers(table)}
    found = {other: _so_far(other, terms) for other in ledgers_of_user() if other not in ours}
    return [f"  {other}: epsilon {spent}" for other, spent in found.items() if spent != "0"]


def _so_far(place: Path, terms: PartyPlan) -> str:
    return _epsilon(place, terms, after=False)


def _after(place: Path, terms: PartyPlan) -> str:
    return _epsilon(place, terms, after=True)


def _epsilon(place: Path, terms: PartyPlan, after: bool) -> str:
    total: dict[Event, int] = {}
    taken = [0] * len(terms.event.parts())
    if not (after or place.exists()) and place in ledgers_of_user():
        return "unknown (the ledger is gone)"
    try:
        if place.exists():
            with Ledger.open(place) as book:
                total = book.statement().spent()
                runs = book.runs()
            run = runs.get(f"{terms.study.name}/{terms.party}")
            taken = taken if run is None else list(run.taken)
            if any(name.startswith(f"{terms.run_prefix}/") for name in runs):
                return _after_recipe(total, runs, terms) if after else _cost(total, terms)
        if after:
            for (event, count), done in zip(terms.event.parts(), taken, strict=True):
                total[event] = total.get(event, 0) + count - done
        return _cost(total, terms)
    except (DiscreetError, ValueError) as error:
        return f"unknown ({type(error).__name__})"


def _cost(total: Mapping[Event, int], terms: PartyPlan) -> str:
    """The epsilon of so many of each event."""
    if not total:
        return "0"
    events = Composition(tuple((event, count) for event, count in total.items() if count))
    return upper_text(account(events, terms.budget.neighbours).epsilon(terms.budget.delta))


def _after_recipe(total: dict[Event, int], runs: Mapping[str, RunRecord], terms: PartyPlan) -> str:
    """The epsilon after a study by the recipe that has begun: all of its budget, and what others have spent."""
    own = [run for name, run in runs.items() if name.startswith(f"{terms.run_prefix}/")]
    for run in own:
        for (event, _), taken in zip(run.event.parts(), run.taken, strict=True):
            total[event] = total.get(event, 0) - taken
    total[terms.event] = total.get(terms.event, 0) + 1
    return _cost(total, terms)


def answers_folder(ledger: Path, study: Study, party: str) -> Path:
    """The folder of a party's answers in a study by the recipe, beside the ledger that paid for them."""
    return ledger.with_name(f"{ledger.name}.answers") / f"{study.name}-{party}-{study.digest()[:12]}"


def kit_lock(kit: Path) -> AbstractContextManager[None]:
    """Held while a kit is used: unpacking it again would pull it from under who runs with it."""
    return hold_lock(
        kit.with_name(f".{kit.name}.lock"),
        AlreadyRunning(f"Another process runs with {kit}; wait for it or stop it. Nothing was touched."),
    )


def table_lock(table: Path) -> AbstractContextManager[None]:
    """Held while a table is paid for by its own ledger: two studies at once would each begin one."""
    page = _notes(table)[1]
    page.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return hold_lock(
        page.with_name(f".{page.name}.lock"),
        AlreadyRunning(
            f"Another process takes part in a study with {table}; wait for it or stop it. To take part in several at "
            "once, begin one ledger with a budget for all of them, and name it with --ledger."
        ),
    )


def ledger_lock(place: Path, study: str, party: str) -> AbstractContextManager[None]:
    """Held while a party pays for a study: a second one would take over, and the first would lose what is left."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return hold_lock(
        place.with_name(f".{place.name}.{_hash(f'{study}/{party}')[:12]}.lock"),
        AlreadyRunning(
            f"Another process takes part in {study} as {party} and pays from {place}; wait for it or stop it. "
            "Nothing was touched."
        ),
    )
