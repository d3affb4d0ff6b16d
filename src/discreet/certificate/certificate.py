"""The certificate as its users see it. The package's docstring shows how it is used."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet import __version__
from discreet.accounting.power import power_bound
from discreet.certificate.promises import Arithmetic, continued_plans, promises
from discreet.certificate.signatures import Signature, sign
from discreet.certificate.verification import Verification, checked_files, file_digest, verify_certificate
from discreet.charts import Picture, attack_chart, html_table
from discreet.errors import (
    CertificateRejected,
    InvalidParameter,
    LedgerUnavailable,
    PlanViolation,
    one_of,
    real,
)
from discreet.files import digest, parse_json, read_text, write_whole
from discreet.guarantee import Bounds, Budget, Guarantee, without_usual_unit
from discreet.ledger import Ledger
from discreet.ledger.book import Statement
from discreet.plan.explanation import NOT_COVERED
from discreet.plan.plan import Plan

FORMAT, FORMAT_WITH_MORE = "discreet certificate 1", "discreet certificate 2"
IN_MEMORY = "other runs on these records: this one was accounted for in memory, without a ledger on disk"
CHOSEN = "how this model was chosen among others: by scores on records, which this does not pay for"
"""Not covered, and said in the first line, where a search fitted the model."""
LEARNT = "learnt of the records before this fit"
"""How what is not covered ends, and is said in the first line, where a pipeline was fitted to the same records."""


@dataclass(frozen=True, repr=False)
class Certificate:
    """What was done, what the ledger says of it, and what follows for whom. It holds no private number.

    ``guarantee`` is for everything that ``plan`` releases under this ledger; ``together`` is for everything
    that any run releases under it, now and later.
    """

    plan: Plan
    ledger: Statement
    guarantee: Guarantee
    together: Guarantee
    arithmetic: Arithmetic
    trusted: bool
    not_covered: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    signatures: tuple[Signature, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """The files that it is for, such as the weights: names and SHA-256 digests. Signatures cover them."""
    checks: tuple[str, ...] = ()
    """What was looked at while the plan was carried out, beyond what its proof needs."""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        plan: Plan,
        *,
        arithmetic: Arithmetic | None = None,
        trusted: bool = True,
        not_covered: Iterable[str] = (),
        checks: Iterable[str] = (),
    ) -> Certificate:
        """Certify what ``plan`` has released under ``ledger``.

        ``trusted`` is False when a seed made the noise; such a certificate is never accepted. ``not_covered``
        adds to what no training run covers, and ``checks`` says what was looked at on the way. The ledger writes
        down the digest of the certificate, so that it vouches for all of it; if it cannot be written to any more,
        the certificate says the same, and what only its issuer knows counts as claimed.

        Guarantee: the epsilons are proved, or :class:`~discreet.errors.BudgetExceeded` is raised.
        """
        if not isinstance(plan, Plan):
            raise InvalidParameter("plan", type(plan), "must be the Plan that was carried out.")
        if not isinstance(ledger, Ledger):
            raise InvalidParameter("ledger", type(ledger), "must be the Ledger that was charged.")
        if not isinstance(arithmetic, Arithmetic | None):
            raise InvalidParameter("arithmetic", arithmetic, "must be an Arithmetic.")
        if not isinstance(trusted, bool):
            raise InvalidParameter("trusted", trusted, "must be True or False.")
        statement, arithmetic = ledger.statement(), arithmetic or Arithmetic()
        if not any(run.plan_hash == plan.digest() for run in statement.runs):
            raise PlanViolation("The ledger knows no run of this plan; there is nothing to certify.")
        certificate = cls(
            plan,
            statement,
            *promises(plan, statement, arithmetic),
            arithmetic,
            trusted,
            (*NOT_COVERED, *(() if ledger.durable else (IN_MEMORY,)), *_texts("not_covered", not_covered)),
            current_versions(),
            checks=_texts("checks", checks),
        )
        certificate._issue(ledger)
        return certificate

    # ---- checking ----

    def verify(
        self,
        ledger: Ledger | Iterable[str] | None = None,
        *,
        signed_by: str | None = None,
        folder: str | PathLike[str] | None = None,
    ) -> Verification:
        """Recompute everything, with a second accountant too, or raise
        :class:`~discreet.errors.CertificateRejected`.

        ``ledger`` is the ledger or its entries, where they are at hand: then the certificate must say what they
        say, up to the entry that it names. ``signed_by`` is a public key that you trust, whose signature is
        required. ``folder`` holds the files that the certificate is for, which must be the ones it names.

        There are three outcomes: this raises (rejected); ``outcome == "accepted"``: the numbers hold, and the
        ledger or the signature vouches for everything else; ``outcome == "consistent"``: the numbers follow from
        each other, but something is only claimed, and anybody could have made it up. ``lines`` says of each line
        whether it was computed, is in the ledger, is signed, or is claimed.
        """
        return verify_certificate(self, ledger, signed_by, folder)

    def for_files(self, *paths: str | PathLike[str], ledger: Ledger | None = None) -> Certificate:
        """This certificate for these files, by name and digest; earlier signatures did not cover them and go.

        With ``ledger``, the one that was charged, the ledger vouches for the files too, if it can be written to.
        Otherwise a signature has to.
        """
        files = tuple(sorted((Path(path).name, file_digest(path)) for path in paths))
        certificate = replace(self, files=checked_files(files), signatures=())
        if ledger is not None:
            certificate._issue(ledger)
        return certificate

    def _issue(self, ledger: Ledger) -> None:
        """Have the ledger write down this certificate's digest. A disk that is full now must not cost the model."""
        with suppress(LedgerUnavailable):
            ledger.issue("certificate", self.digest())

    @property
    def headline(self) -> str:
        """The guarantee in words, and what somebody who reads nothing else has to know beside it.

        That it is not of the very bits that were released, that the model was chosen by scores, or that a pipeline
        learnt of the records before it.
        """
        also = [text for text in self.not_covered if text == CHOSEN or text.endswith(LEARNT)]
        not_covered = (f"not covered is {text}" for text in also)
        return "; ".join(filter(None, (str(self.guarantee), self.arithmetic.caution, *not_covered)))

    def signed(self, key: Ed25519PrivateKey) -> Certificate:
        """This certificate with one more signature."""
        return replace(self, signatures=(*self.signatures, sign(self.digest(), key)))

    # ---- as text ----

    def __str__(self) -> str:
        charged = sum(self.ledger.spent(self.plan.digest(), *continued_plans(self.plan)).values())
        named = f"{self.plan.name}: " if self.plan.name else ""
        head = f"{named}{charged:,} releases, each charged before it happened; {self.arithmetic.kind} sums"
        return "\n".join([self.headline, head, *(f"not covered: {text}" for text in self.not_covered)])

    def __repr__(self) -> str:
        return f"<Certificate {self.digest()[:12]} of {self.plan.name!r}: {self.headline}>"

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
        data = parse_json(text, "certificate")
        claimed = data.pop("digest", None)
        try:
            certificate = cls._from_dict(data)
            found = certificate.digest()
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidParameter("certificate", text, f"is not a certificate ({error}).") from None
        if claimed != found:
            raise InvalidParameter(
                "digest", claimed, "does not match: the certificate was altered or damaged."
            )
        return certificate

    def save(self, path: str | PathLike[str]) -> None:
        """Write the certificate to a file."""
        write_whole(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Certificate:
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

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT_WITH_MORE if self.files or self.checks else FORMAT,
            "guarantee": _guarantee_to_dict(self.guarantee),
            "together": _guarantee_to_dict(self.together),
            "not_covered": list(self.not_covered),
            "arithmetic": asdict(self.arithmetic),
            "randomness": "operating system" if self.trusted else "seed",
            "procedure": self.plan.to_dict(),
            "ledger": self.ledger.to_dict(),
            "versions": dict(self.versions),
            **({"files": dict(self.files)} if self.files else {}),
            **({"checks": list(self.checks)} if self.checks else {}),
        }

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Certificate:
        if data.pop("format") != (FORMAT_WITH_MORE if "files" in data or "checks" in data else FORMAT):
            raise ValueError(f"its format is neither {FORMAT!r} nor {FORMAT_WITH_MORE!r}")
        certificate = cls(
            Plan.from_dict(data.pop("procedure")),
            Statement.from_dict(data.pop("ledger")),
            _guarantee_from(data.pop("guarantee")),
            _guarantee_from(data.pop("together")),
            Arithmetic(**data.pop("arithmetic")),
            one_of("randomness", data.pop("randomness"), ("operating system", "seed")) != "seed",
            _texts("not_covered", data.pop("not_covered")),
            tuple((name, *_texts("versions", [number])) for name, number in data.pop("versions").items()),
            tuple(Signature(**signature) for signature in _list(data.pop("signatures"))),
            checked_files(data.pop("files").items()) if "files" in data else (),
            _texts("checks", _list(data.pop("checks", []))),
        )
        if data:
            raise ValueError(f"unknown keys {', '.join(sorted(data))}")
        return certificate


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


