"""Cover details stated by the owner: organisation, purpose and data set. Nothing verifies them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from discreet.certificate import Certificate
from discreet.errors import InvalidParameter

_MOST = 300


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True)
class Cover:
    """The owner's words for the first screen. ``record`` says what one record is, such as ``"one person"``."""

    owner: str = ""
    purpose: str = ""
    data_set: str = ""
    record: str = ""
    date: str = field(default_factory=_today)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not (isinstance(value, str) and len(value) <= _MOST and value.isprintable()):
                requirement = f"must be one line of at most {_MOST} letters."
                raise InvalidParameter(one.name, value, requirement)
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", self.date):
            raise InvalidParameter("date", self.date, "must be a date such as 2026-11-16.")

    def lines(self, certificate: Certificate) -> Iterator[tuple[str, str]]:
        """All that is known, by name: what the owner says, and what was declared for the procedure."""
        target, columns = _declarations(certificate)
        made = certificate.plan.name or "a plan of noisy steps"
        version = dict(certificate.versions).get("discreet", "unknown")
        named = (
            ("Owner", self.owner),
            ("Purpose", self.purpose),
            ("Data set", self.data_set),
            ("One record is", self.record),
            ("Procedure", made),
            ("Target", target),
            ("Columns", columns),
            ("Date", self.date),
            ("Made with", f"Discreet {version}"),
        )
        return ((name, value) for name, value in named if value)


def _declarations(certificate: Certificate) -> tuple[str, str]:
    """Target and columns, as far as they were declared."""
    schema = certificate.plan.settings.get("schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("columns"), dict):
        return "", ""
    target = str(schema.get("target") or "")
    features = [str(name) for name in schema["columns"] if name != target]
    shown = ", ".join(features[:12])
    return target, shown if len(features) <= 12 else f"{shown} and {len(features) - 12} more"
