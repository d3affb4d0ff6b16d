"""Every setting has an answer: no exception, no infinity, and bounds that never exclude the truth."""

import random

import mpmath
import pytest

from discreet import (
    Budget,
    Event,
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
    Recipe,
    account,
)
from discreet.accounting.chernoff import Chernoff
from discreet.accounting.discretisation import LossDistribution
from discreet.accounting.dominating import Relation, dominating, without_sampling
from discreet.accounting.gaussian import gaussian_delta_bounds, gaussian_epsilon_bounds
from discreet.accounting.pairs import GaussianPair, LaplacePair, Reversed, Sampled
from support.compositions import composed

FAR_OUT = [
    (1e-6, 0.5, 10**7, 1e-6),  # asked for 47 GB once
    (0.01, 0.05, 1000, 1e-6),
    (1e-300, 1.0, 1000, 1e-6),
    (1e-3, 1.0, 10**12, 1e-6),
    (8.93e-5, 1.41, 10, 3e-25),
    (2.01e-7, 0.733, 2_340_000, 3.2e-44),
    (1.54e-5, 1580.0, 667_000_000, 9.1e-27),
]


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), FAR_OUT)
def test_the_far_ends_are_answered(rate, noise, steps, delta, neighbours):
    curve = account(PoissonSampled(rate, Gaussian(noise)) * steps, neighbours)
    lower, upper = curve.epsilon_bounds(delta)
    assert 0 <= lower <= upper < float("inf")
    assert upper <= account(Gaussian(noise) * steps, neighbours).epsilon(delta)
    low, high = curve.delta_bounds(min(upper, 1e6))
    assert 0 <= low <= high <= 1


def test_a_random_sample_of_all_settings_is_answered():
    dice = random.Random(5)
    for _ in range(40):
        rate, noise, steps = (
            10 ** dice.uniform(-7, 0),
            10 ** dice.uniform(-0.7, 4),
            round(10 ** dice.uniform(0, 9)),
        )
        curve = account(
            PoissonSampled(rate, Gaussian(noise)) * steps, dice.choice(["add-remove", "replace-one"])
        )
        lower, upper = curve.epsilon_bounds(10 ** dice.uniform(-50, -2))
        assert 0 <= lower <= upper < float("inf")


def test_laws_that_underflow_altogether_are_answered_by_moments():
    curve = account(PoissonSampled(2.844e-5, Gaussian(0.012294)) * 210, "replace-one", group_size=3)
    lower, upper = curve.epsilon_bounds(4.47e-21)
    assert 0 <= lower <= upper < float("inf")
    # eight of the 210 batches hold a record with more than this probability, at a loss of 1 / (2 noise^2) each
    assert upper > 8 * (1 / (2 * 0.012294**2) - 12)


def test_a_plan_at_a_low_rate_has_a_guarantee():
    plan = Recipe(records=200_000, batch_size=8, epochs=1).calibrate(Budget(0.58, 5e-7))
    assert plan.guarantee.within(Budget(0.58, 5e-7))


