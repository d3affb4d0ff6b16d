"""Hostile queries of tables: whatever is asked, a record or a person moves the integer sum by at most its bound.

Queries are drawn with numbers that no honest strategy would use (NaN, infinity, 1e308, windows turned round, matrices
with a zero scale) and asked of records with such numbers, weights and targets. Each is asked of neighbouring data,
and the difference of the sums is compared with ``bound / grid`` in exact integers. A query may be refused instead.
"""

import pickle
from dataclasses import fields
from typing import NamedTuple

import numpy as np
import pytest
from scipy.sparse import csr_array

from discreet import PlanViolation
from discreet.core.randomness import RandomStream
from discreet.errors import DiscreetError
from discreet.linear import partition_answers
from discreet.linear.encoder import Encoding
from discreet.linear.gate import column_blocks, compiled_sums, private_table
from discreet.linear.gate import records as gate_records
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.partitioned_rows import PartitionedTable, QueryContext
from discreet.linear.gate.people import People
from discreet.linear.gate.private_table import (
    EncodedRows,
    PersonRows,
    PrivateTable,
    TargetColumn,
    UndeclaredColumns,
)
from discreet.linear.gate.records import MISSING, Records
from discreet.linear.kernels.coefficients import LOGISTIC, POISSON, SQUARED
from discreet.linear.losses import Logistic
from discreet.linear.partition_answers import PartitionTask, Reading
from discreet.linear.row_views import column_views as columns
from discreet.linear.row_views import coordinates, targets
from discreet.linear.row_views.coordinates import Whitened
from discreet.linear.row_views.curve_bases import Basis, Curve
from discreet.linear.user_routing import Share
from discreet.trusted import queries
from discreet.trusted.queries import ROUNDING, Blocks, Cells, Rows
from support.hostile_records import (
    REFUSALS,
    World,
    answer,
    grid_of,
    moved_too_far,
    number,
    some,
)

CASES = 100
"""For each kind of query and of records; together more than 10^4 queries, of which some are refused."""


def scores(world):
    made = world.coordinates()
    return gate_records.Scores(made, world.target(), world.theta(made))


def cells(view, size):
    return Cells(view, (size,), (1.0,))


def sizes(view, of=None):
    return Blocks((cells(view, coordinates.HalfOctaves.cells),), of=of)


