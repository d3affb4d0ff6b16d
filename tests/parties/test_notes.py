"""The notes' formulas, at the check values that were computed by hand from the notes."""

import math

import pytest

from discreet.accounting.gaussian import gaussian_mu
from discreet.accounting.noise_formulas import classic_gaussian_noise
from discreet.errors import InvalidParameter
from discreet.guarantee import Budget
from discreet.lecture.composition import advanced_composition, strong_composition
from discreet.lecture.sgd_notes import (
    bassily_noise_std,
    sgd1_claimed_round,
    sgd1_mended_proof,
    sgd1_round,
    sgd2_risk_as_printed,
)
from discreet.parties.arrangement import Arrangement
from discreet.parties.excess_risk import second_moment
from discreet.parties.notes import (
    convex_step_size,
    notes_noise,
    sgd1_noise_std,
    sgd2_mended_round,
    sgd2_noise_std,
    sgd2_round,
    strongly_convex_step_size,
    weighted_step_size,
)
from discreet.parties.observation.binomial import most_likely_count

# records, epsilon, delta, dimension, diameter; noise variance, first and last step of SGD1
SGD1 = [
    (10, 0.5, 1e-4, 5, 1, 1261336.379, 3.981952672e-4, 3.981952672e-5),
    (100, 0.5, 1e-7, 10, 2, 417845260, 3.094010164e-5, 3.094010164e-7),
    (100, 0.9, 1e-7, 10, 1, 128964586.4, 2.784601684e-5, 2.784601684e-7),
    (1000, 0.9, 1e-10, 10, 1, 2.713634635e10, 1.919656452e-6, 1.919656452e-9),
]


@pytest.mark.parametrize(
    ("n", "epsilon", "delta", "dimension", "diameter", "variance", "first", "last"), SGD1
)
def test_sgd1_noise_and_steps(n, epsilon, delta, dimension, diameter, variance, first, last):
    noise = sgd1_noise_std(n, 1.0, epsilon, delta)
    assert noise**2 == pytest.approx(variance, rel=1e-9)
    assert sgd1_noise_std(n, 3.0, epsilon, delta) == pytest.approx(3 * noise)
    square = second_moment(n, 1.0, dimension, noise)
    assert convex_step_size(diameter, square, 1) == pytest.approx(first, rel=1e-9)
    assert convex_step_size(diameter, square, n**2) == pytest.approx(last, rel=1e-9)


def test_steps_for_strongly_convex_losses():
    assert strongly_convex_step_size(0.1, 100, 5) == pytest.approx(1 / 50)
    assert weighted_step_size(0.1, 100, 4) == pytest.approx(2 / 50)


def test_the_noise_that_the_notes_follow():
    assert bassily_noise_std(100, 1.0, 0.9, 1e-7) ** 2 == pytest.approx(1.3195835e8, rel=1e-7)


def test_one_message_costs_more_than_the_notes_say():
    assert sgd1_claimed_round(0.9, 1e-7, 100).epsilon == pytest.approx(0.112087, abs=5e-7)
    assert sgd1_round(100, 0.9, 1e-7).epsilon == pytest.approx(0.12590, abs=1e-5)
    noise = sgd1_noise_std(100, 1.0, 0.9, 1e-7) / 200  # in units of the sensitivity
    assert classic_gaussian_noise(*sgd1_round(100, 0.9, 1e-7)) == pytest.approx(noise, rel=1e-9)


@pytest.mark.parametrize(("n", "delta", "epsilon"), [(100, 1e-7, 0.7954), (1000, 1e-10, 0.7710)])
def test_the_conclusion_survives_for_an_observer_who_knows_nothing(n, delta, epsilon):
    proved = sgd1_mended_proof(n, 0.9, delta)
    assert proved.epsilon == pytest.approx(epsilon, abs=5e-5)
    assert proved.epsilon < 0.9
    assert proved.delta == pytest.approx(delta / n + delta / 2, rel=1e-6)


def test_the_written_proof_fails():
    """Equation (6): the claimed cost of a message, amplified, with the delta' that is needed."""
    delta = 1e-7
    step = sgd1_claimed_round(0.9, delta, 100)
    claimed = 2 * step.epsilon / 100  # the notes' linear amplification
    total = strong_composition(claimed, 0.0, steps=100**2, extra_delta=delta / 2)
    assert total.epsilon == pytest.approx(1.350, abs=2e-3)
    printed = delta ** (1 / 3)  # the notes' delta'
    assert printed == pytest.approx(4.64e-3, rel=1e-3)
    assert printed > delta


def test_uses_of_the_most_used_record():
    assert most_likely_count(100**2, 1 / 100, 1e-9) == 165
    assert most_likely_count(1000**2, 1 / 1000, 1e-9) == 1195


