"""The report: facts, and the three forms in which they are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from discreet.certificate import Certificate
from discreet.errors import InvalidParameter
from discreet.files import write_whole
from discreet.guarantee import rounded_down, rounded_up
from discreet.report.charts import Series, line_chart
from discreet.report.facts import Facts

FORMAT = "discreet report 1"


@dataclass(frozen=True)
class Report:
    """A certificate for people.

    ``audit`` is ``AuditResult.to_dict()``, and ``observers`` is ``ObserverTable.to_dict()``, where there are such.
    ``notes`` are what a fit's diagnosis said of its table, from released numbers.
    """

    certificate: Certificate
    title: str = "Privacy report"
    audit: Mapping[str, Any] | None = None
    observers: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.certificate, Certificate):
            raise InvalidParameter("certificate", type(self.certificate), "must be a Certificate.")
        if not (isinstance(self.title, str) and 0 < len(self.title) <= 200):
            raise InvalidParameter("title", self.title, "must be a text of at most 200 letters.")

    @cached_property
    def facts(self) -> Facts:
        """All that the report says, computed anew."""
        return Facts.of(self.certificate)

    def to_html(self) -> str:
        """One file for a browser, a phone, a printer or a screen reader; it loads nothing."""
        return _template("report.html").render(**self._context(), charts=self._charts())

    def to_markdown(self) -> str:
        """The same words for a wiki or a repository."""
        return _template("report.md").render(**self._context())

    def to_json(self) -> str:
        """The same facts for programs."""
        facts = asdict(self.facts) | {"guarantee": asdict(self.facts.guarantee)}
        content = {"format": FORMAT, "title": self.title, "facts": facts}
        more = {"audit": self.audit, "observers": self.observers, "notes": list(self.notes)}
        return json.dumps(content | more, indent=2)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report; the ending of the name says in which form: .html, .md or .json."""
        forms = {".html": self.to_html, ".htm": self.to_html, ".md": self.to_markdown, ".json": self.to_json}
        form = forms.get(Path(path).suffix.lower())
        if form is None:
            raise InvalidParameter("path", str(path), "must end in .html, .md or .json.")
        write_whole(path, form().rstrip("\n") + "\n")

    def _context(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "facts": self.facts,
            "audit": self.audit,
            "notes": self.notes,
            "observers": [_observer(row) for row in self.observers["observers"]] if self.observers else [],
            "epsilon": rounded_up(self.facts.guarantee.epsilon.upper, 3),
            "delta": rounded_up(self.facts.guarantee.delta, 3),
        }

    def _charts(self) -> dict[str, str]:
        facts = self.facts
        guess = Series("guessing", ((0.0, 0.0), (1.0, 1.0)), "line-2")
        region = Series("no attack is above this line", facts.roc, "line-1")
        charts = {
            "attack": line_chart(
                "What the best attack can do",
                [guess, region],
                "false alarms",
                "records found",
                description=facts.attack,
            )
        }
        if len(facts.spending) > 1:
            charts["spending"] = line_chart(
                "Epsilon over training",
                [Series("epsilon proved so far", facts.spending)],
                "steps taken",
                "epsilon",
                description=f"Epsilon grows to {rounded_up(facts.spending[-1][1])} at the last step.",
            )
        return charts


def _observer(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of the observer table in words."""
    promise, note = "no protection", str(row.get("note") or "")
    if row.get("epsilon") is not None:
        promise = f"epsilon at most {rounded_up(row['epsilon'])} at delta {rounded_up(row['delta'])}"
    elif note:
        promise, note = note, ""
    return {"observer": row["observer"], "sees": row["sees"], "promise": promise, "note": note}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("discreet.report"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"up": rounded_up, "down": rounded_down, "cell": _cell}
    return environment


def _template(name: str) -> Template:
    return _environment().get_template(name)


def _cell(text: object) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
