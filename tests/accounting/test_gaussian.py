"""The closed form against 50-digit arithmetic, published values, and the laws that it must obey."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri

from discreet.accounting.gaussian import (
    ALLOWANCE,
    gaussian_delta,
    gaussian_delta_bounds,
    gaussian_epsilon,
    gaussian_epsilon_bounds,
    gaussian_mu,
)
from discreet.accounting.noise_formulas import analytic_gaussian_noise, classic_gaussian_noise, gaussian_power
from discreet.errors import InvalidParameter
from support.refusals import accepted_nonsense, lenient

# epsilon, delta, analytic and classic noise multiplier (Balle and Wang 2018; Dwork and Roth 2014), computed
# by bisection in 40 digits and equal to the analytic routine of dp-accounting 0.6.0 to ten digits.
NOISE = [
    (0.1, 1e-5, 30.7495661320, 48.4480526261),
    (0.25, 1e-8, 19.1253763555, 24.4254452866),
    (0.5, 1e-5, 7.0318266756, 9.6896105252),
    (0.5, 0.25, 0.9717923066, 3.5882451560),
    (1.0, 1e-3, 2.5746570186, 3.7764795327),
    (1.0, 1e-5, 3.7306316348, 4.8448052626),
    (1.0, 1e-6, 4.2246788893, 5.2988025269),
    (1.0, 0.1, 1.0858777652, 2.2475447245),
    (2.0, 1e-5, 1.9938124456, 2.4224026313),
    (3.0, 1e-5, 1.3905934567, 1.6149350875),
    (4.0, 1e-5, 1.0811618495, 1.2112013157),
    (8.0, 1e-5, 0.6002290722, 0.6056006578),
    (10.0, 1e-5, 0.4998886197, 0.4844805263),
]

# delta, then the largest epsilon at which noise c(delta) / epsilon is really (epsilon, delta)-DP, for
# c = sqrt(2 ln(1.25/delta)), 2 sqrt(ln(2/delta)), ln(2/delta), sqrt(2 ln(1/delta)), sqrt(ln(1/delta)).
LARGEST_EPSILON = [
    (1e-3, 7.463474, 28.39852, 69.99092, 6.978042, 1.135776),
    (1e-5, 8.419771, 39.870827, 195.213333, 7.968085, 0.3244),
    (1e-6, 8.782092, 45.517068, 284.395411, 8.339389, 0.143256),
    (1e-8, 9.374337, 56.708266, 517.426088, 8.943178, 0.022529),
    (1e-10, 9.849874, 67.812051, 824.665229, 9.425781, 0.003101),
]
FORMULAS = [
    lambda d: math.sqrt(2 * math.log(1.25 / d)),
    lambda d: 2 * math.sqrt(math.log(2 / d)),
    lambda d: math.log(2 / d),
    lambda d: math.sqrt(2 * math.log(1 / d)),
    lambda d: math.sqrt(math.log(1 / d)),
]


def exact(epsilon, mu):
    """(delta, 1 - delta) of the textbook formula, with enough digits to survive its cancellation."""
    digits = 60 + 2 * max(0, round(-math.log10(mu))) + 2 * max(0, round(math.log10(1 + epsilon / mu)))
    with mpmath.workdps(digits):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        far = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - far, mpmath.ncdf(epsilon / mu - mu / 2) + far


def log_odds_error(computed, epsilon, mu):
    delta, rest = exact(epsilon, mu)
    return float(abs(computed - delta) / min(delta, rest))


def curve_points(count, seed):
    """Random (delta, mu) over the whole range, half of the deltas close to 1 or moderate."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        tiny, large = 10 ** rng.uniform(-300, 0), 1 - 10 ** rng.uniform(-14, 0)
        yield (tiny if index % 2 else large), 10 ** rng.uniform(-8, 4), rng.uniform(0, 1)


CURVE = [(0, 1, 0.3829249225480), (1, 1, 0.1269367375066), (2, 1, 0.02092363582111), (4, 2, 0.08495331867107)]


@pytest.mark.parametrize(("epsilon", "mu", "delta"), [*CURVE, (1, 0.5, 0.006829594983115)])
def test_delta_of_closed_form(epsilon, mu, delta):
    assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-12)


