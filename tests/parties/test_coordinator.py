"""The coordinator: whom it believes, how it goes on after it was killed, and what it says when it cannot."""

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from discreet.accounting.curve import account
from discreet.cli.coordinate import _Conductor
from discreet.errors import InvalidParameter, StudyStopped
from discreet.events import Gaussian
from discreet.parties import Coordinator, observers, sgd2
from discreet.parties.messages import DirectTransport, Message, Refusal, Roster
from discreet.parties.optimizers import Iterate, UpdateRule, project, step_size, update_square
from discreet.parties.state import State, StateFile
from discreet.parties.study import Aggregation, Network, Privacy
from support.parties_bank import DIMENSION, ROSTER, SIZES, Silent, hello, read, study, unsigned_party
from support.parties_wire import Wire

PLAN = study()


def direct(plan=PLAN):
    parties = {name: unsigned_party(plan, name, stream=Silent()) for name in SIZES}
    return DirectTransport({name: party.answer for name, party in parties.items()})


def test_a_network_needs_a_roster():
    class Net(DirectTransport):
        pass

    for roster in (Roster.without_wire(), None, 5, {}, {"ann": ROSTER["ann"]}):
        with pytest.raises(InvalidParameter, match="roster"):
            Coordinator(PLAN, Net({}), roster)
    with pytest.raises(InvalidParameter, match="roster"):
        Coordinator(
            replace(PLAN, aggregation=Aggregation("secure")), DirectTransport({}), Roster.without_wire()
        )
    Coordinator(PLAN, DirectTransport({}), Roster.without_wire())
    Coordinator(PLAN, Net({}), ROSTER)


def test_unsigned_answers_count_for_nothing_on_a_wire():
    with pytest.raises(StudyStopped, match="ann, bob, cem did not answer"):
        Coordinator(PLAN, direct(), ROSTER).run()


def test_a_study_begins_with_everybody():
    answers = {name: unsigned_party(PLAN, name).answer for name in ("ann", "cem")}
    with pytest.raises(StudyStopped, match="bob did not answer"):
        Coordinator(PLAN, DirectTransport(answers), Roster.without_wire()).run()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Refusal.OTHER_STUDY, "study file differs"),
        (Refusal.OTHER_PLAN, "another schedule"),
        (Refusal.STOPPED, "its own screen"),
        (Refusal.MALFORMED, "signature"),
    ],
)
def test_refusals_are_explained(reason, words):
    code = np.array([reason.value], np.uint8)
    reply = Message(PLAN.digest(), "refused", 0, "ann", code).encode()
    with pytest.raises(StudyStopped, match=words):
        Coordinator(PLAN, DirectTransport({"ann": lambda message: reply}), Roster.without_wire()).run()


def refusing(plan, reason, after, until=1000):
    """Parties of which bob refuses the requests of these rounds."""
    wire = direct(plan)
    honest = wire._parties["bob"]

    def answer(message):
        asked = Message.decode(message)
        if asked.kind == "hello" or not after <= asked.round <= until:
            return honest(message)
        code = np.array([reason.value], np.uint8)
        return Message(plan.digest(), "refused", asked.round, "bob", code).encode()

    return DirectTransport(wire._parties | {"bob": answer})


@pytest.mark.parametrize("algorithm", ["sgd1", "sgd2"])
@pytest.mark.parametrize("reason", list(Refusal))
def test_who_refuses_in_the_middle_is_shown_with_the_reason(algorithm, reason):
    plan, seen = study(algorithm), []
    after = 5 if algorithm == "sgd2" else 2
    Coordinator(plan, refusing(plan, reason, after), Roster.without_wire(), progress=seen.append).run()
    late = [now for now in seen if "bob" in now.missing]
    assert late
    for now in late:
        assert list(now.refused) == ["bob"]
        assert now.refused["bob"].endswith(".")
    assert all(not now.refused for now in seen[: after - 1])


def test_a_party_that_is_back_refuses_no_more():
    seen = []
    wire = refusing(PLAN, Refusal.OTHER_REQUEST, 7, until=7)
    coordinator = Coordinator(PLAN, wire, Roster.without_wire(), progress=seen.append)
    coordinator.run()
    assert [now.update for now in seen if now.refused] == [7]
    assert coordinator.refused == {}


