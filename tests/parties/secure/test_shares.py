"""Shares: enough give the secret, fewer say nothing, and a seal opens in one place only."""

import contextlib
import itertools
import random
from fractions import Fraction

import pytest

from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation
from discreet.parties.secure import secure_coordinator
from discreet.parties.secure.secure_coordinator import join_shares
from discreet.parties.secure.shares import PRIME, SEALED, SHARE, open_share, seal, split_secrets

SECRETS = [bytes(32), b"\xff" * 32, bytes(range(32))]


def rows_of(threshold, holders, secrets=SECRETS, seed=1):
    rows = split_secrets(secrets, threshold, holders, RandomStream(unsafe_seed=seed))
    return dict(enumerate(rows, start=1))


def test_the_prime_is_one():
    """Miller and Rabin's test with 64 bases, which a composite number passes with a chance of 4**-64 at most."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (random.Random(1).randrange(2, PRIME - 1) for _ in range(64)):
        powers = [pow(base, odd << step, PRIME) for step in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (1, 3), (2, 3), (3, 3), (4, 6), (49, 50)])
def test_any_threshold_of_them_give_the_secrets(threshold, holders):
    rows = rows_of(threshold, holders)
    chosen = itertools.islice(itertools.combinations(rows, threshold), 20)
    for some in chosen:
        assert join_shares({holder: rows[holder] for holder in some}) == SECRETS


def test_more_than_enough_give_them_too():
    assert join_shares(rows_of(2, 5)) == SECRETS


def test_fewer_fit_every_secret():
    """The oracle of secrecy: for any secret at all there are coefficients that give the same two shares."""
    rows = rows_of(3, 5)
    first, second = (int.from_bytes(rows[holder][0], "big") for holder in (2, 5))
    for claimed in (0, 1, 2**256 - 1, PRIME - 1):
        # The parabola through (0, claimed), (2, first), (5, second), by solving two equations exactly.
        slope = {at: (value - claimed) * pow(at, -1, PRIME) for at, value in ((2, first), (5, second))}
        square = (slope[5] - slope[2]) * pow(3, -1, PRIME) % PRIME
        linear = (slope[2] - 2 * square) % PRIME
        for at, value in ((2, first), (5, second)):
            assert (claimed + linear * at + square * at**2) % PRIME == value


def guesses(make_rows):
    """What joins from rows that do not suffice, for 64 seeds; None where it is refused."""
    found = []
    for seed in range(64):
        found.append(None)
        with contextlib.suppress(PlanViolation):
            found[-1] = join_shares(make_rows(seed))
    return found


def test_one_share_too_few_does_not_give_the_secret():
    secret = SECRETS[:1]
    found = guesses(lambda seed: {1: rows_of(3, 5, secret, seed)[1], 2: rows_of(3, 5, secret, seed)[2]})
    assert secret not in found
    assert 8 < found.count(None) < 56  # a random number below 2**257 is no secret every second time


def test_a_constant_polynomial_is_what_the_secrecy_test_is_about():
    """The broken twin: coefficients that are not random give the secret away to anyone."""

    class Zeros(RandomStream):
        def bytes(self, count):
            return bytes(count)

    rows = split_secrets(SECRETS, 3, 5, Zeros())
    assert join_shares({1: rows[0], 2: rows[1]}) == SECRETS


def test_interpolation_is_lagranges_in_exact_fractions():
    holders = {1: 0, 4: 0, 7: 0, 20: 0}
    for holder in holders:
        exact = Fraction(1)
        for other in holders:
            if other != holder:
                exact *= Fraction(other, other - holder)
        assert (
            secure_coordinator._weight(holder, holders)
            == exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME
        )


def test_coefficients_are_fresh():
    assert rows_of(2, 2, seed=1) != rows_of(2, 2, seed=2)
    first, second = (split_secrets(SECRETS, 2, 2, RandomStream()) for _ in range(2))
    assert first != second


def test_shares_that_do_not_belong_together_give_something_else_or_are_refused():
    found = guesses(lambda seed: {1: rows_of(2, 2, seed=100)[1], 2: rows_of(2, 2, seed=seed)[2]})
    assert SECRETS not in found
    assert None in found


def test_a_seal_opens_with_its_key_in_its_place():
    row = [bytes([index]) * SHARE for index in range(4)]
    sealed = seal(row, b"k" * 32)
    pieces = [sealed[at : at + SEALED] for at in range(0, len(sealed), SEALED)]
    assert [open_share(piece, index, b"k" * 32) for index, piece in enumerate(pieces)] == row


def test_a_seal_that_was_altered_moved_or_made_for_others_stays_closed():
    sealed = seal([bytes(SHARE), bytes(SHARE)], b"k" * 32)[:SEALED]
    for bit in range(8 * SEALED):
        broken = bytearray(sealed)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PlanViolation, match="altered"):
            open_share(bytes(broken), 0, b"k" * 32)
    for index, key in ((1, b"k" * 32), (0, b"l" * 32)):
        with pytest.raises(PlanViolation, match="altered"):
            open_share(sealed, index, key)
