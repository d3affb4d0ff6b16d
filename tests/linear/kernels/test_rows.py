"""Rows in chunks: the same sums as in one piece, in bounded memory, with a progress that tells nothing."""

import math
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from discreet.errors import InvalidParameter
from discreet.linear.kernels.kernel import clipped_gradient, row_norms
from discreet.linear.kernels.rows import Rows
from discreet.linear.losses import Logistic, Softmax

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(1000, 4))
Y = RNG.integers(0, 2, 1000)
THETA = RNG.normal(size=5)
SMALL = 2000  # bytes: a chunk of a few dozen rows


def whole(matrix, weights=None):
    return clipped_gradient(Logistic(), matrix, Y, THETA, 1.0, row_norms(matrix, 1.0), 1.0, weights)


def in_chunks(rows, **options):
    return rows.gradient(Logistic(), Y, THETA, constant=1.0, clip_norm=1.0, **options)


@pytest.mark.parametrize("chunk_bytes", [1, SMALL, 2**27])
def test_chunks_change_nothing(chunk_bytes):
    rows, weights = Rows(Z, chunk_bytes), RNG.random(1000)
    expected = whole(Z, weights)
    np.testing.assert_allclose(in_chunks(rows, weights=weights), expected, rtol=1e-12)
    np.testing.assert_allclose(in_chunks(rows, weights=weights, norms=rows.norms(1.0)), expected, rtol=1e-12)
    assert np.array_equal(rows.norms(1.0), row_norms(Z, 1.0))


def test_hardened_sums_do_not_depend_on_the_chunks():
    def counts(size):
        return Rows(Z, size).hardened_gradient(Logistic(), Y, THETA, 1.0, 1.0, grid=2.0**-40)

    assert np.array_equal(counts(SMALL), counts(2**27))
    assert np.array_equal(counts(1), counts(2**27))


@pytest.mark.parametrize(
    "matrix",
    [
        np.asfortranarray(Z),
        np.hstack([Z, Z])[:, 2:6],
        Z.astype(np.float16),
        (10 * Z).astype(np.int32),
        Z > 0,
        sp.csr_array(Z),
        sp.csc_array(Z),
        sp.coo_matrix(Z),
    ],
    ids=["fortran", "columns", "float16", "int", "bool", "csr", "csc", "coo"],
)
def test_every_kind_of_matrix(matrix):
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    dense = np.ascontiguousarray(dense, np.float32 if dense.dtype == np.float16 else np.float64)
    np.testing.assert_allclose(in_chunks(Rows(matrix, SMALL)), whole(dense), rtol=1e-6)


def test_maps_are_applied_chunk_by_chunk():
    seen = []

    def scaled(part):
        seen.append(part.shape[0])
        return part[:, :2] * 3

    rows = Rows(Z, SMALL).mapped(scaled, width=2)
    np.testing.assert_allclose(
        rows.gradient(Logistic(), Y, THETA[:3], 1.0, 1.0),
        clipped_gradient(Logistic(), Z[:, :2] * 3, Y, THETA[:3], 1.0, row_norms(Z[:, :2] * 3, 1.0), 1.0),
        rtol=1e-12,
    )
    assert sum(seen) == 1000
    assert max(seen) * 6 * 8 <= SMALL
    sparse = Rows(sp.csr_array(Z), SMALL).mapped(lambda part: part * 3, width=4)
    np.testing.assert_allclose(in_chunks(sparse), whole(3 * Z), rtol=1e-12)
    single = Rows(Z, SMALL).mapped(lambda part: part, width=4, dtype=np.float32)
    assert {part.dtype for _, part in single.chunks()} == {np.dtype(np.float32)}


def test_memory_stays_bounded(tmp_path):
    rows, width = 1_000_000, 4
    disk = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(rows, width))
    disk[:], y = 0.5, np.memmap(tmp_path / "y", np.int8, "w+", shape=rows)
    matrix = Rows(disk, chunk_bytes=2**20).mapped(lambda part: part * np.float32(2), width=width)
    matrix.gradient(Logistic(), y, np.zeros(5), 1.0, 10.0)
    tracemalloc.start()
    result = matrix.gradient(Logistic(), y, np.zeros(5), 1.0, 10.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20 < disk.nbytes / 3
    assert result == pytest.approx([rows / 2] * 5, rel=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_progress_tells_a_hundred_ticks_whatever_the_rows(rows):
    ticks = []
    Rows(Z[:rows], SMALL).gradient(Logistic(), Y[:rows], THETA, 1.0, 1.0, progress=ticks.append)
    assert ticks == [tick / 100 for tick in range(1, 101)]


def test_no_rows_give_zeros():
    none = Rows(np.zeros((0, 4)))
    assert none.gradient(Softmax(3), [], np.zeros((5, 3)), 1.0, 1.0).shape == (5, 3)
    assert none.hardened_gradient(Logistic(), [], THETA, 1.0, 1.0, grid=2.0**-40).dtype == np.int64
    assert none.norms(1.0).shape == (0,)


def test_values_are_never_a_reason_to_refuse():
    bad = np.full((6, 4), 1e300)
    bad[0, 0], bad[1], bad[2] = math.nan, math.inf, -math.inf
    y = np.array([0, 1, math.nan, math.inf, -5, 1e300])
    result = Rows(bad).mapped(lambda part: part * 1e10, width=4).gradient(Logistic(), y, THETA, 1.0, 1.0)
    assert not result.any()
    single = Rows(bad).mapped(lambda part: part, width=4, dtype=np.float32)
    assert not single.gradient(Logistic(), y, THETA, 1.0, 1.0).any()


def test_what_is_public_is_checked():
    for matrix, words in (
        ([[1.0]], "numpy array"),
        (np.ones(3), "dimensions"),
        (np.array([["a"]]), "dtype"),
        (np.ones((2, 2), complex), "dtype"),
        (np.array([[object()]]), "dtype"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            Rows(matrix)
    with pytest.raises(InvalidParameter, match="chunk_bytes=nan"):
        Rows(Z, math.nan)
    with pytest.raises(InvalidParameter, match="one number for each row"):
        Rows(Z).gradient(Logistic(), Y[1:], THETA, 1.0, 1.0)
    with pytest.raises(InvalidParameter, match="width=3"):
        in_chunks(Rows(Z).mapped(lambda part: part, width=3))
    with pytest.raises(InvalidParameter, match="second map"):
        Rows(Z).mapped(abs, 4).mapped(abs, 4)
