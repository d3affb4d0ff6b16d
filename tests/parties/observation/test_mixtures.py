"""Random numbers of repetitions: certified means of curves, against sums over every single count."""

import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import binom

from discreet import account
from discreet.errors import InvalidParameter
from discreet.events import FixedSizeSampled, Gaussian
from discreet.parties.observation.binomial import ALLOWANCE, brackets, chance_above, most_likely_count
from discreet.parties.observation.mixtures import MixtureCurve, RandomRepeats


def gaussian_delta(epsilon, mu):
    """The closed form, written down once more."""
    high, low = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return np.exp(high) * -np.expm1(low - high)


def mean_delta(epsilon, trials, chance, mu):
    """E delta_N over every count, with no bracket."""
    counts = np.arange(1, min(trials, int(trials * chance + 40 * math.sqrt(trials * chance) + 400)) + 1)
    return float(np.sum(binom.pmf(counts, trials, chance) * gaussian_delta(epsilon, np.sqrt(counts) * mu)))


GAUSSIAN = [
    (100**2, 1 / 100, 200 / 11356.25759, 1e-7),
    (1000**2, 1 / 1000, 0.01214100, 1e-10),
    (5, 0.5, 0.7, 1e-3),
    (40, 0.02, 2.0, 1e-5),
]


@pytest.mark.parametrize(("trials", "chance", "mu", "delta"), GAUSSIAN)
def test_gaussian_mixtures(trials, chance, mu, delta):
    exact = brentq(lambda epsilon: mean_delta(epsilon, trials, chance, mu) / delta - 1, 1e-6, 200, xtol=1e-13)
    curve = MixtureCurve(RandomRepeats(Gaussian(2 / mu), trials, chance), "replace-one")
    lower, upper = curve.epsilon_bounds(delta)
    assert lower <= exact * (1 + 1e-9)
    assert exact <= upper * (1 + 1e-9)
    assert upper - lower < 2e-3 * upper
    assert curve.epsilon(delta) == upper
    low, high = curve.delta_bounds(exact)
    assert low <= delta * (1 + 1e-9)
    assert delta <= high * (1 + 1e-9)
    assert high < 1.01 * low
    assert curve.delta(exact) == high


def test_coarse_bounds_hold_where_epsilon_means_nothing():
    """Above 100 sampled mixtures are bounded by two counts only; here where the exact value is known."""
    trials, chance, mu, delta = GAUSSIAN[0]
    exact = MixtureCurve(RandomRepeats(Gaussian(2 / mu), trials, chance), "replace-one")
    lower, upper = exact._coarse_bounds(delta)
    assert lower < exact.epsilon_bounds(delta).lower
    assert exact.epsilon_bounds(delta).upper < upper < 2 * lower
    absurd = RandomRepeats(FixedSizeSampled(1, 2, Gaussian(0.5)), 100, 0.5)
    lower, upper = MixtureCurve(absurd, "replace-one").epsilon_bounds(1e-6)
    assert 100 < lower < upper < 4 * lower


def test_the_mean_count_is_no_guarantee():
    """The broken twin: it puts the mean number of uses in place of the random one, and comes out too low."""
    repeats = RandomRepeats(Gaussian(2 / 0.01214100), 1000**2, 1 / 1000)
    naive = account(repeats.typical, "replace-one").epsilon(1e-10)
    assert naive == pytest.approx(2.342438, abs=1e-4)
    assert naive < MixtureCurve(repeats, "replace-one").epsilon_bounds(1e-10).lower


def test_sampled_mixtures_against_every_single_count():
    event, trials, chance, epsilon = FixedSizeSampled(1, 4, Gaussian(3.0)), 60, 0.9, 1.5
    curves = {count: account(event * count, "replace-one").delta_bounds(epsilon) for count in range(40, 61)}
    shares = {count: binom.pmf(count, trials, chance) for count in curves}
    lower = sum(shares[count] * bounds.lower for count, bounds in curves.items())
    upper = sum(shares[count] * bounds.upper for count, bounds in curves.items()) + 1e-7
    curve = MixtureCurve(RandomRepeats(event, trials, chance), "replace-one")
    low, high = curve.delta_bounds(epsilon)
    assert low <= upper
    assert lower <= high
    assert high < 1.2 * low
    bounds = curve.epsilon_bounds(upper)
    assert bounds.lower <= epsilon * 1.01
    assert epsilon <= bounds.upper * 1.01
    assert bounds.upper < 1.03 * bounds.lower


