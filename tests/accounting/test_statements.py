"""Every numbered statement of docs/mathematics.md has a check: here, or where the map says.

What is rational is checked in fractions, what is not in intervals or forty digits. Where a curve is only known on a
grid of cells, to see the cell is to know less than the outcome, so what is found is below the exact curve.
"""

import ast
import math
import re
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import special

from discreet import Gaussian, PoissonSampled, account
from discreet.accounting.chernoff import Chernoff
from discreet.accounting.lattice import LossLattice, cell_accuracy, compose, largest_weight
from discreet.accounting.pairs import DiscretePair, GaussianPair, Sampled
from support.laplace_curve import laplace_delta

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "mathematics.md"

CHECKS = {
    "1": "accounting/test_statements.py::test_curves_of_products",
    "2": "accounting/test_statements.py::test_vectors_of_laplace_noise",
    "3": "accounting/test_statements.py::test_mixtures_of_gaussians_are_worst_when_collinear",
    "3a": "accounting/test_fixed_batches.py::test_an_exchanged_record_of_a_batch_of_fixed_size",
    "3b": "accounting/test_mechanisms_accounted.py::test_bounded_range_is_the_best_choice_of_the_interval",
    "3c": "accounting/test_mechanisms_accounted.py::test_batches_with_a_limit_cost_no_less_than_every_table",
    "3d": "accounting/test_fixed_batches.py::test_draws_with_replacement_cost_no_less_than_every_table",
    "3e": "accounting/test_fixed_batches.py::test_a_zeroed_record_of_a_batch_of_fixed_size",
    "3f": "accounting/test_fixed_batches.py::test_the_best_of_several_runs",
    "3g": "accounting/test_fixed_batches.py::test_bayes_risk_of_gaussian_noise_is_that_of_the_best_threshold",
    "4": "accounting/test_statements.py::test_who_takes_part_now_and_then_is_no_worse_off",
    "5": "accounting/test_statements.py::test_the_largest_weight_in_intervals",
    "6": "accounting/test_statements.py::test_the_fft_against_whole_numbers",
    "7": "accounting/test_pairs.py::test_one_step_curve_is_as_accurate_as_the_lattice_assumes",
    "8": "accounting/test_statements.py::test_a_rounded_boundary_is_a_moved_loss",
    "9": "accounting/test_lattice.py::test_one_step_laws_enclose_the_exact_curve",
    "10": "accounting/test_lattice.py::test_broken_laws_are_caught",
    "11": "accounting/test_lattice.py::test_coarsening_keeps_the_order",
    "12": "accounting/test_convolve_direct.py::test_sums_of_labels_enclose_all_outcomes",
    "13": "accounting/test_statements.py::test_moments_are_integrals_of_curves",
    "14": "accounting/test_max_loss.py::test_randomised_responses_near_the_top",
    "15": "ledger/test_truncated_filter.py::test_no_adaptive_play_exceeds_the_budget_and_the_twin_is_caught",
    "16": "core/test_banded.py::test_the_event_bounds_what_a_record_moves",
}


def statements(text):
    """Numbers in bold at the beginning of a statement, and those of formulas."""
    return set(re.findall(r"^\*\*\((\d+[a-z]?)\)", text, re.M)) | set(
        re.findall(r"\\tag\{(\d+[a-z]?)\}", text)
    )


