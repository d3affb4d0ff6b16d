"""``discreet ledger``: begin a ledger, see what was spent and what is left, and take its anchor.

A ledger is sealed with a key, by default in a file beside it, which whoever runs a fit must be able to read. Without
it nobody can tell whether the ledger was altered, so there must be a copy elsewhere; whoever has both can alter the
ledger unnoticed, so what binds them too is an anchor, taken after each run and kept with somebody else. It also gives
away an older copy of the ledger put in its place.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.accounting.gaussian import gaussian_epsilon_bounds
from discreet.cli.events import gaussian_budget, neighbour_options, unit_option
from discreet.cli.shell import FILE, NUMBER, CommandResult, group, table
from discreet.errors import InvalidParameter, LedgerUnavailable, PlanViolation
from discreet.events import Composition, Event
from discreet.files import parse_json, read_text, whole_file
from discreet.guarantee import Budget, Neighbours, Unit, lower_text, protected_unit, upper_text
from discreet.ledger import Anchor, FixedPlan, GaussianFilter, Ledger, TruncatedRenyiFilter
from discreet.ledger.filters import Filter, SpendingRule
from discreet.ledger.ledger_log import Run
from discreet.ledger.ledger_state import RunRecord, Statement
from discreet.plan.plan import Plan

if TYPE_CHECKING:
    from discreet.certificate import Certificate
    from discreet.ledger import Ledger
    from discreet.parties.party_plan import PartyPlan
    from discreet.plan import Plan


RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
RULES = ("gaussian", "truncated-renyi", "fixed-plan")
KEY_ADVICE = (
    "Whoever runs a fit needs it, and nobody else should be able to read it (chmod 600). Keep a copy apart from the "
    "ledger's backups: without the key nobody can tell whether the ledger was altered, with both it can be altered."
)
_SQLITE = b"SQLite format 3\0"
_LEAST = 1e-6  # the smallest epsilon that a fit takes


class NamedLedger(Ledger):
    """A ledger that puts ``label`` before the name of every run."""

    label = ""

    def run(
        self,
        event: Event,
        plan_hash: str,
        *,
        name: str = "run",
        data: str | None = None,
        distance: float = 0.0,
    ) -> Run:
        """As for every ledger."""
        return super().run(event, plan_hash, name=self.label + name, data=data, distance=distance)

    def runs(self) -> dict[str, RunRecord]:
        """As for every ledger, those with the label by the names that they were given here."""
        return {name.removeprefix(self.label): known for name, known in super().runs().items()}


def open_ledger(
    place: str, key: Path | None, *, anchor: Path | None = None, label: str = "", begin: bool = False
) -> Ledger:
    """The ledger at a path or a ``postgresql://`` address; all of it is verified.

    ``begin`` is true where a new one would do as well as an old one, and false where something is to be looked up.
    """
    if not place.startswith("postgresql"):
        _insist_on_ledger(Path(place), begin)
        _refuse_folder(key)
    earlier = None if anchor is None else Anchor.from_json(read_text(anchor))
    ledger = NamedLedger.open(place, key=key, anchor=earlier)
    assert isinstance(ledger, NamedLedger)
    ledger.label = label
    return ledger


def _insist_on_ledger(place: Path, begin: bool) -> None:
    """Raise, before any key is looked for, if there is no ledger here."""
    if not place.exists():
        remedy = f"; begin one: discreet ledger new {place} --epsilon 3 --delta 1e-6" if begin else ""
        raise FileNotFoundError(errno.ENOENT, f"there is no such ledger{remedy}", str(place))
    if place.is_file():
        with place.open("rb") as file:
            begins = file.read(len(_SQLITE))
        if begins == _SQLITE:
            return
    raise LedgerUnavailable(f"{place} is not a ledger: discreet ledger new makes one.")


def _refuse_folder(key: Path | None) -> None:
    if key is not None and key.is_dir():
        raise InvalidParameter("key", str(key), "is a folder; name the key file itself.")


place_argument = click.argument("ledger", metavar="LEDGER")
key_option = click.option(
    "--key", type=FILE, help="Key file of the ledger. Default: beside it, ending in .key."
)


@group("ledger")
def ledger() -> None:
    """Create and inspect ledgers: files that record every charge before its release.

    The key file beside a ledger authenticates its entries. Every fit needs it; nobody else should be able to read
    it. Store a copy apart from the ledger's backups. Store an anchor with a third party: it reveals whether the
    ledger was rewritten, even by an owner of the key, or replaced by an older copy.
    """


@ledger.command("new")
@place_argument
@click.option("--epsilon", type=NUMBER, help="The epsilon that all runs together may spend.")
@click.option("--delta", type=NUMBER, help="Should be well below 1 / number of records.")
@neighbour_options
@unit_option
@click.option(
    "--rule",
    type=click.Choice(RULES),
    help="Composition rule. Default: gaussian, which `discreet fit` needs.",
)
@click.option(
    "--plan", type=FILE, help="A plan.json with everything that may be released, or the largest planned part."
)
@key_option
def new(
    ledger: str,
    epsilon: float | None,
    delta: float | None,
    neighbours: Neighbours,
    group_size: int,
    unit: Unit,
    rule: str | None,
    plan: Path | None,
    key: Path | None,
) -> CommandResult:
    """Create a ledger at LEDGER, a path or a postgresql:// address.

    \b
    discreet ledger new ledger.sqlite --epsilon 3 --delta 1e-6
    discreet ledger new training.sqlite --plan plan.json
    """
    planned = None if plan is None else Plan.load(plan)
    rule = rule or ("gaussian" if planned is None else "fixed-plan")
    if rule == "fixed-plan" and planned is not None:
        upper = max(planned.guarantee.epsilon.upper, math.ulp(0.0))
        epsilon, delta = upper if epsilon is None else epsilon, planned.delta if delta is None else delta
        neighbours, group_size, unit = planned.neighbours, planned.group_size, planned.unit
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if value is None:
            raise InvalidParameter(name, None, "is needed: a ledger has a budget from its beginning.")
    assert epsilon is not None
    assert delta is not None
    _refuse_folder(key)
    if planned is None or rule != "fixed-plan":
        records = None if planned is None else planned.stages[0].records
        budget = gaussian_budget(epsilon, delta, neighbours, group_size, records, unit)
    else:
        budget = Budget(epsilon, delta, neighbours, group_size, unit)
    spends = _rule(rule, budget, planned)
    with Ledger.create(ledger, spends, key=key) as made:
        anchor = made.anchor()
    kept = str(key or f"{ledger}.key")
    data = {"ledger": ledger, "key": kept, "rule": spends.to_dict(), "anchor": asdict(anchor)}
    text = (
        f"{ledger}: {_words(spends)}\n\nThe key is in {kept}. {KEY_ADVICE}\n"
        f"What was rewritten, or is an older copy, is noticed by an anchor that somebody else keeps: discreet ledger "
        f"anchor {ledger}"
    )
    return CommandResult(data, text)


@ledger.command("show")
@place_argument
@key_option
@click.option("--anchor", type=FILE, help="An earlier anchor; refuse a ledger that is older.")
def show(ledger: str, key: Path | None, anchor: Path | None) -> CommandResult:
    """Show the budget of LEDGER, its runs, the spent part and the remainder, after verifying all entries."""
    with open_ledger(ledger, key, anchor=anchor) as book:
        statement, guarantee, head_now = book.statement(), book.guarantee(), book.anchor()
    spent, remaining = _share(statement.rule, statement.spent()), _remaining(statement)
    runs = [_run(run, statement.rule) for run in statement.runs]
    data = {
        "ledger": ledger,
        "rule": statement.rule.to_dict(),
        "budget": statement.rule.budget.to_dict(),
        "epsilon": guarantee.epsilon._asdict(),
        "spent": spent,
        "remaining": remaining,
        "runs": runs,
        "anchor": asdict(head_now),
    }
    head = [f"{ledger}: {_words(statement.rule)}", f"everything under it: {guarantee}"]
    head.append(f"spent {spent:.1%} of the budget; {_room_left(remaining)}")
    listed = table(("run", "reserved", "planned", "share"), _group_runs(runs)) if runs else "no runs yet"
    anchored = f"anchor {head_now.sequence} {head_now.hash}"
    return CommandResult(data, "\n".join([*head, "", listed, "", anchored]))


@ledger.command("anchor")
@place_argument
@key_option
def anchor(ledger: str, key: Path | None) -> CommandResult:
    """Print the anchor of LEDGER. Stored elsewhere, it reveals a rollback of the ledger.

    \b
    discreet ledger anchor ledger.sqlite > anchor.json
    discreet ledger show ledger.sqlite --anchor anchor.json
    """
    with open_ledger(ledger, key) as book:
        found = book.anchor()
    return CommandResult(asdict(found), found.to_json())


@ledger.command("entries")
@place_argument
@key_option
def entries(ledger: str, key: Path | None) -> CommandResult:
    """Print all entries of LEDGER, one per line, to verify a certificate without the ledger and its key."""
    with open_ledger(ledger, key) as book:
        lines = book.entries()
    return CommandResult({"entries": lines}, "\n".join(lines))


@ledger.command("certify")
@place_argument
@click.option("--study", "study_file", type=FILE, required=True, help="The study.toml of the study.")
@click.option("--party", required=True, help="Your name in the study.")
@click.option("--signing-key", type=FILE, help="Signing key: your own, or signing.key of the unpacked kit.")
@click.option("--out", type=FILE, default="certificate.json", show_default=True, help="Output file.")
@key_option
def certify(
    ledger: str, study_file: Path, party: str, signing_key: Path | None, out: Path, key: Path | None
) -> CommandResult:
    """Certify the spending of a party of a study from its own LEDGER, without the coordinator.

    \b
    discreet ledger certify mine.ledger --study study.toml --party hospital-a
    """
    from discreet.certificate.signatures import read_signing_key
    from discreet.cli.ledger import certificate_of
    from discreet.parties import Study
    from discreet.parties.party_plan import PartyPlan

    terms = PartyPlan(Study.load(study_file), party)
    with open_ledger(ledger, key) as book:
        found = certificate_of(book, Path(ledger), terms)
    made = found if signing_key is None else found.signed(read_signing_key(signing_key))
    made.save(out)
    epsilon = made.guarantee.epsilon.upper
    text = (
        f"{party} spent epsilon {upper_text(epsilon)} at delta {made.guarantee.delta:g}.\nCertificate: {out}"
    )
    return CommandResult({"certificate": out, "epsilon": epsilon, "digest": made.digest()}, text)


def _rule(name: str, budget: Budget, plan: Plan | None) -> SpendingRule:
    if name == "gaussian":
        return GaussianFilter(budget)
    if plan is None:
        raise InvalidParameter("plan", None, f"is needed for --rule {name}: discreet plan makes one.")
    if name == "fixed-plan":
        return FixedPlan(plan.event, budget)
    return TruncatedRenyiFilter.for_event(plan.stages[-1].charge, budget)


def _words(rule: SpendingRule) -> str:
    budget = rule.budget
    unit = protected_unit(budget.unit, budget.group_size)
    unit = f"one {unit}" if budget.group_size == 1 else f"a {unit}"
    return (
        f"epsilon {budget.epsilon:g} at delta {budget.delta:g} for all runs together, {budget.neighbours} "
        f"neighbours, {unit}, spent by a {rule.kind}"
    )


def _share(rule: SpendingRule, spent: Mapping[Event, int]) -> float:
    """Share of the budget that events use, in the units of the rule or as a part of the plan's releases."""
    if isinstance(rule, Filter):
        totals = zip(rule.totals(spent), rule.limits(), strict=True)
        return max(float(total / limit) for total, limit in totals)
    planned = sum(count for _, count in rule.event.parts()) if isinstance(rule, FixedPlan) else 0
    return sum(spent.values()) / planned if planned else 0.0


