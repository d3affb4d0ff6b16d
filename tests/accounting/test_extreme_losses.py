"""Losses beyond the range of e^loss once certified an epsilon of 0. They must give a sound bound or a sentence."""

import pytest

from discreet import Budget, FixedSizeSampled, Gaussian, Laplace, PoissonSampled, account
from discreet.accounting.gaussian import gaussian_epsilon

FLOODED = [
    # (event, neighbours, group size, delta, an epsilon that is surely too small)
    (
        PoissonSampled(0.5, Gaussian(1.0)) * 10 + Gaussian(0.03),
        "add-remove",
        1,
        1e-5,
        gaussian_epsilon(1e-5, 33.3),
    ),
    (FixedSizeSampled(10, 100, Gaussian(0.06)) * 10, "replace-one", 1, 1e-5, 500.0),
    (PoissonSampled(0.01, Gaussian(0.3)) * 100, "add-remove", 50, 1e-5, 500.0),
    (Laplace(1 / 800) * 3, "add-remove", 1, 0.3, 800.0),
    (PoissonSampled(0.1, Gaussian(1.0)) * 10 + Laplace(1 / 800), "add-remove", 1, 1e-5, 799.0),
    (PoissonSampled(0.5, Gaussian(0.03)), "add-remove", 1, 1e-6, 500.0),
    (PoissonSampled(0.5, Gaussian(0.026)) * 2, "add-remove", 1, 1e-5, 500.0),
    (PoissonSampled(0.01, Gaussian(1e-6)) * 100, "add-remove", 1, 1e-5, 4e11),  # once a MemoryError
]


@pytest.mark.parametrize(("event", "neighbours", "group_size", "delta", "too_small"), FLOODED)
def test_no_small_epsilon_is_certified(event, neighbours, group_size, delta, too_small):
    curve = account(event, neighbours, group_size)
    lower, upper = curve.epsilon_bounds(delta)
    assert upper > too_small
    assert lower <= upper
    assert not (lower == upper == 0)


def test_such_an_event_never_fits_a_small_budget():
    curve = account(PoissonSampled(0.5, Gaussian(1.0)) * 10 + Gaussian(0.03))
    assert not curve.guarantee(1e-5).within(Budget(0.01, 1e-5))


def test_an_underflowing_density_does_not_lift_the_lower_bound():
    """Exact, 60 digits: delta(708.575) = 8.73e-7 < 1e-6 for this release, so no lower bound may reach it."""
    lower, upper = account(PoissonSampled(0.5, Gaussian(0.03))).epsilon_bounds(1e-6)
    assert lower < 708.5 < upper < float("inf")
