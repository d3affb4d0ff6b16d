"""Files with the keys of people who sign. Privacy does not rest on them; whose signature counts, the reader says."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from discreet.errors import InvalidParameter


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
