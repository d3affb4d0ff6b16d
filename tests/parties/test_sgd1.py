"""SGD1: the schedule, what it costs, and that without noise it is SGD on one machine."""

from collections import Counter
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation, StudyStopped
from discreet.events import FixedSizeSampled, Gaussian
from discreet.parties import Coordinator, observers, sgd1
from discreet.parties.coordinator import order
from discreet.parties.messages import DirectTransport, Message, Refusal, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.sgd1 import Calls, derived_key
from discreet.parties.study import Aggregation, Privacy
from support.parties_bank import (
    DIMENSION,
    ROSTER,
    SIZES,
    Silent,
    clipped_gradients,
    hello,
    ledger_of,
    read,
    single_machine,
    study,
    tables,
    unsigned_party,
    zero_holders,
)
from support.parties_wire import Wire

KEY = bytes(range(32))
PRIVATE = study("sgd1", schedule="private", tokens=400, privacy=Privacy(1.0, 1e-3, against="everybody else"))


@pytest.mark.parametrize("schedule", ["uniform", "balanced"])
@pytest.mark.parametrize("records", [1, 7, 50])
def test_calls_count_the_most_used_record(schedule, records):
    """Against a plain counter."""
    calls, counter = Calls(schedule, records, KEY), Counter()
    for call in range(1, 10_000):
        record, most = calls.take(call)
        counter[record] += 1
        assert 0 <= record < records
        assert most == max(counter.values())
        if schedule == "balanced":
            assert most == (call - 1) // records + 1


@pytest.mark.parametrize("schedule", ["uniform", "balanced"])
def test_calls_can_be_left_out_and_found_again(schedule):
    first, second = Calls(schedule, 7, KEY), Calls(schedule, 7, KEY)
    every = [first.take(call) for call in range(1, 9001)]
    assert [second.take(call) for call in (3, 4, 900, 8999)] == [every[2], every[3], every[899], every[8998]]
    for after in (1, 2, 50, 4096, 4097, 8999):
        later = Calls(schedule, 7, KEY, after=after)
        assert later.take(after + 1) == every[after]
        with pytest.raises(PlanViolation, match="over"):
            later.find(after)


