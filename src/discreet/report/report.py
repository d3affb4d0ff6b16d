"""The report: what it was made of, and the three forms in which it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from discreet.certificate import Certificate
from discreet.certificate.certificate import current_versions
from discreet.charts import Picture, epsilon_scale, word_for
from discreet.errors import CertificateRejected, DiscreetError, InvalidParameter
from discreet.files import parse_json, read_text, write_whole
from discreet.guarantee import protected_unit, upper_text
from discreet.report.blocks import Section, Table, cell
from discreet.report.chapters import SECTIONS
from discreet.report.cover import Cover
from discreet.report.facts import Facts, unit_column

FORMAT = "discreet report 2"
OPEN, CLOSE = '<script type="application/json" id="discreet-report">', "</script>"
"""Between them a page carries what it was made of; :mod:`~discreet.report.report` reads it."""


@dataclass(frozen=True)
class Report:
    """A certificate for people.

    ``audit`` is ``AuditResult.to_dict()``, and ``observers`` is ``ObserverTable.to_dict()``, where there are such.
    ``notes`` are what a fit's diagnosis said of its table, from released numbers. ``cover`` is what the owner says,
    and ``model`` what ``model.json`` says of the model. ``evaluation`` is ``Evaluation.to_dict()``: how good it is.
    """

    certificate: Certificate
    title: str = "Privacy report"
    audit: Mapping[str, Any] | None = None
    observers: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    cover: Cover = field(default_factory=Cover)
    model: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.certificate, Certificate):
            raise InvalidParameter("certificate", type(self.certificate), "must be a Certificate.")
        if not (isinstance(self.title, str) and 0 < len(self.title) <= 200):
            raise InvalidParameter("title", self.title, "must be a text of at most 200 letters.")
        if not isinstance(self.cover, Cover):
            raise InvalidParameter("cover", type(self.cover), "must be a Cover, such as Cover(owner='...').")

    @cached_property
    def facts(self) -> Facts:
        """All that the report says, computed anew."""
        return Facts.of(self.certificate)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """What it says, in order."""
        return tuple(section for make in SECTIONS if (section := make(self)) is not None)

    def to_html(self) -> str:
        """One file for a browser, a phone, a printer or a screen reader; it loads nothing."""
        parts = {  # markup of ours, in which all texts are escaped
            "body": "\n\n".join(section.to_html() for section in self.sections),
            "scale": epsilon_scale(self.facts.guarantee.epsilon.upper),
            "carried": f"{OPEN}{self._json_for_programs()}{CLOSE}",
        }
        return _template("report.html").render(**self._context(), **parts)

    def to_markdown(self) -> str:
        """The same words for a wiki or a repository."""
        facts = Table(("", ""), tuple(self.cover.lines(self.certificate))).to_markdown()
        body = "\n\n".join(section.to_markdown() for section in self.sections)
        return _template("report.md").render(**self._context(), body=body, facts_of_cover=facts)

    def to_json(self) -> str:
        """The same facts for programs."""
        facts = asdict(self.facts) | {"guarantee": asdict(self.facts.guarantee)}
        return json.dumps({"format": FORMAT, **self._given(), "facts": facts}, indent=2)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report; the ending of the name says in which form: .html, .md or .json."""
        forms = {".html": self.to_html, ".htm": self.to_html, ".md": self.to_markdown, ".json": self.to_json}
        form = forms.get(Path(path).suffix.lower())
        if form is None:
            raise InvalidParameter("path", str(path), "must end in .html, .md or .json.")
        write_whole(path, form().rstrip("\n") + "\n")

    def plot(self) -> Picture:
        """What the best attack finds at most, see :meth:`~discreet.certificate.Certificate.plot`."""
        return self.certificate.plot()

    def _repr_html_(self) -> str:
        page = escape(self.to_html())
        return f'<iframe srcdoc="{page}" title="{escape(self.title)}" width="100%" height="640"></iframe>'

    def _given(self) -> dict[str, Any]:
        """Everything but the certificate that the report was given."""
        given = {
            "audit": self.audit,
            "observers": self.observers,
            "notes": list(self.notes),
            "model": self.model,
        }
        given |= {} if self.evaluation is None else {"evaluation": self.evaluation}
        return {"title": self.title, "cover": asdict(self.cover), **given}

    def _json_for_programs(self) -> str:
        """What the page carries for programs, as JSON that is no markup."""
        certificate = json.loads(self.certificate.to_json())
        content = {"format": FORMAT, "versions": dict(current_versions()), "certificate": certificate}
        text = json.dumps(content | self._given(), allow_nan=False)
        return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

    def _context(self) -> dict[str, Any]:
        guarantee = self.facts.guarantee
        return {
            "title": self.title,
            "cover": tuple(self.cover.lines(self.certificate)),
            "record": self.cover.record,
            "facts": self.facts,
            "epsilon": upper_text(guarantee.epsilon.upper, 3),
            "delta": upper_text(guarantee.delta, 3),
            "word": word_for(guarantee.epsilon.upper),
            "group_size": guarantee.group_size,
            "unit": protected_unit(guarantee.unit, guarantee.group_size),
            "column": unit_column(self.certificate.plan.settings.get("unit")),
        }


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("discreet.report"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell}
    return environment


def _template(name: str) -> Template:
    return _environment().get_template(name)


# ---- reading a report's page back ----
#
# A page could be given other words around the same certificate. So it is written again from what it carries,
# and has to be the same, letter by letter, where the versions of what computes the words are the same.


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
        report, versions = _read_carried(text)
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
    return Report(certificate, cover=cover, notes=notes, **data), versions
