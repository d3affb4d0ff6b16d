"""The least Laplace noise, against the exact curve; and the curve against published values and integrals."""

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.noise_formulas import laplace_noise
from discreet.accounting.power import power_bound
from support.laplace_curve import laplace_delta, laplace_power
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


def test_the_least_noise_is_the_inverse_and_safe():
    for epsilon in (0.01, 0.3, 1.0, 7.0):
        assert Fraction(laplace_noise(epsilon)) * Fraction(epsilon) >= 1
        assert laplace_delta(epsilon, laplace_noise(epsilon)) == 0
        assert laplace_delta(epsilon, 0.999 * laplace_noise(epsilon)) > 0


def test_nonsense_is_refused():
    assert list(accepted_nonsense(laplace_noise, {"epsilon": 1.0}, {"epsilon": (-1e-9, 0.0)})) == []
