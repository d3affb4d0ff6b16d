"""Views are not believed: whatever one returns, the bound holds; one that mixes records is found.

A hostile view returns numbers that depend on its own record in any way: infinite, beyond every limit, in cells out of
range, in arrays of other shapes. It stands in for every view of every query kind.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest

from discreet.errors import PlanViolation
from discreet.evaluation import outcomes
from discreet.linear.gate.column_blocks import ColumnCells
from discreet.linear.gate.compiled_sums import ClippedGradient, NewtonStep, Scale, ScoreLine, SecondMoments
from discreet.linear.gate.private_table import RawColumns
from discreet.linear.gate.records import RowMap, Scores, WhiteNorms
from discreet.linear.kernels.coefficients import SQUARED
from discreet.linear.losses import Logistic, Squared
from discreet.statistics import statistic_views as views
from discreet.trusted import queries
from discreet.trusted.queries import Blocks, Cells, Part, Rows, View, evaluate
from discreet.trusted.rows import NumberParts
from support.hostile_records import HOSTILE, World, answer, grid_of, moved_too_far

CASES = 60


def ours(kind):
    """Let a class pass for one of the catalogue."""
    kind.__module__ = "discreet.linear.row_views.targets"
    return kind


def numbers(x, y, seed, size):
    """Numbers that depend on each record alone."""
    rows = x.toarray() if hasattr(x, "toarray") else np.asarray(x)
    rows = rows[:, None] if rows.ndim == 1 else rows
    whole = np.column_stack([rows, np.zeros(len(rows)) if y is None else y])
    found = np.empty((len(whole), size))
    for place, row in enumerate(whole.astype(np.float64) + 0.0):
        digest = hashlib.sha256(row.tobytes()).digest()
        rng = np.random.default_rng([seed, *digest])
        plain = rng.normal(size=size) * 10.0 ** rng.integers(-3, 9)
        found[place] = np.where(rng.random(size) < 0.2, rng.choice(HOSTILE, size), plain)
    return found


@ours
@dataclass(frozen=True, eq=False)
class AnyRow(View):
    """Any vector of a record."""

    seed: int
    width: int
    narrow: bool = False

    def __call__(self, x, y):
        with np.errstate(all="ignore"):
            return numbers(x, y, self.seed, self.width).astype(np.float32 if self.narrow else np.float64)


@ours
@dataclass(frozen=True, eq=False)
class AnyCells(View):
    """Any cells, with any numbers."""

    seed: int
    groups: int
    entries_each: int
    amounts: bool

    def __call__(self, x, y):
        found = numbers(x, y, self.seed, 2 * self.groups * self.entries_each)
        cells, values = np.split(found.reshape(len(found), self.groups, 2 * self.entries_each), 2, axis=2)
        cells = np.where(np.isfinite(cells), np.clip(cells, -9, 99), 3).astype(np.int64) % 9 - 1
        return (cells, values) if self.amounts else cells

    def entries(self, values, columns):
        return self(values, columns)[:, 0, 0]


@ours
@dataclass(frozen=True, eq=False)
class AnyTarget(View):
    """Any number for a target."""

    seed: int

    def __call__(self, x, y):
        return numbers(x, y, self.seed, 1)[:, 0]


@ours
@dataclass(frozen=True, eq=False)
class AnyMap(RowMap):
    """Any coordinates."""

    seed: int
    width: int
    constant = 0.5

    def __call__(self, x, y):
        return AnyRow(self.seed, self.width, narrow=True)(x, y)

    def entries(self, data, indices):
        with np.errstate(all="ignore"):
            return numbers(data, indices, self.seed, 1)[:, 0].astype(np.float32)


def queries_of(world, seed):
    rng, width = np.random.default_rng(seed), world.columns.width
    row_map = AnyMap(seed, width)
    theta = rng.normal(size=width + 1)
    limits = tuple(rng.choice([0.1, 0.5, 1.0, 1 / 3], 3).tolist())
    bound = float(np.linalg.norm(limits)) * (1 + 1e-9)
    scores = Scores(row_map, AnyTarget(seed), theta)
    several = AnyCells(seed, 3, int(rng.integers(1, 4)), bool(rng.random() < 0.5))
    yield Blocks((Cells(several, (4, 1, 7), limits, float(rng.choice([1.0, 0.3]))),), bound)
    yield Blocks((Rows(AnyRow(seed, 4), 4, 0.7),), 0.71)
    yield Blocks((Cells(several, (4, 1, 7), limits),), bound, of=scores)
    yield Blocks((Rows(AnyRow(seed, 2), 2, 1.0),), 1.1, of=WhiteNorms(row_map))
    yield SecondMoments(AnyRow(seed, 3, narrow=True), float(rng.choice([0.5, 3.0])))
    yield NewtonStep(
        AnyRow(seed, 3, narrow=True), AnyTarget(seed), theta[:3], Scale(SQUARED, 0.5, 0.3, 0.2, 2.0)
    )
    yield ClippedGradient(Squared(), row_map, AnyTarget(seed), theta, 1.0)
    yield ScoreLine(Logistic(), scores, 1.0, rng.normal(size=2), 1.2)


@pytest.mark.parametrize("kind", ["plain", "weights", "people", "sparse", "disk"])
def test_no_view_lets_a_record_or_a_person_exceed_the_bound(kind):
    asked = {}
    for seed in range(CASES):
        world = World(np.random.default_rng([seed, len(kind)]), kind)
        for place, query in enumerate(queries_of(world, seed)):
            grid = grid_of(query)
            with np.errstate(all="ignore"):
                found = answer(world.records(), query, grid)
                other = answer(world.records(world.neighbours()), query, grid)
            if isinstance(found, str) or isinstance(other, str):
                assert str(found) == str(other), (seed, place)
                continue
            asked[place] = asked.get(place, 0) + 1
            assert not moved_too_far(query, found, other, grid), (seed, query)
    assert len(asked) == 8 if kind != "sparse" else len(asked) >= 4


@pytest.mark.parametrize("sparse", [False, True])
def test_no_view_of_raw_columns_exceeds_the_bound(sparse):
    from scipy.sparse import csr_array

    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        table = np.where(rng.random((6, 2)) < 0.3, rng.choice(HOSTILE, (6, 2)), rng.random((6, 2)))
        query = Blocks((ColumnCells(AnyCells(seed, 1 if sparse else 2, 1, False), 2, 7),), 1.5)
        sums = [
            RawColumns(csr_array(part) if sparse else part)._total(query, 2.0**-20)
            for part in (table, table[1:])
        ]
        assert not moved_too_far(query, *sums, 2.0**-20), seed


WRONG = {
    "other type": lambda x, y: np.zeros(len(x), np.float32),
    "too few": lambda x, y: np.zeros(len(x) - 1, np.int64),
    "no array": lambda x, y: [0] * len(x),
    "a masked array": lambda x, y: np.ma.zeros(len(x), np.int64),
    "a number": lambda x, y: np.int64(3),
    "three arrays": lambda x, y: (np.zeros(len(x), np.int64),) * 3,
    "nothing": lambda x, y: (),
}


@pytest.mark.parametrize("view", WRONG.values(), ids=WRONG)
def test_other_results_of_a_view_are_refused(view):
    with pytest.raises(PlanViolation, match="other arrays"):
        evaluate(view, Part(np.zeros((5, 1))), np.int64, np.float64)


MIXING = {
    "the mean": lambda x, y: x - x.mean(axis=0),
    "the rank": lambda x, y: np.argsort(np.argsort(x, axis=0), axis=0).astype(np.float64),
    "the last record": lambda x, y: np.roll(x, 1, axis=0),
    "the number": lambda x, y: np.full((len(x), 1), float(len(x))),
    "the largest": lambda x, y: x / np.abs(x).max(axis=0),
}


@pytest.mark.parametrize("view", MIXING.values(), ids=MIXING)
def test_a_view_that_mixes_records_is_found(view):
    part = Part(np.random.default_rng(0).normal(size=(5000, 1)))

    def look():
        for _ in range(10):  # one record has its own rank, or is the largest one
            evaluate(view, part, np.float64)

    with pytest.raises(PlanViolation, match="each record by itself"):
        look()


def test_a_view_that_mixes_a_share_of_the_records_is_found_as_often_as_stated():
    """600 trials of chance 3/4: beyond 6 deviations of 450 less than once in 10^8 times."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 1))

    def half(x, y):
        return np.where(x > 0, x - len(x), x)

    found = 0
    for _ in range(600):
        try:
            evaluate(half, Part(x), np.float64)
        except PlanViolation:
            found += 1
    chance = 1 - np.mean(x <= 0) ** queries.COMPARED
    assert abs(found - 600 * chance) < 6 * np.sqrt(600 * chance * (1 - chance))


