"""Ed25519 signatures: who vouches for a certificate, or for the page of a report.

A certificate without a signature can be recomputed, but says nothing of who issued it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

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


def new_signing_key(path: str | Path) -> Ed25519PrivateKey:
    """Make a key and keep it in a new file that only its owner can read."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidParameter("path", str(path), "exists; a key is never overwritten.") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
    return key


def read_signing_key(path: str | Path) -> Ed25519PrivateKey:
    """The key in a file of :func:`new_signing_key`."""
    try:
        key = load_pem_private_key(Path(path).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidParameter("path", str(path), f"holds no signing key ({error}).") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidParameter("path", str(path), "holds a key of another kind than Ed25519.")
    return key
