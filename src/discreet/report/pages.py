"""Reading a report's page back: it carries its certificate, so the page alone can be verified.

A page could be given other words around the same certificate. So it is written again from what it carries, and has
to be the same, letter by letter, where the versions of what computes the words are the same.
"""

from __future__ import annotations

import json
from os import PathLike

from discreet.certificate import Certificate
from discreet.certificate.certificate import current_versions
from discreet.documents import parsed, read_text
from discreet.errors import CertificateRejected, DiscreetError, InvalidParameter
from discreet.report.cover import Cover
from discreet.report.report import CLOSE, FORMAT, OPEN, Report

SAME = "the page says what follows from its certificate, letter by letter; owner, purpose and the like are claims"
OTHER = "the page was written with other versions, so its words were not compared: believe the numbers here"


def is_page(text: str) -> bool:
    """True if this is a page, not JSON."""
    return text.lstrip()[:15].lower() == "<!doctype html>"


def read_page(path: str | PathLike[str]) -> tuple[Report, str]:
    """The report of a page, and what was found of its words; or
    :class:`~discreet.errors.CertificateRejected`.

    Guarantee: with the same versions at hand, a page with other words than those that follow is rejected. What the
    owner says, and audit, observers and model as they were given, are claims: a signature covers the certificate.
    """
    text = read_text(path)
    try:
        report, versions = _carried(text)
        again = report.to_html()
    except (DiscreetError, ValueError, TypeError, LookupError, AttributeError) as error:
        altered = isinstance(error, InvalidParameter) and error.name == "digest"
        reason = (
            "the certificate in it was altered or damaged."
            if altered
            else "it carries no whole report of ours."
        )
        raise CertificateRejected(f"{path} is rejected: {reason}") from None
    if again.strip() == text.strip():
        return report, SAME
    if versions != dict(current_versions()):
        return report, OTHER
    raise CertificateRejected(
        f"{path} is rejected: the page was altered. Its words are not those that follow from the certificate in it; "
        "pages that a browser or a mail program has saved again are altered, too."
    )


def _carried(page: str) -> tuple[Report, dict[str, str]]:
    _, found, rest = page.partition(OPEN)
    if not found or OPEN in rest:
        raise ValueError("no report, or two of them")
    data = parsed(rest.partition(CLOSE)[0], "report")
    if data.pop("format") != FORMAT:
        raise ValueError("another format")
    versions = data.pop("versions")
    certificate = Certificate.from_json(json.dumps(data.pop("certificate")))
    cover, notes = Cover(**data.pop("cover")), tuple(map(str, data.pop("notes")))
    return Report(certificate, cover=cover, notes=notes, **data), versions
