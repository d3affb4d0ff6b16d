"""The calibrated parameter is within the budget by the same certificate the user sees, and hardly better exists."""

import math

import numpy as np
import pytest

from discreet import (
    ApproximateDP,
    Budget,
    BudgetExceeded,
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
    account,
    calibrate,
)
from discreet.accounting.noise_formulas import analytic_gaussian_noise

# Reference noise: contour integral, three settings agreeing to 1e-8.
POISSON = [
    (0.004, 5_000, Budget(3.0, 1e-5), 0.74976461),
    (16_384 / 50_000, 875, Budget(8.0, 1e-5), 5.8817128),
    (0.002, 20_000, Budget(1.0, 1e-8), 1.6142953),
]


def within(event, budget):
    return account(event, budget.neighbours, budget.group_size).guarantee(budget.delta).within(budget)


@pytest.mark.parametrize(("rate", "steps", "budget", "reference"), POISSON)
def test_noise_is_safe_and_close_to_the_reference(rate, steps, budget, reference):
    noise = calibrate(lambda z: PoissonSampled(rate, Gaussian(z)) * steps, budget)
    assert within(PoissonSampled(rate, Gaussian(noise)) * steps, budget)
    assert 0 <= noise / reference - 1 <= 5e-4


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (8.0, 1e-5), (0.5, 0.25)])
def test_a_single_gaussian_agrees_with_the_closed_form(epsilon, delta):
    noise = calibrate(Gaussian, Budget(epsilon, delta))
    assert 0 <= noise / analytic_gaussian_noise(epsilon, delta) - 1 <= 1e-4


def test_pure_budgets_give_laplace_noise():
    scale = calibrate(lambda b: Laplace(b) * 10, Budget(1.0, 0.0), parameter="scale")
    assert 10 <= scale <= 10.01
    assert within(Laplace(scale) * 10, Budget(1.0, 0.0))


@pytest.mark.parametrize("steps_per", [PoissonSampled(0.01, Gaussian(4.0)), Gaussian(30.0), Laplace(50.0)])
def test_steps_are_the_last_that_fit(steps_per):
    budget = Budget(1.0, 1e-5)
    steps = calibrate(lambda n: steps_per * n, budget, parameter="steps")
    assert isinstance(steps, int)
    assert within(steps_per * steps, budget)
    assert not within(steps_per * (steps + 1), budget)


def test_rate_is_safe_and_nearly_the_largest():
    budget = Budget(1.0, 1e-5)
    rate = calibrate(lambda q: PoissonSampled(q, Gaussian(1.0)) * 1000, budget, parameter="rate")
    assert within(PoissonSampled(rate, Gaussian(1.0)) * 1000, budget)
    assert not within(PoissonSampled(rate * 1.002, Gaussian(1.0)) * 1000, budget)


def test_a_rate_of_one_is_found_when_everything_fits():
    assert (
        calibrate(lambda q: PoissonSampled(q, Gaussian(100.0)) * 10, Budget(1.0, 1e-5), parameter="rate")
        == 1.0
    )


@pytest.mark.parametrize(
    ("family", "budget"),
    [
        (lambda z: FixedSizeSampled(600, 60_000, Gaussian(z)) * 1000, Budget(1.0, 1e-5, "replace-one")),
        (lambda z: PoissonSampled(0.01, Gaussian(z)) * 100, Budget(2.0, 1e-6, "replace-one")),
        (lambda z: PoissonSampled(0.01, Gaussian(z)) * 100, Budget(2.0, 1e-6, group_size=3)),
        (lambda z: RandomlyAllocated(100, Gaussian(z)) * 5, Budget(2.0, 1e-6)),
        (
            lambda z: PoissonSampled(0.01, Gaussian(z)) * 100 + Laplace(10.0) + Gaussian(9.0),
            Budget(2.0, 1e-6),
        ),
        (lambda z: Gaussian(z) * 3 + ApproximateDP(0.5, 1e-7), Budget(2.0, 1e-6)),
    ],
)
def test_every_kind_of_event_can_be_calibrated(family, budget):
    noise = calibrate(family, budget)
    assert within(family(noise), budget)
    assert not within(family(noise * 0.998), budget)