def every(kind):
    return {kind}.union(*map(every, kind.__subclasses__()))


def test_all_views_of_statistics_and_evaluation_treat_each_record_by_itself():
    """Every record alone, on hostile numbers; those of models are tried by the queries of test_hostile_queries."""
    rng = np.random.default_rng(2)
    x = np.where(rng.random((60, 3)) < 0.3, rng.choice(HOSTILE, (60, 3)), rng.random((60, 3)))
    classified = outcomes.Classified(2, 2, ("label", "right", outcomes.Binned("second", (0.0, 0.5, 1.0))))
    tried = [
        *(views.Bin(0, (0.0, 0.5, 1.0)), views.Code(1), views.Polynomial(0, 0.0, 1.0), views.Ones()),
        *(views.OffsetFrom((0.0, 1.0, 2.0), 3.0), views.Products((0.0,) * 3, (1.0,) * 3)),
        *(
            views.Distance((0.1, 0.2, 0.3), 0.7, amount, norm)
            for amount in ("beyond", "square")
            for norm in ("l1", "l2")
        ),
        outcomes.Outcome(classified, (), True),
        outcomes.Outcome(outcomes.Miss(0.0, 1.0, (0.0, 0.5, 1.0), 2), (3,), True),
        outcomes.Outcome(outcomes.TargetPoints(0.0, 1.0, (0.0, 0.5, 1.0), (0.0, 1.0)), (3,)),
    ]
    # Tests of hostile classes borrow these modules' names, so look a class up where it says it is.
    kinds = {one for one in every(View) if one in (*vars(views).values(), *vars(outcomes).values())} - {View}
    assert {type(view) for view in tried} == kinds
    with np.errstate(all="ignore"):
        for view in tried:
            many = view(x, None)
            for place in range(len(x)):
                one = view(x[place : place + 1], None)
                for alone, among in zip(
                    *(part if isinstance(part, tuple) else (part,) for part in (one, many)), strict=True
                ):
                    np.testing.assert_array_equal(alone, among[place : place + 1])


def test_the_twin_that_compares_no_record_is_found(monkeypatch):
    monkeypatch.setattr(queries, "COMPARED", 0)
    evaluate(MIXING["the mean"], Part(np.arange(9.0)[:, None]), np.float64)  # unseen
    rows = NumberParts(np.arange(9.0)[:, None], None)
    query = Blocks((Cells(views.Code(0), (9,), (1.0,)),))
    assert query.total(rows, 2.0**-20).tolist() == [2**20] * 9
