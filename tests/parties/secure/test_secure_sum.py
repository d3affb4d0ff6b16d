"""Secure sums: exact with every pattern of losses, and aborted before unmasking where too few remain."""

import itertools

import numpy as np
import pytest

from discreet.errors import InvalidParameter, PlanViolation
from discreet.parties.secure.secure_coordinator import SecureCoordinator
from discreet.parties.secure.secure_group import SecureGroup
from discreet.parties.secure.secure_sum import SecureParty
from discreet.parties.secure.shares import SEALED, SHARE
from support.secure_world import STUDY, World, signing_key

PHASES = ("absent", "lost", "silent")  # from the session, with its vector, with its answer


def patterns(names, dropouts):
    """Every way in which at most so many parties go missing, as {phase: names}; sorted by who is absent."""
    for count in range(dropouts + 1):
        for missing in itertools.combinations(names, count):
            for phases in itertools.product(PHASES, repeat=count):
                pairs = list(zip(missing, phases, strict=True))
                yield {phase: [name for name, when in pairs if when == phase] for phase in PHASES}


@pytest.mark.parametrize(("parties", "dropouts"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (5, 2), (10, 1)])
def test_the_sum_is_exact_whoever_goes_missing_and_when(parties, dropouts):
    world = World(parties, dropouts)
    rounds = itertools.count()
    by_absent = itertools.groupby(sorted(patterns(world.names, dropouts), key=str), lambda p: p["absent"])
    for absent, group in by_absent:
        world.begin(absent)
        for pattern in group:
            round = next(rounds)
            vectors = world.vectors(round)
            counted = [name for name in world.present if name not in pattern["lost"]]
            total = world.sum(round, vectors, pattern["lost"], pattern["silent"])
            assert np.array_equal(total, sum(vectors[name] for name in counted))
    assert round + 1 == sum(1 for _ in patterns(world.names, dropouts))


@pytest.mark.parametrize("missing", [("a", "b", "c"), ("j", "a", "e"), ("d", "j", "b")])
def test_ten_parties_may_lose_one_in_each_phase(missing):
    absent, lost, silent = missing
    world = World(10, dropouts=3).begin(absent)
    vectors = world.vectors()
    expected = sum(vectors[name] for name in world.names if name not in (absent, lost))
    assert np.array_equal(world.sum(1, vectors, lost, silent), expected)


@pytest.mark.parametrize(("parties", "dropouts"), [(2, 0), (3, 1), (5, 2)])
def test_one_more_missing_and_nothing_is_unmasked(parties, dropouts):
    world = World(parties, dropouts)
    too_many = world.names[: dropouts + 1]
    with pytest.raises(PlanViolation, match="nothing was unmasked"):
        world.begin(absent=too_many)
    world.begin()
    with pytest.raises(PlanViolation, match="nothing was unmasked"):
        world.sum(1, world.vectors(), lost=too_many)
    with pytest.raises(PlanViolation, match="nothing was unmasked"):
        world.sum(2, world.vectors(), silent=too_many)
    assert np.array_equal(world.sum(3, world.vectors()), sum(world.vectors().values()))


def test_losses_of_all_phases_count_together():
    world = World(4, dropouts=2).begin(absent=["a"])
    assert np.array_equal(
        world.sum(1, world.vectors(), lost=["b"]), world.vectors()["c"] + world.vectors()["d"]
    )
    with pytest.raises(PlanViolation, match="1 parties remain where 2 are needed"):
        world.sum(2, world.vectors(), lost=["b"], silent=["c"])


def test_a_party_that_lost_its_memory_comes_back_with_a_new_session():
    world = World(3, dropouts=1).begin()
    world.sum(1, world.vectors())
    world.parties["b"] = SecureParty("b", world.group, world.keys["b"], world.stream)
    with pytest.raises(PlanViolation, match="has not joined"):
        world.parties["b"].mask(2, world.vectors()["b"])
    world.begin()
    assert np.array_equal(world.sum(3, world.vectors()), sum(world.vectors().values()))


@pytest.mark.parametrize("sizes", [(2**62, 2**62 - 1), (-(2**62), -(2**62) + 1), (2**63 - 1, 0, 0), (1, -1)])
def test_sums_up_to_the_ends_of_64_bits_come_out_as_they_are(sizes):
    world = World(len(sizes), dimension=2).begin()
    vectors = {name: np.full(2, size) for name, size in zip(world.names, sizes, strict=True)}
    assert world.sum(1, vectors).tolist() == [sum(sizes)] * 2


