"""Amplification by sampling: published values, exact sampled mechanisms, and the pairs that must be refused."""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binom, norm

from discreet.accounting.gaussian import gaussian_delta
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.lecture.amplification import (
    fixed_size_amplification,
    poisson_amplification,
    replacement_amplification,
)
from support.refusals import accepted_nonsense

TABLE = [  # rate, epsilon, delta; epsilon of the closed formula in 40 digits
    (0.01, 1.0, 1e-5, 0.0170368632362),
    (0.1, 1.0, 1e-6, 0.15856507874),
    (0.5, 2.0, 1e-6, 1.43378083048),
    (0.01, 0.1, 1e-8, 0.00105115652211),
    (0.01, 4.0, 1e-5, 0.429169590598),
    (0.1, 0.5, 1e-5, 0.0628547234737),
    (1 / 60000, 1.0, 1e-5, 2.86376204138e-5),
]


@pytest.mark.parametrize(("rate", "epsilon", "delta", "amplified"), TABLE)
def test_table(rate, epsilon, delta, amplified):
    expected = pytest.approx((amplified, rate * delta), rel=1e-11)
    assert poisson_amplification(epsilon, delta, rate, neighbours="add-remove") == expected
    records = round(1 / rate)
    assert fixed_size_amplification(epsilon, delta, 1, records, neighbours="replace-one") == expected


def test_formula_over_the_whole_range():
    """Against 60 digits, rounded up, and never above the unsampled epsilon."""
    for rate in (1e-12, 1e-6, 0.3, 0.999999, 1.0):
        for epsilon in (0.0, 1e-12, 0.1, 1.0, 30.0, 699.0, 701.0, 1e4):
            with mpmath.workdps(60):
                exact = mpmath.log1p(mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(epsilon)))
            found = poisson_amplification(epsilon, 0.0, rate, neighbours="add-remove").epsilon
            assert exact <= found <= min(epsilon, exact * (1 + 1e-12)) or found == epsilon


def sampled_delta(epsilon, weights, mu):
    """Hockey stick of sum_k w_k N(k mu/2, 1) against its mirror image, by a fine sum."""
    x = np.linspace(-12, 12, 40_001)
    shifts = np.arange(len(weights)) * mu / 2
    p = sum(w * norm.pdf(x - s) for w, s in zip(weights, shifts, strict=True))
    return float(np.sum(np.maximum(0, p - math.exp(epsilon) * p[::-1])) * (x[1] - x[0]))


def test_poisson_sampled_gaussian_meets_the_bound_with_equality():
    """Removing a record: H(q N(mu) + (1 - q) N(0), N(0)) at the amplified epsilon is exactly rate * delta."""
    x = np.linspace(-12, 14, 40_001)
    for rate, epsilon, mu in ((0.1, 1.0, 1.0), (0.5, 0.3, 0.7)):
        sampled = poisson_amplification(epsilon, gaussian_delta(epsilon, mu), rate, neighbours="add-remove")
        gap = rate * norm.pdf(x - mu) + (1 - rate) * norm.pdf(x) - math.exp(sampled.epsilon) * norm.pdf(x)
        assert np.sum(np.maximum(0, gap)) * (x[1] - x[0]) == pytest.approx(sampled.delta, rel=1e-5)


def test_poisson_with_replace_one_has_a_counter_example():
    """Batch size and one randomised bit: epsilon stays 1, the formula would say 0.1586. Hence the refusal."""
    rate, keep = 0.1, math.e / (1 + math.e)
    # One record, bit 1 or bit 0; sampled, the randomised bit is released, else only "empty".
    sampled_one, sampled_zero = rate * keep, rate * (1 - keep)
    assert math.log(sampled_one / sampled_zero) == pytest.approx(1.0)
    with pytest.raises(UnsupportedEvent, match=r"add-remove.*fixed size"):
        poisson_amplification(1.0, 0.0, rate, neighbours="replace-one")


def test_fixed_sizes_need_replace_one():
    with pytest.raises(UnsupportedEvent, match=r"replace-one.*Poisson"):
        fixed_size_amplification(1.0, 0.0, 10, 100, neighbours="add-remove")
    with pytest.raises(UnsupportedEvent, match=r"replace-one.*Poisson"):
        replacement_amplification(1.0, 0.0, 10, 100, 3, neighbours="add-remove")


@pytest.mark.parametrize(
    ("draws", "records", "inclusion"),
    [(10, 100, 0.09561792499), (100, 100, 0.6339676587), (600, 60000, 0.00995024876)],
)
def test_inclusion_probability_with_replacement(draws, records, inclusion):
    """With one copy paid for, epsilon is that of a sample that holds the record with this probability."""
    found = replacement_amplification(1.0, 0.0, draws, records, 1, neighbours="replace-one")
    assert found.epsilon == pytest.approx(math.log1p(inclusion * math.expm1(1.0)), rel=1e-9)
    assert found.delta == pytest.approx(binom.sf(1, draws, 1 / records), rel=1e-9)


@pytest.mark.parametrize("most_copies", [1, 2, 3])
def test_sampling_with_replacement_against_the_exact_mixture(most_copies):
    """A Gaussian release of a batch drawn with replacement, all chances of 0, 1, 2, ... copies enumerated."""
    for draws, records, epsilon, mu in ((3, 5, 0.5, 0.6), (10, 100, 1.0, 0.5), (6, 4, 0.2, 0.3)):
        weights = binom.pmf(np.arange(draws + 1), draws, 1 / records)
        base = gaussian_delta(epsilon, mu)
        found = replacement_amplification(
            epsilon, base, draws, records, most_copies, neighbours="replace-one"
        )
        assert sampled_delta(found.epsilon, weights, mu) <= found.delta


def test_sampling_with_replacement_costs_more_than_without():
    without = fixed_size_amplification(0.5, 1e-6, 10, 1000, neighbours="replace-one")
    with_copies = replacement_amplification(0.5, 1e-6, 10, 1000, 4, neighbours="replace-one")
    assert with_copies.epsilon > without.epsilon
    assert with_copies.delta > without.delta


def test_full_batch_gains_nothing():
    assert fixed_size_amplification(0.7, 1e-6, 50, 50, neighbours="replace-one") == (0.7, 1e-6)
    assert poisson_amplification(0.7, 1e-6, 1.0, neighbours="add-remove") == (0.7, 1e-6)


PAIR = {"epsilon": 0.5, "delta": 1e-6}
OUTSIDE = {"epsilon": (-1e-9,), "delta": (-1e-9, 1.0)}
BATCH = {"batch_size": 10, "records": 100, "neighbours": "replace-one"}


@pytest.mark.parametrize(
    ("function", "good", "outside"),
    [
        (poisson_amplification, {"rate": 0.1, "neighbours": "add-remove"}, {"rate": (0.0, -0.1, 1.1)}),
        (fixed_size_amplification, BATCH, {"batch_size": (0, 101, 2.5), "records": (0, 10.5)}),
        (
            replacement_amplification,
            BATCH | {"most_copies": 2},
            {"batch_size": (0, 2.5), "records": (0, 1, 10.5), "most_copies": (0, 11)},
        ),
    ],
)
def test_nonsense_is_refused(function, good, outside):
    assert list(accepted_nonsense(function, PAIR | good, OUTSIDE | outside)) == []
    for value in ("replace", None, 1, "Add-Remove"):
        with pytest.raises(InvalidParameter, match="neighbours"):
            function(**PAIR | good | {"neighbours": value})
