"""What everybody in a secure sum knows: the terms, and the form of the messages.

Every message has one length, given who is in it, and is read strictly. Who is in it is one byte for each party, 1
or 0, in the order of their names.

======================  =================================================================================
advertisement           public key, signature
introductions           who is present; their advertisements
masked vector           8 bytes for each coordinate; a sealed share for each party of the seed for each party
request                 who survived; for each survivor and each survivor as holder, the sealed shares wanted
answer                  for each survivor, the shares wanted
======================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from discreet.errors import InvalidParameter, PlanViolation, whole
from discreet.parties.secure.masks import KEY
from discreet.parties.secure.shares import SEALED

_ADVERTISEMENT = KEY + 64
_MOST_PARTIES = 1000


@dataclass(frozen=True)
class SecureGroup:
    """The public terms of a secure sum, the same for everybody.

    ``study`` is the digest of what the parties agreed to, and ``keys`` are their public signing keys by name.
    ``dropouts`` parties may be missing in a round, counted over all its phases; ``colluders`` may tell the
    coordinator all they know.
    """

    study: str
    keys: Mapping[str, Ed25519PublicKey]
    dropouts: int = 0
    colluders: int = 0

    def __post_init__(self) -> None:
        if not 2 <= len(self.keys) <= _MOST_PARTIES:
            raise InvalidParameter("keys", sorted(self.keys), f"must be of 2 to {_MOST_PARTIES} parties.")
        spare = len(self.keys) - 1
        remedy = "At least one honest party must remain."
        dropouts = whole("dropouts", self.dropouts, at_least=0, at_most=spare, remedy=remedy)
        colluders = whole("colluders", self.colluders, at_least=0, at_most=spare - dropouts, remedy=remedy)
        object.__setattr__(self, "dropouts", dropouts)
        object.__setattr__(self, "colluders", colluders)

    @property
    def names(self) -> list[str]:
        """The parties, in the order of all messages."""
        return sorted(self.keys)

    @property
    def threshold(self) -> int:
        """So many parties must survive, and so many shares tell a secret."""
        return len(self.keys) - self.dropouts

    @property
    def noise_shares(self) -> int:
        """So many honest parties are in every sum that is unmasked: the noise of as many has to suffice."""
        return self.threshold - self.colluders

    @property
    def withstands_lies(self) -> bool:
        """Whether the promise holds even for a coordinator that tells the parties different things.

        A study without it is refused when it is made.
        """
        return len(self.keys) - self.colluders > self.dropouts * (self.dropouts + 1)

    def signed_text(self, name: str, public_key: bytes) -> bytes:
        """What a party signs when it advertises a key."""
        return b"\0".join((b"discreet secure sum", self.study.encode(), name.encode(), public_key))

    def vouches(self, name: str, advertisement: bytes) -> bool:
        """True if the party of this name signed this advertisement, for this study."""
        public_key, signature = advertisement[:KEY], advertisement[KEY:]
        try:
            self.keys[name].verify(signature, self.signed_text(name, public_key))
        except InvalidSignature:
            return False
        return True


def flags(present: Sequence[str], names: Sequence[str]) -> bytes:
    """Who of ``names`` is present."""
    return bytes(name in present for name in names)


def seeds_to_reveal(name: str, survivors: Sequence[str], names: Sequence[str]) -> list[int]:
    """Which seeds of a survivor are revealed, as places in ``names``: its own, and those with whom was lost.

    Its seeds with other survivors are never among them, and of whom was lost nothing is revealed.
    """
    return [place for place, other in enumerate(names) if other == name or other not in survivors]


def read_introductions(introductions: bytes, group: SecureGroup) -> dict[str, bytes]:
    """The public keys of those who are present, in order, if all signatures are right."""
    names = group.names
    present, rest = _present(introductions, names)
    if len(rest) != len(present) * _ADVERTISEMENT or len(present) < group.threshold:
        raise PlanViolation("The introductions are incomplete, or of too few parties.")
    shown = [rest[start : start + _ADVERTISEMENT] for start in range(0, len(rest), _ADVERTISEMENT)]
    if not all(group.vouches(name, shown) for name, shown in zip(present, shown, strict=True)):
        raise PlanViolation("A public key is not signed by the party that it is said to be of.")
    return {name: shown[:KEY] for name, shown in zip(present, shown, strict=True)}


def read_request(request: bytes, names: Sequence[str]) -> tuple[list[str], NDArray[np.uint8]]:
    """Who survived, and the sealed shares that are wanted: by owner, by holder, by seed."""
    survivors, rest = _present(request, names)
    shape = len(survivors), len(survivors), 1 + len(names) - len(survivors), SEALED
    if len(rest) != np.prod(shape):
        raise PlanViolation("The request does not have the form that it should.")
    return survivors, np.frombuffer(rest, np.uint8).reshape(shape)


def _present(message: bytes, names: Sequence[str]) -> tuple[list[str], bytes]:
    marks, rest = message[: len(names)], message[len(names) :]
    if len(marks) != len(names) or set(marks) - {0, 1}:
        raise PlanViolation("The message does not say who is in it.")
    return [name for name, mark in zip(names, marks, strict=True) if mark], rest
