"""The Renyi accountant: divergences by quadrature, conversions by brute force, and its place among the others."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from discreet.accounting.gaussian import gaussian_delta, gaussian_epsilon
from discreet.accounting.renyi import (
    delta_of_divergence,
    epsilon_of_divergence,
    renyi_divergence,
    renyi_epsilon,
)
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.events import (
    ApproximateDP,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)
from discreet.lecture.composition import strong_composition_of_noisy_sgd
from discreet.lecture.moments import log_moment, moments_accountant
from support.refusals import accepted_nonsense

STEP = PoissonSampled(0.01, Gaussian(4.0))
# epochs of 100 steps at delta 1e-5: true epsilon (numerical accountant, seven digits), and the Renyi value of
# dp-accounting 0.6.0 with whole orders up to 256 and with its fractional orders.
FIGURE_2 = [
    (1, 0.0795138, 0.08965969, 0.0896597),
    (10, 0.2721361, 0.30116116, 0.3011595),
    (100, 0.9468668, 1.03549007, 1.0353849),
    (400, 2.0330653, 2.21290551, 2.2097356),
]


@pytest.mark.parametrize(("epochs", "true", "whole_orders", "fractional_orders"), FIGURE_2)
def test_figure_2_and_the_order_of_the_accountants(epochs, true, whole_orders, fractional_orders):
    steps = 100 * epochs
    found = renyi_epsilon(STEP * steps, 1e-5)
    assert true < found
    assert found == pytest.approx(fractional_orders, rel=2e-5)
    assert found <= min(fractional_orders, whole_orders) + 1e-7
    moments = moments_accountant(0.01, 4.0, steps, 1e-5)
    strong = strong_composition_of_noisy_sgd(0.01, 4.0, steps, 1e-5).epsilon
    basic = steps * math.log1p(
        0.01 * math.expm1(math.sqrt(2 * math.log(1.25 / (0.5e-5 / (0.01 * steps)))) / 4)
    )
    assert found <= moments <= strong <= basic


@pytest.mark.parametrize(("epochs", "expected"), [(row[0], row[2]) for row in FIGURE_2])
def test_whole_orders_alone_reproduce_the_published_value(epochs, expected):
    """The improved conversion at each of the orders 2..256, by hand."""
    divergences = {a: 100 * epochs * renyi_divergence(STEP, a) for a in range(2, 257)}
    by_hand = min(d + math.log1p(-1 / a) - math.log(a * 1e-5) / (a - 1) for a, d in divergences.items())
    assert by_hand == pytest.approx(expected, rel=1e-7)


def sampled_moments(order, rate, noise):
    """ln of the moment of this order when a record is removed and when it is added, by quadrature."""
    with mpmath.workdps(50 if noise > 1000 else 24):
        a, q, s = mpmath.mpf(order), mpmath.mpf(rate), mpmath.mpf(noise)

        def ratio(x):
            return 1 - q + q * mpmath.exp((x - 1 / (2 * s)) / s)

        top = order / noise
        cuts = [-20, -8, 0, *(top * k / 6 for k in range(1, 7)), top + 8, top + 20]
        removed = mpmath.quad(lambda x: ratio(x) ** a * mpmath.npdf(x), cuts)
        added = mpmath.quad(lambda x: ratio(x) ** (1 - a) * mpmath.npdf(x), [-20, -8, 0, 8, 20])
        return mpmath.log(removed), mpmath.log(added)


@pytest.mark.parametrize(
    ("order", "rate", "noise"),
    [
        (1.00001, 1e-6, 1e4),
        (1.001, 0.04, 0.25),
        (1.5, 0.999, 5.0),
        (2.5, 0.3, 0.7),
        (3.7, 1e-3, 1.0),
        (17.2, 0.01, 4.0),
        (60.5, 0.5, 300.0),
    ],
)
def test_sampled_gaussian_at_real_orders(order, rate, noise):
    """Rounded up by at most 1e-10 of itself, and sound for both directions."""
    removed, added = sampled_moments(order, rate, noise)
    found = renyi_divergence(PoissonSampled(rate, Gaussian(noise)), order) * (order - 1)
    assert added <= removed
    assert float(removed) * (1 - 1e-15) <= found <= float(removed) * (1 + 1e-10)


def test_real_orders_pass_through_the_whole_ones():
    """The integral an epsilon beside a whole order against the binomial sum at it, also at large orders."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        rate, noise, order = (
            10 ** rng.uniform(-6, 0),
            10 ** rng.uniform(-0.5, 4),
            int(10 ** rng.uniform(0.4, 4)),
        )
        beside = renyi_divergence(PoissonSampled(rate, Gaussian(noise)), order * (1 + 1e-13))
        assert beside == pytest.approx(log_moment(rate, noise, order - 1) / (order - 1), rel=2e-9)


