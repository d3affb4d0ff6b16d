"""What an attacker can do: published values, and exact tests of the worst mechanism."""

import itertools
import math

import numpy as np
import pytest

from discreet.accounting.gaussian import gaussian_delta, gaussian_mu
from discreet.accounting.noise_formulas import gaussian_power
from discreet.accounting.power import advantage_bound, miss_rate_bound, power_bound
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.lecture.amplification import sampled_miss_rate_bound
from support.refusals import accepted_nonsense

# epsilon at delta 1e-5; advantage, accuracy, advantage of the Gaussian calibrated to it, power at .001/.01/.1;
# closed formulas (Kairouz et al. 2015; Dong, Roth, Su 2022) in 40 digits.
TABLE = [
    (0.1, 0.04996788, 0.52498394, 0.01297334, (0.00111517, 0.01106171, 0.11052709)),
    (1.0, 0.46212254, 0.73106127, 0.10661764, (0.00272828, 0.02719282, 0.27183818)),
    (2.0, 0.76159654, 0.88079827, 0.19801258, (0.00739906, 0.07390056, 0.73891561)),
    (4.0, 0.96402794, 0.98201397, 0.35625243, (0.05460815, 0.54599150, 0.98351611)),
    (8.0, 0.99932931, 0.99966465, 0.59516390, (0.99966488, 0.99966790, 0.99969809)),
]


@pytest.mark.parametrize(("epsilon", "advantage", "accuracy", "gaussian", "powers"), TABLE)
def test_table(epsilon, advantage, accuracy, gaussian, powers):
    assert advantage_bound(epsilon, 1e-5) == pytest.approx(advantage, abs=6e-9)
    assert 0.5 + advantage_bound(epsilon, 1e-5) / 2 == pytest.approx(accuracy, abs=6e-9)
    assert gaussian_delta(0, gaussian_mu(epsilon, 1e-5)) == pytest.approx(gaussian, abs=6e-9)
    for false_alarms, power in zip((0.001, 0.01, 0.1), powers, strict=True):
        assert power_bound(epsilon, 1e-5, false_alarms) == pytest.approx(power, abs=6e-9)
        assert miss_rate_bound(epsilon, 1e-5, false_alarms) == pytest.approx(1 - power, abs=6e-9)


def best_powers(epsilon, delta):
    """(false alarms, power) of every likelihood-ratio test of the worst (epsilon, delta)-DP mechanism."""
    growth = math.exp(epsilon)
    high, low = (1 - delta) * growth / (1 + growth), (1 - delta) / (1 + growth)
    outcomes = [(0.0, delta), (low, high), (high, low), (delta, 0.0)]  # by falling likelihood ratio
    corners = np.cumsum([(0.0, 0.0), *outcomes], axis=0)
    grid = np.linspace(0, 1, 41)
    return grid, np.interp(grid, *np.unique(corners, axis=0).T)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.1, 0.3), (3.0, 0.0), (0.0, 0.2), (0.0, 0.0)])
def test_the_worst_mechanism_attains_the_bounds(epsilon, delta):
    grid, powers = best_powers(epsilon, delta)
    start = delta  # at no false alarms the curve jumps to delta
    for false_alarms, power in zip(grid, powers, strict=True):
        bound = power_bound(epsilon, delta, false_alarms)
        assert bound == pytest.approx(max(power, start), abs=1e-12)
        assert miss_rate_bound(epsilon, delta, false_alarms) <= 1 - bound
    corners = (1 - delta) / (1 + math.exp(epsilon))
    assert advantage_bound(epsilon, delta) == pytest.approx(
        power_bound(epsilon, delta, corners) - corners, abs=1e-12
    )


def test_gaussian_attacks_stay_inside():
    for epsilon, false_alarms in itertools.product((0.1, 1.0, 4.0), (1e-6, 0.001, 0.1, 0.5, 0.9)):
        power = gaussian_power(false_alarms, gaussian_mu(epsilon, 1e-5))
        assert power <= power_bound(epsilon, 1e-5, false_alarms) * (1 + 1e-11)


def test_a_wrong_bound_would_be_caught():
    """The Gaussian attack has power: at delta / 4 it breaks the bound somewhere."""
    mu = gaussian_mu(1.0, 1e-5)
    assert any(gaussian_power(a, mu) > power_bound(1.0, 2.5e-6, a) for a in np.geomspace(1e-8, 1, 200))


@pytest.mark.parametrize(
    ("rate", "epsilon", "miss_rate"), [(0.01, 1.0, 0.9491407591), (0.1, 2.0, 0.9180537195)]
)
def test_sampled_release(rate, epsilon, miss_rate):
    found = sampled_miss_rate_bound(epsilon, 1e-5, rate, 0.05, neighbours="add-remove")
    assert found == pytest.approx(miss_rate, abs=6e-11)
    factor = 1 - rate + rate * math.exp(epsilon)
    assert found == pytest.approx(1 - rate * 1e-5 - factor * 0.05, abs=1e-12)
    assert found > 1 - 1e-5 - factor * 0.05  # the slides' version, without rate before delta, is looser
    with pytest.raises(UnsupportedEvent, match="add-remove"):
        sampled_miss_rate_bound(epsilon, 1e-5, rate, 0.05, neighbours="replace-one")


def test_ends():
    assert power_bound(1.0, 1e-5, 0.0) == pytest.approx(1e-5)
    assert power_bound(1.0, 1e-5, 1.0) == 1
    assert power_bound(1e6, 0.0, 1e-300) == 1
    assert miss_rate_bound(1e6, 0.0, 0.5) == 0
    assert miss_rate_bound(0.0, 0.0, 0.25) == pytest.approx(0.75)
    assert advantage_bound(1e6, 0.5) == 1
    assert advantage_bound(0.0, 0.0) == 0


PAIR = {"epsilon": 1.0, "delta": 1e-5}
OUTSIDE = {"epsilon": (-1e-9,), "delta": (-1e-9, 1.0)}
ALARMS = {"false_alarms": (-1e-9, 1.1)}


@pytest.mark.parametrize(
    ("function", "more", "outside"),
    [
        (miss_rate_bound, {"false_alarms": 0.1}, ALARMS),
        (power_bound, {"false_alarms": 0.1}, ALARMS),
        (advantage_bound, {}, {}),
        (
            sampled_miss_rate_bound,
            {"false_alarms": 0.1, "rate": 0.1, "neighbours": "add-remove"},
            ALARMS | {"rate": (0.0, 1.1)},
        ),
    ],
)
def test_nonsense_is_refused(function, more, outside):
    assert list(accepted_nonsense(function, PAIR | more, OUTSIDE | outside)) == []


def test_nonsense_neighbours_are_refused():
    with pytest.raises(InvalidParameter, match="neighbours"):
        sampled_miss_rate_bound(1.0, 1e-5, 0.1, 0.1, neighbours="zero-out")
