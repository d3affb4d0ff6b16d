"""Columns as declared: texts without a schema are refused, cells are read as the schema says, targets too."""

from datetime import date

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from discreet import InvalidParameter
from discreet.linear import (
    Category,
    Date,
    Flag,
    Numeric,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    Schema,
    read_table,
)
from discreet.linear.cells import declared_codes, declared_numbers

BUDGET = {"epsilon": 1.0, "delta": 1e-5}

LABELS = {
    "object": pandas.DataFrame({"x": [1.0, 2.0], "job": np.array(["a", "b"], object)}),
    "string": pandas.DataFrame({"x": [1.0, 2.0], "job": pandas.array(["a", "b"], "string")}),
    "category": pandas.DataFrame({"x": [1.0, 2.0], "job": pandas.Categorical(["a", "b"])}),
    "polars": polars.DataFrame({"x": [1.0, 2.0], "job": ["a", "b"]}),
    "polars categories": polars.DataFrame({"x": [1.0, 2.0], "job": ["a", "b"]}).with_columns(
        polars.col("job").cast(polars.Categorical)
    ),
    "pyarrow": pyarrow.table({"x": [1.0, 2.0], "job": ["a", "b"]}),
    "pyarrow dictionary": pyarrow.table(
        {"x": [1.0, 2.0], "job": pyarrow.array(["a", "b"]).dictionary_encode()}
    ),
}


@pytest.mark.parametrize("frame", LABELS.values(), ids=list(LABELS))
def test_labels_without_a_schema_are_refused_by_their_type(frame):
    model = PrivateLogisticRegression(**BUDGET, bounds=(0, 1))
    with pytest.raises(InvalidParameter, match=r"X\['job'\].dtype=.*declare it with schema="):
        model.fit(frame, [0, 1])


NUMBERS = {
    "floats": pandas.DataFrame({"x": [0.1, 0.2]}),
    "nullable": pandas.DataFrame({"x": pandas.array([1, None], "Int64")}),
    "booleans": pandas.DataFrame({"x": [True, False]}),
    "polars": polars.DataFrame({"x": [1, None]}),
    "pyarrow": pyarrow.table({"x": [1, None]}),
}


@pytest.mark.parametrize("frame", NUMBERS.values(), ids=list(NUMBERS))
def test_numbers_of_every_type_are_not(frame):
    PrivateLogisticRegression(**BUDGET, bounds=(0, 1)).fit(frame, [0, 1])


def kinds_of(frame):
    """The same table with the column types that pandas has besides."""
    nullable = frame.convert_dtypes()
    yield "nullable", nullable
    yield "of arrow", nullable.convert_dtypes(dtype_backend="pyarrow")
    yield "objects", frame.astype(object)
    yield "categories", frame.assign(job=frame["job"].astype("category"), ill=frame["ill"].astype("category"))
    yield "polars", polars.from_pandas(frame)
    yield "pyarrow", pyarrow.Table.from_pandas(frame, preserve_index=False)


