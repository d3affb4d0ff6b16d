"""Schemas: what they declare, how they are read and written, and what is refused."""

import math

import numpy as np
import pytest

from discreet import InvalidParameter
from discreet.linear.column_kinds import Category, Flag, Numeric, distinct, ordered_bounds
from discreet.linear.schema import Schema, schema_of

TOML = """
target = "income"

[columns]
age    = { bounds = [17, 90] }
hours  = { bounds = [0, 100], missing = "flag" }
gains  = { learn = true }
job    = { categories = ["clerk", "farmer", 3, true] }
smoker = { flag = "yes" }
income = { categories = ["low", "high"] }
"""
COLUMNS = {
    "age": Numeric(17, 90),
    "hours": Numeric(0, 100, missing="flag"),
    "gains": Numeric(),
    "job": Category(("clerk", "farmer", 3, True)),
    "smoker": Flag("yes"),
    "income": Category(("low", "high")),
}


def test_toml_dict_and_python_agree(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(TOML)
    schema = Schema(COLUMNS, target="income")
    assert Schema.from_toml(TOML) == Schema.load(path) == Schema.from_dict(schema.to_dict()) == schema
    assert (
        schema_of(path) == schema_of(str(path)) == schema_of(schema.to_dict()) == schema_of(schema) == schema
    )
    assert schema_of(COLUMNS) == Schema(COLUMNS)


def test_features_leave_out_the_target_and_keep_their_order():
    schema = Schema(COLUMNS, target="income")
    assert list(schema.features) == ["age", "hours", "gains", "job", "smoker"]
    assert schema.undeclared == ("gains",)
    learned = schema.with_bounds({"gains": (0.0, 5.0)})
    assert learned.features["gains"] == Numeric(0, 5)
    assert learned.undeclared == ()


def test_a_schema_cannot_be_changed_through_what_it_was_made_of():
    columns = {"age": Numeric(0, 1)}
    schema = Schema(columns)
    columns["job"] = Flag()
    assert list(schema.features) == ["age"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, "1", None, True, 1e200])
def test_bounds_must_be_ordinary_numbers(bad):
    with pytest.raises(InvalidParameter, match="lower"):
        ordered_bounds(bad, 1e300 if bad is None else 2e200)
    with pytest.raises(InvalidParameter, match="upper"):
        ordered_bounds(0.0, bad)


def test_bounds_must_be_in_order():
    with pytest.raises(InvalidParameter, match="exceed the lower"):
        Numeric(5, 5)
    with pytest.raises(InvalidParameter, match="upper=None"):
        Numeric(5)


@pytest.mark.parametrize("values", [(), "ab", None, [["a"]], [None], [math.nan], 7])
def test_categories_must_be_a_list_of_plain_values(values):
    with pytest.raises(InvalidParameter, match="at least one text, number or boolean"):
        Category(values)


def test_categories_must_differ():
    with pytest.raises(InvalidParameter, match="twice"):
        Category((1, 1.0))
    assert distinct("x", np.array(["a", "b"])) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("columns = 3", "must be a table"),
        ("nothing = 1", "unknown keys; known are columns, target"),
        ("[columns]", "at least one feature"),
        ("[columns]\nage = { bounds = [1] }", r"columns.age.bounds=\[1\]: must be \[lower, upper\]"),
        ("[columns]\nage = { bounds = [3, 1] }", "columns.age.upper=1"),
        ("[columns]\nage = { bounds = [0, nan] }", "columns.age.upper=nan"),
        ("[columns]\nage = { }", "one of bounds, learn, categories, flag"),
        ("[columns]\nage = { bounds = [0, 1], flag = 1 }", "one of bounds"),
        ("[columns]\nage = { limits = [0, 1] }", "unknown keys"),
        ("[columns]\nage = { learn = false }", "must be true"),
        ("[columns]\nage = { flag = [1] }", "columns.age.flag"),
        ("[columns]\nage = { categories = ['a'], missing = 'flag' }", "missing goes with bounds"),
        ("[columns]\nage = { bounds = [0, 1], missing = 'mean' }", "missing='mean'"),
        ("target = 'x'\n[columns]\nage = { bounds = [0, 1] }", "must be the name of a declared column"),
        ("[columns", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(InvalidParameter, match=message):
        Schema.from_toml(text)


def test_a_schema_needs_columns_by_name():
    with pytest.raises(InvalidParameter, match="dictionary of columns"):
        Schema([Numeric(0, 1)])
    with pytest.raises(InvalidParameter, match="must be a text"):
        Schema({3: Numeric(0, 1)})
    with pytest.raises(InvalidParameter, match="Numeric, a Category or a Flag"):
        Schema({"age": (0, 1)})
    with pytest.raises(InvalidParameter, match="cannot be read"):
        Schema.load("no/such/schema.toml")
    with pytest.raises(InvalidParameter, match=r"path of a schema\.toml"):
        schema_of(3)
    with pytest.raises(InvalidParameter, match="not a numeric column"):
        Schema(COLUMNS).with_bounds({"job": (0.0, 1.0)})
