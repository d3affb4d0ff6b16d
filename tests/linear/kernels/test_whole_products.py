"""Sums of products of whole numbers: exact, whatever their size, or refused."""

import numpy as np
import pytest

from discreet.linear.kernels import whole_products
from discreet.linear.kernels.moment_lattice import MomentLattice
from discreet.linear.kernels.whole_products import add_products, pairs_for, totals_for


def by_brute_force(steps):
    """The oracle: Python's own whole numbers, which have no size."""
    rows = [[int(number) for number in row] for row in steps]
    size = steps.shape[1]
    return [[sum(row[j] * row[k] for row in rows) for k in range(size)] for j in range(size)]


def summed(rows, roots=(), per_unit=1.0):
    total = totals_for(rows.shape[1])
    room = pairs_for(max(1, len(rows)), rows.shape[1])
    known = add_products(rows, np.array(roots, np.float64), per_unit, room, total)
    return total[: rows.shape[1], : rows.shape[1]] if known else None


def assert_upper(found, expected):
    upper = np.triu_indices(len(found))
    assert found[upper].tolist() == np.array(expected, object)[upper].tolist()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 131])
def test_sums_are_those_of_whole_numbers(kind, size, count):
    rng = np.random.default_rng(size * 1000 + count)
    rows = (100 * rng.standard_normal((count, size))).astype(kind)
    assert_upper(summed(rows, per_unit=4.0), by_brute_force(np.rint(rows * 4.0)))


@pytest.mark.parametrize("largest", [1, 181, 2896, 2897, 5792])
@pytest.mark.parametrize("signs", ["alike", "opposite", "random"])
def test_sums_do_not_wrap_around_where_all_numbers_are_as_large_as_may_be(largest, signs):
    rng = np.random.default_rng(largest)
    rows = np.full((1501, 3), largest, np.float32)
    if signs == "opposite":
        rows[:, 1] *= -1
    elif signs == "random":
        rows *= rng.choice([-1, 1], rows.shape)
    assert_upper(summed(rows), by_brute_force(rows))


@pytest.mark.parametrize("number", [5793, -5793, 40_000, 2.0**31, -(2.0**31), 2.0**40, np.inf, -np.inf])
def test_larger_numbers_are_refused_and_nothing_is_added(number):
    rows = np.ones((9, 2), np.float64)
    rows[6, 1] = number
    total = totals_for(2)
    assert not add_products(rows, np.empty(0), 1.0, pairs_for(9, 2), total)
    assert not total.any()


def test_more_in_32_bits_would_be_noticed():
    """The broken twin: sums that move on too late."""
    rows = np.full((1000, 2), 5792, np.float32)
    exact = by_brute_force(rows)
    wrapped = np.int64(1000 * 5792**2).astype(np.int32)
    assert wrapped != exact[0][0]
    assert_upper(summed(rows), exact)
    assert 2 * whole_products._FEWEST * whole_products._LARGEST**2 < 2**31
    assert 2 * whole_products._FEWEST * (whole_products._LARGEST + 1) ** 2 >= 2**31


def test_rows_with_roots_are_cut_and_others_rounded():
    rng = np.random.default_rng(3)
    rows, roots = 50 * rng.standard_normal((41, 5)).astype(np.float32), rng.random(41)
    roots[::3] = 1.0
    wide = rows.astype(np.float64)
    steps = np.where(roots[:, None] == 1, np.rint(wide * 8), np.trunc(wide * roots[:, None] * 8))
    assert_upper(summed(rows, roots, 8.0), by_brute_force(steps))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("finest", [2.0**-10, 2.0**-30, 2.0**-31, 2.0**-34])
def test_a_lattice_of_any_step_gives_whole_numbers(finest, weighted):
    """Coarse ones by small whole numbers, fine ones by float64, both the same as by brute force."""
    rng, lattice = np.random.default_rng(5), MomentLattice.of(finest)
    rows = rng.uniform(-1, 1, (300, 4)).astype(np.float32)
    weights = rng.choice([1.0, 0.25, 0.1], 300) if weighted else None
    wide, roots = rows.astype(np.float64), np.ones(300) if weights is None else np.sqrt(weights)
    cut = np.trunc(wide * roots[:, None] / lattice.step)
    steps = np.where(roots[:, None] == 1, np.rint(wide / lattice.step), cut)
    expected, upper = by_brute_force(steps), np.triu_indices(4)
    units = [lattice.diagonal if j == k else lattice.beside for j, k in zip(*upper, strict=True)]
    wanted = [expected[j][k] * unit for j, k, unit in zip(*upper, units, strict=True)]
    assert lattice.products(rows, weights).tolist() == wanted
