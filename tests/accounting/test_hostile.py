"""Settings from others, far beyond what is sensible: an answer or a refusal by name, never another exception."""

import warnings

import pytest

from discreet import (
    ApproximateDP,
    Gaussian,
    InvalidParameter,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
    account,
)
from discreet.accounting.discretisation import MOST_LAYERS, discretise
from discreet.accounting.lattice import compose
from discreet.accounting.pairs import GaussianPair
from discreet.events import (
    BoundedRange,
    DiscreteGaussian,
    MixtureOfGaussians,
    RandomisedResponse,
    RenyiDP,
    RepeatAndSelect,
    SparseVector,
    TreeAggregation,
)

FAR_OUT = [
    (Laplace(0.05), "replace-one", 50),
    (ApproximateDP(1.0), "replace-one", 50),  # one loss only, so far as a grid sees it
    (ApproximateDP(10_000.0), "add-remove", 1),
    (BoundedRange(10_000.0), "replace-one", 1),
    (RepeatAndSelect(Laplace(3.0), 20, None), "replace-one", 1),
    (DiscreteGaussian(0.05), "zero-out", 1),
    (PoissonSampled(0.3, Gaussian(1e-6)), "replace-one", 1),  # asked for 4 TB once
    (MixtureOfGaussians(0.5, (0.0, 5e-324), (0.5, 0.5)), "zero-out", 1),
    (RandomisedResponse(100.0, 3), "replace-one", 2),
    (RenyiDP((2.0, 4.0), (1e-300, 1e308)), "add-remove", 1),
]


@pytest.mark.parametrize(("event", "neighbours", "group_size"), FAR_OUT)
def test_every_question_has_an_answer(event, neighbours, group_size):
    curve = account(event, neighbours, group_size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower, upper = curve.epsilon_bounds(1e-5)
        assert 0 <= lower <= upper
        lower, upper = curve.delta_bounds(1.0)
        assert 0 <= lower <= upper <= 1
        lower, upper = curve.power_bounds(0.01)
        assert 0.01 <= lower <= upper <= 1


def test_the_attacker_of_a_pure_black_box_is_known():
    """Where no grid helps, the bound by moments does: e^epsilon false alarms, at most."""
    hits = account(RenyiDP((2.0, 100.0), (0.5, 0.5))).power(0.01)
    assert 0.01 * 2.718281828**0.5 * (1 - 1e-3) <= hits <= 0.02


@pytest.mark.parametrize(
    ("event", "bound"), [(ApproximateDP(0.5), 0.5), (Laplace(2.0), 0.5), (BoundedRange(0.5), 0.5)]
)
def test_moments_bound_the_attacker(event, bound):
    """Pure differential privacy: no more than e^epsilon hits for each false alarm; the bound is not far from it."""
    curve = account(event * 3)
    for alarms in (1e-6, 1e-3, 0.1):
        simple = curve._simple_power(alarms).upper
        assert curve.power_bounds(alarms).lower <= simple * (1 + 1e-12)
        assert simple <= min(1.0, 1.5 * alarms * 2.718281828 ** (3 * bound))


def test_a_law_of_large_losses_is_not_forgotten_beside_another():
    """The closer bound on rounding needs all parts; with one that has none the plain one must count."""
    import numpy as np

    small = discretise(GaussianPair(1.0), GaussianPair(1.0), 0.0, 0.5, 0.0, np.arange(-30, 31), -30.0)
    wide = GaussianPair(1000.0)
    middle = int(2 * wide.mu**2 / 2)
    large = discretise(wide, wide, 0.0, 0.5, 0.0, np.arange(middle - 2000, middle + 2001), -30.0)
    assert large.losses[-1] > MOST_LAYERS
    assert small.layers is not None
    assert large.layers is None
    for parts in ([(large, 1), (small, 1)], [(small, 1), (large, 1)]):
        assert compose(parts, (0.9 * wide.mu**2 / 2, 1.1 * wide.mu**2 / 2), 0.0).layers is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: SparseVector(7.0, 1e-12, 10**308),
        lambda: TreeAggregation(3, 1.0, 10**308),
        lambda: TreeAggregation(10**308, 1.0),
    ],
)
def test_numbers_beyond_all_use_are_refused_by_name(make):
    with pytest.raises(InvalidParameter):
        make()


def test_more_steps_than_can_be_allocated_are_answered_without_sampling():
    epsilon = account(RandomlyAllocated(10**300, Gaussian(0.3), 3)).epsilon(1e-5)
    assert epsilon == pytest.approx(account(Gaussian(0.3) * 3).epsilon(1e-5), rel=2e-3)


@pytest.mark.parametrize(
    "event",
    [
        Laplace(1.0) * 3,
        PoissonSampled(0.01, Gaussian(1.0)) * 100,
        RandomlyAllocated(10, Gaussian(1.0)) * 2,
        ApproximateDP(1.0, 1e-300) * 10,
        DiscreteGaussian(2.0),
        MixtureOfGaussians(1.0, (0.0, 1.0, 2.0), (0.5, 0.25, 0.25)) * 3,
        RenyiDP((2.0, 4.0), (0.1, 0.2)),
    ],
)
def test_numbers_at_the_ends_of_double_precision(event):
    curve = account(event)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny, small, large = (curve.epsilon_bounds(delta) for delta in (5e-324, 1e-12, 1 - 1e-16))
        assert large.lower <= small.upper
        assert small.lower <= tiny.upper
        for epsilon in (5e-324, 1.7e308):
            lower, upper = curve.delta_bounds(epsilon)
            assert 0 <= lower <= upper <= 1
        assert curve.power_bounds(5e-324).upper <= 1
