"""The clipped gradient: right, exactly bounded, the same on any number of threads, and silent about bad rows."""

import math
import subprocess
import sys
from fractions import Fraction

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from discreet.core.noise import BoundedSum
from discreet.errors import InvalidParameter
from discreet.linear.kernels import dense_kernel, kernel
from discreet.linear.kernels.kernel import (
    clipped_gradient,
    hardened_clipped_gradient,
    row_norms,
)
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared

LOSSES = [Logistic(), Softmax(5), Squared(), Huber(0.5), Poisson(), SmoothedHinge(0.3)]
TYPES = [np.float32, np.float64]
KINDS = {"dense": np.asarray, "csr": sp.csr_array}
GRID = 2.0**-36


def random_problem(loss, rows, columns, dtype, seed=0):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(rows, columns)).astype(dtype)
    Z[rng.random(Z.shape) < 0.3] = 0
    y = rng.integers(0, max(2, loss.outputs), rows).astype(float)
    shape = (columns + 1, loss.outputs) if loss.outputs > 1 else (columns + 1,)
    return Z, y, 0.3 * rng.normal(size=shape)


def by_hand(loss, Z, y, theta, constant, clip_norm, weights=None):
    """The definition, row by row in float64."""
    total = np.zeros((Z.shape[1] + 1, loss.outputs))
    for i, z in enumerate(np.asarray(Z, np.float64)):
        if not np.isfinite(z).all():
            continue
        row = np.concatenate([[constant], z])
        u = row @ theta
        residual = loss.residual(u[None] if loss.outputs > 1 else u, y[i : i + 1]).reshape(-1)
        gradient = np.outer(row, residual)
        norm = np.linalg.norm(gradient)
        gradient *= min(1.0, clip_norm / norm) if norm else 1.0
        total += gradient * (1.0 if weights is None else min(max(0.0, np.nan_to_num(weights[i])), 1.0))
    return total.reshape(np.shape(theta))


def squared_norm(values, scale=1.0):
    return sum((Fraction(float(v)) * Fraction(scale)) ** 2 for v in np.ravel(values) if v)


def gradient_of(loss, Z, y, theta, constant=1.0, clip_norm=1.0, weights=None):
    return clipped_gradient(loss, Z, y, theta, constant, row_norms(Z, constant), clip_norm, weights)


def counts_of(loss, Z, y, theta, constant=1.0, clip_norm=1.0, weights=None, grid=GRID):
    norms = row_norms(Z, constant)
    return hardened_clipped_gradient(loss, Z, y, theta, constant, norms, clip_norm, grid, weights)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 1), (67, 0), (200, 13), (30, 1100)])
def test_it_is_the_definition(kind, dtype, loss, rows, columns):
    Z, y, theta = random_problem(loss, rows, columns, dtype)
    weights = np.random.default_rng(1).uniform(-0.5, 1.5, rows)
    if rows > 60 and columns:
        Z[5, 0], Z[64, -1] = np.nan, -np.inf
        y[7], y[8], weights[9] = np.nan, 7.5, np.nan
    expected = by_hand(loss, Z, y, theta, 0.5, 1.0, weights)
    matrix, scale = KINDS[kind](Z), max(1.0, np.abs(expected).max())
    error = 3e-6 if dtype == np.float32 else 1e-12
    error += rows * 2.0**-22 if dtype == np.float32 and kind == "dense" else 0  # half a step of its lattice
    result = gradient_of(loss, matrix, y, theta, 0.5, 1.0, weights)
    np.testing.assert_allclose(result, expected, rtol=0, atol=max(3e-6, error) * scale)
    counts = counts_of(loss, matrix, y, theta, 0.5, 1.0, weights)
    assert counts.dtype == np.int64
    np.testing.assert_allclose(counts * GRID, expected, rtol=0, atol=error * scale + rows * GRID)


def test_without_clipping_it_is_the_gradient_of_the_loss():
    Z, y, theta = random_problem(Logistic(), 300, 6, np.float64)

    def cost(theta):
        return Logistic().value(theta[0] + Z @ theta[1:], y).sum()

    slopes = [(cost(theta + 1e-6 * e) - cost(theta - 1e-6 * e)) / 2e-6 for e in np.eye(7)]
    np.testing.assert_allclose(gradient_of(Logistic(), Z, y, theta, clip_norm=100.0), slopes, atol=2e-5)


