"""``discreet join``: a party of a study, with its own table, its own ledger and its own consent."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import click

from discreet.cli.ledger import remember_plan
from discreet.cli.shell import FILE, NUMBER, CommandResult, Tenths, command, ignore_interrupts, note, progress
from discreet.cli.watching import EpsilonSoFar, charged_so_far, digest_line, may_be_asked, study_table
from discreet.errors import CannotConnect, InvalidParameter, NotConsented, NotYet, PartyStopped, real, whole
from discreet.files import read_text, whole_file, write_whole
from discreet.guarantee import upper_text

_INTERRUPTED = "What was released by then is in the ledger; join again with the same ledger to go on."
_POLL = 0.5
ROSTER = "roster.json"


@command("join", interrupted=_INTERRUPTED, renamed={"path": "STUDY", "holder.records": "--data"})
@click.argument("study_file", metavar="STUDY", type=FILE)
@click.option(
    "--data", type=FILE, required=True, help="Your table, CSV or Parquet. It stays on this machine."
)
@click.option("--kit", "kit_file", type=FILE, required=True, help="Your kit, from the coordinator.")
@click.option("--key", type=FILE, help="Your own signing key, if the kit holds none.")
@click.option(
    "--ledger",
    type=FILE,
    help="Ledger to charge. Default: the ledger of this table in your data folder.",
)
@click.option(
    "--anchor",
    type=FILE,
    help="Anchor of the ledger, stored elsewhere; refuse a ledger that is older.",
)
@click.option("--out", type=FILE, help="Folder for certificate and model. Default: STUDY-PARTY.")
@click.option(
    "--approver",
    "approvers",
    multiple=True,
    metavar="KEY",
    help="Join only if the owner of this public key approved the study. Repeatable.",
)
@click.option("--approvals", type=NUMBER, help="Number of approvals that suffice. Default: all approvers.")
@click.option("--yes", is_flag=True, help="Consent without a prompt.")
@click.option(
    "--keep-certificate",
    is_flag=True,
    help="Do not send your signed certificate to the coordinator.",
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
    anchor: Path | None,
    out: Path | None,
    approvers: tuple[str, ...],
    approvals: int | None,
    yes: bool,
    keep_certificate: bool,
    wait: float,
) -> CommandResult:
    """Take part in the study STUDY with your own table.

    \b
    discreet join study.toml --data mine.csv --kit hospital-a.zip

    The command shows the cost against each observer and asks for your consent once. It charges your ledger and
    adds noise before anything leaves this machine. You may stop and join again at any time. After the end, the
    coordinator sends the model again (`discreet coordinate --serve`), and nothing is charged.
    """
    from discreet.adapters.joint_study import joint_of
    from discreet.ledger import Till
    from discreet.ledger.ledger_state import Anchor
    from discreet.parties import Party, Study
    from discreet.parties.ledger_heads import LedgerHeads
    from discreet.parties.network.kits import open_kit
    from discreet.parties.network.nvflare import connect
    from discreet.parties.party_plan import PartyPlan
    from discreet.parties.table_ledger import (
        answers_folder,
        kit_lock,
        ledger_lock,
        notes_folder,
        paying_ledger,
        remember,
        table_lock,
    )

    patience = real("wait", wait, above=0)
    earlier = None if anchor is None else Anchor.from_json(read_text(anchor))
    study = Study.load(study_file)
    model, locks = joint_of(study), click.get_current_context()
    locks.with_resource(kit_lock(kit_file))
    kit = open_kit(kit_file)
    kit.check(study)
    if kit.is_coordinator:
        raise CannotConnect(f"{kit_file.name} is the kit of the coordinator; use that of your party.")
    insist_on_approvers(study_file, study, approvers, approvals)
    terms, signing_key = PartyPlan(study, kit.party), kit.signing_key(key)
    if ledger is None:
        locks.with_resource(table_lock(data))
    place = paying_ledger(data, ledger, terms)
    locks.with_resource(ledger_lock(place, study.name, kit.party))
    heads = LedgerHeads(place, kit.folder, notes_folder(), given=earlier)
    heads.insist_on_newest()
    folder = (out or Path(f"{study.name}-{kit.party}")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    holder = model.holder(data)
    if unlike := model.unlike_declared(data):
        note(
            f"no cell of {', '.join(unlike)} in {data.name} is as the study declares it, so all of them count as "
            "missing, or as no; compare the study file with your table. This is said to you alone."
        )
    _ask_consent(terms, kit, place, data, yes)
    remember(data, place)
    with Till.open(place, terms.plan()) as till:
        book = till.ledger
        heads.check(book)
        party = Party(
            kit.party,
            study,
            holder,
            book,
            signing_key,
            kit.roster,
            shows_certificate=not keep_certificate,
            keep_head=heads.keep,
            log=answers_folder(place, study, kit.party),
        )
        party.prepare()
        end = time.monotonic() + patience
        _reach(kit, end)
        with connect(kit, party.answer, end - time.monotonic(), dimension=study.dimension) as line:
            note(f"{kit.party} has joined {study.name}.")
            ending = _follow(party, line, book, place)
            line.linger()
        ignore_interrupts()  # the model is here: it is written, and told, whatever is pressed now
        written = model.write(folder, ending.theta)
        write_whole(folder / ROSTER, kit.path(ROSTER).read_bytes())
        certificate = (
            party.certificate().for_files(*written, folder / ROSTER, ledger=book).signed(signing_key)
        )
    path = folder / "certificate.json"
    certificate.save(path)
    epsilon = certificate.guarantee.epsilon.upper
    exact = (
        ""
        if certificate.arithmetic.kind == "hardened"
        else ", proved for real numbers only (float arithmetic)"
    )
    text = f"{kit.party} spent epsilon {upper_text(epsilon)} at delta {study.privacy.delta:g}{exact}.\n"
    text += f"Certificate: {path}\n{model.made}: {folder}\n{model.describe(ending.theta)}"
    text += digest_line(ending, model.made)
    return CommandResult(
        {"certificate": path, "epsilon": epsilon, "out": folder, "model": ending.model}, text
    )


def _ask_consent(terms: Any, kit: Any, ledger: Path, table: Path, yes: bool) -> None:
    """Show what is agreed to, and ask once for a study with these keys; the answer is kept beside the ledger."""
    from discreet.parties.certifying import not_covered
    from discreet.parties.table_ledger import spending, spent_elsewhere

    study, memory = terms.study, ledger.with_name(f"{ledger.name}.consent.json")
    agreed = json.loads(memory.read_text()) if memory.exists() else []
    if kit.digest in agreed:
        note(f"{kit.party} has consented to study {study.digest()[:12]}, roster {kit.fingerprint}, before.")
        note(spending(ledger, table, terms))
        return
    click.echo(f"{study_table(study)}{may_be_asked(study)}\n", err=True)
    exclusions = "\n".join(f"  {text}" for text in not_covered(study))
    click.echo(f"Not covered:\n{exclusions}\n", err=True)
    click.echo(
        f"You are {kit.party}, with {study.records_of(kit.party)} {study.privacy.unit}s. Roster {kit.fingerprint}.\n"
        f"{spending(ledger, table, terms)}\n"
        f"The study costs you epsilon {upper_text(terms.budget.epsilon)} at delta {study.privacy.delta:g} "
        f"({study.privacy.neighbours}), and nothing beyond that can be asked of you.\n"
        "At the end the coordinator gets your signed certificate, which names all runs of this ledger; "
        "--keep-certificate keeps it here.",
        err=True,
    )
    if elsewhere := spent_elsewhere(ledger, table, terms):
        _refuse_second_budget(ledger, table, elsewhere, yes)
    if not (yes or _agrees("Do you consent?")):
        raise NotConsented("You did not consent: nothing was sent and nothing was spent.")
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(memory) as file:
        json.dump([*agreed, kit.digest], file)


def _refuse_second_budget(ledger: Path, table: Path, elsewhere: list[str], yes: bool) -> None:
    """Show this user's other ledgers and ask whether one of them has paid for records of this table."""
    lines = "\n".join(elsewhere)
    click.echo(f"You have other ledgers, for other tables. They have spent:\n{lines}", err=True)
    if yes:
        note(f"with --yes you say that none of them has paid for records of {table.name}.")
    elif _agrees(f"Has one of them paid for records that are in {table.name} too?", default=None):
        raise NotConsented(
            f"{ledger.name} would be a second budget for the same records. Name the ledger that has paid for them "
            "with --ledger, if it has room for this study. Nothing was sent and nothing was spent."
        )


