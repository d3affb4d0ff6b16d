"""Ed25519 signatures: who vouches for a certificate, or for the page of a report.

A certificate without a signature can be recomputed, but says nothing of who issued it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from discreet.certificate.signing_keys import new_signing_key as new_signing_key
from discreet.certificate.signing_keys import read_signing_key as read_signing_key
from discreet.errors import InvalidParameter

Signed = Literal["certificate", "report"]
SigningKey = Ed25519PrivateKey


@dataclass(frozen=True)
class Signature:
    """A public key and what its owner signed, both in hexadecimal."""

    public_key: str
    signature: str

    def __post_init__(self) -> None:
        for name, size in (("public_key", 32), ("signature", 64)):
            value = getattr(self, name)
            if not (
                isinstance(value, str) and len(value) == 2 * size and not set(value) - set("0123456789abcdef")
            ):
                raise InvalidParameter(name, value, f"must be {size} bytes in hexadecimal.")

    def valid(self, digest: str, kind: Signed = "certificate") -> bool:
        """True if the owner of the key signed the certificate, or the report, of this digest."""
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
        try:
            key.verify(bytes.fromhex(self.signature), _signed_text(digest, kind))
        except InvalidSignature:
            return False
        return True


def sign(digest: str, key: Ed25519PrivateKey, kind: Signed = "certificate") -> Signature:
    """Sign the certificate, or the report, of this digest."""
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidParameter("key", type(key), "must be an Ed25519 private key; see new_signing_key().")
    return Signature(public_key_of(key), key.sign(_signed_text(digest, kind)).hex())


def _signed_text(digest: str, kind: Signed) -> bytes:
    """A digest with its purpose, so that a signature made for something else is none of ours."""
    return f"discreet {kind}\0{digest}".encode()


def public_key_of(key: Ed25519PrivateKey) -> str:
    """What to publish, so that others can tell your signature."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
