"""Sizes at which rounding is all there is: rates of 1e-12, 1e12 releases, against a contour integral in 40 digits."""

import math

import mpmath
import numpy as np
import pytest

from discreet import Gaussian, PoissonSampled, account
from discreet.accounting.discretisation import discretise
from discreet.accounting.lattice import ULP, Layers, LossLattice, compose, largest_weight
from discreet.accounting.optimistic import delta_lower
from discreet.accounting.pairs import GaussianPair
from discreet.accounting.renyi import renyi_epsilon
from support.rounding_charge import charged

TERMS = 7


def central_moments(rate, noise):
    """E v^j of v = rate (W - 1), W lognormal of mean 1: the likelihood ratio of one release is 1 + v."""
    q, s = mpmath.mpf(rate), mpmath.mpf(noise)
    return [
        q**j
        * mpmath.fsum(
            (-1) ** (j - i) * mpmath.binomial(j, i) * mpmath.exp(mpmath.mpf(i * (i - 1)) / (2 * s * s))
            for i in range(j + 1)
        )
        for j in range(TERMS + 1)
    ]


def exact_delta(epsilon, rate, noise, steps, added):
    """delta = 1/(2 pi i) int e^{K(z) - z epsilon} / (z (z + 1)) dz through the saddle point.

    K is a series in the rate.

    E (1 + v)^e = 1 + sum_{j >= 2} (e choose j) E v^j with e = z + 1 (removed) or -z (added). The trapezoidal rule is
    exact to e^-70 for these integrands, and the last term of the series shows what the others leave out.
    """
    moments, epsilon = central_moments(rate, noise), mpmath.mpf(epsilon)
    variance = steps * moments[2]
    spread = mpmath.sqrt(variance)
    middle = max(epsilon / variance - mpmath.mpf(1) / 2, 1 / spread)
    total, left_out, spacing = mpmath.mpf(0), mpmath.mpf(0), mpmath.mpf("0.4") / spread
    for k in range(32):
        z = mpmath.mpc(middle, k * spacing)
        exponent, choose, growth = (-z if added else z + 1), mpmath.mpc(1), mpmath.mpc(0)
        for j in range(1, TERMS + 1):
            choose *= (exponent - j + 1) / j
            growth += choose * moments[j] if j > 1 else 0
        left_out = max(left_out, steps * abs(choose * moments[TERMS]))
        term = (mpmath.exp(steps * mpmath.log1p(growth) - z * epsilon) / (z * (z + 1))).real
        total += term if k else term / 2
    assert left_out < 1e-12
    return total * spacing / mpmath.pi


def worst_delta(epsilon, rate, noise, steps):
    return max(exact_delta(epsilon, rate, noise, steps, added) for added in (False, True))


# rate, noise, steps, delta, about the epsilon; the upper bound was below the truth or 0, or the bounds contradicted
# each other, where rounding was charged to first order
EXTREME = [
    (4.81e-12, 1.82, 458 * 10**9, 2.1e-9, 5.19e-6),
    (1.06e-11, 2.31, 963 * 10**9, 8.1e-9, 1.21e-5),
    (5.96e-12, 31.5, 473 * 10**9, 8.1e-11, 3.73e-7),
    (3.84e-12, 5.23, 381 * 10**9, 3.5e-12, 1.82e-6),
    (1.773899842568324e-11, 1.4645745961517838, 808985051263, 6.537984482100631e-10, 4.33e-5),
    (1e-9, 1.0, 10**11, 1e-6, 1.01e-3),
    (1e-8, 20.0, 10**12, 1e-5, 8.3e-4),
]


def test_the_oracle_is_the_gaussian_curve_in_the_limit():
    """So many small releases are one Gaussian release of mu^2 = steps E v^2, to first order in mu."""
    with mpmath.workdps(40):
        rate, noise, steps, epsilon = 1e-9, 3.0, 10**12, 2e-3
        mu = mpmath.sqrt(steps * central_moments(rate, noise)[2])
        at = epsilon / mu - mu / 2
        gaussian = mpmath.ncdf(-at) - mpmath.exp(epsilon) * mpmath.ncdf(-at - mu)
        assert float(abs(worst_delta(epsilon, rate, noise, steps) / gaussian - 1)) < 1e-4


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "about"), EXTREME)
def test_bounds_hold_where_rounding_is_all_there_is(rate, noise, steps, delta, about):
    lower, upper = account(PoissonSampled(rate, Gaussian(noise)) * steps).epsilon_bounds(delta)
    with mpmath.workdps(40):
        # The curve falls, so an epsilon below the truth has more than delta; those far away need no integral.
        low, high = mpmath.mpf(about) * 0.97, mpmath.mpf(about) * 1.03
        assert worst_delta(low, rate, noise, steps) > delta > worst_delta(high, rate, noise, steps)
        assert upper >= low
        assert lower <= high
        if upper < high:
            assert worst_delta(upper, rate, noise, steps) <= delta
        if lower > low:
            assert worst_delta(lower, rate, noise, steps) >= delta


