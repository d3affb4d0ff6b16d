"""The party is the authority: what it answers, what it refuses, and that it says nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from discreet.certificate import Certificate
from discreet.core.randomness import RandomStream
from discreet.errors import BudgetExceeded, InvalidParameter, PlanViolation
from discreet.ledger import Ledger
from discreet.parties import Party, sgd2
from discreet.parties.messages import MAGIC, Message, Refusal, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Aggregation, Privacy
from support.parties_bank import (
    DIMENSION,
    KEYS,
    ROSTER,
    SIZES,
    hello,
    holders,
    ledger_of,
    party_of,
    read,
    study,
    unsigned_party,
)

PLAN = study()


def model(value=0.0):
    return np.full(DIMENSION, value)


def ask(party, round, theta=None, plan=PLAN):
    return party.answer(sgd2.request(plan, round, model() if theta is None else theta).encode())


def outcome(frame):
    reply = read(frame)
    return Refusal(int(reply.array[0])) if reply.kind == "refused" else reply.kind


def ready(plan=PLAN, **options):
    party = unsigned_party(plan, "ann", **options)
    assert outcome(party.answer(hello(plan, "ann"))) == "ready"
    return party


def test_answers_are_signed_and_say_who_and_what():
    party = party_of(PLAN, "ann")
    party.answer(hello(PLAN, "ann"))
    reply = read(ask(party, 1))
    assert (reply.kind, reply.party, reply.round, reply.study) == ("noisy", "ann", 1, PLAN.digest())
    assert Roster(ROSTER).vouches(reply, "ann")
    assert reply.array.shape == (DIMENSION,)
    refusal = read(party.answer(b"nonsense"))
    assert Roster(ROSTER).vouches(refusal, "ann")


def test_a_retry_gets_the_same_bytes_and_is_not_charged():
    ledger = ledger_of(PLAN, "ann")
    party = ready(ledger=ledger)
    first = ask(party, 1)
    assert [ask(party, 1) for _ in range(5)] == [first] * 5
    assert next(iter(ledger.runs().values())).reserved == 1


@pytest.mark.parametrize(
    ("round", "theta", "expected"),
    [
        (3, model(1.0), Refusal.OTHER_REQUEST),  # asked for before, with another model
        (2, model(), Refusal.PAST_ROUND),
        (0, model(), Refusal.PAST_ROUND),
        (21, model(), Refusal.BEYOND_PLAN),
        (10**9, model(), Refusal.BEYOND_PLAN),
        (4, model(np.nan), Refusal.MALFORMED),
        (4, model(np.inf), Refusal.MALFORMED),
        (4, np.zeros(DIMENSION + 1), Refusal.MALFORMED),
        (4, np.zeros((1, DIMENSION)), Refusal.MALFORMED),
        (4, np.zeros(DIMENSION, np.float32), Refusal.MALFORMED),
        (4, model(), "noisy"),
        (20, model(), "noisy"),
    ],
)
def test_what_is_refused(round, theta, expected):
    ledger = ledger_of(PLAN, "ann")
    party = ready(ledger=ledger)
    ask(party, 3)
    before = next(iter(ledger.runs().values())).reserved
    assert outcome(ask(party, round, theta)) == expected
    after = next(iter(ledger.runs().values())).reserved
    assert after == (max(round, before) if expected == "noisy" else before)


def test_a_round_before_hello_is_refused():
    assert outcome(ask(unsigned_party(PLAN, "ann"), 1)) is Refusal.NOT_BEGUN


@pytest.mark.parametrize(
    "kind", ["token", "mask", "unmask", "advertise", "join", "noisy", "ready", "refused"]
)
def test_other_kinds_are_refused(kind):
    frame = Message(PLAN.digest(), kind, 1, "ann", model()).encode()
    assert outcome(ready().answer(frame)) is Refusal.OTHER_STUDY


@pytest.mark.parametrize(
    "asked_for",
    [
        study(privacy=(5.0, 1e-3)),  # weaker noise
        study(rounds=21),  # more rounds
        study(clip_norm=2.0),  # another clip
        study(privacy=Privacy(1.0, 1e-3, against="broadcasts")),  # noise for a weaker observer
        study(sizes=SIZES | {"ann": 31}),  # other records
        study("sgd1"),
    ],
    ids=["weaker noise", "more rounds", "other clip", "other observer", "other records", "other algorithm"],
)
def test_a_coordinator_cannot_change_the_terms(asked_for):
    party = ready()
    assert outcome(party.answer(hello(asked_for, "ann"))) is Refusal.OTHER_STUDY
    assert outcome(ask(party, 1, plan=asked_for)) is Refusal.OTHER_STUDY
    assert outcome(ask(party, 1)) == "noisy"


def test_messages_for_another_party_are_refused():
    assert outcome(ready().answer(hello(PLAN, "bob"))) is Refusal.OTHER_STUDY


def test_a_coordinator_with_a_key_must_sign():
    roster = ROSTER | {"coordinator": ROSTER["bob"]}
    party = party_of(PLAN, "ann", roster=roster)
    message = Message(PLAN.digest(), "hello", 0, "ann", np.zeros(0, np.uint8))
    assert outcome(party.answer(message.encode())) is Refusal.MALFORMED
    assert outcome(party.answer(message.encode(KEYS["cem"], Roster(roster)))) is Refusal.MALFORMED
    assert outcome(party.answer(message.encode(KEYS["bob"], Roster(roster)))) == "ready"


def test_restart_refuses_all_that_was_reserved(tmp_path):
    path = tmp_path / "ann.ledger"
    plan = study(rounds=1000)  # so that one, one, two rounds are leased, up to ten
    party = party_of(plan, "ann", ledger=ledger_of(plan, "ann", path))
    party.answer(hello(plan, "ann"))
    sent = [ask(party, round, plan=plan) for round in (1, 2, 3)]
    reborn = party_of(plan, "ann", ledger=ledger_of(plan, "ann", path))
    assert read(reborn.answer(hello(plan, "ann"))).array.tolist() == [5]
    assert {outcome(ask(reborn, round, plan=plan)) for round in range(1, 5)} == {Refusal.PAST_ROUND}
    again = ask(reborn, 5, plan=plan)
    assert len({read(frame).array.tobytes() for frame in (*sent, again)}) == 4
    assert outcome(ask(party, 4, plan=plan)) == "noisy"  # the old process may use up what it has paid for
    assert outcome(ask(party, 5, plan=plan)) is Refusal.STOPPED  # but not more
    assert "taken over" in party.stopped


def test_who_is_killed_again_and_again_loses_no_more_than_he_had_done(tmp_path):
    """A hundredth of the plan each time would have been 10 rounds for 3."""
    path, plan, following = tmp_path / "ann.ledger", study(rounds=1000), 1
    for _ in range(12):
        party = party_of(plan, "ann", ledger=ledger_of(plan, "ann", path))
        following = int(read(party.answer(hello(plan, "ann"))).array[0])
        for round in range(following, following + 3):
            assert outcome(ask(party, round, plan=plan)) == "noisy"
    assert following == 11 * 4 + 1


def test_rounds_that_are_skipped_are_spent():
    ledger = ledger_of(PLAN, "ann")
    party = ready(ledger=ledger)
    ask(party, 15)
    assert next(iter(ledger.runs().values())).reserved == 15


def test_a_round_that_is_far_away_is_paid_for_at_once():
    """Of a plan with a million million rounds the last one: one charge, not as many."""
    plan = study(rounds=10**12)
    ledger = ledger_of(plan, "ann")
    party = ready(plan, ledger=ledger)
    for round in (1, 2, 7, 5 * 10**11, 5 * 10**11 + 1, 10**12):
        assert outcome(ask(party, round, plan=plan)) == "noisy"
        assert next(iter(ledger.runs().values())).reserved >= round
    assert next(iter(ledger.runs().values())).reserved == 10**12


class Moody:
    """A holder that fails, with a secret in the text of its exception."""

    dimension, records = DIMENSION, SIZES["ann"]

    def __init__(self):
        self.fails, self._good = False, holders()["ann"]

    def clipped_sum(self, theta, records):
        raise NotImplementedError

    def hardened_sum(self, theta, records, grid):
        if self.fails:
            raise RuntimeError("secret value 42")
        return self._good.hardened_sum(theta, records, grid)


def test_no_exception_text_leaves_and_the_party_stops(caplog, capsys):
    moody = Moody()
    party = ready(holder=moody)
    moody.fails = True
    frame = ask(party, 1)
    assert outcome(frame) is Refusal.STOPPED
    assert b"secret" not in frame
    assert b"42" not in frame[8 + int.from_bytes(frame[4:8], "little") :]
    assert (party.stopped, caplog.text, capsys.readouterr()) == ("RuntimeError", "", ("", ""))
    moody.fails = False
    assert outcome(ask(party, 2)) is Refusal.STOPPED
    assert outcome(party.answer(hello(PLAN, "ann"))) is Refusal.STOPPED


def test_a_ledger_that_cannot_be_written_stops_the_party(tmp_path):
    ledger = ledger_of(PLAN, "ann", tmp_path / "ann.ledger")
    party = ready(ledger=ledger)
    ledger.close()
    assert outcome(ask(party, 1)) is Refusal.STOPPED


def test_fuzz_no_bytes_make_it_raise_or_speak():
    """Only frames in canonical form, of this study and an agreed round, are answered with noise."""
    rng, party = np.random.default_rng(1), ready()
    frame = sgd2.request(PLAN, 5, model()).encode()
    for _ in range(600):
        mutated = bytearray(frame)
        for _ in range(rng.integers(1, 5)):
            mutated[rng.integers(len(mutated))] = rng.integers(256)
        reply = read(party.answer(bytes(mutated)))
        assert reply.party == "ann"
        assert reply.kind in ("refused", "noisy")
    for content in (b"", MAGIC, None, 7, [b""], "text", bytearray(frame), rng.bytes(1000)):
        assert outcome(party.answer(content)) is Refusal.MALFORMED


@pytest.mark.parametrize(
    ("holder", "named"),
    [
        (holders(clip_norm=2.0)["ann"], "clip"),
        (holders()["bob"], "records"),
        (holders(sizes=SIZES | {"ann": 31})["ann"], "records"),
    ],
)
def test_other_records_or_clipping_than_declared_are_refused_at_home(holder, named):
    with pytest.raises(InvalidParameter, match=named):
        unsigned_party(PLAN, "ann", holder=holder)


def test_under_add_remove_the_number_of_rows_is_nobodys_business():
    plan = study(privacy=Privacy(1.0, 1e-3, "add-remove"))
    party = unsigned_party(plan, "ann", holder=holders(sizes=SIZES | {"ann": 31})["ann"])
    assert outcome(party.answer(hello(plan, "ann"))) == "ready"


def test_signing_keys_are_checked_at_home():
    holder, ledger = holders()["ann"], ledger_of(PLAN, "ann")
    for key in (None, KEYS["bob"]):
        with pytest.raises(InvalidParameter, match="signing_key"):
            Party("ann", PLAN, holder, ledger, key, ROSTER)
    with pytest.raises(InvalidParameter, match="wire"):
        unsigned_party(replace(PLAN, aggregation=Aggregation("secure")), "ann")


def test_a_ledger_without_room_is_refused_at_home():
    poor = Ledger.in_memory(PartyPlan(study(rounds=10, privacy=(0.1, 1e-3)), "ann").rule)
    with pytest.raises(BudgetExceeded, match="no room"):
        unsigned_party(PLAN, "ann", ledger=poor)


def test_the_certificate_is_verified_against_the_ledger():
    ledger = ledger_of(PLAN, "ann")
    party = unsigned_party(PLAN, "ann", ledger=ledger)
    with pytest.raises(PlanViolation, match="not begun"):
        party.certificate()
    party.answer(hello(PLAN, "ann"))
    ask(party, 1)
    certificate = Certificate.from_json(party.certificate().to_json())
    assert "second accountant" in str(certificate.verify(ledger))
    assert certificate.guarantee.within(PLAN.budget)
    assert certificate.plan.settings["digest"] == PLAN.digest()
    assert any("a party that lies" in text for text in certificate.not_covered)


def test_a_seed_makes_the_certificate_worthless():
    party = ready(stream=RandomStream(unsafe_seed=1))
    ask(party, 1)
    assert not party.certificate().trusted
