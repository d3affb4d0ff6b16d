"""A record that comes or goes leaves the rounding of all others alone, at any number of records.

Sums of floats do not: at four million rows, removing one moved what the others added by several ten-thousandths of
the clip norm, more than any fixed slack covers.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from discreet import Budget
from discreet.core.noise import FLOAT_ROOM, MOST_ROWS, sum_grid
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records
from discreet.linear.glm.whitening import whiten
from discreet.linear.kernels import moment_lattice as moments
from discreet.linear.kernels.kernel import clipped_gradient, hardened_clipped_gradient, row_norms
from discreet.linear.kernels.moment_lattice import MomentLattice
from discreet.linear.losses import Logistic, Squared
from discreet.linear.row_views.column_views import Offset
from discreet.linear.row_views.coordinates import Marginals
from discreet.trusted.queries import ROUNDING, Blocks, Rows
from discreet.trusted.spending import BudgetAllocator

MILLIONS = 4_000_000
GONE = 1_234_567


class Watching(BudgetAllocator):
    """Keeps the last sum."""

    def _add_noise(self, total, event):
        self.last = total
        return super()._add_noise(total, event)


def gradient(Z, y):
    return clipped_gradient(Logistic(), Z, y, np.zeros(Z.shape[1] + 1), 1.0, row_norms(Z, 1.0), 1.0)


def without(array, place=GONE):
    return np.delete(array, place, axis=0)


def test_one_of_four_million_rows_moves_the_gradient_by_its_own_part_only():
    rng = np.random.default_rng(0)
    Z, y = rng.standard_normal((MILLIONS, 2), np.float32), np.ones(MILLIONS, np.float32)
    own = gradient(Z[GONE : GONE + 1], y[:1])
    moved = gradient(Z, y) - gradient(without(Z), y[1:])
    assert np.array_equal(moved, own)
    assert sum(Fraction(v) ** 2 for v in moved.tolist()) <= 1


def test_a_careless_sum_of_four_million_rows_would_be_noticed():
    """The broken twin: the same rows, added up in float32 block by block as BLAS does."""
    rng = np.random.default_rng(0)
    rows = 0.5 * rng.standard_normal((MILLIONS, 2), np.float32)
    moved = rows.T @ np.ones(MILLIONS, np.float32) - without(rows).T @ np.ones(MILLIONS - 1, np.float32)
    assert np.linalg.norm(moved - rows[GONE]) > 1e-4


@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_one_of_a_million_rows_moves_second_moments_by_its_own_part_only(arithmetic):
    columns, some = Columns(numerics=2), np.random.default_rng(1)
    x, y = some.random((1_000_000, 2), np.float32), np.zeros(1_000_000)
    marginals = Marginals(np.full(2, 0.5), np.full(2, 0.3), np.zeros(2), np.ones(2))

    def summed(x):
        spending = Watching(Budget(1.0, 1e-6), arithmetic=arithmetic)
        whiten(Records(Squared(), x, y[: len(x)], columns), marginals, 1.4, 1e6, spending.stage("whitening"))
        return spending.last

    everybody, others, alone = summed(x), summed(without(x, 77)), summed(x[77:78])
    assert np.array_equal(everybody.value - others.value, alone.value)
    assert 0 < np.linalg.norm(alone.value * (alone.grid or 1.0)) <= alone.clip_norm


def hostile_rows(kind, rows, rng):
    """Large values that cancel, ordered signs, one that dwarfs the others, steps between two floats."""
    Z = rng.standard_normal((rows, 3))
    if kind == "cancelling":
        Z[::2], Z[1::2] = 1e30, -1e30
    elif kind == "ordered signs":
        Z = np.sort(Z, axis=0) * 1e3
    elif kind == "one giant":
        Z[rows // 2] = 1e38
    elif kind == "between two steps":
        Z = np.full((rows, 3), sum_grid(1.0) * 1.5)
    return Z


@pytest.mark.parametrize("kind", ["cancelling", "ordered signs", "one giant", "between two steps", "plain"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_hostile_rows_add_what_they_add_alone(kind, dtype, form):
    rng = np.random.default_rng(2)
    for rows in (3, 129, 1000):
        Z, y = hostile_rows(kind, rows, rng).astype(dtype), rng.standard_normal(rows)

        def counts(chosen, Z=Z, y=y):
            part, theta = form(Z[chosen]), np.array([0.1, 1.0, -2.0, 0.5])
            known = (Squared(), part, y[chosen], theta, 1.0, row_norms(part, 1.0), 1.0, 2.0**-30)
            return hardened_clipped_gradient(*known)

        everybody = counts(np.arange(rows))
        for place in (0, rows // 2, rows - 1):
            own = everybody - counts(np.delete(np.arange(rows), place))
            assert np.array_equal(own, counts([place]))
            assert sum(int(c) ** 2 for c in own) <= (2**30) ** 2


@pytest.mark.parametrize("seed", range(5))
def test_sums_over_billions_of_rows_keep_their_sensitivity_as_floats(seed):
    """Blocks repeated until there are as many rows as a sum may have: here the rounding to float64 is largest."""
    rng, clip = np.random.default_rng(seed), 3.7
    block = rng.standard_normal((64, 2))
    block *= clip / np.linalg.norm(block, axis=1).max() * (1 - 1e-12)
    record = np.array([[0.8, 0.6]]) * clip * (1 - 1e-12)

    class Billions:
        def __init__(self, more):
            self.more = more

        def _total(self, query, grid):
            counts = np.zeros(query.size, np.int64)
            counts += ((np.abs(block) if seed % 2 else block) / grid).astype(np.int64).sum(axis=0)
            counts *= MOST_ROWS // 64
            if self.more:
                counts += (record / grid).astype(np.int64).sum(axis=0)
            return counts

    def value(more):
        spending = Watching(Budget(1.0, 1e-6), arithmetic="float")
        query = Blocks((Rows(Offset(np.zeros(2)), 2, clip / ROUNDING),), clip)
        spending.stage("all").ask(Billions(more), query)
        return spending.last

    first, second = value(more=False), value(more=True)
    square = sum((Fraction(b) - Fraction(a)) ** 2 for a, b in zip(first.value, second.value, strict=True))
    assert first.clip_norm == clip * (1 + FLOAT_ROOM)
    assert square <= Fraction(first.clip_norm) ** 2


def test_a_float_sum_has_no_room_for_more_rows():
    endless = np.broadcast_to(np.float32(1), (MOST_ROWS + 1, 1))
    with pytest.raises(ValueError, match="too many rows"):
        row_norms(endless, 1.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 12.0])
@pytest.mark.parametrize("share", [1e-3, 1.0])
def test_second_moments_of_the_finest_grid_are_whole_numbers_that_float64_holds(epsilon, share):
    """(E15): products of a block stay below 2**53, also where a large budget makes the grid finest."""
    stage = BudgetAllocator(Budget(epsilon, 1e-6), arithmetic="hardened").stage("whitening", share)
    clip = 16.0
    lattice = MomentLattice.of(stage.grid(clip))
    largest = math.sqrt(clip) / lattice.step
    rows = max(1, moments._BLOCK // 2)  # of two numbers, which are the narrowest
    assert rows * (largest + 1) ** 2 < 2**53
