"""Masks: uniform 64-bit numbers that two parties can both make and nobody else can.

Two parties agree on a secret once (X25519), and derive from it what they need in each round (HKDF). What is
revealed of one round says nothing of another.

>>> import numpy as np
>>> from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
>>> a, b = X25519PrivateKey.generate(), X25519PrivateKey.generate()
>>> at_a = pair_secret(a, public_bytes(b), context=b"a, b")
>>> at_b = pair_secret(b, public_bytes(a), context=b"a, b")
>>> round_keys(at_a, 7) == round_keys(at_b, 7), round_keys(at_a, 7) == round_keys(at_a, 8)
(True, False)

The first adds the mask, the second subtracts it, and it is gone from their sum:

>>> vectors = np.array([[5, 6], [10, 20]], np.uint64)
>>> add_mask(vectors[0], round_keys(at_a, 7).mask, 1)
>>> add_mask(vectors[1], round_keys(at_b, 7).mask, -1)
>>> vectors.sum(0).tolist()
[15, 26]

Guarantee: to whoever does not know a seed, its mask is as good as uniform and independent of all else (AES-256 in
counter mode is a pseudorandom function, and so is HKDF with SHA-256), and so is a vector plus the mask.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from discreet.errors import PlanViolation

KEY = 32
"""Bytes of a seed, of a key, and of a public key."""

WORD = np.dtype("<u8")
"""Masked vectors are the same bytes on every machine."""

_BLOCK = 2**15  # words of mask that are made at once: they stay in the cache
_ZEROS = memoryview(bytes(_BLOCK * WORD.itemsize))


class RoundKeys(NamedTuple):
    """What two parties share in one round: the seed of their mask, and a key for messages in each direction."""

    mask: bytes
    upward: bytes  # from the one whose name sorts first
    downward: bytes

    @classmethod
    def cut(cls, material: bytes) -> RoundKeys:
        """From as many uniform bytes as they have together, ``3 * KEY``."""
        return cls(material[:KEY], material[KEY : 2 * KEY], material[2 * KEY :])


def public_bytes(key: X25519PrivateKey) -> bytes:
    """What the other party needs."""
    return key.public_key().public_bytes_raw()


def pair_secret(own: X25519PrivateKey, others: bytes, context: bytes) -> bytes:
    """The secret of two parties. ``context`` names who they are and what the secret is for."""
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(others))
    except ValueError:  # not a key, or one that gives the same secret with everybody
        raise PlanViolation("The public key of a party is not one; nothing was agreed.") from None
    return HKDF(SHA256(), KEY, salt=None, info=b"discreet pair\0" + context).derive(shared)


def round_keys(secret: bytes, round: int) -> RoundKeys:
    """What ``secret`` gives in one round. None of it tells the secret, or the keys of another round."""
    info = b"discreet round\0" + round.to_bytes(8, "big")
    return RoundKeys.cut(HKDFExpand(SHA256(), 3 * KEY, info).derive(secret))


def add_mask(vector: NDArray[np.uint64], seed: bytes, sign: int) -> None:
    """Add the mask of ``seed`` to ``vector`` in place, or subtract it, modulo 2**64."""
    cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    buffer = np.empty(min(vector.size, _BLOCK) * WORD.itemsize + 15, np.uint8)  # the cipher asks for 15 more
    change = np.add if sign == 1 else np.subtract
    for start in range(0, vector.size, _BLOCK):
        part = vector[start : start + _BLOCK]
        size = part.size * WORD.itemsize
        cipher.update_into(_ZEROS[:size], buffer.data)
        change(part, buffer[:size].view(WORD), out=part)