@pytest.mark.parametrize(
    ("delta", "mu", "epsilon"),
    [
        (1e-5, 1, 4.377178095681),
        (1e-5, 0.5, 1.993091404415),
        (1e-6, 2, 10.99715121422),
        (1e-5, math.sqrt(0.02), 0.49697536),
        (1e-5, math.sqrt(0.2), 1.76005715),
    ],
)
def test_epsilon_of_closed_form(delta, mu, epsilon):
    assert gaussian_epsilon(delta, mu) == pytest.approx(epsilon, rel=2e-8)
    assert gaussian_delta(gaussian_epsilon(delta, mu), mu) == pytest.approx(delta, rel=1e-11)


@pytest.mark.parametrize(("group", "epsilon"), [(1, 1.0), (2, 2.15468), (5, 6.16694), (10, 14.42927)])
def test_epsilon_of_groups(group, epsilon):
    """A group of k records multiplies mu by k; k = 2 is also the price of replace-one neighbours."""
    assert gaussian_epsilon(1e-5, group * gaussian_mu(1.0, 1e-5)) == pytest.approx(epsilon, abs=6e-6)


def test_curve_and_its_bounds_against_fifty_digits():
    """400 points over the whole range: value to 1e-12, delta and epsilon enclosed."""
    for delta, mu, fraction in curve_points(400, seed=1):
        epsilon = gaussian_epsilon(delta, mu)
        for point in (epsilon, epsilon * fraction):
            true, _ = exact(point, mu)
            assert gaussian_delta(point, mu) == pytest.approx(float(true), rel=ALLOWANCE)
            lower, upper = gaussian_delta_bounds(point, mu)
            assert 0 <= lower <= true <= upper <= 1
            assert upper - lower <= 2.1 * ALLOWANCE * float(true) + 1e-320 or upper - lower < 1e-15
        lower, upper = gaussian_epsilon_bounds(delta, mu)
        assert 0 <= lower <= epsilon <= upper
        assert exact(upper, mu)[0] <= delta
        assert lower == 0 or exact(lower, mu)[0] >= delta
        assert upper - lower <= 1e-9 * upper


def test_bounds_of_epsilon_at_a_known_point():
    lower, upper = gaussian_epsilon_bounds(1e-5, 1.0)
    with mpmath.workdps(40):
        root = mpmath.findroot(lambda e: mpmath.log(exact(e, 1)[0]) - mpmath.log(mpmath.mpf(1e-5)), 4.377)
    assert lower < root < upper
    assert (upper - lower) / upper < 1e-12


def test_bounds_would_fail_without_the_allowance(monkeypatch):
    """The enclosure test has power: with no allowance the exact value falls outside."""
    monkeypatch.setattr("discreet.accounting.gaussian.ALLOWANCE", 0.0)
    escaped = 0
    for delta, mu, _ in curve_points(100, seed=2):
        epsilon = gaussian_epsilon(delta, mu)
        lower, upper = gaussian_delta_bounds(epsilon, mu)
        escaped += not lower <= exact(epsilon, mu)[0] <= upper
    assert escaped > 20


def test_mu_is_the_largest_that_satisfies_the_budget():
    rng = np.random.default_rng(3)
    for delta, _, _ in curve_points(200, seed=4):
        epsilon = 10 ** rng.uniform(-8, 7)
        mu = gaussian_mu(epsilon, delta)
        assert exact(epsilon, mu)[0] <= delta
        assert exact(epsilon, mu * (1 + 1e-11))[0] > delta


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(0.1, 0.03252078405620364), (1, 0.26805112321129376), (2, 0.5015516891696561), (8, 1.6660305978457182)],
)
def test_mu_of_known_budgets(epsilon, mu):
    assert gaussian_mu(epsilon, 1e-5) == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta", "analytic", "classic"), NOISE)
def test_noise_of_published_table(epsilon, delta, analytic, classic):
    assert analytic_gaussian_noise(epsilon, delta) == pytest.approx(analytic, rel=1e-9)
    if epsilon < 1:
        assert classic_gaussian_noise(epsilon, delta) == pytest.approx(classic, rel=1e-9)
    else:
        assert FORMULAS[0](delta) / epsilon == pytest.approx(classic, rel=1e-9)