def test_one_weight_of_a_half_is_half_a_row():
    Z, y, theta = random_problem(Logistic(), 1, 4, np.float64)
    whole = gradient_of(Logistic(), Z, y, theta, clip_norm=0.1)
    half = gradient_of(Logistic(), Z, y, theta, clip_norm=0.1, weights=[0.5])
    np.testing.assert_allclose(half, whole / 2, rtol=0, atol=2.0**-31)
    assert np.array_equal(gradient_of(Logistic(), Z, y, theta, clip_norm=0.1, weights=[9]), whole)
    for nothing in (-1, np.nan, -np.inf):
        assert not gradient_of(Logistic(), Z, y, theta, weights=[nothing]).any()


def nasty_rows(dtype):
    """One row at a time: small, vast, subnormal, mixed, wide."""
    limits, rng = np.finfo(dtype), np.random.default_rng(2)
    big = float(limits.max)
    yield from ([v, v / 3, -v / 7] for v in (big, big / 2, 1e30, 1.0, 1e-30, float(limits.tiny)))
    yield [float(limits.smallest_subnormal)] * 3
    yield [big, float(limits.smallest_subnormal), 1.0]
    yield [0.0, 0.0, 0.0]
    yield [float(limits.tiny) / 8, big ** (1 / 3), -(big**0.5)]
    for scale in (-6, -1, 0, 0, 0, 1, 6):
        yield rng.normal(size=3) * 10.0**scale
    yield rng.normal(size=3000)
    yield np.ones(4097)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "loss", [Logistic(), Squared(), Poisson(), Softmax(3)], ids=lambda loss: type(loss).__name__
)
def test_a_row_contributes_at_most_the_clip_norm_in_exact_arithmetic(kind, dtype, loss):
    rng = np.random.default_rng(3)
    for row in nasty_rows(dtype):
        Z = KINDS[kind](np.array([row], dtype))
        shape = (Z.shape[1] + 1, loss.outputs) if loss.outputs > 1 else (Z.shape[1] + 1,)
        for constant, clip_norm, target in ((1.0, 1.0, 1.0), (0.0, 1e-3, 2.0), (0.3, 7.7, 0.0)):
            theta = rng.normal(size=shape) * (1e3 if clip_norm > 1 else 1.0)
            result = gradient_of(loss, Z, [target], theta, constant, clip_norm)
            assert np.isfinite(result).all()
            assert squared_norm(result) <= Fraction(clip_norm) ** 2
            grid = 2.0**-30 * clip_norm if math.frexp(clip_norm)[0] == 0.5 else 2.0**-30
            counts = counts_of(loss, Z, [target], theta, constant, clip_norm, grid=grid)
            assert squared_norm(counts, grid) <= Fraction(clip_norm) ** 2


def test_the_bound_is_tight_and_a_careless_clip_breaks_it():
    Z, y, theta = random_problem(Squared(), 200, 20, np.float32)
    exceeded = 0
    for i in range(200):
        result = gradient_of(Squared(), Z[i : i + 1], y[i : i + 1] + 50, theta, 0.0, 1.0)
        assert 1 - 4e-6 < squared_norm(result) <= 1
        careless = Z[i] * np.float32(1.0 / np.linalg.norm(Z[i]))
        exceeded += squared_norm(careless) > 1
    assert exceeded > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_norms_are_upper_bounds(kind, dtype):
    for row in nasty_rows(dtype):
        for constant in (0.0, 0.3):
            norm = row_norms(KINDS[kind](np.array([row], dtype)), constant)[0]
            exact = squared_norm(np.array(row, dtype)) + Fraction(constant) ** 2
            if math.isfinite(norm):
                assert exact <= Fraction(norm) ** 2 <= exact * Fraction(1 + 1e-10) + Fraction(2) ** -1000
            else:
                assert exact > Fraction(1.7e308) ** 2


