"""A model as an ONNX graph: another program's arithmetic gives the same predictions, to 1e-5."""

import numpy as np
import pandas
import pytest

from discreet import InvalidParameter
from discreet.errors import MissingDependency
from discreet.linear import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    PrivateSVC,
)

COLUMNS = {
    "age": {"bounds": [18, 90], "missing": "flag"},
    "income": {"bounds": [0, 1000], "missing_values": [-9]},
    "region": {"categories": ["north", "south", "Zürich"]},
    "grade": {"categories": [1, 2, 3.5]},
    "smoker": {"flag": "yes"},
    "kind": {"categories": ["a", "b", "c"]},
    "ill": {"flag": 1},
    "cost": {"bounds": [0, 50]},
}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    many = 4000
    table = pandas.DataFrame(
        {
            "age": rng.uniform(10, 100, many),
            "income": rng.exponential(300, many),
            "region": rng.choice(["north", "south", "Zürich", "elsewhere"], many),
            "grade": rng.choice([1.0, 2.0, 3.5, 7.0], many),
            "smoker": rng.choice(["yes", "no"], many),
        }
    )
    score = (table["age"] - 50) / 10 + (table["region"] == "south") + np.sin(table["income"] / 100)
    table["ill"] = (rng.random(many) < 1 / (1 + np.exp(-score))).astype(int)
    table["kind"] = np.where(score > 1, "a", np.where(score > -1, "b", "c"))
    table["cost"] = rng.poisson(np.exp(np.clip(score, -3, 3) / 2))
    table.loc[::7, "age"] = np.nan
    table.loc[::11, "income"] = -9
    return table


def schema(target):
    columns = {name: told for name, told in COLUMNS.items() if name in (*list(COLUMNS)[:5], target)}
    return {"columns": columns, "target": target}


SETTINGS = {"epsilon": 4.0, "delta": 1e-6, "unsafe_seed": 1}
MODELS = {
    "two classes": (PrivateLogisticRegression, "ill", {}),
    "several classes": (PrivateLogisticRegression, "kind", {}),
    "support vectors": (PrivateSVC, "ill", {}),
    "numbers": (PrivateLinearRegression, "cost", {}),
    "counts": (PrivatePoissonRegressor, "cost", {}),
    "curves": (PrivateAdditiveClassifier, "ill", {}),
    "curves and a pair": (PrivateAdditiveRegressor, "cost", {"pairs": [("age", "income")]}),
}


def answers(model, frame):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(
        model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = {one.name: one.type for one in session.get_inputs()}
    cells = {
        name: frame[[name]].to_numpy(str if "string" in kind else np.float64) for name, kind in wanted.items()
    }
    cells = {
        name: values.astype(object) if values.dtype.kind == "U" else values for name, values in cells.items()
    }
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, cells), strict=True))


@pytest.mark.parametrize("kind", MODELS)
def test_another_program_predicts_the_same(frame, kind):
    pytest.importorskip("onnx")
    estimator, target, more = MODELS[kind]
    model = estimator(schema=schema(target), **SETTINGS, **more).fit(frame)
    found = answers(model, frame)
    if target == "cost":
        assert np.abs(found["prediction"][:, 0] - model.predict(frame)).max() < 1e-5
        return
    assert np.abs(found["score"].squeeze() - model.decision_function(frame)).max() < 1e-5
    if hasattr(model, "predict_proba"):
        assert np.abs(found["probabilities"] - model.predict_proba(frame)).max() < 1e-5
    same = found["label"] == model.predict(frame)
    assert same.mean() > 0.9999  # a score next to 0 may round to the other side


def test_a_graph_of_other_weights_would_be_noticed(frame):
    """The broken twin: one coefficient moved by a hundredth."""
    pytest.importorskip("onnx")
    model = PrivateLinearRegression(schema=schema("cost"), **SETTINGS).fit(frame)
    expected = model.predict(frame)
    model._model.coefficients[0] += 0.01
    assert np.abs(answers(model, frame)["prediction"][:, 0] - expected).max() > 1e-3


def test_the_promise_travels_with_the_graph(frame):
    pytest.importorskip("onnx")
    model = PrivateLinearRegression(schema=schema("cost"), **SETTINGS).fit(frame)
    props = {entry.key: entry.value for entry in model.to_onnx().metadata_props}
    assert props == {"promise": model.certificate_.headline, "certificate": model.certificate_.digest()}


def test_what_no_graph_can_say_is_refused(frame):
    pytest.importorskip("onnx")
    told = schema("cost")
    told["columns"] |= {"smoker": {"flag": "yes", "casefold": True}}
    model = PrivateLinearRegression(schema=told, **SETTINGS).fit(frame)
    with pytest.raises(InvalidParameter, match="strip and casefold"):
        model.to_onnx()


def test_without_onnx_the_remedy_is_named(frame, monkeypatch):
    import sys

    model = PrivateLinearRegression(schema=schema("cost"), **SETTINGS).fit(frame)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependency, match=r"discreet\[onnx\]"):
        model.to_onnx()
