"""Faults, each at least twenty times: nothing under-counted, no noise repeated, the study goes on or says why not."""

import numpy as np
import pytest

from discreet.core.randomness import RandomStream
from discreet.errors import StudyStopped
from discreet.parties import Coordinator
from discreet.parties.messages import Backoff, Message
from discreet.parties.state import StateFile
from discreet.parties.study import Aggregation
from support.paid import paid
from support.parties_bank import ROSTER, Silent, study
from support.parties_wire import FAULTS, GARBAGE, Killed, Wire, sometimes

SGD2 = study(rounds=40, radius=2.0)
SGD1 = study("sgd1", schedule="uniform", tokens=150, radius=2.0)
LONG = study(
    "sgd1", schedule="uniform", tokens=450, radius=2.0
)  # a restarted party passes over some of its turns
KILLS = ("party killed before it answers", "party killed after it answered")


@pytest.mark.parametrize("plan", [SGD2, SGD1], ids=["sgd2", "sgd1"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(plan, fault, tmp_path):
    plan = LONG if plan is SGD1 and fault in KILLS else plan
    wire = Wire(plan, sometimes(FAULTS[fault], every=5), tmp_path if fault in KILLS else None)
    coordinator = Coordinator(plan, wire, ROSTER)
    result = coordinator.run()
    assert wire.injected >= 20
    assert wire.check(coordinator._state.key or None) >= 20
    assert result.updates > plan.updates / 2
    assert np.isfinite(result.theta).all()


@pytest.mark.parametrize("fault", ["duplicate", "request lost", "reply lost"])
def test_what_is_repaired_changes_nothing(fault):
    """A lost or repeated message is asked for again and comes back as it was: the outcome is that without faults."""
    plain, faulty = Wire(SGD2, stream=Silent()), Wire(SGD2, sometimes(FAULTS[fault], 5), stream=Silent())
    assert np.array_equal(*(Coordinator(SGD2, wire, ROSTER).run().theta for wire in (plain, faulty)))
    assert faulty.injected >= 20


def silent_bob(wire, party, message, deliver):
    return None if party == "bob" and wire.asked > 3 else deliver()


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_counts_as_zero(garbage):
    """The outcome is that of a study in which the party is silent."""
    plan = study(rounds=22)
    wires = [Wire(plan, fault, stream=Silent()) for fault in (garbage, silent_bob)]
    first, second = (Coordinator(plan, wire, ROSTER).run() for wire in wires)
    assert wires[0].injected >= 20
    assert np.array_equal(first.theta, second.theta)
    assert first.missed == {"bob": 22}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_sgd1_counts_as_zero(garbage):
    plan = study("sgd1", tokens=100, radius=2.0)
    wire = Wire(plan, garbage)
    coordinator = Coordinator(plan, wire, ROSTER)
    result = coordinator.run()
    assert wire.injected >= 3  # a party that gives nothing is left alone for longer and longer
    assert set(result.missed) == {"bob"}
    wire.check(coordinator._state.key)


@pytest.mark.parametrize("plan", [study(rounds=70, radius=2.0), LONG], ids=["sgd2", "sgd1"])
def test_coordinator_killed_and_restarted(plan, tmp_path):
    """Killed at random moments, also between question and answer; the parties live on, or are killed as well."""
    rng, state, kills = np.random.default_rng(0), tmp_path / "state", 0
    current, now = [], [0.0]

    def clock():
        """A message takes a second and saving a tenth, so that only some rounds are on disk when the end comes."""
        now[0] += 0.1
        return now[0]

    def fault(wire, party, message, deliver):
        now[0] += 1.0
        if wire.asked > 3 and rng.random() < 0.12:
            if rng.random() < 0.5:
                deliver()
            if rng.random() < 0.2:
                wire.restart(party)
            current[0]._file = None  # what is not on disk now never gets there
            raise Killed
        return deliver()

    wire = Wire(plan, fault, tmp_path)
    for _ in range(400):
        wire.asked = 0
        seeded = RandomStream(unsafe_seed=1)
        coordinator = Coordinator(plan, wire, ROSTER, StateFile(state, clock), stream=seeded)
        current[:] = [coordinator]
        try:
            result = coordinator.run()
            break
        except Killed:
            kills += 1
    assert kills >= 20
    assert wire.check(coordinator._state.key or None) >= 20
    assert result.updates > 10
    assert not list(tmp_path.glob(".state*"))


def test_party_killed_while_the_others_go_on():
    """It is missed while it is away, and takes part again after its restart."""
    away = range(10, 20)

    def fault(wire, party, message, deliver):
        round = Message.decode(message).round
        if party == "bob" and round in away:
            return None
        if party == "bob" and round == 20 and not getattr(wire, "reborn", False):
            wire.reborn = True
            wire.restart("bob")
        return deliver()

    wire = Wire(SGD2, fault)
    result = Coordinator(SGD2, wire, ROSTER).run()
    assert result.missed == {"bob": 10}
    assert result.updates == 40
    wire.check()


def test_all_parties_gone_stops_with_a_sentence(tmp_path):
    wire = Wire(SGD2, lambda w, p, m, d: d() if w.asked <= 30 else None)
    coordinator = Coordinator(SGD2, wire, ROSTER, state_file=tmp_path / "state")
    with pytest.raises(StudyStopped, match="same state file"):
        coordinator.run()
    wire.fault = None
    result = Coordinator(SGD2, wire, ROSTER, state_file=tmp_path / "state").run()
    assert result.updates > 25
    wire.check()


SECURE = study(rounds=45, radius=2.0, aggregation=Aggregation("secure", dropouts=1))


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "reorder"])
def test_secure_sums_under_faults(fault, tmp_path):
    """No vector is masked twice, every one of them is paid for, and the study goes on or says why not."""
    wire, stops = Wire(SECURE, sometimes(FAULTS[fault], every=11)), []
    while len(stops) < 20:
        try:
            result = Coordinator(SECURE, wire, ROSTER, state_file=tmp_path / "state").run()
            break
        except StudyStopped as stopped:
            stops.append(str(stopped))
    assert all("Too few parties gave a valid answer" in text for text in stops)
    assert result.updates > 10
    assert wire.injected >= 20
    masked = {where: answers for where, answers in wire.released().items() if where[1] == "mask"}
    assert all(len(answers) == 1 for answers in masked.values())
    for name in SECURE.names:
        rounds = [round for party, _, round in masked if party == name]
        assert len(rounds) <= sum(run.reserved for run in wire.ledgers[name].runs().values())
    unmasked = {where: answers for where, answers in wire.released().items() if where[1] == "unmask"}
    assert all(len(answers) == 1 for answers in unmasked.values())