def balle_wang_noise(epsilon, delta):
    """Algorithm 1 of Balle and Wang, by bisection in 30 digits: another parametrisation of the same noise."""
    with mpmath.workdps(30):
        epsilon, delta = mpmath.mpf(epsilon), mpmath.mpf(delta)
        root, far = (
            mpmath.sqrt(epsilon),
            lambda v: mpmath.exp(epsilon) * mpmath.ncdf(-mpmath.sqrt(epsilon * (v + 2))),
        )
        small = delta < mpmath.mpf(1) / 2 - far(0)
        sign = 1 if small else -1
        lower, upper = mpmath.mpf(0), mpmath.mpf(1e4)
        for _ in range(100):
            v = (lower + upper) / 2
            excess = mpmath.ncdf(-sign * root * mpmath.sqrt(v)) - far(v) > delta
            lower, upper = (v, upper) if excess == small else (lower, v)
        return (mpmath.sqrt(upper + 2) + sign * mpmath.sqrt(upper)) / (2 * root)


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 1e-5), (0.5, 0.25), (10, 1e-5), (0.01, 1e-12), (3, 0.6)])
def test_analytic_noise_against_balle_and_wang(epsilon, delta):
    assert analytic_gaussian_noise(epsilon, delta) == pytest.approx(
        float(balle_wang_noise(epsilon, delta)), rel=1e-12
    )


def test_analytic_noise_rounds_up():
    for epsilon, delta in ((1.0, 1e-5), (1e-3, 1e-9), (50.0, 1e-12), (0.0, 1e-6), (1e6, 1e-6)):
        noise = analytic_gaussian_noise(epsilon, delta)
        with mpmath.workdps(40):
            assert exact(epsilon, 1 / mpmath.mpf(noise))[0] <= delta


def test_classic_noise_is_safe_wherever_it_is_given():
    for epsilon in np.geomspace(1e-6, 1 - 1e-9, 25):
        for delta in (1e-300, 1e-12, 1e-5, 1e-2, 0.5, 0.9, 1 - 1e-9):
            assert classic_gaussian_noise(epsilon, delta) >= analytic_gaussian_noise(epsilon, delta)


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 10.0])
def test_classic_noise_refuses_large_epsilon(epsilon):
    with pytest.raises(InvalidParameter, match=r"analytic_gaussian_noise"):
        classic_gaussian_noise(epsilon, 1e-5)


@pytest.mark.parametrize("row", LARGEST_EPSILON)
def test_largest_epsilon_at_which_each_closed_form_is_true(row):
    """Why the classic formula is refused: beyond these epsilons it is no longer (epsilon, delta)-DP."""
    delta, *largest = row
    for formula, epsilon in zip(FORMULAS, largest, strict=True):
        tolerance = max(1e-6 * epsilon, 6e-7)
        assert gaussian_delta(epsilon - tolerance, (epsilon - tolerance) / formula(delta)) < delta
        assert gaussian_delta(epsilon + tolerance, (epsilon + tolerance) / formula(delta)) > delta


def test_curve_is_decreasing_and_mu_is_increasing():
    epsilons = [0, 1e-9, 1e-3, 0.1, 1, 3, 10, 100, 1e6]
    for mu in (1e-8, 1e-3, 0.3, 1, 5, 1e4):
        deltas = [gaussian_delta(epsilon, mu) for epsilon in epsilons]
        assert deltas == sorted(deltas, reverse=True)
    for delta in (1e-300, 1e-5, 0.5, 1 - 1e-12):
        mus = [gaussian_mu(epsilon, delta) for epsilon in epsilons]
        assert mus == sorted(mus)


def test_ends_of_the_range():
    assert gaussian_delta(0, 1e-8) == pytest.approx(1e-8 / math.sqrt(2 * math.pi), rel=1e-12)
    assert gaussian_delta(1e6, 1e-8) == 0
    assert gaussian_delta_bounds(1e300, 1e-300) == (0.0, math.ulp(0.0))
    assert gaussian_delta_bounds(0, 1e4) == (math.nextafter(1, 0), 1.0)
    assert gaussian_epsilon(0.5, 1.0) == 0
    assert gaussian_epsilon_bounds(0.5, 1.0) == (0.0, 0.0)
    assert gaussian_epsilon(1e-300, 1e4) == pytest.approx(5e7 + 1e4 * 37, rel=1e-3)
    assert gaussian_mu(0, 1e-300) == pytest.approx(math.sqrt(2 * math.pi) * 1e-300, rel=1e-11)


