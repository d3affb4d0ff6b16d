"""More parties than one secure sum has room for: each group's sum holds all of the noise, and they add up."""

import math

import numpy as np
import pytest
from scipy import stats

from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, PlanViolation, StudyStopped
from discreet.events import Gaussian
from discreet.parties import Coordinator, Party, arrangement, rehearse
from discreet.parties.arrangement import Arrangement, groups_of
from discreet.parties.messages import EVERYBODY, DirectTransport, Message, Roster
from discreet.parties.observation.observer_views import party_event, views
from discreet.parties.party_plan import AgreedNumbers, PartyPlan
from discreet.parties.secure.secure_coordinator import SecureCoordinator
from discreet.parties.study import Aggregation
from support.parties_bank import holders, study, zero_holders
from support.secure_world import signing_key

FALSE_ALARMS = 1e-6
SIZES = {f"p{place}": 10 for place in range(7)}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(arrangement, "MOST_IN_GROUP", 4)


def plan(sizes=SIZES, **settings):
    rounds = settings.pop("rounds", 3)
    return study(sizes=sizes, rounds=rounds, aggregation=Aggregation("secure", **settings))


@pytest.mark.parametrize("count", [2, 4, 5, 8, 9, 30, 101])
def test_groups_are_few_equal_and_hold_everybody_once(count):
    names = [f"p{place}" for place in range(count)]
    groups = groups_of(names)
    assert sorted(name for group in groups for name in group) == sorted(names)
    sizes = [len(group) for group in groups]
    assert max(sizes) <= 4
    assert max(sizes) - min(sizes) <= 1
    assert len(groups) == math.ceil(count / 4)
    assert groups == groups_of(names[::-1])  # the same at every party


def sums_of(made, monkeypatch, **settings):
    """What the coordinator of a rehearsal unmasks: one vector for each group and round."""
    seen, honest = [], SecureCoordinator.total

    def total(self, answers):
        seen.append((len(self._group.keys), honest(self, answers)))
        return seen[-1][1]

    monkeypatch.setattr(SecureCoordinator, "total", total)
    result = rehearse(made, zero_holders(made.parties), unsafe_seed=5, **settings)
    return result, seen


def too_quiet(made, seen):
    """Whether the noise of some size of group is less than the study needs, by a test of its variance."""
    wanted = made.noise_multiplier * made.training.clip_norm / made.grid
    for size in {size for size, _ in seen}:
        values = np.concatenate([value for group, value in seen if group == size]) / wanted
        if stats.chi2.cdf(np.sum(values**2), len(values)) < FALSE_ALARMS:
            return True
    return False


def test_every_sum_that_is_seen_holds_all_of_the_noise(monkeypatch):
    made = plan(rounds=150)
    _, seen = sums_of(made, monkeypatch)
    assert {size for size, _ in seen} == {3, 4}
    assert not too_quiet(made, seen)


def test_a_twin_that_counts_on_the_noise_of_other_groups_is_charged_for_it(monkeypatch):
    """Wrong in it: shares for all parties, though the sum of one group is seen by itself. The ledgers pay for it."""
    made = plan(rounds=150)
    name = made.names[0]
    right = PartyPlan(made, name).budget.epsilon
    monkeypatch.setattr(AgreedNumbers, "shares", property(lambda self: self.parties))
    assert PartyPlan(made, name).budget.epsilon > 1.5 * right
    _, seen = sums_of(made, monkeypatch)
    assert too_quiet(made, seen)


def test_a_twin_whose_event_counts_on_other_groups_gets_no_permit(monkeypatch):
    monkeypatch.setattr(
        AgreedNumbers, "event", property(lambda self: Gaussian(self.noise_multiplier * 1.01) * self.rounds)
    )
    with pytest.raises(PlanViolation, match="Less noise"):
        PartyPlan(plan(), plan().names[-1]).step_noise  # noqa: B018


def test_groups_add_up_to_what_one_sum_would_be(monkeypatch):
    monkeypatch.setattr(
        RandomStream, "discrete_gaussian", lambda self, sigma, shape=(): np.zeros(shape, np.int64)
    )
    made = plan()
    several = rehearse(made, holders(SIZES)).theta
    monkeypatch.setattr(arrangement, "MOST_IN_GROUP", 32)
    assert len(plan().groups) == 1
    assert np.allclose(several, rehearse(plan(), holders(SIZES)).theta, rtol=1e-9)
    assert np.abs(several).max() > 0.01


@pytest.mark.parametrize(("dropouts", "colluders"), [(0, 0), (0, 1), (1, 0)])
def test_who_sees_a_group_counts_on_its_noise_alone(dropouts, colluders):
    parties = dict.fromkeys([f"p{place:02}" for place in range(10)], 50)  # groups of 4, 3, 3
    made = Arrangement(
        "sgd2", parties, 8.0, rounds=10, aggregation="secure", dropouts=dropouts, colluders=colluders
    )
    share = 1 / (3 - dropouts - colluders)  # of the variance

    left = {
        "coordinator and colluders": 3 - dropouts - max(1, colluders),
        "coordinator": 3 - dropouts,
        "final model": 10 - 3 * dropouts,
        "colluding parties": 10 - 3 * dropouts - max(1, colluders),
    }
    for view in views(made):
        if view.observer in left:
            ((event, rounds),) = view.faces[0].parts()
            assert rounds == 10
            expected = 8.0 * math.sqrt(share * max(left[view.observer], 1))
            assert event.noise_multiplier == pytest.approx(expected, rel=1e-12)
    ((event, _),) = party_event(made, "p09").parts()
    assert event.noise_multiplier >= 8.0 * (1 - 1e-13)