QUERIES = {
    "classes": lambda w: Blocks((cells(targets.ClassOf(w.loss), 4),), 1.0, everybody=True),
    "contrasts": lambda w: Blocks((Rows(targets.ClassRows(w.loss, np.eye(3) - 1 / 3), 3, 0.85),), bound=0.9),
    "marginals": lambda w: Blocks(
        (
            column_blocks.EvenBins(w.columns, 8),
            column_blocks.ColumnSums(w.columns, squares=True),
        ),
        ROUNDING * (1.25 * w.columns.numerics + len(w.columns.groups) + 2 * w.columns.text_square) ** 0.5,
    ),
    "target": lambda w: Blocks(
        (
            cells(targets.TargetBin(number(w.rng), number(w.rng), 8), 8),
            Cells(targets.TargetMoments(number(w.rng), number(w.rng)), (1, 1), (0.5, 0.5)),
        ),
        1.23,
    ),
    "half octaves of counts": lambda w: Blocks((cells(targets.TargetHalfOctave(number(w.rng), 7), 7),), 1.0),
    "offset": lambda w: Blocks(
        (Cells(targets.TargetOffset(*(number(w.rng) for _ in range(4)), far=True), (1, 1), (1.0, 0.5)),), 1.12
    ),
    "window": lambda w: Blocks((cells(columns.WindowBin(0, number(w.rng), number(w.rng), 8), 8),), 1.0),
    "rows": lambda w: Blocks(
        (Rows(columns.Offset(some(w.rng, w.columns.width)), w.columns.width, 2.0),),
        2.0 * ROUNDING,
    ),
    "bins": lambda w: Blocks((column_blocks.Bins(w.ranks().edges),), ROUNDING * w.columns.numerics**0.5),
    "rank products": lambda w: Blocks(
        (Cells(columns.RankProducts(w.ranks(), ((0, 1),)), (1,), (1.0,), unit=abs(number(w.rng))),), 1.0
    ),
    "crossings": lambda w: Blocks(
        (Rows(columns.Crossings(w.ranks(), ((0, 1),), some(w.rng, 1, 10, 3), w.residual()), 4, 1.035),), 1.04
    ),
    "pair cells": lambda w: Blocks(
        (Cells(columns.PairCells(w.ranks(), ((0, 1),), w.residual()), (36,) * 3, (0.5, 1.0, 0.25)),), 1.15
    ),
    "hat cells": lambda w: (
        lambda edges: Blocks((Cells(columns.HatCells((((0, 1), edges[:2]),)), (25,), (1.0001,)),), 1.001)
    )(w.ranks().edges),
    "norms": lambda w: sizes(coordinates.HalfOctaves(coordinates.RowNorms())),
    "standard norms": lambda w: sizes(coordinates.HalfOctaves(coordinates.StandardNorms(w.marginals()))),
    "white norms": lambda w: sizes(
        coordinates.HalfOctaves(),
        of=gate_records.WhiteNorms(Whitened(w.marginals(), some(w.rng, *(w.columns.width + 1,) * 2))),
    ),
    "scores": lambda w: sizes(coordinates.HalfOctaves(), of=scores(w)),
    "score line": lambda w: compiled_sums.ScoreLine(
        w.two_classes(), scores(w), number(w.rng), some(w.rng, 2), 1.2
    ),
    "excess": lambda w: (
        lambda cut: Blocks((Cells(targets.CountExcess(cut), (1,), (cut,)),), cut * ROUNDING, of=scores(w))
    )(abs(number(w.rng))),
    "gradient": lambda w: (
        lambda c: compiled_sums.ClippedGradient(
            w.loss, c, w.target(), w.theta(c, w.loss.outputs), float(w.rng.choice([1e-3, 1.0, 30.0]))
        )
    )(w.coordinates()),
    "second moments": lambda w: compiled_sums.SecondMoments(
        coordinates.StandardRows(w.marginals()), float(w.rng.choice([0.1, 1.0, 20.0]))
    ),
    "second moments of curves": lambda w: (
        lambda b: compiled_sums.SecondMoments(
            coordinates.CurveDirections(b, some(w.rng, b.columns.width, 3, hostile=0.05), some(w.rng, 3)), 2.0
        )
    )(w.basis()),
    "newton": lambda w: compiled_sums.NewtonStep(
        coordinates.Merged(
            some(w.rng, w.columns.width, 2, hostile=0.05),
            Whitened(w.marginals(2), some(w.rng, 3, 3, hostile=0.05)),
        ),
        w.target(),
        some(w.rng, 3, hostile=0.05),
        compiled_sums.Scale(
            int(w.rng.choice([LOGISTIC, SQUARED, POISSON])), *(abs(number(w.rng, 0.05)) for _ in range(4))
        ),
    ),
}


def answers(name, kind, change=None, cases=400):
    """The sums of neighbouring data, the query and its grid, for queries that are not refused."""
    for seed in range(cases):
        world = World(np.random.default_rng([seed, 99]), kind)
        world.loss = world.loss if change is None else change(world.loss)
        with np.errstate(all="ignore"):
            try:
                query = QUERIES[name](world)
                grid = grid_of(query)
                found = world.records()._total(query, grid)
                other = world.records(world.neighbours())._total(query, grid)
            except (DiscreetError, ValueError, OverflowError, IndexError):
                continue
        yield found, other, query, grid


@pytest.mark.parametrize("kind", ["plain", "weights", "people", "sparse", "disk"])
@pytest.mark.parametrize("name", QUERIES)
def test_no_query_lets_a_record_or_a_person_exceed_the_bound(name, kind):
    asked = refused = 0
    for seed in range(CASES):
        world = World(np.random.default_rng([seed, len(name), len(kind)]), kind)
        with np.errstate(all="ignore"):
            try:
                query = QUERIES[name](world)
                grid = grid_of(query)
            except REFUSALS:
                refused += 1
                continue
            found = answer(world.records(), query, grid)
            other = answer(world.records(world.neighbours()), query, grid)
        if isinstance(found, str) or isinstance(other, str):
            assert str(found) == str(other), (
                seed,
                query,
            )  # a refusal that depends on a record would tell of it
            refused += 1
            continue
        asked += 1
        assert not moved_too_far(query, found, other, grid), (seed, query)
    assert asked > 0 or kind == "sparse", refused


class AsTheyAre(Encoding):
    """Rows that are encoded already."""

    names = None

    def __init__(self, columns):
        self.columns = columns

    def on_demand(self, X):
        return X

    def in_units_of_table(self, coefficients, intercept):
        return coefficients, intercept