def test_too_few_answers_name_those_who_refuse():
    plan = replace(PLAN, aggregation=Aggregation(dropouts=0))
    wire = refusing(plan, Refusal.STOPPED, 5)
    with pytest.raises(StudyStopped, match=r"bob refuses: it stopped.*its own screen says more"):
        Coordinator(plan, wire, Roster.without_wire()).run()


def test_progress_shows_planned_numbers_and_who_is_missing():
    seen = []
    Coordinator(PLAN, direct(), Roster.without_wire(), progress=seen.append).run()
    assert [(p.update, p.updates, p.missing) for p in seen] == [(k, 20, ()) for k in range(1, 21)]


def test_the_state_survives_on_disk(tmp_path):
    path = tmp_path / "state"
    coordinator = Coordinator(PLAN, direct(), Roster.without_wire(), state_file=path)
    result = coordinator.run()
    assert os.stat(path).st_mode & 0o777 == 0o600
    again = Coordinator(PLAN, direct(), Roster.without_wire(), state_file=path)
    assert np.array_equal(again._state.iterate.theta, result.theta)
    assert again.run().updates == 20  # all rounds are over: nothing is asked for any more


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_study_that_is_resumed_ends_where_one_that_was_not_ends(optimizer, tmp_path):
    """Without noise, and if no round was under way."""
    plan, path = study(optimizer=optimizer, learning_rate=0.1), tmp_path / "state"
    whole = Coordinator(plan, direct(plan), Roster.without_wire()).run()
    wire = direct(plan)

    class Enough(BaseException):
        pass

    def stop(progress):
        if progress.update == 8:
            raise Enough

    with pytest.raises(Enough):
        Coordinator(plan, wire, Roster.without_wire(), path, stop).run()
    resumed = Coordinator(plan, wire, Roster.without_wire(), path).run()
    assert resumed.updates == 20
    assert np.array_equal(resumed.theta, whole.theta)
    assert np.array_equal(resumed.average, whole.average)


def test_the_key_of_a_schedule_is_kept_before_it_is_told(tmp_path):
    plan, path, known = study("sgd1"), tmp_path / "state", []
    coordinator = Coordinator(
        plan, Wire(plan, lambda *_: known.append(path.exists())), ROSTER, state_file=path
    )
    with pytest.raises(StudyStopped):
        coordinator.run()
    assert known[0]
    assert State.from_bytes(path.read_bytes()).key == coordinator._state.key


def test_a_lost_state_file_of_sgd1_is_explained(tmp_path):
    plan = study("sgd1")
    wire = Wire(plan)
    Coordinator(plan, wire, ROSTER, state_file=tmp_path / "state").meet()
    with pytest.raises(StudyStopped, match="state file it began with"):
        Coordinator(plan, wire, ROSTER, state_file=tmp_path / "another").run()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x05cos\nsystem\n", b"{}", bytes(range(256))])
def test_a_damaged_state_is_refused(content, tmp_path):
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(InvalidParameter, match="state_file"):
        Coordinator(PLAN, direct(), Roster.without_wire(), state_file=path)


