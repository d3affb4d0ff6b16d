"""The joint certificate of a study: the certificates of all parties, each signed by its party, and the model.

The coordinator writes it and signs it with its own key. What a party's certificate says is the party's word, from its
own ledger; the coordinator vouches only for the model's digest and for whom it heard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from discreet.certificate import Certificate, Verification
from discreet.documents import digest, parsed, read_text
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.files import write_whole
from discreet.parties.study import COORDINATOR, Study

FORMAT = "discreet joint certificate 1"
_PURPOSE = b"discreet joint certificate\0"


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
    def fingerprint(self) -> str:
        """The roster in sixteen digits, as every site shows it on joining."""
        return digest({"study": self.study.digest(), "keys": dict(self.roster)})[:16]

    def digest(self) -> str:
        """SHA-256 of everything but the coordinator's signature."""
        return digest(self._content())

    def signed(self, key: Ed25519PrivateKey) -> JointCertificate:
        """The same with the coordinator's signature."""
        return replace(self, signature=key.sign(_PURPOSE + self.digest().encode()).hex())

    def verify(self) -> dict[str, Verification]:
        """Recompute every party's certificate and check all signatures, or raise
        :class:`~discreet.errors.CertificateRejected`."""
        if not _is_signed(self.roster.get(COORDINATOR), self.signature, self.digest()):
            raise CertificateRejected("The joint certificate is not signed by the study's coordinator.")
        for name, certificate in self.certificates.items():
            if not is_of(certificate, self.study, name, self.roster.get(name)):
                raise CertificateRejected(f"The certificate of {name} is not its own, or of another study.")
        found = self.certificates.items()
        return {name: certificate.verify(signed_by=self.roster[name]) for name, certificate in found}

    # ---- as text ----

    def to_json(self) -> str:
        """JSON for people and programs."""
        return json.dumps(self._content() | {"signature": self.signature}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> JointCertificate:
        """The inverse of :meth:`to_json`; not verified yet."""
        data = parsed(text, "joint certificate")
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


def is_of(certificate: Certificate, study: Study, party: str, key: str | None) -> bool:
    """Whether a certificate speaks of this party in this study, and is signed with this key."""
    settings = certificate.plan.settings
    fits = settings.get("digest") == study.digest() and settings.get("party") == party
    digest = certificate.digest()
    return fits and any(found.public_key == key and found.valid(digest) for found in certificate.signatures)


def _is_signed(key: str | None, signature: str, digest: str) -> bool:
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key or ""))
        public.verify(bytes.fromhex(signature), _PURPOSE + digest.encode())
    except (InvalidSignature, ValueError):
        return False
    return True
