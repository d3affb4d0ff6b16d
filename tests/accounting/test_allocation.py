"""The law of one epoch against a closed form, quadrature, a Fourier method and simulation."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from discreet.accounting import allocation
from discreet.accounting.allocation import AllocationLoss, Enclosure, allocation_loss
from discreet.accounting.pairs import DiscretePair
from discreet.errors import UnsupportedEvent
from support.refusals import accepted_nonsense


def delta(pld: DiscretePair, ratio: float) -> float:
    """The hockey-stick divergence H_a at a = ``ratio``."""
    return float(np.maximum(pld.p - ratio * pld.q, 0).sum()) + pld.p_infinite


def call(strike: np.ndarray, noise: float) -> np.ndarray:
    """E (W - strike)_+ of one lognormal term (Black and Scholes)."""
    k = np.maximum(strike, 1e-300)
    z = -np.log(k) * noise
    return np.where(strike > 0, ndtr(z + 0.5 / noise) - k * ndtr(z - 0.5 / noise), 1 - strike)


def put(strike: np.ndarray, noise: float) -> np.ndarray:
    """E (strike - W)_+ of one lognormal term."""
    k = np.maximum(strike, 1e-300)
    z = np.log(k) * noise
    return np.where(strike > 0, k * ndtr(z + 0.5 / noise) - ndtr(z - 0.5 / noise), 0.0)


def given_the_others(
    ratio: float, noise: float, steps: int, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """H_remove and H_add at ``ratio`` when all terms but one add up to ``others``."""
    remove = call(steps * ratio - others, noise) / steps
    add = ratio / steps * put(steps / ratio - others, noise)
    return remove, add


def faults(pld: AllocationLoss, ratio: float, exact: tuple[float, float], accuracy: float) -> list[str]:
    """The directions in which ``exact``, known up to a relative ``accuracy``, is not enclosed at ``ratio``."""
    found = []
    for name, enclosure, value in zip(("remove", "add"), pld, exact, strict=True):
        low, high = delta(enclosure.lower, ratio), delta(enclosure.upper, ratio)
        if not low * (1 - accuracy) <= value <= high * (1 + accuracy) + 1e-300:
            found.append(f"{name} at {ratio:g}: {value!r} is not between {low!r} and {high!r}")
    return found


def gap(enclosure: Enclosure, ratio: float) -> float:
    low, high = delta(enclosure.lower, ratio), delta(enclosure.upper, ratio)
    return (high - low) / high


def one_step(ratio: float, noise: float) -> tuple[float, float]:
    with mpmath.workdps(60):
        a, s = mpmath.mpf(ratio), mpmath.mpf(noise)
        value = mpmath.ncdf(1 / (2 * s) - s * mpmath.log(a)) - a * mpmath.ncdf(
            -1 / (2 * s) - s * mpmath.log(a)
        )
        return (float(value),) * 2


def two_steps(ratio: float, noise: float) -> tuple[float, float]:
    def integrand(z: float, direction: int) -> float:
        w = np.array(math.exp(z / noise - 0.5 / noise**2))
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return density * float(given_the_others(ratio, noise, 2, w)[direction])

    values = []
    for direction, strike in enumerate((2 * ratio, 2 / ratio)):
        kink = noise * math.log(strike) + 0.5 / noise
        inside = sorted({-12.0, 12.0 + 1 / noise, min(max(kink, -12.0), 12.0), 1 / noise, 0.0})
        parts = itertools.pairwise(inside)
        values.append(
            sum(quad(integrand, *part, (direction,), epsabs=0, epsrel=1e-10, limit=200)[0] for part in parts)
        )
    return values[0], values[1]


def graded(kink: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Quadrature of the standard normal law, finer and finer towards ``kink``: one row of nodes and weights each."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    distance = np.geomspace(2e-3, 30, 22)
    offsets = np.concatenate([-distance[::-1], [0.0], distance])
    low, high = -12, 12 + 1 / noise
    edges = np.clip(np.clip(kink, low, high)[..., None] + offsets, low, high)
    half = np.diff(edges)[..., None] / 2
    z = edges[..., :-1, None] + half * (1 + nodes)
    mass = half * weights * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return z.reshape(*kink.shape, -1), mass.reshape(*kink.shape, -1)


def three_steps(ratio: float, noise: float) -> tuple[float, float]:
    values = []
    for direction, strike in enumerate((3 * ratio, 3 / ratio)):
        kink = noise * math.log(strike) + 0.5 / noise
        z, outer = graded(np.array(kink), noise)
        first = np.exp(z / noise - 0.5 / noise**2)
        rest = np.maximum(strike - first, 1e-300)
        z, inner = graded(noise * np.log(rest) + 0.5 / noise, noise)
        second = np.exp(z / noise - 0.5 / noise**2)
        both = given_the_others(ratio, noise, 3, first[:, None] + second)[direction]
        values.append(float(outer @ (inner * both).sum(axis=1)))
    return values[0], values[1]


def tight(pld: AllocationLoss, ratio: float, width: float) -> bool:
    """True if the curves of both laws are less than ``width`` apart in epsilon, in both directions."""
    return all(
        delta(enclosure.lower, ratio * math.exp(-width / 2))
        >= delta(enclosure.upper, ratio * math.exp(width / 2))
        for enclosure in pld
    )


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.5, 1.0, 4.0, 100.0, 1e4])
def test_one_step_is_the_gaussian_mechanism(noise):
    pld = allocation_loss(noise, 1, tail=1e-60, resolution=0.02)
    for place in (-8, -3, -1, -0.5, 0, 0.2, 0.5, 1, 2, 3, 5, 8, 12):
        ratio = math.exp(place / noise)
        exact = one_step(ratio, noise)
        assert faults(pld, ratio, exact, 1e-14) == []
        assert place < 0 or tight(pld, ratio, 1e-3 * (1 + place) / noise)


@pytest.mark.parametrize("noise", [0.3, 0.6, 1.0, 3.0])
def test_two_steps_agree_with_quadrature(noise):
    pld = allocation_loss(noise, 2, tail=1e-30, resolution=0.02)
    for place in (-3, -1, -0.3, 0, 0.3, 1, 2, 3, 4):
        ratio = math.exp(place / noise)
        assert faults(pld, ratio, two_steps(ratio, noise), 1e-8) == []
        assert place < 0 or tight(pld, ratio, 5e-4 * (1 + place) / noise)


@pytest.mark.parametrize("noise", [0.4, 1.0, 2.0])
def test_three_steps_agree_with_quadrature(noise):
    pld = allocation_loss(noise, 3, tail=1e-30, resolution=0.02)
    for place in (-1, 0, 0.5, 1, 2, 3):
        ratio = math.exp(place / noise)
        assert faults(pld, ratio, three_steps(ratio, noise), 1e-8) == []
        assert place < 0 or tight(pld, ratio, 5e-4 * (1 + place) / noise)


@settings(max_examples=25, deadline=None)
@given(
    noise=st.floats(math.log(0.3), math.log(20)).map(math.exp),
    place=st.floats(-1.0, 6.0),
    steps=st.sampled_from([1, 2]),
    resolution=st.floats(0.01, 1 / 16),
)
def test_small_epochs_are_enclosed_for_any_parameters(noise, place, steps, resolution):
    ratio = math.exp(place / noise)
    exact = one_step(ratio, noise) if steps == 1 else two_steps(ratio, noise)
    pld = allocation_loss(noise, steps, tail=1e-40, resolution=resolution)
    trusted = tuple(v if v > 1e-14 else delta(e.lower, ratio) for v, e in zip(exact, pld, strict=True))
    assert faults(pld, ratio, trusted, 1e-8) == []


@settings(max_examples=25, deadline=None)
@given(
    noise=st.floats(math.log(0.3), math.log(50)).map(math.exp),
    steps=st.floats(math.log(2), math.log(1e5)).map(lambda x: round(math.exp(x))),
    tails=st.tuples(st.floats(-40, -3), st.floats(-40, -3)),
    resolutions=st.tuples(st.floats(0.03, 1 / 16), st.floats(0.03, 1 / 16)),
)
def test_enclosures_of_the_same_epoch_overlap(noise, steps, tails, resolutions):
    first, second = (
        allocation_loss(noise, steps, tail=10**tail, resolution=resolution)
        for tail, resolution in zip(tails, resolutions, strict=True)
    )
    for ratio in np.exp(np.linspace(-3, 6, 30) / (noise * math.sqrt(steps))):
        for one, two in zip(first, second, strict=True):
            for low, high in ((one.lower, two.upper), (two.lower, one.upper), (one.lower, one.upper)):
                assert delta(low, ratio) <= delta(high, ratio) * (1 + 1e-13)


def fourier(noise: float, steps: int, spacing: float, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Values and masses of the average by a plain FFT, wrong by about spacing^2 and 1e-14: not a bound."""
    k = np.arange(int(largest / spacing))
    smooth = np.diff(call(spacing * np.concatenate([[-1.0], k, [len(k)]]), noise)) / spacing
    size = 2 ** math.ceil(math.log2(2 * steps / spacing + len(k)))
    masses = np.fft.irfft(np.fft.rfft(np.diff(smooth), size) ** steps, size)
    return spacing * np.arange(size) / steps, masses