def test_a_cap_takes_away_the_tail():
    free = RandomRepeats(Gaussian(20.0), 1000, 0.1)
    capped = RandomRepeats(Gaussian(20.0), 1000, 0.1, most=100)
    bound = account(Gaussian(20.0) * 100, "replace-one").epsilon(1e-6)
    assert MixtureCurve(capped, "replace-one").epsilon(1e-6) <= bound
    assert bound < MixtureCurve(free, "replace-one").epsilon_bounds(1e-6).lower


def test_a_delta_that_covers_everything():
    curve = MixtureCurve(RandomRepeats(Gaussian(1e4), 10, 0.1), "replace-one")
    assert curve.epsilon_bounds(1e-3) == (0.0, 0.0)


def test_hardly_any_noise_has_a_finite_bound():
    curve = MixtureCurve(RandomRepeats(Gaussian(1e-3), 10**8, 0.5), "replace-one")
    bounds = curve.epsilon_bounds(1e-6)
    assert bounds.lower <= bounds.upper < math.inf


def test_the_guarantee_names_its_neighbours():
    guarantee = MixtureCurve(RandomRepeats(Gaussian(50.0), 100, 0.3), "add-remove").guarantee(1e-6)
    assert guarantee.neighbours == "add-remove"
    assert guarantee.delta == 1e-6


@pytest.mark.parametrize(("trials", "chance"), [(10**12, 1e-6), (10**6, 0.1), (10**4, 0.01), (7, 0.9)])
def test_brackets_hold_all_counts(trials, chance):
    ends, shares, beyond = brackets(trials, chance, 1e-12, 1e-3, 200)
    assert (np.diff(ends) > 0).all()
    assert (shares >= 0).all()
    assert shares.sum() + beyond == pytest.approx(1.0, abs=1e-9)
    assert beyond <= 1e-12
    assert chance_above(int(ends[-1]), trials, chance) <= 1e-12


@pytest.mark.parametrize(
    ("trials", "chance", "count"), [(10**4, 0.01, 165), (10**6, 1e-3, 1195), (10**12, 1e-6, 10**6 + 6000)]
)
def test_binomial_tails_are_as_good_as_they_are_taken_for(trials, chance, count):
    mpmath.mp.dps = 40
    p, q = mpmath.mpf(chance), 1 - mpmath.mpf(chance)
    first = mpmath.binomial(trials, count + 1) * p ** (count + 1) * q ** (trials - count - 1)
    total, term, k = mpmath.mpf(0), first, count + 1
    while term > total * mpmath.mpf(10) ** -15 or total == 0:
        total, term, k = total + term, term * (trials - k) / (k + 1) * p / q, k + 1
    error = float(chance_above(count, trials, chance) / (1 + ALLOWANCE) / total - 1)
    assert abs(error) < ALLOWANCE / 10


def test_quantiles_are_the_smallest():
    for trials, chance, missed in [(10**4, 0.01, 1e-9), (3, 0.5, 0.2), (3, 0.5, 0.1), (5, 1.0, 0.5)]:
        count = most_likely_count(trials, chance, missed)
        assert binom.sf(count, trials, chance) <= missed
        assert count == 0 or binom.sf(count - 1, trials, chance) > missed


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1, True, "1"])
def test_nonsense_is_refused(bad):
    with pytest.raises(InvalidParameter):
        RandomRepeats(Gaussian(1.0), bad, 0.5)
    with pytest.raises(InvalidParameter):
        RandomRepeats(Gaussian(1.0), 5, bad)
    with pytest.raises(InvalidParameter):
        RandomRepeats(bad, 5, 0.5)
    with pytest.raises(InvalidParameter):
        RandomRepeats(Gaussian(1.0), 5, 0.5, most=bad)
    with pytest.raises(InvalidParameter):
        MixtureCurve(RandomRepeats(Gaussian(1.0), 5, 0.5), "replace-one").epsilon(bad)
    with pytest.raises(InvalidParameter):
        MixtureCurve(RandomRepeats(Gaussian(1.0), 5, 0.5), "replace-one").delta(
            math.nan if bad is True else bad
        )
    with pytest.raises(InvalidParameter):
        most_likely_count(10, 0.5, bad)
