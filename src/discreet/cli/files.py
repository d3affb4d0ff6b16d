"""The report in a model's folder, and files that are never overwritten by accident."""

from __future__ import annotations

from pathlib import Path

from discreet.errors import InvalidParameter

CERTIFICATE, MODEL, REPORT = "certificate.json", "model.json", "report.html"
"""What people look for in the folder of a model."""


def refuse_existing(
    option: str, path: Path, overwrite: bool, remedy: str = "choose another name, or add --overwrite."
) -> None:
    """Raise if a file would be lost that nobody said could be."""
    if not overwrite and path.exists():
        raise InvalidParameter(option, str(path), f"exists; {remedy}")