@pytest.mark.parametrize(
    ("noise", "steps", "spacing"), [(1.0, 100, 0.005), (2.0, 1000, 0.005), (1.0, 37, 0.002)]
)
def test_many_steps_agree_with_a_fourier_method(noise, steps, spacing):
    values, masses = fourier(noise, steps, spacing, math.exp(8 / noise))
    pld = allocation_loss(noise, steps, tail=1e-14, resolution=0.02)
    spread = math.sqrt(math.expm1(noise**-2) / steps)
    for ratio in np.exp(spread * np.array([-2, -0.5, 0, 0.5, 1, 2, 3])):
        exact = masses @ np.maximum(values - ratio, 0), masses @ np.maximum(1 - ratio * values, 0)
        assert faults(pld, ratio, exact, 3e-5) == []
        assert ratio < 1 or tight(pld, ratio, 5e-4 * (spread + math.log(ratio)))


def simulation_faults(pld: AllocationLoss, noise: float, steps: int, draws: int) -> list[str]:
    """Expectations of exact conditional values, with 5 standard errors: false alarms below 1e-6 per value."""
    z = np.random.default_rng(20240607).standard_normal((draws, steps - 1))
    others = np.exp(z / noise - 0.5 / noise**2).sum(axis=1)
    found = []
    for ratio in (0.8, 1.0, 1.2, 1.5):
        for name, enclosure, values in zip(
            ("remove", "add"), pld, given_the_others(ratio, noise, steps, others), strict=True
        ):
            error = 5 * values.std() / math.sqrt(draws)
            low, high = delta(enclosure.lower, ratio), delta(enclosure.upper, ratio)
            if not low - error <= values.mean() <= high + error:
                found.append(f"{name} at {ratio}")
    return found


