"""The public certificate: issue, sign, verify, read and write. The package's docstring has an example."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate.certificate_views import CertificateViews, current_versions
from discreet.certificate.guarantees import Arithmetic, guarantees, not_covered_in, seeded
from discreet.certificate.signatures import Signature, sign
from discreet.certificate.verification import Verification, checked_files, file_digest, verify_certificate
from discreet.errors import InvalidParameter, LedgerUnavailable, PlanViolation, one_of, real
from discreet.files import digest, parse_json
from discreet.guarantee import Bounds, Budget, Guarantee, without_usual_unit
from discreet.ledger import Ledger
from discreet.ledger.ledger_state import Statement
from discreet.plan.plan import Plan
from discreet.plan.procedure import Procedure

FORMAT, FORMAT_WITH_MORE = "discreet certificate 1", "discreet certificate 2"
IN_MEMORY = "other runs on these records: this one was accounted for in memory, without a ledger on disk"


@dataclass(frozen=True, repr=False)
class Certificate(CertificateViews):
    """A plan, the statement of its ledger, and the guarantee that follows. It holds no private number.

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
        plan: Procedure,
        *,
        arithmetic: Arithmetic | None = None,
        trusted: bool = True,
        not_covered: Iterable[str] = (),
        checks: Iterable[str] = (),
    ) -> Certificate:
        """Certify what ``plan`` has released under ``ledger``.

        ``trusted`` is False when a seed made the noise, and so it is where the ledger says so of a run; such a
        certificate is never accepted. ``not_covered`` adds to what no training run covers, and ``checks`` says what
        was looked at on the way. The ledger writes down the digest of the certificate, so that it vouches for all of
        it; if it cannot be written to any more, the certificate says the same, and what only its issuer knows counts
        as claimed.

        Guarantee: the epsilons are proved, or :class:`~discreet.errors.BudgetExceeded` is raised.
        """
        arithmetic = Arithmetic() if arithmetic is None else arithmetic
        for name, value, kind in (
            ("plan", plan, Procedure),
            ("ledger", ledger, Ledger),
            ("arithmetic", arithmetic, Arithmetic),
            ("trusted", trusted, bool),
        ):
            if not isinstance(value, kind):
                raise InvalidParameter(name, type(value), f"must be a {kind.__name__}.")
        statement = ledger.statement()
        if not any(run.plan_hash == plan.digest() for run in statement.runs):
            raise PlanViolation("The ledger knows no run of this plan; there is nothing to certify.")
        memory = () if ledger.durable else (IN_MEMORY,)
        certificate = cls(
            plan if isinstance(plan, Plan) else Plan.from_dict(plan.to_dict()),
            statement,
            *guarantees(plan, statement, arithmetic),
            arithmetic,
            trusted and not seeded(plan, statement),
            (*not_covered_in(plan, statement), *memory, *_texts("not_covered", not_covered)),
            current_versions(),
            checks=_texts("checks", checks),
        )
        certificate._issue(ledger)
        return certificate

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

    def signed(self, key: Ed25519PrivateKey) -> Certificate:
        """This certificate with one more signature."""
        return replace(self, signatures=(*self.signatures, sign(self.digest(), key)))

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
