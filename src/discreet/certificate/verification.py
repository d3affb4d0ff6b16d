"""Recomputing a certificate: every number anew, by the accountant that issued it and by one that shares no code.

A certificate is accepted only if all checks pass. What a check finds is told in words; nothing in a certificate is
taken on trust but who carried out the procedure as described, which is what signatures are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.accounting.account import account
from discreet.accounting.renyi import renyi_epsilon
from discreet.certificate.procedure import rule_of
from discreet.errors import CertificateRejected, DiscreetError, UnsupportedEvent
from discreet.events import Composition, Event
from discreet.guarantee import Guarantee, rounded_down, rounded_up
from discreet.ledger import FixedPlan, Ledger, SpendingRule, Statement
from discreet.plan import Plan

if TYPE_CHECKING:
    from discreet.certificate.certificate import Certificate

_AGREE = 1e-9  # relative: what another version of the numeric libraries may change in a recomputed epsilon


@dataclass(frozen=True)
class Verification:
    """A certificate that was accepted, and what was found on the way."""

    guarantee: Guarantee
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(("accepted", *(f"  {finding}" for finding in self.findings)))


def verified(
    certificate: Certificate, ledger: Ledger | Iterable[str] | None, signed_by: str | None
) -> Verification:
    """Run all checks, or raise :class:`~discreet.errors.CertificateRejected`."""
    try:
        findings = (
            *_procedure(certificate),
            *_guarantees(certificate),
            *_second_opinion(certificate),
            *_circumstances(certificate),
            *_signatures(certificate, signed_by),
            *_ledger(certificate.ledger, ledger),
        )
    except CertificateRejected:
        raise
    except DiscreetError as error:
        raise CertificateRejected(f"The certificate is rejected: {error}") from error
    return Verification(certificate.guarantee, findings)


def _procedure(certificate: Certificate) -> Iterator[str]:
    """The runs that name this procedure carried out what it says."""
    digest = certificate.procedure.digest()
    runs = [run for run in certificate.ledger.runs if run.plan_hash == digest]
    _insist(bool(runs), "the ledger knows no run of this procedure")
    if isinstance(certificate.procedure, Plan):
        planned = certificate.procedure.event.parts()
        _insist(all(run.event.parts() == planned for run in runs), "a run's event is not that of the plan")
    steps = sum(sum(run.taken) for run in runs)
    yield f"procedure {digest[:12]}: {steps:,} releases, as its rule allows"


def _guarantees(certificate: Certificate) -> Iterator[str]:
    """Both promises follow from the events."""
    again = certificate.recomputed()
    for name in ("guarantee", "together"):
        claimed, proved = getattr(certificate, name), getattr(again, name)
        _insist(_follows(claimed, proved), f"{name} says {claimed}, and what follows is {proved}")
    yield f"guarantee recomputed: {certificate.guarantee}"
    if certificate.together.epsilon != certificate.guarantee.epsilon:
        yield f"all runs of this ledger together: {certificate.together}"


def _follows(claimed: Guarantee, proved: Guarantee) -> bool:
    same = all(
        getattr(claimed, name) == getattr(proved, name) for name in ("neighbours", "group_size", "observer")
    )
    upper = claimed.epsilon.upper >= proved.epsilon.upper * (1 - _AGREE)
    lower = claimed.epsilon.lower <= proved.epsilon.lower * (1 + _AGREE)
    return same and upper and lower and claimed.delta >= proved.delta


def _second_opinion(certificate: Certificate) -> Iterator[str]:
    """The Renyi accountant must not contradict: it bounds from above what the first bounds from below."""
    rule = rule_of(certificate.procedure)
    spent = certificate.ledger.spent(certificate.procedure.digest())
    event = _accounted(rule, spent)
    if event is None or rule.budget.group_size > 1:
        yield "second accountant: has no theorem for this"
        return
    neighbours, delta = rule.budget.neighbours, rule.budget.delta
    try:
        second = renyi_epsilon(event, delta, neighbours)
    except UnsupportedEvent:
        yield "second accountant: has no theorem for these events"
        return
    lower = account(event, neighbours).epsilon_bounds(delta).lower
    _insist(
        second >= lower * (1 - _AGREE),
        f"the second accountant proves {second}, below the lower bound {lower}",
    )
    yield f"second accountant (Renyi): at most {rounded_up(second)}; no accountant can go below {rounded_down(lower)}"


def _accounted(rule: SpendingRule, spent: dict[Event, int]) -> Event | None:
    if isinstance(rule, FixedPlan):
        return rule.event
    return Composition(tuple(spent.items())) if spent else None


def _circumstances(certificate: Certificate) -> Iterator[str]:
    _insist(certificate.trusted, "a seed made the noise, so nothing is private: no guarantee")
    yield "noise from the operating system's entropy"
    hardened = certificate.arithmetic.kind == "hardened"
    yield (
        "proved for the bits that were released"
        if hardened
        else "proved for real numbers, computed as floats"
    )
    yield f"not covered: {len(certificate.not_covered)} things, listed in the certificate"


def _signatures(certificate: Certificate, signed_by: str | None) -> Iterator[str]:
    digest = certificate.digest()
    for signature in certificate.signatures:
        _insist(
            signature.valid(digest),
            f"the signature of {signature.public_key[:12]} is not of this certificate",
        )
        yield f"signed by {signature.public_key}"
    if signed_by is not None:
        keys = {signature.public_key for signature in certificate.signatures}
        _insist(signed_by in keys, f"it is not signed by {signed_by}")


def _ledger(statement: Statement, ledger: Ledger | Iterable[str] | None) -> Iterator[str]:
    """The entries, up to the one that the certificate names, say what the certificate says."""
    if ledger is None:
        yield f"ledger not at hand: its head should be {statement.anchor.sequence}, {statement.anchor.hash[:12]}"
        return
    entries = ledger.entries() if isinstance(ledger, Ledger) else list(ledger)
    _insist(len(entries) > statement.anchor.sequence, "the ledger is older than the certificate")
    found = Statement.of_entries(entries[: statement.anchor.sequence + 1])
    _insist(found == statement, "the ledger says something else")
    yield f"the ledger's first {statement.anchor.sequence + 1:,} entries say the same"


def _insist(condition: bool, otherwise: str) -> None:
    if not condition:
        raise CertificateRejected(f"The certificate is rejected: {otherwise}.")
