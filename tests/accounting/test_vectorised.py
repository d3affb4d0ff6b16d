"""Many settings at once: the same enclosures as one by one, and refusals by name."""

import numpy as np
import pytest

from discreet import Gaussian, InvalidParameter, PoissonSampled, account
from discreet.accounting import epsilon_bounds, vectorised
from discreet.accounting.dominating import Relation

ABADI = {100: 0.0795142, 1000: 0.272136, 10_000: 0.9468668, 40_000: 2.033055}  # shared with the benchmarks


def one_by_one(noise, rate, steps, delta, neighbours="add-remove"):
    event = PoissonSampled(float(rate), Gaussian(float(noise))) * int(steps)
    return account(event, neighbours).epsilon_bounds(float(delta))


def test_known_values_are_enclosed():
    lower, upper = epsilon_bounds(4.0, 0.01, list(ABADI), 1e-5)
    exact = np.array(list(ABADI.values()))
    assert np.all(lower <= exact * (1 + 1e-5))
    assert np.all(exact <= upper * (1 + 1e-5))
    assert np.all(upper - lower <= 1e-3 * upper)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (1.1, 256 / 60_000, np.linspace(234, 4000, 6).astype(int)[:, None], np.array([1e-5, 1e-8])),
        (np.array([0.7, 3.0])[:, None], 0.02, np.array([30, 100, 300]), 1e-6),
        (0.4, 0.01, np.array([50, 70, 100]), 1e-6),
        (20.0, 0.3, np.array([1, 2, 1000]), 1e-30),
        (1.0, 1.0, np.array([1, 7]), 1e-6),
        (2.0, 1e-4, np.array([100_000, 250_000]), 1e-6),
    ],
)
def test_as_one_by_one(noise, rate, steps, delta, neighbours):
    settings = np.broadcast_arrays(noise, rate, steps, delta)
    lower, upper = epsilon_bounds(noise, rate, steps, delta, neighbours=neighbours)
    assert lower.shape == upper.shape == settings[0].shape
    assert np.all(upper - lower <= 1e-3 * np.maximum(upper, 1e-4))
    for below, above, *setting in zip(lower.flat, upper.flat, *(part.flat for part in settings), strict=True):
        single = one_by_one(*setting, neighbours)  # both enclose the truth, so they overlap
        assert below <= single.upper
        assert single.lower <= above


def test_a_grid_is_shared_and_the_other_direction_is_looked_at():
    event, points = (
        PoissonSampled(0.01, Gaussian(4.0)),
        [vectorised.StepsAndDelta(n, 1e-5) for n in (4000, 3000, 2000)],
    )
    shared = vectorised._Shared(event, points, Relation("add-remove", 1))
    found = shared.bounds()
    assert set(found) == set(points)
    too_little = {point: bounds._replace(upper=0.9 * bounds.upper) for point, bounds in found.items()}
    assert shared._worst(too_little) == {}


def test_numbers_give_numbers():
    lower, upper = epsilon_bounds(4.0, 0.01, 1000, 1e-5)
    assert lower.shape == upper.shape == ()
    assert epsilon_bounds([], 0.01, 1000, 1e-5)[0].shape == (0,)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("noise_multiplier", ([1.0, float("nan")], 0.01, 10, 1e-5)),
        ("rate", (1.0, [0.5, 1.5], 10, 1e-5)),
        ("steps", (1.0, 0.5, [10, 2.5], 1e-5)),
        ("delta", (1.0, 0.5, 10, [1e-5, 0.0])),
        ("steps", (1.0, [0.5, 0.6, 0.7], [10, 20], 1e-5)),
    ],
)
def test_bad_numbers_are_refused_by_name(name, settings):
    with pytest.raises(InvalidParameter, match=name):
        epsilon_bounds(*settings)
