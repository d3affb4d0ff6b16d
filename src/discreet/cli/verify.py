"""``discreet verify``: recompute a certificate, by two accountants, and say what was found."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from discreet.certificate import Certificate
from discreet.certificate.verification import Verification
from discreet.cli.certificates import read_certificate
from discreet.cli.files import CERTIFICATE
from discreet.cli.ledger import opened
from discreet.cli.shell import FILE, Answer, command
from discreet.documents import read_text
from discreet.ledger import Ledger


@command("verify")
@click.argument("certificate", type=FILE)
@click.option("--ledger", type=str, help="The ledger: the certificate must say what it says.")
@click.option("--key", type=FILE, help="The ledger's key file, if it is not beside it.")
@click.option(
    "--entries", type=FILE, help="The ledger's entries, if it is not at hand: discreet ledger entries."
)
@click.option("--signed-by", help="A public key, in hexadecimal, whose signature is required.")
def verify(
    certificate: Path, ledger: str | None, key: Path | None, entries: Path | None, signed_by: str | None
) -> Answer:
    """Recompute CERTIFICATE, a file or the folder of a model. The exit status is 1 if it is rejected.

    \b
    discreet verify model --ledger ledger.sqlite

    In a folder, weights and coefficients must be those that model.json names, and the certificate too. A
    certificate alone says nothing about which weights it is for.
    """
    folder = certificate if certificate.is_dir() else None
    path = certificate if folder is None else folder / CERTIFICATE
    found = read_certificate(path)
    with ExitStack() as stack:
        book: Ledger | list[str] | None = None
        if ledger is not None:
            book = stack.enter_context(opened(ledger, key))
        elif entries is not None:
            book = read_text(entries).splitlines()
        result = found.verify(book, signed_by=signed_by)
    findings = (*result.findings, _weights(folder, found))
    guarantee = result.guarantee
    data = {
        "accepted": True,
        "digest": found.digest(),
        "epsilon": guarantee.epsilon._asdict(),
        "delta": guarantee.delta,
        "neighbours": guarantee.neighbours,
        "group_size": guarantee.group_size,
        "observer": guarantee.observer,
        "model": folder is not None,
        "findings": list(findings),
        "not_covered": list(found.not_covered),
    }
    return Answer(data, f"{path}: {Verification(guarantee, findings)}")


def _weights(folder: Path | None, certificate: Certificate) -> str:
    """Whether the model in the folder is the certificate's, or that nobody can tell without a folder."""
    from discreet.cli.belonging import BARE, WHOLE, verified_model  # what it needs takes seconds to import

    if folder is None:
        return BARE
    verified_model(folder, certificate)
    return WHOLE