def test_what_cannot_fit_is_refused_with_the_remedy():
    with pytest.raises(BudgetExceeded, match="raise the budget"):
        calibrate(lambda z: Gaussian(z) + ApproximateDP(2.0, 0.0), Budget(1.0, 1e-5))
    with pytest.raises(BudgetExceeded):
        calibrate(lambda n: Gaussian(0.1) * n, Budget(1.0, 1e-5), parameter="steps")
    with pytest.raises(BudgetExceeded):
        calibrate(lambda z: Gaussian(z), Budget(1.0, 0.0))


@pytest.mark.parametrize("budget", [1.0, None, "1", (1.0, 1e-5)])
def test_only_budgets_are_budgets(budget):
    with pytest.raises(InvalidParameter, match="budget"):
        calibrate(Gaussian, budget)


@pytest.mark.parametrize("parameter", ["sigma", "", None, 1, "STEPS"])
def test_unknown_parameters_are_named(parameter):
    with pytest.raises(InvalidParameter, match="parameter"):
        calibrate(Gaussian, Budget(1.0, 1e-5), parameter=parameter)


def test_a_family_that_is_no_event_is_named():
    with pytest.raises(InvalidParameter, match="event"):
        calibrate(lambda z: z, Budget(1.0, 1e-5))


def test_noise_falls_as_the_budget_grows():
    noises = [
        calibrate(lambda z: PoissonSampled(0.01, Gaussian(z)) * 500, Budget(e, 1e-5)) for e in (0.3, 1, 3, 30)
    ]
    assert all(np.diff(noises) < 0)
    assert all(math.isfinite(noise) for noise in noises)


def test_large_budgets_are_met_without_a_crash():
    budget = Budget(200.0, 1e-5)
    noise = calibrate(lambda z: PoissonSampled(0.01, Gaussian(z)) * 1000, budget)
    assert within(PoissonSampled(0.01, Gaussian(noise)) * 1000, budget)
    assert noise < 0.22


def test_where_the_estimate_is_far_off_the_certificate_decides():
    """The saddle-point estimate is 30 % too large here."""
    family, budget = (lambda z: PoissonSampled(0.005, Gaussian(z)) * 200), Budget(1.0, 1e-6)
    assert 1 - 3e-4 < account(family(calibrate(family, budget))).epsilon(1e-6) <= 1


@pytest.mark.parametrize("epsilon", [pytest.param(1000.0, marks=pytest.mark.slow), 2000.0])
def test_budgets_beyond_what_can_be_certified_get_little_noise(epsilon):
    """Not a noise of 1e8, which would be within the budget too."""
    noise = calibrate(lambda z: PoissonSampled(0.01, Gaussian(z)) * 100, Budget(epsilon, 1e-6))
    assert noise < 0.2


def test_the_attacker_can_be_the_limit():
    def family(noise):
        return PoissonSampled(0.01, Gaussian(noise)) * 1000

    noise = calibrate(family, advantage=0.1)
    assert 0.0998 < account(family(noise)).advantage() <= 0.1
    noise = calibrate(family, power=(0.01, 0.03))
    assert 0.0299 < account(family(noise)).power(0.01) <= 0.03
    steps = calibrate(lambda n: Gaussian(40.0) * n, parameter="steps", advantage=0.1)
    assert type(steps) is int
    assert (
        account(Gaussian(40.0) * steps).advantage() <= 0.1 < account(Gaussian(40.0) * (steps + 1)).advantage()
    )
    few = calibrate(lambda n: Gaussian(5.0) * n, parameter="steps", power=(0.01, 0.2))
    most = calibrate(lambda n: Gaussian(1e7) * n, parameter="steps", power=(0.01, 0.9))
    assert (type(few), type(most)) == (int, int)
    both = calibrate(Gaussian, advantage=0.1, neighbours="replace-one")
    assert both == pytest.approx(2 * calibrate(Gaussian, advantage=0.1), rel=1e-3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "exactly one"),
        ({"advantage": 0.1, "power": (0.01, 0.1)}, "exactly one"),
        ({"advantage": math.nan}, "advantage"),
        ({"advantage": 1.5}, "advantage"),
        ({"power": 0.1}, "power"),
        ({"power": (0.1, 0.05)}, "guessing"),
        ({"power": (math.nan, 0.05)}, "power"),
    ],
)
def test_limits_that_mean_nothing(words, says):
    with pytest.raises(InvalidParameter, match=says):
        calibrate(Gaussian, **words)
