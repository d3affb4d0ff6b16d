"""Noise in shares: how far a sum of them is from one noise, and how large it can be."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from discreet.certificate.guarantees import Arithmetic
from discreet.core import noise as one_release
from discreet.core.noise import BoundedSum, add_noise, grid_for, hardened_sum, noise_steps
from discreet.core.noise_shares import (
    OVERFLOW,
    add_noise_share,
    convolution_gap,
    distance_of_shares,
    largest_sum,
)
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.events import Gaussian

EVENT, CLIP = Gaussian(noise_multiplier=2.0), 1.5
GRID = grid_for(EVENT, CLIP, most_records=10_000)
FALSE_ALARMS = 1e-6
"""Of each two-sided test of a variance. The streams are seeded: it is the chance of an unlucky seed."""


def variance_p_value(draws, variance):
    """Two-sided, for normal draws with mean 0."""
    statistic = np.sum(np.square(draws / math.sqrt(variance)))
    return 2 * min(stats.chi2.cdf(statistic, draws.size), stats.chi2.sf(statistic, draws.size))


def shared_noise(parties, shares, size=100_000, seed=1):
    """The sum of the noise of so many parties, in clip norms."""
    stream, nothing = RandomStream(unsafe_seed=seed), BoundedSum(np.zeros(size, np.int64), CLIP, grid=GRID)
    total = sum(add_noise_share(nothing, EVENT, shares, stream) for _ in range(parties))
    return total * GRID / CLIP


def discrete_gaussian(variance, reach):
    weights = np.exp(-np.square(np.arange(-reach, reach + 1)) / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize(("scale", "shares"), list(itertools.product([0.71, 0.8, 1.0, 1.3], [2, 3, 5, 8])))
def test_the_gap_bounds_what_convolution_by_brute_force_shows(scale, shares):
    one, reach = discrete_gaussian(scale**2, 60), 8  # the far tails of the convolution are below rounding
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    middle = len(total) // 2
    near = total[middle - reach : middle + reach + 1]
    single = discrete_gaussian(shares * scale**2, 60 * shares)[60 * shares - reach : 60 * shares + reach + 1]
    gap = np.abs(np.log(near / single)).max()
    assert 1e-12 < gap <= convolution_gap(scale, shares)
    assert gap > convolution_gap(scale, shares) / 1e3 or scale > 0.9  # the bound is not idle


def test_the_gap_is_nothing_for_the_scales_in_use():
    assert convolution_gap(1.0, 1) == 0
    assert 0 < convolution_gap(2.0**20, 50) < 1e-300


@pytest.mark.parametrize("scale", [math.nan, 0.5, -1.0, math.inf])
def test_the_gap_has_no_theorem_for_small_scales(scale):
    with pytest.raises(InvalidParameter, match="scale="):
        convolution_gap(scale, 2)


def test_the_distance_covers_that_of_one_noise_and_suits_a_certificate():
    one = one_release.distance_to_continuous(EVENT, CLIP, GRID, 1000)
    shared = distance_of_shares(EVENT, CLIP, GRID, 1000, shares=10)
    assert one < shared < 1.001 * one
    assert Arithmetic("hardened", 200 * shared).distance == 200 * shared


@pytest.mark.parametrize("shares", [1, 2, 3, 10])
def test_shares_add_up_to_the_noise_of_the_event(shares):
    noise = shared_noise(shares, shares)
    assert variance_p_value(noise, EVENT.noise_multiplier**2) > FALSE_ALARMS
    assert stats.kstest(noise / EVENT.noise_multiplier, "norm").pvalue > FALSE_ALARMS


def test_one_share_too_few_is_seen():
    """The broken twin: noise split among ten where nine remain."""
    assert variance_p_value(shared_noise(9, 10), EVENT.noise_multiplier**2) < FALSE_ALARMS


@pytest.mark.parametrize("shares", [1, 2, 3, 7, 50])
def test_the_variance_of_the_shares_is_exactly_the_event_s_rounded_up_by_a_step(shares):
    exact = EVENT.noise_multiplier * CLIP / GRID
    scale = noise_steps(EVENT, CLIP, GRID, shares)
    assert shares * (scale - 1) ** 2 < exact**2 <= shares * scale**2


def test_secure_sums_need_less_noise_by_the_root_of_the_number_of_parties():
    """Measured: ten parties with noise of their own against ten shares of it. Ratios of variances follow an F law."""
    parties, size = 10, 100_000
    stream, nothing = RandomStream(unsafe_seed=2), BoundedSum(np.zeros(size, np.int64), CLIP, grid=GRID)
    plain = sum(add_noise(nothing, EVENT, stream) for _ in range(parties)) / CLIP
    ratio = np.var(plain) / np.var(shared_noise(parties, parties))
    law = stats.f(size - 1, size - 1)
    assert law.ppf(FALSE_ALARMS / 2) < ratio / parties < law.isf(FALSE_ALARMS / 2)


def test_a_share_keeps_the_sum():
    rows = np.full((100, 3), 0.5)
    total = hardened_sum(rows, CLIP, GRID)
    again = add_noise_share(total, EVENT, 4, RandomStream(unsafe_seed=3))
    noise = RandomStream(unsafe_seed=3).discrete_gaussian(noise_steps(EVENT, CLIP, GRID, 4), (3,))
    assert again.dtype == np.int64
    assert np.array_equal(again - noise, total.value)


def test_the_largest_sum_is_that_of_the_records_and_a_tail():
    alone = largest_sum(EVENT, CLIP, GRID, records=0, dimension=100, shares=3, parties=4)
    scale = noise_steps(EVENT, CLIP, GRID, 3) * math.sqrt(4)
    assert stats.norm.logsf(alone / scale) + math.log(2 * 100) < math.log(OVERFLOW)
    assert alone < 1.2 * scale * stats.norm.isf(OVERFLOW / 200)
    many = largest_sum(EVENT, CLIP, GRID, records=10_000, dimension=100, shares=3, parties=4)
    assert many - alone == 10_000 * math.floor(CLIP / GRID)


@pytest.mark.parametrize("noise", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("records", [1, 10_000, 10**7])
def test_the_usual_grid_never_lets_a_sum_leave_its_64_bits(noise, records):
    event = Gaussian(noise)
    grid = grid_for(event, 1.0, records)
    assert largest_sum(event, 1.0, grid, records, dimension=10**9, shares=1, parties=50) < 2**62


def test_a_grid_that_is_too_fine_is_refused():
    with pytest.raises(InvalidParameter, match="grid="):
        largest_sum(EVENT, CLIP, GRID, records=10**9 * 10_000, dimension=1, shares=1, parties=2)