def test_a_row_that_is_not_finite_has_an_infinite_norm():
    Z = np.array([[1.0, np.nan], [np.inf, 1.0], [1.0, 1.0]])
    for matrix in (Z, sp.csr_array(Z)):
        assert row_norms(matrix, 1.0).tolist()[:2] == [math.inf, math.inf]
        assert math.isfinite(row_norms(matrix, 1.0)[2])


@pytest.mark.parametrize("dtype", TYPES)
def test_the_sum_is_the_sum_of_its_rows_to_the_last_bit(dtype):
    Z, y, theta = random_problem(Logistic(), 500, 3, dtype)
    total = sum(gradient_of(Logistic(), Z[i : i + 1], y[i : i + 1], theta) for i in range(500))
    assert np.array_equal(gradient_of(Logistic(), Z, y, theta), total)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("loss", [Logistic(), Softmax(4), Poisson()], ids=lambda loss: type(loss).__name__)
def test_hardened_sums_are_sums_of_single_rows(kind, dtype, loss, monkeypatch):
    Z, y, theta = random_problem(loss, 150, 21, dtype)
    Z[17, 3] = np.nan
    matrix = KINDS[kind](Z)
    total = counts_of(loss, matrix, y, theta)
    singles = [counts_of(loss, KINDS[kind](Z[i : i + 1]), y[i : i + 1], theta) for i in range(150)]
    assert np.array_equal(total, sum(singles))
    order = np.random.default_rng(4).permutation(150)
    assert np.array_equal(total, counts_of(loss, KINDS[kind](Z[order]), y[order], theta))
    without = np.delete(np.arange(150), 66)
    assert np.array_equal(total - counts_of(loss, KINDS[kind](Z[without]), y[without], theta), singles[66])
    monkeypatch.setattr(kernel, "_TASK_BYTES", 1000)
    assert np.array_equal(total, counts_of(loss, matrix, y, theta))
    BoundedSum(total, 1.0, grid=GRID)


@pytest.mark.parametrize("columns", [8, 31, 32, 47, 48, 95, 96, 100, 300])
def test_a_row_gives_the_same_bits_in_blocks_of_any_size(columns):
    """From 128 rows of narrow tables to 16, and 32 of wide ones; full blocks, and one that is not."""
    Z, y, theta = random_problem(Logistic(), 300, columns, np.float32)
    singles = [counts_of(Logistic(), Z[i : i + 1], y[i : i + 1], theta) for i in range(300)]
    assert np.array_equal(counts_of(Logistic(), Z, y, theta), sum(singles))


@pytest.mark.parametrize("columns", [1, 18, 300])
def test_float32_sums_do_not_leave_their_32_bits(columns):
    """Rows at the clip norm, in one direction: 512 of them would fill the numbers in which blocks are added up.

    Blocks of 18 columns have 112 rows, so that the most are added up before sums move on.
    """
    Z, y = np.zeros((5000, columns), np.float32), np.zeros(5000, np.float32)
    Z[:, 0], theta = 3.0, np.eye(columns + 1)[1] * 100
    for clip_norm in (1.0, np.nextafter(2.0, 0)):
        one = counts_of(Squared(), Z[:1], y[:1], theta, 0.0, clip_norm)
        assert clip_norm * 0.999 < one[1] * GRID <= clip_norm
        many = counts_of(Squared(), Z, y, theta, 0.0, clip_norm)
        assert many.tolist() == (5000 * one).tolist()


def test_float32_products_are_rounded_to_the_nearest_step_of_their_lattice():
    """By fractions: a residual times a number, to the nearest multiple of 2**-21 for a clip norm of 1."""
    rng = np.random.default_rng(3)
    step = Fraction(1, 2**21)
    for value, target in rng.uniform(-0.9, 0.9, (200, 2)).astype(np.float32):
        counts = counts_of(Squared(), np.array([[value]], np.float32), [target], np.zeros(2), 0.0)
        steps = Fraction(float(-target)) * Fraction(float(value)) / step
        assert counts[1] * Fraction(GRID) == round(steps) * step


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_nothing(kind, monkeypatch):
    Z, y, theta = random_problem(Logistic(), 1000, 21, np.float32)
    monkeypatch.setattr(kernel, "_TASK_BYTES", 10_000)
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        results.append(gradient_of(Logistic(), KINDS[kind](Z), y, theta).tobytes())
    assert len(set(results)) == 1


