"""Bare (epsilon, delta) pairs: exact sums, and groups against brute force."""

import math
from fractions import Fraction

import pytest

from discreet.accounting.gaussian import gaussian_delta
from discreet.guarantee import EpsilonDelta, group_privacy, round_up
from support.refusals import accepted_nonsense


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (0.1, 1e-6), (1.0, 1e-9), (1e-9, 0.01)])
def test_group_is_a_chain_of_single_steps(epsilon, delta, size):
    """delta_{k+1} = delta + e^epsilon delta_k, one record at a time."""
    chained = 0.0
    for _ in range(size):
        chained = delta + math.exp(epsilon) * chained
    group = group_privacy(epsilon, delta, size)
    assert group.epsilon == pytest.approx(size * epsilon)
    assert chained * (1 - 1e-12) <= group.delta <= chained * (1 + 1e-11)


@pytest.mark.parametrize("size", [2, 5])
def test_group_bounds_the_gaussian_group(size):
    """A Gaussian release of a group of k has k times the mu; the generic theorem may only be larger."""
    for epsilon in (0.1, 1.0, 3.0):
        group = group_privacy(epsilon, gaussian_delta(epsilon, 0.3), size)
        assert gaussian_delta(group.epsilon, size * 0.3) <= group.delta


def test_group_of_hopeless_size_has_delta_one():
    assert group_privacy(1.0, 1e-6, 10**6) == EpsilonDelta(1e6, 1.0)
    assert group_privacy(1.0, 0.0, 10**6) == EpsilonDelta(1e6, 0.0)


def test_rounding_up_is_exact_where_it_can_be():
    assert round_up(Fraction(3, 2)) == 1.5
    assert Fraction(round_up(100 * Fraction(0.1))) >= 100 * Fraction(0.1) > Fraction(100 * 0.1)


def test_nonsense_is_refused():
    good = {"epsilon": 1.0, "delta": 1e-5, "group_size": 2}
    outside = {"epsilon": (-1e-9,), "delta": (-1e-9, 1.0), "group_size": (0, 1.5, 10**13)}
    assert list(accepted_nonsense(group_privacy, good, outside)) == []
