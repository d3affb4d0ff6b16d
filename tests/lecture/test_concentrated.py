"""Zero-concentrated privacy: published values, both conversions, and round trips."""

import itertools

import pytest

from discreet.accounting.gaussian import gaussian_epsilon
from discreet.lecture.moments import simple_zcdp_epsilon, simple_zcdp_rho, zcdp_epsilon, zcdp_rho
from support.refusals import accepted_nonsense


@pytest.mark.parametrize(
    ("rho", "simple", "exact"),  # at delta 1e-5: Bun and Steinke (2016), and the Gaussian's exact curve
    [(0.01, 0.68861404, 0.49697536), (0.1, 2.24596603, 1.76005715), (0.5, 5.29852591, 4.37717810)],
)
def test_table(rho, simple, exact):
    assert simple_zcdp_epsilon(rho, 1e-5) == pytest.approx(simple, rel=1e-8)
    assert gaussian_epsilon(1e-5, (2 * rho) ** 0.5) == pytest.approx(exact, rel=2e-8)
    assert exact < zcdp_epsilon(rho, 1e-5) < simple


@pytest.mark.parametrize(
    ("epsilon", "delta", "deviation"),
    [(0.1, 1e-5, 0.96178465), (0.5, 1e-6, 0.21214636), (1, 1e-5, 0.09801110), (8, 1e-5, 0.01380699)],
)
def test_noise_of_gradient_descent(epsilon, delta, deviation):
    """100 steps on the mean of 1000 records, clip norm 1, replace-one, simple conversion."""
    rho = simple_zcdp_rho(epsilon, delta) / 100
    assert 2 / 1000 / (2 * rho) ** 0.5 == pytest.approx(deviation, rel=4e-7)


def test_round_trips_stay_within_the_budget():
    for epsilon, delta in itertools.product((1e-6, 0.1, 1.0, 30.0, 1e6), (1e-50, 1e-5, 0.1)):
        simple, best = simple_zcdp_rho(epsilon, delta), zcdp_rho(epsilon, delta)
        assert simple <= best
        assert simple_zcdp_epsilon(simple, delta) <= epsilon
        assert simple_zcdp_epsilon(simple, delta) == pytest.approx(epsilon, rel=1e-12)
        assert zcdp_epsilon(best, delta) <= epsilon
        assert zcdp_epsilon(best * (1 + 1e-6), delta) > epsilon
        assert gaussian_epsilon(delta, (2 * best) ** 0.5) <= epsilon


@pytest.mark.parametrize("function", [zcdp_epsilon, simple_zcdp_epsilon, zcdp_rho, simple_zcdp_rho])
def test_nonsense_is_refused(function):
    first = "rho" if function.__name__.endswith("epsilon") else "epsilon"
    outside = {first: (0.0, -1.0), "delta": (0.0, 1.0)}
    assert list(accepted_nonsense(function, {first: 0.5, "delta": 1e-5}, outside)) == []
