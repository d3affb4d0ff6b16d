"""Recomputing a certificate: every number anew, by the accountant that issued it and by one that shares no code.

A certificate is rejected unless all checks pass. What is found is told line by line, each with what it rests on:

* *computed*: it was computed here, from the events in the certificate;
* *in the ledger*: the entries of the ledger that was given say so, or say that this very certificate was issued;
* *signed*: a key that the reader trusts has signed this very certificate;
* *claimed*: none of these. Anybody can write it, and recompute the digest afterwards.

A certificate with a claimed line is consistent at best, and never accepted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from discreet.accounting.curve import account
from discreet.accounting.renyi import renyi_epsilon
from discreet.certificate.promises import continued_plans, promises
from discreet.errors import CertificateRejected, DiscreetError, InvalidParameter, UnsupportedEvent
from discreet.events import Composition, Event
from discreet.guarantee import Guarantee, lower_text, upper_text
from discreet.ledger import FixedPlan, Ledger
from discreet.ledger.book import Book, Statement, hex_digest
from discreet.ledger.filters import SpendingRule
from discreet.plan.explanation import NOT_COVERED

if TYPE_CHECKING:
    from discreet.certificate.certificate import Certificate

_AGREE = 1e-9  # relative: what another version of the numeric libraries may change in a recomputed epsilon


CONSISTENT = "consistent; nobody vouches for it"
COMPUTED, RECORDED, SIGNED, CLAIMED, MISSING = "computed", "in the ledger", "signed", "claimed", "not at hand"
"""What a line of a verdict rests on; the last is for something that could be checked and was not given."""


class Finding(NamedTuple):
    """One line of a verdict: what it says, and what that rests on."""

    basis: str
    text: str

    def __str__(self) -> str:
        return f"{self.basis}: {self.text}"


@dataclass(frozen=True)
class Verification:
    """A certificate that was not rejected, and what was found, line by line.

    ``vouched`` is true if no line is merely claimed: the ledger or a trusted signature stands behind every line that
    was not computed here.
    """

    guarantee: Guarantee
    lines: tuple[Finding, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """The lines as text, each beginning with what it rests on."""
        return tuple(map(str, self.lines))

    @property
    def claimed(self) -> tuple[str, ...]:
        """What nobody vouches for."""
        return tuple(line.text for line in self.lines if line.basis == CLAIMED)

    @property
    def vouched(self) -> bool:
        """True if nothing is merely claimed."""
        return not self.claimed

    @property
    def outcome(self) -> Literal["accepted", "consistent"]:
        """``"accepted"``, or ``"consistent"`` if something is merely claimed. What is rejected raises instead."""
        return "accepted" if self.vouched else "consistent"

    @property
    def headline(self) -> str:
        """The outcome in words."""
        if self.vouched:
            return "accepted"
        if any(basis in line.basis for line in self.lines for basis in (RECORDED, SIGNED)):
            many = len(self.claimed)
            return f"consistent; {many} line{' is' if many == 1 else 's are'} only claimed, and nobody vouches for it"
        return CONSISTENT

    def __str__(self) -> str:
        return "\n".join((self.headline, *(f"  {line}" for line in self.lines)))


def verify_certificate(
    certificate: Certificate,
    ledger: object,
    signed_by: str | None,
    folder: str | PathLike[str] | None = None,
    covered: Iterable[str] = (),
) -> Verification:
    """Run all checks, or raise :class:`~discreet.errors.CertificateRejected`.

    ``covered`` names what vouches for the whole text of the certificate from outside: for instance the signature on
    a page that carries it. That is checked by the caller.
    """
    try:
        claimed = certificate.guarantee, certificate.together
        proved, together = promises(certificate.plan, certificate.ledger, certificate.arithmetic, claimed)
        entries = None if ledger is None else entries_of(ledger)
        issued = set() if entries is None else issued_in(entries)
        behind = {*covered, *([] if signed_by is None else [SIGNED])}
        spent = _basis(behind, entries is not None)
        whole = _basis(behind, _recorded(certificate, issued))
        # Naming files changes the digest; the ledger may know the certificate from before.
        rest = _basis(
            behind, _recorded(certificate, issued) or _recorded(replace(certificate, files=()), issued)
        )
        lines = (
            *_procedure(certificate, spent),
            *_guarantees(certificate, proved, together),
            *_second_opinion(certificate),
            *_circumstances(certificate, rest),
            *_signatures(certificate, signed_by),
            *_ledger(certificate, entries),
            *_files(certificate, folder, whole),
        )
    except CertificateRejected:
        raise
    except DiscreetError as error:
        raise CertificateRejected(f"The certificate is rejected: {error}") from error
    return Verification(proved, lines)


def _basis(behind: set[str], recorded: bool) -> str:
    """What stands behind a line, in words."""
    return " and ".join(sorted(behind | ({RECORDED} if recorded else set()))) or CLAIMED


def _recorded(certificate: Certificate, issued: set[tuple[str, str]]) -> bool:
    """Whether the ledger says that this very certificate was issued."""
    return ("certificate", certificate.digest()) in issued


def _procedure(certificate: Certificate, basis: str) -> Iterator[Finding]:
    """The runs that name this procedure carried out what it says."""
    digest = certificate.plan.digest()
    runs = [run for run in certificate.ledger.runs if run.plan_hash == digest]
    _insist(bool(runs), "the ledger knows no run of this procedure")
    if certificate.plan.stages:
        planned = certificate.plan.event.parts()
        _insist(all(run.event.parts() == planned for run in runs), "a run's event is not that of the plan")
    charges = sum(sum(run.taken) for run in runs)
    yield Finding(basis, f"procedure {digest[:12]}: {charges:,} events charged, as its rule allows")
    earlier = continued_plans(certificate.plan)
    known = {run.plan_hash for run in certificate.ledger.runs}
    _insist(known.issuperset(earlier), "the ledger knows no run of a procedure that it continues")
    if earlier:
        more = sum(certificate.ledger.spent(*earlier).values())
        yield Finding(basis, f"it continues {len(earlier)} others, whose {more:,} events count as its own")


def _guarantees(certificate: Certificate, proved: Guarantee, together: Guarantee) -> Iterator[Finding]:
    """Both promises follow from the events."""
    _insist_follows("guarantee", certificate.guarantee, proved)
    _insist_follows("together", certificate.together, together)
    yield Finding(COMPUTED, f"guarantee from these events: {proved}")
    if certificate.guarantee.epsilon.upper > proved.epsilon.upper * (1 + _AGREE):
        yield Finding(COMPUTED, f"the certificate claims less than it could: {certificate.guarantee}")
    if together.epsilon != proved.epsilon:
        more = together.delta > certificate.ledger.rule.budget.delta
        why = (
            "; its delta is that of the ledger's budget and what noise in whole numbers adds" if more else ""
        )
        yield Finding(COMPUTED, f"all runs of this ledger together: {together}{why}")


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


def _second_opinion(certificate: Certificate) -> Iterator[Finding]:
    """The Renyi accountant must not contradict: it bounds from above what the first bounds from below."""
    rule = certificate.plan.rule
    spent = certificate.ledger.spent(certificate.plan.digest())
    event = _account_spending(rule, spent)
    neighbours, delta = rule.budget.neighbours, rule.budget.delta
    if event is None or rule.budget.group_size > 1 or delta == 0:
        yield Finding(COMPUTED, "second accountant: has no theorem for this")
        return
    try:
        second = renyi_epsilon(event, delta, neighbours)
    except UnsupportedEvent:
        yield Finding(COMPUTED, "second accountant: has no theorem for these events")
        return
    lower = account(event, neighbours).epsilon_bounds(delta).lower
    _insist(
        second >= lower * (1 - _AGREE),
        f"the second accountant proves {second}, below the lower bound {lower}",
    )
    bounds = f"at most {upper_text(second)}; no accountant can go below {lower_text(lower)}"
    yield Finding(COMPUTED, f"second accountant (Renyi): {bounds}")


def _account_spending(rule: SpendingRule, spent: dict[Event, int]) -> Event | None:
    if isinstance(rule, FixedPlan):
        return rule.event
    return Composition(tuple(spent.items())) if spent else None


def _circumstances(certificate: Certificate, basis: str) -> Iterator[Finding]:
    """What no events show: randomness, arithmetic, what is not covered, checks and versions."""
    _insist(certificate.trusted, "a seed made the noise, so nothing is private: no guarantee")
    _insist(set(NOT_COVERED) <= set(certificate.not_covered), "it hides something that is not covered")
    yield Finding(basis, "noise from the operating system's entropy")
    exact = certificate.arithmetic.kind == "hardened"
    yield Finding(
        basis,
        "hardened sums: proved for the bits that were released"
        if exact
        else "float sums: proved for real numbers",
    )
    yield Finding(
        basis, f"not covered: {len(certificate.not_covered)} things, listed in the certificate, and no others"
    )
    if certificate.checks:
        yield Finding(
            basis, f"{len(certificate.checks)} checks were made on the way, listed in the certificate"
        )
    yield Finding(
        basis, f"made with {', '.join(f'{name} {number}' for name, number in certificate.versions)}"
    )


def _signatures(certificate: Certificate, signed_by: str | None) -> Iterator[Finding]:
    digest = certificate.digest()
    for signature in certificate.signatures:
        key = signature.public_key
        _insist(signature.valid(digest), f"the signature of {key[:12]} is not of this certificate")
        if key == signed_by:
            yield Finding(SIGNED, f"signed by {key}, which you trust")
        else:
            yield Finding(COMPUTED, f"signed by {key}; to rely on it, give this key yourself (--signed-by)")
    if signed_by is not None:
        keys = {signature.public_key for signature in certificate.signatures}
        _insist(signed_by in keys, f"it is not signed by {signed_by}")


def _ledger(certificate: Certificate, entries: list[str] | None) -> Iterator[Finding]:
    """The entries, up to the one that the certificate names, say the same, and those after it keep the rules."""
    statement, count = certificate.ledger, certificate.ledger.anchor.sequence + 1
    least = 1 + len(statement.runs) + sum(any(run.taken) for run in statement.runs)
    _insist(count >= least, f"a ledger of {count} entries cannot say so much")
    if entries is None:
        yield Finding(MISSING, f"the ledger, whose head should be {count - 1}, {statement.anchor.hash[:12]}")
        return
    _insist(len(entries) >= count, "the ledger is older than the certificate")
    _insist(Statement.of_entries(entries[:count]) == statement, "the ledger says something else")
    yield Finding(RECORDED, f"the ledger's first {count:,} entries say the same of what was spent")
    later = Statement.of_entries(entries)
    if later.anchor != statement.anchor:
        promises(certificate.plan, later, certificate.arithmetic)
        own = certificate.plan.digest()
        more = sum(later.spent(own).values()) - sum(statement.spent(own).values())
        went = later.anchor.sequence + 1 - count
        yield Finding(
            RECORDED, f"the ledger went on by {went:,} entries and {more:,} releases of this procedure"
        )


def _files(certificate: Certificate, folder: str | PathLike[str] | None, basis: str) -> Iterator[Finding]:
    """The files in the folder are those that the certificate names."""
    names = ", ".join(name for name, _ in certificate.files)
    if not certificate.files:
        what = "which weights it is for: it holds no digest of any file"
        yield Finding(MISSING if folder is None else CLAIMED, what)
        return
    yield Finding(basis, f"it is for the files {names}")
    if folder is None:
        yield Finding(MISSING, "these files: give the model's folder to compare them")
    else:
        insist_on_files(certificate.files, folder)
        yield Finding(COMPUTED, f"the files in {Path(folder).name or folder} are those that it names")


def issued_in(entries: list[str]) -> set[tuple[str, str]]:
    """What these entries say was issued: ``("certificate", digest)`` and ``("report", digest)``."""
    book = Book()
    book.follow(entries)
    return book.issued


def entries_of(ledger: object) -> list[str]:
    """The entries of a ledger, or those that were given in its place."""
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
