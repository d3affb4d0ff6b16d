"""A whole party's sum is cut to its bound, and what one record can do grows by no more than is stated."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.core.noise import BoundedSum, noise_steps
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.events import Gaussian
from discreet.parties import observers, sgd2
from discreet.parties.messages import longest_message
from discreet.parties.party_plan import PartyPlan
from discreet.parties.sgd2 import cut_sum
from discreet.parties.study import Aggregation, Privacy
from support.paid import paid
from support.parties_bank import DIMENSION, SIZES, Silent, holders, study

GRID = 2.0**-30
RNG = np.random.default_rng(0)


def squared(counts):
    return sum(int(count) ** 2 for count in counts)


def projected(counts, bound):
    """Oracle: the projection in exact arithmetic, but for a root of 400 bits."""
    square = squared(counts)
    if square <= bound**2:
        return [Fraction(int(count)) for count in counts]
    root = Fraction(_root(square << 800), 1 << 400)
    return [Fraction(int(count)) * bound / root for count in counts]


def _root(value):
    low, high = 0, 1 << (value.bit_length() // 2 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle * middle <= value else (low, middle - 1)
    return low


def cut_counts(counts, most, clip_norm=1.0):
    return cut_sum(BoundedSum(np.array(counts, np.int64), clip_norm, grid=GRID), most)


@pytest.mark.parametrize("most", [0.3, 1.0, 7.5, 1e4])
@pytest.mark.parametrize("size", [1, 5, 300])
def test_the_cut_sum_is_within_the_bound_and_close_to_the_projection(most, size):
    bound = int(Fraction(most) / Fraction(GRID))
    for spread in (0.5, 1.0, 3.0, 1e5):
        counts = (RNG.normal(size=size) * spread * bound / size**0.5).astype(np.int64)
        cut = cut_counts(counts, most)
        assert squared(cut.value) <= bound**2
        slack = Fraction(cut.clip_norm) / Fraction(GRID) - Fraction(1) / Fraction(GRID)
        distance = sum(
            (Fraction(int(a)) - b) ** 2 for a, b in zip(cut.value, projected(counts, bound), strict=True)
        )
        assert distance <= (slack / 2) ** 2


def test_one_record_moves_it_by_no_more_than_it_states():
    """Pairs at the edge of the ball, where rounding counts most; the twin states the clip norm of before."""
    worst, steps = Fraction(0), 1 / GRID
    for _ in range(2000):
        direction = RNG.normal(size=4)
        direction /= np.linalg.norm(direction)
        start = (direction * steps * 5 * RNG.choice([1 - 1e-12, 1, 1 + 1e-12, 1.1])).astype(np.int64)
        move = RNG.normal(size=4)
        moved = start + (move / np.linalg.norm(move) * steps).astype(np.int64)
        one, two = cut_counts(start, 5.0), cut_counts(moved, 5.0)
        gap = Fraction(squared(one.value - two.value))
        assert gap <= (Fraction(one.clip_norm) / Fraction(GRID)) ** 2
        near = start + RNG.integers(-1, 2, 4)
        small = squared(one.value - cut_counts(near, 5.0).value)
        worst = max(worst, Fraction(small) - squared(start - near))
    assert worst > 0  # rounding does bring some sums further apart, so that the slack is needed


def test_parties_cut_their_sums_and_the_noise_grows_along():
    plan = study(party_bound=2.0)
    terms, theta = PartyPlan(plan, "cem"), np.full(DIMENSION, 5.0)
    noise = Gaussian(plan.noise_multiplier)
    loose = sgd2.bounded_sum(PartyPlan(study(), "cem"), holders()["cem"], theta, None)
    total = sgd2.bounded_sum(PartyPlan(plan, "cem"), holders()["cem"], theta, None)
    assert np.linalg.norm(loose.value * loose.grid) > 4
    assert 1.99 < np.linalg.norm(total.value * total.grid) <= 2.0
    assert noise_steps(noise, total.clip_norm, plan.grid) > noise_steps(noise, 1.0, plan.grid)
    sent = sgd2.noisy_sum(terms, holders()["cem"], theta, Silent(), paid(terms.step_noise, 1.0, Silent()))
    assert np.linalg.norm(sent) <= 2.0
    loose_terms = PartyPlan(study(), "cem")
    permit = paid(loose_terms.step_noise, 1.0, Silent())
    assert np.linalg.norm(sgd2.noisy_sum(loose_terms, holders()["cem"], theta, Silent(), permit)) > 4


def test_a_secure_sum_of_bounded_parties_is_bounded():
    plan = study(party_bound=0.5, aggregation=Aggregation("secure"))
    terms = PartyPlan(plan, "ann")
    permit = paid(terms.step_noise, 1.0, Silent())
    counts = sgd2.noisy_counts(terms, holders()["ann"], np.ones(DIMENSION), Silent(), permit)
    assert squared(counts) <= (0.5 / plan.grid) ** 2


def test_a_whole_party_is_promised_something_only_if_it_is_bounded():
    sizes = {"ann": 3000, "bob": 2000, "cem": 5000}
    plan = study(sizes=sizes, privacy=(1.0, 1e-6))
    row = observers(plan)["whole party"]
    assert row.guarantee is None
    assert "party_bound" in row.note
    assert "nothing is promised for all records of a party" in str(observers(plan))
    bounded = observers(replace(plan, training=replace(plan.training, party_bound=2.0)))["whole party"]
    assert bounded.guarantee.epsilon.upper < 4
    assert bounded.guarantee.group_size == 5000


@pytest.mark.parametrize("party_bound", [None, 3.0])
def test_messages_longer_than_honest_ones_do_not_count(party_bound):
    """In L2, not by coordinate: a liar that fills every coordinate is refused; honest noise passes."""
    plan = study(party_bound=party_bound, rounds=50)
    longest = longest_message(plan, "ann")
    noise = plan.noise_multiplier * (DIMENSION**0.5 + (280 * np.log(2)) ** 0.5)
    assert longest == pytest.approx((party_bound or SIZES["ann"]) + noise, rel=2e-3)
    stream, terms, holder = RandomStream(unsafe_seed=1), PartyPlan(plan, "ann"), holders()["ann"]
    permit = paid(terms.step_noise, 1.0, stream, times=200)
    sent = [sgd2.noisy_sum(terms, holder, np.ones(DIMENSION), stream, permit) for _ in range(200)]
    assert max(map(np.linalg.norm, sent)) < longest / 1.5


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "2", True])
def test_bounds_are_checked(bad):
    with pytest.raises(InvalidParameter, match="party_bound"):
        study(party_bound=bad)


def test_what_does_not_go_with_a_bound_is_refused():
    with pytest.raises(InvalidParameter, match="party_bound"):
        study("sgd1", party_bound=2.0)
    with pytest.raises(InvalidParameter, match="arithmetic"):
        study(party_bound=2.0, privacy=Privacy(1.0, 1e-3, arithmetic="float"))