def _remaining(statement: Statement) -> dict[str, Any]:
    """Remaining budget: the epsilon of one more Gaussian release, or a number of planned releases."""
    rule, spent = statement.rule, statement.spent()
    if isinstance(rule, FixedPlan):
        return {"releases": sum(count - spent.get(part, 0) for part, count in rule.event.parts())}
    if isinstance(rule, GaussianFilter):
        if not spent:
            return {"epsilon": rule.budget.epsilon, "delta": rule.budget.delta}
        left = float(rule.limits()[0] - rule.totals(spent)[0]) * (1 - 1e-9)
        epsilon = gaussian_epsilon_bounds(rule.budget.delta, math.sqrt(left)).lower if left > 1e-12 else 0.0
        return {"epsilon": epsilon, "delta": rule.budget.delta}
    return {"share": 1 - _share(rule, spent)}


def _room_left(remaining: dict[str, Any]) -> str:
    if "releases" in remaining:
        return (
            f"{remaining['releases']:,} releases of the plan remain"
            if remaining["releases"]
            else "nothing more fits"
        )
    if "share" in remaining:
        return f"{remaining['share']:.1%} remains"
    if remaining["epsilon"] < _LEAST:
        return "nothing more fits"
    return f"one more fit of epsilon {lower_text(remaining['epsilon'])} at delta {remaining['delta']:g} fits"


