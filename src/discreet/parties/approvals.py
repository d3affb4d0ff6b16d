"""Approvals of a study by several people: each signs the study's digest, and the files lie beside the study file.

An approval is one small file in the folder ``approvals``, named by the public key that signed it, so whoever collects
them copies files. Anybody can make a key and call himself anything: a party counts only keys that it was told by
the people themselves, and each of them once.

>>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
>>> approval = Approval.made("0" * 64, "A. Lind, data protection", Ed25519PrivateKey.generate(), date(2026, 11, 16))
>>> approval.valid, Approval.from_dict(approval.to_dict()) == approval
(True, True)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from discreet.certificate.signatures import public_key_of
from discreet.errors import InvalidParameter, NotConsented
from discreet.files import canonical, parse_json, read_text, write_whole

FOLDER = "approvals"
_PURPOSE = b"discreet approval\0"  # a signature made for something else is none of ours
_LONGEST = 200  # characters of a name
_LARGEST = 2**14  # bytes of a file
_MOST = 1000  # files that are looked at


@dataclass(frozen=True)
class Approval:
    """Who approved of the study with this digest, in their own words, and when; signed."""

    study: str
    name: str
    day: str
    public_key: str
    signature: str = ""

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.strip()) <= _LONGEST:
            raise InvalidParameter("name", name, f"must be a name of at most {_LONGEST} printable letters.")

    @classmethod
    def made(cls, study: str, name: str, key: Ed25519PrivateKey, day: date | None = None) -> Approval:
        """Approve of the study with this digest."""
        today = datetime.now(UTC).date() if day is None else day
        plain = cls(study, name.strip() if isinstance(name, str) else name, f"{today}", public_key_of(key))
        return replace(plain, signature=key.sign(plain._text()).hex())

    @property
    def valid(self) -> bool:
        """True if the owner of the key signed all that it says."""
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
            key.verify(bytes.fromhex(self.signature), self._text())
        except (InvalidSignature, ValueError):
            return False
        return True

    def _text(self) -> bytes:
        return _PURPOSE + canonical(self.to_dict() | {"signature": ""}).encode()

    def to_dict(self) -> dict[str, Any]:
        """The approval as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Approval:
        """The inverse of :meth:`to_dict`; not verified yet."""
        names = {entry.name for entry in fields(cls)}
        if (
            not isinstance(data, dict)
            or set(data) != names
            or not all(isinstance(x, str) for x in data.values())
        ):
            raise InvalidParameter("approval", type(data), f"must say {', '.join(sorted(names))}.")
        return cls(**data)

    def save(self, study_file: Path) -> Path:
        """Write it into the folder ``approvals`` beside the study file; the file."""
        place = study_file.resolve().parent / FOLDER / f"{self.public_key[:16]}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")
        return place


def approvals(study_file: Path, digest: str) -> tuple[Approval, ...]:
    """All approvals beside a study file that hold for the study of this digest, one for each key.

    Files that are damaged, not signed as they say, or of another study, an earlier draft perhaps, count as none.
    """
    found: dict[str, Approval] = {}
    for path in sorted((study_file.resolve().parent / FOLDER).glob("*.json"))[:_MOST]:
        try:
            one = Approval.from_dict(parse_json(read_text(path, most_bytes=_LARGEST), "approval"))
        except (InvalidParameter, OSError):
            continue
        if one.study == digest and one.valid:
            found[one.public_key] = one
    return tuple(found.values())


def insist_on_approvals(
    found: Iterable[Approval], approvers: Collection[str], least: int | None = None
) -> tuple[Approval, ...]:
    """The approvals of those who count, or :class:`~discreet.errors.NotConsented` if there are fewer than ``least``.

    ``approvers`` are public keys; unless ``least`` is given, all of them must have approved.
    """
    keys = frozenset(approvers)
    needed = len(keys) if least is None else least
    counted = tuple(one for one in found if one.public_key in keys)
    if len(counted) < needed:
        names = ", ".join(one.name for one in counted) or "nobody"
        raise NotConsented(
            f"This study was approved by {len(counted)} of {len(keys)} approvers ({names}); {needed} are asked for. "
            "Those who approve run `discreet study approve`, and their files belong into the folder "
            f"{FOLDER}/ beside the study file. Nothing was sent and nothing was spent."
        )
    return counted
