"""Reading that mixes rows is found out before anything is paid; what is one row, one person, one record passes."""

from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from discreet import Budget, PlanViolation, evaluate
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear import (
    Category,
    Numeric,
    PrivateLogisticRegression,
    Schema,
    cells,
    encoder,
    inputs,
    loss_functions,
    out_of_core,
)
from discreet.linear.column_kinds import Unit
from discreet.linear.losses import Huber, Logistic, Poisson, Squared
from discreet.linear.parquet import ArrowSource
from discreet.linear.residuals import accepted, residuals
from discreet.linear.row_source import Table, store_rows
from discreet.linear.rows_alone import COMPARED, chosen_rows, compare_rows, read_compared
from discreet.linear.storage import Storage
from discreet.linear.tables import CsvSource, table_in
from discreet.statistics import private_histogram
from discreet.statistics.mean import Interval, private_mean

ROWS = 400
SCHEMA = Schema({"age": Numeric(0, 100), "job": Category(("clerk", "farmer"))}, target=None)


def frame():
    rng = np.random.default_rng(0)
    jobs = np.where(rng.random(ROWS) < 0.5, "clerk", "farmer")
    return pd.DataFrame({"age": rng.integers(20, 80, ROWS).astype(float), "job": jobs})


LABELS = np.arange(ROWS) % 2


def others(values):
    """The values, each with a part of the next one: what one row is depends on another."""
    array = np.array(values)
    if array.dtype.kind not in "fi" or array.ndim == 0 or len(array) < 2:
        return array
    return np.roll(array, 1, axis=0)


def wrapped(function, spoil=others):
    return lambda *known, **options: spoil(function(*known, **options))


def spoilt_encoder():
    return mock.patch.object(encoder, "declared_numbers", wrapped(encoder.declared_numbers))


def spoilt_categories():
    return mock.patch.object(encoder, "declared_codes", wrapped(encoder.declared_codes))


def spoilt_scaling():
    def scale(values, lower, upper, missing=0.5):
        return np.full(len(values), 0.25 if len(values) > 1 else 0.75)

    return mock.patch.object(encoder, "scale_to_unit", scale)


def spoilt_targets():
    return mock.patch.object(encoder, "codes", wrapped(encoder.codes))


@pytest.mark.parametrize("twin", [spoilt_encoder, spoilt_categories, spoilt_scaling, spoilt_targets])
@pytest.mark.parametrize("kind", ["pandas", "CSV", "Parquet"])
def test_a_fit_refuses_and_draws_nothing(twin, kind, tmp_path):
    table = frame().assign(sick=LABELS)
    schema = Schema({**SCHEMA.features, "sick": Category((0, 1))}, target="sick")
    path = tmp_path / f"a.{kind.lower()}"
    if kind == "CSV":
        table.to_csv(path, index=False)
    elif kind == "Parquet":
        table.to_parquet(path)
    ledger = Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-5)))
    model = PrivateLogisticRegression(1.0, delta=1e-5, schema=schema, ledger=ledger)
    with (
        twin(),
        mock.patch("discreet.trusted.session.BaseSession._add_noise", side_effect=AssertionError("drawn")),
        pytest.raises(PlanViolation, match=r"A row of the table"),
    ):
        model.fit(table if kind == "pandas" else path)


def test_ids_are_compared():
    table = frame().assign(person=np.arange(ROWS))
    model = PrivateLogisticRegression(1.0, bounds=(0, 100), unit="person")
    honest = inputs.cells_of
    with (
        mock.patch.object(encoder, "cells_of", lambda x: others(honest(x))),
        pytest.raises(PlanViolation, match="read otherwise alone"),
    ):
        model.fit(table[["age", "person"]], LABELS)


def test_weights_are_compared():
    def relative(values, name="X"):
        found = np.asarray(inputs.numbers(values, name), np.float64)
        return found / found.max() if name == "sample_weight" else found

    weights = np.linspace(0.1, 0.5, ROWS)
    with mock.patch.object(encoder, "numbers", relative), pytest.raises(PlanViolation):
        PrivateLogisticRegression(1.0, bounds=(0, 100)).fit(frame()[["age"]], LABELS, sample_weight=weights)