def _group_runs(runs: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """A line for each run; the stages of a fit, which have names such as ``fit/counts``, share one."""
    lines: dict[str, list[Any]] = {}
    for run in runs:
        line = lines.setdefault(run["name"].partition("/")[0], [0, 0, 0.0])
        for place, word in enumerate(("reserved", "planned", "share")):
            line[place] += run[word]
    return [(name, f"{done:,}", f"{all_:,}", f"{share:.1%}") for name, (done, all_, share) in lines.items()]


def _run(run: RunRecord, rule: SpendingRule) -> dict[str, Any]:
    parts = run.event.parts()
    taken = {event: count for (event, _), count in zip(parts, run.taken, strict=True) if count}
    planned = sum(count for _, count in parts)
    return {
        "name": run.name,
        "plan": run.plan_hash,
        "reserved": sum(run.taken),
        "planned": planned,
        "share": _share(rule, taken),
        "event": Composition(parts).to_dict(),
    }


# A party's certificate from its own ledger, for a party that was away when its study came to its end.
#
# A ledger names what was carried out by a digest. In SGD1 that includes the coordinator's schedule, which the ledger
# does not hold, so ``discreet join`` keeps the plan beside the ledger.


def remember_plan(ledger: Path, run: str, plan: Plan) -> None:
    """Keep beside the ledger what this run carries out."""
    memory = _memory(ledger)
    known = parse_json(read_text(memory), memory.name) if memory.exists() else {}
    with whole_file(memory) as file:
        json.dump(known | {run: plan.to_dict()}, file)


def certificate_of(ledger: Ledger, place: Path, terms: PartyPlan) -> Certificate:
    """Certificate of a party's releases in a study and their cost, from its own ledger."""
    from discreet.parties.certifying import certify_party
    from discreet.plan import Plan

    run = f"{terms.study.name}/{terms.party}"
    plan, memory = terms.plan(), _memory(place)
    if memory.exists() and run in (known := parse_json(read_text(memory), memory.name)):
        plan = Plan.from_dict(known[run])
    if plan.settings.get("digest") != terms.study.digest():
        raise PlanViolation(f"The run {run} of this ledger belongs to another study of the same name.")
    return certify_party(terms, ledger, plan)


def _memory(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.procedures.json")
