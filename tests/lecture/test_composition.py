"""The theorems about (epsilon, delta): published values, exact brute force, and their order among themselves."""

import itertools
import math
from fractions import Fraction

import mpmath
import pytest

from discreet.accounting.gaussian import gaussian_epsilon
from discreet.errors import InvalidParameter
from discreet.lecture.amplification import poisson_amplification
from discreet.lecture.composition import (
    advanced_composition,
    basic_composition,
    basic_composition_of,
    figure_2_curve_not_a_guarantee,
    optimal_composition,
    optimal_composition_delta,
    strong_composition,
    strong_composition_of_noisy_sgd,
)
from support.refusals import accepted_nonsense

# steps, epsilon, extra delta; advanced without min, the k epsilon^2 variant, optimal. From the closed formulas and
# the binomial sum of Kairouz, Oh, Viswanath (2015), in 40 digits.
TABLE = [
    (100, 0.1, 1e-3, 4.21650594, 4.71692219, 3.11555946),
    (100, 0.1, 1e-5, 5.29810966, 5.79852591, 4.30679137),
    (100, 0.1, 1e-6, 5.75610552, 6.25652177, 4.77456759),
    (1000, 0.01, 1e-6, 1.71225772, 1.76225814, 1.36544671),
    (1000, 0.1, 1e-6, 21.61841886, 26.62258136, 19.34467145),
    (10, 0.5, 1e-5, 8.81172896, 10.08713565, 4.99885412),
    (100, 1.0, 1e-5, 94.19697485, 147.98525912, 79.84132236),
]
# epochs of 100 steps; noisy SGD with rate .01, noise 4, delta 1e-5. The second column redraws Figure 2 of Abadi et
# al. (2016), the third is the rigorous version; both recomputed from the formulas with a second program.
FIGURE_2 = [
    (1, 0.63139348, 1.233482),
    (10, 2.30439182, 4.826850),
    (100, 9.33906524, 21.169590),
    (400, 24.20514505, 58.254150),
]


@pytest.mark.parametrize(("steps", "epsilon", "extra", "advanced", "strong", "optimal"), TABLE)
def test_table(steps, epsilon, extra, advanced, strong, optimal):
    basic = steps * epsilon
    assert basic_composition(epsilon, 0.0, steps).epsilon == pytest.approx(basic, rel=1e-15)
    assert strong_composition(epsilon, 0.0, steps, extra) == pytest.approx((strong, extra), rel=3e-9)
    assert advanced_composition(epsilon, 0.0, steps, extra) == pytest.approx(
        (min(basic, advanced), extra), rel=3e-9
    )
    assert optimal_composition(epsilon, 0.0, steps, extra) == pytest.approx((optimal, extra), rel=3e-9)
    assert optimal_composition_delta(epsilon, 0.0, steps, optimal).delta == pytest.approx(extra, rel=1e-6)


@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_each_theorem_improves_on_the_one_before(delta):
    for epsilon, steps, extra in itertools.product((0.001, 0.1, 1.0, 5.0), (1, 10, 1000), (1e-12, 1e-5, 0.1)):
        strong = strong_composition(epsilon, delta, steps, extra)
        advanced = advanced_composition(epsilon, delta, steps, extra)
        optimal = optimal_composition(epsilon, delta, steps, advanced.delta)
        basic = basic_composition(epsilon, delta, steps)
        assert optimal.epsilon <= advanced.epsilon <= min(strong.epsilon, basic.epsilon)
        assert advanced.delta == strong.delta >= -math.expm1(steps * math.log1p(-delta))
        assert advanced.delta <= basic.delta + extra


@pytest.mark.parametrize(
    ("epsilon", "extra", "crossover"), [(0.1, 1e-3, 16), (0.1, 1e-5, 26), (0.01, 1e-5, 24)]
)
def test_crossover_with_basic(epsilon, extra, crossover):
    """The first number of steps at which advanced composition beats basic composition."""
    gains = [
        advanced_composition(epsilon, 0.0, steps, extra).epsilon < steps * epsilon * (1 - 1e-12)
        for steps in range(1, 40)
    ]
    assert gains.index(True) + 1 == crossover