def test_orders_that_would_need_too_many_points_are_infinite():
    """No search stops at them: so large an order is best for much noise only."""
    event = PoissonSampled(0.1, Gaussian(0.2))
    assert renyi_divergence(event, 5000.0) == math.inf
    assert renyi_divergence(event, 100.0) < math.inf
    assert renyi_epsilon(event, 1e-5) < 100


def laplace_divergence(order, shift):
    """Renyi divergence of the density exp(-|x|)/2 from its shift, by quadrature."""
    with mpmath.workdps(30):
        a, s = mpmath.mpf(order), mpmath.mpf(shift)
        moment = mpmath.quad(
            lambda x: mpmath.exp(-a * abs(x - s) + (a - 1) * abs(x)) / 2, [-60, -5, 0, s, s + 5, s + 60]
        )
        return mpmath.log(moment) / (a - 1)


@pytest.mark.parametrize("order", [1.0001, 1.5, 2, 7.3, 40])
@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0, 1e4])
def test_laplace(order, scale):
    found = renyi_divergence(Laplace(scale), order)
    exact = laplace_divergence(order, 1 / scale)
    assert found == pytest.approx(float(exact), rel=1e-9)
    assert found <= 1 / scale  # no divergence exceeds the largest privacy loss


def test_replace_one_doubles_the_shift_of_unsampled_noise():
    assert renyi_divergence(Gaussian(4.0), 3.0, "replace-one") == renyi_divergence(Gaussian(2.0), 3.0)
    assert renyi_divergence(Laplace(4.0), 3.0, "replace-one") == renyi_divergence(Laplace(2.0), 3.0)


def test_composition_adds_up():
    event = Gaussian(4.0) * 3 + Laplace(7.0) + STEP * 5
    parts = [(Gaussian(4.0), 3), (Laplace(7.0), 1), (STEP, 5)]
    for order in (1.2, 4.0, 33.3):
        total = sum(count * renyi_divergence(part, order) for part, count in parts)
        assert renyi_divergence(event, order) == pytest.approx(total, rel=1e-12)
    assert renyi_epsilon(event, 1e-6) > max(renyi_epsilon(part * count, 1e-6) for part, count in parts)


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("delta", [1e-50, 1e-9, 1e-5, 1e-2])
def test_gaussian_is_above_the_exact_curve_and_near_it(noise, delta):
    exact, found = gaussian_epsilon(delta, 1 / noise), renyi_epsilon(Gaussian(noise), delta)
    assert exact <= found <= simple_epsilon(0.5 / noise**2, delta)
    if exact > 0.01:
        assert found <= 1.5 * exact
        assert gaussian_delta(found, 1 / noise) <= delta
        assert gaussian_delta(exact, 1 / noise) <= renyi_delta(Gaussian(noise), exact)


def renyi_delta(event, epsilon):
    return delta_of_divergence(lambda order: renyi_divergence(event, order), epsilon)


def simple_epsilon(rho, delta):
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def delta_at(order, divergence, epsilon):
    """The conversion at one order, by hand (Canonne, Kamath, Steinke 2020, proposition 12)."""
    power = min(700.0, (order - 1) * (divergence - epsilon))
    return math.exp(power) / (order - 1) * (1 - 1 / order) ** order


def test_conversion_is_the_worst_case_over_all_losses():
    """Losses with E e^{(a-1) L} = e^{(a-1) D} on one point: their best delta is that of the conversion."""
    order, divergence, epsilon = 3.0, 0.4, 1.1
    masses = {loss: math.exp((order - 1) * (divergence - loss)) for loss in np.linspace(epsilon, 8, 4000)}
    worst = max(mass * -math.expm1(epsilon - loss) for loss, mass in masses.items())
    assert worst <= delta_at(order, divergence, epsilon) <= 1.001 * worst


