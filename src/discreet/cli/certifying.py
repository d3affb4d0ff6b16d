"""A party's certificate from its own ledger, for a party that was away when its study came to its end.

A ledger names what was carried out by a digest. In SGD1 that includes the coordinator's schedule, which the ledger
does not hold, so ``discreet join`` keeps the procedure beside the ledger.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.documents import parsed, read_text
from discreet.errors import PlanViolation
from discreet.files import whole_file

if TYPE_CHECKING:
    from discreet.certificate import Certificate, Procedure
    from discreet.ledger import Ledger
    from discreet.parties import Terms


def remember_procedure(ledger: Path, run: str, procedure: Procedure) -> None:
    """Keep beside the ledger what this run carries out."""
    memory = _memory(ledger)
    known = parsed(read_text(memory), memory.name) if memory.exists() else {}
    with whole_file(memory) as file:
        json.dump(known | {run: procedure.to_dict()}, file)


def certificate_of(ledger: Ledger, place: Path, terms: Terms) -> Certificate:
    """What a party has released in a study, and what it cost at most, as its ledger says."""
    from discreet.certificate import Procedure
    from discreet.parties.party import certified

    run = f"{terms.study.name}/{terms.party}"
    procedure, memory = terms.procedure(), _memory(place)
    if memory.exists() and run in (known := parsed(read_text(memory), memory.name)):
        procedure = Procedure.from_dict(known[run])
    if procedure.settings.get("digest") != terms.study.digest():
        raise PlanViolation(f"The run {run} of this ledger belongs to another study of the same name.")
    return certified(terms, ledger, procedure)


def _memory(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.procedures.json")
