"""``discreet verify``: recompute a certificate, by two accountants, and say line by line what vouches for it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from discreet.certificate import Certificate
from discreet.certificate.certificate_file import read_certificate
from discreet.certificate.verdict_views import VerdictLine
from discreet.certificate.verification import COMPUTED, MISSING
from discreet.cli.ledger import open_ledger
from discreet.cli.refusals import UNVOUCHED
from discreet.cli.shell import CERTIFICATE, FILE, CommandResult, command
from discreet.errors import InvalidParameter
from discreet.files import read_text
from discreet.ledger import Ledger
from discreet.report.page import is_page, verify_page


@command("verify")
@click.argument("certificate", type=FILE)
@click.option("--ledger", type=str, help="Compare the certificate with this ledger.")
@click.option("--key", type=FILE, help="Key file of the ledger. Default: beside the ledger.")
@click.option(
    "--entries", type=FILE, help="Compare with a copy of its entries, from `discreet ledger entries`."
)
@click.option("--signed-by", help="Require a signature by this public key (hexadecimal).")
def verify(
    certificate: Path, ledger: str | None, key: Path | None, entries: Path | None, signed_by: str | None
) -> CommandResult:
    """Verify CERTIFICATE: a certificate file, the page of a report, or the folder of a model.

    \b
    discreet verify model --ledger ledger.sqlite
    discreet verify model --signed-by 3b6a27bc...
    discreet verify report.html --signed-by 3b6a27bc...

    \b
    exit status 0  accepted: the numbers hold, and a ledger or a trusted key confirms the rest
    exit status 1  rejected: the certificate was altered, or its claims do not follow
    exit status 3  consistent: the numbers follow from each other, but some facts are only claimed

    Each line of the output names its evidence: computed here, in the ledger, signed, or claimed. Anybody can
    change what is only claimed. In a folder, the weights and model.json must match the certificate. The page of a
    report is accepted if the whole page was signed or recorded: discreet report --sign-with, --ledger.
    """
    folder = certificate if certificate.is_dir() else None
    path = certificate if folder is None else folder / CERTIFICATE
    joint = (folder or certificate.parent) / "joint.json"
    if certificate == joint or (joint.exists() and not path.exists()):
        remedy = f"is of a study, in which every party has a certificate: discreet study verify {joint}."
        raise InvalidParameter("certificate", str(certificate), remedy)
    with ExitStack() as stack:
        book: Ledger | list[str] | None = None
        if ledger is not None:
            book = stack.enter_context(open_ledger(ledger, key))
        elif entries is not None:
            book = read_text(entries).splitlines()
        if path.is_file() and is_page(read_text(path)):
            report, result = verify_page(path, book, signed_by)
            found = report.certificate
        else:
            found = read_certificate(path)
            result = found.verify(book, signed_by=signed_by, folder=folder)
    if folder is not None:
        result = replace(result, lines=(*result.lines, _whole(folder, found)))
    guarantee = result.guarantee
    data = {
        "outcome": result.outcome,
        "accepted": result.vouched,
        "digest": found.digest(),
        "epsilon": guarantee.epsilon._asdict(),
        "delta": guarantee.delta,
        "neighbours": guarantee.neighbours,
        "group_size": guarantee.group_size,
        "unit": guarantee.unit,
        "observer": guarantee.observer,
        "model": folder is not None,
        "files": dict(found.files),
        "findings": list(result.findings),
        "claimed": list(result.claimed),
        "versions": dict(found.versions),
        "not_covered": list(found.not_covered),
    }
    return CommandResult(data, f"{path}: {result}", status=0 if result.vouched else UNVOUCHED)


def _whole(folder: Path, certificate: Certificate) -> VerdictLine:
    """That the model in the folder is the certificate's, or it is rejected."""
    try:  # what it needs takes seconds to import
        from discreet.linear.model_folder import WHOLE, verified_model
    except ImportError:  # of a light installation; the digests were compared all the same
        return VerdictLine(
            MISSING, "what compares weights with model.json: install Discreet with its extra 'tables'"
        )
    if (folder / "evaluation.json").exists():
        return VerdictLine(COMPUTED, _joint(folder, certificate) or WHOLE)
    verified_model(folder, certificate)
    return VerdictLine(COMPUTED, _joint(folder, certificate) or WHOLE)


def _joint(folder: Path, certificate: Certificate) -> str | None:
    """That the weights are the model on every screen of the study, if it is one."""
    study = certificate.plan.settings.get("study")
    if study is None:
        return None
    from discreet.adapters.joint_study import joint_of
    from discreet.parties.study import Study

    joint = joint_of(Study.from_dict(study))
    return joint.insist_on(folder, joint.digest_in(folder))