def first_order(lattice, epsilon):
    """The twin: the mean error of a single release, as many times as there are releases, and no more."""
    delta, tail = lattice.curve(0, epsilon)
    charge = min(lattice.cell_error * tail, charged(lattice.layers, tail))
    return (delta + charge) * math.exp(lattice.log_unit(0, epsilon)) + lattice.infinite


@pytest.mark.parametrize("total", [1e-3, 0.1, 3.0, 10.0])
def test_rounding_of_every_release_adds_up_to_an_exponential(total):
    """A law whose tails are all too small by the allowed share u, and T releases with T u = ``total``.

    The exact curve is that of the undisturbed law. The bound from the disturbed one holds; the bound to first order
    fails from T u (tilt + 1) of about 1 on.
    """
    steps, step, tilt = 400, 0.02, 3.0
    share = total / steps
    whole = discretise(GaussianPair(0.05), GaussianPair(0.05), tilt, step, 0.0, np.arange(-40, 41), -60.0)
    weights = np.exp(-tilt * whole.losses)
    untilted = whole.masses * weights
    small = untilted.copy()
    # All tails P(L > l) times 1 - share: what is missing is at the bottom, and the curve wrong by share * tail.
    small[:, 1:] *= 1 - share
    small[:, 0] += share * untilted[:, 1:].sum(axis=1)
    tilted = small / weights
    scale = tilted.sum(axis=1)
    layers = Layers(share, 0.0, np.zeros(1))
    rounded = LossLattice(
        whole.start,
        step,
        tilt,
        tilted / scale[:, None],
        whole.log_scale + np.log(scale),
        0.0,
        0.0,
        1,
        share,
        layers,
    )
    window = (-8.0, 10.0)
    exact, found = (compose([(pld, steps)], window, 0.0) for pld in (whole, rounded))
    fails = False
    for epsilon in (1.0, 2.5, 4.0):
        truth = exact.curve(0, epsilon)[0] * math.exp(exact.log_unit(0, epsilon))
        assert truth <= found.delta_upper(epsilon)[0] * (1 + 1e-9)
        assert delta_lower(found, epsilon)[0] <= truth * (1 + 1e-9)
        fails |= truth > first_order(found, epsilon) * (1 + 1e-9)
    assert fails == (total > 1)


def test_layers_beyond_a_loss_are_additional_laws():
    """r m(l) beyond a loss is at most the curve of r / w times the law beyond, moved by the best shift."""
    losses = np.linspace(0.0, 3.0, 3001)
    masses = np.exp(-losses)
    masses /= masses.sum()
    for tilt in (0.5, 3.0, 40.0):
        shift = math.log1p(1 / tilt)
        growth = math.exp(tilt * shift) / -math.expm1(-shift)
        assert growth == pytest.approx(1 / largest_weight(tilt))
        for at in (0.3, 1.0, 2.5):
            tail = masses[losses > at].sum()
            moved = losses + shift - at
            curve = (masses * np.where(moved > 0, -np.expm1(-moved), 0.0)).sum() / -math.expm1(-shift)
            assert tail <= curve * (1 + 1e-9)


def test_ordinary_sizes_are_charged_as_before():
    """The exponential is its first order where that is small: nothing changes to nine digits."""
    layers = Layers(18 * ULP, 3 * ULP, np.full(5, 1e-3 * ULP)).times(10_000)
    shift, more = layers.split(0.5)
    assert shift == pytest.approx(10_000 * 18 * ULP)
    assert more == pytest.approx(5 * 10_000 * 1e-3 * ULP)
    assert layers.split(0.0) == (pytest.approx(10_000 * 33 * ULP), 0.0)


FAR = [
    (1.2041508831913709e-06, 0.04978989176287173, 38724198, 2.5582950767755966e-281),  # was at least 5e14
    (4e-5, 0.048, 184 * 10**6, 1e-176),
    (1e-3, 0.3, 10**6, 1e-250),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), FAR)
def test_lower_bounds_at_tiny_deltas_are_below_what_another_accountant_proves(rate, noise, steps, delta):
    """Masses that underflow must not count: the moments accountant shares no code, and its bound is an upper one."""
    event = PoissonSampled(rate, Gaussian(noise)) * steps
    lower, upper = account(event).epsilon_bounds(delta)
    assert lower <= renyi_epsilon(event, delta)
    assert lower <= upper
