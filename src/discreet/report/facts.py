"""Sentences and numbers of a report, recomputed from the certificate.

Everything here is derived from the certificate's plan and ledger, not copied from what the certificate claims:
a report of a certificate that does not hold says so at the top.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from discreet.accounting.curve import account
from discreet.certificate import Certificate
from discreet.errors import CertificateRejected, DiscreetError
from discreet.events import Event, Gaussian
from discreet.guarantee import Budget, Guarantee, lower_text, protected_unit, upper_text
from discreet.ledger.filters import FixedPlan
from discreet.plan.explanation import ALARMS
from discreet.plan.plan import Plan
from discreet.report.risks import CertifiedPower
from discreet.report.stages import ReportedStage, stages_of

_POINTS = 24  # of epsilon over training
_FALSE_ALARMS = (0.0, 1e-4, 1e-3, ALARMS, *(step / 40 for step in range(1, 40)), 0.999, 1.0)
_SAMPLING = {"poisson": "Poisson", "fixed-size": "fixed-size", "random-allocation": "randomly allocated"}
_SAMPLING["full-batch"] = "full"

_ROOM = 1.01  # of an epsilon that is not in the plan, so that its delta can be the plan's
_SEVERAL = (2, 5, 10)  # records of one person, for the question who owns how many

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Facts:
    """The words and numbers of a report."""

    consistent: bool
    verdict: str
    findings: tuple[str, ...]
    guarantee: Guarantee
    promise: str
    protected: str
    against: str
    attack: str
    cautions: tuple[str, ...]
    happened: tuple[str, ...]
    stages: tuple[ReportedStage, ...]
    several: tuple[Guarantee, ...]  # for whoever owns several records, all of them together
    not_covered: tuple[str, ...]
    spending: Points  # steps taken, epsilon proved for them
    roc: Points  # false alarms, the best attack's hits
    details: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, certificate: Certificate) -> Facts:
        """All that follows from a certificate."""
        consistent, verdict, findings = _verdict(certificate)
        guarantee, roc = certificate.guarantee, _roc(certificate)
        return cls(
            consistent,
            verdict,
            findings,
            guarantee,
            _promise(guarantee),
            _who_is_protected(guarantee),
            f"Anybody who {guarantee.observer}, the final model included, knows all other records, and has any "
            "amount of time and computing power.",
            _attack(roc, guarantee),
            tuple(_cautions(roc, certificate)),
            tuple(_what_happened(certificate)),
            stages_of(certificate),
            tuple(_several(certificate)),
            certificate.not_covered,
            _spending(certificate),
            roc,
            tuple(_details(certificate)),
        )


def _verdict(certificate: Certificate) -> tuple[bool, str, tuple[str, ...]]:
    try:
        return (
            True,
            "This page cannot vouch for itself: run discreet verify report.html --signed-by KEY, or --ledger LEDGER.",
            certificate.verify().findings,
        )
    except CertificateRejected as error:
        return False, str(error), ()


def _unit(guarantee: Guarantee) -> str:
    return protected_unit(guarantee.unit, guarantee.group_size)


def _promise(guarantee: Guarantee) -> str:
    change = "with or without" if guarantee.neighbours == "add-remove" else "with any replacement of"
    upper, delta = guarantee.epsilon.upper, upper_text(guarantee.delta)
    factor = upper_text(math.exp(upper), 3) if upper < 100 else "an astronomical number of"
    return (
        f"The probability of any result, {change} any one {_unit(guarantee)}, is at most {factor} times the "
        f"probability in the other case, plus {delta}."
    )


def _cautions(roc: Points, certificate: Certificate) -> Iterator[str]:
    """Caveats that a reader should know."""
    guarantee = certificate.guarantee
    if dict(roc)[ALARMS] > 0.1 or guarantee.epsilon.upper > 10:
        yield "This guarantee is weak: it does not exclude an attack that succeeds often."
    if guarantee.delta > 1e-4:
        delta = upper_text(guarantee.delta)
        yield f"Delta is large: it does not exclude that a whole record is revealed with probability {delta}."
    if certificate.together.epsilon.upper > guarantee.epsilon.upper:
        together = upper_text(certificate.together.epsilon.upper)
        yield (
            "Other runs may use the same records under the same ledger. For all of them together, including future "
            f"runs, the guarantee is epsilon {together}."
        )
    if certificate.arithmetic.kind == "float":
        yield "Proved for real numbers: low bits of the released floating-point numbers can reveal more than this."


def _who_is_protected(guarantee: Guarantee) -> str:
    if guarantee.unit == "person":
        whether = "whether they are in the data at all, and " if guarantee.neighbours == "add-remove" else ""
        return f"Every {_unit(guarantee)}, with all of their rows, however many: {whether}the contents of these rows."
    if guarantee.neighbours == "add-remove":
        return f"The owner of every {_unit(guarantee)}: whether it is in the data at all, and its contents."
    return f"The owner of every {_unit(guarantee)}: its contents. The number of records is public."


def _attack(roc: Points, guarantee: Guarantee) -> str:
    hits = dict(roc)[ALARMS]
    whom = "people" if guarantee.unit == "person" else "records"
    used = (
        f"of the {whom} that were used" if guarantee.neighbours == "add-remove" else f"of the replaced {whom}"
    )
    return (
        f"At a false positive rate of {ALARMS:.0%}, the best attack identifies at most {upper_text(100 * hits, 3)}% "
        f"{used}; guessing identifies {ALARMS:.0%}."
    )


def _what_happened(certificate: Certificate) -> Iterator[str]:
    plan = certificate.plan
    spent = certificate.ledger.spent(plan.digest())
    for stage in plan.stages:
        kind = _SAMPLING.get(stage.sampling, stage.sampling)
        yield (
            f"{stage.name}: {stage.steps:,} steps were planned, with {kind} batches of {stage.divisor:,.10g} "
            f"of {stage.records:,} declared records. The contribution of one {plan.unit} to a step "
            f"was clipped to norm {stage.clip_norm:.4g}, and Gaussian noise of {stage.noise_multiplier:.4g} times "
            "that norm was added to the sum."
        )
    if not plan.stages:
        fixed = isinstance(plan.adapts_by, FixedPlan)
        how = (
            "fixed in advance and accounted as a whole"
            if fixed
            else "chosen adaptively, under a rule that enforces the budget"
        )
        yield f"{plan.name}: releases were {how}."
        for event, count in spent.items() if not stages_of(certificate) else ():
            yield f"{count:,} × {_release(event, plan.unit)}."
    yield f"{sum(spent.values()):,} releases were charged, each before it happened."


def _several(certificate: Certificate) -> Iterator[Guarantee]:
    """Guarantee for all records of a person who owns several, where it can be computed."""
    curve, budget = certificate.plan.rule.curve(), certificate.plan.rule.budget
    if curve is None or budget.unit == "person":  # however many they own, they are protected
        return
    for owned in _SEVERAL:
        try:
            group = account(curve.event, budget.neighbours, owned * budget.group_size)
            found = group.guarantee(budget.delta)
            room = Budget(found.epsilon.upper * _ROOM, budget.delta, budget.neighbours, found.group_size)
            yield FixedPlan(curve.event, room).at_distance(found, certificate.arithmetic.distance)
        except DiscreetError:  # no theorem, or not sharp enough: nothing is said
            continue


def _release(event: Event, unit: str) -> str:
    if isinstance(event, Gaussian):
        return f"Gaussian noise of {event.noise_multiplier:.4g} times the most that one {unit} can add"
    return str(event)


def _details(certificate: Certificate) -> Iterator[tuple[str, str]]:
    guarantee, plan = certificate.guarantee, certificate.plan
    yield "epsilon, at most", upper_text(guarantee.epsilon.upper, 6)
    yield "epsilon, at least (slack of the computation)", lower_text(guarantee.epsilon.lower, 6)
    yield "delta", upper_text(guarantee.delta, 6)
    yield "neighbours", guarantee.neighbours
    yield "unit", _unit(guarantee) + unit_column(plan.settings.get("unit"))
    yield "observer", f"an observer who {guarantee.observer}"
    together = certificate.together.epsilon.upper
    yield "all runs of the ledger together", f"epsilon at most {upper_text(together, 6)}"
    exact = "the bits that were released" if certificate.arithmetic.kind == "hardened" else "real numbers"
    yield "proved for", exact
    yield "randomness", "operating system" if certificate.trusted else "a seed: no guarantee"
    yield "procedure", plan.digest()
    yield "certificate", certificate.digest()
    yield "ledger head", f"entry {certificate.ledger.anchor.sequence}, {certificate.ledger.anchor.hash}"
    for name, digest in certificate.files:
        yield f"for the file {name}", digest
    for signature in certificate.signatures:
        yield "signed by", signature.public_key
    for name, value in plan.settings.items():
        yield f"setting: {name}", _short(value)
    yield "computed with", ", ".join(f"{name} {number}" for name, number in certificate.versions)


def unit_column(unit: object) -> str:
    """Which column says who is who, by name."""
    return f", by the column {unit['column']!r}" if isinstance(unit, dict) and "column" in unit else ""


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else text[:297] + "..."


def _spending(certificate: Certificate) -> Points:
    """Epsilon proved for the first steps of a plan; an adaptive one costs its budget from the start."""
    plan = certificate.plan
    if not plan.stages:
        return ()
    points, done, before = [(0.0, 0.0)], 0, None
    for stage in plan.stages:
        charges = stage.steps // stage.steps_per_charge
        for count in sorted({math.ceil(charges * (part / _POINTS) ** 2) for part in range(1, _POINTS + 1)}):
            so_far = stage.charge * count if before is None else before + stage.charge * count
            epsilon = _epsilon(so_far, plan)
            if epsilon is not None:
                points.append((float(done + count * stage.steps_per_charge), epsilon))
        done += stage.steps
        before = stage.event if before is None else before + stage.event
    return tuple(points)


def _epsilon(event: Event, plan: Plan) -> float | None:
    try:
        return account(event, plan.neighbours, plan.group_size).epsilon(plan.delta)
    except DiscreetError:  # the accountant cannot be sharp enough for a point of the picture
        return None


def _roc(certificate: Certificate) -> Points:
    """The best attack's hit rate for each false-alarm rate."""
    power = CertifiedPower(certificate)
    return tuple((alarms, power(alarms)) for alarms in _FALSE_ALARMS)
