"""Passes over rows that do several operations at once: as if each were done on its own."""

from fractions import Fraction

import numpy as np

from discreet.linear.kernels.kernel import row_norms
from discreet.linear.kernels.rowwise import (
    are_bounded,
    bound_rows,
    count_bins,
    find_half_octaves,
    find_standard_norms,
    put_ones_before,
    standardise_rows,
)


def test_half_octaves_are_those_of_exact_arithmetic():
    rng = np.random.default_rng(2)
    values = np.concatenate(
        [np.exp(6 * rng.standard_normal(500)), [1.0, 2.0, 0.5, 2**0.5, 0.0, np.inf, np.nan]]
    )
    found = np.empty(len(values), np.int64)
    find_half_octaves(values, -28, 28, found)
    for value, place in zip(values[:-3], found[:-3], strict=True):
        square = Fraction(float(value)) ** 2
        if -28 < place < 28:  # up to the rounding of the square
            assert (
                Fraction(2) ** int(place) * (1 - Fraction(2) ** -50) <= square < Fraction(2) ** int(place + 1)
            )
    assert found[-3:].tolist() == [-28, 28, 28]
    signed = np.empty(2, np.int64)
    find_half_octaves(np.array([-3.0, 3.0], np.float32), -28, 28, signed)
    assert signed.tolist() == [3, 3]


def test_standard_norms_are_the_norms_of_standardised_rows():
    rng = np.random.default_rng(3)
    for rows, columns in ((0, 3), (1, 1), (63, 5), (200, 17)):
        x = rng.random((rows, columns), np.float32)
        lower, upper = np.full(columns, 0.1, np.float32), np.full(columns, 0.8, np.float32)
        centre, scale = rng.random((2, columns), np.float32)
        z, norms = np.empty_like(x), np.empty(rows)
        standardise_rows(x, lower, upper, centre, scale + 1, z)
        find_standard_norms(x, lower, upper, centre, scale + 1, norms)
        np.testing.assert_array_equal(norms, row_norms(z, 0.0))


def test_ones_before_rows():
    x, out = np.arange(6, dtype=np.float32).reshape(3, 2), np.empty((3, 3), np.float32)
    put_ones_before(x, out)
    np.testing.assert_array_equal(out, np.column_stack([np.ones(3), x]))


def test_bins_are_counted_as_by_numpy():
    rng = np.random.default_rng(4)
    for rows, columns in ((0, 3), (1, 1), (64, 5), (200, 17), (5, 0)):
        x = rng.random((rows, columns), np.float32)
        x[: rows // 3] = np.round(x[: rows // 3])
        counts = np.zeros(columns * 8, np.int32)
        count_bins(x, 8, counts)
        expected = [np.bincount(np.minimum((column * 8).astype(int), 7), minlength=8) for column in x.T]
        np.testing.assert_array_equal(counts, np.concatenate([*expected, np.zeros(0, int)]))


def test_rows_are_bounded_if_bounding_them_changes_nothing():
    x = np.random.default_rng(5).random((30, 6), np.float32)
    x[0, :4], x[:, 4:] = (0, 1, 0.5, 1), 100 * x[:, 4:] - 50
    assert are_bounded(x, 4)
    for value in (-1e-6, 1.0001, np.nan, np.inf):
        for column in (0, 3, 5):
            other = x.copy()
            other[17, column] = value
            out, finite = np.empty_like(x), np.empty(30, np.bool_)
            same = bound_rows(other, 4, out, finite) and np.array_equal(out, other)
            assert are_bounded(other, 4) == same
