"""The files that a certificate is for: it names them with their digests, so a signature on it covers them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from discreet.errors import CertificateRejected, InvalidParameter
from discreet.ledger.seal import hex_digest

Files = tuple[tuple[str, str], ...]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")  # a name in the same folder, and never a path


def file_digest(path: str | PathLike[str]) -> str:
    """SHA-256 of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked_files(files: Iterable[tuple[str, str]]) -> Files:
    """Names of files and their digests, in order, or raise."""
    found = tuple(sorted(files))
    for name, digest in found:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise InvalidParameter(
                "files", name, "must be named by plain names, such as weights.safetensors."
            )
        hex_digest("files", digest)
    if not found or len(dict(found)) < len(found):
        raise InvalidParameter("files", [name for name, _ in found], "must be one or more, each named once.")
    return found


def insist_on_files(files: Files, folder: str | PathLike[str]) -> None:
    """Raise :class:`~discreet.errors.CertificateRejected` unless the folder holds exactly these contents."""
    for name, expected in files:
        try:
            found = file_digest(Path(folder) / name)
        except OSError:
            raise CertificateRejected(
                f"{folder} is rejected: {name}, which the certificate is for, is missing."
            ) from None
        if found != expected:
            raise CertificateRejected(
                f"{folder} is rejected: {name} is not the file that the certificate is for."
            )