def _agrees(question: str, default: bool | None = False) -> bool:
    try:
        return click.confirm(question, default=default, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        needed = (
            "must be given where nobody can be asked; or join once by hand, in a terminal. Nothing was sent."
        )
        raise InvalidParameter("yes", None, needed) from None


def insist_on_approvers(
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


def _reach(kit: Any, end: float) -> None:
    """Knock until the coordinator is there; trouble that does not pass by itself is said at once."""
    from discreet.parties.network.connections import probe_coordinator

    told = ""
    while True:
        try:
            return probe_coordinator(kit)
        except NotYet as error:
            if time.monotonic() > end:
                raise
            if str(error) != told:
                told = str(error)
                note(f"{error} Waiting.")
            time.sleep(1.0)


_REFUSED = {
    "MALFORMED": "it made no sense, or was not signed with the coordinator's key in the roster",
    "OTHER_STUDY": "it was for another study, or for another party",
    "OTHER_PLAN": "it was for another schedule than the one that this ledger began. The coordinator may have lost "
    "its state file: it must start with that one, or agree on a study of another name",
    "BEYOND_PLAN": "it was for more than was agreed",
    "OTHER_REQUEST": "it asked for a round once more, with another model",
    "NOT_ALLOWED": "it asked a question that the study does not allow",
}
"""What the owner is told; a round that is over, or that was not begun, is asked for whenever a site was restarted."""


def _tell_refusals(party: Any, told: set[str]) -> None:
    """Say once for each reason that requests are refused; the coordinator gets a number and cannot say it here."""
    for reason in list(party.refused):
        if reason.name in _REFUSED and reason.name not in told:
            told.add(reason.name)
            note(f"a request of the coordinator was refused: {_REFUSED[reason.name]}.")


def _follow(party: Any, line: Any, book: Any, place: Path) -> Any:
    """The end of the study; until then, show what the ledger has charged, and nothing else."""
    terms, known = party.terms, False
    spending, name = EpsilonSoFar(terms), f"{terms.study.name}/{terms.party}"
    tenths, here = Tenths(terms.steps), True
    told: set[str] = set()
    with progress("{task.fields[state]}", "{task.fields[spent]}") as bar:
        task = bar.add_task(terms.party, total=terms.steps, state="waiting", spent="")
        while not party.wait(_POLL):
            line.check()
            _tell_refusals(party, told)
            charged, part = charged_so_far(terms, book)
            if not known and party.plan is not None:
                remember_plan(place, name, party.plan)
                known = True
            most = "" if terms.study.algorithm == "recipe" else f" of {terms.steps}"
            state = f"{charged}{most} charged" if line.connected else "coordinator away"
            if not bar.disable:
                bar.update(task, completed=part * terms.steps, state=state, spent=spending.at(part))
                continue
            tenths.at(int(part * terms.steps), f"{state}, {spending.at(part)}.")
            if here != line.connected:
                here = line.connected
                note("the coordinator is back." if here else "the coordinator is away; waiting for it.")
    if party.ending is not None:
        return party.ending
    raise PartyStopped(
        f"{terms.party} has stopped: {party.stopped}. Nothing more leaves; repair it, and join again with the same "
        "ledger to go on."
    )
