"""Where delta comes down to zero: closed forms of few bounded losses, in rational and high-precision arithmetic."""

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest

from discreet import ApproximateDP, Bounds, Gaussian, Laplace, PoissonSampled, account
from discreet.accounting.discretisation import LossDistribution
from discreet.accounting.max_loss import delta_near_largest, epsilon_near_largest
from discreet.accounting.pairs import DiscretePair, LaplacePair
from discreet.accounting.search import CurveSearch


def responses_delta(epsilon_one, count, at):
    """delta of ``count`` randomised responses, by adding up all outcomes in 60 digits."""
    with mpmath.workdps(60):
        one, at = mpmath.mpf(epsilon_one), mpmath.mpf(at)
        yes = 1 / (1 + mpmath.exp(-one))
        total = mpmath.mpf(0)
        for lies in range(count + 1):
            loss = (count - 2 * lies) * one
            if loss > at:
                weight = mpmath.binomial(count, lies) * yes ** (count - lies) * (1 - yes) ** lies
                total += weight * (1 - mpmath.exp(at - loss))
        return total


def two_laplaces_delta(width, at):
    """delta of two Laplace releases at ``at`` > 0: the law of one loss is two atoms and e^{l/2} between them."""
    with mpmath.workdps(40):
        w, at = mpmath.mpf(width), mpmath.mpf(at)

        def one(epsilon):
            return 1 - mpmath.exp((epsilon - w) / 2) if epsilon < w else mpmath.mpf(0)

        def clipped(epsilon):  # H of one release, also for negative epsilons
            return one(epsilon) if epsilon > -w else 1 - mpmath.exp(epsilon)

        middle = mpmath.quad(
            lambda loss: mpmath.exp((loss - w) / 2) / 4 * clipped(at - loss), [max(-w, at - w), w]
        )
        return clipped(at - w) / 2 + middle + mpmath.exp(-w) / 2 * clipped(at + w)


def test_at_the_largest_loss_delta_is_zero_and_below_it_is_not():
    assert account(Laplace(1.0) * 3).delta_bounds(3.0) == Bounds(0.0, 0.0)
    assert account(ApproximateDP(0.3) * 7).delta_bounds(float(7 * Fraction(0.3)) + 1e-15) == Bounds(0.0, 0.0)
    assert account(Laplace(0.5) + ApproximateDP(0.25) * 4).delta(3.0) == 0.0
    assert account(Laplace(1.0) * 3).delta_bounds(math.nextafter(3.0, 0.0)).upper > 0
    # 1 / 0.1 is a little below ten in exact arithmetic
    assert account(Laplace(0.1)).delta(10.0) == 0.0
    # exposure stays
    assert account(ApproximateDP(1.0, 1e-6)).delta_bounds(1.0) == pytest.approx((1e-6, 1e-6), rel=1e-12)


@pytest.mark.parametrize("below", [1e-12, 1e-6, 1e-3, 0.05, 0.3])
def test_randomised_responses_near_the_top(below):
    for one, count in ((0.3, 7), (2.0, 3), (0.05, 40)):
        at = one * count - below
        exact = responses_delta(one, count, at)
        lower, upper = account(ApproximateDP(one) * count).delta_bounds(at)
        assert lower <= exact <= upper
        assert upper <= exact * 1.011 + 1e-12


@pytest.mark.parametrize("below", [1e-9, 1e-5, 1e-2, 0.4])
def test_two_laplaces_near_the_top(below):
    for width in (0.5, 1.0, 4.0):
        exact = two_laplaces_delta(width, 2 * width - below)
        lower, upper = account(Laplace(1 / width) * 2).delta_bounds(2 * width - below)
        assert lower <= exact <= upper
        assert upper <= exact * 1.011


def test_the_bounds_of_the_formula_close_towards_the_top():
    pld = [LossDistribution(LaplacePair(1.0), LaplacePair(1.0), 2)]
    gaps = [delta_near_largest(pld, 2.0 - below).gap for below in (1e-2, 1e-4, 1e-6)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-5


def test_a_formula_without_the_atoms_nearby_would_be_caught():
    """The mass exactly at the top is not an upper bound: outcomes a little below count as well."""
    below = 0.3
    top = 0.25 * -math.expm1(-below)
    exact = two_laplaces_delta(1.0, 2.0 - below)
    assert (
        top
        < exact
        <= delta_near_largest([LossDistribution(LaplacePair(1.0), LaplacePair(1.0), 2)], 2.0 - below).upper
    )


def test_epsilon_near_the_top_by_all_outcomes():
    pair = DiscretePair.randomised_response(0.7)
    for count, delta in product((1, 3, 6), (1e-9, 1e-4, 1e-2)):
        lower, upper = epsilon_near_largest([LossDistribution(pair, pair, count)], delta)
        assert responses_delta(0.7, count, lower) >= delta * (1 - 1e-9)
        assert upper == pytest.approx(0.7 * count, rel=1e-13)


def test_a_direction_beyond_its_largest_loss_costs_nothing(monkeypatch):
    """Additions to a Poisson sample lose at most -log(1 - rate) a step: beyond, they need not be looked at."""
    curve = account(PoissonSampled(0.001, Gaussian(0.5)) * 100)
    reach = -100 * np.log1p(-0.001)
    looked = []
    monkeypatch.setattr(CurveSearch, "_delta_in", lambda self, direction, *_: looked.append(direction) or 0.0)
    curve.delta_bounds(1.1 * reach)
    assert looked == ["remove"]
    curve.delta_bounds(0.9 * reach)
    assert looked == ["remove", "remove", "add"]