def test_delta_is_the_best_over_all_orders():
    for rho, epsilon in ((0.02, 1.0), (3e4, 3.5e4), (1e-3, 0.05), (0.02, 0.0)):
        dense = min(1.0, min(delta_at(a, rho * a, epsilon) for a in 1 + np.geomspace(1e-7, 1e3, 10_000)))
        assert delta_of_divergence(lambda a, rho=rho: rho * a, epsilon) == pytest.approx(dense, rel=1e-4)


def test_round_trip_between_epsilon_and_delta():
    for event, delta in itertools.product((STEP * 1000, Gaussian(1.0) + Laplace(2.0)), (1e-50, 1e-9, 1e-3)):
        epsilon = renyi_epsilon(event, delta)
        assert renyi_delta(event, epsilon) == pytest.approx(delta, rel=1e-4)
    assert renyi_delta(Gaussian(0.1), 0.0) == 1


def test_search_finds_the_best_order():
    """Against a dense grid of ten thousand orders."""
    for divergence, delta in (
        (lambda a: 0.02 * a, 1e-5),
        (lambda a: 3e4 * a, 1e-12),
        (lambda a: 1e-9 * a, 1e-3),
    ):
        orders = 1 + np.geomspace(1e-7, 1e6 - 1, 10_000)
        dense = min(divergence(a) + math.log1p(-1 / a) - math.log(a * delta) / (a - 1) for a in orders)
        assert epsilon_of_divergence(divergence, delta) <= max(0, dense) * (1 + 1e-6)


@pytest.mark.parametrize("noise", [0.2, 1.0, 1e4])
@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.999])
@pytest.mark.parametrize("steps", [1, 10**9])
def test_extreme_settings_stay_finite_and_ordered(noise, rate, steps):
    event = PoissonSampled(rate, Gaussian(noise)) * steps
    epsilons = [renyi_epsilon(event, delta) for delta in (1e-50, 1e-5, 0.5)]
    assert all(math.isfinite(epsilon) for epsilon in epsilons)
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[1] <= renyi_epsilon(Gaussian(noise) * steps, 1e-5) * (1 + 1e-9)
    assert epsilons[1] <= moments_accountant(rate, noise, steps, 1e-5) * (1 + 1e-9)


@pytest.mark.parametrize(
    "event",
    [
        ApproximateDP(1.0, 1e-6),
        FixedSizeSampled(10, 100, Gaussian(1.0)),
        RandomlyAllocated(10, Gaussian(1.0)),
        PoissonSampled(0.1, Laplace(1.0)),
        Gaussian(1.0) + ApproximateDP(1.0),
    ],
)
def test_events_without_a_theorem_here_are_refused(event):
    for neighbours in ("add-remove", "replace-one"):
        with pytest.raises(UnsupportedEvent, match="account"):
            renyi_epsilon(event, 1e-5, neighbours)


def test_poisson_sampling_under_replace_one_is_refused():
    with pytest.raises(UnsupportedEvent, match="add-remove neighbours only"):
        renyi_epsilon(STEP, 1e-5, "replace-one")
    assert renyi_epsilon(PoissonSampled(1.0, Gaussian(4.0)), 1e-5, "replace-one") == pytest.approx(
        renyi_epsilon(Gaussian(2.0), 1e-5)
    )


@pytest.mark.parametrize(
    ("function", "good", "outside"),
    [
        (renyi_epsilon, {"event": STEP, "delta": 1e-5}, {"event": (), "delta": (0.0, 1.0)}),
        (renyi_divergence, {"event": STEP, "order": 2.0}, {"event": (), "order": (1.0, 0.5, 1e7)}),
        (epsilon_of_divergence, {"divergence": abs, "delta": 1e-5}, {"delta": (0.0, 1.0)}),
        (delta_of_divergence, {"divergence": abs, "epsilon": 1.0}, {"epsilon": (-1e-9,)}),
    ],
)
def test_nonsense_is_refused(function, good, outside):
    assert list(accepted_nonsense(function, good, outside)) == []


def test_nonsense_neighbours_are_refused():
    for neighbours in ("replace", None, True):
        with pytest.raises(InvalidParameter, match="neighbours"):
            renyi_epsilon(STEP, 1e-5, neighbours)
