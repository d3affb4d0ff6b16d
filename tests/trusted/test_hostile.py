"""Hostile queries and rows: more than 10^4 seeded cases, compared in exact integer arithmetic.

Every case takes one record, or one person with all rows, away from a table of hostile numbers, and asks a query with
hostile parameters. No case may move a sum by more than the sensitivity over the grid; there is no false alarm.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet import Budget, Gaussian, Laplace
from discreet.core.noise import grid_for
from discreet.errors import InvalidParameter, PlanViolation
from discreet.evaluation.outcomes import Binned, Classified, Miss, Outcome, Shared, TargetPoints
from discreet.statistics.statistic_views import Bin, Code, Distance, OffsetFrom, Ones, Polynomial, Products
from discreet.trusted import queries
from discreet.trusted.choices import Quantiles, _Chooser, _misses, _sensitivity, _share
from discreet.trusted.queries import Blocks, Cells, Rows
from discreet.trusted.rows import PartitionedRows, PrivateRows

WIDTH, RECORDS, QUERIES = 6, 10, 110
WILD = [0.0, -0.0, 1.0, 2.0, -1.0, 0.5, 1e308, -1e308, 5e-324, 2.0**62, 1e18, math.nan, math.inf, -math.inf]


def wild(rng, *shape):
    """Numbers of every size: a third of them from a list of bad ones, a third in [0, 1], a third large."""
    kinds = rng.integers(3, size=shape)
    signs = rng.choice([-1.0, 1.0], shape)
    large = signs * np.exp2(rng.uniform(-60, 60, shape))
    return np.where(kinds == 0, rng.choice(WILD, shape), np.where(kinds == 1, rng.random(shape), large))


def points(rng, size=WIDTH):
    return tuple(rng.uniform(-10, 10, size).tolist())


def some(rng, count):
    return tuple(float(one) for one in wild(rng, count))


def cell(rng, limit):
    edges = tuple(sorted(rng.uniform(-3, 3, rng.integers(2, 7)).tolist()))
    view = Bin(int(rng.integers(WIDTH)), edges) if rng.random() < 0.6 else Code(int(rng.integers(WIDTH)))
    return Cells(view, (int(rng.integers(1, 6)),), (limit,))


def value(rng, limit):
    lower, upper = sorted(rng.uniform(-5, 5, 2).tolist())
    view = Polynomial(0, lower, upper, *some(rng, 2), some(rng, rng.integers(1, 5)), float(wild(rng)))
    return Cells(view, (1,), (limit,))


def row(rng, limit):
    products = WIDTH * (WIDTH + 1) // 2 + WIDTH + 1
    view, size = [
        lambda: (Ones(), 1),
        lambda: (OffsetFrom(points(rng), float(rng.choice([math.inf, 1.0, 1e308]))), WIDTH),
        lambda: (Distance(points(rng), float(rng.random()), "beyond", "l2", float(wild(rng))), 1),
        lambda: (Distance(points(rng), float(rng.random()), "square", "l1", float(wild(rng))), 1),
        lambda: (Products(points(rng), points(rng), float(wild(rng))), products),
    ][rng.integers(5)]()
    return Rows(view, size, limit)


def shared(rng, limit):
    edges = tuple(sorted(rng.random(rng.integers(2, 6)).tolist()))
    numbers = ("second", "of the label", "Brier score", "largest")
    features = ["label", "answer", "right", *(Binned(one, edges) for one in numbers)]
    chosen = tuple(features[one] for one in rng.integers(len(features), size=rng.integers(1, 4)))
    classes = int(rng.integers(2, 4))
    view = [
        lambda: Classified(classes, classes, chosen),
        lambda: Classified(classes, 1, ("label", "answer", "right")),
        lambda: Miss(*some(rng, 2), some(rng, rng.integers(2, 5)), int(rng.integers(-1, 3))),
        lambda: TargetPoints(*some(rng, 2), edges, some(rng, 3)),
    ][rng.integers(4)]()
    groups = tuple(int(one) for one in rng.integers(1, 4, size=rng.integers(0, 3)))
    outcome = Outcome(view, groups, bool(rng.integers(2)))
    return Cells(outcome, (outcome.size,), (limit,), unit=limit)


KINDS = {"cells": (cell,), "values": (value,), "rows": (row,), "shared cells": (shared,)}
KINDS["all kinds"] = (cell, value, row, shared)


def query_of(rng, kinds, norm):
    """A query with limits that use its sensitivity up."""
    count = int(rng.integers(1, 5))
    share = Fraction(1, count) if norm == "l1" else Fraction(math.isqrt(2**80 // count), 2**40)
    limit = float(share) * (1 - 2**-40)
    bound = float(np.exp2(rng.integers(-3, 4)))
    blocks = tuple(kinds[rng.integers(len(kinds))](rng, limit * bound) for _ in range(count))
    return Blocks(blocks, bound, norm)


def grid_of(query):
    return grid_for(Gaussian(2.0) if query.norm == "l2" else Laplace(2.0), query.bound, 1000)


def too_far(before, after, query, grid):
    """Whether two sums are further apart than the sensitivity, in exact arithmetic."""
    difference = [int(one) - int(other) for one, other in zip(after, before, strict=True)]
    steps = Fraction(query.bound) / Fraction(grid)
    if query.norm == "l1":
        return sum(map(abs, difference)) > steps
    return sum(one**2 for one in difference) > steps**2


def without(table, record, query, grid):
    return PrivateRows(np.delete(table, record, 0), "add-remove")._total(query, grid)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_record_moves_a_sum_by_more_than_the_sensitivity(kind, norm):
    """5 kinds x 2 norms x 110 queries x 10 records: 11 000 cases; on partitions the sums are the same."""
    rng = np.random.default_rng([len(kind), norm == "l1"])
    for _ in range(QUERIES):
        query, table = query_of(rng, KINDS[kind], norm), wild(rng, RECORDS, WIDTH)
        grid = grid_of(query)
        total = PrivateRows(table, "add-remove")._total(query, grid)
        for record in range(RECORDS):
            assert not too_far(without(table, record, query, grid), total, query, grid)
        parts = [PrivateRows(part, "add-remove") for part in np.array_split(table, 3)]

        def gather(asked, like, parts=parts):
            return sum(part._total(asked, like.grid) for part in parts)

        assert np.array_equal(PartitionedRows(gather, WIDTH, "add-remove", False)._total(query, grid), total)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_no_person_moves_a_sum_by_more_than_the_sensitivity(norm):
    """2 norms x 250 queries x 3 persons: 1500 cases, with up to 8 rows for a person."""
    rng = np.random.default_rng(5)
    for _ in range(250):
        query, table = query_of(rng, (cell, shared), norm), wild(rng, 12, WIDTH)
        who = [(b"a", b"b", b"c", None)[one] for one in rng.choice(4, 12, p=[0.5, 0.2, 0.1, 0.2])]
        grid = grid_of(query)
        total = PrivateRows(table, "add-remove", who)._total(query, grid)
        for person in (b"a", b"b", b"c"):
            kept = [place for place, one in enumerate(who) if one != person]
            rest = PrivateRows(table[kept], "add-remove", [who[place] for place in kept])
            assert not too_far(rest._total(query, grid), total, query, grid)


def test_no_record_moves_a_score_by_more_than_its_reach():
    """1500 cases: what points miss a rank by, for records that come and go."""
    rng = np.random.default_rng(6)
    budget = Budget(1.0, 0.0)
    for _ in range(150):
        level, lower = float(rng.random()), float(rng.uniform(-5, 4))
        query = Quantiles((level,), lower, lower + float(rng.random()) + 1e-3, 1.0)
        table = wild(rng, RECORDS, 1)

        def missed(rows, query=query, level=level):
            places = PrivateRows(rows, "add-remove")._total(query, None)
            chooser = _Chooser(places, query)
            return _misses(_share(level) * len(places), chooser._below, chooser._up_to)

        all_of_them = missed(table)
        for record in range(RECORDS):
            moved = np.abs(all_of_them - missed(np.delete(table, record, 0))).max()
            assert moved <= _sensitivity(_share(level), budget, alone=True)


def found_by(table, query, grid=2.0**-30):
    total = PrivateRows(table, "add-remove")._total(query, grid)
    return any(
        too_far(without(table, record, query, grid), total, query, grid) for record in range(len(table))
    )


class Greedy(TargetPoints):
    """Its place is asked instead of a target's: nine times the share of a record."""

    def place(self, truth, said):
        return Shared(np.zeros((len(truth), 1), np.int64), np.full((len(truth), 1), 9.0))


