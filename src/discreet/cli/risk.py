"""``discreet risk``: what does a certificate mean for one person?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from discreet.certificate import Certificate
from discreet.cli.shell import CERTIFICATE, FILE, CommandResult, command, table
from discreet.report.risks import KINDS, assess_all, risk_from, risk_table, risk_to_dict

RISK_OPTION = click.option(
    "--risk",
    "risks",
    type=(click.Choice(list(KINDS)), str, str),
    multiple=True,
    metavar="KIND BASELINE WHAT",
    help="An attack, its chance without the results, and what it finds out; may be repeated.",
)


@command("risk")
@click.argument("certificate", type=FILE)
@RISK_OPTION
def risk(certificate: Path, risks: tuple[tuple[str, str, str], ...]) -> CommandResult:
    """How often can an attack on one person succeed?

    \b
    discreet risk model
    discreet risk certificate.json --risk reconstruction 1/3650 'a date of birth'
    discreet risk certificate.json --risk attribute-inference 0.03 'the diagnosis'

    CERTIFICATE is a file, or the folder of a model. The baseline is the attacker's chance without the results: it
    includes what they know of the person, and what follows from the other records. Every bound is proved.
    """
    found = Certificate.load(certificate / CERTIFICATE if certificate.is_dir() else certificate)
    found.verify()
    asked = tuple(risk_from(kind, baseline, what) for kind, baseline, what in risks)
    bounds = assess_all(found, asked)
    data: dict[str, Any] = {
        "guarantee": str(found.guarantee),
        "risks": [
            risk_to_dict(bound.risk) | {"success_at_most": bound.success.upper, "sentence": str(bound)}
            for bound in bounds
        ],
    }
    rows = table(("attack", "guessing", "at most", "factor"), risk_table(bounds))
    return CommandResult(
        data, "\n\n".join([rows, "\n".join(map(str, bounds)), f"The results are {found.guarantee}."])
    )
