"""Membership attacks: inside the certified region when private, outside when not, and the lectures' toy example."""

import json

import numpy as np
import pytest
from scipy import stats

from discreet.accounting.curve import account
from discreet.accounting.noise_formulas import gaussian_power
from discreet.audit.membership import membership
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.events import Gaussian
from discreet.lecture.figures.measured import STEPS, toy_leakage

CURVE = account(Gaussian(1.0))


def attack(separation, size=3000, seed=0, **options):
    rng = np.random.default_rng(seed)
    return membership(rng.normal(separation, 1, size), rng.normal(0, 1, size), CURVE, **options)


def test_the_best_attack_on_a_gaussian_release_comes_close_to_the_claim_and_stays_below():
    result = attack(1.0, 20_000)
    assert 0.85 * result.claimed < result.lower < result.claimed
    assert not result.contradicts
    assert result.advantage == pytest.approx(2 * stats.norm.cdf(0.5) - 1, abs=0.02)


def test_the_curves_for_the_figure():
    result = attack(1.0)
    exact = np.array([gaussian_power(float(rate), 1.0) for rate in result.alarms])
    assert np.all(result.hits_low <= exact)
    assert np.all(exact <= result.hits_high)
    assert np.all(result.hits_low <= result.hits)
    assert np.all(result.hits <= result.hits_high)
    assert result.most_hits == pytest.approx(exact, abs=1e-9)
    assert result.hits[0] < 0.02
    assert result.hits[-1] == 1.0
    assert len(json.loads(json.dumps(result.to_dict()))["alarms"]) == len(result.alarms)


@pytest.mark.parametrize("separation", [1.3, 5.0, 100.0])
def test_an_attack_that_is_too_good_contradicts(separation):
    result = attack(separation)
    assert result.contradicts
    assert result.lower > result.claimed
    assert "CONTRADICTED" in str(result)


def test_false_alarms_are_as_rare_as_stated():
    """40 attacks on exactly what is claimed, at 90 %: more than 12 contradictions have probability 1e-4; seeded."""
    assert sum(attack(1.0, 300, seed, confidence=0.9).contradicts for seed in range(40)) <= 12


def test_a_useless_attack_shows_nothing():
    result = attack(0.0)
    assert not result.contradicts
    assert result.lower < 0.6
    assert result.accuracy < 0.55


def test_scores_without_any_difference():
    result = membership(np.zeros(10), np.zeros(10), CURVE)
    assert result.advantage == 0
    assert not result.contradicts


def test_the_toy_example_leaks_without_noise_and_is_bounded_with_it():
    stream = RandomStream(unsafe_seed=0)
    plain = toy_leakage(runs=1000, noise_multiplier=None, stream=stream)
    assert plain.accuracy == 1.0
    assert plain.contradicts
    private = toy_leakage(runs=4000, noise_multiplier=4.0, stream=stream)
    assert not private.contradicts
    assert private.claimed == pytest.approx(account(Gaussian(4.0) * STEPS).epsilon(1e-5))
    assert np.all(private.hits_low <= private.most_hits)
    assert 0.1 < private.advantage < account(Gaussian(4.0) * STEPS).advantage() + 0.03


def test_the_toy_example_with_too_little_noise_is_caught():
    from discreet.lecture.figures.measured import answers

    stream = RandomStream(unsafe_seed=1)
    with_bob, without = (answers(bob, 4000, Gaussian(2.0), stream) for bob in (True, False))
    assert membership(with_bob, without, account(Gaussian(8.0) * STEPS)).contradicts


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scores_in", {"scores_in": [1, 2]}),
        ("scores_out", {"scores_out": [1, 2, 3, np.nan]}),
        ("curve", {"curve": 3.0}),
        ("delta", {"delta": float("nan")}),
        ("confidence", {"confidence": float("nan")}),
    ],
)
def test_nonsense_is_refused(name, change):
    settings = {"scores_in": np.arange(9.0), "scores_out": np.arange(9.0), "curve": CURVE} | change
    with pytest.raises(InvalidParameter, match=name):
        membership(**settings)
