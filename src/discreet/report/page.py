"""Reading a report's page back, and the verdict on it.

A page could be given other words around the same certificate. So it is written again from what it carries, and has to
be the same, letter by letter, where the versions of what computes the words are the same. That shows that the words
on the guarantee follow from the certificate. It shows nothing about the rest: anybody can make a page with another
title, cover, evaluation, model, audit or note around an honest certificate. Only a signature on the whole page, or a
ledger that says that this page was issued, vouches for those.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike

from discreet.certificate import Certificate, Verification
from discreet.certificate.certificate_views import current_versions
from discreet.certificate.signatures import Signature
from discreet.certificate.verdict_views import VerdictLine
from discreet.certificate.verification import (
    CLAIMED,
    COMPUTED,
    RECORDED,
    SIGNED,
    issued_in,
    verify_certificate,
)
from discreet.errors import CertificateRejected, DiscreetError, InvalidParameter
from discreet.files import parse_json, read_text
from discreet.report.cover import Cover
from discreet.report.report import CLOSE, END, FORMAT, OPEN, OPEN_SIGNATURES, Report, page_digest
from discreet.report.risks import risk_from_dict

SAME = "what the page says of the guarantee follows from its certificate, letter by letter"
OTHER = (
    "the words of the page: other versions wrote them, so they were not compared; believe the numbers here"
)
_PARTS = {
    "evaluation": "the evaluation: how good the model is, and what measuring it cost",
    "model": "the model: effects and curves",
    "notes": "the notes on the table",
    "observers": "the observers: who can learn what",
    "risks": "the chances of attackers without the results; the bounds with them follow from these",
    "audit": "the audit",
}
"""What a page may show beside the certificate and the owner's words."""


@dataclass(frozen=True)
class Page:
    """A page that was read back."""

    report: Report
    digest: str
    same: bool
    """Whether the page says, letter by letter, what this version writes for the same report."""


def is_page(text: str) -> bool:
    """True if this is a page, not JSON."""
    return text.lstrip()[:15].lower() == "<!doctype html>"


def verify_page(
    path: str | PathLike[str], ledger: object = None, signed_by: str | None = None
) -> tuple[Report, Verification]:
    """The report of a page, and the verdict on all that it shows; or
    :class:`~discreet.errors.CertificateRejected`.

    Guarantee: the verdict accepts a page only if ``ledger`` says that this very page was issued, or the key
    ``signed_by`` has signed it, and if every number in its certificate follows.
    """
    page = read_page(path)
    keys = set()
    for signature in page.report.signatures:
        if not signature.valid(page.digest, "report"):
            raise CertificateRejected(
                f"{path} is rejected: the signature of {signature.public_key[:12]} is not of this page."
            )
        keys.add(signature.public_key)
    behind = [SIGNED] if signed_by in keys else []
    try:
        if ("report", page.digest) in issued_in(ledger):
            behind.append(RECORDED)
    except DiscreetError as error:
        raise CertificateRejected(f"{path} is rejected: {error}") from error
    certified_by = None if SIGNED in behind else signed_by
    found = verify_certificate(page.report.certificate, ledger, certified_by, covered=behind)
    lines = _vouched(page, " and ".join(sorted(behind))) if behind else _claimed(page)
    return page.report, replace(found, lines=(*found.lines, *lines))


def _vouched(page: Page, basis: str) -> Iterator[VerdictLine]:
    yield VerdictLine(
        basis, f"the page as a whole, every word of it; its SHA-256 without signatures is {page.digest}"
    )
    if page.same:
        yield VerdictLine(COMPUTED, SAME)


def _claimed(page: Page) -> Iterator[VerdictLine]:
    report = page.report
    yield VerdictLine(COMPUTED, SAME) if page.same else VerdictLine(CLAIMED, OTHER)
    cover = [name.replace("_", " ") for name, value in vars(report.cover).items() if value]
    yield VerdictLine(CLAIMED, f"the owner's words: {', '.join(['title', *cover])}")
    for name, words in _PARTS.items():
        if getattr(report, name):
            yield VerdictLine(CLAIMED, words)


def read_page(path: str | PathLike[str]) -> Page:
    """The report of a page, or :class:`~discreet.errors.CertificateRejected`. It is not verified yet.

    Guarantee: with the same versions at hand, a page with other words than those that follow is rejected.
    """
    text = read_text(path)
    try:
        unsigned, signatures = _without_signatures(text)
        carried, versions = _read_carried(unsigned)
        report = replace(carried, signatures=signatures)
        same = report.to_html() == text.strip()
    except (DiscreetError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        altered = isinstance(error, InvalidParameter) and error.name == "digest"
        reason = (
            "the certificate in it was altered or damaged."
            if altered
            else "it carries no whole report of ours."
        )
        raise CertificateRejected(f"{path} is rejected: {reason}") from None
    if not same and versions == dict(current_versions()):
        raise CertificateRejected(
            f"{path} is rejected: the page was altered. Its words are not those that follow from the certificate in "
            "it; pages that a browser or a mail program has saved again are altered, too."
        )
    return Page(report, page_digest(unsigned), same)


def _without_signatures(page: str) -> tuple[str, tuple[Signature, ...]]:
    """The page as it was signed, and its signatures, which are one line at a fixed place."""
    text = page.strip()
    body, _, last = text.removesuffix(END).rpartition("\n")
    if not (text.endswith(END) and last.startswith(OPEN_SIGNATURES) and last.endswith(CLOSE)):
        return text, ()
    signatures = json.loads(last.removeprefix(OPEN_SIGNATURES).removesuffix(CLOSE))
    return body + END, tuple(Signature(**signature) for signature in signatures)


def _read_carried(page: str) -> tuple[Report, dict[str, str]]:
    _, found, rest = page.partition(OPEN)
    if not found or OPEN in rest:
        raise ValueError("no report, or two of them")
    data = parse_json(rest.partition(CLOSE)[0], "report")
    if data.pop("format") != FORMAT:
        raise ValueError("another format")
    versions = data.pop("versions")
    certificate = Certificate.from_json(json.dumps(data.pop("certificate")))
    cover, notes = Cover(**data.pop("cover")), tuple(map(str, data.pop("notes")))
    risks = tuple(map(risk_from_dict, data.pop("risks", ())))
    return Report(certificate, cover=cover, notes=notes, risks=risks, **data), versions