def test_the_finest_grid_adds_row_by_row():
    Z, y, theta = random_problem(Logistic(), 100, 5, np.float64)
    fine = counts_of(Logistic(), Z, y, theta, grid=2.0**-50)
    singles = sum(counts_of(Logistic(), Z[i : i + 1], y[i : i + 1], theta, grid=2.0**-50) for i in range(100))
    assert np.array_equal(fine, singles)
    np.testing.assert_allclose(fine * 2.0**-50, by_hand(Logistic(), Z, y, theta, 1.0, 1.0), atol=1e-11)


def raw_csr(indices, columns=5, values=None):
    matrix = sp.csr_array((1, columns))
    matrix.indices, matrix.indptr = np.array(indices, np.int32), np.array([0, len(indices)], np.int32)
    matrix.data = np.array(values or [1.5] * len(indices))
    return matrix


def test_unsorted_columns_are_as_good_as_sorted_ones():
    theta = np.arange(6.0) / 10
    unsorted, plain = raw_csr([4, 0, 2], values=[1.0, 2.0, 3.0]), np.array([[2.0, 0, 3.0, 0, 1.0]])
    assert row_norms(unsorted, 1.0) == pytest.approx(row_norms(plain, 1.0), rel=1e-13)
    expected = gradient_of(Logistic(), plain, [0], theta)
    np.testing.assert_allclose(gradient_of(Logistic(), unsorted, [0], theta), expected, atol=2.0**-28)


def test_a_column_named_twice_stays_within_the_clip():
    for values in ([3.0, 3.0, 4.0], [1.9, -0.95, 1e-9]):
        matrix, theta = raw_csr([1, 1, 3], values=values), np.zeros(6)
        assert squared_norm(gradient_of(Logistic(), matrix, [0], theta, 0.0, 0.25)) <= Fraction(1, 16)
        counts = counts_of(Logistic(), matrix, [0], theta, 0.0, 0.25, grid=2.0**-3)
        assert squared_norm(counts, 2.0**-3) <= Fraction(1, 16)


@pytest.mark.parametrize("indices", [[0, 5], [-1, 2], [2**31 - 1]])
def test_columns_out_of_range_make_a_row_count_for_nothing(indices):
    matrix = raw_csr(indices)
    assert row_norms(matrix, 1.0).tolist() == [math.inf]
    assert not gradient_of(Logistic(), matrix, [0], np.ones(6)).any()


def test_memory_maps_are_read_in_place_and_not_compiled_again(tmp_path):
    Z, y, theta = random_problem(Logistic(), 200, 13, np.float32)
    Z.tofile(tmp_path / "rows")
    disk = np.memmap(tmp_path / "rows", np.float32, "r", shape=(200, 13))
    expected = gradient_of(Logistic(), Z, y, theta)
    known = len(dense_kernel.add_counts.signatures)
    assert np.array_equal(gradient_of(Logistic(), disk, y, theta), expected)
    assert np.array_equal(gradient_of(Logistic(), np.asfortranarray(Z), y, theta), expected)
    assert len(dense_kernel.add_counts.signatures) == known


def test_targets_that_float32_cannot_hold_are_no_warning():
    Z, theta = np.ones((2, 2), np.float32), np.zeros(3)
    assert np.isfinite(gradient_of(Squared(), Z, np.array([1e300, 0.0]), theta)).all()


def test_importing_compiles_nothing_and_torch_keeps_its_threads():
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "import numpy as np\n"
        "from discreet.linear import losses\n"
        "from discreet.linear.kernels import dense_kernel, kernel\n"
        "assert not dense_kernel.add_counts.signatures\n"
        "Z = np.ones((300, 3)); kernel._TASK_BYTES = 1000\n"
        "norms = kernel.row_norms(Z, 1.0)\n"
        "kernel.clipped_gradient(losses.Logistic(), Z, np.ones(300), np.zeros(4), 1.0, norms, 1.0)\n"
        "assert dense_kernel.add_counts.signatures and torch.get_num_threads() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def refused(match, **changes):
    Z, y, theta = random_problem(Logistic(), 10, 3, np.float64)
    good = {"loss": Logistic(), "Z": Z, "y": y, "theta": theta, "constant": 1.0, "norms": row_norms(Z, 1.0)}
    with pytest.raises(InvalidParameter, match=match):
        clipped_gradient(**(good | {"clip_norm": 1.0} | changes))