def test_fuzz_the_state_file(tmp_path):
    """Whatever was done to the file: it is read as a state, or refused by name."""
    rng, path = np.random.default_rng(0), tmp_path / "state"
    good = State(PLAN.digest(), Iterate.start(np.ones(DIMENSION)), 3).to_bytes()
    for _ in range(200):
        mutated = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            mutated[rng.integers(len(mutated))] = rng.integers(256)
        path.write_bytes(bytes(mutated[: rng.integers(len(mutated) // 2, len(mutated) + 1)]))
        try:
            StateFile(path).load(PLAN.digest())
        except InvalidParameter as refused:
            assert refused.name == "state_file"  # noqa: PT017


def test_the_state_of_another_study_is_refused(tmp_path):
    path = tmp_path / "state"
    Coordinator(PLAN, direct(), Roster.without_wire(), state_file=path).meet()
    with pytest.raises(InvalidParameter, match="belongs to the study"):
        Coordinator(study(rounds=21), direct(), Roster.without_wire(), state_file=path)


def test_pickle_is_never_read(tmp_path):
    path = tmp_path / "state"
    np.savez(path.with_suffix(".npz"), about=np.array([{"a": 1}], dtype=object))
    path.write_bytes(path.with_suffix(".npz").read_bytes())
    with pytest.raises(InvalidParameter, match="state_file"):
        Coordinator(PLAN, direct(), Roster.without_wire(), state_file=path)


@pytest.mark.parametrize("start", [np.zeros(3), np.full(DIMENSION, np.nan), np.zeros((1, DIMENSION))])
def test_the_first_model_is_checked(start):
    with pytest.raises(InvalidParameter, match="start"):
        Coordinator(PLAN, direct(), Roster.without_wire(), start=start)


def test_steps_of_the_notes():
    """On the gradient of the mean they are n times those on the sum, and shrink as the notes say."""
    plan = study(steps="notes-convex", radius=3.0)
    size = step_size(plan)
    std = plan.noise_multiplier
    square = 100**2 + 3 * DIMENSION * std**2
    assert np.isclose(update_square(plan), square)
    assert np.isclose(size(1), 100 * 6 / np.sqrt(square))
    assert np.isclose(size(9), size(1) / 3)
    strong = {"steps": "notes-strongly-convex", "strong_convexity": 0.1, "radius": 3.0}
    assert np.isclose(step_size(study(**strong))(4), 2 / (0.1 * 5))
    assert np.isclose(step_size(study("sgd1", **strong))(4), 1 / (0.1 * 4))
    one = study("sgd1", steps="notes-convex", radius=3.0)
    assert np.isclose(update_square(one), 100**2 * (1 + DIMENSION * one.noise_multiplier**2))


def test_averages_are_those_of_the_theory():
    strong = study(steps="notes-strongly-convex", strong_convexity=0.1, radius=3.0)
    for plan, weights in ((PLAN, np.ones(6)), (strong, np.arange(1.0, 7.0))):
        descent, now = UpdateRule(plan, lambda t: 0.3), Iterate.start(np.ones(DIMENSION))
        path = [now.theta]
        for t in range(5):
            now = descent.update(now, np.full(DIMENSION, float(t)))
            path.append(now.theta)
        assert np.allclose(now.average, np.average(path, axis=0, weights=weights))


def test_projection():
    rng = np.random.default_rng(0)
    for _ in range(50):
        theta = rng.normal(size=5) * 3
        near = project(theta, 2.0)
        assert np.linalg.norm(near) <= 2.0 * (1 + 1e-15)
        others = rng.normal(size=(50, 5))
        others *= 2.0 * rng.random((50, 1)) / np.linalg.norm(others, axis=1, keepdims=True)
        assert (np.linalg.norm(others - theta, axis=1) >= np.linalg.norm(near - theta) - 1e-12).all()


def test_a_late_network_is_waited_for_as_long_as_the_study_says():
    asked = []

    class Slow(DirectTransport):
        def ask(self, party, message, timeout):
            asked.append(timeout)

    plan = replace(PLAN, network=Network(timeout=7.0))
    with pytest.raises(StudyStopped):
        Coordinator(plan, Slow({}), ROSTER).run()
    assert set(asked) == {7.0}


def silent(plan, *names):
    """A transport on which these parties say hello and nothing else."""
    parties = {name: unsigned_party(plan, name) for name in SIZES}

    def mute(party):
        return lambda frame: party.answer(frame) if Message.decode(frame).kind == "hello" else b""

    answers = {name: mute(party) if name in names else party.answer for name, party in parties.items()}
    return DirectTransport(answers)


@pytest.mark.parametrize("names", [(), ("bob",), ("bob", "cem")])
def test_the_table_of_a_result_shows_what_happened(names):
    """Against the noise that was in the sums: that of the parties present."""
    plan = study(privacy=Privacy(1.0, 1e-3, against="final model"))
    result = Coordinator(plan, silent(plan, *names), Roster.without_wire()).run()
    assert result.missed == dict.fromkeys(names, 20)
    present = 3 - len(names)
    curve = account(Gaussian(plan.noise_multiplier * present**0.5) * 20, "replace-one")
    true = curve.epsilon_bounds(plan.accounted_delta).lower
    for row in ("final model", "broadcasts"):
        assert true <= result.observers[row].guarantee.epsilon.upper <= true * (1 + 1e-6)
        assert observers(plan)[row].guarantee.epsilon.upper >= true
    alone = account(Gaussian(plan.noise_multiplier * max(1, present - 1) ** 0.5) * 20, "replace-one")
    assert result.observers["another party"].guarantee.epsilon.upper >= alone.epsilon_bounds(1e-3).lower


def test_a_round_with_too_few_parties_changes_nothing(tmp_path):
    """One may be missing, two are: three rounds are lost, then the run ends; with all parties it goes on."""
    plan, path = study(aggregation=Aggregation(dropouts=1)), tmp_path / "state"
    seen = []
    with pytest.raises(StudyStopped, match=r"Too few parties .* needs 2 of 3.*same state file"):
        Coordinator(plan, silent(plan, "bob", "cem"), Roster.without_wire(), path, seen.append).run()
    state = StateFile(path).load(plan.digest())
    assert [(p.update, p.missing) for p in seen] == [(k, ("bob", "cem")) for k in (1, 2, 3)]
    assert (state.round, state.iterate.updates, state.most_missing) == (3, 0, 0)
    assert not state.iterate.theta.any()
    result = Coordinator(plan, silent(plan, "bob"), Roster.without_wire(), path).run()
    assert result.updates == 17
    assert result.observers.arrangement.dropouts == 1


def test_rounds_that_nobody_remembers_count_as_the_worst_that_was_allowed(tmp_path):
    """A coordinator whose memory of some rounds is lost cannot know who was missing from them."""
    plan = study(aggregation=Aggregation(dropouts=1))
    wire = direct(plan)

    class Enough(BaseException):
        pass

    def stop(progress):
        if progress.update == 5:
            raise Enough

    with pytest.raises(Enough):
        Coordinator(plan, wire, Roster.without_wire(), progress=stop).run()
    result = Coordinator(plan, wire, Roster.without_wire(), state_file=tmp_path / "new").run()
    assert result.updates == 15
    assert result.observers.arrangement.dropouts == 1


def test_who_is_absent_may_remember_rounds_that_nobody_else_does(tmp_path):
    """Ann and cem had a round without bob; a coordinator that forgot it meets bob alone."""
    plan, path = study(aggregation=Aggregation(dropouts=1)), tmp_path / "state"
    parties = {name: unsigned_party(plan, name, stream=Silent()) for name in SIZES}
    StateFile(path).save(State(plan.digest(), Iterate.start(np.zeros(DIMENSION)), 1), now=True)
    for name in ("ann", "cem"):
        parties[name].answer(hello(plan, name))
        frame = sgd2.request(plan, 2, np.zeros(DIMENSION)).encode()
        assert read(parties[name].answer(frame)).kind == "noisy"

    def late(name):
        """Does not hear the first question, nor its repetition."""
        heard = []

        def answer(frame):
            heard.append(frame)
            return parties[name].answer(frame) if name == "bob" or len(heard) > 2 else b""

        return answer

    transport = DirectTransport({name: late(name) for name in SIZES})
    result = Coordinator(plan, transport, Roster.without_wire(), state_file=path).run()
    assert result.updates > 10
    assert result.observers.arrangement.dropouts == 1


def test_the_screen_says_once_why_a_party_refuses(tmp_path, capsys):
    """Bob's ledger fails in round 5, so he stops; his own error is not told to others."""

    def fault(wire, party, message, deliver):
        if party == "bob" and Message.decode(message).round == 5:
            wire.parties["bob"].stopped = "a secret of bob"
        return deliver()

    wire = Wire(PLAN, fault)
    wire.connected = lambda party: True
    kit = SimpleNamespace(signing_key=lambda: None, roster=Roster(ROSTER))
    conductor = _Conductor(PLAN, kit, wire, tmp_path / "state", patience=1)
    assert conductor.run().missed == {"bob": 16}
    printed = capsys.readouterr().err
    assert printed.count("note: bob refuses: it stopped: its ledger is spent or cannot be written") == 1
    assert "missing: bob (refuses)." in printed
    assert "secret" not in printed
