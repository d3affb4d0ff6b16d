"""A missing number counts as the noisy mean of its column: while fitting, predicting, and wherever a model goes."""

import json

import numpy as np
import pandas
import pytest

import discreet
from discreet.linear import PrivateAdditiveClassifier, PrivateLinearRegression, PrivateLogisticRegression
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import MISSING, Records
from discreet.linear.glm.marginals import means_of_present
from discreet.linear.linear_model import LinearModel
from discreet.linear.losses import Squared
from discreet.linear.row_views.coordinates import Marginals, Released

MODELS = [PrivateLogisticRegression, PrivateAdditiveClassifier]
SCHEMA = {
    "columns": {
        "crp": {"bounds": [0, 500]},
        "age": {"bounds": [0, 120], "missing": "flag"},
        "ill": {"categories": ["no", "yes"]},
    },
    "target": "ill",
}


def patients(rows, seed, missing=0.0):
    """A skewed column within bounds that are far too wide, as they are declared for laboratory values."""
    rng = np.random.default_rng(seed)
    crp, age = np.minimum(rng.lognormal(1.5, 1.1, rows), 500), rng.uniform(20, 90, rows)
    risk = 1 / (1 + np.exp(3.0 - 0.02 * crp - 0.01 * (age - 50)))
    ill = np.where(rng.random(rows) < risk, "yes", "no")
    crp[rng.random(rows) < missing] = np.nan
    return pandas.DataFrame({"crp": crp, "age": age, "ill": ill})


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("kind", MODELS)
def test_a_missing_number_leaves_the_mean_risk_where_it_is(kind, missing):
    """With the middle of the bounds, 250, in place of the mean, 8, the linear model's mean risk went from .063 to
    .089 (without missing cells while fitting)."""
    frame = patients(12_000, 0, missing)
    model = kind(epsilon=4.0, delta=1e-6, schema=SCHEMA, unsafe_seed=0).fit(frame)
    fill = 500 * model._encoding.missing[0]
    assert fill == pytest.approx(np.exp(1.5 + 1.1**2 / 2), rel=0.25), "missing cells do not move the mean"
    others = patients(4000, 1)
    whole = model.predict_proba(others)[:, 1].mean()
    gap = model.predict_proba(others.assign(crp=np.nan))[:, 1].mean()
    assert gap == pytest.approx(whole, rel=0.1)
    same = model.predict_proba(others.assign(crp=fill))
    np.testing.assert_allclose(model.predict_proba(others.assign(crp=np.nan)), same, rtol=1e-6)


def test_a_model_with_the_middle_is_caught():
    """The broken twin: the same model with the middle of the bounds for missing numbers."""
    model = PrivateLogisticRegression(epsilon=4.0, delta=1e-6, schema=SCHEMA, unsafe_seed=0).fit(
        patients(12_000, 0)
    )
    others = patients(4000, 1)
    whole = model.predict_proba(others)[:, 1].mean()
    model._encoding.missing = None
    assert model.predict_proba(others.assign(crp=np.nan))[:, 1].mean() > 1.2 * whole


@pytest.mark.parametrize("kind", MODELS)
def test_saved_and_exported_models_fill_alike(kind, tmp_path):
    model = kind(epsilon=4.0, delta=1e-6, schema=SCHEMA, unsafe_seed=0).fit(patients(6000, 0))
    table = patients(50, 1).drop(columns="ill")
    table.loc[::2, "crp"] = np.nan
    table.loc[::3, "age"] = np.nan
    expected = model.predict_proba(table)
    model.save(tmp_path / "model")
    loaded = read(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(table), expected)
    if kind is PrivateLogisticRegression:
        np.testing.assert_allclose(model.to_sklearn().predict_proba(table), expected, rtol=1e-9)
    else:
        row = table.iloc[[0]]
        score = float(model.decision_function(row)[0])
        assert sum(model.explain(row).values()) == pytest.approx(score, abs=1e-5)
    onnx = pytest.importorskip("onnxruntime")
    session = onnx.InferenceSession(model.to_onnx().SerializeToString())
    inputs = {name: table[[name]].to_numpy(np.float64) for name in table}
    shown = next(one for one in session.run(None, inputs) if getattr(one, "shape", ()) == expected.shape)
    np.testing.assert_allclose(shown, expected, rtol=1e-5)