def test_types_of_columns_change_nothing_where_a_schema_says_what_they_are():
    """Missing cells included; the twin with another cell makes another model."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age": np.where(np.arange(500) % 9, rng.integers(18, 90, 500), np.nan),
            "job": np.where(np.arange(500) % 7, rng.choice(["clerk", "farmer"], 500), None),
            "ill": np.where(rng.random(500) < 0.4, "yes", "no"),
        }
    )
    columns = {
        "age": {"bounds": [18, 90]},
        "job": {"categories": ["clerk", "farmer"]},
        "ill": {"flag": "yes"},
    }
    model = PrivateLogisticRegression(
        schema={"columns": columns, "target": "ill"}, unsafe_seed=1, epsilon=8.0
    )
    expected = model.fit(frame).coef_.copy()
    for name, same in kinds_of(frame):
        assert np.array_equal(model.fit(same).coef_, expected), name
    other = frame.assign(job=frame["job"].fillna("clerk"))
    assert not np.array_equal(model.fit(other).coef_, expected)


COLUMNS = {"age": {"bounds": [0, 100]}}
AGES = np.random.default_rng(0).uniform(0, 100, 3000)
TABLE = pandas.DataFrame(
    {
        "age": AGES,
        "income": np.where(AGES > 50, "high", "low"),
        "sick": np.where(AGES > 50, "YES", "no"),
        "cost": AGES * 2,
    }
)


def schema(target, column):
    return {"columns": COLUMNS | {target: column}, "target": target}


def test_the_target_of_the_schema_gives_classes_labels_and_bounds(tmp_path):
    file = tmp_path / "schema.toml"
    file.write_text(
        'target = "income"\n[columns]\nage = { bounds = [0, 100] }\nincome = { categories = ["low", "high"] }\n'
    )
    for y in (None, TABLE["income"]):
        model = PrivateLogisticRegression(**BUDGET, schema=file).fit(TABLE, y)  # a warning would be an error
        assert model.classes_.tolist() == ["high", "low"]
        assert np.mean(model.predict(TABLE) == TABLE["income"]) > 0.9
    assert model.certificate_.plan.settings["classes"] == ["low", "high"]
    cost = PrivateLinearRegression(**BUDGET, schema=schema("cost", {"bounds": [0, 200]})).fit(TABLE)
    assert cost.target_bounds_ == (0.0, 200.0)
    assert cost.certificate_.plan.settings["target_bounds"] == [0.0, 200.0]


def test_a_flag_is_a_target_as_on_the_command_line():
    declared = schema("sick", {"flag": "yes", "casefold": True})
    model = PrivateLogisticRegression(**BUDGET, schema=declared).fit(TABLE)
    assert model.classes_.tolist() == [False, True]
    assert np.mean(model.predict(TABLE) == (TABLE["sick"] == "YES")) > 0.9
    told = PrivateLogisticRegression(**BUDGET, schema=declared).fit(TABLE, TABLE["sick"] == "YES")
    assert np.mean(told.predict(TABLE) == (TABLE["sick"] == "YES")) > 0.9


def test_what_is_given_wins_over_the_schema_and_without_either_classes_are_0_and_1():
    declared = schema("income", {"categories": ["low", "high"]})
    given = PrivateLogisticRegression(**BUDGET, schema=declared, classes=(0, 1))
    assert given.fit(TABLE, (AGES > 50).astype(int)).classes_.tolist() == [0, 1]
    plain = PrivateLogisticRegression(**BUDGET, bounds=(0, 100)).fit(AGES[:, None], AGES > 50)
    assert plain.certificate_.plan.settings["classes"] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "column", "words"),
    [
        (PrivateLogisticRegression, {"bounds": [0, 1]}, "bounds, which are of a regression"),
        (PrivateLogisticRegression, {"categories": ["high"]}, "two or more categories"),
        (PrivateLinearRegression, {"categories": ["high", "low"]}, "must have bounds in numbers"),
        (PrivatePoissonRegressor, {"flag": "high"}, "must have bounds in numbers"),
        (PrivateLinearRegression, {"bounds": ["2020-01-01", "2021-01-01"]}, "must have bounds in numbers"),
    ],
)
def test_a_target_of_another_kind_is_refused(kind, column, words):
    with pytest.raises(InvalidParameter, match=words):
        kind(**BUDGET, schema=schema("income", column)).fit(TABLE)


def test_without_a_target_in_the_table_y_is_asked_for():
    model = PrivateLogisticRegression(**BUDGET, schema=schema("income", {"categories": ["low", "high"]}))
    with pytest.raises(InvalidParameter, match=r"X.columns='income'.*give it as y"):
        model.fit(TABLE[["age"]])
    with pytest.raises(InvalidParameter, match="requires y to be passed"):
        model.fit(TABLE[["age"]].to_numpy())


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (
            Numeric(0, 9, decimal=","),
            ["1,5", " 2 ", "1.5", ",5", "-1,e", "", None],
            [1.5, 2, None, 0.5, None, None, None],
        ),
        (
            Numeric(0, 9, thousands=","),
            ["18,000", "1,234,567.5", "18,5", "180,00", "12"],
            [18000, 1234567.5, None, None, 12],
        ),
        (Numeric(0, 9, decimal=",", thousands="."), ["1.234,5", "1234,5", "+1.000"], [1234.5, 1234.5, 1000]),
        (Numeric(0, 9, thousands=" "), ["1 000", "1e3", "x"], [1000, 1000, None]),
        (Numeric(0, 9, missing_values=(-9, 999)), ["-9", "999.0", "5", None], [None, None, 5, None]),
        (
            Date("2000-01-01", "2020-01-01"),
            ["1970-01-02", "1969-12-31 ", "2020-13-01", "x", None],
            [1, -1, None, None, None],
        ),
        (
            Date("2000-01-01", "2020-01-01", format="%d.%m.%Y"),
            ["02.01.1970", "1970-01-02", date(1970, 1, 3)],
            [1, None, 2],
        ),
        (
            Date("2000-01-01", "2020-01-01", format="%Y%m%d"),
            [19700102, 19700103.0, True, "19700104"],
            [1, 2, None, 3],
        ),
    ],
)
def test_cells_are_read_as_declared(column, cells, expected):
    found = declared_numbers(column, np.array(cells, object)).tolist()
    assert [None if number != number else number for number in found] == expected


def test_numbers_and_dates_of_every_type_are_read():
    assert declared_numbers(Numeric(0, 9, missing_values=(9,)), np.array([1, 9])).tolist()[0] == 1
    assert np.isnan(declared_numbers(Numeric(0, 9, missing_values=(9,)), np.array([1, 9]))[1])
    assert declared_numbers(Numeric(0, 9, decimal=","), np.array([1.5])).tolist() == [1.5]
    days = declared_numbers(
        Date("2000-01-01", "2020-01-01"), np.array(["1970-01-02", "NaT"], "datetime64[ns]")
    )
    assert days[0] == 1
    assert np.isnan(days[1])


def test_blanks_and_capitals_are_forgiven_where_that_is_declared():
    cells = np.array(["YES", " yes", "no", None, 1], object)
    assert declared_codes(Flag("yes"), cells).tolist() == [-1] * 5
    assert declared_codes(Flag("yes", casefold=True), cells).tolist() == [0, -1, -1, -1, -1]
    assert declared_codes(Flag("Yes", strip=True, casefold=True), cells).tolist() == [0, 0, -1, -1, -1]
    assert declared_codes(Category(("no", 1), strip=True), cells).tolist() == [-1, -1, 0, -1, 1]


def test_files_and_frames_say_the_same(tmp_path):
    declared = Schema(
        {
            "price": Numeric(0, 9, decimal=",", thousands="."),
            "code": Numeric(0, 9, missing_values=(9,)),
            "day": Date("2000-01-01", "2030-01-01", format="%d.%m.%Y"),
            "ok": Flag("yes", casefold=True),
            "job": Category(("Clerk", "farmer"), casefold=True),
        }
    )
    lines = ["price;code;day;ok;job", "1.234,5;9;31.01.2020;YES;CLERK", "2,5;3;;no; Farmer "]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    table = read_table(tmp_path / "t.csv", declared)
    frame = pandas.DataFrame(
        {
            "price": ["1.234,5", "2,5"],
            "code": [9, 3],
            "day": [date(2020, 1, 31), None],
            "ok": ["yes", "no"],
            "job": ["clerk", "Farmer"],
        }
    )
    for name, column in declared.columns.items():
        read = declared_numbers if isinstance(column, Numeric) else declared_codes
        assert np.array_equal(
            read(column, table[name]),
            read(column, frame[name].to_numpy()),
            equal_nan=isinstance(column, Numeric),
        )


def test_schemas_with_everything_go_through_toml_and_back():
    text = """
    [columns]
    price = { bounds = [0, 9], decimal = ",", thousands = ".", missing_values = [9, -1] }
    gains = { learn = true, decimal = "," }
    day = { bounds = [2000-01-01, 2030-12-31], format = "%d.%m.%Y", missing = "flag" }
    ok = { flag = "yes", casefold = true }
    job = { categories = ["a", "b"], strip = true }
    plain = { bounds = [0, 1] }
    """
    found = Schema.from_toml(text)
    assert Schema.from_dict(found.to_dict()) == found
    assert found.to_dict()["columns"]["day"]["bounds"] == ["2000-01-01", "2030-12-31"]
    assert found.to_dict()["columns"]["plain"] == {"bounds": [0.0, 1.0]}  # as it always was


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"bounds": [0, 1], "decimal": ";"}, "columns.a.decimal"),
        ({"bounds": [0, 1], "decimal": ",", "thousands": ","}, "must not be the decimal"),
        ({"bounds": [0, 1], "missing_values": ["NA"]}, "columns.a.missing_values"),
        ({"bounds": [0, 1], "missing_values": 3}, "must be a list of numbers"),
        ({"bounds": [0, 1], "missing_values": [float("nan")]}, "columns.a.missing_values"),
        ({"bounds": [0, 1], "strip": True}, "strip goes with categories and flag"),
        ({"flag": "a", "strip": "yes"}, "columns.a.strip"),
        ({"categories": ["a", "A"], "casefold": True}, "not distinct"),
        ({"bounds": ["2020-01-01", "2019-01-01"]}, "columns.a.upper"),
        ({"bounds": ["2020-01-01", "soon"]}, "columns.a.upper='soon'"),
        ({"bounds": ["2020-01-01", "2021-01-01"], "format": "day"}, "columns.a.format"),
        ({"bounds": ["2020-01-01", "2021-01-01"], "decimal": ","}, "has no decimal"),
        ({"bounds": [0, 1], "format": "%Y"}, "is of dates"),
        ({"learn": True, "format": "%Y"}, "format goes with bounds"),
    ],
)
def test_what_cannot_be_declared_is_named(column, words):
    with pytest.raises(InvalidParameter, match=words):
        Schema.from_dict({"columns": {"a": column}})