class Part(NamedTuple):
    """Some rows of a world, as a partition that a worker reads."""

    world: World
    keep: np.ndarray

    def unchanged(self, thoroughly=True):
        return True

    def source(self):
        return self

    def _read(self, part, *_):
        world, keep = part.world, part.keep
        people = People.of(world.ids[keep]) if world.kind == "people" else None
        weights = world.weights[keep] if world.kind == "weights" else None
        return PrivateTable(world.x[keep], world.y[keep], weights, people)


def in_partitions(world, keep, least=2, together=True):
    """The same records in three partitions, all of a person's in one of them, asked as the Dask engine asks."""
    places = world.ids % 3 if world.kind == "people" and together else np.arange(len(world.y)) % 3
    parts = [Part(world, np.flatnonzero((places == place) & keep)) for place in range(3)]
    name = f"{id(parts)} {keep}"

    def ask(question, tally):
        for place, part in enumerate(parts):
            tally.add(
                partition_answers.answer(
                    PartitionTask(name, Share(place, part), Reading(part, None), question)
                )
            )

    table = PartitionedTable([len(part.keep) for part in parts], ask)
    return table.rows(EncodedRows(world.loss, AsTheyAre(world.columns), least=least, whole_rows=True))


@pytest.mark.parametrize("kind", ["plain", "weights", "people"])
@pytest.mark.parametrize("name", QUERIES)
def test_partitions_add_up_to_the_table_and_keep_the_bound(name, kind):
    asked = 0
    for seed in range(CASES // 5):
        world = World(np.random.default_rng([seed, len(name), 7]), kind)
        everybody, neighbours = np.ones(len(world.y), bool), world.neighbours()
        with np.errstate(all="ignore"):
            try:
                query = QUERIES[name](world)
                grid = grid_of(query)
                alone = world.records()._total(query, grid)
                without = world.records(neighbours)._total(query, grid)
            except (DiscreetError, ValueError, OverflowError, IndexError):
                continue
            found = in_partitions(world, everybody)._total(query, grid)
            other = in_partitions(world, neighbours)._total(query, grid)
        asked += 1
        assert found.tolist() == alone.tolist()
        assert other.tolist() == without.tolist()
        assert not moved_too_far(query, found, other, grid), (seed, query)
    assert asked > 0


@pytest.mark.parametrize("kind", ["plain", "weights", "people"])
def test_workers_that_are_handed_other_queries_keep_the_bound(kind, monkeypatch):
    """What is sent to workers is packed by a file that is not trusted: here every third one gets another query."""
    honest, swapped = partition_answers.unpack, 0

    def unpack(data, parts):
        nonlocal swapped
        found = honest(data, parts)
        if isinstance(found, QueryContext) and swapped % 3 == 0:
            other = targets.TargetBin(number(rng), number(rng), 4)
            found = found._replace(query=Blocks((cells(other, 4),), 1.0))
        swapped += isinstance(found, QueryContext)
        return found

    monkeypatch.setattr(partition_answers, "unpack", unpack)
    for seed in range(CASES // 5):
        rng = np.random.default_rng(seed)
        world = World(np.random.default_rng([seed, 5]), kind)
        query = QUERIES["classes"](world)
        sums = []
        for keep in (np.ones(len(world.y), bool), world.neighbours()):
            rng, swapped = np.random.default_rng(seed), 0
            sums.append(in_partitions(world, keep)._total(query, grid_of(query)))
        assert not moved_too_far(query, *sums, grid_of(query)), seed
    monkeypatch.setattr(partition_answers, "unpack", lambda data, parts: wider(honest(data, parts)))
    with pytest.raises(PlanViolation, match="other public numbers than the driver"):
        in_partitions(world, keep)._total(query, grid_of(query))


def wider(found):
    """A question for a query of twice the bound: the broken twin."""
    if not isinstance(found, QueryContext):
        return found
    return found._replace(query=Blocks((Cells(targets.ClassOf(Logistic()), (4,), (2.0,)),), 2.0))


def test_a_person_in_several_partitions_would_be_found():
    """The broken twin of routes: rows of a person in three partitions, each of which counts the person in full."""
    world = World(np.random.default_rng(0), "people")
    world.loss, world.columns = Logistic(), Columns(1)
    world.x, world.y, world.ids = np.full((9, 1), 0.5), np.ones(9), np.repeat([0, 1, 2], [6, 2, 1])
    query = QUERIES["classes"](world)
    grid, everybody = grid_of(query), np.ones(9, bool)
    for together in (True, False):
        both = [in_partitions(world, keep, 1, together) for keep in (everybody, world.ids > 0)]
        found, other = (rows._total(query, grid) for rows in both)
        assert moved_too_far(query, found, other, grid) != together


def prepared(world, keep=slice(None)):
    """Records with some numbers missing, prepared as a strategy may: filled, shortened, with hostile numbers."""
    rng, records = np.random.default_rng(world.seed), world.records(keep)
    try:
        if rng.random() < 0.5:
            records.fill_missing(some(rng, int(rng.choice([world.columns.numerics, 1, 9]))))
        if rng.random() < 0.5:
            records = records.as_text(number(rng))
    except REFUSALS as error:
        return records, f"{type(error).__name__}: {error}"
    return records, ""


@pytest.mark.parametrize("kind", ["plain", "weights", "people", "sparse", "disk"])
def test_no_preparation_of_records_lets_one_exceed_the_bound(kind):
    prepared_at_all = 0
    for seed in range(4 * CASES):
        world = World(np.random.default_rng([seed, len(kind)]), kind)
        world.seed = seed
        missing = world.rng.random(world.x.shape) < 0.3
        missing[:, world.columns.numerics :] = False
        world.x[missing] = MISSING
        keep = world.neighbours()
        (found, said), (other, said_too) = prepared(world), prepared(world, keep)
        assert said == said_too, seed
        prepared_at_all += not said
        declared = found.columns
        query = Blocks(
            (column_blocks.EvenBins(declared, 8), column_blocks.ColumnSums(declared)),
            ROUNDING
            * (1.25 * declared.numerics + len(declared.groups) + 2 * declared.text_square + 1e-9) ** 0.5,
        )
        grid = grid_of(query)
        sums = answer(found, query, grid), answer(other, query, grid)
        if isinstance(sums[0], str):
            assert sums[0] == sums[1], seed
        else:
            assert not moved_too_far(query, *sums, grid), seed
    assert prepared_at_all > CASES


def test_missing_numbers_are_filled_with_finite_numbers_of_dense_records():
    """NaN would leave the cells of a histogram, and a value for too few columns depend on which are missing."""
    for values in (
        np.array([np.nan, 0.5]),
        np.array([0.5, np.inf]),
        np.array([0.5]),
        np.zeros((2, 1)),
        [0, 1],
    ):
        with pytest.raises(PlanViolation):
            records().fill_missing(values)
    curves = records().in_curves(Basis(Columns(2), (Curve(0, np.array([0.0, 1.0]), np.array([1])),)))
    with pytest.raises(PlanViolation, match="before records become rows of curves"):
        curves.fill_missing(np.zeros(2))


def test_dense_records_are_no_text():
    """Their rows would keep the norm that they were admitted with."""
    with pytest.raises(PlanViolation, match="Only sparse records"):
        records().as_text(1e-3)


def test_every_kind_of_query_is_tried():
    world = World(np.random.default_rng(3), "plain")
    kinds = set()
    for make in QUERIES.values():
        for _ in range(20):
            try:
                kinds.add(type(make(world)))
            except (DiscreetError, ValueError, OverflowError):
                continue
    assert kinds == {Blocks, *gate_records.RecordQuery.__subclasses__()}


def test_a_person_changes_the_histogram_of_rows_by_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = rng.integers(0, 5, rng.integers(1, 400))
        gone = ids != rng.choice(ids)
        query = Blocks((cells(targets.RowsOfPeople(), 9),))
        found, other = (People.of(rows)._total(query, 2.0**-20) for rows in (ids, ids[gone]))
        assert not moved_too_far(query, found, other, 2.0**-20)


def of_columns(view):
    block = column_blocks.ColumnCells(view, view.columns, view.cells)
    return Blocks((block,), view.columns**0.5 * ROUNDING)


@pytest.mark.parametrize("sparse", [False, True])
def test_raw_columns_of_any_numbers(sparse):
    rng = np.random.default_rng(1)
    for _ in range(200):
        table = some(rng, int(rng.integers(1, 9)), 3)
        weights = None if rng.random() < 0.5 else some(rng, len(table))
        gone = np.arange(len(table)) != rng.integers(len(table))
        lower, width = some(rng, 3), some(rng, 3)
        for view in (columns.PowerCells(3), columns.RangeCells(lower, width, 8)):
            query = of_columns(view)
            grid = grid_of(query)
            found, other = (
                private_table.RawColumns(
                    csr_array(table[keep]) if sparse else table[keep],
                    None if weights is None else weights[keep],
                )._total(query, grid)
                for keep in (slice(None), gone)
            )
            assert not moved_too_far(query, found, other, grid)


def dirty():
    """One row with three entries for one column, and one beyond the last column."""
    table = csr_array(np.zeros((1, 2)))
    table.data, table.indices = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 0, 0, 7], table.indices.dtype)
    table.indptr = np.array([0, 4], table.indptr.dtype)
    return table


