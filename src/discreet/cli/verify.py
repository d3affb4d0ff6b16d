"""``discreet verify``: recompute a certificate, by two accountants, and say what was found."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from discreet.certificate import Certificate
from discreet.cli.files import CERTIFICATE
from discreet.cli.ledger import opened
from discreet.cli.shell import FILE, Answer, command
from discreet.documents import read_text
from discreet.errors import CertificateRejected, InvalidParameter
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
    discreet verify model/certificate.json --ledger ledger.sqlite
    """
    path = certificate / CERTIFICATE if certificate.is_dir() else certificate
    found = _read(path)
    with ExitStack() as stack:
        book: Ledger | list[str] | None = None
        if ledger is not None:
            book = stack.enter_context(opened(ledger, key))
        elif entries is not None:
            book = read_text(entries).splitlines()
        result = found.verify(book, signed_by=signed_by)
    guarantee = result.guarantee
    data = {
        "accepted": True,
        "digest": found.digest(),
        "epsilon": guarantee.epsilon._asdict(),
        "delta": guarantee.delta,
        "neighbours": guarantee.neighbours,
        "group_size": guarantee.group_size,
        "observer": guarantee.observer,
        "findings": list(result.findings),
        "not_covered": list(found.not_covered),
    }
    return Answer(data, f"{path}: {result}")


def _read(path: Path) -> Certificate:
    """The certificate in a file; a text that is none, or was altered, is rejected without being quoted."""
    try:
        return Certificate.from_json(read_text(path))
    except InvalidParameter as error:
        name = "its digest " if error.name == "digest" else "it "
        raise CertificateRejected(f"{path} is rejected: {name}{_plainly(error)}") from None


def _plainly(error: InvalidParameter) -> str:
    known = error.name in ("digest", "certificate")
    return error.requirement if known else f"holds a wrong {error.name}; {error.requirement}"
