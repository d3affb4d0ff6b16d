"""``discreet join``: a party of a study, with its own table, its own ledger and its own consent."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from discreet.certificate.verification import file_digest
from discreet.cli.coordinate import Spending, digest_line, study_table
from discreet.cli.ledger import remember_plan
from discreet.cli.shell import FILE, NUMBER, Answer, Tenths, command, ignore_interrupts, note, progress
from discreet.errors import (
    AlreadyRunning,
    CannotConnect,
    DiscreetError,
    InvalidParameter,
    LedgerUnavailable,
    NotConsented,
    NotYet,
    PartyStopped,
    real,
    whole,
)
from discreet.files import hold_lock, whole_file, write_whole
from discreet.guarantee import rounded_up

_INTERRUPTED = "What was released by then is in the ledger; join again with the same ledger to go on."
_POLL = 0.5
ROSTER = "roster.json"


@command("join", interrupted=_INTERRUPTED, renamed={"path": "STUDY", "holder.records": "--data"})
@click.argument("study_file", metavar="STUDY", type=FILE)
@click.option("--data", type=FILE, required=True, help="Your table: CSV or Parquet. It stays here.")
@click.option("--kit", "kit_file", type=FILE, required=True, help="Your kit, from the coordinator.")
@click.option("--key", type=FILE, help="Your own signing key, if the kit holds none.")
@click.option(
    "--ledger",
    type=FILE,
    help="What pays for it; by default the one ledger of this table in your data folder.",
)
@click.option("--out", type=FILE, help="Folder for certificate and model; by default STUDY-PARTY.")
@click.option(
    "--approver",
    "approvers",
    multiple=True,
    metavar="KEY",
    help="Join only if the owner of this public key approved of the study. Repeat for each.",
)
@click.option("--approvals", type=NUMBER, help="So many of the approvers suffice; by default all of them.")
@click.option("--yes", is_flag=True, help="Consent to what is shown, without being asked.")
@click.option(
    "--keep-certificate",
    is_flag=True,
    help="Do not send your signed certificate to the coordinator at the end.",
)
@click.option(
    "--wait", type=NUMBER, default=3600, show_default=True, help="Seconds to wait for the coordinator."
)
def join(
    study_file: Path,
    data: Path,
    kit_file: Path,
    key: Path | None,
    ledger: Path | None,
    out: Path | None,
    approvers: tuple[str, ...],
    approvals: int | None,
    yes: bool,
    keep_certificate: bool,
    wait: float,
) -> Answer:
    """Take part in the study STUDY with your own table.

    \b
    discreet join study.toml --data mine.csv --kit hospital-a.zip

    You see what will be spent, and against whom, and agree once. Noise is added here, before anything leaves, and
    what leaves is charged to your ledger first. You may stop and join again at any time, also after the end: then the
    coordinator hands out the model again (`discreet coordinate --serve`), and nothing is charged.
    """
    from discreet.adapters.joint_evaluation import joint_of
    from discreet.ledger import Till
    from discreet.parties import Party, Study, Terms
    from discreet.parties.network.kits import open_kit
    from discreet.parties.network.nvflare import connect

    patience = real("wait", wait, above=0)
    study = Study.load(study_file)
    model, locks = joint_of(study), click.get_current_context()
    locks.with_resource(kit_lock(kit_file))
    kit = open_kit(kit_file)
    kit.check(study)
    if kit.is_coordinator:
        raise CannotConnect(f"{kit_file.name} is the kit of the coordinator; use that of your party.")
    approved_by(study_file, study, approvers, approvals)
    terms, signing_key = Terms(study, kit.party), kit.signing_key(key)
    if ledger is None:
        locks.with_resource(table_lock(data))
    place = paying_ledger(data, ledger, terms)
    locks.with_resource(ledger_lock(place, study.name, kit.party))
    folder = (out or Path(f"{study.name}-{kit.party}")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    holder = model.holder(data)
    if unlike := model.unlike_declared(data):
        note(
            f"no cell of {', '.join(unlike)} in {data.name} is as the study declares it, so all of them count as "
            "missing, or as no; compare the study file with your table. This is said to you alone."
        )
    _consented(terms, kit, place, data, yes)
    remember(data, place)
    with Till.open(place, terms.plan()) as till:
        book = till.ledger
        shows = not keep_certificate
        party = Party(kit.party, study, holder, book, signing_key, kit.roster, shows_certificate=shows)
        party.prepare()
        end = time.monotonic() + patience
        _reached(kit, end)
        with connect(kit, party.answer, end - time.monotonic()) as line:
            note(f"{kit.party} has joined {study.name}.")
            ending = _followed(party, line, book, place)
            line.linger()
        ignore_interrupts()  # the model is here: it is written, and told, whatever is pressed now
        certificate = party.certificate()
    path = folder / "certificate.json"
    written = model.write(folder, ending.theta)
    write_whole(folder / ROSTER, kit.path(ROSTER).read_bytes())
    certificate.for_files(*written, folder / ROSTER).signed(signing_key).save(path)
    epsilon = certificate.guarantee.epsilon.upper
    exact = (
        ""
        if certificate.arithmetic.kind == "hardened"
        else ", proved for real numbers only (float arithmetic)"
    )
    text = f"{kit.party} spent epsilon {rounded_up(epsilon)} at delta {study.privacy.delta:g}{exact}.\n"
    text += f"Certificate: {path}\n{model.made}: {folder}\n{model.told(ending.theta)}"
    text += digest_line(ending, model.made)
    return Answer({"certificate": path, "epsilon": epsilon, "out": folder, "model": ending.model}, text)


# ---- consent ----


def _consented(terms: Any, kit: Any, ledger: Path, table: Path, yes: bool) -> None:
    """Show what is agreed to, and ask once for a study with these keys; the answer is kept beside the ledger."""
    study, memory = terms.study, ledger.with_name(f"{ledger.name}.consent.json")
    agreed = json.loads(memory.read_text()) if memory.exists() else []
    if kit.digest in agreed:
        note(f"{kit.party} has consented to study {study.digest()[:12]}, roster {kit.fingerprint}, before.")
        note(spending(ledger, table, terms))
        return
    click.echo(f"{study_table(study)}\n", err=True)
    not_covered = "\n".join(f"  {text}" for text in terms.not_covered)
    click.echo(f"Not covered:\n{not_covered}\n", err=True)
    click.echo(
        f"You are {kit.party}, with {study.records_of(kit.party)} records. Roster {kit.fingerprint}.\n"
        f"{spending(ledger, table, terms)}\n"
        f"The study costs you epsilon {rounded_up(terms.budget.epsilon)} at delta {study.privacy.delta:g} "
        f"({study.privacy.neighbours}), and nothing beyond that can be asked of you.\n"
        "At the end the coordinator gets your signed certificate, which names all runs of this ledger; "
        "--keep-certificate keeps it here.",
        err=True,
    )
    if not (yes or _agrees()):
        raise NotConsented("You did not consent: nothing was sent and nothing was spent.")
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(memory) as file:
        json.dump([*agreed, kit.digest], file)


def _agrees() -> bool:
    try:
        return click.confirm("Do you consent?", err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        needed = (
            "must be given where nobody can be asked; or join once by hand, in a terminal. Nothing was sent."
        )
        raise InvalidParameter("yes", None, needed) from None


def approved_by(
    study_file: Path, study: Any, approvers: tuple[str, ...], least: int | None
) -> tuple[str, ...]:
    """The names of the approvers who signed this study; too few of them, and the party does not join."""
    from discreet.parties.approvals import approvals, insist_on_approvals

    for key in approvers:
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise InvalidParameter("approver", key, "must be a public key, as `discreet study key` prints.")
    if least is not None:
        if not approvers:
            raise InvalidParameter("approvals", least, "whose? Name their public keys with --approver.")
        least = whole("approvals", least, at_least=1, at_most=len(set(approvers)))
    counted = insist_on_approvals(approvals(study_file, study.digest()), approvers, least)
    if counted:
        note(f"approved by {', '.join(one.name for one in counted)}.")
    return tuple(one.name for one in counted)


# ---- the line ----


def _reached(kit: Any, end: float) -> None:
    """Knock until the coordinator is there; trouble that does not pass by itself is said at once."""
    from discreet.parties.network.reaching import reach

    told = ""
    while True:
        try:
            return reach(kit)
        except NotYet as error:
            if time.monotonic() > end:
                raise
            if str(error) != told:
                told = str(error)
                note(f"{error} Waiting.")
            time.sleep(1.0)


def _followed(party: Any, line: Any, book: Any, place: Path) -> Any:
    """The end of the study; until then, show what the ledger has charged, and nothing else."""
    terms, known = party.terms, False
    spending, name = Spending(terms), f"{terms.study.name}/{terms.party}"
    tenths, here = Tenths(terms.steps), True
    with progress("{task.fields[state]}", "{task.fields[spent]}") as bar:
        task = bar.add_task(terms.party, total=terms.steps, state="waiting", spent="")
        while not party.wait(_POLL):
            line.check()
            run = book.runs().get(name)
            charged = 0 if run is None else run.reserved
            if not known and party.plan is not None:
                remember_plan(place, name, party.plan)
                known = True
            state = f"{charged} of {terms.steps} charged" if line.connected else "coordinator away"
            if not bar.disable:
                bar.update(task, completed=charged, state=state, spent=spending.at(charged / terms.steps))
                continue
            tenths.at(charged, f"{state}, {spending.at(charged / terms.steps)}.")
            if here != line.connected:
                here = line.connected
                note("the coordinator is back." if here else "the coordinator is away; waiting for it.")
    if party.ending is not None:
        return party.ending
    raise PartyStopped(
        f"{terms.party} has stopped: {party.stopped}. Nothing more leaves; repair it, and join again with the same "
        "ledger to go on."
    )


# Which ledger pays for a table: one for each table, whatever kit or study it is used in, and one process at a time.
#
# A kit can be issued again and a folder can be copied, and a ledger that lay there would begin anew: a second budget
# for the same records. So ledgers lie in the user's data folder (``~/.local/share/discreet``, or where
# ``XDG_DATA_HOME`` says), and beside them is noted for which table each was begun, by its place and by its content. A
# table that was moved, or changed in its place, keeps its ledger; only one that was both is taken for another.
#
# Who names a ledger with ``--ledger`` decides for himself; the table's other ledgers are shown with what they spent.


_LARGEST = 2**16  # bytes of a note


def user_folder() -> Path:
    """Where what belongs to this user, and to no kit or study, is kept."""
    place = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(place) if place else Path.home() / ".local" / "share") / "discreet"


# ---- which ledger ----


def paying_ledger(table: Path, named: Path | None, terms: Any) -> Path:
    """The ledger that pays: the one that was named, the one that has paid for this table before, or a new one."""
    if named is not None:
        return named.resolve()
    known = list(known_ledgers(table))
    fitting = [place for place in known if _could_pay(place, terms)]
    for place in [*(place for place in known if _has_paid(place)), *fitting]:
        return place
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", table.stem)[:40] or "table"
    number = f"-{len(known) + 1}" if known else ""
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
    from discreet.ledger import Ledger

    if not place.exists():
        raise LedgerUnavailable(
            f"The ledger {place} has paid for this table and is gone. Restore it with its key; who is sure that "
            "nothing was spent from it names another one with --ledger."
        )
    with Ledger.open(place) as book:
        return book.spent() is not None


def _could_pay(place: Path, terms: Any) -> bool:
    from discreet.ledger import Ledger

    if not place.exists():
        return False
    with Ledger.open(place) as book:
        return book.remaining(terms.event) > 0


def _notes(table: Path) -> tuple[Path, Path]:
    """The notes about a table: by its place, and by its content."""
    folder = user_folder() / "tables"
    return folder / _hash(f"place {table.resolve()}"), folder / _hash(f"content {file_digest(table)}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---- what it has spent ----


def spending(place: Path, table: Path, terms: Any) -> str:
    """What the ledger has spent so far and will have spent after the study; and the table's other ledgers."""
    delta = f"at delta {terms.study.privacy.delta:g} ({terms.budget.neighbours})"
    lines = [
        f"Your ledger {place}: epsilon {_so_far(place, terms)} spent so far -> {_after(place, terms)} {delta}."
    ]
    for other in known_ledgers(table):
        if other != place:
            lines.append(f"Besides, {other} has spent epsilon {_so_far(other, terms)} on this table.")
    return "\n".join(lines)


def _so_far(place: Path, terms: Any) -> str:
    return _epsilon(place, terms, after=False)


def _after(place: Path, terms: Any) -> str:
    return _epsilon(place, terms, after=True)


def _epsilon(place: Path, terms: Any, after: bool) -> str:
    from discreet.accounting.account import account
    from discreet.events import Composition
    from discreet.guarantee import rounded_up
    from discreet.ledger import Ledger

    total: dict[Any, int] = {}
    taken = [0] * len(terms.event.parts())
    try:
        if place.exists():
            with Ledger.open(place) as book:
                total = book.statement().spent()
                run = book.runs().get(f"{terms.study.name}/{terms.party}")
            taken = taken if run is None else list(run.taken)
        if after:
            for (event, count), done in zip(terms.event.parts(), taken, strict=True):
                total[event] = total.get(event, 0) + count - done
        if not total:
            return "0"
        events = Composition(tuple((event, count) for event, count in total.items() if count))
        return rounded_up(account(events, terms.budget.neighbours).epsilon(terms.budget.delta))
    except (DiscreetError, ValueError) as error:
        return f"unknown ({type(error).__name__})"


# ---- one process at a time ----


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
