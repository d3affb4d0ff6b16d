"""Each kind of source with each kind of bad cell: no text quotes the cell, and no other cell changes.

The detector collects what an exception says, with its causes and contexts, all warnings and all logs. Twins that read
the same tables as the libraries do are caught.
"""

import logging
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from discreet import Budget, InvalidParameter, PlanViolation, evaluate
from discreet.evaluation import split
from discreet.linear import Category, Date, Numeric, PrivateLogisticRegression, Schema
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.parquet import ArrowSource, guarded
from discreet.linear.private_reader import PrivateReader
from discreet.linear.read_parts import DeclaredTarget
from discreet.linear.row_source import store_rows
from discreet.linear.sources import source_of
from discreet.linear.storage import Storage
from discreet.linear.tables import read_table
from discreet.statistics import private_histogram

pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

ROWS, BAD = 300, 250  # beyond the rows by which libraries guess types
MARK = "SECRET77"
SCHEMA = Schema(
    {"age": Numeric(0, 100), "job": Category(("clerk", "farmer")), "since": Date("2000-01-01", "2020-12-31")}
)


def heard(action):
    """What an action returns, and all that could be read while it ran."""
    said, lines = None, []

    class Kept(logging.Handler):
        def emit(self, record):
            lines.append(self.format(record))

    handler, result = Kept(), None
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                result = action()
            except Exception as error:
                said = error
    finally:
        logging.getLogger().removeHandler(handler)
    lines += [str(one.message) for one in warned]
    seen, waiting = set(), [said]
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            lines += [type(error).__name__, str(error), *map(repr, error.args)]
            waiting += [error.__cause__, error.__context__]
    return result, said, "\n".join(lines)


def encoded(table):
    """The rows as a fit sees them."""
    source, columns = source_of(table), SCHEMA.features
    if source is not None:
        table = store_rows(source.chunks(columns), columns, Storage())
    return SchemaEncoding(SCHEMA).encode(table)


def rows():
    jobs = ("clerk", "farmer")
    return [(str(20 + k % 50), jobs[k % 2], f"20{10 + k % 9}-03-0{1 + k % 9}") for k in range(ROWS)]


def csv_file(folder, bad, name="a.csv"):
    lines = [",".join(row).encode() for row in rows()]
    lines[BAD] = bad
    path = folder / name
    path.write_bytes(b"\n".join([b"age,job,since", *lines]) + b"\n")
    return path


def typed_scan(path):
    kinds = {"age": pl.Int64, "job": pl.String, "since": pl.Date}
    return pl.scan_csv(path, schema=kinds)


def cast_scan(path):
    texts = pl.scan_csv(path, infer_schema=False)
    return texts.with_columns(pl.col("age").cast(pl.Int64), pl.col("since").str.to_date())


def cast_relation(path):
    casts = "CAST(age AS INTEGER) AS age, job, CAST(since AS DATE) AS since"
    return duckdb.connect().sql(f"SELECT {casts} FROM read_csv('{path}', all_varchar=true)")


def arrow_csv(path):
    kinds = pa.schema([("age", pa.int64()), ("job", pa.string()), ("since", pa.date32())])
    return ds.dataset(path, format="csv", schema=kinds)


TEXTS = {
    "a path": lambda path: path,
    "polars, types guessed": lambda path: pl.scan_csv(path, infer_schema_length=50),
    "polars, types declared": typed_scan,
    "polars, strict casts": cast_scan,
    "DuckDB, types guessed": lambda path: duckdb.connect().sql(f"FROM read_csv('{path}', sample_size=50)"),
    "DuckDB, a file": lambda path: duckdb.connect().sql(f"SELECT * FROM '{path}'"),
    "DuckDB, types declared": lambda path: duckdb.connect().read_csv(
        str(path), dtype={"age": "INTEGER", "job": "VARCHAR", "since": "DATE"}
    ),
    "DuckDB, casts": cast_relation,
    "pyarrow, types declared": arrow_csv,
    "pandas": lambda path: pd.read_csv(path, dtype=object, encoding_errors="replace"),
}
BAD_TEXTS = {
    "a word": f"{MARK},clerk,2010-03-01",
    "a word for a date": f"30,clerk,{MARK}",
    "a day that is none": f"30,{MARK},2010-02-31",
    "a year of six digits": f"30,{MARK},123456-01-01",
    "a number beyond 64 bits": f"99999999999999999999,{MARK},2010-03-01",
}


