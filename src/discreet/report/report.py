"""The report: what it was made of, and the three forms in which it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from discreet.accounting.attack_risks import Risk, RiskBound
from discreet.certificate import Certificate
from discreet.certificate.certificate_views import current_versions
from discreet.certificate.signatures import Signature, SigningKey, sign
from discreet.charts import Picture, epsilon_scale, word_for
from discreet.errors import InvalidParameter
from discreet.files import write_whole
from discreet.guarantee import protected_unit, upper_text
from discreet.report.blocks import Section, TableBlock, cell
from discreet.report.chapters import SECTIONS
from discreet.report.cover import Cover
from discreet.report.facts import Facts, unit_column
from discreet.report.nist import checklist
from discreet.report.risks import assess_all, risk_to_dict
from discreet.report.verifier_page import script_hash, verifier_script

FORMAT = "discreet report 2"
OPEN, CLOSE = '<script type="application/json" id="discreet-report">', "</script>"
"""Between them a page carries what it was made of; :mod:`~discreet.report.page` reads it."""

OPEN_SIGNATURES = '<script type="application/json" id="discreet-signatures">'
END = "\n</body>\n</html>"
"""How every page ends; the signatures of a page are one line before it, and cover everything else."""


@dataclass(frozen=True)
class Report:
    """A certificate as a readable report.

    ``audit`` is ``AuditResult.to_dict()``, and ``observers`` is ``ObserverTable.to_dict()``, where there are such.
    ``notes`` are what a fit's diagnosis said of its table, from released numbers. ``cover`` is what the owner says,
    and ``model`` what ``model.json`` says of the model. ``evaluation`` is ``Evaluation.to_dict()``: how good it is.
    ``risks`` are attacks that the owner wants bounded, such as ``Reconstruction(1 / 3650, what="a date of birth")``.

    A certificate vouches for none of these. ``signed`` signs the page as a whole, and ``ledger.issue("report",
    report.digest())`` has a ledger vouch for it; without either, ``discreet verify`` calls them claimed.
    """

    certificate: Certificate
    title: str = "Privacy report"
    audit: Mapping[str, Any] | None = None
    observers: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    cover: Cover = field(default_factory=Cover)
    model: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    risks: tuple[Risk, ...] = ()
    signatures: tuple[Signature, ...] = ()
    self_check: bool = False
    """Whether the page embeds the verifier, which recomputes the certificate when the page is opened."""

    def __post_init__(self) -> None:
        if not isinstance(self.certificate, Certificate):
            raise InvalidParameter("certificate", type(self.certificate), "must be a Certificate.")
        if not (isinstance(self.title, str) and 0 < len(self.title) <= 200):
            raise InvalidParameter("title", self.title, "must be a text of at most 200 letters.")
        if not isinstance(self.cover, Cover):
            raise InvalidParameter("cover", type(self.cover), "must be a Cover, such as Cover(owner='...').")
        if not (isinstance(self.risks, tuple) and all(isinstance(risk, Risk) for risk in self.risks)):
            raise InvalidParameter(
                "risks", type(self.risks), "must be a tuple of risks, such as Membership(0.01)."
            )
        if not isinstance(self.self_check, bool):
            raise InvalidParameter("self_check", self.self_check, "must be True or False.")

    @cached_property
    def facts(self) -> Facts:
        """All that the report says, computed anew."""
        return Facts.of(self.certificate)

    @cached_property
    def risk_bounds(self) -> tuple[RiskBound, ...]:
        """The success of each attack at most: of ``risks``, or of usual ones; none if a seed made the noise."""
        return assess_all(self.certificate, self.risks) if self.certificate.trusted else ()

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Sections of the report, in order."""
        return tuple(section for make in SECTIONS if (section := make(self)) is not None)

    def digest(self) -> str:
        """SHA-256 of the page without its signatures: what they sign."""
        return page_digest(self._unsigned)

    def signed(self, key: SigningKey) -> Report:
        """This report with one more signature on its page, which covers every word of it."""
        report = replace(self, signatures=(*self.signatures, sign(self.digest(), key, "report")))
        vars(report)["_unsigned"] = self._unsigned  # no signature changes it, and it takes a while
        return report

    def to_html(self) -> str:
        """One file for a browser, a phone, a printer or a screen reader; it loads nothing."""
        if not self.signatures:
            return self._unsigned
        signatures = json.dumps([asdict(signature) for signature in self.signatures])
        return f"{self._unsigned.removesuffix(END)}\n{OPEN_SIGNATURES}{signatures}{CLOSE}{END}"

    @cached_property
    def _unsigned(self) -> str:
        parts = {  # markup of ours, in which all texts are escaped
            "body": "\n\n".join(section.to_html() for section in self.sections),
            "scale": epsilon_scale(self.facts.guarantee.epsilon.upper),
            "carried": f"{OPEN}{self._json_for_programs()}{CLOSE}",
            "self_check": verifier_script() if self.self_check else "",
            "script_hash": script_hash() if self.self_check else "",
        }
        return _template("report.html").render(**self._context(), **parts).strip()

    def to_markdown(self) -> str:
        """Render the report as Markdown."""
        facts = TableBlock(("", ""), tuple(self.cover.lines(self.certificate))).to_markdown()
        body = "\n\n".join(section.to_markdown() for section in self.sections)
        return _template("report.md").render(**self._context(), body=body, facts_of_cover=facts)

    def to_json(self) -> str:
        """Return the facts of the report as JSON."""
        facts: dict[str, Any] = asdict(self.facts) | {"guarantee": asdict(self.facts.guarantee)}
        facts["risks"] = [
            risk_to_dict(bound.risk) | {"success_at_most": bound.success.upper, "sentence": str(bound)}
            for bound in self.risk_bounds
        ]
        facts["nist_sp_800_226"] = [asdict(line) for line in checklist(self)]
        return json.dumps({"format": FORMAT, **self._inputs(), "facts": facts}, indent=2)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report; the ending of the name says in which form: .html, .md or .json."""
        forms = {".html": self.to_html, ".htm": self.to_html, ".md": self.to_markdown, ".json": self.to_json}
        form = forms.get(Path(path).suffix.lower())
        if form is None:
            raise InvalidParameter("path", str(path), "must end in .html, .md or .json.")
        write_whole(path, form().rstrip("\n") + "\n")

    def plot(self) -> Picture:
        """Plot the bound on the best attack; see :meth:`~discreet.certificate.Certificate.plot`."""
        return self.certificate.plot()

    def _repr_html_(self) -> str:
        page = escape(self.to_html())
        return f'<iframe srcdoc="{page}" title="{escape(self.title)}" width="100%" height="640"></iframe>'

    def _inputs(self) -> dict[str, Any]:
        """Everything but the certificate that the report was given."""
        given: dict[str, Any] = {
            "audit": self.audit,
            "observers": self.observers,
            "notes": list(self.notes),
            "model": self.model,
        }
        given |= {} if self.evaluation is None else {"evaluation": self.evaluation}
        given |= {"risks": [risk_to_dict(risk) for risk in self.risks]} if self.risks else {}
        given |= {"self_check": True} if self.self_check else {}
        return {"title": self.title, "cover": asdict(self.cover), **given}

    def _json_for_programs(self) -> str:
        """JSON that the page embeds for programs, escaped for HTML."""
        certificate = json.loads(self.certificate.to_json())
        content = {"format": FORMAT, "versions": dict(current_versions()), "certificate": certificate}
        text = json.dumps(content | self._inputs(), allow_nan=False)
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


def page_digest(unsigned: str) -> str:
    """SHA-256 of a page whose signatures were taken out."""
    return hashlib.sha256(unsigned.encode()).hexdigest()


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