HALF = Outcome(TargetPoints(0.0, 1.0, (0.0, 1.0), (0.0, 1.0)))
TWINS = {
    "clip_rows": (Rows(OffsetFrom((0.0,) * WIDTH), WIDTH, 1.0), lambda rows, *_: np.clip(rows, -1, 1)),
    "_add_to_cells": (
        Cells(HALF, (HALF.size,), (1.0,)),
        lambda counts, cells, steps, honest=queries._add_to_cells: honest(counts, cells, 2 * steps),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_gate_that_does_not_cut_is_found(name, monkeypatch):
    """The broken twins: vectors that are too long, and shares above 1 that nothing cuts."""
    block, broken = TWINS[name]
    table = np.full((3, WIDTH), 1.0)
    if name == "_add_to_cells":
        monkeypatch.setattr(TargetPoints, "place", Greedy.place)
    assert not found_by(table, Blocks((block,)))
    monkeypatch.setattr(queries, name, broken)
    assert found_by(table, Blocks((block,)))


def test_a_person_whose_rows_all_count_is_found(monkeypatch):
    """The broken twin of the weights."""
    table, who, grid = np.ones((4, WIDTH)), [b"a"] * 4, 2.0**-30
    query = Blocks((Cells(Code(0), (2,), (1.0,)),))
    nothing = np.zeros(2)
    assert not too_far(nothing, PrivateRows(table, "add-remove", who)._total(query, grid), query, grid)
    monkeypatch.setattr("discreet.trusted.rows.person_weights", lambda persons: np.ones(len(persons)))
    assert too_far(nothing, PrivateRows(table, "add-remove", who)._total(query, grid), query, grid)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Blocks((Rows(lambda rows: rows, WIDTH, 1.0),)),
        lambda: Blocks((Cells(Ones(), (1,), (0.0,)),)),
        lambda: Blocks(("everything",)),
        lambda: Blocks((Cells(Code(0), (0,), (1.0,)),)),
        lambda: Blocks((Cells(Code(0), (1,), (math.nan,)),)),
        lambda: Blocks((Cells(Code(0), (1,), (-1.0,)),)),
        lambda: Blocks((Cells(Code(0), (1,), (1.0,)),), math.inf),
        lambda: Blocks((Cells(Code(0), (1,), (1.0,)),), norm="l7"),
        lambda: Outcome(Ones()),
        lambda: Classified(3, 2, ("label",)),
        lambda: Classified(3, 1, (Binned("second", (0.0, 1.0)),)),
        lambda: Classified(3, 3, ("everything",)),
        lambda: Classified(3, 3, ()),
        lambda: Classified(1, 1, ("label",)),
        lambda: Binned("third", (0.0, 1.0)),
        lambda: Binned("second", (0.0,)),
        lambda: Quantiles((), 0.0, 1.0, 1.0),
        lambda: Quantiles((0.5, 0.4), 0.0, 1.0, 1.0),
        lambda: Quantiles((0.0, 0.5), 0.0, 1.0, 1.0),
        lambda: Quantiles((math.nan,), 0.0, 1.0, 1.0),
        lambda: Quantiles((0.5,), 1.0, 1.0, 1.0),
        lambda: Quantiles((0.5,), math.nan, 1.0, 1.0),
        lambda: Quantiles((0.5,), -1e308, 1e308, 1.0),
        lambda: Quantiles((0.5,), 0.0, 5e-324, 1.0),
        lambda: Blocks([Cells(Code(0), (1,), (1.0,))]),
        lambda: Blocks((Rows(OffsetFrom(np.zeros(2)), 2, 1.0),)),
    ],
)
def test_what_is_not_in_the_catalogue_is_refused_before_a_row_is_read(wrong):
    with pytest.raises((PlanViolation, InvalidParameter)):
        wrong()


