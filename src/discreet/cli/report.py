"""``discreet report``: render a certificate as a readable page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from discreet.certificate import Certificate
from discreet.certificate.signatures import read_signing_key
from discreet.certificate.verification import insist_on_files
from discreet.cli.ledger import open_ledger
from discreet.cli.risk import RISK_OPTION
from discreet.cli.shell import CERTIFICATE, FILE, MODEL, CommandResult, command, refuse_existing
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.files import parse_json, read_text, whole_file
from discreet.report import Cover, Report
from discreet.report.risks import risk_from


@command("report")
@click.argument("certificate", type=FILE)
@click.option("--html", type=FILE, help="Write a self-contained HTML file.")
@click.option("--markdown", type=FILE, help="Write a Markdown file.")
@click.option("--facts", type=FILE, help="Write the same facts as a JSON file.")
@click.option("--title", default="Privacy report", show_default=True)
@click.option("--owner", default="", help="Owner of the data, for the cover.")
@click.option("--purpose", default="", help="Purpose of the model, for the cover.")
@click.option("--data-set", default="", help="Name of the data set, for the cover.")
@click.option("--record", default="", help="Description of one record, such as 'one person', for the cover.")
@click.option("--audit", type=FILE, help="Include an audit: the output of `discreet audit --json`.")
@click.option(
    "--observers", type=FILE, help="Include the observers: the output of `discreet study check --json`."
)
@click.option("--evaluation", type=FILE, help="Include an evaluation: the file of `discreet evaluate --out`.")
@RISK_OPTION
@click.option(
    "--ledger", type=str, help="The charged ledger; it records the whole HTML page for verification."
)
@click.option("--key", type=FILE, help="Key file of the ledger. Default: beside the ledger.")
@click.option("--sign-with", type=FILE, help="Sign the whole HTML page with this Ed25519 key (PEM file).")
@click.option(
    "--self-check", is_flag=True, help="Embed the verifier: the page recomputes its guarantee when opened."
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
def report(
    certificate: Path,
    title: str,
    owner: str,
    purpose: str,
    data_set: str,
    record: str,
    audit: Path | None,
    observers: Path | None,
    evaluation: Path | None,
    risks: tuple[tuple[str, str, str], ...],
    ledger: str | None,
    key: Path | None,
    sign_with: Path | None,
    self_check: bool,
    overwrite: bool,
    **forms: Path | None,
) -> CommandResult:
    """Report what a certificate guarantees, to whom, what it does not cover, and how to check it.

    \b
    discreet report certificate.json --html report.html
    discreet report model --owner 'County hospital' --record 'one person' --html report.html
    discreet report model --html report.html --ledger ledger.sqlite --sign-with key.pem

    CERTIFICATE is a file, or the folder of a model. The report recomputes every number. It marks a certificate
    whose claims do not follow, and refuses one that was altered. Without an output file, it is printed in
    Markdown.

    The certificate does not cover the other parts of the report: the owner's description, an evaluation, the
    model, an audit. With --sign-with or --ledger, `discreet verify` can verify the whole page. Otherwise it lists
    these parts as claimed.
    """
    wanted = {option: path for option, path in forms.items() if path is not None}
    for option, path in wanted.items():
        refuse_existing(option, path, overwrite)
    for option, value in (("ledger", ledger), ("sign_with", sign_with)):
        if value is not None and "html" not in wanted:
            raise InvalidParameter(option, str(value), "goes with --html: only a page can be vouched for.")
    if ledger is None and key is not None:
        raise InvalidParameter("key", str(key), "goes with --ledger.")
    signer = None if sign_with is None else read_signing_key(sign_with)
    found = _load_certificate(certificate)
    model = _model(certificate, found)
    page = Report(
        found,
        title,
        _read("audit", audit),
        _read("observers", observers),
        tuple(map(str, model.get("notes", ()))),
        Cover(owner, purpose, data_set, record),
        model or None,
        _read("evaluation", evaluation),
        tuple(risk_from(*one) for one in risks),
        self_check=self_check,
    )
    if signer is not None:
        page = page.signed(signer)
    if ledger is not None:
        with open_ledger(ledger, key) as book:
            found.verify(book)  # a ledger vouches only for reports of what it has paid
            book.issue("report", page.digest())
    texts: dict[str, Callable[[], str]] = {
        "html": page.to_html,
        "markdown": page.to_markdown,
        "facts": page.to_json,
    }
    for option, path in wanted.items():
        with whole_file(path) as file:
            file.write(texts[option]().rstrip("\n") + "\n")
    written = [str(path) for path in wanted.values()]
    data: dict[str, Any] = json.loads(page.to_json()) | {"written": written}
    return CommandResult(data, f"written to {', '.join(written)}" if written else page.to_markdown())


def _load_certificate(path: Path) -> Certificate:
    """The certificate in a file, or in the folder of a model."""
    try:
        return Certificate.load(path / CERTIFICATE if path.is_dir() else path)
    except InvalidParameter as error:
        if error.name != "digest":
            raise
        raise CertificateRejected(f"The certificate is rejected: its digest {error.requirement}") from None


def _model(folder: Path, certificate: Certificate) -> dict[str, Any]:
    """Read model.json from a folder if its model is the one that the certificate names."""
    if not folder.is_dir() or MODEL not in dict(certificate.files):
        return {}
    insist_on_files(certificate.files, folder)
    return parse_json(read_text(folder / MODEL), MODEL)


def _read(option: str, path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    data = parse_json(read_text(path), option)
    needed = {"audit": "summary", "observers": "observers", "evaluation": "overall"}[option]
    if not isinstance(data, dict) or needed not in data:
        raise InvalidParameter(
            option, str(path), f"holds no {needed!r}; give what the command printed with --json."
        )
    return data
