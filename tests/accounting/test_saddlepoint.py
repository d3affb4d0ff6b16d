"""The estimates that steer the search: close where they must be, and harmless everywhere."""

import numpy as np
import pytest

from discreet.accounting.gaussian import gaussian_delta, gaussian_epsilon
from discreet.accounting.pairs import DiscretePair, GaussianPair, LaplacePair, Reversed, Sampled
from discreet.accounting.saddlepoint import SaddlepointEstimate
from discreet.accounting.sampled_pairs import GroupPair
from support import accounting_reference as ref


def test_moments_of_a_gaussian_loss():
    """The loss is N(mu^2/2, mu^2) under P, so K(t) = t (t + 1) mu^2 / 2."""
    estimate = SaddlepointEstimate([(GaussianPair(0.5), 8)], -60.0)
    for tilt in (0.0, 0.5, 3.0):
        value, mean, variance = estimate.moments(tilt)
        assert value == pytest.approx(tilt * (tilt + 1), abs=2e-3 * (1 + tilt**2))
        assert mean == pytest.approx(2 * tilt + 1, rel=2e-3)
        assert variance == pytest.approx(2.0, rel=2e-3)


def test_moments_against_the_densities():
    estimate = SaddlepointEstimate([(Sampled(GaussianPair(1.0), 0.02), 500)], -60.0)
    composition = ref.Composition([(ref.sampled_gaussian(1.0, 0.02, tail=1e-26), 500)])
    for tilt in (0.5, 2.0, 6.0):
        assert estimate.moments(tilt).value == pytest.approx(
            float(composition.log_moment(np.array([tilt]))[0]), rel=0.01
        )


@pytest.mark.parametrize(("mu", "steps"), [(0.05, 400), (0.3, 30), (1.0, 1)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-30])
def test_aim_at_delta_is_close_for_gaussians(mu, steps, delta):
    estimate = SaddlepointEstimate([(GaussianPair(mu), steps)], np.log(delta) - 20)
    target = estimate.target_at_delta(np.log(delta))
    assert target.epsilon == pytest.approx(gaussian_epsilon(delta, mu * steps**0.5), rel=0.02)
    assert target.tilt > 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_aim_at_epsilon_is_close_for_gaussians(epsilon):
    target = SaddlepointEstimate([(GaussianPair(0.1), 100)], -80.0).target_at_epsilon(epsilon)
    assert target.log_delta == pytest.approx(np.log(gaussian_delta(epsilon, 1.0)), abs=0.2)


def test_the_window_holds_the_law():
    """All but e^-30 of the law: for N(50, 100) that is more than 7.5 and less than 9 standard deviations."""
    (low, high), slopes = SaddlepointEstimate([(GaussianPair(1.0), 100)], -80.0).chernoff(0.0, -30.0, 0.01)
    assert 50 - 90 < low < 50 - 70
    assert 50 + 70 < high < 50 + 90
    assert min(slopes) > 0


EXTREME = [
    (Sampled(GaussianPair(5.0), 1e-6), 10**9),
    (Sampled(GaussianPair(1e-4), 1e-6), 1),
    (Reversed(Sampled(GaussianPair(3.0), 0.999)), 7),
    (LaplacePair(100.0), 10),
    (LaplacePair(1e-6), 10**9),
    (GroupPair(0.5, 1e-4, 3, 3), 1000),
    (DiscretePair.randomised_response(40.0), 3),
    (DiscretePair.randomised_response(1e-9), 10**6),
]


@pytest.mark.parametrize(("pair", "count"), EXTREME)
def test_estimates_never_fail(pair, count):
    """No warning, no exception, only finite numbers; whether they are good is checked by the lattice."""
    for log_delta in (-0.1, -10.0, -300.0):
        estimate = SaddlepointEstimate([(pair, count)], log_delta - 14 - np.log(count))
        target = estimate.target_at_delta(log_delta)
        assert np.isfinite([target.tilt, target.epsilon]).all()
        assert target.tilt >= 0
        assert target.epsilon >= 0
        (low, high), _ = estimate.chernoff(target.tilt, -30.0, 1e-3)
        assert low < high
    target = SaddlepointEstimate([(pair, count)], -30.0).target_at_epsilon(1.0)
    assert np.isfinite([target.tilt, target.log_delta]).all()
    assert target.log_delta <= 0