@pytest.mark.parametrize("bad", BAD_TEXTS)
@pytest.mark.parametrize("kind", TEXTS)
def test_a_cell_that_cannot_be_parsed_is_missing(tmp_path, kind, bad):
    expected = encoded(csv_file(tmp_path, ",".join(rows()[BAD]).encode(), "clean.csv"))
    path = csv_file(tmp_path, BAD_TEXTS[bad].encode())
    found, error, told = heard(lambda: encoded(TEXTS[kind](path)))
    assert MARK not in told, told
    assert error is None, told
    others = np.delete(expected, BAD, axis=0)
    if len(found) == ROWS:
        np.testing.assert_array_equal(np.delete(found, BAD, axis=0), others)
    else:  # DuckDB leaves out the record
        np.testing.assert_array_equal(found, others)
        assert kind.startswith("DuckDB")


@pytest.mark.parametrize("bad", [f"30,clerk,{MARK}\xff\xfe,2,3,4".encode("latin-1"), f'30,"{MARK}'.encode()])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_line_that_is_no_record_is_not_quoted(tmp_path, kind, bad):
    table, error, _ = heard(lambda: TEXTS[kind](csv_file(tmp_path, bad)))
    if error is not None:
        pytest.skip("the library refuses it before we see it")
    _, error, told = heard(lambda: encoded(table))
    assert MARK not in told, told
    assert error is None or isinstance(error, InvalidParameter)


@pytest.mark.parametrize(
    "kind", ["polars, types declared", "polars, strict casts", "pyarrow, types declared"]
)
def test_the_detector_hears_what_the_libraries_say(tmp_path, kind):
    table = TEXTS[kind](csv_file(tmp_path, BAD_TEXTS["a word"].encode()))
    _, error, told = heard(lambda: table.collect() if hasattr(table, "collect") else table.to_table())
    assert error is not None
    assert MARK in told


def test_the_detector_hears_duckdb(tmp_path):
    relation = TEXTS["DuckDB, types declared"](csv_file(tmp_path, BAD_TEXTS["a word"].encode()))
    assert MARK in heard(relation.to_arrow_table)[2]


def test_what_a_query_raises_on_its_way_is_not_quoted(tmp_path):
    path = csv_file(tmp_path, f"30,{MARK},2010-03-01".encode())

    def fail(job):
        if job == MARK:
            raise ValueError(job)
        return job

    odd = pl.col("job").map_elements(fail, return_dtype=pl.String)
    root = f"SELECT CASE WHEN job = '{MARK}' THEN error(job) ELSE job END AS job, age, since FROM '{path}'"
    for query in (pl.scan_csv(path).with_columns(odd), duckdb.connect().sql(root)):
        _, error, told = heard(lambda query=query: encoded(query))
        assert isinstance(error, InvalidParameter)
        assert MARK not in told
        assert "could not be read to its end" in told


def test_a_context_is_an_exception_too():
    def batches():
        yield 1
        raise ValueError(MARK)

    def twin():
        try:
            list(batches())
        except ValueError:
            raise InvalidParameter("X", "a query", "could not be read.") from None

    assert MARK not in heard(lambda: list(guarded(batches, "a query")))[2]
    assert MARK in heard(twin)[2]  # "from None" hides it from a traceback and keeps it