def test_sparse_raw_columns_are_cleaned(monkeypatch):
    query, grid = of_columns(columns.PowerCells(2)), 2.0**-20
    nothing = private_table.RawColumns(csr_array(np.zeros((0, 2))))._total(query, grid)
    assert not moved_too_far(query, private_table.RawColumns(dirty())._total(query, grid), nothing, grid)
    inside = dirty()
    inside.indices[-1] = 0  # the broken twin, without what it would write out of bounds
    monkeypatch.setattr(private_table, "sane_csr", lambda table: table)
    assert moved_too_far(query, private_table.RawColumns(inside)._total(query, grid), nothing, grid)


@pytest.mark.parametrize("persons", [False, True])
def test_a_sample_of_a_sample_keeps_rows_with_their_targets(persons):
    numbers = np.arange(400.0)
    people = People.of(np.arange(400) // 2) if persons else None
    table = PrivateTable(numbers[:, None], numbers, None, people)
    twice = table.sampled(0.5, RandomStream(unsafe_seed=1)).sampled(0.5, RandomStream(unsafe_seed=2))
    query = of_columns(columns.RangeCells(np.zeros(1), np.full(1, 400.0), 400))
    features, targets = (
        twice.rows(view)._total(query, 2.0**-20) for view in (UndeclaredColumns(1), TargetColumn())
    )
    assert targets.any()
    assert np.array_equal(features, targets)


# Losses are declared, not believed: the gate asks for the name of their compiled code.


def lying(loss):
    """The same loss with methods that mix records, answer with garbage or raise."""

    def residual(self, u, y):
        return np.full(np.shape(u), 1e300 * np.sum(y))

    def accepts(self, y):
        return np.full(np.shape(y), len(y) % 2 == 0)

    def mean(self, u):
        raise ValueError(f"{u}")

    lies = {"residual": residual, "accepts": accepts, "mean": mean, "value": residual, "curvature": np.nan}
    lies |= {"lipschitz": 1e-9, "class_count": -7, "steepest": mean, "kind": "unsaid"}
    values = {field.name: getattr(loss, field.name) for field in fields(loss)}
    return type("Lying", (type(loss),), lies)(**values)


LOSSY = ("classes", "contrasts", "target", "gradient", "crossings", "pair cells", "score line")


@pytest.mark.parametrize("kind", ["plain", "weights", "people", "sparse"])
@pytest.mark.parametrize("name", LOSSY)
def test_no_loss_lets_a_record_exceed_the_bound(name, kind):
    """Whatever the methods of a loss with compiled code answer."""
    asked = 0
    for found, other, query, grid in answers(name, kind, lying, CASES):
        asked += 1
        assert not moved_too_far(query, found, other, grid), query
    assert asked > 0 or kind == "sparse"


def test_the_twin_that_believes_a_loss_is_found(monkeypatch):
    monkeypatch.setattr(gate_records, "accepted_targets", lambda loss, y: loss.accepts(y))
    assert any(moved_too_far(query, *sums, grid) for *sums, query, grid in answers("target", "plain", lying))


def exceeds(name, kind):
    return any(moved_too_far(query, *sums, grid) for *sums, query, grid in answers(name, kind))


def test_the_twin_without_a_clip_of_rows_is_found(monkeypatch):
    def unclipped(rows, limit, norm):
        return np.nan_to_num(rows, posinf=9.0, neginf=-9.0)

    monkeypatch.setattr(queries, "clip_rows", unclipped)
    assert exceeds("rows", "plain")


def test_the_twin_without_limits_of_values_is_found(monkeypatch):
    honest = np.clip
    monkeypatch.setattr(queries.np, "clip", lambda a, low, high: honest(a, 1e3 * low, 1e3 * high))
    assert exceeds("rank products", "plain") or exceeds("offset", "plain")


def test_the_twin_in_which_rows_of_a_person_count_in_full_is_found(monkeypatch):
    monkeypatch.setattr(People, "_weights", lambda self, least, own=None: np.ones(len(self._codes)))
    assert not exceeds("classes", "people")
    monkeypatch.setattr(People, "_limit", lambda self, weights: weights)
    assert exceeds("classes", "people")


class Anything:
    """A query of somebody else."""

    bound, size = 1.0, 1

    def total(self, store, grid):
        return np.full(1, len(store), np.int64)


def records():
    return Records(Logistic(), np.zeros((5, 2)), np.ones(5), Columns(2))


def test_other_queries_views_and_types_are_refused():
    with pytest.raises(PlanViolation, match="Anything is not a query of the catalogue"):
        records()._total(Anything(), 1.0)
    with pytest.raises(PlanViolation, match="function"):
        Blocks((cells(lambda x, y: y, 2),), 1.0)
    with pytest.raises(PlanViolation, match=r"TargetBin\.lower must be float\. Got ndarray"):
        Blocks((cells(targets.TargetBin(np.arange(5.0), 1.0, 8), 8),), 1.0)
    centre = Blocks((Rows(columns.Offset(np.zeros((5, 2))), 2, 1.0),), 1.1)
    with pytest.raises(PlanViolation, match="The array centre of a query must have shape"):
        records()._total(centre, 2.0**-20)
    other = Blocks((column_blocks.EvenBins(Columns(5), 8),), 3.0)
    with pytest.raises(PlanViolation, match="other columns than the records have"):
        records()._total(other, 2.0**-20)


def test_arrays_that_changed_after_a_query_was_made_are_checked_again():
    knots = np.array([0.0, 0.5, 1.0])
    query = Blocks((column_blocks.Bins((knots, knots)),), 2.0)
    assert records()._total(query, 2.0**-20)[0] == 5 * 2**20
    knots[1] = 9.0
    with pytest.raises(PlanViolation, match="increasing"):
        records()._total(query, 2.0**-20)


@pytest.mark.parametrize("size", [-1, 1.5])
def test_sizes_that_would_let_blocks_overlap_are_refused(size):
    with pytest.raises(DiscreetError, match="size"):
        Blocks((cells(targets.ClassOf(Logistic()), size), column_blocks.ColumnSums(Columns(2))), 2.0)


@pytest.mark.parametrize("bins", [0, -3, 2**40])
def test_bins_beyond_the_sum_are_refused(bins):
    with pytest.raises(DiscreetError, match="bins"):
        column_blocks.EvenBins(Columns(2), bins)


def test_records_show_nothing():
    for look in (len, iter, bool, np.asarray, list):
        with pytest.raises(TypeError, match="Private rows have no length"):
            look(records())
    assert repr(records()) == "Records(columns=2)"


def test_tables_and_people_show_nothing():
    people = People.of(np.array(["ann", "bob", "ann"]))
    table = PrivateTable(np.full((3, 1), 123.0), np.full(3, 456.0), None, people)
    for one in (people, table, table.rows(PersonRows())):
        for look in (len, iter, bool, np.asarray, list, hash, pickle.dumps, lambda rows: rows[0]):
            with pytest.raises(TypeError, match="Private rows have no length"):
                look(one)
        assert repr(one) in ("People()", "PrivateTable()")
    shown = [name for kind in (People, PrivateTable, EncodedRows) for name in vars(kind)]
    assert {name for name in shown if not name.startswith("_")} == {
        *("of", "rows", "sampled", "refuse_types", "names", "sparse"),
        *("seen", "bounds", "least", "whole_rows", "columns"),
    }


def test_an_error_while_rows_are_encoded_quotes_nothing():
    class Failing(AsTheyAre):
        def on_demand(self, X):
            raise ValueError(f"private {X}")

    table = PrivateTable(np.full((3, 1), 123.0), np.ones(3), None, None)
    with pytest.raises(PlanViolation, match="could not answer a query") as refused:
        table.rows(EncodedRows(Logistic(), Failing(Columns(1))))
    assert refused.value.__context__ is None


def test_an_error_of_a_kernel_quotes_nothing(monkeypatch):
    def failing(*known):
        raise ValueError(f"private {known}")

    monkeypatch.setattr(queries, "_add_to_cells", failing)
    with pytest.raises(PlanViolation, match="could not answer a query") as refused:
        records()._total(Blocks((cells(targets.ClassOf(Logistic()), 3),), 1.0), 2.0**-20)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None
