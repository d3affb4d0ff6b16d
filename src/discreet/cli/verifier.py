"""``discreet verifier``: write the page that verifies certificates and reports in a browser."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from discreet.cli.shell import FILE, CommandResult, command, refuse_existing
from discreet.files import whole_file
from discreet.report.verifier_page import verifier_page


@command("verifier")
@click.argument("path", type=FILE, default=Path("verify.html"))
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def verifier(path: Path, overwrite: bool) -> CommandResult:
    """Write PATH, one static page that verifies certificates and reports without installation or network.

    \b
    discreet verifier verify.html

    Whoever receives a report drops it on this page and enters the public key that they trust. The page recomputes
    the guarantee with an accountant of its own, checks digests and signatures, and has the outcomes of `discreet
    verify`: accepted, rejected, consistent. It cannot compare a certificate with its ledger.
    """
    refuse_existing("path", path, overwrite)
    text = verifier_page()
    with whole_file(path) as file:
        file.write(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return CommandResult(
        {"written": str(path), "sha256": digest}, f"written to {path}; its SHA-256 is {digest}"
    )