def test_a_hundred_steps_agree_with_simulation():
    pld = allocation_loss(0.7, 100, tail=1e-12, resolution=0.02)
    assert simulation_faults(pld, 0.7, 100, 20_000) == []


@pytest.mark.parametrize(("noise", "steps"), [(0.73, 100), (0.7, 115), (0.7, 87)])
def test_the_simulation_catches_a_wrong_law(noise, steps):
    pld = allocation_loss(noise, steps, tail=1e-12, resolution=0.02)
    assert simulation_faults(pld, 0.7, 100, 20_000) != []


@pytest.mark.parametrize(
    ("noise", "steps", "target", "low", "high"),
    [  # from a throw-away program: chords and tangents on a linear grid, Fourier power, no rounding bound
        (1.0, 100, 1e-5, 0.620933, 0.620948),
        (1.0, 1000, 1e-6, 0.171725, 0.171734),
        (0.6, 1000, 1e-6, 2.068370, 2.068401),
    ],
)
def test_brackets_of_an_independent_program_are_met(noise, steps, target, low, high):
    remove = allocation_loss(noise, steps, tail=target * 1e-6, resolution=0.01).remove
    assert delta(remove.upper, math.exp(low)) >= target
    assert delta(remove.lower, math.exp(high)) <= target
    assert (
        delta(remove.lower, math.exp(low * (1 - 1e-4)))
        > target
        > delta(remove.upper, math.exp(high * (1 + 1e-4)))
    )


