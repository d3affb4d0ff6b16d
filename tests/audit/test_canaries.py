"""Canary vectors, and scores against densities written out by hand."""

import numpy as np
import pytest
from scipy import stats

from discreet.audit.canaries import dirac, log_ratio, of_sum, simulate, step_of
from discreet.core.randomness import RandomStream
from discreet.errors import UnsupportedEvent
from discreet.events import (
    ApproximateDP,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)

SEEN = np.random.default_rng(0).normal(size=(6, 50)) * 2


def density(step, shift):
    """The density of one whole event, for a canary of size ``shift``; rows are releases, columns are canaries."""
    noise = step.of if hasattr(step, "of") else step
    law = (
        stats.norm(scale=noise.noise_multiplier)
        if isinstance(noise, Gaussian)
        else stats.laplace(scale=noise.scale)
    )

    def of(seen):
        if isinstance(step, PoissonSampled):
            return (1 - step.rate) * law.pdf(seen) + step.rate * law.pdf(seen - shift)
        if isinstance(step, RandomlyAllocated):
            found = []
            for start in range(0, len(seen), step.steps):
                epoch = seen[start : start + step.steps]
                places = [
                    epoch - shift * (np.arange(step.steps) == place)[:, None] for place in range(step.steps)
                ]
                found.append(np.mean([law.pdf(place).prod(axis=0) for place in places], axis=0))
            return np.array(found)
        return law.pdf(seen - shift)

    return of


STEPS = [
    Gaussian(1.5),
    Laplace(1.2),
    PoissonSampled(0.3, Gaussian(1.1)),
    PoissonSampled(0.3, Laplace(1.1)),
    RandomlyAllocated(3, Gaussian(1.3)),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.kind)
def test_scores_are_log_likelihood_ratios(step):
    with_canary, nothing = density(step, 1.0)(SEEN), density(step, 0.0)(SEEN)
    expected = np.log(with_canary / nothing).sum(axis=0)
    np.testing.assert_allclose(log_ratio(SEEN, step, "add-remove"), expected, rtol=1e-9, atol=1e-12)
    other = density(step, -1.0)(SEEN)
    expected = np.log(with_canary / other).sum(axis=0)
    np.testing.assert_allclose(log_ratio(SEEN, step, "replace-one"), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.kind)
def test_scores_of_the_claim_are_calibrated(step):
    """Half of the canaries are used, so the chances that their scores stand for average to one half.

    The seed is fixed; five standard errors would fail once in a million seeds.
    """
    scores = simulate(step, 6, "add-remove", RandomStream(unsafe_seed=3))
    chances = 1 / (1 + np.exp(-scores))
    assert abs(np.mean(chances) - 0.5) < 5 * np.std(chances) / np.sqrt(scores.size)
    assert np.std(chances) > 0.02


def test_the_calibration_catches_a_wrong_score():
    scores = simulate(Gaussian(2.0), 6, "add-remove", RandomStream(unsafe_seed=3)) - 0.2
    chances = 1 / (1 + np.exp(-scores))
    assert abs(np.mean(chances) - 0.5) > 5 * np.std(chances) / np.sqrt(scores.size)


def test_a_sum_of_gaussian_steps_orders_canaries_alike():
    step = Gaussian(2.0)
    every, total = log_ratio(SEEN, step, "add-remove"), of_sum(SEEN.sum(axis=0), step, 6, "add-remove")
    np.testing.assert_allclose(every, total / step.noise_multiplier**2)
    every, total = log_ratio(SEEN, step, "replace-one"), of_sum(SEEN.sum(axis=0), step, 6, "replace-one")
    np.testing.assert_allclose(every, 2 * total / step.noise_multiplier**2, atol=1e-12)


def test_what_is_not_a_number_tells_nothing():
    assert log_ratio(np.array([[np.nan, 1.0]]), Gaussian(1.0), "add-remove")[0] == 0


def test_canaries_have_a_coordinate_each():
    used = np.array([True, False, True])
    np.testing.assert_array_equal(dirac(used, 5.0, "add-remove"), [[5, 0, 0], [0, 0, 5]])
    np.testing.assert_array_equal(dirac(used, 5.0, "replace-one"), np.diag([5.0, -5.0, 5.0]))


def test_only_one_kind_of_step_can_be_scored():
    assert step_of(Gaussian(1.0) * 7) == (Gaussian(1.0), 7)
    for event in (
        Gaussian(1.0) + Gaussian(2.0),
        ApproximateDP(1.0),
        FixedSizeSampled(10, 100, Gaussian(1.0)) * 3,
    ):
        with pytest.raises(UnsupportedEvent, match="one kind of step"):
            step_of(event)
