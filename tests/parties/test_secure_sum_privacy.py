"""Secure sums: what the coordinator, its colluders and a liar can learn, with attacks that work on broken twins."""

import itertools

import numpy as np
import pytest
from scipy import stats

from discreet.errors import PlanViolation
from discreet.parties.secure import secure_sum
from discreet.parties.secure.masks import KEY, WORD, public_bytes
from discreet.parties.secure.secure_group import flags, read_request, seeds_to_reveal
from discreet.parties.secure.secure_sum import X25519PrivateKey
from discreet.parties.secure.shares import SEALED
from support.secure_world import Attacker, World, signing_key

FALSE_ALARMS = 1e-6
"""Of one chi-square test; the streams are seeded, so it is the chance of an unlucky seed."""


def looks_uniform(vector):
    """By the bytes of all words together."""
    counts = np.bincount(np.ascontiguousarray(vector).view(np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue > FALSE_ALARMS


def attack(world, lost=(), late=(), colluders=(), round=1):
    """A round with losses, after which an attacker has all there is; ``late`` vectors arrive when it is over."""
    vectors = world.vectors(round)
    masked = world.mask(round, vectors, lost)
    in_time = {name: value for name, value in masked.items() if name not in late}
    request = world.coordinator.request(in_time)
    attacker = Attacker(world, masked, colluders)
    attacker.listen(request, world.answers(round, request, in_time))
    return attacker, vectors


@pytest.mark.parametrize(
    ("parties", "dropouts", "lost", "late", "colluders"),
    [
        (2, 0, "", "", ""),
        (3, 1, "", "", ""),
        (3, 1, "c", "", ""),
        (3, 1, "", "c", ""),
        (4, 1, "", "d", "a"),
        (5, 2, "a", "e", "b"),
        (6, 1, "", "", "abcd"),
    ],
)
def test_all_that_is_left_of_honest_vectors_is_uniform_but_for_their_sum(
    parties, dropouts, lost, late, colluders
):
    world = World(parties, dropouts, len(colluders), dimension=20_000).begin()
    attacker, vectors = attack(world, lost, late, colluders)
    honest = [name for name in world.names if name not in lost + late + colluders]
    left = {name: attacker.remainder(name) for name in attacker.masked}
    for name in honest + list(late):
        assert looks_uniform(left[name])
        assert not np.any(left[name] == vectors[name])
    assert np.array_equal(sum(left[name] for name in honest), sum(vectors[name] for name in honest))
    for some in (honest[1:], honest[:-1]):
        assert looks_uniform(sum(left[name] for name in some))
    for name in colluders:
        assert np.array_equal(left[name], vectors[name])  # the attack works where it must


def test_one_colluder_too_many_and_the_attack_succeeds():
    """The broken twin of the bound c < m - D: with two shares of three the own seed of a late party is found."""
    world = World(3, dropouts=1, colluders=1, dimension=10).begin()
    attacker, vectors = attack(world, late="c", colluders="ab")
    assert np.array_equal(attacker.remainder("c"), vectors["c"])


def test_without_own_masks_a_late_vector_is_exposed(monkeypatch):
    """The broken twin: this is what the masks of their own are for."""
    mask, own = secure_sum.add_mask, []
    keys_of = secure_sum._Session.round_keys

    def noted(session, round, stream):
        keys = keys_of(session, round, stream)
        own.extend(pair.mask for name, pair in keys.items() if name not in session._secrets)
        return keys

    def without_own(vector, seed, sign):
        if seed not in own:
            mask(vector, seed, sign)

    monkeypatch.setattr(secure_sum._Session, "round_keys", noted)
    monkeypatch.setattr(secure_sum, "add_mask", without_own)
    attacker, vectors = attack(World(4, dropouts=1, dimension=1000).begin(), late="d")
    assert np.array_equal(attacker.remainder("d"), vectors["d"])
    monkeypatch.undo()
    attacker, vectors = attack(World(4, dropouts=1, dimension=1000).begin(), late="d")
    assert not np.any(attacker.remainder("d") == vectors["d"])


def test_what_a_round_reveals_says_nothing_of_the_next():
    world = World(3, dropouts=1).begin()
    attacker, _ = attack(world, lost="c", round=1)
    assert {("a", "c"), ("b", "c"), ("a", "a")} <= attacker.seeds().keys()
    again, _ = attack(world, lost="c", round=2)
    assert not set(attacker.seeds().values()) & set(again.seeds().values())


@pytest.mark.parametrize("silent", "abcd")
def test_without_the_answer_of_any_one_party_there_is_no_sum(silent):
    world = World(4, dimension=10_000).begin()
    vectors = world.vectors()
    masked = world.mask(1, vectors)
    request = world.coordinator.request(masked)
    attacker = Attacker(world, masked)
    attacker.listen(request, world.answers(1, request, set(world.names) - {silent}))
    assert not attacker.seeds()
    assert looks_uniform(sum(attacker.remainder(name) for name in world.names))


def test_masked_vectors_are_uniform_and_the_test_would_see_it_if_they_were_not():
    world = World(2, dimension=50_000).begin()
    vectors = {name: np.full(50_000, 12345) for name in world.names}
    for masked in world.mask(1, vectors).values():
        assert looks_uniform(np.frombuffer(masked, WORD, count=50_000))
    assert not looks_uniform(vectors["a"])


def request_for(world, masked, survivors):
    """A request as the coordinator would make it for these survivors."""
    return world.coordinator.request({name: masked[name] for name in survivors})


def forged(world, masked, survivors):
    """Made without the coordinator's scruples."""
    parts = [flags(survivors, world.present)]
    holders = [world.present.index(name) for name in survivors]
    for name in survivors:
        sealed = np.frombuffer(masked[name], np.uint8, offset=8 * world.dimension)
        pieces = sealed.reshape(len(world.present), len(world.present), SEALED)
        parts.append(pieces[np.ix_(holders, seeds_to_reveal(name, survivors, world.present))].tobytes())
    return b"".join(parts)


def test_a_party_answers_for_one_set_of_survivors_and_repeats_only_that():
    world = World(4, dropouts=1).begin()
    masked = world.mask(1, world.vectors())
    first, second = (request_for(world, masked, names) for names in ("abcd", "abc"))
    answer = world.parties["a"].unmask(1, first)
    assert world.parties["a"].unmask(1, first) == answer
    with pytest.raises(PlanViolation, match="another request"):
        world.parties["a"].unmask(1, second)


def test_a_party_reveals_of_everybody_the_own_seed_or_the_common_ones():
    names = list("abcde")
    for count in range(1, 6):
        for survivors in itertools.combinations(names, count):
            revealed = {
                (owner, names[place])
                for owner in survivors
                for place in seeds_to_reveal(owner, survivors, names)
            }
            for one, other in itertools.permutations(names, 2):
                assert not {(one, one), (other, other), (one, other)} <= revealed
            assert {owner for owner, other in revealed if owner == other} == set(survivors)


def test_a_party_does_not_unmask_for_too_few_whatever_the_coordinator_says():
    world = World(4, dropouts=1).begin()
    masked = world.mask(1, world.vectors())
    with pytest.raises(PlanViolation, match="Too few"):
        world.parties["a"].unmask(1, forged(world, masked, "ab"))
    assert world.parties["a"].unmask(1, forged(world, masked, "abc"))


def test_the_forger_of_these_tests_makes_what_the_coordinator_makes():
    world = World(4, dropouts=1).begin()
    masked = world.mask(1, world.vectors())
    assert forged(world, masked, "abd") == request_for(world, masked, "abd")


def test_a_party_whose_vector_is_not_counted_does_not_unmask():
    world = World(4, dropouts=1).begin()
    masked = world.mask(1, world.vectors())
    with pytest.raises(PlanViolation, match="or not this one"):
        world.parties["d"].unmask(1, request_for(world, masked, "abc"))


def test_rounds_that_are_over_are_neither_masked_nor_unmasked():
    world = World(2).begin()
    vectors = world.vectors()
    old = request_for(world, world.mask(5, vectors), "ab")
    for round in (5, 4, 0):
        with pytest.raises(PlanViolation, match="masked before"):
            world.parties["a"].mask(round, vectors["a"])
    world.mask(6, vectors)
    with pytest.raises(PlanViolation, match="masked last"):
        world.parties["a"].unmask(5, old)
    with pytest.raises(PlanViolation, match="altered or belongs elsewhere"):
        world.parties["a"].unmask(6, old)
    world.begin()
    with pytest.raises(PlanViolation, match="masked before"):
        world.parties["a"].mask(6, vectors["a"])
    with pytest.raises(PlanViolation, match="masked last"):
        world.parties["a"].unmask(6, old)


def test_no_bit_of_a_request_can_be_altered():
    world = World(3, dropouts=1).begin()
    request = request_for(world, world.mask(1, world.vectors()), "ab")
    survivors, pieces = read_request(request, world.present)
    marks = len(world.present)
    refused = 0
    for at in range(len(request)):
        broken = bytearray(request)
        broken[at] ^= 1
        holder = (at - marks) // (2 * SEALED) % len(survivors)  # two seeds are wanted of each owner
        if at < marks or holder == survivors.index("a"):
            with pytest.raises(PlanViolation):
                world.parties["a"].unmask(1, bytes(broken))
            refused += 1
    assert refused == marks + pieces[:, 0].size
    assert world.parties["a"].unmask(1, request)  # refusals reveal nothing, so the true one is still answered


def test_sealed_shares_cannot_change_places():
    world = World(4, dropouts=1).begin()
    request = request_for(world, world.mask(1, world.vectors()), "abc")
    _, pieces = read_request(request, world.present)
    for axis in (0, 1, 2):
        moved = request[:4] + np.flip(pieces, axis).tobytes()
        with pytest.raises(PlanViolation, match="altered or belongs elsewhere"):
            world.parties["a"].unmask(1, moved)


def advertisements(world):
    return {name: party.advertise() for name, party in world.parties.items()}


def impostors(world, shown):
    """What a coordinator could show instead of c's key."""
    secret = X25519PrivateKey.from_private_bytes(b"7" * KEY)
    mine = public_bytes(secret)
    other_study = World(3).group
    object.__setattr__(other_study, "study", "6" * 64)
    yield mine + signing_key("coordinator").sign(world.group.signed_text("c", mine))
    yield mine + shown["c"][KEY:]
    yield shown["b"]
    yield mine + signing_key("c").sign(world.group.signed_text("b", mine))
    yield mine + signing_key("c").sign(other_study.signed_text("c", mine))
    yield mine + signing_key("c").sign(mine)
    yield bytes(len(shown["c"]))


def test_nobody_can_speak_for_a_party():
    world = World(3, dropouts=1)
    for kind in range(7):
        shown = advertisements(world)
        false = list(impostors(world, shown))[kind]
        forged = flags("abc", "abc") + shown["a"] + shown["b"] + false
        with pytest.raises(PlanViolation, match="not signed"):
            world.parties["a"].join(forged)
        assert (
            world.coordinator.introduce(shown | {"c": false}) == flags("ab", "abc") + shown["a"] + shown["b"]
        )


@pytest.mark.parametrize("change", ["short", "long", "mark", "few", "own"])
def test_introductions_are_read_strictly(change):
    world = World(3, dropouts=1)
    older, shown = advertisements(world), advertisements(world)
    message = world.coordinator.introduce(shown)
    broken = {
        "short": message[:-1],
        "long": message + b"x",
        "mark": b"\2" + message[1:],
        "few": flags("a", "abc") + shown["a"],
        "own": flags("abc", "abc") + older["a"] + shown["b"] + shown["c"],
    }[change]
    with pytest.raises(PlanViolation):
        world.parties["a"].join(broken)
    world.parties["a"].join(message)
    with pytest.raises(PlanViolation, match="no advertised key"):
        world.parties["a"].join(message)


def test_a_replayed_key_of_another_session_opens_nothing():
    world = World(3, dropouts=1)
    older, shown = advertisements(world), advertisements(world)
    world.coordinator.introduce(shown)
    world.present = world.names
    for name in "ac":
        world.parties[name].join(flags("abc", "abc") + shown["a"] + older["b"] + shown["c"])
    world.parties["b"].join(flags("abc", "abc") + shown["a"] + shown["b"] + shown["c"])
    request = world.coordinator.request(world.mask(1, world.vectors()))
    for name in "abc":
        with pytest.raises(PlanViolation, match="altered or belongs elsewhere"):
            world.parties[name].unmask(1, request)


def test_parties_who_were_told_of_different_sessions_share_nothing():
    world = World(4, dropouts=1)
    shown = advertisements(world)
    all_four = world.coordinator.introduce(shown)
    three = flags("abc", "abcd") + shown["a"] + shown["b"] + shown["c"]
    for name in "ab":
        world.parties[name].join(three)
    world.parties["c"].join(all_four)
    world.parties["d"].join(all_four)
    masked = {name: world.parties[name].mask(1, world.vectors()[name]) for name in "abc"}
    world.present = list("abc")
    for name in "ab":
        with pytest.raises(PlanViolation):
            world.parties[name].unmask(1, forged(world, masked | {"c": masked["a"]}, "abc"))


def learned_sums(group, told):
    """Which sums of honest vectors follow from what honest parties reveal, each told of a set of survivors.

    An oracle that knows sets only: masks that are not learned cancel in sums over connected parties.
    """
    honest, names = sorted(told), group.names
    spoken = {}
    for holder, survivors in told.items():
        for owner in survivors:
            for place in seeds_to_reveal(owner, survivors, names):
                spoken.setdefault((owner, names[place]), set()).add(holder)
    enough = group.threshold - group.colluders
    known = {seed for seed, holders in spoken.items() if len(holders) >= enough}
    bare = {name for name in honest if (name, name) in known}
    tied = {
        name: {other for other in honest if other != name and not {(name, other), (other, name)} & known}
        for name in honest
    }
    sums, rest = [], set(honest)
    while rest:
        component, edge = set(), {rest.pop()}
        while edge:
            component |= edge
            edge = set().union(*(tied[name] for name in edge)) - component
        rest -= component
        if component <= bare:
            sums.append(component)
    return sums


def smallest_learned(parties, dropouts, colluders):
    """The fewest honest vectors in a sum that some lie uncovers, by trying all lies."""
    group = World(parties, dropouts, colluders).group
    honest = group.names[colluders:]
    sets = [
        set(some)
        for size in range(group.threshold, parties + 1)
        for some in itertools.combinations(group.names, size)
    ]
    choices = [[some for some in sets if name in some] for name in honest]
    lies = itertools.product(*choices)
    found = (learned_sums(group, dict(zip(honest, lie, strict=True))) for lie in lies)
    return min((len(component) for sums in found for component in sums), default=parties)


@pytest.mark.parametrize(
    ("parties", "dropouts", "colluders"),
    [(2, 0, 0), (3, 0, 1), (3, 1, 0), (4, 1, 0), (4, 1, 1), (5, 1, 0), (5, 1, 2)],
)
def test_no_lie_uncovers_less_than_was_promised(parties, dropouts, colluders):
    group = World(parties, dropouts, colluders).group
    assert group.withstands_lies
    assert smallest_learned(parties, dropouts, colluders) == group.noise_shares


def test_a_group_that_does_not_withstand_lies_says_so():
    group = World(4, dropouts=2).group
    assert not group.withstands_lies
    assert smallest_learned(4, 2, 0) < group.noise_shares


def test_such_a_lie_works():
    """Four parties, two of whom may drop out: some hear that b survived, others that it is lost; a and b lie open."""
    world = World(4, dropouts=2, dimension=10).begin()
    vectors = world.vectors()
    masked = world.mask(1, vectors)
    attacker = Attacker(world, masked)
    for names, survivors in (("ab", "ab"), ("c", "ac"), ("d", "ad")):
        request = forged(world, masked, survivors)
        attacker.listen(request, world.answers(1, request, names))
    exposed = [name for name in world.names if np.array_equal(attacker.remainder(name), vectors[name])]
    assert exposed == ["a", "b"]
