"""Estimators that protect people: how the unit is declared, and what is refused."""

import csv

import numpy as np
import pytest
from sklearn.base import clone

from discreet.errors import InvalidParameter
from discreet.linear import (
    Numeric,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    Schema,
    Unit,
    load,
    read_table,
)

TOML = """
target = "visits"

[unit]
column = "person"

[columns]
age    = { bounds = [0, 100] }
visits = { bounds = [0, 50] }
"""


def rows(people=300, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(people), rng.integers(1, 4, people))
    age = rng.uniform(0, 100, len(ids))
    return ids, age, rng.poisson(1 + age / 50).astype(float)


def frame():
    pandas = pytest.importorskip("pandas")
    ids, age, visits = rows()
    return pandas.DataFrame({"person": ids, "age": age, "visits": visits})


def test_the_column_of_ids_is_no_feature():
    table = frame()
    model = PrivateLinearRegression(4.0, bounds=(0, 100), target_bounds=(0, 50))
    model.set_params(unit="person").fit(table[["person", "age"]], table["visits"])
    assert model.feature_names_in_.tolist() == ["age"]
    with_ids, without = table[["age", "person"]][:5], table[["age"]][:5]
    np.testing.assert_array_equal(model.predict(with_ids), model.predict(without))
    by_name = clone(model).set_params(bounds=({"age": 0}, {"age": 100}))
    by_name.fit(table[["person", "age"]], table["visits"])


def test_an_unknown_column_is_named_before_the_others_are_read():
    table = frame().assign(person="ann")
    model = PrivateLinearRegression(4.0, bounds=(0, 100), target_bounds=(0, 50), unit="nobody")
    with pytest.raises(InvalidParameter, match="nobody"):
        model.fit(table[["person", "age"]], table["visits"])


def test_pyarrow_tables_have_units_too():
    pyarrow = pytest.importorskip("pyarrow")
    ids, age, visits = rows()
    table = pyarrow.table({"age": age, "person": list(map(str, ids))})
    model = PrivateLinearRegression(4.0, bounds=(0, 100), target_bounds=(0, 50), unit="person")
    assert model.fit(table, visits).n_features_in_ == 1


def test_a_schema_names_the_unit(tmp_path):
    schema = Schema.from_toml(TOML)
    assert (schema.unit, list(schema.features)) == (Unit("person"), ["age"])
    assert Schema.from_dict(schema.to_dict()) == schema
    ids, age, visits = rows()
    with (tmp_path / "visits.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("age", "person", "visits"), *zip(age, ids, visits, strict=True)])
    table = read_table(tmp_path / "visits.csv", schema)
    model = PrivatePoissonRegressor(4.0, schema=schema).fit(table)
    assert model.certificate_.plan.settings["unit"] == {"column": "person"}
    model.save(tmp_path / "model")
    back = load(tmp_path / "model")
    np.testing.assert_allclose(back.predict(table), model.predict(table))


def test_the_unit_of_the_estimator_comes_before_that_of_the_schema():
    schema = Schema({"age": Numeric(0, 100)}, unit=Unit("household"))
    ids, age, visits = rows()
    model = PrivateLinearRegression(
        schema=schema, unit={"column": "person", "rows": 2}, target_bounds=(0, 50)
    )
    model.fit(age[:, None], visits, people=ids)
    assert model.certificate_.plan.settings["unit"] == {"column": "person", "rows": 2}


def test_declared_rows_cost_nothing_and_learned_ones_are_charged():
    ids, age, visits = rows()
    model = PrivateLinearRegression(4.0, bounds=(0, 100), target_bounds=(0, 50))

    def stages(unit):
        fit = clone(model).set_params(unit=unit).fit(age[:, None], visits, people=ids)
        return [run.name for run in fit.certificate_.ledger.runs]

    assert not any(name.endswith("/rows-of-people") for name in stages(Unit("person", rows=3)))
    assert sum(name.endswith("/rows-of-people") for name in stages("person")) == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"unit": ""}, "unit.column"),
        ({"unit": 7}, "unit.column"),
        ({"unit": {"colum": "person"}}, "unit"),
        ({"unit": {"rows": 2}}, "unit.column"),
        ({"unit": Unit}, "unit.column"),
        ({"unit": "person", "method": "descent", "records": 600}, "method"),
    ],
)
def test_what_is_no_unit_is_refused(change, name):
    ids, age, visits = rows()
    model = PrivateLogisticRegression(4.0, bounds=(0, 100)).set_params(**change)
    with pytest.raises(InvalidParameter) as refused:
        model.fit(age[:, None], visits > 2, people=ids)
    assert refused.value.name == name


@pytest.mark.parametrize("bad", [0, -1, 257, 1.5, float("nan"), True, "3"])
def test_rows_are_a_whole_number(bad):
    with pytest.raises(InvalidParameter, match=r"unit\.rows"):
        Unit("person", rows=bad)


def test_ids_are_needed_and_named():
    ids, age, visits = rows()
    model = PrivateLinearRegression(4.0, bounds=(0, 100), target_bounds=(0, 50), unit="person")
    with pytest.raises(InvalidParameter, match="people=ids"):
        model.fit(age[:, None], visits)
    with pytest.raises(InvalidParameter, match="people"):
        model.fit(age[:, None], visits, people=ids[:-1])
    with pytest.raises(InvalidParameter, match="unit"):
        clone(model).set_params(unit=None).fit(age[:, None], visits, people=ids)
    with pytest.raises(InvalidParameter, match=r"unit\.column"):
        Schema({"age": Numeric(0, 100)}, unit="age")


def test_a_table_in_which_nobody_has_an_id_is_fitted_to_noise():
    _, age, visits = rows()
    model = PrivateLinearRegression(4.0, bounds=(0, 100), target_bounds=(0, 50), unit="person")
    model.fit(age[:, None], visits, people=np.full(len(age), np.nan))
    assert np.isfinite(model.coef_).all()


def test_new_people_come_with_more_records():
    from discreet import Budget
    from discreet.ledger import GaussianFilter, Ledger

    ids, age, visits = rows()
    ledger = Ledger.in_memory(GaussianFilter(Budget(8.0, 1e-5, unit="person")))
    model = PrivateLinearRegression(2.0, bounds=(0, 100), target_bounds=(0, 50), unit="person", ledger=ledger)
    model.fit(age[:, None], visits, people=ids)
    model.fit_more(age[:, None], visits, people=[f"new-{place}" for place in ids])
    assert model.certificate_.guarantee.epsilon.upper <= 8