def test_secure_sums_survive_a_dropout_and_readmit():
    """The one who is away for four rounds is missed in those, and in a few more until it is asked again."""

    def fault(wire, party, message, deliver):
        return None if party == "bob" and 5 <= Message.decode(message).round < 9 else deliver()

    plan = study(rounds=20, aggregation=Aggregation("secure", dropouts=1))
    result = Coordinator(plan, Wire(plan, fault, stream=Silent()), ROSTER).run()
    assert result.updates == 20
    assert set(result.missed) == {"bob"}
    assert 4 <= result.missed["bob"] <= 8


def test_the_detectors_detect():
    """Broken twins: a party that draws noise anew for a retry, one that repeats it, one that does not charge."""
    wire = Wire(SGD2)
    party = wire.parties["ann"]

    class Forgetful(type(party)):
        _last = property(lambda self: None, lambda self, value: None)

    party.__class__ = Forgetful
    Coordinator(SGD2, wire, ROSTER).run()
    request = next(r for n, r, _ in reversed(wire.tap) if n == "ann")
    party._answering.session._round = party._answering.session._answered = 39
    wire.deliver("ann", request)
    with pytest.raises(AssertionError, match="twice"):
        wire.check()


def test_repeated_noise_is_detected():
    wire = Wire(SGD2)

    class Stuck(RandomStream):
        def _fresh_key(self):
            return bytes(32)

    wire.parties["ann"]._answering._stream = Stuck(unsafe_seed=1)  # a seeded stream always takes a key
    Coordinator(SGD2, wire, ROSTER).run()
    with pytest.raises(AssertionError, match="noise was used twice"):
        wire.check()


def test_missing_charges_are_detected():
    wire = Wire(SGD2)
    hello = Coordinator(SGD2, wire, ROSTER)
    hello.meet()
    session = wire.parties["ann"]._answering.session
    session._charge = lambda step: paid(session._terms.step_noise, 1.0, session._stream)
    hello.run()
    with pytest.raises(AssertionError, match="not counted"):
        wire.check()


def test_who_does_not_answer_is_asked_less_often_but_within_a_timeout():
    """Sixty-four updates may take minutes: who is back is asked after one timeout at most."""
    now = [0.0]
    pause = Backoff(10.0, lambda: now[0])
    asked = []
    for update in range(300):
        if pause.over(update):
            asked.append(update)
            pause.lengthen(update)
    assert asked == [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]
    assert not pause.over(300)
    now[0] = 10.0
    assert pause.over(300)


def test_secure_sums_readmit_a_party_at_the_round_that_it_will_answer():
    """It was killed and has paid ahead: to be let in earlier, and refuse, would cost it another pause."""
    plan = study(rounds=60, aggregation=Aggregation("secure", dropouts=1))
    told = []

    def fault(wire, party, message, deliver):
        if party == "bob" and Message.decode(message).round == 10 and not wire.injected:
            wire.injected += 1
            wire.parties["bob"]._answering.session._run.reserve(20)
            wire.restart("bob")
            return None
        return deliver()

    wire = Wire(plan, fault, stream=Silent())
    result = Coordinator(plan, wire, ROSTER, progress=lambda now: told.append(now.missing)).run()
    following = wire.parties["bob"]._answering.session._charger.before + 1
    assert [place for place, missing in enumerate(told, 1) if missing] == list(range(10, following))
    assert result.missed["bob"] == following - 10
