"""Recomputing a certificate: every number anew, by the accountant that issued it and by one that shares no code.

A certificate is rejected unless all checks pass. What a check finds is told in words; nothing in a certificate is
taken on trust but who carried out the procedure as described. That is what ledgers and signatures are for: without
either a certificate is consistent at best, because anybody can make up numbers that follow from each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Literal

from discreet.accounting.curve import account
from discreet.accounting.renyi import renyi_epsilon
from discreet.certificate.promises import promises
from discreet.errors import CertificateRejected, DiscreetError, InvalidParameter, UnsupportedEvent
from discreet.events import Composition, Event
from discreet.guarantee import Guarantee, lower_text, upper_text
from discreet.ledger import FixedPlan, Ledger
from discreet.ledger.book import Statement
from discreet.ledger.filters import SpendingRule
from discreet.plan.explanation import NOT_COVERED

if TYPE_CHECKING:
    from discreet.certificate.certificate import Certificate
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from discreet.ledger.book import hex_digest

_AGREE = 1e-9  # relative: what another version of the numeric libraries may change in a recomputed epsilon


CONSISTENT = "consistent; nobody vouches for it"
NO_FILES = "it holds no digest of any file: which weights it is for, nobody can tell"


@dataclass(frozen=True)
class Verification:
    """A certificate that was not rejected, what was found on the way, and whether anybody vouches for it.

    ``vouched`` is true if the ledger was at hand or a trusted key has signed, and if that covers all that was asked
    about: a signature on a certificate that names no files does not cover the files of a folder.
    """

    guarantee: Guarantee
    findings: tuple[str, ...]
    vouched: bool = False

    @property
    def outcome(self) -> Literal["accepted", "consistent"]:
        """``"accepted"``, or ``"consistent"`` if nobody vouches for it. What is rejected raises instead."""
        return "accepted" if self.vouched else "consistent"

    def __str__(self) -> str:
        headline = "accepted" if self.vouched else CONSISTENT
        return "\n".join((headline, *(f"  {finding}" for finding in self.findings)))


def verify_certificate(
    certificate: Certificate, ledger: object, signed_by: str | None, folder: str | PathLike[str] | None = None
) -> Verification:
    """Run all checks, or raise :class:`~discreet.errors.CertificateRejected`."""
    try:
        claimed = certificate.guarantee.epsilon.upper, certificate.together.epsilon.upper
        proved, together = promises(certificate.plan, certificate.ledger, certificate.arithmetic, claimed)
        findings = (
            *_procedure(certificate),
            *_guarantees(certificate, proved, together),
            *_second_opinion(certificate),
            *_circumstances(certificate),
            *_signatures(certificate, signed_by),
            *_ledger(certificate, ledger),
            *_files(certificate, folder),
        )
    except CertificateRejected:
        raise
    except DiscreetError as error:
        raise CertificateRejected(f"The certificate is rejected: {error}") from error
    covered = folder is None or bool(certificate.files)
    return Verification(proved, findings, covered and (ledger is not None or signed_by is not None))


def _procedure(certificate: Certificate) -> Iterator[str]:
    """The runs that name this procedure carried out what it says."""
    digest = certificate.plan.digest()
    runs = [run for run in certificate.ledger.runs if run.plan_hash == digest]
    _insist(bool(runs), "the ledger knows no run of this procedure")
    if certificate.plan.stages:
        planned = certificate.plan.event.parts()
        _insist(all(run.event.parts() == planned for run in runs), "a run's event is not that of the plan")
    charges = sum(sum(run.taken) for run in runs)
    yield f"procedure {digest[:12]}: {charges:,} events charged, as its rule allows"


def _guarantees(certificate: Certificate, proved: Guarantee, together: Guarantee) -> Iterator[str]:
    """Both promises follow from the events."""
    _insist_follows("guarantee", certificate.guarantee, proved)
    _insist_follows("together", certificate.together, together)
    yield f"guarantee recomputed: {proved}"
    if certificate.guarantee.epsilon.upper > proved.epsilon.upper * (1 + _AGREE):
        yield f"the certificate claims less than it could: {certificate.guarantee}"
    if together.epsilon != proved.epsilon:
        more = together.delta > certificate.ledger.rule.budget.delta
        why = (
            "; its delta is that of the ledger's budget and what noise in whole numbers adds" if more else ""
        )
        yield f"all runs of this ledger together: {together}{why}"


def _insist_follows(name: str, claimed: Guarantee, proved: Guarantee) -> None:
    for field in ("neighbours", "group_size", "unit", "observer"):
        ours, theirs = getattr(proved, field), getattr(claimed, field)
        _insist(ours == theirs, f"{name} says {field}={theirs!r}, and what follows is {ours!r}")
    (lower, upper), (proved_lower, proved_upper) = claimed.epsilon, proved.epsilon
    for field, says, follows, fits in (
        ("epsilon.upper", upper, proved_upper, upper >= proved_upper * (1 - _AGREE)),
        ("epsilon.lower", lower, proved_lower, lower <= proved_lower * (1 + _AGREE)),
        ("delta", claimed.delta, proved.delta, claimed.delta >= proved.delta),
    ):
        _insist(fits, f"{name} says {field}={says!r}, and what follows is {follows!r}")


def _second_opinion(certificate: Certificate) -> Iterator[str]:
    """The Renyi accountant must not contradict: it bounds from above what the first bounds from below."""
    rule = certificate.plan.rule
    spent = certificate.ledger.spent(certificate.plan.digest())
    event = _account_spending(rule, spent)
    neighbours, delta = rule.budget.neighbours, rule.budget.delta
    if event is None or rule.budget.group_size > 1 or delta == 0:
        yield "second accountant: has no theorem for this"
        return
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
    yield f"second accountant (Renyi): at most {upper_text(second)}; no accountant can go below {lower_text(lower)}"


def _account_spending(rule: SpendingRule, spent: dict[Event, int]) -> Event | None:
    if isinstance(rule, FixedPlan):
        return rule.event
    return Composition(tuple(spent.items())) if spent else None


def _circumstances(certificate: Certificate) -> Iterator[str]:
    _insist(certificate.trusted, "a seed made the noise, so nothing is private: no guarantee")
    yield "noise from the operating system's entropy, as it says"
    _insist(set(NOT_COVERED) <= set(certificate.not_covered), "it hides something that is not covered")
    if certificate.arithmetic.kind == "hardened":
        yield "proved for the bits that were released, if the sums were hardened as it says"
    else:
        yield "proved for real numbers, computed as floats"
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


def _ledger(certificate: Certificate, ledger: object) -> Iterator[str]:
    """The entries, up to the one that the certificate names, say the same, and those after it keep the rules."""
    statement, count = certificate.ledger, certificate.ledger.anchor.sequence + 1
    least = 1 + len(statement.runs) + sum(any(run.taken) for run in statement.runs)
    _insist(count >= least, f"a ledger of {count} entries cannot say so much")
    if ledger is None:
        yield f"ledger not at hand: its head should be {count - 1}, {statement.anchor.hash[:12]}"
        return
    entries = _entries(ledger)
    _insist(len(entries) >= count, "the ledger is older than the certificate")
    _insist(Statement.of_entries(entries[:count]) == statement, "the ledger says something else")
    yield f"the ledger's first {count:,} entries say the same"
    if len(entries) > count:
        later = Statement.of_entries(entries)
        promises(certificate.plan, later, certificate.arithmetic)
        own = certificate.plan.digest()
        more = sum(later.spent(own).values()) - sum(statement.spent(own).values())
        yield f"the ledger went on by {len(entries) - count:,} entries and {more:,} releases of this procedure"


def _files(certificate: Certificate, folder: str | PathLike[str] | None) -> Iterator[str]:
    """The files in the folder are those that the certificate names."""
    names = ", ".join(name for name, _ in certificate.files)
    if not certificate.files:
        yield NO_FILES
    elif folder is None:
        yield f"files not at hand: {names}; give the model's folder to check that they are the ones it is for"
    else:
        insist_on_files(certificate.files, folder)
        yield f"{names}: the files that it is for"


def _entries(ledger: object) -> list[str]:
    if isinstance(ledger, Ledger):
        return ledger.entries()
    if isinstance(ledger, list | tuple) and all(isinstance(entry, str) for entry in ledger):
        return list(ledger)
    raise InvalidParameter(
        "ledger", type(ledger), "must be a Ledger, or its entries as Ledger.entries() gives them."
    )


def _insist(condition: bool, otherwise: str) -> None:
    if not condition:
        raise CertificateRejected(f"The certificate is rejected: {otherwise}.")


# The files that a certificate is for: it names them with their digests, so a signature on it covers them.


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
