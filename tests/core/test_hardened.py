"""Hardened sums: exact, order-free, never above the clip norm, and as private as continuous noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from discreet.core.noise import (
    MOST_ROWS,
    add_noise,
    distance_to_continuous,
    grid_for,
    hardened_sum,
    noise_steps,
    sum_grid,
)
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, PlanViolation
from discreet.events import Gaussian, Laplace

EVENT = Gaussian(1.0)
GRID = grid_for(EVENT, 1.0, most_records=100_000)


def rows(count, dimension, dtype=np.float64, seed=0):
    """Rows of norm at most 1, of very different sizes."""
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((count, dimension)) * 10.0 ** rng.uniform(-14, 0, (count, dimension))
    return (0.999 * draws / np.maximum(np.linalg.norm(draws, axis=1, keepdims=True), 1)).astype(dtype)


def exact_counts(values, grid):
    """Oracle: each number as an exact fraction, divided by the grid and cut toward zero."""
    return [math.trunc(Fraction(float(x)) / Fraction(grid)) for x in values]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("grid", [GRID, 2.0**-10, 0.25])
def test_the_sum_is_exact(dtype, grid):
    data = rows(50, 4, dtype)
    expected = np.sum([exact_counts(row, grid) for row in data], axis=0)
    for given_rows in (data, torch.from_numpy(data)):
        total = hardened_sum(given_rows, 1.0, grid)
        assert total.value.tolist() == expected.tolist()
        assert (total.clip_norm, total.grid, total.norm, total.arithmetic) == (1.0, grid, "l2", "hardened")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6),
    st.integers(-60, 4),
)
def test_rounding_toward_zero_never_increases_a_norm(row, exponent):
    grid, clip_norm = 2.0**exponent, 1e3
    if clip_norm / grid > 2**62:
        grid = 2.0**-50
    counts = hardened_sum(np.array([row]), clip_norm, grid).value.tolist()
    rounded, exact = [Fraction(n) * Fraction(grid) for n in counts], [Fraction(x) for x in row]
    assert sum(x * x for x in rounded) <= sum(x * x for x in exact)
    assert sum(map(abs, rounded)) <= sum(map(abs, exact))
    assert all(abs(a - b) < Fraction(grid) for a, b in zip(rounded, exact, strict=True))


def test_rounding_to_nearest_would_be_caught():
    # The broken twin of the test above: a vector of norm 1 that grows when rounded to the nearest grid point.
    row, grid = [Fraction(5, 13), Fraction(12, 13)], Fraction(1, 4)
    nearest = [round(x / grid) * grid for x in row]
    assert sum(x * x for x in nearest) > sum(x * x for x in row) == 1


def test_order_does_not_matter():
    data, rng = rows(3000, 7, np.float32), np.random.default_rng(1)
    sums, noisy, floats = set(), set(), set()
    for _ in range(20):
        shuffled = data[rng.permutation(len(data))]
        total = hardened_sum(shuffled, 1.0, GRID)
        sums.add(total.value.tobytes())
        noisy.add(add_noise(total, EVENT, RandomStream(unsafe_seed=1)).tobytes())
        floats.add(np.add.reduce(shuffled).tobytes())
    assert (len(sums), len(noisy)) == (1, 1)
    assert len(floats) > 1  # the broken twin: floating-point sums do depend on the order


def test_neighbouring_sums_differ_by_the_rounded_record():
    data = rows(500, 3)
    with_record, without = hardened_sum(data, 1.0, GRID).value, hardened_sum(data[1:], 1.0, GRID).value
    difference = [int(n) for n in with_record - without]
    assert difference == exact_counts(data[0], GRID)
    assert sum(n * n for n in difference) <= (1 / Fraction(GRID)) ** 2


def test_sums_beyond_int64_keep_their_differences():
    # Overflow is a fault of the declared number of records; it costs accuracy and not privacy.
    grid, data = 2.0**-60, np.array([[0.9]] * 20 + [[-0.4]])
    with_record, without = hardened_sum(data, 1.0, grid).value, hardened_sum(data[:-1], 1.0, grid).value
    assert 20 * 0.9 * 2.0**60 > 2**63
    difference = (int(with_record[0]) - int(without[0]) + 2**63) % 2**64 - 2**63
    assert difference == exact_counts([-0.4], grid)[0]


def test_long_inputs_are_added_in_parts():
    data = rows(3000, 1000, np.float32)
    expected = np.sum((data.astype(np.float64) / GRID).astype(np.int64), axis=0)
    assert np.array_equal(hardened_sum(data, 1.0, GRID).value, expected)
    assert np.array_equal(hardened_sum(torch.from_numpy(data), 1.0, GRID).value.numpy(), expected)


@pytest.mark.parametrize("shape", [(0, 3), (0,), (5,), (4, 0), (2, 3, 4)])
def test_shapes(shape):
    for empty in (np.zeros(shape), torch.zeros(shape)):
        total = hardened_sum(empty, 1.0, GRID)
        assert tuple(total.value.shape) == shape[1:]
        assert not total.value.any()
        assert tuple(add_noise(total, EVENT).shape) == shape[1:]


# The grid.


@pytest.mark.parametrize("event", [Gaussian(0.01), Gaussian(0.7), Gaussian(50.0), Laplace(2.0)], ids=str)
@pytest.mark.parametrize("clip_norm", [1e-200, 1e-3, 1.0, 7.7, 1e200])
@pytest.mark.parametrize("most_records", [1, 1000, 10**6, 10**9])
def test_grids_are_fine_and_safe(event, clip_norm, most_records):
    grid = grid_for(event, clip_norm, most_records)
    steps = noise_steps(event, clip_norm, grid)
    assert math.frexp(grid)[0] == 0.5
    assert Fraction(clip_norm) / Fraction(grid) * most_records < 2**60
    assert 2**20 <= steps < 2**39 + 1
    if most_records <= 10**6 and steps < 2**38:  # coarser than asked for only where int64 demands it
        assert Fraction(clip_norm) / Fraction(grid / 2) * most_records >= 2**60
    # The claim of grid_for: with a million records and a multiplier near 1, rounding is below 1e-5 of the noise.
    assert most_records > 10**6 or event == Gaussian(0.01) or most_records / steps < 1e-5


def test_hardened_and_float_means_agree():
    data = rows(2000, 5)
    noisy = add_noise(hardened_sum(data, 1.0, GRID), Gaussian(1e-3), RandomStream(unsafe_seed=2))
    assert noisy == pytest.approx(data.sum(0), abs=6e-3)  # 6 standard deviations: false-alarm rate 1e-8


# Hardened noise against continuous noise.


def discrete_gaussian(sigma):
    x = np.arange(-60 * sigma, 60 * sigma + 1)
    p = np.exp(-((x / sigma) ** 2) / 2)
    return x, p / p.sum()


@pytest.mark.parametrize("sigma", [1, 2, 5, 20])
@pytest.mark.parametrize("dimension", [1, 2])
def test_distance_bounds_the_true_total_variation(monkeypatch, sigma, dimension):
    monkeypatch.setattr("discreet.core.noise.noise_steps", lambda event, clip_norm, grid: sigma)
    x, discrete = discrete_gaussian(sigma)
    rounded = stats.norm.cdf((x + 0.5) / sigma) - stats.norm.cdf((x - 0.5) / sigma)
    if dimension == 2:
        discrete, rounded = np.outer(discrete, discrete), np.outer(rounded, rounded)
    true = np.abs(discrete - rounded).sum() / 2
    bound = distance_to_continuous(EVENT, 1.0, 1.0, dimension)
    assert true <= bound <= 4 * true


@pytest.mark.parametrize("scale", [1, 3, 30])
def test_distance_bounds_the_true_total_variation_for_laplace(monkeypatch, scale):
    monkeypatch.setattr("discreet.core.noise.noise_steps", lambda event, clip_norm, grid: scale)
    x = np.arange(-100 * scale, 100 * scale + 1)
    discrete = np.exp(-np.abs(x) / scale)
    rounded = stats.laplace.cdf((x + 0.5) / scale) - stats.laplace.cdf((x - 0.5) / scale)
    true = np.abs(discrete / discrete.sum() - rounded).sum() / 2
    assert true <= distance_to_continuous(Laplace(1.0), 1.0, 1.0, 1) <= 2 * true


def test_stated_distances():
    default = distance_to_continuous(EVENT, 1.0, GRID, dimension=10**8)
    assert default < 1e-24 * 10**4
    assert distance_to_continuous(EVENT, 1.0, 2.0**-20, dimension=10**8) < 4e-14 * 10**4
    assert distance_to_continuous(EVENT, 1.0, GRID, dimension=0) == 0


@pytest.mark.parametrize("sigma", [2, 10])
@pytest.mark.parametrize("shift", [1, 7])
def test_divergences_do_not_exceed_the_continuous_ones(sigma, shift):
    # Rényi: exactly below the continuous Gaussian's, order * (shift / sigma)**2 / 2 (CKS 2020). Hockey stick:
    # the whole curve within (1 + exp(epsilon)) times the distance.
    x, p = discrete_gaussian(sigma)
    shifted = (x - shift) / sigma
    for order in (1.5, 2.0, 8.0):
        exponent = -order * (x / sigma) ** 2 / 2 - (1 - order) * shifted**2 / 2
        renyi = (logsumexp(exponent) - logsumexp(-((x / sigma) ** 2) / 2)) / (order - 1)
        assert renyi <= order * (shift / sigma) ** 2 / 2 * (1 + 1e-9)
    q = np.exp(-(shifted**2) / 2)
    q /= q.sum()
    distance = np.sqrt(np.expm1(1 / (144 * sigma**4))) / 2
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
        ratio = shift / sigma
        delta = stats.norm.cdf(ratio / 2 - epsilon / ratio)
        delta -= math.exp(epsilon) * stats.norm.cdf(-ratio / 2 - epsilon / ratio)
        assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= delta + (1 + math.exp(epsilon)) * distance


# Refusals.

NAN = float("nan")
DATA = np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: grid_for(EVENT, NAN, 10), "clip_norm"),
        (lambda: grid_for(EVENT, 1e-300, 10), "clip_norm"),
        (lambda: grid_for(EVENT, 1.0, 0), "most_records"),
        (lambda: grid_for(EVENT, 1.0, NAN), "most_records"),
        (lambda: grid_for(EVENT, 1.0, 2**45), "most_records"),
        (lambda: grid_for(Gaussian(1e-9), 1.0, 10**9), "most_records"),
        (lambda: grid_for(Gaussian(1e300), 1e100, 10), "grid"),
        (lambda: grid_for("gaussian", 1.0, 10), "event"),
        (lambda: hardened_sum(DATA, NAN, GRID), "clip_norm"),
        (lambda: hardened_sum(DATA, 2.0, 0.3), "grid"),
        (lambda: hardened_sum(DATA, 2.0, NAN), "grid"),
        (lambda: hardened_sum(DATA, 2.0, GRID, "l7"), "norm"),
        (lambda: hardened_sum(DATA.astype(int), 2.0, GRID), "rows"),
        (lambda: hardened_sum(DATA.astype(np.longdouble), 2.0, GRID), "rows"),
        (lambda: distance_to_continuous(EVENT, 1.0, GRID, -1), "dimension"),
        (lambda: distance_to_continuous(EVENT, 1.0, 2.0**-3, 5), "grid"),
    ],
)
def test_refusals(call, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        call()


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf, 1.0000001, -3.0, 1e300])
def test_rows_that_were_not_clipped_are_refused_without_showing_them(bad):
    data = np.zeros((5, 2))
    data[3, 1] = bad
    for unclipped in (data, torch.from_numpy(data)):
        with pytest.raises(
            PlanViolation, match=r"^A row exceeds the clip norm or is not finite; clip before"
        ):
            hardened_sum(unclipped, 1.0, GRID)


def test_no_row_raises_what_numpy_was_told_to_raise():
    rows = np.array([[5e-324, 0.5], [1e-310, -0.25]])
    with np.errstate(all="raise"):
        assert hardened_sum(rows, 1.0, 4.0 * GRID).value.tolist() == [0, int(0.25 / (4.0 * GRID))]
        assert hardened_sum(rows, 1e90, 2.0**280).value.tolist() == [0, 0]


@given(st.floats(1e-100, 1e100))
def test_the_grid_of_sums_that_become_floats(clip_norm):
    """A power of two that divides the clip norm into 2**29 to 2**30 steps, so that all sums are int64."""
    grid = sum_grid(clip_norm)
    assert math.frexp(grid)[0] == 0.5
    assert 2**29 <= Fraction(clip_norm) / Fraction(grid) < 2**30
    assert MOST_ROWS * 2**30 < 2**63