def exact_delta(epsilon, delta, steps, total_epsilon):
    """All outcomes of the canonical (epsilon, delta)-DP mechanism, composed; deltas as hockey sticks."""
    with mpmath.workdps(40):
        growth, delta = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(delta)
        high, low = (1 - delta) * growth / (1 + growth), (1 - delta) / (1 + growth)
        outcomes = [(delta, mpmath.mpf(0)), (high, low), (low, high), (mpmath.mpf(0), delta)]
        total = mpmath.mpf(0)
        for chosen in itertools.product(outcomes, repeat=steps):
            p, q = mpmath.fprod(o[0] for o in chosen), mpmath.fprod(o[1] for o in chosen)
            total += max(mpmath.mpf(0), p - mpmath.exp(mpmath.mpf(total_epsilon)) * q)
        return total


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps"), [(0.7, 0.0, 4), (0.7, 0.01, 4), (2.0, 1e-6, 3), (0.3, 0.2, 2)]
)
def test_optimal_composition_against_all_outcomes(epsilon, delta, steps):
    for share in (0.0, 0.2, 0.55, 0.9):
        found = optimal_composition_delta(epsilon, delta, steps, share * steps * epsilon)
        true = exact_delta(epsilon, delta, steps, found.epsilon)
        assert true <= found.delta <= true * (1 + 1e-8)
        back = optimal_composition(epsilon, delta, steps, found.delta)
        assert back.epsilon <= found.epsilon * (1 + 1e-6) + 1e-9
        assert exact_delta(epsilon, delta, steps, back.epsilon) <= found.delta


@pytest.mark.parametrize(
    ("epsilon", "steps", "total"),
    [(0.01, 10**5, 15.0), (0.001, 10**5, 1.5), (1.0, 10**5, 47500.0), (0.05, 10**4, 20.0)],
)
def test_optimal_composition_of_many_steps(epsilon, steps, total):
    """The binomial sum in 40 digits, over the terms that matter."""
    with mpmath.workdps(40):
        e = mpmath.mpf(epsilon)
        success, failure = mpmath.exp(e) / (1 + mpmath.exp(e)), 1 / (1 + mpmath.exp(e))
        first = math.floor((steps + total / epsilon) / 2) + 1
        term = mpmath.binomial(steps, first) * success**first * failure ** (steps - first)
        true = mpmath.mpf(0)
        for j in range(first, min(steps, first + 3000) + 1):
            true += term * (1 - mpmath.exp(mpmath.mpf(total) - (2 * j - steps) * e))
            term *= mpmath.mpf(steps - j) / (j + 1) * success / failure
    found = optimal_composition_delta(epsilon, 0.0, steps, total).delta
    assert true <= found <= true * (1 + 1e-8)
    back = optimal_composition(epsilon, 0.0, steps, found).epsilon
    assert back == pytest.approx(total, rel=1e-8)


def test_optimal_composition_at_its_ends():
    assert optimal_composition(0.5, 0.0, 4, 0.0) == (2.0, 0.0)
    assert optimal_composition(0.0, 1e-6, 3, 1e-5) == (0.0, 1e-5)
    assert optimal_composition(0.1, 0.0, 2, 0.5) == (0.0, 0.5)
    assert optimal_composition_delta(0.5, 0.0, 4, 2.0).delta == 0
    assert optimal_composition_delta(0.0, 0.0, 4, 0.0).delta == 0
    assert optimal_composition(800.0, 0.0, 3, 1e-5).epsilon == pytest.approx(2400, rel=1e-2)


def test_optimal_composition_refuses_a_delta_that_the_steps_have_spent():
    with pytest.raises(InvalidParameter, match=r"total_delta=1e-05: the steps alone spend 9\.9995e-05"):
        optimal_composition(0.1, 1e-7, 1000, 1e-5)


def test_drift_cannot_be_left_out():
    """The slides' sqrt(2 k ln(1/delta)) epsilon without a drift is below the truth for 100 responses of epsilon 1."""
    driftless = math.sqrt(2 * 100 * math.log(1 / 0.1))
    assert driftless == pytest.approx(21.4597, abs=1e-4)
    assert optimal_composition_delta(1.0, 0.0, 100, driftless).delta > 0.9


@pytest.mark.parametrize(  # the per-round epsilon of the multi-party notes, and the repaired one, composed
    ("epsilon", "steps", "extra", "strong", "advanced"),
    [
        (0.0294718334, 100, 1e-5, 1.50107246, 1.45763987),
        (0.0134519900, 100, 1e-6, 0.72520238, 0.71615445),
        (0.0083878308, 1000, 1e-5, 1.34314791, 1.30796985),
        (0.0198410076, 100, 5e-6, None, 1.0),
        (0.0092033763, 100, 5e-7, None, 0.5),
        (0.0056577886, 1000, 5e-6, None, 0.9),
    ],
)
def test_composition_of_the_multi_party_notes(epsilon, steps, extra, strong, advanced):
    assert advanced_composition(epsilon, 0.0, steps, extra).epsilon == pytest.approx(advanced, rel=2e-8)
    if strong is not None:
        assert strong_composition(epsilon, 0.0, steps, extra).epsilon == pytest.approx(strong, rel=2e-8)