def test_parts_may_wrap_around_if_the_sum_does_not():
    world = World(3, dimension=1).begin()
    vectors = {"a": np.array([2**63 - 1]), "b": np.array([2**63 - 1]), "c": np.array([-(2**63)])}
    assert world.sum(1, vectors).tolist() == [2**63 - 2]


def test_a_sum_that_honest_parties_cannot_make_is_refused():
    world = World(2, largest=99, dimension=2).begin()
    exact = {"a": np.array([50, -50]), "b": np.array([49, -49])}
    assert world.sum(1, exact).tolist() == [99, -99]
    for round, (name, change) in enumerate(itertools.product("ab", ([1, 0], [0, -1])), start=2):
        with pytest.raises(PlanViolation, match="larger than honest"):
            world.sum(round, exact | {name: exact[name] + np.array(change)})


@pytest.mark.parametrize("garbage", [b"", b"x", bytes(24), bytes(24 + 16 * SEALED + 1)])
def test_a_vector_of_the_wrong_form_counts_as_missing(garbage):
    world = World(4, dropouts=1).begin()
    vectors = world.vectors()
    masked = world.mask(1, vectors) | {"c": garbage}
    request = world.coordinator.request(masked)
    total = world.coordinator.total(world.answers(1, request, "abd"))
    assert np.array_equal(total, vectors["a"] + vectors["b"] + vectors["d"])


def test_an_answer_of_the_wrong_form_counts_as_missing():
    world = World(3, dropouts=1).begin()
    request = world.coordinator.request(world.mask(1, world.vectors()))
    answers = world.answers(1, request, "abc") | {"a": b"x" * (3 * SHARE - 1)}
    assert np.array_equal(world.coordinator.total(answers), sum(world.vectors().values()))


def test_wrong_shares_do_not_pass_as_a_sum():
    world = World(3, dropouts=1, largest=2**50, dimension=100).begin()
    request = world.coordinator.request(world.mask(1, world.vectors()))
    answers = world.answers(1, request, "abc")
    answers["a"] = bytes(SHARE - 1) + b"\1" + answers["a"][SHARE:]
    with pytest.raises(PlanViolation, match="round is lost"):
        world.coordinator.total(answers)


def test_a_round_is_totalled_once():
    world = World(2).begin()
    request = world.coordinator.request(world.mask(1, world.vectors()))
    answers = world.answers(1, request, "ab")
    world.coordinator.total(answers)
    with pytest.raises(PlanViolation):
        world.coordinator.total(answers)


@pytest.mark.parametrize(
    "counts", [np.zeros(3), np.zeros(3, np.int32), np.zeros((3, 1), np.int64), [1, 2, 3], None], ids=repr
)
def test_only_whole_numbers_are_masked(counts):
    with pytest.raises(InvalidParameter, match="counts="):
        World(2).begin().parties["a"].mask(1, counts)


@pytest.mark.parametrize("round", [float("nan"), -1, 0.5, True, "1", 2**63])
def test_a_round_is_a_whole_number(round):
    with pytest.raises(InvalidParameter, match="round="):
        World(2).begin().parties["a"].mask(round, np.zeros(3, np.int64))


@pytest.mark.parametrize("name", ["dropouts", "colluders"])
@pytest.mark.parametrize("value", [float("nan"), -1, 3, 0.5, True, "1"])
def test_at_least_one_honest_party_must_remain(name, value):
    keys = {name: signing_key(name).public_key() for name in "abc"}
    with pytest.raises(InvalidParameter, match=f"{name}="):
        SecureGroup(STUDY, keys, **{name: value})
    with pytest.raises(InvalidParameter, match="colluders=2"):
        SecureGroup(STUDY, keys, dropouts=1, colluders=2)


def test_one_party_alone_is_no_group():
    with pytest.raises(InvalidParameter, match="keys="):
        SecureGroup(STUDY, {"a": signing_key("a").public_key()})


@pytest.mark.parametrize("name", ["dimension", "largest"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1, 0.5, True, "1", None])
def test_the_coordinator_needs_public_numbers(name, value):
    numbers = {"dimension": 3, "largest": 1} | {name: value}
    with pytest.raises(InvalidParameter, match=f"{name}="):
        SecureCoordinator(World(2).group, **numbers)


def test_sums_that_would_need_more_than_64_bits_are_refused():
    with pytest.raises(InvalidParameter, match="largest="):
        SecureCoordinator(World(2).group, dimension=3, largest=2**63)


def test_a_party_signs_with_its_own_key():
    with pytest.raises(InvalidParameter, match="signing_key="):
        SecureParty("a", World(2).group, signing_key("b"))
