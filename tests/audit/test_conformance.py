"""Noise: honest draws pass at the stated rate, and each broken twin is caught by the test made for it."""

import numpy as np
import pytest
from scipy import stats

from discreet.audit.conformance import conformance
from discreet.core.noise import BoundedSum, add_noise, grid_for
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.events import Gaussian, Laplace

STEPS, WIDTH = 40, 100


def normal(seed=0, shape=(STEPS, WIDTH)):
    return np.random.default_rng(seed).normal(size=shape)


HONEST = {
    "gaussian": (lambda rng: rng.normal(0, 3.0, (20, 40)), {"expected_std": 3.0}),
    "laplace": (lambda rng: rng.laplace(0, 2.0, (20, 40)), {"expected_std": 8**0.5, "law": "laplace"}),
    "one coordinate": (lambda rng: rng.normal(size=200), {"expected_std": 1.0}),
    "one step": (lambda rng: rng.normal(size=(1, 200)), {"expected_std": 1.0}),
    "rounded to a coarse grid": (
        lambda rng: stats.dlaplace.rvs(0.4, size=(20, 40), random_state=rng),
        {"expected_std": float(stats.dlaplace(0.4).std()), "law": "laplace", "grid": 1.0},
    ),
}


@pytest.mark.parametrize("kind", HONEST)
def test_false_alarms_are_as_rare_as_stated(kind):
    """100 runs at alpha = 0.05: more than 15 alarms has probability 4e-5 if the rate is 0.05; seeded."""
    make, settings = HONEST[kind]
    rng = np.random.default_rng(1)
    stream = RandomStream(unsafe_seed=1)
    alarms = sum(not conformance(make(rng), alpha=0.05, stream=stream, **settings).passed for _ in range(100))
    assert alarms <= 15


BROKEN = {
    "ten per cent too little": (lambda z: 0.9 * z, "amount"),
    "ten per cent too much": (lambda z: 1.1 * z, "amount"),
    "moved": (lambda z: z + 0.1, "centre"),
    "uniform of the right variance": (lambda z: np.sqrt(12) * (stats.norm.cdf(z) - 0.5), "tail beyond 2"),
    "the same in each step": (lambda z: np.tile(z[:1], (STEPS, 1)), "steps that repeat"),
    "one step repeated later": (lambda z: np.concatenate((z[:-1], z[3:4])), "steps that repeat"),
    "one step repeated with rounding": (
        lambda z: np.concatenate((z[:-1], z[3:4] * (1 + 1e-7))),
        "likeness of steps",
    ),
    "one number for all coordinates": (
        lambda z: np.repeat(z[:, :1], WIDTH, axis=1),
        "likeness of coordinates",
    ),
    "moving average": (lambda z: (z + np.roll(z, 1, axis=0)) / 2**0.5, "each step and the next"),
    "a step without noise": (lambda z: z * (np.arange(STEPS) != 7)[:, None], "worst steps, amount"),
    "a coordinate without noise": (lambda z: z * (np.arange(WIDTH) != 7), "worst coordinates, amount"),
    "louder and quieter steps": (
        lambda z: z * np.where(np.arange(STEPS) % 2, 1.1, 0.89)[:, None],
        "all steps, amount",
    ),
    "a constant on each coordinate": (lambda z: (z + 0.5 * z[0]) / 1.25**0.5, "all coordinates, centre"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_noise_is_found(fault):
    broken, test = BROKEN[fault]
    finding = conformance(broken(normal()), 1.0)
    assert not finding.passed
    assert len(finding.tests) * dict(finding.tests)[test] < finding.alpha, finding.tests


def test_the_gaussian_amount_is_the_chi_square_test():
    draws = normal()
    p = dict(conformance(1.03 * draws, 1.0).tests)["amount"]
    total = np.sum((1.03 * draws) ** 2)
    expected = 2 * min(stats.chi2.cdf(total, draws.size), stats.chi2.sf(total, draws.size))
    assert p == pytest.approx(expected, rel=1e-9)


def test_two_per_cent_are_seen_in_fifty_thousand_draws():
    for factor in (0.98, 1.02):
        assert not conformance(factor * normal(3, (100, 500)), 1.0).passed


def test_not_a_number_is_a_contradiction():
    draws = normal()
    draws[3, 4] = np.nan
    assert not conformance(draws, 1.0).passed


@pytest.mark.parametrize("event", [Gaussian(2.0), Laplace(2.0)])
def test_our_noise_conforms_float_and_hardened(event):
    law = "gaussian" if isinstance(event, Gaussian) else "laplace"
    std = 2.0 if law == "gaussian" else 8**0.5
    norm = "l2" if law == "gaussian" else "l1"
    grid = grid_for(event, 1.0, 1000)
    stream = RandomStream(unsafe_seed=5)
    floats = BoundedSum(np.zeros((STEPS, WIDTH)), 1.0, norm)
    whole = BoundedSum(np.zeros((STEPS, WIDTH), np.int64), 1.0, norm, grid)
    assert conformance(add_noise(floats, event, stream), std, law=law).passed
    assert conformance(add_noise(whole, event, stream), std, law=law, grid=grid).passed
    off_the_grid = conformance(add_noise(floats, event, stream), std, law=law, grid=2.0**-20)
    assert off_the_grid.worst == "on the grid"
    assert not off_the_grid.passed
    assert not conformance(
        add_noise(floats, event, stream), std, law="laplace" if norm == "l2" else "gaussian"
    ).passed


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("expected_std", (normal(), float("nan")), {}),
        ("expected_std", (normal(), 0.0), {}),
        ("draws.shape", (np.zeros(3), 1.0), {}),
        ("draws", (["a"] * 30, 1.0), {}),
        ("law", (normal(), 1.0), {"law": "cauchy"}),
        ("alpha", (normal(), 1.0), {"alpha": float("nan")}),
        ("grid", (normal(), 1.0), {"grid": -1.0}),
    ],
)
def test_nonsense_is_refused(name, arguments, options):
    with pytest.raises(InvalidParameter, match=name):
        conformance(*arguments, **options)
