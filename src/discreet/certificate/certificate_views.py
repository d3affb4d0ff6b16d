"""A certificate in words, pictures and files. Nothing that is certified or verified comes from here."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import Self

from discreet import __version__
from discreet.accounting.power import power_bound
from discreet.certificate.guarantees import Arithmetic, continued_plans
from discreet.certificate.signatures import Signature
from discreet.charts import Picture, attack_chart, html_table
from discreet.files import read_text, write_whole
from discreet.guarantee import Guarantee
from discreet.ledger.ledger_state import Statement
from discreet.plan.plan import Plan

CHOSEN = "how this model was chosen among others: by scores on records, which this does not pay for"
"""Not covered, and said in the first line, where a search fitted the model."""
LEARNT = "learnt of the records before this fit"
"""How what is not covered ends, and is said in the first line, where a pipeline was fitted to the same records."""


class CertificateViews(ABC):
    """What a certificate shows to people."""

    plan: Plan
    ledger: Statement
    guarantee: Guarantee
    together: Guarantee
    arithmetic: Arithmetic
    not_covered: tuple[str, ...]
    signatures: tuple[Signature, ...]
    files: tuple[tuple[str, str], ...]

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of everything but the signatures."""

    @abstractmethod
    def to_json(self) -> str:
        """The certificate as JSON."""

    @classmethod
    @abstractmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`."""

    @property
    def headline(self) -> str:
        """The guarantee in words, and what somebody who reads nothing else has to know beside it.

        That it is not of the very bits that were released, that the model was chosen by scores, or that a pipeline
        learnt of the records before it.
        """
        also = [text for text in self.not_covered if text == CHOSEN or text.endswith(LEARNT)]
        not_covered = (f"not covered is {text}" for text in also)
        return "; ".join(filter(None, (str(self.guarantee), self.arithmetic.caution, *not_covered)))

    def __str__(self) -> str:
        charged = sum(self.ledger.spent(self.plan.digest(), *continued_plans(self.plan)).values())
        named = f"{self.plan.name}: " if self.plan.name else ""
        head = f"{named}{charged:,} releases, each charged before it happened; {self.arithmetic.kind} sums"
        return "\n".join([self.headline, head, *(f"not covered: {text}" for text in self.not_covered)])

    def __repr__(self) -> str:
        return f"<Certificate {self.digest()[:12]} of {self.plan.name!r}: {self.headline}>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the certificate to a file."""
        write_whole(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a certificate from a file. It is not verified yet."""
        return cls.from_json(read_text(path))

    def plot(self) -> Picture:
        """What the best attack finds at most, by the guarantee alone: at every rate of false alarms."""
        epsilon, delta = self.guarantee.epsilon.upper, self.guarantee.delta
        return Picture(attack_chart(lambda alarms: power_bound(epsilon, delta, alarms)))

    def _repr_html_(self) -> str:
        signers = ", ".join(signature.public_key for signature in self.signatures) or "nobody"
        rows = {
            "promise": self.headline,
            "with all other runs of its ledger": str(self.together),
            "for the files": ", ".join(name for name, _ in self.files) or "none named",
            "signed by": signers,
            "digest": self.digest(),
        }
        return html_table(("certificate", ""), rows.items())


@cache  # asking takes longer than a small fit
def current_versions() -> tuple[tuple[str, str], ...]:
    """The versions of what computed the guarantee."""
    found = {"discreet": __version__, "python": platform.python_version()}
    for name in ("numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return tuple(found.items())
