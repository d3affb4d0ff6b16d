"""Certificates in files: a text that is none is rejected, and never quoted."""

from __future__ import annotations

from pathlib import Path

from discreet.certificate.certificate import Certificate
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.files import read_text


def read_certificate(path: Path) -> Certificate:
    """The certificate in a file; a text that is none, or was altered, is rejected without being quoted."""
    try:
        return Certificate.from_json(read_text(path))
    except InvalidParameter as error:
        name = "its digest " if error.name == "digest" else "it "
        raise CertificateRejected(f"{path} is rejected: {name}{_plainly(error)}") from None


def _plainly(error: InvalidParameter) -> str:
    known = error.name in ("digest", "certificate")
    return error.requirement if known else f"holds a wrong {error.name}; {error.requirement}"
