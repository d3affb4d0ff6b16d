"""Tables that are elsewhere: read once, the same model as from memory, and refused by name where they cannot be."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from discreet.errors import InvalidParameter
from discreet.linear import (
    Category,
    Date,
    Flag,
    Numeric,
    PrivateAdditiveClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    Schema,
    Unit,
    out_of_core,
)
from discreet.linear.encoder import declared_labels
from discreet.linear.row_source import Table, store_rows
from discreet.linear.sources import source_of
from discreet.linear.storage import Storage
from discreet.linear.tables import table_in

ROWS = 2000


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "age": rng.integers(18, 90, ROWS).astype(float),
            "income": rng.lognormal(3, 1, ROWS),
            "label": np.zeros(ROWS, np.int64),
        }
    )
    found["label"] = (found.age / 30 - found.income / 20 + rng.logistic(size=ROWS) > 1).astype(np.int64)
    found.loc[5, "age"] = np.nan
    return found


def model(**more):
    return PrivateLogisticRegression(1.0, bounds=(0, 100), unsafe_seed=2, **more)


def kinds(frame, folder):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, folder / "a.parquet", row_group_size=300)
    feather.write_feather(table, folder / "a.arrow")
    frame.to_csv(folder / "a.csv", index=False)
    (folder / "many").mkdir()
    for number in range(4):
        pq.write_table(table.slice(number * 500, 500), folder / "many" / f"part-{number}.parquet")
    (folder / "many" / "_SUCCESS").touch()
    yield "a path", str(folder / "a.parquet")
    yield "an Arrow file", folder / "a.arrow"
    yield "CSV", folder / "a.csv"
    yield "a pattern", str(folder / "many" / "*.parquet")
    yield "a dataset", ds.dataset(folder / "a.parquet")
    yield "a LazyFrame", pl.scan_parquet(folder / "a.parquet")
    yield "a table of pyarrow", table
    yield "a DataFrame of polars", pl.DataFrame(frame.to_dict("list"))
    duckdb = pytest.importorskip("duckdb") if _installed("duckdb") else None
    if duckdb:
        yield "a relation", duckdb.connect().read_parquet(str(folder / "a.parquet"))


def _installed(name):
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.mark.parametrize("memory", [None, 0])
def test_all_of_them_give_the_same_bits(frame, tmp_path, memory):
    x, y = frame.drop(columns="label"), frame["label"]
    expected = model().fit(x, y)
    for name, table in kinds(frame, tmp_path):
        found = model(memory=memory).fit(table, y="label")
        np.testing.assert_array_equal(found.coef_, expected.coef_, err_msg=name)
        assert found.predict(x).tolist() == expected.predict(x).tolist()
        if name not in ("a table of pyarrow", "a DataFrame of polars"):
            assert found.feature_names_in_.tolist() == ["age", "income"]
            np.testing.assert_array_equal(found.decision_function(table), expected.decision_function(x), name)


def test_bounds_that_are_learnt_and_targets_of_numbers(frame, tmp_path):
    x, y = frame[["age"]], frame["income"]
    path = tmp_path / "a.parquet"
    frame[["age", "income"]].to_parquet(path)

    def make():
        return PrivateLinearRegression(1.0, unsafe_seed=2)

    np.testing.assert_array_equal(make().fit(path, y="income").coef_, make().fit(x, y).coef_)


SCHEMA = Schema(
    {
        "age": Numeric(0, 100, missing="flag"),
        "job": Category(("clerk", "farmer")),
        "since": Date("2000-01-01", "2020-12-31"),
        "paid": Numeric(0, 100, decimal=",", missing_values=[-999]),
        "smokes": Flag("yes", strip=True),
        "left": Flag("yes"),
    },
    target="left",
    unit=Unit("id"),
)


def people():
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "id": rng.integers(0, 500, ROWS).astype(str),
            "age": rng.integers(0, 100, ROWS).astype(str),
            "job": rng.choice(["clerk", "farmer", "pilot", ""], ROWS),
            "since": rng.choice(["2001-05-06", "2019-01-01", "soon"], ROWS),
            "paid": rng.choice(["1,5", "77,25", "-999", "x"], ROWS),
            "smokes": rng.choice(["yes", " yes", "no"], ROWS),
            "left": rng.choice(["yes", "no"], ROWS),
        }
    )


@pytest.mark.parametrize("make", [PrivateLogisticRegression, PrivateAdditiveClassifier])
def test_a_schema_with_everything_means_the_same_from_a_file(tmp_path, make):
    frame, path = people(), tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    expected = make(2.0, schema=SCHEMA, unsafe_seed=1).fit(frame)
    found = make(2.0, schema=SCHEMA, unsafe_seed=1, memory=0).fit(path)
    np.testing.assert_array_equal(found.decision_function(frame), expected.decision_function(frame))
    np.testing.assert_array_equal(found.decision_function(path), expected.decision_function(frame))


def test_a_table_is_read_once_and_each_row_on_its_own(tmp_path):
    frame, path = people(), tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    columns = SCHEMA.to_read()
    whole = store_rows(table_in(path).chunks(columns), columns, Storage(0))
    less = tmp_path / "less.csv"
    frame.drop(index=7).to_csv(less, index=False)
    others = store_rows(table_in(less).chunks(columns), columns, Storage(0))
    for name in set(columns) - {"id"}:  # ids are numbered as they come
        kept = np.delete(whole[name][:], 7)
        assert [str(cell) for cell in kept] == [str(cell) for cell in others[name][:]]


class Once:
    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration


def test_what_can_be_read_only_once_is_refused_by_name(frame, tmp_path):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    frame.to_csv(tmp_path / "a.csv", index=False)
    readers = [
        table.to_reader(),
        (row for row in ()),
        ds.dataset(table).scanner(),
        Once(),
    ]
    with (
        pd.read_csv(tmp_path / "a.csv", chunksize=10) as reader,
        pytest.raises(InvalidParameter, match="only once"),
    ):
        model().fit(reader, y="label")
    for reader in readers:
        with pytest.raises(InvalidParameter, match=rf"{type(reader).__name__}.*only once"):
            model().fit(reader, y="label")


@pytest.mark.parametrize("declared", [True, False])
def test_what_is_no_table_is_refused_in_a_sentence(frame, tmp_path, declared):
    frame.to_parquet(tmp_path / "a.parquet")
    schema = Schema({"age": Numeric(0, 99), "label": Category((0, 1))}, target="label") if declared else None
    for table in (pq.ParquetFile(tmp_path / "a.parquet"), 5, object(), frame.itertuples):
        with pytest.raises(InvalidParameter, match=rf"X='{type(table).__name__}': must be a table"):
            PrivateLogisticRegression(1.0, schema=schema).fit(table, y="label")


def test_a_frame_on_a_cluster_is_never_pulled_silently():
    kind = type("DataFrame", (), {"npartitions": 4, "__module__": "dask.dataframe.dask_expr._collection"})
    with pytest.raises(InvalidParameter, match="not pulled into this process"):
        source_of(kind())


@pytest.mark.parametrize(
    ("table", "y", "said"),
    [
        ("nowhere/*.parquet", "label", "names no file"),
        ("mixed/*", "label", "has other columns"),
        ("labels.parquet", "label", r"X\['job'\]\.dtype.*must be one of numbers"),
        ("nested.parquet", "label", "must be one of numbers"),
        ("a.parquet", "lable", "has no column 'lable'"),
        ("a.parquet", None, "y"),
        ("broken.parquet", "label", "is not a Parquet file"),
        ("broken.arrow", "label", "is not an Arrow file"),
        ("mixed", "label", r"is a folder; name its files by a pattern, such as 'mixed/\*\.parquet'"),
    ],
)
def test_refusals_name_what_is_wrong_and_spend_nothing(frame, tmp_path, monkeypatch, table, y, said):
    monkeypatch.chdir(tmp_path)
    frame.to_parquet("a.parquet")
    frame.assign(job="secret-cell").to_parquet("labels.parquet")
    pq.write_table(pa.table({"v": [[1], [2]], "label": [0, 1]}), "nested.parquet")
    (tmp_path / "broken.parquet").write_text("secret-cell")
    (tmp_path / "broken.arrow").write_text("secret-cell")
    (tmp_path / "mixed").mkdir()
    frame.to_parquet("mixed/a.parquet")
    frame[["age", "label"]].to_parquet("mixed/b.parquet")
    ledger = tmp_path / "ledger.db"
    with pytest.raises(InvalidParameter, match=said) as refused:
        model(ledger=str(ledger)).fit(table, y=y)
    assert "secret-cell" not in str(refused.value)
    assert not ledger.exists()


def test_a_missing_flag_changes_no_other():
    """A column with a gap is one of objects; a cell must mean what it meant without the gap."""
    told = declared_labels(Flag("yes"), np.array([True, False, True]))
    with_a_gap = declared_labels(Flag("yes"), np.array([True, False, True, None], object))
    assert with_a_gap.tolist() == [*told.tolist(), False]


def most_allocated(chunks):
    """The bytes that Arrow holds at most while some chunks are read, beyond those before."""
    before = pa.total_allocated_bytes()
    return max(pa.total_allocated_bytes() - before for _ in chunks)


def test_a_parquet_file_is_read_in_pieces_and_not_kept(tmp_path):
    path, rng = tmp_path / "t.parquet", np.random.default_rng(0)
    table = pa.table({f"x{j}": rng.random(1_600_000) for j in range(2)})
    for groups in (16, 1):
        pq.write_table(table, path, row_group_size=1_600_000 // groups)
        own = most_allocated(table_in(path).chunks(dict.fromkeys(table.column_names, Numeric(0, 1))))
        assert own < table.nbytes / 2, groups
        with pq.ParquetFile(path) as file:  # as pyarrow reads by itself: the limit is one that can be missed
            assert most_allocated(file.iter_batches()) > table.nbytes / 2


def test_numbers_with_gaps_are_those_of_a_list(tmp_path):
    path = tmp_path / "t.parquet"
    cells = {"a": pa.array([0.5, None, float("inf")], pa.float32()), "b": pa.array([1, -2, 3], pa.int8())}
    pq.write_table(pa.table(cells), path)
    read = table_in(path).whole({"a": Numeric(0, 1), "b": Numeric(0, 1)})
    assert np.array_equal(read["a"], [0.5, np.nan, np.inf], equal_nan=True)
    assert (read["b"].dtype, read["b"].tolist()) == (np.float64, [1, -2, 3])


class Pages:
    """A mapping that counts how many rows are read before it is given back."""

    def __init__(self):
        self.times = 0

    def madvise(self, *_):
        self.times += 1


def test_a_column_of_a_mapped_table_gives_its_pages_back_on_the_way(monkeypatch):
    monkeypatch.setattr(out_of_core, "_RESIDENT", 800)
    rows, pages = np.zeros(1000, [("a", np.float64), ("b", np.float64)]), Pages()
    rows["b"] = np.arange(1000)
    table = out_of_core.OutOfCoreTable(
        {name: out_of_core.codec_for(Numeric(0, 1)) for name in "ab"}, rows, pages
    )
    assert table["b"][:].tolist() == list(range(1000))
    assert pages.times >= 1000 * rows.itemsize // 1600


def test_columns_of_numbers_side_by_side_are_those_one_by_one():
    chunk = Table({name: np.arange(5.0) + place for place, name in enumerate("abc")}, 5)
    table = store_rows([chunk], dict.fromkeys("abc", Numeric(0, 9)), Storage(0))
    whole = table.numbers()
    for rows in (slice(1, 4), np.array([4, 0]), slice(0, 0)):
        one_by_one = np.column_stack([table[name][rows] for name in "abc"])
        assert np.array_equal(whole[rows], one_by_one)
    assert np.array_equal(table.drop_columns("c").numbers()[:], np.column_stack([chunk["a"], chunk["b"]]))
    assert table.drop_columns("b").numbers() is None  # they are not side by side
    labels = store_rows([Table({"a": np.array(["x"], object)}, 1)], {"a": Category(("x", "y"))}, Storage(0))
    assert labels.numbers() is None
