"""The terms of a secure sum, and the strict reading of its messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import PlanViolation
from discreet.parties.secure.secure_group import flags, read_introductions, read_request
from discreet.parties.secure.shares import SEALED
from support.secure_world import World

WORLD = World(3, dropouts=1)


def test_what_follows_from_the_terms():
    group = World(10, dropouts=2, colluders=1).group
    assert (group.threshold, group.noise_shares, group.withstands_lies) == (8, 7, True)
    assert not World(10, dropouts=3).group.withstands_lies
    assert group.names == list("abcdefghij")


def test_terms_may_be_typed_as_floats_and_become_whole():
    group = World(3, dropouts=1.0).group
    assert (group.threshold, type(group.threshold)) == (2, int)


@pytest.mark.parametrize("survivors", ["abc", "ab", "b"])
def test_a_request_says_who_survived_and_holds_what_is_wanted_of_them(survivors):
    count, lost = len(survivors), 3 - len(survivors)
    pieces = np.random.default_rng(1).integers(0, 256, (count, count, 1 + lost, SEALED)).astype(np.uint8)
    read, sealed = read_request(flags(survivors, "abc") + pieces.tobytes(), "abc")
    assert read == list(survivors)
    assert np.array_equal(sealed, pieces)


@given(st.binary(max_size=700))
def test_no_bytes_but_ours_are_read(message):
    with pytest.raises(PlanViolation):
        read_introductions(message, WORLD.group)
    with pytest.raises(PlanViolation):
        read_request(message + b"\2", "abc")


@given(st.data())
def test_introductions_with_any_byte_altered_are_refused(data):
    shown = {name: party.advertise() for name, party in WORLD.parties.items()}
    message = bytearray(WORLD.coordinator.introduce(shown))
    assert list(read_introductions(bytes(message), WORLD.group)) == WORLD.names
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PlanViolation):
        read_introductions(bytes(message), WORLD.group)
