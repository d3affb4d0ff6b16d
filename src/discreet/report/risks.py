"""The risk of one person in words: how often an attack can succeed with the results, beside guessing without them.

>>> risk_from("reconstruction", "1/3650", "a date of birth")
Reconstruction(baseline=0.000273972602739726, at_most=None, what='a date of birth')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from discreet.accounting.attack_risks import (
    RISKS,
    AttributeInference,
    Membership,
    Reconstruction,
    Reidentification,
    Risk,
    RiskBound,
    percent,
)
from discreet.accounting.power import power_bound
from discreet.certificate import Certificate
from discreet.errors import InvalidParameter
from discreet.guarantee import Bounds, upper_text
from discreet.report.blocks import Block, Bullets, Section, TableBlock, Text

if TYPE_CHECKING:
    from discreet.report.report import Report

KINDS = {kind.kind.replace(" ", "-"): kind for kind in RISKS.values()}
"""The kinds of risks as they are typed: membership, reconstruction, attribute-inference, re-identification."""

USUAL: tuple[Risk, ...] = (
    Membership(0.01),
    AttributeInference(0.5, what="a yes-or-no answer that is as likely as not"),
    AttributeInference(0.1, what="a value that one person in ten has"),
    Reconstruction(1 / 365, what="a day of birth"),
    Reidentification(1e-3, what="the right person among 1000 candidates"),
)
"""What a report tells if the owner names no risks."""


class CertifiedPower:
    """The power of the best test against everything that a certificate covers, as it was proved.

    Noise within a distance t of the accounted one, in total variation, moves both rates of a test by t at most.
    """

    def __init__(self, certificate: Certificate) -> None:
        self._curve = certificate.plan.rule.curve()
        self._moved = certificate.arithmetic.distance
        self._guarantee = certificate.guarantee

    def __call__(self, false_alarms: float) -> float:
        alarms = min(1.0, false_alarms + self._moved)
        if self._curve is None:
            power = power_bound(self._guarantee.epsilon.upper, self._guarantee.delta, alarms)
        else:
            power = self._curve.power(alarms)
        return min(1.0, power + self._moved)

    def power_bounds(self, false_alarms: float) -> Bounds:
        """Guessing reaches the lower bound."""
        return Bounds(false_alarms, self(false_alarms))


def risk_from(kind: str, baseline: str | float, what: str = "", at_most: str | float | None = None) -> Risk:
    """Parse a risk; fractions such as 1/365 are accepted."""
    if kind not in KINDS:
        raise InvalidParameter("risk", kind, f"must be one of {', '.join(KINDS)}.")
    limit = None if at_most is None else _number("at_most", at_most)
    return KINDS[kind](_number("baseline", baseline), limit, what)


def _number(name: str, typed: str | float) -> float:
    try:
        return float(Fraction(typed)) if isinstance(typed, str) else float(typed)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InvalidParameter(name, typed, "must be a probability such as 0.01 or 1/365.") from None


def risk_to_dict(risk: Risk) -> dict[str, Any]:
    """The risk as plain data for JSON."""
    return {"kind": risk.kind.replace(" ", "-"), **asdict(risk)}


def risk_from_dict(data: Mapping[str, Any]) -> Risk:
    """The inverse of :func:`risk_to_dict`."""
    return risk_from(data["kind"], data["baseline"], data["what"], data["at_most"])


def assess_all(certificate: Certificate, risks: tuple[Risk, ...] = ()) -> tuple[RiskBound, ...]:
    """Bound each risk, or the usual ones, for everything that a certificate covers."""
    power = CertifiedPower(certificate)
    if not risks and certificate.guarantee.unit == "record":
        risks = (Membership(0.01, what="a record was used"), *USUAL[1:])
    return tuple(risk.assess(power) for risk in risks or USUAL)


def risk_table(bounds: tuple[RiskBound, ...]) -> tuple[tuple[str, str, str, str], ...]:
    """Each risk as a row: the attack, its chance without and with the results, and how many times that is."""
    return tuple(
        (
            f"{bound.risk.kind}: {bound.risk.what or bound.risk.usually}",
            percent(bound.risk.baseline, lower=True),
            percent(bound.success.upper),
            f"{upper_text(bound.success.upper / bound.risk.baseline, 3)} ×",
        )
        for bound in bounds
    )


def risks(report: Report) -> Section:
    """Explain the guarantee for one person, with the owner's risk figures or typical ones."""
    if not report.certificate.trusted:
        words = "A seed decided the noise: no attack is bounded."
        return Section("The risk for one person", (Text(words, "caution"),))
    bounds = report.risk_bounds
    unit = "person" if report.facts.guarantee.unit == "person" else "record"
    words = (
        f"The table bounds the success of every attack on one {unit} whose attacker sees all results of this "
        "procedure, knows all other records and has unlimited computing power. “Guessing” is the chance of an "
        f"attacker who has everything but results that used this {unit}; what follows from the other records is part "
        "of it."
    )
    head = ("attack", "guessing", "at most", "factor")
    blocks: list[Block] = [Text(words), TableBlock(head, risk_table(bounds), "risks")]
    if report.certificate.together.epsilon.upper > report.facts.guarantee.epsilon.upper:
        blocks.append(
            Text(
                "Other runs of the same ledger can raise these bounds; they are not part of them.", "caution"
            )
        )
    if report.risks:
        blocks.append(Bullets([str(bound) + _limit(bound) for bound in bounds]))
    else:
        blocks.append(
            Text("These are examples. discreet report --risk KIND BASELINE WHAT tells other risks.", "soft")
        )
    return Section(f"The risk for one {unit}", tuple(blocks))


def _limit(bound: RiskBound) -> str:
    if bound.acceptable is None:
        return ""
    assert bound.risk.at_most is not None
    kept = "is within" if bound.acceptable else "EXCEEDS"
    return f" This {kept} the declared limit of {percent(bound.risk.at_most, lower=True)}."