def test_basic_composition_is_exact_and_rounds_up():
    assert basic_composition(0.5, 0.25, 3) == (1.5, 0.75)
    assert basic_composition(0.5, 0.25, 5) == (2.5, 1.0)
    for epsilon, delta, steps in ((0.1, 1e-7, 3), (0.3, 1e-9, 7), (1 / 3, 1e-12, 10**9)):
        total = basic_composition(epsilon, delta, steps)
        assert Fraction(total.epsilon) >= steps * Fraction(epsilon)
        assert Fraction(total.delta) >= steps * Fraction(delta)
        assert total == pytest.approx((steps * epsilon, steps * delta), rel=1e-15)
    assert basic_composition_of([]) == (0.0, 0.0)
    assert basic_composition_of([(0.1, 1e-7)] * 3) == basic_composition(0.1, 1e-7, 3)
    assert basic_composition_of([(1.0, 0.75), (2.0, 0.75)]) == (3.0, 1.0)


@pytest.mark.parametrize(("epochs", "printed", "rigorous"), FIGURE_2)
def test_figure_2(epochs, printed, rigorous):
    steps = 100 * epochs
    assert figure_2_curve_not_a_guarantee(0.01, 4.0, steps, 1e-5) == pytest.approx(printed, rel=1e-8)
    found = strong_composition_of_noisy_sgd(0.01, 4.0, steps, 1e-5)
    assert found == pytest.approx((rigorous, 1e-5), rel=1e-6)
    assert found.epsilon > printed


def test_noisy_sgd_is_below_its_own_basic_composition():
    """E = 100 with half of delta for the steps: 324.9 by basic composition."""
    per_step = 0.5e-5 / (10_000 * 0.01)
    base = math.sqrt(2 * math.log(1.25 / per_step)) / 4
    sampled = poisson_amplification(base, per_step, 0.01, neighbours="add-remove")
    basic = basic_composition(*sampled, 10_000)
    assert basic.epsilon == pytest.approx(324.9, abs=0.05)
    assert strong_composition_of_noisy_sgd(0.01, 4.0, 10_000, 1e-5).epsilon < basic.epsilon


@pytest.mark.parametrize("noise", [0.2, 1.0, 30.0])
def test_noisy_sgd_is_sound_where_the_classic_formula_is_not(noise):
    """Without sampling the exact answer is known; at noise 0.2 the classic formula alone would be too small."""
    for steps in (1, 100):
        exact = gaussian_epsilon(1e-5, math.sqrt(steps) / noise)
        assert strong_composition_of_noisy_sgd(1.0, noise, steps, 1e-5).epsilon >= exact


PAIR = {"epsilon": 0.1, "delta": 1e-9, "steps": 10}
OUTSIDE = {"epsilon": (-1e-9,), "delta": (-1e-9, 1.0), "steps": (0, -1, 2.5, 10**13)}
SGD = {"rate": 0.01, "noise_multiplier": 4.0, "steps": 100, "delta": 1e-5}
SGD_OUTSIDE = {"rate": (0.0, 1.1), "noise_multiplier": (0.0, -1.0), "steps": (0, 1.5), "delta": (0.0, 1.0)}


@pytest.mark.parametrize(
    ("function", "good", "outside"),
    [
        (basic_composition, PAIR, OUTSIDE),
        (strong_composition, PAIR | {"extra_delta": 1e-5}, OUTSIDE | {"extra_delta": (0.0, 1.0)}),
        (advanced_composition, PAIR | {"extra_delta": 1e-5}, OUTSIDE | {"extra_delta": (0.0, 1.0)}),
        (optimal_composition, PAIR | {"total_delta": 1e-5}, OUTSIDE | {"total_delta": (-1e-9, 1e-9, 1.0)}),
        (optimal_composition_delta, PAIR | {"total_epsilon": 0.5}, OUTSIDE | {"total_epsilon": (-1e-9,)}),
        (strong_composition_of_noisy_sgd, SGD, SGD_OUTSIDE),
        (figure_2_curve_not_a_guarantee, SGD, SGD_OUTSIDE),
    ],
)
def test_nonsense_is_refused(function, good, outside):
    assert list(accepted_nonsense(function, good, outside)) == []


@pytest.mark.parametrize("guarantees", [[(1.0, 2.0)], [(math.nan, 0.0)], [("1", 0.0)], [1.0], [(1.0,)]])
def test_nonsense_in_a_list_is_refused(guarantees):
    with pytest.raises(InvalidParameter):
        basic_composition_of(guarantees)