# epsilon, delta, rounds; the notes' target and noise, its composition twice; mended target and noise; tight noise
SGD2 = [
    (
        1.0,
        1e-5,
        100,
        0.0294718334,
        387.95408898,
        1.50107246,
        1.45763987,
        0.0198410076,
        588.36186662,
        74.6126326963,
    ),
    (
        0.5,
        1e-6,
        100,
        0.0134519900,
        907.87479558,
        0.72520238,
        0.71615445,
        0.0092033763,
        1351.42528931,
        161.1523696145,
    ),
    (
        0.9,
        1e-5,
        1000,
        0.0083878308,
        1456.00488228,
        1.34314791,
        1.30796985,
        0.0056577886,
        2198.32807178,
        259.7257276583,
    ),
]


@pytest.mark.parametrize("row", SGD2)
def test_sgd2_targets_and_noise(row):
    epsilon, delta, rounds, target, noise, strong, tanh, mended, mended_noise, tight = row
    each = sgd2_round(epsilon, delta, rounds)
    assert each.epsilon == pytest.approx(target, rel=1e-8)
    assert sgd2_noise_std(1.0, epsilon, delta, rounds) == pytest.approx(noise, rel=1e-9)
    composed = strong_composition(*each, steps=rounds, extra_delta=delta)
    assert composed.epsilon == pytest.approx(strong, rel=1e-8)
    assert composed.delta == pytest.approx(2 * delta, rel=1e-4)  # the notes' target does not compose
    assert advanced_composition(*each, steps=rounds, extra_delta=delta).epsilon == pytest.approx(
        tanh, rel=1e-8
    )
    assert sgd2_mended_round(epsilon, delta, rounds).epsilon == pytest.approx(mended, rel=1e-8)
    assert sgd2_noise_std(1.0, epsilon, delta, rounds, mended=True) == pytest.approx(mended_noise, rel=1e-9)
    assert 2 * math.sqrt(rounds) / gaussian_mu(epsilon, delta) == pytest.approx(tight, rel=1e-9)


@pytest.mark.parametrize("row", SGD2)
def test_the_mended_target_composes(row):
    epsilon, delta, rounds, *_ = row
    proved = advanced_composition(*sgd2_mended_round(epsilon, delta, rounds), rounds, extra_delta=delta / 2)
    assert epsilon * (1 - 1e-10) < proved.epsilon <= epsilon
    assert proved.delta <= delta
    closed_form = epsilon / (2 * math.sqrt(2 * rounds * math.log(2 / delta)))
    assert closed_form < sgd2_mended_round(epsilon, delta, rounds).epsilon


def test_the_printed_risk_of_sgd2():
    assert sgd2_risk_as_printed(1000, 1.0, 5, 60.0, 10, 0.1, 100) == pytest.approx(40144.0)


def test_noise_of_an_arrangement():
    parties = {"a": 60, "b": 40}
    budget = Budget(0.9, 1e-7, "replace-one")
    sgd1, sgd2 = Arrangement("sgd1", parties), Arrangement("sgd2", parties, rounds=100)
    assert notes_noise(sgd1, budget) * 100 == pytest.approx(11356.25759)
    assert notes_noise(sgd2, Budget(1.0, 1e-5, "replace-one")) == pytest.approx(387.95408898)
    with pytest.raises(InvalidParameter, match="replace-one"):
        notes_noise(sgd2, Budget(1.0, 1e-5))
    with pytest.raises(InvalidParameter, match="plain sums"):
        notes_noise(Arrangement("sgd2", parties, rounds=9, aggregation="secure"), budget)


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: sgd1_noise_std(100, bad, 0.9, 1e-7),
        lambda bad: sgd1_noise_std(100, 1.0, bad, 1e-7),
        lambda bad: sgd1_noise_std(100, 1.0, 0.9, bad),
        lambda bad: sgd1_noise_std(bad, 1.0, 0.9, 1e-7),
        lambda bad: bassily_noise_std(100, 1.0, bad, 1e-7),
        lambda bad: sgd2_round(bad, 1e-5, 100),
        lambda bad: sgd2_mended_round(1.0, bad, 100),
        lambda bad: sgd2_noise_std(bad, 1.0, 1e-5, 100),
        lambda bad: convex_step_size(bad, 1.0, 1),
        lambda bad: convex_step_size(1.0, bad, 1),
        lambda bad: strongly_convex_step_size(bad, 10, 1),
        lambda bad: weighted_step_size(0.1, 10, bad),
        lambda bad: sgd2_risk_as_printed(10, 1.0, 5, bad, 2, 0.1, 10),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, True, "1"])
def test_nonsense_is_refused(call, bad):
    with pytest.raises(InvalidParameter):
        call(bad)


def test_the_notes_limits_are_kept():
    with pytest.raises(InvalidParameter, match="epsilon below 1"):
        sgd1_noise_std(100, 1.0, 1.5, 1e-7)
    with pytest.raises(InvalidParameter, match=r"records\^3"):
        sgd1_noise_std(100, 1.0, 0.9, 1e-6)
    with pytest.raises(InvalidParameter, match="in a round"):
        sgd2_noise_std(1.0, 8.0, 1e-5, 1)
