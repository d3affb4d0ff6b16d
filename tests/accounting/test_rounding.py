"""The rounding of cell masses in layers: never more than the plain bound, and enough for what rounding does."""

import mpmath
import numpy as np
import pytest

from discreet import Gaussian, PoissonSampled, account
from discreet.accounting.lattice import ULP, Layers, cell_accuracy
from discreet.accounting.pairs import GaussianPair
from support import accounting_reference as ref
from support.rounding_charge import charged


def exponential_layers(tilt, log_delta=-200.0):
    """A law with the tail e^-x, for which everything is known: the tilted tail is e^{(tilt - 1) x}."""
    x = np.linspace(0.0, 300.0, 150_001)
    masses = -np.diff(np.exp(-x), append=0.0)
    tilted = masses * np.exp(tilt * x)
    losses = x / 1e6  # none is large
    return Layers.of(losses, tilted / tilted.sum(), masses, tilt * np.diff(x, append=x[-1]), log_delta)


@pytest.mark.parametrize("tilt", [0.0, 0.3, 0.8])
def test_layers_of_an_exponential_law(tilt):
    layers = exponential_layers(tilt)
    k = np.arange(1, 51)
    exact = 3 * ULP * np.exp((tilt - 1) * k)
    assert np.all(layers.rare[:50] >= exact * (1 - 1e-9))
    assert np.all(layers.rare[:50] <= 1.05 * exact)


def test_the_error_of_a_known_law_is_covered():
    """E[m (12 + 3 log 1/m)] over thresholds beyond which the total lies, by adding it up."""
    rng, rate = np.random.default_rng(0), 0.4
    layers = exponential_layers(rate)
    # The other losses are a threshold y for this one, with any law, and the tail is E e^-y.
    for _ in range(50):
        y = np.maximum(rng.gamma(rng.uniform(0.5, 6.0), rng.uniform(0.2, 4.0), 400), 0.0)
        m = np.exp(-y)
        error = ULP * float((m * (12 + 3 * y)).mean())
        unit = float(np.exp(-rate * y).mean()) / (
            1 - rate
        )  # K e^{-t epsilon}: total tilted mass, others included
        assert error <= unit * charged(layers, float(m.mean()) / unit) * (1 + 1e-9)


def test_layers_are_never_worse_than_charging_everything():
    layers = exponential_layers(0.3, log_delta=-50.0)
    for tail in (1e-12, 1e-6, 1e-2, 1.0):
        assert charged(layers, tail) <= (cell_accuracy(-50.0) + 6 * ULP) * tail


def test_layers_add_up():
    one, other = exponential_layers(0.3), exponential_layers(0.6, log_delta=-30.0)
    both = one.times(5).times(1, other.times(2))
    for tail in (1e-9, 1e-2):
        assert charged(both, tail) >= 5 * charged(one, tail) + 2 * 18 * ULP * tail
    assert one.times(3).common == pytest.approx(54 * ULP)


def test_large_losses_are_layers_of_their_own():
    """Q(L > l) is m e^-l, whose logarithm counts as well: a law of losses around 100 is charged a hundred times."""
    losses = np.linspace(90.0, 110.0, 401)
    masses = np.exp(-((losses - 100.0) ** 2) / 8)
    masses /= masses.sum()
    layers = Layers.of(losses, masses, masses, np.zeros(401), -30.0)
    small = Layers.of(losses - 100.0, masses, masses, np.zeros(401), -30.0)
    assert charged(layers, 0.5) >= charged(small, 0.5) + 3 * ULP * 90 * 0.5


def test_tails_of_q_at_large_losses():
    """The constants hold where the loss is far larger than log(1 / delta): the curve in 60 digits."""
    for mu, z in ((30.0, 4.0), (36.0, 1.0), (20.0, 6.0)):
        loss = mu * z + mu * mu / 2
        cells = GaussianPair(mu).cells(np.array([loss, np.inf]))
        found = float(cells.p[0] - np.exp(loss + np.log(cells.q[0])))
        with mpmath.workdps(60):
            at = mpmath.mpf(loss) / mu
            m = mpmath.ncdf(-at + mpmath.mpf(mu) / 2)
            exact = m - mpmath.exp(loss) * mpmath.ncdf(-at - mpmath.mpf(mu) / 2)
            assert abs(found - exact) <= cell_accuracy(float(mpmath.log(m)) - loss) * m


def test_nothing_but_rounding_is_left_and_the_exact_value_is_enclosed():
    """1e8 releases of 1e-8 each: the widest gap that rounding makes; delta of an independent integral lies inside."""
    noise, rate, steps, delta = 12.0, 5e-7, 10**8, 1e-20
    curve = account(PoissonSampled(rate, Gaussian(noise)) * steps)
    bounds = curve.epsilon_bounds(delta)
    assert bounds.gap <= 1e-3
    for epsilon, way in ((bounds.upper, 1), (bounds.lower, -1)):
        exact, error = ref.delta(
            lambda tail, fine: [ref.sampled_gaussian(noise, rate, "remove", tail, fine)],
            [steps],
            epsilon,
            delta,
        )
        assert way * exact <= way * delta * (1 + way * 1e-6) + error * delta
