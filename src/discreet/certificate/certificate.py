"""The certificate as its users see it. The package's docstring shows how it is used."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.accounting.epsilon_delta import round_up
from discreet.certificate.procedure import Procedure, procedure_from, rule_of
from discreet.certificate.signatures import Signature, sign
from discreet.certificate.verification import Verification, verified
from discreet.documents import digest, parsed, read_text
from discreet.errors import BudgetExceeded, InvalidParameter, one_of, real
from discreet.events import Composition, Event
from discreet.explanation import NOT_COVERED
from discreet.guarantee import Bounds, Guarantee
from discreet.ledger import Ledger, SpendingRule, Statement
from discreet.plan import Plan

FORMAT = "discreet certificate 1"


@dataclass(frozen=True)
class Arithmetic:
    """How the releases were computed.

    ``"float"``: the guarantee is proved for real numbers. ``"hardened"``: for the bits that were released; then
    ``distance`` bounds, for each release, the total variation between its noise and the noise as accounted.
    """

    kind: Literal["float", "hardened"] = "float"
    distance: float = 0.0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("float", "hardened"))
        object.__setattr__(self, "distance", real("distance", self.distance, at_least=0, below=1))

    def spare_delta(self, releases: int, epsilon: float) -> Fraction:
        """What the distances of so many releases add to delta at most: (1 + exp(epsilon)) of each."""
        factor = Fraction(1) + Fraction(math.exp(min(epsilon, 700.0)) * (1 + 1e-15))
        return releases * Fraction(self.distance) * factor


@dataclass(frozen=True)
class Certificate:
    """What was done, what the ledger says of it, and what follows for whom. It holds no private number.

    ``guarantee`` is for everything that ``procedure`` released; ``together`` is for everything that any run
    released under the same ledger, now and later.
    """

    procedure: Plan | Procedure
    ledger: Statement
    guarantee: Guarantee
    together: Guarantee
    arithmetic: Arithmetic
    trusted: bool
    not_covered: tuple[str, ...]
    versions: dict[str, str]
    signatures: tuple[Signature, ...] = ()

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        procedure: Plan | Procedure,
        *,
        arithmetic: Arithmetic | None = None,
        trusted: bool = True,
        not_covered: Iterable[str] = (),
    ) -> Certificate:
        """Certify what ``procedure`` has released under ``ledger``.

        ``trusted`` is False when a seed made the noise; such a certificate is never accepted. ``not_covered``
        adds to what no training run covers.

        Guarantee: the epsilons are proved, or :class:`~discreet.errors.BudgetExceeded` is raised.
        """
        if not isinstance(procedure, Plan | Procedure):
            raise InvalidParameter("procedure", type(procedure), "must be a Plan or a Procedure.")
        statement, arithmetic = ledger.statement(), arithmetic or Arithmetic()
        own = statement.spent(procedure.digest())
        return cls(
            procedure,
            statement,
            kept(rule_of(procedure), own, arithmetic),
            kept(statement.rule, statement.spent(), arithmetic),
            arithmetic,
            trusted,
            (*NOT_COVERED, *not_covered),
            current_versions(),
        )

    # ---- checking ----

    def verify(
        self, ledger: Ledger | Iterable[str] | None = None, *, signed_by: str | None = None
    ) -> Verification:
        """Recompute everything, with a second accountant too, or raise
        :class:`~discreet.errors.CertificateRejected`.

        ``ledger`` is the ledger or its entries, where they are at hand: then the certificate must say what they
        say, up to the entry that it names. ``signed_by`` is a public key whose signature is required.
        """
        return verified(self, ledger, signed_by)

    def recomputed(self) -> Certificate:
        """The same certificate with its guarantees computed anew."""
        own = self.ledger.spent(self.procedure.digest())
        return replace(
            self,
            guarantee=kept(rule_of(self.procedure), own, self.arithmetic),
            together=kept(self.ledger.rule, self.ledger.spent(), self.arithmetic),
        )

    def signed(self, key: Ed25519PrivateKey) -> Certificate:
        """This certificate with one more signature."""
        return replace(self, signatures=(*self.signatures, sign(self.digest(), key)))

    # ---- as text ----

    def digest(self) -> str:
        """SHA-256 of everything but the signatures: what they sign."""
        return digest(self._content())

    def to_json(self) -> str:
        """The certificate as JSON for people and programs."""
        seals = {"digest": self.digest(), "signatures": [asdict(signature) for signature in self.signatures]}
        return json.dumps(self._content() | seals, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The inverse of :meth:`to_json`. A text that does not match its digest is refused."""
        data = parsed(text, "certificate")
        claimed = data.pop("digest", None)
        try:
            certificate = cls._from_dict(data)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            raise InvalidParameter("certificate", text, f"is not a certificate ({error}).") from None
        if claimed != certificate.digest():
            raise InvalidParameter(
                "digest", claimed, "does not match: the certificate was altered or damaged."
            )
        return certificate

    def save(self, path: str | PathLike[str]) -> None:
        """Write the certificate to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Certificate:
        """Read a certificate from a file. It is not verified yet."""
        return cls.from_json(read_text(path))

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "guarantee": _guarantee_to_dict(self.guarantee),
            "together": _guarantee_to_dict(self.together),
            "not_covered": list(self.not_covered),
            "arithmetic": asdict(self.arithmetic),
            "randomness": "operating system" if self.trusted else "seed",
            "procedure": self.procedure.to_dict(),
            "ledger": self.ledger.to_dict(),
            "versions": self.versions,
        }

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Certificate:
        if data.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        certificate = cls(
            procedure_from(data.pop("procedure")),
            Statement.from_dict(data.pop("ledger")),
            _guarantee_from(data.pop("guarantee")),
            _guarantee_from(data.pop("together")),
            Arithmetic(**data.pop("arithmetic")),
            one_of("randomness", data.pop("randomness"), ("operating system", "seed")) != "seed",
            tuple(_text(item) for item in data.pop("not_covered")),
            {_text(name): _text(number) for name, number in data.pop("versions").items()},
            tuple(Signature(**signature) for signature in data.pop("signatures")),
        )
        if data:
            raise ValueError(f"unknown keys {', '.join(sorted(data))}")
        return certificate


def kept(rule: SpendingRule, spent: dict[Event, int], arithmetic: Arithmetic) -> Guarantee:
    """What ``rule`` promises, if ``spent`` kept to it.

    Guarantee: proved for the releases of ``spent``, chosen under the rule, by this arithmetic.
    """
    if spent and rule.room({}, Composition(tuple(spent.items()))) < 1:
        raise BudgetExceeded(
            "The ledger shows more than the rule of the procedure allows; nothing is certified."
        )
    guarantee = rule.guarantee(spent)
    spare = arithmetic.spare_delta(sum(spent.values()), guarantee.epsilon.upper)
    return replace(guarantee, delta=round_up(Fraction(guarantee.delta) + spare)) if spare else guarantee


def current_versions() -> dict[str, str]:
    """The versions of what computed the guarantee."""
    found = {"python": platform.python_version()}
    for name in ("discreet", "numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def _guarantee_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    return asdict(guarantee) | {"epsilon": list(guarantee.epsilon)}


def _guarantee_from(data: dict[str, Any]) -> Guarantee:
    fields = dict(data)
    lower, upper = fields.pop("epsilon")
    guarantee = Guarantee(
        Bounds(real("epsilon", lower, at_least=0), real("epsilon", upper, at_least=0)), **fields
    )
    real("delta", guarantee.delta, at_least=0, at_most=1)
    return guarantee


def _text(value: object) -> str:
    if isinstance(value, str) and len(value) <= 1000:
        return value
    raise ValueError("a text is missing")
