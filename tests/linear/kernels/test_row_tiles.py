"""Rows in tiles: whole numbers of one row each, and gradients of whole numbers that are exactly bounded."""

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.errors import InvalidParameter
from discreet.linear.kernels import tiled_kernel
from discreet.linear.kernels.kernel import hardened_clipped_gradient, row_norms
from discreet.linear.kernels.row_tiles import LARGEST, STEP, TILE, tile_scores, tiles_of
from discreet.linear.kernels.rowwise import standardise_rows, times
from discreet.linear.kernels.tiled_kernel import takes, tiled_gradient
from discreet.linear.kernels.white_tiles import whiten_into_tiles
from discreet.linear.losses import Logistic, SmoothedHinge, Softmax, Squared

GRID = 2.0**-36
SHAPES = [(1, 1), (63, 3), (64, 5), (65, 21), (300, 20), (1000, 7)]
LOSSES = [Logistic(), SmoothedHinge(0.3)]


def random_rows(rows, columns, seed=0, size=1.0):
    return (size * np.random.default_rng(seed).standard_normal((rows, columns))).astype(np.float32)


def in_rows(tiles, rows):
    """Whole steps, row by row."""
    return tiles.transpose(0, 2, 1).reshape(-1, tiles.shape[1])[:rows].astype(np.int64)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_numbers_are_rounded_to_the_nearest_step(rows, columns):
    z = random_rows(rows, columns)
    tiles, _ = tiles_of(z)
    np.testing.assert_array_equal(in_rows(tiles, rows), np.rint(z.astype(float) / STEP))
    assert tiles.shape == (math.ceil(rows / TILE), columns, TILE)
    assert not tiles.reshape(len(tiles), columns, TILE)[-1, :, rows - (len(tiles) - 1) * TILE :].any()


def test_long_rows_are_shortened_and_rows_that_are_not_finite_are_nothing():
    z = random_rows(70, 4, size=100.0)
    z[3, 1], z[66, 0], z[5] = np.nan, -np.inf, 3e38
    tiles, norms = tiles_of(z)
    steps = in_rows(tiles, 70)
    assert abs(steps).max() <= LARGEST
    assert not steps[[3, 66]].any()
    assert not norms[[3, 66]].any()
    long = abs(z).max(axis=1) > LARGEST * STEP
    for row in np.setdiff1d(np.flatnonzero(long), [3, 66]):  # the direction stays, as far as steps can tell
        expected = z[row].astype(float) / abs(z[row].astype(float)).max() * (LARGEST - 1)
        np.testing.assert_allclose(steps[row], expected, atol=0.6)


