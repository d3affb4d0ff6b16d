"""A party's certificate from its own ledger, for a party that was away when its study came to its end.

A ledger names what was carried out by a digest. In SGD1 that includes the coordinator's schedule, which the ledger
does not hold, so ``discreet join`` keeps the plan beside the ledger.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.documents import parsed, read_text
from discreet.errors import PlanViolation
from discreet.files import whole_file

if TYPE_CHECKING:
    from discreet.certificate import Certificate
    from discreet.ledger import Ledger
    from discreet.parties import Terms
    from discreet.plan import Plan


def remember_plan(ledger: Path, run: str, plan: Plan) -> None:
    """Keep beside the ledger what this run carries out."""
    memory = _memory(ledger)
    known = parsed(read_text(memory), memory.name) if memory.exists() else {}
    with whole_file(memory) as file:
        json.dump(known | {run: plan.to_dict()}, file)


def certificate_of(ledger: Ledger, place: Path, terms: Terms) -> Certificate:
    """What a party has released in a study, and what it cost at most, as its ledger says."""
    from discreet.parties.party import certified
    from discreet.plan import Plan

    run = f"{terms.study.name}/{terms.party}"
    plan, memory = terms.plan(), _memory(place)
    if memory.exists() and run in (known := parsed(read_text(memory), memory.name)):
        plan = Plan.from_dict(known[run])
    if plan.settings.get("digest") != terms.study.digest():
        raise PlanViolation(f"The run {run} of this ledger belongs to another study of the same name.")
    return certified(terms, ledger, plan)


def _memory(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.procedures.json")