def test_balanced_passes_are_permutations_in_another_order_each():
    calls = Calls("balanced", 50, KEY)
    passes = [[calls.take(50 * p + k)[0] for k in range(1, 51)] for p in range(4)]
    assert all(sorted(one) == list(range(50)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4


def test_uniform_calls_are_uniform():
    """False-alarm rate 1e-6 each, seeded."""
    calls = Calls("uniform", 20, KEY)
    counts = np.bincount([calls.take(call)[0] for call in range(1, 20_001)])
    assert stats.chisquare(counts).pvalue > 1e-6


def test_the_order_follows_the_numbers_of_records():
    drawn = Counter(islice(order(study("sgd1", schedule="uniform"), KEY), 20_000))
    expected = [200 * count for count in SIZES.values()]
    assert stats.chisquare([drawn[name] for name in SIZES], expected).pvalue > 1e-6
    balanced = list(islice(order(study("sgd1"), KEY), 300))
    assert all(Counter(balanced[start : start + 100]) == SIZES for start in (0, 100, 200))
    assert balanced[:100] != balanced[100:200]


def test_keys_of_parties_differ_and_repeat():
    keys = {derived_key(KEY, f"party {name}") for name in SIZES} | {derived_key(KEY, "order"), KEY}
    assert len(keys) == 5
    assert list(islice(order(study("sgd1"), KEY), 50)) == list(islice(order(study("sgd1"), KEY), 50))


@pytest.mark.parametrize("schedule", ["uniform", "balanced"])
def test_without_noise_it_is_sgd_on_one_machine(schedule):
    plan, rows = study("sgd1", schedule=schedule, radius=0.8, learning_rate=0.05), tables()
    parties = {name: unsigned_party(plan, name, stream=Silent()) for name in SIZES}
    transport = DirectTransport({name: party.answer for name, party in parties.items()})
    coordinator = Coordinator(plan, transport, Roster.without_wire(), stream=RandomStream(unsafe_seed=1))
    key = coordinator._state.key
    turns = list(islice(order(plan, key), 200))
    calls = {name: Calls(schedule, SIZES[name], derived_key(key, f"party {name}")) for name in SIZES}
    taken = Counter()

    def gradient(theta, t):
        name = turns[t - 1]
        taken[name] += 1
        record = calls[name].take(taken[name])[0]
        X, y = rows[name]
        return clipped_gradients(theta, X[record : record + 1], y[record : record + 1])[0]

    result = coordinator.run()
    theta, average = single_machine(plan, gradient, 200)
    assert np.abs(result.theta - theta).max() < 1e-10
    assert np.abs(result.average - average).max() < 1e-10
    assert np.linalg.norm(theta) > 0.3


def test_the_ledger_pays_for_the_most_used_record():
    """The run is charged for exactly as many uses as the schedule has made of its most used record."""
    plan = study("sgd1", schedule="uniform", tokens=150)
    ledgers = {name: ledger_of(plan, name) for name in SIZES}
    parties = {name: unsigned_party(plan, name, ledger=ledgers[name]) for name in SIZES}
    transport = DirectTransport({name: party.answer for name, party in parties.items()})
    coordinator = Coordinator(plan, transport, Roster.without_wire())
    coordinator.run()
    for name in SIZES:
        calls = Calls("uniform", SIZES[name], derived_key(coordinator._state.key, f"party {name}"))
        made = coordinator._state.calls[name]
        (record,) = ledgers[name].runs().values()
        assert record.reserved == calls.take(made)[1]
        assert record.event == Gaussian(plan.noise_multiplier) * plan.arrangement.cap


def asked(party, plan, call, theta=None):
    frame = sgd1.request(plan, party.name, call, np.zeros(DIMENSION) if theta is None else theta).encode()
    reply = read(party.answer(frame))
    return Refusal(int(reply.array[0])) if reply.kind == "refused" else reply


def test_a_record_is_not_used_beyond_the_cap():
    plan = study("sgd1", schedule="balanced", tokens=200)
    party = unsigned_party(plan, "bob")
    party.answer(hello(plan, "bob", KEY))
    assert [asked(party, plan, call).kind for call in range(1, 41)] == [
        "noisy"
    ] * 40  # two passes over 20 records
    assert asked(party, plan, 41) is Refusal.BEYOND_PLAN
    assert asked(party, plan, 10**9) is Refusal.BEYOND_PLAN


def test_after_a_crash_every_use_that_was_paid_for_is_over():
    plan = study("sgd1", schedule="uniform", tokens=150)
    ledger, answered = ledger_of(plan, "bob"), {}
    for _ in range(8):
        party = unsigned_party(plan, "bob", ledger=ledger)
        following = int(read(party.answer(hello(plan, "bob", KEY))).array[0])
        if answered:
            assert following > max(answered)
            assert asked(party, plan, following - 1) is Refusal.PAST_ROUND
        for call in range(following, following + 3):
            reply = asked(party, plan, call)
            if isinstance(reply, Refusal):
                break
            answered[call] = reply.array.tobytes()
    counter = Counter(Calls("uniform", 20, KEY).take(call)[0] for call in sorted(answered))
    assert max(counter.values()) <= next(iter(ledger.runs().values())).reserved
    assert len(set(answered.values())) == len(answered) > 5


def test_another_key_is_refused():
    plan = study("sgd1")
    ledger = ledger_of(plan, "bob")
    party = unsigned_party(plan, "bob", ledger=ledger)
    assert read(party.answer(hello(plan, "bob", KEY))).kind == "ready"
    for other in (bytes(32), b"", bytes(31)):
        assert Refusal(int(read(party.answer(hello(plan, "bob", other))).array[0])) is Refusal.OTHER_PLAN
    reborn = unsigned_party(plan, "bob", ledger=ledger)
    assert Refusal(int(read(reborn.answer(hello(plan, "bob", bytes(32)))).array[0])) is Refusal.OTHER_PLAN
    assert read(reborn.answer(hello(plan, "bob", KEY))).kind == "ready"


def test_private_schedules_pay_by_the_call():
    plan = PRIVATE
    ledger = ledger_of(plan, "cem")
    party = unsigned_party(plan, "cem", ledger=ledger)
    party.answer(hello(plan, "cem", KEY))
    for call in range(1, 31):
        assert asked(party, plan, call).kind == "noisy"
    (record,) = ledger.runs().values()
    assert record.reserved >= 30
    assert (
        record.event
        == FixedSizeSampled(1, 50, Gaussian(plan.noise_multiplier)) * PartyPlan(plan, "cem").steps
    )
    assert asked(party, plan, PartyPlan(plan, "cem").steps + 1) is Refusal.BEYOND_PLAN


@pytest.mark.parametrize("schedule", ["uniform", "balanced", "private"])
def test_the_noise_of_a_token_is_exactly_the_planned_one(schedule):
    """Chi-square, false-alarm rate 1e-6, seeded; a seventh less noise is caught."""
    plan = PRIVATE if schedule == "private" else study("sgd1", schedule=schedule, tokens=400)
    size = 400 * DIMENSION
    square = _squares(plan)
    for factor, fine in ((1.0, True), ((6 / 7) ** 2, False)):
        tail = stats.chi2.cdf(factor * square, size)
        assert (min(tail, 1 - tail) > 5e-7) == fine


def _squares(plan):
    parties = {
        name: unsigned_party(plan, name, holder=zero_holders()[name], stream=RandomStream(unsafe_seed=place))
        for place, name in enumerate(SIZES)
    }
    transport = DirectTransport({name: party.answer for name, party in parties.items()})
    coordinator, total = Coordinator(plan, transport, Roster.without_wire()), []
    update = coordinator._descent.update
    coordinator._descent.update = lambda now, g: (total.append(g @ g), update(now, g))[1]
    coordinator.run()
    return sum(total) / plan.noise_multiplier**2


class Counting:
    """A holder without data that counts how often each record is used."""

    dimension = DIMENSION

    def __init__(self, records):
        self.records, self.used, self.sums = records, Counter(), -1  # the party looks once when it is made

    def clipped_sum(self, theta, records):
        raise NotImplementedError

    def hardened_sum(self, theta, records, grid):
        self.used.update([] if records is None else records.tolist())
        self.sums += 1
        return BoundedSum(np.zeros(DIMENSION, np.int64), 1.0, grid=grid)


def two_parties(schedule, records, tokens):
    privacy = Privacy(1.0, 1e-3, against="everybody else")  # whose row is quickly computed
    sizes = {"ann": records, "bob": records}
    return study("sgd1", sizes=sizes, schedule=schedule, tokens=tokens, privacy=privacy)


def test_a_call_that_is_refused_leaves_everything_as_it_was():
    """A call beyond the plan, in a later block of the schedule; calls before it still concern their own records."""
    plan = study(
        "sgd1", sizes={"ann": 1500, "bob": 7500}, schedule="uniform", tokens=9000, privacy=(5.0, 1e-6)
    )
    cap = plan.arrangement.cap
    keys = (bytes([place]) * 32 for place in range(256))

    def first_beyond(key):
        calls = Calls("uniform", 1500, key)
        return next((call for call in range(1, 9000) if calls.take(call)[1] > cap), 0)

    key, far = next((key, far) for key in keys if (far := first_beyond(key)) > 4096)
    holder = Counting(1500)
    party = unsigned_party(plan, "ann", holder=holder)
    party.answer(hello(plan, "ann", key))
    assert asked(party, plan, far) is Refusal.BEYOND_PLAN
    schedule = Calls("uniform", 1500, key)
    for call in (*range(1, 40), *range(4000, 4200), far - 1):
        assert asked(party, plan, call).kind == "noisy"
        assert holder.used.pop(schedule.take(call)[0]) == 1
        assert not holder.used
    assert asked(party, plan, far) is Refusal.BEYOND_PLAN
    assert asked(party, plan, 4000) is Refusal.PAST_ROUND


def test_calls_cannot_be_taken_again():
    for schedule in ("uniform", "balanced"):
        calls = Calls(schedule, 7, KEY)
        found = calls.find(5000)
        calls.take(4500)
        for call in (4500, 1, 0, -3):
            with pytest.raises(PlanViolation, match="over"):
                calls.take(call)
        calls.move_to(found)
        with pytest.raises(PlanViolation, match="over"):
            calls.move_to(found)


def test_a_call_that_is_far_away_costs_little(monkeypatch):
    counted, work = sgd1._running_counts, []
    monkeypatch.setattr(
        sgd1, "_running_counts", lambda block, counts: (work.append(1), counted(block, counts))[1]
    )
    plan = study("sgd1", schedule="uniform", tokens=10**12)
    party = unsigned_party(plan, "ann", holder=Counting(30))
    party.answer(hello(plan, "ann", KEY))
    for call in (10**12, 10**9, sgd1.MOST_AHEAD + 1):
        assert asked(party, plan, call) is Refusal.BEYOND_PLAN
    assert not work
    assert asked(party, plan, sgd1.MOST_AHEAD // 4).kind == "noisy"
    assert len(work) <= sgd1.MOST_AHEAD // 4096
    balanced = study("sgd1", tokens=10**12)
    party = unsigned_party(balanced, "ann", holder=Counting(30))
    party.answer(hello(balanced, "ann", KEY))
    assert asked(party, balanced, 3 * 10**11).kind == "noisy"
    assert asked(party, balanced, 3 * 10**11 + 1) is Refusal.BEYOND_PLAN


@pytest.mark.parametrize("schedule", ["uniform", "balanced", "private"])
def test_any_order_of_calls_and_restarts_stays_within_the_plan(schedule):
    """Several processes on one ledger, asked at random; what was used is counted at the records."""
    rng = np.random.default_rng(5)
    plan = two_parties(schedule, 5, 60)
    for _ in range(3):
        ledger, holder, key = ledger_of(plan, "ann"), Counting(5), rng.bytes(32)
        parties = []
        for step in range(150):
            if not parties or (rng.random() < 0.03 and len(parties) < 5):
                parties.append(unsigned_party(plan, "ann", holder=holder, ledger=ledger))
                parties[-1].answer(hello(plan, "ann", key))
                holder.sums -= 1
            call = int(rng.integers(0, 70)) if rng.random() < 0.03 else step // 3 + int(rng.integers(-3, 4))
            asked(parties[rng.integers(len(parties))], plan, call, rng.normal(size=DIMENSION))
        (record,) = ledger.runs().values()
        used = holder.sums + 1 if schedule == "private" else max(holder.used.values())
        assert 1 < used <= record.reserved <= PartyPlan(plan, "ann").steps


class Killed(BaseException):
    pass


def counted_world(plan):
    rows = {name: Counting(records) for name, records in plan.parties.items()}
    parties = {name: unsigned_party(plan, name, holder=rows[name]) for name in plan.names}
    return rows, DirectTransport({name: party.answer for name, party in parties.items()})


@pytest.mark.parametrize("schedule", ["private", "uniform", "balanced"])
def test_a_coordinator_without_its_state_is_refused(schedule):
    plan = two_parties(schedule, 20, 60)
    rows, transport = counted_world(plan)
    Coordinator(plan, transport, Roster.without_wire()).run()
    with pytest.raises(StudyStopped, match="another schedule"):
        Coordinator(plan, transport, Roster.without_wire()).run()
    assert sum(row.sums for row in rows.values()) == 60


@pytest.mark.parametrize("schedule", ["private", "uniform", "balanced"])
def test_a_coordinator_that_lost_progress_asks_for_no_turn_twice(schedule, tmp_path):
    """Killed again and again, and back at its first state each time: never more than the schedule holds."""
    plan = two_parties(schedule, 20, 120)
    rows, transport = counted_world(plan)
    state = tmp_path / "state"

    def stop(progress):
        if progress.update >= 60:
            raise Killed

    for _ in range(4):
        coordinator = Coordinator(plan, transport, Roster.without_wire(), state, stop)
        save = coordinator._file.save
        coordinator._file.save = lambda s, now=False, save=save: save(s, now=now) if s.round == 0 else None
        with pytest.raises(Killed):
            coordinator.run()
    result = Coordinator(plan, transport, Roster.without_wire(), state).run()
    key, turns = coordinator._state.key, Counter(islice(order(plan, coordinator._state.key), 120))
    assert result.updates == 120
    assert {name: row.sums for name, row in rows.items()} == turns
    if schedule != "private":
        for name, row in rows.items():
            calls = Calls(schedule, 20, derived_key(key, f"party {name}"))
            assert row.used == Counter(calls.take(call)[0] for call in range(1, turns[name] + 1))


def test_restarted_parties_are_never_asked_beyond_their_turns(tmp_path):
    """So the chance that a refusal shows something of the schedule stays what it was, and so does the table."""
    privacy = Privacy(1.0, 1e-3, against="final model")
    plan = study("sgd1", schedule="uniform", tokens=150, privacy=privacy, aggregation=Aggregation(dropouts=0))

    def fault(wire, party, message, deliver):
        if wire.asked % 9 == 8:
            wire.restart(party)
        return deliver()

    wire, result = Wire(plan, fault), None
    while result is None:
        coordinator = Coordinator(plan, wire, ROSTER, state_file=tmp_path / "state")
        with suppress(StudyStopped):
            result = coordinator.run()
    turns = Counter(islice(order(plan, coordinator._state.key), 150))
    calls = [Message.decode(request) for _, request, _ in wire.tap]
    for name in SIZES:
        assert max(m.round for m in calls if m.party == name and m.kind == "token") <= turns[name]
    planned, table = observers(plan), result.observers
    assert table["final model"].guarantee == planned["final model"].guarantee
    assert planned["final model"].guarantee.epsilon.upper <= 1


@pytest.mark.parametrize("schedule", ["balanced", "uniform", "private"])
@pytest.mark.parametrize("answered", [1, 10, 399])
def test_a_restart_loses_a_hundredth_of_the_turns_at_most(schedule, answered, tmp_path):
    """One pass over the records: by uses of the most used record a restart would lose all of it."""
    privacy = Privacy(1.0, 1e-3, against="everybody else")  # whose row is quickly computed
    sizes = {"ann": 400, "bob": 600}
    plan = study("sgd1", sizes=sizes, schedule=schedule, tokens=1000, privacy=privacy)
    ledger = tmp_path / "ledger"
    party = unsigned_party(plan, "ann", holder=Counting(400), ledger=ledger_of(plan, "ann", ledger))
    party.answer(hello(plan, "ann", KEY))
    for call in range(1, answered + 1):
        assert asked(party, plan, call).kind == "noisy"
    reborn = unsigned_party(plan, "ann", holder=Counting(400), ledger=ledger_of(plan, "ann", ledger))
    following = int(read(reborn.answer(hello(plan, "ann", KEY))).array[0])
    assert answered < following <= answered + 1 + 400 * 0.013  # a hundredth of the calls that are allowed
    assert asked(reborn, plan, answered) is Refusal.PAST_ROUND
    assert asked(reborn, plan, following - 1) is Refusal.PAST_ROUND
    if schedule == "balanced" and following > 400:
        return  # the pass is over
    assert asked(reborn, plan, following).kind == "noisy"


def test_a_call_is_marked_before_it_is_answered(tmp_path):
    plan = study("sgd1", tokens=1000)
    ledger = ledger_of(plan, "ann", tmp_path / "ledger")
    marks = []

    class Watching(Counting):
        def hardened_sum(self, theta, records, grid):
            marks.extend(run.marked for run in ledger.runs().values())
            return super().hardened_sum(theta, records, grid)

    party = unsigned_party(plan, "ann", holder=Watching(30), ledger=ledger)
    party.answer(hello(plan, "ann", KEY))
    for call in (1, 2, 3, 50, 51):
        asked(party, plan, call)
    assert all(mark >= call for mark, call in zip(marks, (1, 2, 3, 50, 51), strict=True))


def test_more_missing_parties_than_planned_stop_sgd1(tmp_path):
    plan = study("sgd1", tokens=100, aggregation=Aggregation(dropouts=0))
    silent = [True]
    wire = Wire(plan, lambda w, p, m, d: None if p == "bob" and silent[0] and w.asked > 3 else d())
    with pytest.raises(StudyStopped, match="needs 3 of 3"):
        Coordinator(plan, wire, ROSTER, state_file=tmp_path / "state").run()
    released = sum(len(answers) for answers in wire.released().values())
    assert released < 30  # the first turn of bob, and then nobody is asked any more
    silent[0] = False
    result = Coordinator(plan, wire, ROSTER, state_file=tmp_path / "state").run()
    assert result.updates == 100
    assert set(result.missed) == {"bob"}
    assert result.missed["bob"] <= 3  # turns that follow one another
