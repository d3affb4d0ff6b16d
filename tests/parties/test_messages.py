"""The frame: everything that was sent comes back, and nothing else is ever taken for a message."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidParameter, MalformedMessage
from discreet.files import canonical
from discreet.parties.messages import (
    EVERYBODY,
    KINDS,
    MAGIC,
    SIGNATURE,
    TYPES,
    Message,
    Roster,
)
from support.parties_bank import KEYS, ROSTER

STUDY = "ab" * 32


def frame(kind="noisy", round=7, party="ann", array=None, key=None):
    message = Message(STUDY, kind, round, party, np.arange(3.0) if array is None else array)
    return message.encode(key, Roster(ROSTER))


def with_header(header, body=b"", signature=bytes(SIGNATURE)):
    text = header if isinstance(header, bytes) else header.encode()
    return MAGIC + len(text).to_bytes(4, "little") + text + body + signature


@given(
    st.sampled_from(KINDS),
    st.integers(0, 10**15 - 1),
    st.sampled_from(["ann", "hospital-a", "a_1", EVERYBODY, "x" * 40]),
    st.sampled_from(TYPES),
    st.lists(st.integers(0, 7), max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_round_trip(kind, round, party, dtype, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    message = Message(STUDY, kind, round, party, array)
    back = Message.decode(message.encode())
    assert (back.study, back.kind, back.round, back.party) == (STUDY, kind, round, party)
    assert back.array.dtype == dtype
    assert back.array.shape == tuple(shape)
    assert np.array_equal(back.array, array)
    assert not back.array.flags.writeable


def test_the_header_is_the_canonical_json_of_what_it_says():
    sent = frame(array=np.zeros((2, 3), np.float32))
    text = sent[8 : 8 + int.from_bytes(sent[4:8], "little")].decode()
    assert text == canonical(json.loads(text))
    assert json.loads(text) == {
        "dtype": "float32",
        "kind": "noisy",
        "party": "ann",
        "round": 7,
        "shape": [2, 3],
        "study": STUDY,
    }


def test_a_model_of_100_megabytes_passes():
    weights = np.ones(12_500_000)
    assert np.array_equal(Message.decode(frame(array=weights)).array, weights)


def good_header(**changes):
    fields = {"dtype": "float64", "kind": "noisy", "party": "ann", "round": 7, "shape": [1], "study": STUDY}
    return fields | changes


CRAFTED = {
    "nothing": b"",
    "magic only": MAGIC,
    "other magic": b"DSC2" + frame()[4:],
    "header longer than the frame": MAGIC + (10**6).to_bytes(4, "little") + bytes(200),
    "header of 4 GB": MAGIC + b"\xff" * 4 + bytes(200),
    "not JSON": with_header("hello there"),
    "not UTF-8": with_header(b"\xff\xfe" * 20),
    "pickle": b"\x80\x05cos\nsystem\n(S'true'\ntR." + bytes(100),
    "pickle behind the magic": with_header(b"\x80\x05cos\nsystem\n(S'true'\ntR."),
    "a space": with_header(json.dumps(good_header()), bytes(8)),
    "a key twice": with_header(canonical(good_header())[:-1] + ',"round":8}', bytes(8)),
    "a key more": with_header(canonical(good_header(extra=1)), bytes(8)),
    "a key less": with_header(canonical({"kind": "noisy"}), bytes(8)),
    "unknown kind": with_header(canonical(good_header(kind="exec")), bytes(8)),
    "unknown type": with_header(canonical(good_header(dtype="object")), bytes(8)),
    "round is text": with_header(canonical(good_header(round="7")), bytes(8)),
    "round is negative": with_header(canonical(good_header(round=-7)), bytes(8)),
    "round is a float": with_header(canonical(good_header(round=7.0)), bytes(8)),
    "round is true": with_header(canonical(good_header(round=True)), bytes(8)),
    "round has a leading zero": with_header(canonical(good_header()).replace(":7", ":07"), bytes(8)),
    "round is astronomical": with_header(canonical(good_header(round=10**30)), bytes(8)),
    "shape too large": with_header(canonical(good_header(shape=[2])), bytes(8)),
    "shape too small": with_header(canonical(good_header(shape=[0])), bytes(8)),
    "shape overflows": with_header(canonical(good_header(shape=[2**31, 2**31])), bytes(8)),
    "three dimensions": with_header(canonical(good_header(shape=[1, 1, 1])), bytes(8)),
    "negative side": with_header(canonical(good_header(shape=[-1])), bytes(8)),
    "digest too short": with_header(canonical(good_header(study="ab")), bytes(8)),
    "digest in capitals": with_header(canonical(good_header(study="AB" * 32)), bytes(8)),
    "party with a quote": with_header(canonical(good_header(party='a"b')), bytes(8)),
    "party not ASCII": with_header(json.dumps(good_header(party="ä"), ensure_ascii=False), bytes(8)),
    "no party": with_header(canonical(good_header(party="")), bytes(8)),
    "no signature": frame()[:-SIGNATURE],
    "one byte too few": frame()[:-1],
    "one byte too many": frame() + b"\0",
    "a list": [1, 2],
    "a text": "hello",
    "None": None,
}


@pytest.mark.parametrize("content", CRAFTED.values(), ids=CRAFTED)
def test_crafted_frames_are_refused(content):
    with pytest.raises(MalformedMessage):
        Message.decode(content)


def test_the_crafted_header_is_good_when_nothing_is_changed():
    assert Message.decode(with_header(canonical(good_header()), bytes(8))).round == 7


def test_a_body_beyond_the_limit_is_refused():
    with pytest.raises(MalformedMessage):
        Message.decode(frame(array=np.zeros(100)), most=799)
    assert Message.decode(frame(array=np.zeros(100)), most=800).array.size == 100


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_fuzz_random_bytes(content):
    for candidate in (content, MAGIC + content, with_header(content)):
        with pytest.raises(MalformedMessage):
            Message.decode(candidate)


def test_fuzz_mutated_frames():
    """What is still read after a mutation is a message in its one form: encoding it again gives the same bytes."""
    rng = np.random.default_rng(0)
    original, read, refused = frame(key=KEYS["ann"]), 0, 0
    for _ in range(4000):
        mutated = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            where = rng.integers(len(mutated))
            choice = rng.integers(4)
            if choice == 0:
                mutated[where] ^= 1 << rng.integers(8)
            elif choice == 1:
                del mutated[where : where + rng.integers(1, 9)]
            elif choice == 2:
                mutated[where:where] = rng.bytes(rng.integers(1, 9))
            else:
                mutated[where : where + 4] = rng.bytes(4)
            if not mutated:
                break
        content = bytes(mutated)
        try:
            message = Message.decode(content)
        except MalformedMessage:
            refused += 1
            continue
        read += 1
        assert message.encode()[:-SIGNATURE] == content[:-SIGNATURE]
        assert content == original or not Roster(ROSTER).vouches(message, "ann")
    assert read > 100
    assert refused > 1000


def test_every_bit_is_signed():
    """False alarms: none. A roster without keys, which checks nothing, accepts all of them."""
    original, roster, blind = frame(key=KEYS["ann"]), Roster(ROSTER), Roster.without_wire()
    assert roster.vouches(Message.decode(original), "ann")
    accepted = 0
    for where in range(len(original)):
        mutated = bytearray(original)
        mutated[where] ^= 1
        try:
            message = Message.decode(bytes(mutated))
        except MalformedMessage:
            continue
        assert not roster.vouches(message, "ann")
        accepted += blind.vouches(message, "ann")
    assert accepted > 50


@pytest.mark.parametrize("signer", [None, "bob", "stranger"])
def test_others_cannot_sign_for_a_party(signer):
    message = Message.decode(frame(key=None if signer is None else KEYS[signer]))
    assert not Roster(ROSTER).vouches(message, "ann")


def test_an_unknown_name_has_no_signature():
    assert not Roster(ROSTER).vouches(Message.decode(frame(key=KEYS["stranger"])), "stranger")


@pytest.mark.parametrize("key", ["", "zz", "ab" * 31, None, 5])
def test_a_roster_holds_keys(key):
    with pytest.raises(ValueError, match="Ed25519"):
        Roster({"ann": key})


def test_a_signature_is_for_one_roster():
    """The same key in other company: messages of one roster say nothing to who holds another."""
    message = Message(STUDY, "noisy", 1, "ann", np.zeros(2))
    other = Roster({**ROSTER, "bob": ROSTER["ann"]})
    assert other.digest() != Roster(ROSTER).digest()
    for ours, theirs in ((Roster(ROSTER), other), (other, Roster(ROSTER))):
        sent = Message.decode(message.encode(KEYS["ann"], ours))
        assert ours.vouches(sent, "ann")
        assert not theirs.vouches(sent, "ann")
    with pytest.raises(InvalidParameter, match="one roster"):
        message.encode(KEYS["ann"])