def test_too_many_dropouts_for_a_group_are_refused():
    with pytest.raises(InvalidParameter, match="in a group"):
        plan(dropouts=2)
    with pytest.raises(InvalidParameter, match="in a group"):
        plan(colluders=2)


def wired(made, silent):
    """A coordinator, and parties of which some say nothing when masked sums are asked for."""
    roster = Roster({name: signing_key(name).public_key().public_bytes_raw().hex() for name in made.names})
    own = holders(made.parties)
    parties = {n: Party(n, made, own[n], None, signing_key(n), roster) for n in made.names}

    def answers(name):
        return lambda message: (
            b""
            if name in silent and Message.decode(message).kind == "mask"
            else parties[name].answer(message)
        )

    return Coordinator(made, DirectTransport({name: answers(name) for name in made.names}), roster)


@pytest.mark.parametrize(("silent", "goes_on"), [((), True), (("p0",), True), (("p0", "p6"), False)])
def test_no_more_may_be_missing_in_all_groups_together_than_in_one(silent, goes_on):
    made = plan(dropouts=1)
    if goes_on:
        assert wired(made, silent).run().updates == 3
    else:
        with pytest.raises(StudyStopped, match="Too few parties"):
            wired(made, silent).run()


def test_the_terms_of_a_party_are_those_of_its_group():
    made = plan()
    roster = Roster({name: signing_key(name).public_key().public_bytes_raw().hex() for name in made.names})
    assert PartyPlan(made, "p5").group(roster).names == list(made.groups[1])


def asked(made, name, kind, round=0, content=b""):
    """What a party of a real study says to a question of the coordinator."""
    request = Message(made.study.digest(), kind, round, EVERYBODY, np.frombuffer(content, np.uint8))
    return Message.decode(made.answer(request.encode()))


def begun(made):
    """The parties of a study, after the hello, and the public keys that they advertise for the first round."""
    roster = Roster({name: signing_key(name).public_key().public_bytes_raw().hex() for name in made.names})
    own = holders(made.parties)
    parties = {n: Party(n, made, own[n], None, signing_key(n), roster) for n in made.names}
    for party in parties.values():
        assert asked(party, party.name, "hello").kind == "ready"
    return parties, {n: asked(p, n, "advertise", 1).array.tobytes() for n, p in parties.items()}


def introductions(known, present, keys):
    return bytes(name in present for name in known) + b"".join(keys[name] for name in present)


def test_no_party_joins_another_group_than_follows_from_the_study():
    """Fewer parties in a sum would have less of the noise, and two sums could differ by one party."""
    made = plan(dropouts=0)  # p0 to p3 and p4 to p6
    first, second = (list(group) for group in made.groups)
    parties, keys = begun(made)
    lies = {
        "half of the group": introductions(first, first[:2], keys),
        "half of it, as if it were a group": introductions(first[:2], first[:2], keys),
        "the other group": introductions(second, second, keys),
        "one of the others in place of its own": introductions(first, first, keys | {"p3": keys["p6"]}),
        "everybody": introductions(made.names, made.names, keys),
        "its own and one more": introductions([*first, "p6"], [*first, "p6"], keys),
    }
    for lie, told in lies.items():
        assert asked(parties["p0"], "p0", "join", 1, told).kind == "refused", lie
    assert asked(parties["p0"], "p0", "join", 1, introductions(first, first, keys)).kind == "sealed"


def test_a_sum_that_leaves_out_one_of_the_group_is_not_unmasked():
    """The attack by difference: the sum of four, and of three of them, in one round or in two."""
    made = plan(dropouts=0)
    first = list(made.groups[0])
    parties, keys = begun(made)
    for name in first:
        asked(parties[name], name, "join", 1, introductions(first, first, keys))
    theta = Message(made.digest(), "mask", 1, EVERYBODY, np.zeros(made.dimension)).encode()
    masked = {name: Message.decode(parties[name].answer(theta)).array.tobytes() for name in first}
    honest = SecureCoordinator(PartyPlan(made, "p0").group(parties["p0"]._roster), made.dimension, 2**62)
    honest.introduce(keys)
    request = honest.request(masked)
    without = bytes([1, 1, 1, 0]) + request[4:]
    assert asked(parties["p0"], "p0", "unmask", 1, without).kind == "refused"
    assert asked(parties["p0"], "p0", "unmask", 1, request).kind == "sealed"
    twice = Message(made.digest(), "mask", 1, EVERYBODY, np.ones(made.dimension)).encode()
    assert Message.decode(parties["p0"].answer(twice)).kind == "refused"