SOURCES = {
    "CSV": (CsvSource, "_row", lambda honest: lambda self, line: honest(self, line)[::-1]),
    "numbers": (
        CsvSource,
        "_numbers",
        lambda honest: (
            lambda self, lines, names: {
                name: np.zeros(len(lines)) if len(lines) > 1 else np.ones(1) for name in names
            }
        ),
    ),
    "Arrow": (
        ArrowSource,
        "table",
        lambda honest: (
            lambda self, batch, readers, keep: Table(
                {name: np.full(batch.num_rows, float(batch.num_rows)) for name in readers}, batch.num_rows
            )
        ),
    ),
}


@pytest.mark.parametrize("kind", ["numbers", "Arrow"])
def test_files_are_compared_with_their_records(kind, tmp_path):
    path = tmp_path / ("a.parquet" if kind == "Arrow" else "a.csv")
    table = frame()[["age"]]
    table.to_parquet(path) if kind == "Arrow" else table.to_csv(path, index=False)
    owner, name, twin = SOURCES[kind]
    with (
        mock.patch.object(owner, name, twin(getattr(owner, name))),
        pytest.raises(PlanViolation, match="read otherwise alone"),
    ):
        table_in(path).whole({"age": Numeric(0, 100)})
    assert len(table_in(path).whole({"age": Numeric(0, 100)})) == ROWS


def test_a_file_has_a_row_for_each_record(tmp_path):
    path = tmp_path / "a.csv"
    frame().to_csv(path, index=False)
    honest = CsvSource.table
    twice = lambda self, batch, readers, keep: honest(self, batch * 2, readers, keep)  # noqa: E731
    with mock.patch.object(CsvSource, "table", twice), pytest.raises(PlanViolation, match="row for each"):
        table_in(path).whole({"age": Numeric(0, 100)})


def test_stored_rows_are_compared():
    chunks = [Table({"age": np.arange(300.0), "who": np.arange(300).astype(object)}, 300) for _ in range(3)]
    columns = {"age": Numeric(0, 999), "who": Unit("who", 3)}
    assert len(store_rows(chunks, columns, Storage(0))) == 900
    honest = out_of_core._encode

    def mixed(chunk, codecs, row):
        return np.roll(honest(chunk, codecs, row), 1)

    def merged(chunk, codecs, row):
        found = honest(chunk, codecs, row)
        found["who"] = np.where(len(found) > 1, 0, found["who"])
        return found

    for twin in (mixed, merged):
        with mock.patch.object(out_of_core, "_encode", twin), pytest.raises(PlanViolation):
            store_rows(chunks, columns, Storage(0))


def test_statistics_and_evaluations_are_compared():
    from discreet.evaluation import question
    from discreet.statistics import reading

    budget, x = Budget(1.0, 1e-6), np.arange(200.0)
    with mock.patch.object(reading, "numbers", wrapped(inputs.numbers)), pytest.raises(PlanViolation):
        private_histogram(x, budget, (0, 100, 200))
    with mock.patch.object(reading, "codes", wrapped(inputs.codes)), pytest.raises(PlanViolation):
        private_histogram(x.astype(int) % 3, budget, (0, 1, 2), categories=True)
    with mock.patch.object(reading, "floats_of", wrapped(reading.floats_of)), pytest.raises(PlanViolation):
        private_mean(x.tolist(), budget, Interval(0, 200))
    with mock.patch.object(encoder, "codes", wrapped(encoder.codes)), pytest.raises(PlanViolation):
        evaluate(lambda x: np.full(len(x), 0.5), x[:, None], LABELS[:200], classes=(0, 1), epsilon=1.0)
    groups = {"half": (LABELS[:200], (0, 1))}
    with mock.patch.object(question, "codes", wrapped(inputs.codes)), pytest.raises(PlanViolation):
        evaluate(
            lambda x: np.full(len(x), 0.5), x[:, None], LABELS[:200], classes=(0, 1), epsilon=1.0, by=groups
        )


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_chance_to_miss_a_fault_is_as_stated(share):
    """The frequency is within five standard deviations of (1 - share)^COMPARED: an alarm in 1.7 million."""
    rows, tries = 1000, 2000
    faulty = np.arange(rows) < share * rows

    def read(x):
        return x if len(x) == 1 else np.where(faulty, -1.0, x)

    missed = 0
    for _ in range(tries):
        try:
            read_compared(read, np.arange(float(rows)))
            missed += 1
        except PlanViolation:
            pass
    expected = (1 - share) ** COMPARED
    assert abs(missed / tries - expected) < 5 * np.sqrt(expected * (1 - expected) / tries)