@pytest.mark.parametrize(
    (
        "epsilon",
        "powers",
    ),  # at false-alarm rates .001, .01, .1, for the Gaussian calibrated to (epsilon, 1e-5)
    [
        (0.1, (0.00111517, 0.01090022, 0.10582691)),
        (1.0, (0.00238491, 0.01978083, 0.15541059)),
        (2.0, (0.00481722, 0.03401590, 0.21769547)),
        (4.0, (0.01518231, 0.08054471, 0.36068790)),
        (8.0, (0.07719405, 0.25452512, 0.64968828)),
    ],
)
def test_power_of_published_table(epsilon, powers):
    mu = gaussian_mu(epsilon, 1e-5)
    for false_alarms, power in zip((0.001, 0.01, 0.1), powers, strict=True):
        assert gaussian_power(false_alarms, mu) == pytest.approx(power, abs=6e-9)


def test_power_is_rounded_up():
    """Against the normal distribution in 40 digits."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        false_alarms, mu = 10 ** rng.uniform(-300, 0), 10 ** rng.uniform(-3, 1.5)
        with mpmath.workdps(40):
            guess = float(ndtri(false_alarms))
            quantile = mpmath.findroot(lambda z, a=false_alarms: mpmath.log(mpmath.ncdf(z) / a), guess)
            exact = mpmath.ncdf(quantile + mpmath.mpf(mu))
        assert min(exact, 1) <= gaussian_power(false_alarms, mu) <= exact * (1 + 2e-12)


def test_power_is_the_curve_seen_by_an_attacker():
    """max over false alarms of (power - exp(epsilon) false alarms) is delta(epsilon)."""
    grid = np.linspace(0, 1, 20001)[1:-1]
    for epsilon, mu in ((0, 1.0), (1, 1.0), (2, 0.7)):
        best = max(gaussian_power(a, mu) - math.exp(epsilon) * a for a in grid)
        assert best == pytest.approx(gaussian_delta(epsilon, mu), rel=1e-3)
    assert gaussian_power(0, 1.0) == 0
    assert gaussian_power(1, 1.0) == 1


FUNCTIONS = [
    (gaussian_delta, {"epsilon": 1.0, "mu": 1.0}, {"epsilon": (-1e-9,), "mu": (0.0, -1.0)}),
    (gaussian_delta_bounds, {"epsilon": 1.0, "mu": 1.0}, {"epsilon": (-1e-9,), "mu": (0.0, -1.0)}),
    (gaussian_epsilon, {"delta": 1e-5, "mu": 1.0}, {"delta": (0.0, 1.0, -1e-5), "mu": (0.0, -1.0)}),
    (gaussian_epsilon_bounds, {"delta": 1e-5, "mu": 1.0}, {"delta": (0.0, 1.0, -1e-5), "mu": (0.0, -1.0)}),
    (gaussian_mu, {"epsilon": 1.0, "delta": 1e-5}, {"epsilon": (-1e-9,), "delta": (0.0, 1e-301, 1.0)}),
    (analytic_gaussian_noise, {"epsilon": 1.0, "delta": 1e-5}, {"epsilon": (-1e-9,), "delta": (0.0, 1.0)}),
    (classic_gaussian_noise, {"epsilon": 0.5, "delta": 1e-5}, {"epsilon": (0.0, 1.0), "delta": (0.0, 1.0)}),
    (gaussian_power, {"false_alarms": 0.1, "mu": 1.0}, {"false_alarms": (-1e-9, 1.1), "mu": (0.0, -1.0)}),
]


@pytest.mark.parametrize(("function", "good", "outside"), FUNCTIONS)
def test_nonsense_is_refused(function, good, outside):
    assert list(accepted_nonsense(function, good, outside)) == []


def test_the_check_for_nonsense_catches_a_lenient_function():
    found = list(accepted_nonsense(lenient, {"rate": 0.1, "steps": 3}, {"rate": (0.0,), "steps": (-1,)}))
    assert any("accepted steps=nan" in line for line in found)
