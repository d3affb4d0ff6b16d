"""Shares of secrets: enough of them give the secret back, fewer say nothing (Shamir 1979), and each is sealed.

>>> from discreet.core.randomness import RandomStream
>>> secret = b"a mask's seed, of 32 bytes......"
>>> shares = split_secrets([secret], threshold=2, holders=3, stream=RandomStream())
>>> from discreet.parties.secure.secure_coordinator import join_shares
>>> join_shares({1: shares[0], 3: shares[2]}) == [secret]
True

**What is proved.** The secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients
are uniform modulo the prime :data:`PRIME`; holder i has its value at i. For every possible secret, exactly one
choice of coefficients fits any threshold - 1 shares, so these have the same distribution whatever the secret is. (The
coefficients are uniform up to 93 in 2**257.)

A share travels through the coordinator, encrypted for its holder: :func:`seal` and :func:`open_share` are AES-256-GCM
with a key that serves one sender, one receiver and one round, and a number for each share as the nonce.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation

PRIME = 2**257 - 93
"""The first prime below 2**257: every secret of 32 bytes is a number below it."""

SHARE = 33
"""Bytes of a share."""

SEALED = SHARE + 16
"""Bytes of a sealed share."""

_BITS = 2**257 - 1


def split_secrets(
    secrets: Sequence[bytes], threshold: int, holders: int, stream: RandomStream
) -> list[list[bytes]]:
    """Shares of each secret for holders 1, 2, ...: row i - 1 is what holder i gets, one share of each secret.

    Guarantee: fewer than ``threshold`` rows say nothing about any secret; any ``threshold`` rows tell them all.
    """
    draws = stream.bytes(len(secrets) * (threshold - 1) * SHARE)
    rest = [_number(draws[start : start + SHARE]) & _BITS for start in range(0, len(draws), SHARE)]
    polynomials = [
        (*rest[index :: len(secrets)], int.from_bytes(secret, "big")) for index, secret in enumerate(secrets)
    ]
    return [[_value(polynomial, holder) for polynomial in polynomials] for holder in range(1, holders + 1)]


def seal(shares: Sequence[bytes], key: bytes) -> bytes:
    """Each share encrypted for whoever has ``key``, one after the other."""
    cipher = AESGCM(key)
    return b"".join(cipher.encrypt(_nonce(index), share, None) for index, share in enumerate(shares))


def open_share(sealed: bytes, index: int, key: bytes) -> bytes:
    """The share that was sealed as number ``index`` with the same key."""
    try:
        return AESGCM(key).decrypt(_nonce(index), sealed, None)
    except InvalidTag:
        raise PlanViolation("A share was altered or belongs elsewhere; nothing was revealed.") from None


def _value(polynomial: Sequence[int], holder: int) -> bytes:
    """The value at ``holder``, highest coefficient first; reduced once, because holders are small numbers."""
    total = 0
    for coefficient in polynomial:
        total = total * holder + coefficient
    return (total % PRIME).to_bytes(SHARE, "big")


def _number(share: bytes) -> int:
    return int.from_bytes(share, "big")


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "big")