def test_pieces_are_chosen_as_the_whole():
    """Of ten pieces of 100 rows each the last choice is in piece k with probability 1/10 for each place."""
    last = np.zeros(10)
    for _ in range(4000):
        seen = None
        for piece in range(10):
            seen = piece if chosen_rows(100, 100 * piece) else seen
        last[seen] += 1
    # The last of COMPARED independent places is in the last piece with probability 1 - 0.9^COMPARED.
    expected = 4000 * (1 - 0.9**COMPARED)
    assert abs(last[-1] - expected) < 5 * np.sqrt(expected)
    assert chosen_rows(0) == []
    assert chosen_rows(1) == [0]


@given(st.lists(st.one_of(st.none(), st.floats(), st.integers(), st.text(), st.booleans()), max_size=30))
def test_what_our_readers_make_of_cells_passes(items):
    for column in (Numeric(0, 9), Category(("a", 1)), Numeric(0, 9, decimal=",")):
        read_compared(cells.reader(column), items)
        array = np.empty(len(items), object)
        array[:] = items
        read_compared(cells.reader(column), array)


@pytest.mark.parametrize(
    "pair",
    [
        (np.array([1.0]), np.array([2])),
        (np.array([1.0]), np.array([1], "M8[D]")),
        (np.array([1.0]), np.array([1.0, 1.0])),
        (np.array(["1"], object), np.array([1], object)),
        (np.array([True], object), np.array([1], object)),
        (pa.array(["a"]), pa.array([None], pa.string())),
        (np.array([np.nan]), np.array([0.0])),
    ],
)
def test_cells_that_differ_are_found(pair):
    with pytest.raises(PlanViolation):
        compare_rows([pair[0]], [pair[1]])


def test_sparse_rows_are_compared_as_they_are():
    row = csr_array(([1.0, 2.0], [0, 3], [0, 2]), shape=(1, 5))
    compare_rows([row], [row.copy()])
    for twin in (2 * row, row[:, ::-1].tocsr(), csr_array((1, 5)), csr_array((1, 6))):
        with pytest.raises(PlanViolation):
            compare_rows([row], [twin])


def test_missing_cells_are_alike():
    for cell in (np.array([np.nan]), np.array([np.nan], object), np.array([None], object), pa.array([None])):
        compare_rows([cell], [cell])
    compare_rows([np.array(["NaT"], "M8[D]")], [np.array(["NaT"], "M8[D]")])


def test_losses_of_ours_are_compared_in_every_pass():
    y = np.arange(100.0) % 2
    u = np.linspace(-40.0, 40.0, 100)
    for loss in (Logistic(), Squared(), Poisson(), Huber(0.5)):
        assert residuals(loss, u, y).shape == (100,)
        assert accepted(loss, y).all()
    accepts, residual = loss_functions.KNOWN["logistic"]
    twins = {
        "logistic": (accepts, lambda u, y, _: np.roll(residual(u, y, _), 1)),
        "squared": (lambda y: y >= y.mean(), residual),
    }
    with mock.patch.dict(loss_functions.KNOWN, twins):
        with pytest.raises(PlanViolation, match="does not depend on other records"):
            residuals(Logistic(), u, y)
        for _ in range(30):  # each comparison sees the twin with probability 3/4
            try:
                accepted(Squared(), y)
            except PlanViolation:
                return
    pytest.fail("the twin was not seen")
