"""The joint certificate of a study: the certificates of all parties, each signed by its party, and the model.

The coordinator writes it and signs it with its own key. What a party's certificate says is the party's word, from its
own ledger, and names the model that the party was given; so a coordinator that hands out two models is found out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from discreet.certificate import Certificate, Verification
from discreet.certificate.verification import checked_files
from discreet.errors import CertificateRejected, InvalidParameter, MalformedMessage
from discreet.files import digest, parse_json, read_text, write_whole
from discreet.ledger import FixedPlan
from discreet.ledger.filters import SpendingRule
from discreet.parties.messages import EVERYBODY, Message
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import COORDINATOR, Study

FORMAT = "discreet joint certificate 1"
_PURPOSE = b"discreet joint certificate\0"
GIVEN = "model-of-the-study"
"""Under this name a party's certificate holds the digest of the model that it was given at the end."""
ROSTER_DIGITS = 32
"""So many digits of the roster's digest are shown: 128 bits.

The coordinator makes the rosters of all sites, so it may look for any two that agree. With 64 bits that took minutes.
"""
_AGREE = 1e-6  # relative: what another version may find for the same study


@dataclass(frozen=True)
class JointCertificate:
    """``roster`` maps sites to public keys, ``model`` is the digest that every screen showed at the end."""

    study: Study
    roster: Mapping[str, str]
    model: str
    certificates: Mapping[str, Certificate]
    signature: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The parties whose certificates are not here."""
        return tuple(name for name in self.study.names if name not in self.certificates)

    @property
    def roster_digest(self) -> str:
        """SHA-256 of study and roster, which consent, kits and certificates name."""
        return digest({"study": self.study.digest(), "keys": dict(self.roster)})

    @property
    def fingerprint(self) -> str:
        """The first 32 digits of the roster's digest, as every site shows them on joining."""
        return roster_digits(self.roster_digest)

    def has_roster(self, digits: str) -> bool:
        """True if ``digits`` are the digits that every site showed, or more of the roster's digest up to all of it.

        Spaces do not count. Fewer digits than are shown are refused: rosters that agree in them can be made.
        """
        plain = "".join(digits.split()).lower()
        if not re.fullmatch(r"[0-9a-f]{32,64}", plain):
            needed = f"must be the {ROSTER_DIGITS} digits that every site showed on joining, or all 64 of the digest."
            raise InvalidParameter("roster", digits, needed)
        return self.roster_digest.startswith(plain)

    def digest(self) -> str:
        """SHA-256 of everything but the coordinator's signature."""
        return digest(self._content())

    def signed(self, key: Ed25519PrivateKey) -> JointCertificate:
        """The same with the coordinator's signature."""
        return replace(self, signature=key.sign(_PURPOSE + self.digest().encode()).hex())

    def verify(self) -> dict[str, Verification]:
        """Recompute every party's certificate and check all signatures, or raise
        :class:`~discreet.errors.CertificateRejected`."""
        if trouble := roster_trouble(self.roster, self.study):
            raise CertificateRejected(f"The joint certificate cannot be of this study: {trouble}.")
        if not _is_signed(self.roster.get(COORDINATOR), self.signature, self.digest()):
            raise CertificateRejected("The joint certificate is not signed by the study's coordinator.")
        found, own = self.certificates.items(), self.own()
        for name, _ in found:
            if name not in own:
                raise CertificateRejected(
                    f"The certificate of {name} is not its own, or not of what the study asks."
                )
        for name, certificate in found:
            if self._model_of(certificate) not in (None, self.model):
                raise CertificateRejected(f"{name} was given another model than {self.model[:16]}.")
        return {name: certificate.verify(signed_by=self.roster[name]) for name, certificate in found}

    @property
    def given(self) -> tuple[str, ...]:
        """The parties who signed that this model is the one they were given; older versions did not."""
        found = self.own().items()
        return tuple(name for name, certificate in found if self._model_of(certificate) == self.model)

    @staticmethod
    def _model_of(certificate: Certificate) -> str | None:
        return dict(certificate.files).get(GIVEN)

    def own(self) -> dict[str, Certificate]:
        """The certificates that their parties signed, for what follows from the study."""
        found = self.certificates.items()
        return {name: held for name, held in found if is_of(held, self.study, name, self.roster.get(name))}

    def to_json(self) -> str:
        """JSON for people and programs."""
        return json.dumps(self._content() | {"signature": self.signature}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> JointCertificate:
        """The inverse of :meth:`to_json`; not verified yet."""
        data = parse_json(text, "joint certificate")
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            texts = {name: json.dumps(found) for name, found in data["certificates"].items()}
            certificates = {name: Certificate.from_json(found) for name, found in texts.items()}
            study, roster = Study.from_dict(data["study"]), dict(data["roster"])
            return cls(study, roster, str(data["model"]), certificates, str(data["signature"]))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidParameter("joint certificate", text, f"is none ({error}).") from None

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file."""
        write_whole(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> JointCertificate:
        """Read it from a file; not verified yet."""
        return cls.from_json(read_text(path))

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "study": self.study.to_dict(),
            "roster": dict(self.roster),
            "model": self.model,
            "certificates": {
                name: json.loads(certificate.to_json()) for name, certificate in self.certificates.items()
            },
        }


def roster_digits(digest: str) -> str:
    """The digits of a roster's digest that people compare, in groups of four."""
    return " ".join(digest[start : start + 4] for start in range(0, ROSTER_DIGITS, 4))


def roster_trouble(names: Collection[str], study: Study) -> str:
    """What is wrong with the names of a roster: it must hold the parties and the coordinator, and nobody else."""
    expected = {COORDINATOR, *study.names}
    if strangers := sorted(set(names) - expected):
        return f"the roster lists {', '.join(map(ascii, strangers))}, which is no party of the study"
    if missing := sorted(expected - set(names)):
        return f"the roster does not list {', '.join(missing)}"
    return ""


def refuse_strangers(names: Collection[str], study: Study) -> None:
    """Raise if a roster holds a key for somebody who is no party of the study."""
    if strangers := sorted(set(names) - {COORDINATOR, *study.names}):
        raise InvalidParameter("roster", strangers, "must not list names that are no party of the study.")


def for_model(certificate: Certificate, model: str) -> Certificate:
    """A party's certificate for the model with this digest; earlier signatures did not cover that and go."""
    return replace(certificate, files=checked_files([(GIVEN, model)]), signatures=())


def is_of(certificate: Certificate, study: Study, party: str, key: str | None) -> bool:
    """Whether a certificate speaks of this party in this study, and is signed with this key."""
    own = certificate.digest()
    signed = any(found.public_key == key and found.valid(own) for found in certificate.signatures)
    return signed and party in study.names and _speaks_of(certificate, PartyPlan(study, party))


def _speaks_of(certificate: Certificate, terms: PartyPlan) -> bool:
    """Whether what was certified is what follows from the study: nothing that it says of itself is believed."""
    settings, rule, agreed = certificate.plan.settings, certificate.plan.rule, terms.rule
    named = settings.get("party") == terms.party and settings.get("digest") == terms.study.digest()
    if not named or digest(settings.get("study")) != terms.study.digest():
        return False
    budgets = (rule.budget, agreed.budget)
    numbers = zip(*((found.epsilon, found.delta) for found in budgets), strict=True)
    return (
        _same_plan(rule, agreed)
        and rule.budget.neighbours == agreed.budget.neighbours
        and rule.budget.unit == agreed.budget.unit
        and all(math.isclose(one, other, rel_tol=_AGREE) for one, other in numbers)
        and certificate.arithmetic.kind == terms.arithmetic.kind
    )


def _same_plan(rule: SpendingRule, agreed: SpendingRule) -> bool:
    """Whether a rule allows the same releases: so many of each event, or those that are chosen later."""
    if isinstance(rule, FixedPlan) and isinstance(agreed, FixedPlan):
        return [count for _, count in rule.event.parts()] == [count for _, count in agreed.event.parts()]
    return type(rule) is type(agreed)


def _is_signed(key: str | None, signature: str, digest: str) -> bool:
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key or ""))
        public.verify(bytes.fromhex(signature), _PURPOSE + digest.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


# The end of a study: the model, signed by the coordinator for one study and one roster.
#
# A party takes no model that is not signed in this way, so nobody else can end a study or pass off another
# model. The digest stands on every screen: parties that compare it know that all of them hold the same model.


Model = NDArray[np.float64] | NDArray[np.uint8]
"""The numbers of a model; by the recipe, its bytes."""
_HASH = 32  # bytes


@dataclass(frozen=True, eq=False)
class FinalModel:
    """What a coordinator says at the end: ``study`` and ``roster`` by their digests, and the model itself."""

    study: str
    roster: str
    theta: Model = field(repr=False)

    @property
    def model(self) -> str:
        """The model's digest: SHA-256 of its numbers, little endian, or of its bytes."""
        return model_digest(self.theta)

    def message(self) -> Message:
        """The message to all parties: the roster's digest, the model's, and the model."""
        body = bytes.fromhex(self.roster) + bytes.fromhex(self.model) + _bytes(self.theta)
        return Message(self.study, "end", 0, EVERYBODY, np.frombuffer(body, np.uint8))

    @classmethod
    def of(cls, message: Message, as_bytes: bool = False) -> FinalModel:
        """The inverse of :meth:`message`, or :class:`MalformedMessage`. Who signed it is for others to check.

        The model of a study by the recipe is ``as_bytes``.
        """
        body = message.array.tobytes()
        head, numbers = body[: 2 * _HASH], body[2 * _HASH :]
        fits = message.kind == "end" and message.round == 0 and message.party == EVERYBODY
        if not fits or message.array.dtype != np.uint8 or len(head) < 2 * _HASH:
            raise MalformedMessage("not the end of a study")
        if len(numbers) % 8 and not as_bytes:
            raise MalformedMessage("not the end of a study")
        theta: Model = np.frombuffer(numbers, np.uint8)
        if not as_bytes:
            theta = np.frombuffer(numbers, "<f8").astype(np.float64)
        ending = cls(message.study, head[:_HASH].hex(), theta)
        if ending.model != head[_HASH:].hex() or not np.isfinite(ending.theta).all():
            raise MalformedMessage("the model is not the one that the digest names")
        return ending


def model_digest(theta: Model) -> str:
    """SHA-256 of a model's numbers, little endian, or of its bytes: what every screen shows at the end."""
    return hashlib.sha256(_bytes(theta)).hexdigest()


def _bytes(theta: Model) -> bytes:
    return theta.tobytes() if theta.dtype == np.uint8 else theta.astype("<f8").tobytes()