def _guarantee_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    return without_usual_unit(asdict(guarantee) | {"epsilon": list(guarantee.epsilon)})


def _guarantee_from(data: dict[str, Any]) -> Guarantee:
    fields = dict(data)
    lower, upper = (real("epsilon", bound, at_least=0) for bound in fields.pop("epsilon"))
    guarantee = Guarantee(Bounds(lower, upper), **fields)
    meaning = (guarantee.delta, guarantee.neighbours, guarantee.group_size, guarantee.unit)
    Budget(1.0, *meaning)  # refuses what has none
    _texts("observer", [guarantee.observer])
    return guarantee


def _texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    texts = tuple(values)
    if isinstance(values, str) or not all(isinstance(text, str) and len(text) <= 1000 for text in texts):
        raise InvalidParameter(name, values, "must hold texts.")
    return texts


def _list(data: object) -> list[Any]:
    if isinstance(data, list):
        return data
    raise ValueError("a list is missing")


# ---- certificates in files: what is none is rejected, and never quoted ----


def read_certificate(path: Path) -> Certificate:
    """The certificate in a file; a text that is none, or was altered, is rejected without being quoted."""
    try:
        return Certificate.from_json(read_text(path))
    except InvalidParameter as error:
        name = "its digest " if error.name == "digest" else "it "
        raise CertificateRejected(f"{path} is rejected: {name}{_plainly(error)}") from None


def _plainly(error: InvalidParameter) -> str:
    known = error.name in ("digest", "certificate")
    return error.requirement if known else f"holds a wrong {error.name}; {error.requirement}"