def test_norms_are_never_below_the_exact_ones():
    z = np.concatenate([random_rows(200, 9, size=size) for size in (0.001, 1.0, 1e4)])
    tiles, norms = tiles_of(z)
    for steps, norm in zip(in_rows(tiles, len(z)).tolist(), norms, strict=True):
        square = sum(step * step for step in steps) * Fraction(STEP) ** 2
        assert square <= Fraction(float(norm)) ** 2 <= square * (1 + Fraction(2) ** -45)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_white_rows_are_those_of_standardise_and_times(rows, columns):
    rng = np.random.default_rng(rows)
    x = rng.random((rows, columns), np.float32)
    marginals = tuple(
        values.astype(np.float32)
        for values in (
            np.full(columns, 0.1),
            np.full(columns, 0.9),
            rng.random(columns),
            0.1 + rng.random(columns),
        )
    )
    rotation = rng.standard_normal((columns + 1, columns + 1))
    z = np.empty_like(x)
    standardise_rows(x, *marginals, z)
    for found, expected in zip(
        whiten_into_tiles(x, marginals, rotation),
        tiles_of(times(z, rotation[1:], plus=rotation[0])),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_scores_are_those_of_the_rounded_rows():
    z, weights = random_rows(150, 12), random_rows(1, 12)[0].astype(float)
    tiles, _ = tiles_of(z)
    expected = in_rows(tiles, 150) * STEP @ weights + 0.5
    np.testing.assert_allclose(tile_scores(tiles, 150, weights, plus=0.5), expected, rtol=1e-5, atol=1e-5)


def problem(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    z = random_rows(rows, columns, seed)
    return z, rng.integers(0, 2, rows).astype(np.float32), rng.standard_normal(columns + 1)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_gradient_is_that_of_the_rounded_rows(loss, rows, columns):
    """The oracle is the kernel for rows, which rounds products instead of residuals."""
    z, y, theta = problem(rows, columns)
    tiles, norms = tiles_of(z)
    rounded = (in_rows(tiles, rows) * STEP).astype(np.float32)
    weights = np.random.default_rng(9).random(rows).astype(np.float32)
    for clip_norm, own in ((0.5, None), (100.0, None), (3.0, weights)):
        known = (0.0, row_norms(rounded, 0.0), clip_norm, GRID, own)
        expected = hardened_clipped_gradient(loss, rounded, y, theta, *known) * GRID
        found = tiled_gradient(loss, tiles, y, theta, norms, clip_norm, GRID, own) * GRID
        assert found[0] == 0
        rounding = 2.0**-12 * np.sqrt(rows) * (1 + abs(rounded).max())
        np.testing.assert_allclose(found, expected, atol=2 * rounding)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("grid", [2.0**-40, 2.0**-22, 2.0**-15])
def test_a_row_adds_a_whole_number_times_itself_within_the_clip_norm(loss, grid):
    """Exactly, in fractions: long and short rows, steep and flat scores, weights, coarse grids."""
    z = np.concatenate([random_rows(40, 6, seed, size) for seed, size in enumerate((1e-3, 1.0, 30.0, 1e6))])
    tiles, _ = tiles_of(z)
    clip_norm, reached = 0.7, Fraction(0)
    for row, steps in enumerate(in_rows(tiles, len(z)).tolist()):
        alone, norm = tiles_of(z[[row]])
        for theta in (np.zeros(7), np.full(7, 3.0), np.full(7, -1e30)):
            found = tiled_gradient(loss, alone, np.array([row % 2]), theta, norm, clip_norm, grid).tolist()
            square = sum(Fraction(count) ** 2 for count in found) * Fraction(grid) ** 2
            reached = max(reached, square / Fraction(clip_norm) ** 2)
            factors = {Fraction(count, step) for count, step in zip(found[1:], steps, strict=True) if step}
            assert len(factors) <= 1
    assert reached <= 1
    assert reached > 0.9 or grid > 2.0**-20


def test_norms_that_are_too_small_are_caught():
    """The broken twin: some row adds too much."""
    z = random_rows(200, 3, size=5.0)
    worst = 0.0
    for row in range(200):
        tiles, norms = tiles_of(z[[row]])
        found = tiled_gradient(Logistic(), tiles, np.ones(1), np.zeros(4), norms * 0.9, 0.7, 2.0**-40)
        worst = max(worst, float(np.linalg.norm(found * 2.0**-40)))
    assert worst > 0.7


def test_rows_do_not_change_what_others_add_wherever_they_are():
    z, y, theta = problem(500, 11)
    z[::50] *= 1e3  # some are so long that sums have to be carried often
    tiles, norms = tiles_of(z)
    whole = tiled_gradient(Logistic(), tiles, y, theta, norms, 9.0, GRID)
    order = np.random.default_rng(1).permutation(500)
    for parts in (np.split(order, [100, 137, 400]), [order]):
        total = np.zeros(12, np.int64)
        for part in parts:
            tiles, norms = tiles_of(z[part])
            total += tiled_gradient(Logistic(), tiles, y[part], theta, norms, 9.0, GRID)
        np.testing.assert_array_equal(total, whole)


def test_sums_stay_within_32_bits_at_the_largest_numbers():
    """Rows of the largest numbers and residuals of 1: exactly known sums, over many tiles."""
    rows = 64 * 40
    z = np.full((rows, 3), LARGEST * STEP, np.float32)
    tiles, norms = tiles_of(z)
    theta = np.array([0.0, -1e6, -1e6, -1e6])
    found = tiled_gradient(Logistic(), tiles, np.ones(rows), theta, norms, 1e6, 2.0**-22)
    step = int(in_rows(tiles, 1)[0, 0])
    assert found.tolist() == [0, *([-rows * step * (2**13 - 1)] * 3)]


def test_threads_and_tasks_change_nothing(monkeypatch):
    z, y, theta = problem(3000, 5)
    tiles, norms = tiles_of(z)
    expected = tiled_gradient(Logistic(), tiles, y, theta, norms, 2.0, GRID)
    monkeypatch.setattr(tiled_kernel, "_TASK", 7)
    monkeypatch.setattr("discreet.linear.kernels.rowwise.thread_count", lambda: 3)
    np.testing.assert_array_equal(tiled_gradient(Logistic(), tiles, y, theta, norms, 2.0, GRID), expected)


def test_what_is_not_known_is_refused():
    assert [takes(loss) for loss in (Logistic(), SmoothedHinge(0.3), Softmax(3), Squared())] == [
        True,
        True,
        False,
        False,
    ]
    tiles, norms = tiles_of(random_rows(3, 2))
    for loss, grid in ((Squared(), GRID), (Logistic(), 0.3)):
        with pytest.raises(InvalidParameter):
            tiled_gradient(loss, tiles, np.zeros(3), np.zeros(3), norms, 1.0, grid)
