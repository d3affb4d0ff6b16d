"""Masks: agreed by two, derived for each round, uniform to everybody else."""

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from discreet.errors import PlanViolation
from discreet.parties.secure.masks import KEY, WORD, add_mask, pair_secret, public_bytes, round_keys

FALSE_ALARMS = 1e-6
"""Of one chi-square test on a fixed seed: the chance that an honest stream has an unlucky one."""


def key(number):
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(bytes([number])).digest())


def mask(seed, size):
    vector = np.zeros(size, WORD)
    add_mask(vector, seed, 1)
    return vector


def byte_p_value(vector):
    """Of all 8 bytes of every word at once, against the uniform law."""
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue


def test_two_parties_agree_and_a_third_does_not():
    a, b, c = key(1), key(2), key(3)
    assert pair_secret(a, public_bytes(b), b"") == pair_secret(b, public_bytes(a), b"")
    assert pair_secret(a, public_bytes(b), b"") != pair_secret(c, public_bytes(b), b"")
    assert pair_secret(a, public_bytes(b), b"") != pair_secret(a, public_bytes(b), b"another session")


def test_the_round_keys_are_those_of_rfc_5869():
    """HKDF-Expand written out with hmac alone."""
    secret, info = bytes(range(KEY)), b"discreet round\0" + (7).to_bytes(8, "big")
    blocks = [b""]
    for number in (1, 2, 3):
        blocks.append(hmac.digest(secret, blocks[-1] + info + bytes([number]), "sha256"))
    assert round_keys(secret, 7) == tuple(blocks[1:])


def test_every_key_of_every_round_is_another():
    seen = [part for round in range(50) for part in round_keys(bytes(KEY), round)]
    assert len(set(seen)) == 150


@pytest.mark.parametrize("public", [bytes(KEY), b"\1" + bytes(31), b"short"])
def test_a_key_that_gives_everybody_the_same_secret_is_refused(public):
    with pytest.raises(PlanViolation, match="not one"):
        pair_secret(key(1), public, b"")


@pytest.mark.parametrize("size", [0, 1, 2**15 - 1, 2**15, 2**15 + 1, 100_000])
def test_the_mask_is_one_aes_stream_whatever_the_blocks(size):
    cipher = Cipher(algorithms.AES(b"k" * KEY), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * size)), WORD)
    assert np.array_equal(mask(b"k" * KEY, size), expected)


def test_adding_and_subtracting_cancel_at_the_ends_of_the_range():
    vector = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], WORD)
    masked = vector.copy()
    add_mask(masked, b"k" * KEY, 1)
    assert not np.any(masked == vector)
    add_mask(masked, b"k" * KEY, -1)
    assert np.array_equal(masked, vector)


def test_masked_numbers_are_uniform_whatever_they_hide():
    seed = hashlib.sha256(b"fixed").digest()
    for hidden in (0, 1, 2**64 - 1):
        vector = np.full(100_000, hidden, WORD)
        add_mask(vector, seed, 1)
        assert byte_p_value(vector) > FALSE_ALARMS


def test_the_uniformity_test_sees_a_mask_that_is_too_narrow():
    narrow = mask(hashlib.sha256(b"fixed").digest(), 100_000) >> np.uint64(1)  # the sign would show
    assert byte_p_value(narrow) < FALSE_ALARMS