def read(folder):
    from discreet.linear.fitted_model import FittedModel

    return FittedModel.read(folder)


def test_models_of_older_versions_still_load_and_mean_the_middle(tmp_path):
    model = PrivateLogisticRegression(epsilon=4.0, delta=1e-6, schema=SCHEMA, unsafe_seed=0).fit(
        patients(6000, 0)
    )
    model.save(tmp_path / "model")
    text = json.loads((tmp_path / "model" / "model.json").read_text())
    assert list(text["missing"]) == ["crp", "age"]
    del text["missing"]
    (tmp_path / "model" / "model.json").write_text(json.dumps(text))
    old = read(tmp_path / "model")
    gap = pandas.DataFrame({"crp": [np.nan, 250.0], "age": [50.0, 50.0]})
    assert np.ptp(old.predict_proba(gap)[:, 1]) == 0.0
    for wrong in ({"crp": 0.5}, {"crp": 2.0, "age": 0.5}, {"crp": float("nan"), "age": 0.5}, 3):
        text["missing"] = wrong
        (tmp_path / "model" / "model.json").write_text(json.dumps(text))
        with pytest.raises(discreet.InvalidParameter, match=r"is not a model|is not JSON"):
            read(tmp_path / "model")


def test_going_on_fills_as_the_first_fit_did():
    from discreet import Budget
    from discreet.ledger import GaussianFilter, Ledger

    with Ledger.in_memory(GaussianFilter(Budget(8.0, 1e-6))) as ledger:
        known = {"bounds": (0, 100), "target_bounds": (0, 10), "ledger": ledger, "unsafe_seed": 0}
        model = PrivateLinearRegression(epsilon=1.0, delta=1e-6, **known)
        rng = np.random.default_rng(0)
        x = rng.exponential(3.0, (3000, 2))
        y = np.clip(x[:, 0], 0, 10)
        model.fit(x, y)
        first = model._encoding.missing
        model.fit_more(x, y)
        assert model._encoding.missing is first
        assert model._model.missing is first


def test_only_marked_cells_are_filled():
    columns, rows = (
        Columns(2, (1,)),
        np.array([[0.5, 0.5, 1], [MISSING, 0.25, 0], [0.75, MISSING, 1]], np.float32),
    )
    records = Records(Squared(), rows, np.zeros(3), columns)
    before = next(records._store.chunks()).x.copy()
    records.fill_missing(np.array([0.125, 0.0625]))
    filled = next(records._store.chunks()).x
    assert filled.tolist() == [[0.5, 0.5, 1], [0.125, 0.25, 0], [0.75, 0.0625, 1]]
    assert before.tolist() == rows.tolist()


def test_the_mean_of_those_that_are_there():
    """A column of mean .1 of which 40 % are missing has the mean .26 with the middle for these."""
    bins = np.zeros((2, 64))
    bins[:, 4:9] = 1200.0
    bins[0, 32] = 4000.0
    centre = np.array([0.6 * 0.1 + 0.4 * 0.5, 0.1])
    known = Marginals(centre, np.ones(2), np.zeros(2), np.ones(2), Released(bins, np.empty(0), 5.0))
    np.testing.assert_allclose(means_of_present(known, 2, 10_000.0), [0.1, 0.1], atol=1e-9)
    empty = known._replace(
        released=Released(np.where(np.arange(64) == 32, 9990.0, 0.0)[None], np.empty(0), 5.0)
    )
    assert means_of_present(empty._replace(centre=np.array([0.5])), 1, 10_000.0) == pytest.approx(0.5)
    assert LinearModel(
        np.ones(3), np.zeros(()), 1.0, (np.zeros(3), np.ones(3)), missing=np.array([0.1, 0.2])
    ).widen(np.array([0, 2, 3]), 4).missing.tolist() == [0.1, 0.5, 0.2]
