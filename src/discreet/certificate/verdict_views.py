"""The sentences of a verdict on a certificate.

What each line rests on is decided in :mod:`discreet.certificate.verification`. Nothing here can accept a certificate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from discreet.guarantee import Guarantee
from discreet.ledger.ledger_state import Anchor

if TYPE_CHECKING:
    from discreet.certificate.certificate import Certificate

CONSISTENT = "consistent; nobody vouches for it"
NO_FILES = "which weights it is for: it holds no digest of any file"
FILES_NOT_GIVEN = "these files: give the model's folder to compare them"
ENTROPY = "noise from the operating system's entropy"


class VerdictLine(NamedTuple):
    """One line of a verdict: what it says, and what that rests on."""

    basis: str
    text: str

    def __str__(self) -> str:
        return f"{self.basis}: {self.text}"


class VerdictViews(ABC):
    """What a verdict shows to people."""

    lines: tuple[VerdictLine, ...]

    @property
    @abstractmethod
    def claimed(self) -> tuple[str, ...]:
        """What nobody vouches for."""

    @property
    def findings(self) -> tuple[str, ...]:
        """The lines as text, each beginning with what it rests on."""
        return tuple(map(str, self.lines))

    @property
    def headline(self) -> str:
        """The outcome in words."""
        if not self.claimed:
            return "accepted"
        if any(basis in line.basis for line in self.lines for basis in ("in the ledger", "signed")):
            many = len(self.claimed)
            return f"consistent; {many} line{' is' if many == 1 else 's are'} only claimed, and nobody vouches for it"
        return CONSISTENT

    def __str__(self) -> str:
        return "\n".join((self.headline, *(f"  {line}" for line in self.lines)))


def charged(digest: str, charges: int) -> str:
    """That the runs of a procedure were charged."""
    return f"procedure {digest[:12]}: {charges:,} events charged, as its rule allows"


def continued(plans: int, charges: int) -> str:
    """That other procedures count as this one's."""
    return f"it continues {plans} others, whose {charges:,} events count as its own"


def all_runs(together: Guarantee, delta: float) -> str:
    """What follows for all runs of a ledger whose budget has this delta."""
    why = "; its delta is that of the ledger's budget and what noise in whole numbers adds"
    return f"all runs of this ledger together: {together}{why if together.delta > delta else ''}"


def circumstances(certificate: Certificate) -> Iterable[str]:
    """What no events show, and a certificate says."""
    yield (
        "hardened sums: proved for the bits that were released"
        if certificate.arithmetic.kind == "hardened"
        else "float sums: proved for real numbers"
    )
    yield f"not covered: {len(certificate.not_covered)} things, listed in the certificate, and no others"
    if certificate.checks:
        yield f"{len(certificate.checks)} checks were made on the way, listed in the certificate"
    yield f"made with {', '.join(f'{name} {number}' for name, number in certificate.versions)}"


def signed_by_other(key: str) -> str:
    """That a key has signed which the reader did not give."""
    return f"signed by {key}; to rely on it, give this key yourself (--signed-by)"


def missing_ledger(anchor: Anchor) -> str:
    """What the ledger that is not at hand should be."""
    return f"the ledger, whose head should be {anchor.sequence}, {anchor.hash[:12]}"


def same_entries(count: int, opened: bool) -> str:
    """State that the first entries of a ledger, or of a copy of its entries, agree with the certificate."""
    whose = "the ledger's" if opened else "the given"
    hint = "" if opened else "; only the ledger itself (--ledger) shows that they are its entries"
    return f"{whose} first {count:,} entries say the same of what was spent{hint}"


def went_on(entries: int, releases: int) -> str:
    """State how many entries follow those that the certificate covers."""
    return f"the ledger went on by {entries:,} entries and {releases:,} releases of this procedure"


def for_files(names: Iterable[str]) -> str:
    """Which files the certificate is for."""
    return f"it is for the files {', '.join(names)}"


def same_files(folder: str | PathLike[str]) -> str:
    """That the files are those of the certificate."""
    return f"the files in {Path(folder).name or folder} are those that it names"