@pytest.mark.parametrize(
    ("noise", "steps", "tail", "resolution"),
    [(0.3, 10**4, 1e-60, 0.05), (1.0, 10**6, 1e-12, 0.05), (100.0, 10**6, 1e-30, 0.05), (0.8, 7, 1e-9, 0.02)],
)
def test_the_two_laws_have_the_right_moments_and_form(noise, steps, tail, resolution):
    pld = allocation_loss(noise, steps, tail=tail, resolution=resolution)
    for enclosure in pld:
        assert 0 < enclosure.upper.p_infinite <= tail
        assert enclosure.lower.p_infinite == 0
        for part in enclosure:
            assert np.all(np.diff(part.losses) > 0)
            assert np.allclose(np.log(part.p) - np.log(part.q), part.losses, rtol=1e-11, atol=1e-9)
            assert part.p.sum() == pytest.approx(1, abs=2 * tail + 5e-6)
            assert part.q.sum() == pytest.approx(1, abs=2 * tail + 5e-6)
    upper, lower = (float(np.sum(part.q * np.expm1(part.losses) ** 2)) for part in pld.remove)
    variance = math.expm1(noise**-2) / steps
    if noise >= 0.8:
        assert lower < variance * (1 + 1e-6)
        assert upper > variance * (1 - 1e-6)
        assert upper - lower < 0.12 * math.log2(2 * steps) * resolution**2 * variance


def test_the_error_is_of_second_order():
    wide, narrow = (
        allocation_loss(1.0, 300, tail=1e-12, resolution=resolution).remove for resolution in (1 / 16, 1 / 64)
    )
    ratio = math.exp(0.3)
    assert 10 < gap(wide, ratio) / gap(narrow, ratio) < 25


@pytest.mark.parametrize("noise", [0.2, 1.0, 30.0])
def test_the_masses_of_one_term_are_accurate(noise):
    grid = allocation._Grid(1 / noise, 10, 1 / 16)
    one = allocation._one_term(grid, 1e-60)
    with mpmath.workdps(200):
        v = 1 / mpmath.mpf(noise)

        def priced(strike: mpmath.mpf) -> mpmath.mpf:
            z = -mpmath.log(strike) / v
            return mpmath.ncdf(z + v / 2) - strike * mpmath.ncdf(z - v / 2)

        for exponent, piece in list(one.pieces.items())[:: max(1, len(one.pieces) // 6)]:
            inner = piece.rows.shape[1] // 2
            for index in (1, inner, piece.rows.shape[1] - 2):
                spacing = mpmath.mpf(2) ** exponent
                at = 1 + (piece.start + index) * spacing
                exact = (priced(at - spacing) - 2 * priced(at) + priced(at + spacing)) / spacing
                assert abs(math.log(piece.rows[0, index] / float(exact))) <= one.error
    assert one.error < 1e-12


@pytest.mark.parametrize("steps", [64, 1000])
def test_rounding_errors_stay_within_their_bound(steps):
    grid = allocation._Grid(1.0, steps, 0.03)
    one = allocation._one_term(grid, 1e-20)
    total, cut = allocation._total(grid, 2e-20)
    single, whole = (
        math.fsum(mass for piece in pld.pieces.values() for mass in piece.rows[0]) for pld in (one, total)
    )
    assert abs(steps * math.log(single) - math.log(whole)) <= total.error + cut
    assert total.error < 1e-8


def test_nonsense_is_refused_by_name():
    good = {"noise_multiplier": 1.0, "steps": 3, "tail": 1e-9, "resolution": 0.05}
    outside = {
        "noise_multiplier": (0.0, -1.0),
        "steps": (0, -1, 2.5),
        "tail": (0.0, 1e-200, 0.5),
        "resolution": (0.0, 0.1, 1e-6),
    }
    assert list(accepted_nonsense(allocation_loss, good, outside)) == []


@pytest.mark.parametrize(("noise", "steps"), [(0.05, 100), (1e5, 100), (1.0, 10**9)])
def test_what_is_not_supported_says_what_to_use(noise, steps):
    with pytest.raises(UnsupportedEvent, match="PoissonSampled"):
        allocation_loss(noise, steps, tail=1e-9, resolution=0.05)
