"""Verification of a certificate: every number is recomputed by two accountants that share no code.

A certificate is rejected unless all checks pass. What is found is told line by line, each with what it rests on:

* *computed*: it was computed here, from the events in the certificate;
* *in the ledger*: the ledger that was opened says so, or says that this very certificate was issued;
* *signed*: a key that the reader trusts has signed this very certificate;
* *claimed*: none of these. Anybody can write it, and recompute the digest afterwards.

A certificate with a claimed line is consistent at best, and never accepted. Entries that were copied out of a ledger
are compared with the certificate, but anybody can write entries, so they vouch for nothing by themselves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from discreet.certificate import verdict_views
from discreet.certificate.guarantees import continued_plans, guarantees, not_covered_in, seeded
from discreet.certificate.second_opinion import second_opinion
from discreet.certificate.verdict_views import VerdictLine, VerdictViews
from discreet.errors import CertificateRejected, DiscreetError, InvalidParameter
from discreet.guarantee import Guarantee
from discreet.ledger import Ledger
from discreet.ledger.ledger_state import LedgerState, Statement, hex_digest
from discreet.plan.procedure import compose

if TYPE_CHECKING:
    from discreet.certificate.certificate import Certificate

_SEED = "a seed made the noise, so nothing is private: no guarantee"
_AGREE = 1e-9  # relative: what another version of the numeric libraries may change in a recomputed epsilon

COMPUTED, RECORDED, SIGNED, CLAIMED, MISSING = "computed", "in the ledger", "signed", "claimed", "not at hand"
"""What a line of a verdict rests on; the last is for something that could be checked and was not given."""


@dataclass(frozen=True)
class Verification(VerdictViews):
    """A certificate that was not rejected, and what was found, line by line.

    ``vouched`` is true if no line is merely claimed: the ledger or a trusted signature stands behind every line that
    was not computed here.
    """

    guarantee: Guarantee
    lines: tuple[VerdictLine, ...]

    @property
    def claimed(self) -> tuple[str, ...]:
        """The lines that nobody vouches for."""
        return tuple(line.text for line in self.lines if line.basis == CLAIMED)

    @property
    def vouched(self) -> bool:
        """True if nothing is merely claimed."""
        return not self.claimed

    @property
    def outcome(self) -> Literal["accepted", "consistent"]:
        """``"accepted"``, or ``"consistent"`` if something is merely claimed. What is rejected raises instead."""
        return "accepted" if self.vouched else "consistent"


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
        claimed, digest = (certificate.guarantee, certificate.together), certificate.plan.digest()
        proved, together = guarantees(certificate.plan, certificate.ledger, certificate.arithmetic, claimed)
        entries = None if ledger is None else entries_of(ledger)
        opened, issued = isinstance(ledger, Ledger), issued_in(ledger)
        behind = {*covered, *([] if signed_by is None else [SIGNED])}
        spent = _basis(behind, opened)
        whole = _basis(behind, _recorded(certificate, issued))
        # Naming files changes the digest; the ledger may know the certificate from before.
        rest = _basis(
            behind, _recorded(certificate, issued) or _recorded(replace(certificate, files=()), issued)
        )
        own = certificate.ledger.spent(digest)
        lines = (
            *_procedure(certificate, spent),
            *_guarantees(certificate, proved, together),
            VerdictLine(COMPUTED, second_opinion(certificate.plan.rule, own)),
            *_circumstances(certificate, rest),
            *_signatures(certificate, signed_by),
            *_ledger(certificate, entries, RECORDED if opened else spent),
            *_files(certificate, folder, whole),
        )
    except CertificateRejected:
        raise
    except DiscreetError as error:
        raise CertificateRejected(f"The certificate is rejected: {error}") from error
    return Verification(proved, lines)


def _basis(behind: set[str], recorded: bool) -> str:
    """Return the evidence of a line, in words."""
    return " and ".join(sorted(behind | ({RECORDED} if recorded else set()))) or CLAIMED


def _recorded(certificate: Certificate, issued: set[tuple[str, str]]) -> bool:
    """Whether the ledger says that this very certificate was issued."""
    return ("certificate", certificate.digest()) in issued


def _procedure(certificate: Certificate, basis: str) -> Iterator[VerdictLine]:
    """The runs that name this procedure carried out what it says."""
    digest, ledger = certificate.plan.digest(), certificate.ledger
    runs = [run for run in ledger.runs if run.plan_hash == digest]
    _insist(bool(runs), "the ledger knows no run of this procedure")
    if certificate.plan.stages:
        planned = compose(certificate.plan.stages).parts()
        _insist(all(run.event.parts() == planned for run in runs), "a run's event is not that of the plan")
    yield VerdictLine(basis, verdict_views.charged(digest, sum(sum(run.taken) for run in runs)))
    earlier = continued_plans(certificate.plan)
    known = {run.plan_hash for run in ledger.runs}
    _insist(known.issuperset(earlier), "the ledger knows no run of a procedure that it continues")
    if earlier:
        yield VerdictLine(basis, verdict_views.continued(len(earlier), sum(ledger.spent(*earlier).values())))


def _guarantees(certificate: Certificate, proved: Guarantee, together: Guarantee) -> Iterator[VerdictLine]:
    """Both promises follow from the events."""
    _insist_follows("guarantee", certificate.guarantee, proved)
    _insist_follows("together", certificate.together, together)
    yield VerdictLine(COMPUTED, f"guarantee from these events: {proved}")
    if certificate.guarantee.epsilon.upper > proved.epsilon.upper * (1 + _AGREE):
        yield VerdictLine(COMPUTED, f"the certificate claims less than it could: {certificate.guarantee}")
    if together.epsilon != proved.epsilon:
        yield VerdictLine(COMPUTED, verdict_views.all_runs(together, certificate.ledger.rule.budget.delta))


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


def _circumstances(certificate: Certificate, basis: str) -> Iterator[VerdictLine]:
    """Report randomness, arithmetic, limits, checks and versions, which no events show."""
    _insist(certificate.trusted, _SEED)
    _insist_names(certificate, certificate.ledger)
    yield VerdictLine(basis, verdict_views.ENTROPY)
    for text in verdict_views.circumstances(certificate):
        yield VerdictLine(basis, text)


def _insist_names(certificate: Certificate, ledger: Statement) -> None:
    missing = set(not_covered_in(certificate.plan, ledger)) - set(certificate.not_covered)
    _insist(not missing, "it hides something that is not covered")


def _signatures(certificate: Certificate, signed_by: str | None) -> Iterator[VerdictLine]:
    digest = certificate.digest()
    for signature in certificate.signatures:
        key = signature.public_key
        _insist(signature.valid(digest), f"the signature of {key[:12]} is not of this certificate")
        if key == signed_by:
            yield VerdictLine(SIGNED, f"signed by {key}, which you trust")
        else:
            yield VerdictLine(COMPUTED, verdict_views.signed_by_other(key))
    if signed_by is not None:
        keys = {signature.public_key for signature in certificate.signatures}
        _insist(signed_by in keys, f"it is not signed by {signed_by}")


def _ledger(certificate: Certificate, entries: list[str] | None, basis: str) -> Iterator[VerdictLine]:
    """Compare the entries up to the certificate's anchor with it, and apply the rules to those after it.

    A signature on the certificate covers its anchor and so the entries before it (``basis``), but no later entry.
    """
    statement, count = certificate.ledger, certificate.ledger.anchor.sequence + 1
    least = 1 + len(statement.runs) + sum(any(run.taken) for run in statement.runs)
    _insist(count >= least, f"a ledger of {count} entries cannot say so much")
    if entries is None:
        yield VerdictLine(MISSING, verdict_views.missing_ledger(statement.anchor))
        return
    _insist(len(entries) >= count, "the ledger is older than the certificate")
    found = Statement.of_entries(entries[:count])
    _insist(found == statement, "the ledger says something else")
    _insist_names(certificate, found)
    yield VerdictLine(basis, verdict_views.same_entries(count, basis == RECORDED))
    later = Statement.of_entries(entries)
    _insist(not seeded(certificate.plan, later), _SEED)
    if later.anchor != statement.anchor:
        guarantees(certificate.plan, later, certificate.arithmetic)
        own = certificate.plan.digest()
        more = sum(later.spent(own).values()) - sum(statement.spent(own).values())
        went = later.anchor.sequence + 1 - count
        yield VerdictLine(RECORDED if basis == RECORDED else CLAIMED, verdict_views.went_on(went, more))


def _files(certificate: Certificate, folder: str | PathLike[str] | None, basis: str) -> Iterator[VerdictLine]:
    """The files in the folder are those that the certificate names."""
    if not certificate.files:
        yield VerdictLine(MISSING if folder is None else CLAIMED, verdict_views.NO_FILES)
        return
    yield VerdictLine(basis, verdict_views.for_files(name for name, _ in certificate.files))
    if folder is None:
        yield VerdictLine(MISSING, verdict_views.FILES_NOT_GIVEN)
    else:
        insist_on_files(certificate.files, folder)
        yield VerdictLine(COMPUTED, verdict_views.same_files(folder))


def issued_in(ledger: object) -> set[tuple[str, str]]:
    """Certificates and reports that an opened ledger has on record, as ``("certificate", digest)``.

    Copied entries have none on record: nothing but the ledger's own key shows that they are the ledger's.
    """
    if not isinstance(ledger, Ledger):
        return set()
    ledger_state = LedgerState()
    ledger_state.follow(ledger.entries())
    return ledger_state.issued


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