def test_what_is_public_is_checked():
    refused("must be float32 or float64", Z=np.ones((10, 3), int))
    refused("two-dimensional", Z=np.ones(10))
    refused("must be CSR", Z=sp.csc_array(np.ones((10, 3))))
    refused(r"theta.shape=\(3,\)", theta=np.zeros(3))
    refused("clip_norm=nan", clip_norm=math.nan)
    refused("constant=nan", constant=math.nan)
    refused("constant=-1", constant=-1)
    refused("one number for each row", y=np.ones(9))
    refused("one number for each row", y=np.array(["a"] * 10))
    refused("one number for each row", weights=np.ones(11))
    refused("row_norms", norms=np.ones(9))
    refused("for float32 rows", Z=np.ones((10, 3), np.float32), clip_norm=1e-40)
    Z, y, theta = random_problem(Logistic(), 10, 3, np.float64)
    with pytest.raises(InvalidParameter, match="grid"):
        counts_of(Logistic(), Z, y, theta, grid=2.0**-70)
    with pytest.raises(InvalidParameter, match="power of two"):
        counts_of(Logistic(), Z, y, theta, grid=0.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_passes_over_columns_are_numpys_to_the_bit(dtype):
    from discreet.linear.encoder import scale_to_unit
    from discreet.linear.kernels.rowwise import (
        add_cut_rows,
        bound_rows,
        count_bins,
        scale_rows,
        standardise_rows,
    )

    rng = np.random.default_rng(0)
    x = (rng.standard_normal((501, 7)) * 10).astype(dtype)
    x[3, 2], x[4, 1], x[5, 0], x[6, 6] = np.nan, np.inf, -np.inf, 1e38 if dtype == np.float32 else 1e39
    lower, upper = -9 * rng.random(7), 11 * rng.random(7) + 0.1
    found, finite = np.empty(x.shape, np.float32), np.empty(len(x), bool)
    scale_rows(x, lower, upper, np.full(x.shape[1], 0.5), found)
    np.testing.assert_array_equal(found, scale_to_unit(x, lower, upper).astype(np.float32))
    with np.errstate(over="ignore"):
        expected = np.isfinite(x.astype(np.float32)).all(axis=1)
    admitted = np.empty(x.shape, np.float32)
    assert not bound_rows(x, 5, admitted, finite)
    np.testing.assert_array_equal(finite, expected)
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float32)
    np.clip(wanted[:, :5], 0, 1, out=wanted[:, :5])
    np.testing.assert_array_equal(admitted[expected], wanted[expected])
    assert bound_rows(x[expected], 7, admitted[expected], finite[expected])
    lower, upper, centre, scale = (v.astype(np.float32) for v in (lower / 99, upper / 99, lower, upper))
    standardised = np.empty(x.shape, np.float32)
    standardise_rows(found, lower, upper, centre, scale, standardised)
    np.testing.assert_array_equal(standardised, (np.clip(found, lower, upper) - centre) / scale)
    cells = [np.minimum((column * 16).astype(int), 15) for column in found.T]
    for narrow in (np.int32, np.int64):
        counts = np.zeros(7 * 16, narrow)
        count_bins(found, 16, counts)
        np.testing.assert_array_equal(counts, np.concatenate([np.bincount(c, minlength=16) for c in cells]))
    sums, factors = np.zeros(7, np.int64), rng.random(501) * 2**30
    add_cut_rows(found, factors, 0.5, sums)
    exact = np.trunc(factors[:, None] * (found - np.float32(0.5)).astype(np.float64))
    np.testing.assert_array_equal(sums, exact.astype(np.int64).sum(axis=0))