def test_every_numbered_statement_has_a_check():
    numbered = statements(PAGE.read_text())
    assert numbered == set(CHECKS)
    for check in CHECKS.values():
        file, name = check.split("::")
        tree = ast.parse((HOME / "tests" / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, check
    assert statements("**(17) New.** It holds.\n$$ x \\tag{18} $$") - set(CHECKS) == {
        "17",
        "18",
    }  # would be missed


def random_law(rng, size, total=1):
    weights = [Fraction(int(value)) for value in rng.integers(1, 20, size)]
    return [weight / sum(weights) * total for weight in weights]


def hockey_stick(p, q, a):
    return sum(max(x - a * y, 0) for x, y in zip(p, q, strict=True))


def test_curves_of_products():
    """(1), exactly, also for laws of total mass below 1, and where Q is zero."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        p1, p2 = random_law(rng, 4), random_law(rng, 3, Fraction(9, 10))
        q1, q2 = random_law(rng, 4), random_law(rng, 3)
        a = Fraction(int(rng.integers(0, 40)), 10)
        whole = hockey_stick([x * y for x, y in product(p1, p2)], [x * y for x, y in product(q1, q2)], a)
        # a e^{-L1} = a q1 / p1
        assert whole == sum(x * hockey_stick(p2, q2, a * y / x) for x, y in zip(p1, q1, strict=True))


def test_who_takes_part_now_and_then_is_no_worse_off():
    """(4): mixtures of the pair and of equal worlds, in each of which the others differ."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        p, q, weights = random_law(rng, 4), random_law(rng, 4), random_law(rng, 6)
        mixed_p, mixed_q = [Fraction(0)] * 4, [Fraction(0)] * 4
        for place, weight in enumerate(weights):
            order = rng.permutation(4)  # a kernel that is the same in both worlds
            world = [(p, q), (q, q), (p, p)][place % 3]
            mixed_p = [m + weight * world[0][i] for m, i in zip(mixed_p, order, strict=True)]
            mixed_q = [m + weight * world[1][i] for m, i in zip(mixed_q, order, strict=True)]
        for a in (Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(4)):
            assert hockey_stick(mixed_p, mixed_q, a) <= max(hockey_stick(p, q, a), max(1 - a, 0))


EDGES = np.concatenate([[-np.inf], np.linspace(-7.0, 7.0, 141), [np.inf]])


def plane_curve(p, q, epsilon):
    """Of two lists of (weight, masses along x, masses along y)."""
    p, q = (sum(w * np.multiply.outer(x, y) for w, x, y in pld) for pld in (p, q))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def laplace_cells(shift):
    at = EDGES - shift
    return np.diff(np.where(at < 0, 0.5 * np.exp(np.minimum(at, 0)), 1 - 0.5 * np.exp(-np.maximum(at, 0))))


def test_vectors_of_laplace_noise():
    """(2): two coordinates with shifts that add up to 1, against one that moves by 1."""
    exceeded = 0
    for share in (0.1, 0.5, 0.8):
        for epsilon in (0.0, 0.3, 0.7, 0.95):
            moved = [(1.0, laplace_cells(share), laplace_cells(1 - share))]
            still = [(1.0, laplace_cells(0.0), laplace_cells(0.0))]
            found = plane_curve(moved, still, epsilon)
            assert found <= laplace_delta(epsilon, 1.0) + 1e-12
            exceeded += (
                found > laplace_delta(epsilon, 1 / max(share, 1 - share)) + 1e-12
            )  # the larger shift alone
    assert exceeded > 6


def normal_cells(shift, noise):
    return np.diff(special.ndtr((EDGES - shift) / noise))


def plane_mixture(weights, points, noise):
    return [
        (w, normal_cells(x, noise), normal_cells(y, noise)) for w, (x, y) in zip(weights, points, strict=True)
    ]


@pytest.mark.parametrize(("rate", "noise"), [(0.3, 1.0), (0.05, 0.6)])
def test_mixtures_of_gaussians_are_worst_when_collinear(rate, noise):
    """(3): one record exchanged for another, and two of them, with shifts anywhere in the unit disc."""
    rng = np.random.default_rng(3)
    one = account(PoissonSampled(rate, Gaussian(noise)), "replace-one")
    two = account(PoissonSampled(rate, Gaussian(noise)), "add-remove", 2)
    orthogonal = account(PoissonSampled(rate, Gaussian(noise)), "add-remove")  # a twin: as if h were 0
    exceeded = False
    for trial in range(12):
        angles, lengths = rng.uniform(0, 2 * np.pi, 2), rng.uniform(0.3, 1.0, 2)
        if trial == 0:
            angles, lengths = np.array([0.0, np.pi]), np.ones(2)  # the worst case itself
        g, h = (
            length * np.array([np.cos(at), np.sin(at)]) for length, at in zip(lengths, angles, strict=True)
        )
        chances = [(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2]
        with_g = plane_mixture([1 - rate, rate], [(0, 0), g], noise)
        with_h = plane_mixture([1 - rate, rate], [(0, 0), h], noise)
        with_both = plane_mixture(chances, [(0, 0), g, h, g + h], noise)
        nobody = plane_mixture([1.0], [(0, 0)], noise)
        for epsilon in (0.0, 0.4, 1.2):
            found = plane_curve(with_g, with_h, epsilon)
            assert found <= one.delta(epsilon) + 1e-12
            exceeded |= found > orthogonal.delta(epsilon) * 1.05
            assert plane_curve(with_both, nobody, epsilon) <= two.delta(epsilon) + 1e-12
            assert plane_curve(nobody, with_both, epsilon) <= two.delta(epsilon) + 1e-12
    assert exceeded


@pytest.mark.parametrize("tilt", [0.01, 0.7, 3.0, 40.0])
def test_the_largest_weight_in_intervals(tilt):
    """(5): e^{-ty} (1 - e^{-y}) nowhere exceeds what a unit of error is charged with."""
    interval, bound = mpmath.iv, largest_weight(tilt)
    end = -math.log(bound) / tilt  # beyond it the first factor alone is below the bound
    cells = np.linspace(0, end, 3000).tolist()
    # In a cell [u, v] the function is at most e^{-tu} (1 - e^{-v}), for both factors are monotone: the function at u,
    # and less than the width of the cell.
    worst = max(
        (interval.exp(-interval.mpf(tilt) * u) * (1 - interval.exp(-interval.mpf(v)))).b
        for u, v in pairwise(cells)
    )
    assert worst <= bound + end / 2999
    top = math.log1p(1 / tilt)
    assert float(mpmath.exp(-tilt * top) * (1 - mpmath.exp(-top))) == pytest.approx(bound, rel=1e-12)


def test_an_error_of_a_tilted_law_moves_delta_by_no_more():
    """(5): adversarial changes of a tilted law, of L1 norm eta, in forty digits."""
    rng = np.random.default_rng(4)
    for _ in range(30):
        tilt, epsilon = rng.uniform(0.05, 8.0), rng.uniform(-1.0, 3.0)
        losses = np.sort(rng.uniform(-4, 6, 30))
        change = rng.normal(size=30)
        change[int(np.argmin(np.abs(losses - epsilon - math.log1p(1 / tilt))))] *= 50  # where it hurts
        change /= np.abs(change).sum()
        with mpmath.workdps(40):
            moved = mpmath.fsum(
                c * mpmath.exp(-tilt * mpmath.mpf(x)) * max(0, 1 - mpmath.exp(mpmath.mpf(epsilon) - x))
                for c, x in zip(change.tolist(), losses.tolist(), strict=True)
            )
            allowed = mpmath.exp(-mpmath.mpf(tilt) * epsilon) * largest_weight(tilt)
            assert abs(moved) <= allowed * (1 + mpmath.mpf("1e-12"))


@pytest.mark.parametrize(("size", "count"), [(5, 3), (20, 63), (20, 64), (9, 128), (40, 70)])
def test_the_fft_against_whole_numbers(size, count):
    """(6): masses are multiples of 2^-12, so that their convolution is a power of one whole number."""
    rng = np.random.default_rng(size + count)
    whole = np.array([rng.integers(0, 200, size) ** 2 >> 9, rng.integers(0, 4096 // size, size)])
    whole[:, 0] += 4096 - whole.sum(axis=1)
    lattice = LossLattice(0.0, 1.0, 0.0, whole / 4096, np.zeros(2), 0.0, 0.0, 1, 0.0)
    length, one = count * (size - 1) + 1, 1 << (12 * count)
    composed = compose([(lattice, count)], (0.0, float(length)), 0.0)
    wide = (12 * count + 8) // 8 + 1  # bytes that hold a coefficient
    for masses, found in zip(whole.tolist(), composed.masses, strict=True):
        number = sum(mass << (8 * wide * place) for place, mass in enumerate(masses)) ** count
        digits = number.to_bytes(wide * length, "little")
        exact = [int.from_bytes(digits[wide * k : wide * (k + 1)], "little") for k in range(length)]
        assert sum(exact) == one
        fine = 1 << 200  # one part in 2^200 is lost of every number
        exact = [value * fine // one for value in exact] + [0] * (len(found) - length)
        there = [int(math.ldexp(value, 90)) << 110 for value in found.tolist()]
        distance = Fraction(sum(abs(x - y) for x, y in zip(exact, there, strict=True)), fine)
        assert distance <= composed.error <= 1e-11 * count


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (4.0, 0.01), (0.5, 1e-4)])
@pytest.mark.parametrize("above", [1e-16, 1e-14, 1e-9, 1e-3])
def test_a_rounded_boundary_is_a_moved_loss(noise, rate, above):
    """(8): near log(1 - q) tails are off by percents, and right for a boundary beside the one that was asked for."""
    unit = 2.0**-53
    loss = float(np.log1p(-rate)) * (1 - above) + (above if rate < above else 0)
    loss = max(loss, float(np.nextafter(np.log1p(-rate), 0)))
    _, q = Sampled(GaussianPair(1 / noise), rate).masses(np.array([-np.inf, loss]))
    found = float(q[0])
    with mpmath.workdps(50):

        def below(at):
            """Q(L <= at)."""
            rest = mpmath.exp(at) - (1 - mpmath.mpf(rate))
            if rest <= 0:
                return mpmath.mpf(0)
            return mpmath.ncdf(mpmath.log(rest / rate) * noise + mpmath.mpf(1) / (2 * noise))

        moved = 2 * unit * abs(1 - mpmath.exp(loss)) * mpmath.exp(-loss) + 2 * unit * abs(loss)
        slack = cell_accuracy(math.log(max(found, 1e-300)))
        assert below(loss - moved) * (1 - slack) - mpmath.mpf("1e-300") <= found
        assert found <= below(loss + moved) * (1 + slack) + mpmath.mpf("1e-300")


def test_moments_are_integrals_of_curves():
    """(13): E_P e^{tL} = t (t + 1) int H_a a^{t-1} da, by integration; and chords only enlarge them."""
    p, q = [0.1, 0.3, 0.6], [0.4, 0.35, 0.25]
    with mpmath.workdps(30):
        for t in (0.4, 1.0, 3.5):
            moment = mpmath.fsum(x * (mpmath.mpf(x) / y) ** t for x, y in zip(p, q, strict=True))
            corners = [0, *sorted(mpmath.mpf(x) / y for x, y in zip(p, q, strict=True))]
            integral = mpmath.quad(
                lambda a, t=t: (
                    a ** (t - 1) * mpmath.fsum(max(x - a * y, 0) for x, y in zip(p, q, strict=True))
                ),
                corners,
            )
            assert abs(t * (t + 1) * integral / moment - 1) < 1e-8
    # The bound of the chords lies above that of the exact moments, at every tilt.
    pair = DiscretePair(np.log(np.array(p) / q), np.array(p), np.array(q))
    bound = Chernoff.of([(pair, 5)], -30.0)
    tilts = np.array([0.2, 1.0, 4.0])
    exact = [5 * math.log(sum(x * (x / y) ** t for x, y in zip(p, q, strict=True))) for t in tilts]
    weights = [math.log(largest_weight(float(t))) for t in tilts]
    assert np.all(bound.log_delta(tilts) >= np.array(exact) + weights - 1e-12)


def test_the_arithmetic_is_that_of_the_standard():
    assert 1.0 + 2.0**-53 == 1.0 < 1.0 + 2.0**-52
    assert 0.1 + 0.2 == 0.30000000000000004
    assert 5e-324 / 2 == 0.0 < 5e-324
    assert float(Fraction(1, 3)) == 1 / 3
    assert math.fma(2.0, 3.0, 1.0) == 7.0 if hasattr(math, "fma") else True


@pytest.mark.parametrize(
    ("function", "exact", "low", "high", "units"),
    [
        (np.exp, mpmath.exp, -700.0, 700.0, 4),
        (np.expm1, mpmath.expm1, -40.0, 700.0, 4),
        (np.log, mpmath.log, 1e-300, 1e300, 4),
        (np.log1p, mpmath.log1p, -0.999, 1e6, 4),
        (np.sqrt, mpmath.sqrt, 0.0, 1e300, 1),
        (special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), -20.0, 1e4, 900),
    ],
)
def test_functions_are_as_exact_as_is_charged(function, exact, low, high, units):
    """Also of arrays, for which other code runs than for single numbers."""
    rng = np.random.default_rng(6)
    x = np.concatenate([rng.uniform(low, min(high, 50.0), 1000), rng.uniform(low, high, 700)])
    small = np.exp(rng.uniform(-60, 0, 300))
    x = np.concatenate([x, small[(small > low) & (small < high)]])
    with mpmath.workdps(40):
        for value, found in zip(x.tolist(), function(x).tolist(), strict=True):
            true = exact(mpmath.mpf(value))
            assert abs(found - true) <= units * 2.0**-53 * abs(true) + 1e-300


@pytest.mark.parametrize(("draws", "chance"), [(20, 0.3), (150, 0.01), (60, 0.9)])
def test_binomial_tails_against_fractions(draws, chance):
    """They are rounded up by a part in a million."""
    p, tail = Fraction(chance), Fraction(0)
    for k in range(draws, -1, -1):
        if float(tail) > 1e-290:
            assert abs(Fraction(float(special.bdtrc(k, draws, chance))) / tail - 1) < Fraction(1, 10**7)
        tail += math.comb(draws, k) * p**k * (1 - p) ** (draws - k)


@pytest.mark.parametrize(("draws", "chance"), [(5000, 0.001), (10**6, 1e-6), (10**8, 1e-7), (60_000, 0.004)])
def test_binomial_tails_of_many_draws(draws, chance):
    """The smaller tail as a sum of its terms, in forty digits, to 1e-250."""
    with mpmath.workdps(40):
        mean = draws * chance
        for k in {int(mean + step * math.sqrt(mean) + step) for step in (0, 1, 3, 10, 20)}:
            term = mpmath.binomial(draws, k + 1) * mpmath.mpf(chance) ** (k + 1)
            term *= (1 - mpmath.mpf(chance)) ** (draws - k - 1)
            tail, j = mpmath.mpf(0), k + 1
            while term > tail * mpmath.mpf("1e-20"):
                tail += term
                term *= mpmath.mpf(draws - j) / (j + 1) * chance / (1 - mpmath.mpf(chance))
                j += 1
            if tail > 1e-250:
                assert abs(float(special.bdtrc(k, draws, chance)) / tail - 1) < 1e-7
