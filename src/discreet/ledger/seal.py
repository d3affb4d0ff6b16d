"""How a ledger notices that it was altered: a hash chain, a keyed seal on its head, and an anchor elsewhere.

* The hash of a ledger is the SHA-256 of its entries, one per line. Each entry continues the hash of those before
  it, so the last hash stands for all of them, and anybody can recompute it, even with ``sha256sum``.
* The head (the number and hash of the last entry) is sealed with a key kept outside the database. There is one
  seal, and each new entry overwrites it: who cannot make seals can neither alter, add nor cut off entries.
* An old copy of the whole database is still in order. Only someone who remembers a later head can tell; an
  :class:`Anchor` is such a memory, to be kept in checkpoints, certificates and with other parties.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from discreet.errors import InvalidParameter, LedgerCorrupted, LedgerUnavailable, whole
from discreet.files import appears_whole

_KEY_BYTES = 32


class Chain:
    """The hash of all entries so far. Entries are JSON and hold no line break, so lines and entries are the same."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def extend(self, entries: list[str]) -> None:
        """Go on with these entries."""
        if entries:
            self._state.update(_lines(entries))

    def hash(self, *following: str) -> str:
        """The hash now, or as it would be after the ``following`` entries."""
        state = self._state.copy()
        if following:
            state.update(_lines(following))
        return state.hexdigest()


def _lines(entries: Sequence[str]) -> bytes:
    return ("\n".join(entries) + "\n").encode()


def seal_of(key: bytes, sequence: int, head: str) -> str:
    """The seal of a ledger whose last entry has this number and hash."""
    return hmac.digest(key, f"discreet ledger head {sequence} {head}".encode(), "sha256").hex()


def same_seal(one: str, other: str) -> bool:
    """Compare without telling, by the time it takes, where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


@dataclass(frozen=True)
class Anchor:
    """A head of a ledger, remembered outside of it: entry number ``sequence`` had this hash."""

    sequence: int
    hash: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "sequence", whole("sequence", self.sequence, at_least=0))
        hex_digest("hash", self.hash)

    @classmethod
    def of(cls, entries: Iterable[str]) -> Anchor:
        """The anchor of a ledger with these entries. It needs no key, so anybody can check an anchor."""
        lines = list(entries)
        return cls(len(lines) - 1, Chain().hash(*lines))

    def to_json(self) -> str:
        """The anchor as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Anchor:
        """The inverse of :meth:`to_json`."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise InvalidParameter("anchor", text, "is not JSON text written by Anchor.to_json().") from None


def hex_digest(name: str, value: object) -> str:
    """Return ``value`` if it is a SHA-256 digest in hexadecimal, or raise."""
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return value
    raise InvalidParameter(name, value, "must be a SHA-256 digest: 64 hexadecimal digits, in lower case.")


def new_key_file(path: Path) -> bytes:
    """Make a key and keep it in a new file that only its owner can read."""
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        with appears_whole(path) as temporary:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(key.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
    except FileExistsError:
        remedy = "exists, so its ledger does or did: open that ledger, or name another key file."
        raise InvalidParameter("key", str(path), remedy) from None
    except OSError as error:
        raise LedgerUnavailable(f"The key file {path} cannot be written: {error}.") from error
    return key


def read_key_file(path: Path) -> bytes:
    """The key in ``path``, which must be readable by its owner only."""
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerUnavailable(
            f"The ledger's key cannot be read from {path} ({error}). Without it nobody can tell whether the "
            "ledger was altered: restore the key file, or give its place with key=."
        ) from None
    if os.name == "posix" and mode & 0o077:
        raise InvalidParameter("key", str(path), f"can be read by others; run: chmod 600 {path}")
    if not re.fullmatch(f"[0-9a-f]{{{2 * _KEY_BYTES}}}\\s*", text):
        raise LedgerCorrupted(f"The key file {path} does not hold a key. Restore it from its backup.")
    return bytes.fromhex(text)


def checked_key(key: bytes) -> bytes:
    """A key that was passed directly."""
    if len(key) < _KEY_BYTES:
        raise InvalidParameter(
            "key",
            f"{len(key)} bytes",
            f"must have at least {_KEY_BYTES}, for instance from os.urandom({_KEY_BYTES}).",
        )
    return key
