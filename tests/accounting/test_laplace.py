"""The Laplace curve: published values, integrals of the densities, and its inverses."""

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.gaussian import laplace_delta, laplace_epsilon, laplace_noise, laplace_power
from discreet.accounting.power import power_bound
from discreet.errors import InvalidParameter
from support.refusals import accepted_nonsense


@pytest.mark.parametrize(
    ("pure", "epsilon", "delta"), [(1, 0.5, 0.2211992169), (1, 0, 0.3934693403), (2, 1, 0.3934693403)]
)
def test_table(pure, epsilon, delta):
    assert laplace_delta(epsilon, 1 / pure) == pytest.approx(delta, abs=6e-11)


@pytest.mark.parametrize("scale", [0.4, 1.0, 5.0])
def test_delta_against_the_densities(scale):
    """The hockey stick of two Laplace densities, one shifted by 1, as a sum over a fine grid."""
    x = np.linspace(-30 * scale, 30 * scale + 1, 400_001)
    p, q = (np.exp(-np.abs(x - shift) / scale) / (2 * scale) for shift in (0.0, 1.0))
    for epsilon in (0.0, 0.05, 0.15):
        integral = np.sum(np.maximum(0, p - math.exp(epsilon) * q)) * (x[1] - x[0])
        assert laplace_delta(epsilon, scale) == pytest.approx(integral, rel=1e-4)


@pytest.mark.parametrize("scale", [0.4, 1.0, 5.0])
def test_power_against_the_densities(scale):
    """Likelihood-ratio tests reject on a half line, so power and false alarms are Laplace tails."""

    def tail(t):
        return 0.5 * math.exp(-t / scale) if t > 0 else 1 - 0.5 * math.exp(t / scale)

    for threshold in np.linspace(-5, 6, 23):
        assert laplace_power(tail(threshold), scale) == pytest.approx(tail(threshold - 1), rel=1e-12)
        assert laplace_power(tail(threshold), scale) <= power_bound(1 / scale, 0.0, tail(threshold)) * (
            1 + 1e-13
        )
    assert laplace_power(0.0, scale) == 0
    assert laplace_power(1.0, scale) == 1


def test_inverses_agree_and_are_safe():
    for epsilon in (0.01, 0.3, 1.0, 7.0):
        for delta in (1e-9, 1e-3, 0.4):
            scale = laplace_noise(epsilon, delta)
            assert laplace_delta(epsilon, scale) == pytest.approx(delta, rel=1e-4)
            assert laplace_epsilon(delta, scale) == pytest.approx(epsilon, rel=1e-12)
        assert Fraction(laplace_noise(epsilon)) * Fraction(epsilon) >= 1
        assert Fraction(laplace_epsilon(0.0, epsilon)) * Fraction(epsilon) >= 1
    assert laplace_delta(1.0, 1.0) == 0
    assert 0 < laplace_delta(1 - 1e-15, 1.0) < 1e-14
    assert laplace_delta(2.0, 1.0) == 0
    assert laplace_epsilon(0.5, 1.0) == 0


def test_nothing_is_hidden_for_free():
    with pytest.raises(InvalidParameter, match="above 0"):
        laplace_noise(0.0)


@pytest.mark.parametrize(
    ("function", "good", "outside"),
    [
        (laplace_delta, {"epsilon": 1.0, "scale": 1.0}, {"epsilon": (-1e-9,), "scale": (0.0, -1.0)}),
        (laplace_epsilon, {"delta": 0.1, "scale": 1.0}, {"delta": (-1e-9, 1.0), "scale": (0.0, -1.0)}),
        (laplace_noise, {"epsilon": 1.0, "delta": 0.1}, {"epsilon": (-1e-9,), "delta": (-1e-9, 1.0)}),
        (laplace_power, {"false_alarms": 0.1, "scale": 1.0}, {"false_alarms": (-0.1, 1.1), "scale": (0.0,)}),
    ],
)
def test_nonsense_is_refused(function, good, outside):
    assert list(accepted_nonsense(function, good, outside)) == []
