"""Public numbers at the ends of their ranges: no margin is negative, nothing overflows, no check waits for a row."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_array

from discreet import Budget
from discreet.errors import DiscreetError, InvalidParameter, PlanViolation
from discreet.linear.gate.compiled_sums import ClippedGradient, NewtonStep, Scale, SecondMoments
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records, Scores, WhiteNorms
from discreet.linear.kernels.centred import Centre
from discreet.linear.kernels.coefficients import LOGISTIC
from discreet.linear.kernels.rank_crossings import CROSSINGS
from discreet.linear.losses import Logistic, Poisson, Squared
from discreet.linear.row_views.column_views import Crossings, HatCells, Ranks, Residual
from discreet.linear.row_views.coordinates import (
    CurveDirections,
    Diagonal,
    Marginals,
    Merged,
    StandardRows,
    Whitened,
)
from discreet.linear.row_views.curve_bases import Basis, Curve
from discreet.linear.row_views.targets import CountExcess, Target
from discreet.trusted.queries import ROUNDING, Blocks, Cells, Rows
from discreet.trusted.spending import BudgetAllocator

GRID = 2.0**-20


def moved(query, more, fewer, grid):
    """The norm of what the last record adds, over the bound, in exact integers."""
    pairs = zip(more._total(query, grid), fewer._total(query, grid), strict=True)
    return math.sqrt(sum((int(one) - int(other)) ** 2 for one, other in pairs)) * grid / query.bound


def newton(columns):
    marginals = Marginals(*(np.full(columns, value) for value in (0.0, 1.0, 0.0, 1.0)))
    white, scale = Whitened(marginals, np.eye(columns + 1)), Scale(LOGISTIC, 1.0, 1.0, 1.0, 1.0)
    return NewtonStep(Merged(np.eye(columns), white), Target(), np.zeros(columns + 1), scale)


@pytest.mark.parametrize("columns", [2, 40])
@pytest.mark.parametrize("exponent", range(-40, 12))
def test_a_newton_step_keeps_its_bound_on_every_grid_or_refuses(columns, exponent):
    rng, grid = np.random.default_rng(1), 2.0**exponent
    x, y = rng.random((4, columns)), np.array([0.0, 1.0, 1.0, 0.0])
    more, fewer = (Records(Logistic(), x[:rows], y[:rows], Columns(columns)) for rows in (4, 3))
    try:
        assert moved(newton(columns), more, fewer, grid) <= 1
    except PlanViolation:
        empty = Records(Logistic(), x[:0], y[:0], Columns(columns))
        with pytest.raises(PlanViolation):  # whether there are rows or not
            empty._total(newton(columns), grid)
        assert exponent > -30


@pytest.mark.parametrize("exponent", range(-40, 12))
def test_second_moments_keep_their_bound_on_every_grid_or_refuse(exponent):
    rng, grid = np.random.default_rng(2), 2.0**exponent
    ones = np.ones(3)
    query = SecondMoments(StandardRows(Marginals(ones * 0, ones, ones * 0, ones)), 2.0)
    x, y = rng.random((4, 3)), np.zeros(4)
    more, fewer = (Records(Logistic(), x[:rows], y[:rows], Columns(3)) for rows in (4, 3))
    try:
        assert moved(query, more, fewer, grid) <= 1
    except DiscreetError:
        with pytest.raises(DiscreetError):
            Records(Logistic(), x[:0], y[:0], Columns(3))._total(query, grid)


@pytest.mark.parametrize("cut", [1.0, 1e-20, 1e-30, 1e-60, 1e-99])
def test_weights_in_single_precision_do_not_overflow(cut):
    one = np.ones(1)
    scores = Scores(Diagonal(Marginals(one * 0, one, -one, one), None), Target(), np.array([-1e4, 0.0]))
    query = Blocks((Cells(CountExcess(cut), (1,), (cut,)),), cut * ROUNDING, of=scores)
    grid = BudgetAllocator(Budget(1.0, 1e-6)).stage("a", 0.5).grid(query.bound)

    def records(rows):
        x, y, weights = np.full((rows, 1), 0.5), np.full(rows, 3.0), np.full(rows, 0.5)
        return Records(Poisson(), x, y, Columns(1), weights)

    assert moved(query, records(2), records(1), grid) <= 1
    assert moved(query, records(1), records(0), grid) <= 1


def test_weights_are_wide_where_they_are_multiplied():
    coordinates = Diagonal(Marginals(*(np.full(1, value) for value in (0.0, 1.0, -1.0, 1.0))), None)
    rows = Records(Poisson(), np.full((2, 1), 0.5), np.ones(2), Columns(1), np.full(2, 0.5, np.float32))
    for of in (None, WhiteNorms(coordinates), Scores(coordinates, Target(), np.zeros(2))):
        assert {part.weights.dtype for part in rows._store.parts(of)} == {np.dtype(np.float64)}
    with np.errstate(over="ignore"):
        assert np.isinf(np.full(3, 0.5, np.float32) * 1e60).all()  # the broken twin


def test_arrays_are_of_the_declared_type():
    knots = np.array([-(2**63), 2**63 - 1], np.int64)
    records = Records(Logistic(), np.full((2, 2), 0.3), np.zeros(2), Columns(2))
    with pytest.raises(PlanViolation, match="HatCells"):
        records._total(Blocks((Cells(HatCells((((0, 1), (knots, knots)),)), (4,), (1.0001,)),), 1.0002), GRID)
    narrow = Marginals(*(np.ones(2, np.float32),) * 4)
    with pytest.raises(PlanViolation, match="marginals"):
        records._total(ClippedGradient(Logistic(), Diagonal(narrow, None), Target(), np.zeros(3), 1.0), GRID)


@pytest.mark.parametrize("steps", [[2**41, 0, 0], [0, 0], [0, 0, 0, 0], [-(2**62), 1, 1]])
def test_a_centre_of_other_steps_is_refused(steps):
    ones, rng = np.ones(3), np.random.default_rng(3)
    centre = Centre(np.array(steps, np.int64))
    coordinates = Diagonal(Marginals(ones * 0, ones, -ones, ones), centre)
    query = ClippedGradient(Squared(), coordinates, Target(), np.zeros(4), 1.0)
    x = csr_array(rng.random((6, 3)))
    rows = Records(Squared(), x, np.zeros(6), Columns(0, text=3, text_norm=2.0), sparse=True)
    with pytest.raises(InvalidParameter, match="centre"):
        rows._total(query, GRID)


EDGES = np.array([0.0, 0.5, 1.0])
BASIS = Basis(Columns(2), (Curve(0, EDGES, np.array([1, 2])),))
RANKS = Ranks((EDGES, EDGES), (np.zeros(2), np.zeros(2)))
FIVE = np.ones(5)
OTHERS = {
    "crossings of a residual of another width": Blocks(
        (
            Rows(
                Crossings(
                    RANKS,
                    ((0, 1),),
                    np.zeros((1, 10, CROSSINGS)),
                    Residual(BASIS, np.zeros(7), np.zeros(1), Logistic(), Target(), 1.0),
                ),
                4,
                1.0,
            ),
        ),
        1.1,
    ),
    "moments of five columns": SecondMoments(StandardRows(Marginals(FIVE, FIVE, FIVE * 0, FIVE)), 2.0),
    "moments of five directions": SecondMoments(CurveDirections(BASIS, np.zeros((5, 3)), np.zeros(3)), 2.0),
}


@pytest.mark.parametrize("query", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize(
    ("rows", "target"), [(0, 0.0), (100, 5.0), (1, 0.0)], ids=["none", "no target", "one"]
)
def test_a_query_that_does_not_fit_is_refused_whatever_rows_there_are(query, rows, target):
    records = Records(Logistic(), np.full((rows, 2), 0.3), np.full(rows, target), Columns(2))
    with pytest.raises(DiscreetError):
        records._total(query, GRID)
