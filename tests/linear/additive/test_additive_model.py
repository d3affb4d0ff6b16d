"""Additive models in folders: what was fitted is what is loaded, and what was altered is refused."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

import discreet
from discreet import CertificateRejected, InvalidParameter
from discreet.ledger import GaussianFilter
from discreet.linear import PrivateAdditiveClassifier, PrivateAdditiveRegressor, Schema
from discreet.linear.additive.additive_model import additive_model, additive_tensors
from discreet.linear.encoder import SchemaEncoding

COLUMNS = {
    "a": {"bounds": [-2, 3]},
    "b": {"bounds": [0, 1], "missing": "flag"},
    "c": {"categories": ["x", "y", "z"]},
    "d": {"bounds": [0, 1]},
    "target": {"bounds": [-3, 3]},
}
SCHEMA = {"columns": COLUMNS, "target": "target", "pairs": [["a", "d"]]}


@pytest.fixture(scope="module")
def frame():
    rng, n = np.random.default_rng(0), 3000
    table = pd.DataFrame(
        {
            "a": rng.uniform(-2, 3, n),
            "b": rng.random(n),
            "c": rng.choice(["x", "y", "z"], n),
            "d": rng.random(n),
        }
    )
    table.loc[::7, "b"] = np.nan
    table["target"] = np.sin(2 * table.a) + (table.c == "x") + table.d * (table.a > 0) + rng.normal(0, 0.3, n)
    return table


@pytest.fixture(scope="module")
def fitted(frame):
    return PrivateAdditiveRegressor(3.0, schema=SCHEMA, unsafe_seed=1).fit(frame)


@pytest.fixture(scope="module")
def folder(fitted, tmp_path_factory):
    place = tmp_path_factory.mktemp("additive") / "model"
    fitted.save(place)
    return place


HOSTILE = pd.DataFrame(
    {"a": [1e300, -1e300, np.nan, 0.5], "b": [np.nan, 2.0, 0.5, np.inf], "c": ["x", "?", None, "z"], "d": 0.5}
)


def test_the_loaded_model_answers_as_the_fitted_one(fitted, folder, frame):
    loaded = discreet.load(folder)
    for table in (frame, HOSTILE):
        assert loaded.predict(table).tolist() == fitted.predict(table).tolist()
    assert list(loaded.curves_) == ["a", "b", "c", "d", "a × d"]
    assert loaded.certificate_ == fitted.certificate_
    with pytest.raises(InvalidParameter, match="linear models"):
        loaded.to_sklearn()


def test_a_row_is_scored_by_itself(fitted, frame):
    """To the last bit: a matrix product may round otherwise beside others, and a record would move their cells."""
    scores = fitted.predict(frame[:64])
    for count in (1, 2, 3, 5, 17, 63):
        assert fitted.predict(frame[:count]).tolist() == scores[:count].tolist()


def test_predictions_follow_from_model_json_alone(folder, frame):
    """Curves by straight pieces, levels by name, the pair bilinearly."""
    text = json.loads((folder / "model.json").read_text())
    some = frame.head(200)
    scores = np.full(len(some), text["intercept"][0])
    for name in ("a", "b", "d"):
        curve = text["curves"][name]
        adds = np.interp(some[name].fillna(0.5), curve["at"], curve["adds"])
        scores += np.where(some[name].isna(), curve["otherwise"], adds)
    levels = text["curves"]["c"]
    scores += some["c"].map(dict(zip(levels["at"], levels["adds"], strict=True)))
    pair = text["curves"]["a × d"]
    across, up = (np.unique(side) for side in np.transpose(pair["at"]))
    grid = np.reshape(pair["adds"], (len(across), len(up)))
    inner = np.array([np.interp(some["d"], up, row) for row in grid])
    scores += [np.interp(a, across, column) for a, column in zip(some["a"], inner.T, strict=True)]
    assert discreet.load(folder).predict(some) == pytest.approx(np.clip(scores, -3, 3), abs=1e-4)


def test_joined_models_counts_and_classes_are_kept(frame, tmp_path):
    ledger = discreet.Ledger.in_memory(GaussianFilter(discreet.Budget(9.0, 1e-5)))
    joined = (
        PrivateAdditiveRegressor(3.0, schema=SCHEMA, ledger=ledger, unsafe_seed=1).fit(frame).fit_more(frame)
    )
    joined.save(tmp_path / "joined")
    assert discreet.load(tmp_path / "joined").predict(frame).tolist() == joined.predict(frame).tolist()
    counts = PrivateAdditiveRegressor(
        3.0, loss="poisson", bounds=(-2, 3), target_bounds=(0, 5), unsafe_seed=1
    )
    counts.fit(frame[["a", "d"]], np.maximum(frame.target, 0)).save(tmp_path / "counts")
    loaded = discreet.load(tmp_path / "counts")
    assert loaded.task == "counts"
    assert loaded.predict(frame).tolist() == counts.predict(frame[["a", "d"]]).tolist()
    classes = PrivateAdditiveClassifier(3.0, bounds=(-2, 3), classes=(0, 1, 2), unsafe_seed=1)
    classes.fit(frame[["a", "d"]], np.digitize(frame.target, [0, 1])).save(tmp_path / "classes")
    loaded = discreet.load(tmp_path / "classes")
    assert np.array_equal(loaded.predict_proba(frame), classes.predict_proba(frame[["a", "d"]]))


def test_altered_curves_are_refused(folder, tmp_path):
    for place, change in enumerate(
        (
            lambda text: text["curves"]["a"]["adds"].__setitem__(0, 7.0),
            lambda text: text["curves"]["c"]["at"].__setitem__(0, "w"),
            lambda text: text["curves"].pop("d"),
        )
    ):
        other = shutil.copytree(folder, tmp_path / str(place))
        text = json.loads((other / "model.json").read_text())
        change(text)
        (other / "model.json").write_text(json.dumps(text))
        with pytest.raises(CertificateRejected):
            discreet.load(other)
        (other / "certificate.json").unlink()
        with pytest.raises(CertificateRejected):
            discreet.load(other)


DAMAGE = {
    "part.0.coefficients": lambda values: values[:-1],
    "part.0.intercept": lambda values: values * np.nan,
    "part.0.precision": lambda values: values * 0,
    "part.0.curve.0.knots": lambda values: values[::-1],
    "part.0.curve.0.kept": lambda values: values + 1e6,
    "part.0.curve.1.missing": lambda values: values * 0 + 99,
    "part.0.pair.0.columns": lambda values: values * 0,
    "part.0.pair.0.kept": lambda values: values + 0.5,
    "part.0.pair.0.shares": lambda values: values[:-1],
    "histogram.0.counts": lambda values: values[:-1],
    "something": None,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_weights_that_do_not_fit_together_are_refused(fitted, name):
    tensors = additive_tensors(fitted._model)
    columns = SchemaEncoding(Schema.from_dict(SCHEMA)).columns
    restored = additive_model(safetensors.numpy.load(safetensors.numpy.save(tensors)), columns, ())
    assert restored.coefficients.tolist() == fitted._model.coefficients.tolist()
    change = DAMAGE[name] or (lambda values: values)
    tensors[name] = np.ascontiguousarray(change(tensors.get(name, np.zeros(1))))
    with pytest.raises(ValueError, match=r".+"):
        additive_model(tensors, columns, ())


def test_an_empty_column_is_left_out(frame):
    """A column in which nothing is a number says nothing, whatever is given later."""
    model = PrivateAdditiveRegressor(3.0, schema=SCHEMA | {"pairs": []}, unsafe_seed=1)
    model.fit(frame.assign(d="none of this is a number"))
    assert model.diagnosis_.empty == ("d",)
    assert not model.curves_["d"].adds.any()
    assert model.predict(frame.assign(d=0.1)).tolist() == model.predict(frame.assign(d=0.9)).tolist()


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ("a,d", "must be a list of pairs"),
        ([["a"]], "must be a list of pairs"),
        ([["a", "a"]], "two different numeric columns"),
        ([["a", "c"]], "two different numeric columns"),
        ([["a", "target"]], "not the target"),
        ([["a", 3]], "two different numeric columns"),
        ([["a", "d"], ["d", "a"]], "must not hold a pair twice"),
    ],
)
def test_bad_pairs_in_a_schema_get_their_sentence(pairs, says):
    with pytest.raises(InvalidParameter, match=says):
        Schema.from_dict(SCHEMA | {"pairs": pairs})


def test_a_schema_keeps_its_pairs():
    schema = Schema.from_dict(SCHEMA)
    assert schema.pairs == (("a", "d"),)
    assert Schema.from_dict(schema.to_dict()) == schema
    assert schema.with_bounds({"a": (0.0, 1.0)}).pairs == schema.pairs
