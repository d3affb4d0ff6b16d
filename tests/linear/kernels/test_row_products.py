"""Rows times a matrix: products in the order of the columns, each rounded, and nothing of the rows beside."""

import numpy as np
import pytest

from discreet.linear.kernels.rowwise import times


def one_after_the_other(rows, matrix, plus):
    """The oracle: numpy adds one column's products to all sums, which rounds every product and every sum once."""
    sums = np.zeros((len(rows), matrix.shape[1]), rows.dtype)
    for j in range(rows.shape[1]):
        sums = sums + rows[:, j : j + 1] * matrix[j].astype(rows.dtype)
    return sums + plus.astype(rows.dtype)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("columns", "width"), [(1, 1), (3, 1), (5, 2), (20, 21), (7, 8), (33, 101), (1, 9)])
def test_sums_are_taken_in_the_order_of_the_columns(kind, columns, width):
    rng = np.random.default_rng(columns * width)
    matrix, plus = rng.standard_normal((columns, width)), rng.standard_normal(width)
    for count in (0, 1, 7, 8, 9, 23):
        rows = rng.standard_normal((count, columns)).astype(kind)
        expected = one_after_the_other(rows, matrix, plus)
        np.testing.assert_array_equal(times(rows, matrix, plus=plus), expected)
        np.testing.assert_array_equal(times(rows, matrix) + plus.astype(kind), expected)


def test_the_oracle_tells_another_order():
    """The broken twin: a product by BLAS is near, and not the same."""
    rng = np.random.default_rng(0)
    rows, matrix = rng.standard_normal((500, 100)).astype(np.float32), rng.standard_normal((100, 101))
    found = times(rows, matrix)
    other = rows[:, ::-1] @ matrix[::-1].astype(np.float32)
    np.testing.assert_allclose(other, found, atol=1e-3)
    assert (other != found).any()


def test_a_row_that_is_not_finite_stays_alone():
    rng = np.random.default_rng(1)
    rows, matrix = rng.standard_normal((20, 6)).astype(np.float32), rng.standard_normal((6, 11))
    clean = times(rows, matrix)
    rows[5, 2], rows[18, 0] = np.inf, np.nan
    found = times(rows, matrix)
    others = np.setdiff1d(np.arange(20), [5, 18])
    np.testing.assert_array_equal(found[others], clean[others])
    assert not np.isfinite(found[[5, 18]]).any()