PAIRS = {
    "gaussian": GaussianPair(0.3),
    "laplace": LaplacePair(0.5),
    "remove": Sampled(GaussianPair(1.0), 0.05),
    "add": Reversed(Sampled(GaussianPair(1.0), 0.05)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("steps", [20, 500])
def test_chernoff_lies_a_little_above_the_lattice(name, steps):
    pair = PAIRS[name]
    simple = Chernoff.of([(pair, steps)], -60.0)
    exact = composed([LossDistribution(pair, pair, steps)])
    for delta in (1e-3, 1e-8):
        lower, upper = exact.epsilon_bounds(delta, 1e-3)
        if 0 < upper < float("inf"):
            assert lower <= simple.epsilon(delta) <= 2.0 * upper + 0.02
            assert simple.delta(upper) >= exact.delta_bounds(upper, 1e-2).lower


def test_chernoff_of_a_gaussian_is_the_renyi_bound():
    """log E e^{tL} = t (t + 1) mu^2 / 2, and the rest is one minimum over t."""
    mu, delta = 0.5, 1e-6
    with mpmath.workdps(30):

        def epsilon(t):
            moment = t * (t + 1) * mu**2 / 2
            return (moment + t * mpmath.log(t) - (t + 1) * mpmath.log(1 + t) - mpmath.log(delta)) / t

        best = min(epsilon(mpmath.mpf(k) / 100) for k in range(50, 3000))
    found = Chernoff.of([(GaussianPair(mu), 1)], -80.0).epsilon(delta)
    assert best * (1 - 1e-6) <= found <= best * (1 + 2e-3)


def test_without_sampling_everything_costs_more():
    for event, relation in (
        (PoissonSampled(0.1, Gaussian(1.0)) * 5, Relation("add-remove", 1)),
        (PoissonSampled(0.1, Gaussian(1.0)) * 5, Relation("replace-one", 2)),
        (FixedSizeSampled(2, 10, Gaussian(1.0)) * 5, Relation("replace-one", 1)),
        (RandomlyAllocated(10, Gaussian(1.0)) * 2, Relation("add-remove", 1)),
        (PoissonSampled(0.1, Laplace(1.0)) + Gaussian(3.0), Relation("add-remove", 1)),
    ):
        whole = without_sampling(event)
        assert not any(hasattr(part, "of") for part, _ in whole.parts())
        assert dominating(whole, relation).plds or dominating(whole, relation).mu > 0
        mine = account(event, relation.neighbours, relation.group_size)
        other = account(whole, relation.neighbours, relation.group_size)
        for delta in (1e-2, 1e-6):
            assert mine.epsilon_bounds(delta).lower <= other.epsilon(delta)


@pytest.mark.parametrize("mu", [1.1e4, 1e6, 1e9])
@pytest.mark.parametrize("delta", [1e-50, 1e-6, 0.3, 0.999])
def test_very_large_gaussians(mu, delta):
    """Against the closed form in 60 digits."""
    lower, upper = gaussian_epsilon_bounds(delta, mu)
    assert upper - lower <= 1e-3 * upper
    with mpmath.workdps(60):

        def exact(epsilon):
            u = mpmath.mpf(epsilon) / mu - mpmath.mpf(mu) / 2
            return mpmath.ncdf(-u) - mpmath.exp(mpmath.mpf(epsilon) + mpmath.log(mpmath.ncdf(-u - mu)))

        if mu < 1e7:  # beyond, 60 digits do not resolve e^epsilon Phi(-u - mu)
            assert exact(upper) <= delta <= exact(lower)
            low, high = gaussian_delta_bounds(upper, mu)
            assert low <= exact(upper) <= high


@pytest.mark.parametrize("alarms", [1e-3, 1e-6, 1e-9, 1e-13])
def test_power_at_few_alarms(alarms):
    """Two releases of a sampled Gaussian are beyond a closed form; one Gaussian in a thousand pieces is not."""
    lower, upper = account(Gaussian(30.0) * 900 + Laplace(1e6)).power_bounds(alarms, tolerance=0.01)
    with mpmath.workdps(40):
        exact = mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(alarms) - 1) + 1)
    assert lower <= exact * (1 + 1e-4)  # the Laplace release is nearly nothing
    assert exact <= upper
    assert upper - lower <= 0.01 * upper
    sampled = account(PoissonSampled(0.01, Gaussian(1.0)) * 1000)
    assert sampled.power_bounds(alarms, tolerance=0.01).gap <= 0.01


@pytest.mark.parametrize(
    "text",
    [
        '{"event":"gaussian","noise_multiplier":' + "9" * 5000 + "}",
        '{"event":"gaussian","noise_multiplier":1.0,"noise_multiplier":100.0}',
        '{"event":"composition","events":[[{"event":"gaussian","noise_multiplier":1.0,"event":"laplace"},2]]}',
        '{"event":"gaussian","noise_multiplier":NaN}',
        "[" * 100_000,
    ],
)
def test_strange_texts_are_refused(text):
    with pytest.raises(InvalidParameter, match=r"event|noise_multiplier"):
        Event.from_json(text)


def test_there_is_one_zero():
    text = '{"delta":-0.0,"epsilon":1.0,"event":"approximate-dp"}'
    assert Event.from_json(text).digest() == Event.from_json(text.replace("-0.0", "0.0")).digest()