def test_rows_of_persons_need_room_for_the_rounding_of_weights():
    rows = PrivateRows(np.zeros((2, 1)), "add-remove", [b"a", b"a"])
    with pytest.raises(PlanViolation, match="allow a record"):
        rows._total(Blocks((Rows(Ones(), 1, 1.0),)), 2.0**-20)
    assert rows._total(Blocks((Rows(Ones(), 1, 1.0),), 1.001), 2.0**-20) == 2**20


def test_a_view_of_another_size_is_refused():
    with pytest.raises(PlanViolation, match="3 numbers was declared"):
        PrivateRows(np.ones((2, 1)), "add-remove")._total(Blocks((Rows(Ones(), 3, 1.0),)), 2.0**-20)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_record_adds_the_same_alone_and_in_company(order):
    """Integer sums of all records are those of each record alone, whichever way the table lies in memory.

    2000 distances of 20 coordinates: numpy adds up a row of a table in column order in another way where the row is
    alone, which the broken twin shows.
    """
    rng = np.random.default_rng(7)
    table = np.array(rng.normal(size=(2000, 20)), order=order)
    view = Distance(tuple(rng.normal(size=20).tolist()), 100.0, "square")
    query, grid = Blocks((Rows(view, 1, 1.0),)), 2.0**-55
    total = PrivateRows(table, "add-remove")._total(query, grid)
    alone = sum(PrivateRows(one[None], "add-remove")._total(query, grid) for one in table)
    assert total == alone
    broken = [
        float(view(table, None)[place, 0]) != float(view(one[None], None)[0, 0])
        for place, one in enumerate(table)
    ]
    assert any(broken) == (order == "F")