def arrow_table(bad):
    days = np.array([14_000 + k for k in range(ROWS)], np.int64)
    texts = [row[1].encode() for row in rows()]
    ages = np.array([float(row[0]) for row in rows()])
    kind = pa.date32()
    if bad in ("a late day", "an early day", "infinity"):
        days[BAD] = {"a late day": 10**9, "an early day": -(10**9), "infinity": 2**31 - 1}[bad]
    if bad in ("a late second", "a late microsecond"):
        unit = bad.rpartition(" ")[2]
        scale, kind = (
            (86_400, pa.timestamp("s")) if unit == "second" else (86_400 * 10**6, pa.timestamp("us"))
        )
        days *= scale
        days[BAD] = 2**50 if unit == "second" else 2**62
    if bad == "no UTF-8":
        texts[BAD] = MARK.encode() + b"\xff\xfe"
    if bad == "infinite":
        ages[BAD] = np.inf
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    jobs = pa.Array.from_buffers(pa.string(), ROWS, [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
    numbers = pa.array(days, pa.int64())
    since = (numbers.cast(pa.int32()) if kind == pa.date32() else numbers).view(kind)
    return pa.table({"age": ages, "job": jobs, "since": since})


def parquet(table, folder):
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


def arrow_file(table, folder):
    feather.write_feather(table, folder / "a.arrow")
    return folder / "a.arrow"


class Stream:
    """What can be read as an Arrow stream, again and again, and no more."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


TYPED = {
    "Parquet": parquet,
    "Feather": arrow_file,
    "a dataset": lambda table, folder: ds.dataset(parquet(table, folder)),
    "a dataset in memory": lambda table, folder: ds.dataset(table),
    "a stream": lambda table, folder: Stream(table),
    "pyarrow": lambda table, folder: table,
    "a dictionary": lambda table, folder: table.set_column(1, "job", table["job"].dictionary_encode()),
    "pandas of arrow": lambda table, folder: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda table, folder: pl.from_arrow(table),
    "a LazyFrame": lambda table, folder: pl.from_arrow(table).lazy(),
    "DuckDB": lambda table, folder: duckdb.connect().from_arrow(table),
}
BAD_CELLS = [
    "a late day",
    "an early day",
    "infinity",
    "a late second",
    "a late microsecond",
    "no UTF-8",
    "infinite",
]


@pytest.mark.parametrize("bad", BAD_CELLS)
@pytest.mark.parametrize("kind", TYPED)
def test_a_cell_that_python_does_not_have_changes_no_other(tmp_path, kind, bad):
    made, error, told = heard(lambda: TYPED[kind](arrow_table(bad), tmp_path))
    if error is not None:  # the library itself refuses to hold such a cell
        assert bad == "no UTF-8"
        pytest.skip("cannot be made")
    found, error, told = heard(lambda: encoded(made))
    assert MARK not in told, told
    assert error is None, told
    expected = encoded(arrow_table("none"))
    np.testing.assert_array_equal(np.delete(found, BAD, axis=0), np.delete(expected, BAD, axis=0))
    late = {
        "a late day": 1.0,
        "an early day": 0.0,
        "infinity": 1.0,
        "a late second": 1.0,
        "a late microsecond": 1.0,
    }
    if bad in late:  # moved to the bound, as a number is
        assert found[BAD, 1] == late[bad]
    if bad == "no UTF-8":
        assert not found[BAD, 2:].any()


MEMORY = [kind for kind in TYPED if kind in ("pyarrow", "a dictionary", "pandas of arrow", "polars")]


@pytest.mark.parametrize("bad", BAD_CELLS)
@pytest.mark.parametrize("kind", MEMORY)
def test_splits_histograms_evaluations_and_people_too(tmp_path, kind, bad):
    made, error, _ = heard(lambda: TYPED[kind](arrow_table(bad), tmp_path))
    if error is not None:
        pytest.skip("cannot be made")
    labels = np.arange(ROWS) % 2
    budget = Budget(1.0, 0.0)
    unit = PrivateLogisticRegression(1.0, bounds=(0, 100), unit="job", unsafe_seed=0)
    ages = made.select(["age", "job"]) if hasattr(made, "select") else made[["age", "job"]]
    actions = [
        lambda: split(made, test=0.3, key=b"k" * 32),
        lambda: split(made, test=0.3, unit="job", key=b"k" * 32),
        lambda: split(made, test=0.3, unit="since", key=b"k" * 32),
        lambda: private_histogram(made["job"], budget, ("clerk", "farmer"), categories=True),
        lambda: private_histogram(made["since"], budget, ("clerk", "farmer"), categories=True),
        lambda: evaluate(lambda x: np.full(len(x), 0.5), made, labels, classes=(0, 1), epsilon=1.0),
        lambda: unit.fit(ages, labels),
    ]
    for action in actions:
        _, error, told = heard(action)
        assert error is None, told
        assert MARK not in told


def test_the_detector_hears_pyarrow():
    assert heard(lambda: arrow_table("a late day")["since"].to_pylist())[1] is not None
    assert MARK in heard(lambda: np.asarray(arrow_table("no UTF-8")["job"]))[2]


def test_duckdb_has_days_that_never_come():
    query = """SELECT 30.0 AS age, 'clerk' AS job,
        CASE WHEN i = 1 THEN 'infinity'::{0} WHEN i = 2 THEN '-infinity'::{0} ELSE '2010-01-01'::{0} END AS since
        FROM range(3) t(i)"""
    for kind in ("DATE", "TIMESTAMP", "TIMESTAMPTZ"):
        found, error, told = heard(lambda kind=kind: encoded(duckdb.connect().sql(query.format(kind))))
        assert error is None, told
        assert found[1:, 1].tolist() == [1.0, 0.0]
        assert 0 < found[0, 1] < 1


def test_dates_of_files_are_dates_of_numpy(tmp_path):
    path = parquet(arrow_table("a late day"), tmp_path)
    since = read_table(path, SCHEMA)["since"]
    assert since.dtype == "datetime64[D]"
    assert since[BAD].astype(np.int64) == 10**9


def test_one_scalar_among_rows_of_one_label():
    x = np.random.default_rng(0).random((500, 2))
    labels = [[k % 2] for k in range(500)]
    mixed = [*labels[:3], 1, *labels[4:]]

    def counts(y):
        return PrivateLogisticRegression(1.0, bounds=(0, 1), unsafe_seed=2).fit(x, y)._model.counts

    plain = counts([k % 2 for k in range(500)])
    for y in (labels, mixed, [*labels[:3], None, *labels[4:]], [*labels[:3], [1, 2], *labels[4:]]):
        assert np.abs(counts(y).classes - plain.classes).max() <= 1
        assert abs(counts(y).other - plain.other) <= 1
    twin = np.asarray(mixed, object)  # as it was read: a column whose other cells are lists
    assert sum(isinstance(cell, list) for cell in twin) == 499


ODD_ROWS = [None, [1.0], [1.0, 2.0, 3.0], 7, "text", [[1, 2], [3]], (), {}]


TWO = Schema({"a": Numeric(0, 1), "b": Numeric(0, 1)})


@pytest.mark.parametrize("declared", [{"bounds": (0, 1)}, {"schema": TWO}], ids=["bounds", "schema"])
@pytest.mark.parametrize("place", [0, 5])
def test_one_odd_row_of_a_list_is_a_missing_row(declared, place):
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 2)).tolist(), [0, 1] * 20

    def fitted(table):
        return PrivateLogisticRegression(1.0, unsafe_seed=2, **declared).fit(table, y).coef_

    expected = fitted([*x[:place], [None, None], *x[place + 1 :]])
    for odd in ODD_ROWS:
        np.testing.assert_array_equal(fitted([*x[:place], odd, *x[place + 1 :]]), expected)


def test_a_list_without_rows_is_a_table_of_declared_columns():
    for declared in ({"bounds": ([0, 0], [1, 1])}, {"schema": TWO}):
        model = PrivateLogisticRegression(1.0, unsafe_seed=2, **declared)
        assert model.fit([], []).coef_.tolist() == model.fit(np.empty((0, 2)), []).coef_.tolist()
    with pytest.raises(InvalidParameter, match=r"X='an empty list': .*np.empty"):
        PrivateLogisticRegression(1.0, bounds=(0, 1)).fit([], [])


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_masked_cells_are_missing(kind):
    rng = np.random.default_rng(0)
    hidden = rng.random((400, 2)) < 0.4
    x = np.ma.masked_array(rng.integers(0, 100, (400, 2)).astype(kind), mask=hidden)
    gaps, y = np.where(hidden, np.nan, x.data.astype(float)), np.arange(400) % 2
    schema = Schema({"a": Numeric(0, 100, missing="flag"), "b": Numeric(0, 100)})
    for declared in ({"bounds": (0, 100)}, {"schema": schema}):
        model = PrivateLogisticRegression(1.0, unsafe_seed=2, **declared)
        np.testing.assert_array_equal(model.fit(x, y).coef_, model.fit(gaps, y).coef_)
        np.testing.assert_array_equal(model.predict_proba(x), model.predict_proba(gaps))
    weights = np.ma.masked_array(np.ones(400), mask=hidden[:, 0])
    model = PrivateLogisticRegression(1.0, unsafe_seed=2, bounds=(0, 100))
    expected = model.fit(gaps, y, sample_weight=np.where(hidden[:, 0], 0.0, 1.0)).coef_
    np.testing.assert_array_equal(model.fit(gaps, y, sample_weight=weights).coef_, expected)
    assert not np.array_equal(model.fit(x.data, y).coef_, model.fit(x, y).coef_)  # the twin loses the mask


@pytest.mark.parametrize("cells", [[1, 2**63 - 1], [1, 2**64 - 1], [1.0, np.inf], [1, -(2**63)]])
def test_no_number_makes_split_warn(cells):
    _, error, told = heard(lambda: split(np.array(cells).reshape(-1, 1), test=0.3))
    assert (error, told) == (None, "")


def test_no_id_makes_anybody_warn():
    ids = [1, 2, np.complex128(3 + 1j), np.complex64(2)]
    model = PrivateLogisticRegression(1.0, bounds=(0, 1), unit="person", unsafe_seed=0)
    for action in (
        lambda: split(np.zeros((4, 1)), test=0.3, unit=ids),
        lambda: model.fit(np.zeros((4, 1)), [0, 1, 0, 1], people=ids),
    ):
        _, error, told = heard(action)
        assert error is None
        assert "omplex" not in told


def test_what_a_model_warns_of_is_not_passed_on():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    x = np.array([["a"], ["b"]] * 50, object)
    y = np.arange(100) % 2
    model = make_pipeline(OneHotEncoder(handle_unknown="warn"), LogisticRegression()).fit(x, y)
    odd = np.array([*x, [MARK]], object)
    assert "unknown categories" in heard(lambda: model.predict_proba(odd))[2]  # the twin
    _, error, told = heard(lambda: evaluate(model, odd, [*y, 1], epsilon=1.0))
    assert (error, told) == (None, "")


def test_the_rows_of_partitions_are_not_shown(tmp_path):
    from discreet.linear.partitions import Partitions

    parquet(arrow_table("none"), tmp_path)
    parts = Partitions(str(tmp_path / "*.parquet")).parts
    assert str(ROWS) not in repr(parts).replace(str(tmp_path), "")
    assert str(ROWS) in repr(tuple(parts[0]))  # the twin


def test_a_race_for_the_last_budget_ends_in_a_sentence():
    from discreet.errors import BudgetExceeded
    from discreet.events import Gaussian
    from discreet.ledger import GaussianFilter, Ledger, Till
    from discreet.linear.gate.column_blocks import ColumnCells
    from discreet.linear.gate.private_table import RawColumns
    from discreet.linear.row_views.column_views import PowerCells
    from discreet.trusted.queries import Blocks
    from discreet.trusted.spending import BudgetAllocator

    rule = GaussianFilter(Budget(1.0, 1e-6))
    with Ledger.in_memory(rule) as ledger:
        spending = BudgetAllocator(Budget(1.0, 1e-6), Till.open(ledger, rule), arithmetic="float")
        spending.stage("counts", share=0.1).ask(
            RawColumns(np.zeros((0, 1))), Blocks((ColumnCells(PowerCells(1), 1, PowerCells.cells),))
        )
        Till.open(ledger, rule).pay(Gaussian(6.0), name="another-fit")
        with pytest.raises(BudgetExceeded) as caught:
            spending.stage("gradients", steps=40)
    assert "Other runs have used the ledger" in str(caught.value)
    assert "Composition" not in heard_of(caught.value)


def heard_of(error):
    return heard(lambda: (_ for _ in ()).throw(error))[2]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_split_table_keeps_its_permissions(tmp_path, suffix):
    from click.testing import CliRunner

    from discreet.cli import main

    path = (
        parquet(arrow_table("none"), tmp_path)
        if suffix == ".parquet"
        else csv_file(tmp_path, b"1,clerk,2010-01-01")
    )
    outs = [tmp_path / f"{side}{suffix}" for side in ("train", "test")]
    for mode in (0o600, 0o640):
        path.chmod(mode)
        words = ["split", str(path), "--test", "0.3", "--train-out", str(outs[0]), "--test-out", str(outs[1])]
        done = CliRunner().invoke(main, [*words, "--overwrite"])
        assert done.exit_code == 0, done.output
        assert [out.stat().st_mode & 0o777 for out in outs] == [mode, mode]


def test_split_keeps_records_with_line_breaks_whole(tmp_path):
    from click.testing import CliRunner

    from discreet.cli import main

    path, outs = tmp_path / "a.csv", [tmp_path / "train.csv", tmp_path / "test.csv"]
    path.write_text("id,note\n" + "".join(f'{k},"one\n{k}\nthree"\n' for k in range(100)))
    words = ["split", str(path), "--test", "0.5", "--train-out", str(outs[0]), "--test-out", str(outs[1])]
    assert CliRunner().invoke(main, words).exit_code == 0
    sides = [pd.read_csv(out) for out in outs]
    assert sorted([*sides[0]["id"], *sides[1]["id"]]) == list(range(100))
    for side in sides:
        assert side["note"].tolist() == [f"one\n{k}\nthree" for k in side["id"]]


def hostile(batches):
    """A source of two columns that ``batches`` yields whatever it likes for."""
    return ArrowSource("hostile", pa.schema([("a", pa.float64()), ("b", pa.float64())]), batches)


def read_hostile(batches):
    columns = dict.fromkeys("ab", Numeric(0, 9))
    return PrivateReader(DeclaredTarget(), lambda source, y: columns).read(hostile(batches), "b", None, None)


class Ragged:
    """Says that it has three rows, and has a column of one: numpy would give its cell to all rows."""

    num_rows = 3

    def column(self, name):
        return pa.array([1.0] if name == "a" else [1.0, 2.0, 3.0])


def test_a_source_with_columns_of_different_lengths_is_refused():
    with pytest.raises(PlanViolation, match="one length"):
        read_hostile(lambda names: [Ragged()])


def test_a_source_that_quotes_a_cell_is_not_quoted():
    def quoting(names):
        yield pa.record_batch({"a": [1.0], "b": [2.0]})
        raise InvalidParameter("cell", "secret", "was found")

    with pytest.raises(InvalidParameter, match="could not be read to its end") as caught:
        read_hostile(quoting)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_cells_of_another_type_than_the_schema_says_are_converted_one_by_one():
    cells = pa.record_batch({"a": ["1.5", "secret", None], "b": ["1", "2", "3"]})
    chunks = list(hostile(lambda names: [cells]).chunks({"a": Numeric(0, 9), "b": Numeric(0, 9)}))
    np.testing.assert_array_equal(chunks[1]["a"], [1.5, np.nan, np.nan])
    assert chunks[1]["b"].tolist() == [1.0, 2.0, 3.0]
