"""The model of a study in a folder: its digest is computed from the weights, nothing in the folder is believed."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from discreet.adapters.joint_model import Curves, JointModel, dimension
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.model_folder import load
from discreet.linear.schema import Schema
from discreet.linear.tables import table_in
from discreet.parties import Study
from discreet.parties.joint import Ending

COLUMNS = {
    "age": {"bounds": [18, 100]},
    "ward": {"categories": ["surgery", "medicine"]},
    "again": {"flag": "yes"},
    "days": {"bounds": [0.3, 77.7]},
    "kind": {"categories": ["a", "b", "c"]},
}
TARGETS = {"logistic": "again", "linear": "days", "softmax": "kind"}


def joint_of(target, curves=None, **changed):
    features = {name: column for name, column in COLUMNS.items() if name in ("age", "ward", target)} | changed
    size = dimension(Schema.from_dict({"columns": features, "target": target}), curves)
    model = {"target": target, "columns": features, "dimension": size}
    model |= {} if curves is None else {"curves": curves}
    return JointModel.of(
        Study.from_dict(
            {
                "study": {"name": "s", "algorithm": "sgd2"},
                "parties": {"a": 20, "b": 20},
                "privacy": {"epsilon": 1.0, "delta": 1e-4},
                "training": {"clip_norm": 1.0, "rounds": 3},
                "model": {"kind": "linear" if target == "days" else "logistic", **model},
            }
        )
    )


@pytest.fixture(params=[(target, curves) for target in TARGETS.values() for curves in (None, 3)], ids=str)
def written(request, tmp_path):
    made = joint_of(*request.param)
    theta = np.random.default_rng(3).normal(size=made.study.dimension)
    made.write(tmp_path, theta)
    return made, tmp_path, Ending(made.study.digest(), "0" * 64, theta).model


def altered_weights(folder, change):
    """The weights of somebody else, with a model.json that names and shows them."""
    tensors = safetensors.numpy.load_file(folder / "weights.safetensors")
    name = next(name for name in tensors if name.endswith("intercept"))
    tensors[name] = np.asarray(change(tensors[name]))
    content = safetensors.numpy.save(tensors)
    (folder / "weights.safetensors").write_bytes(content)
    rewritten(folder, weights=hashlib.sha256(content).hexdigest(), intercept=None)


def rewritten(folder, **changes):
    text = json.loads((folder / "model.json").read_text())
    for name, value in changes.items():
        if value is None:
            del text[name]
        else:
            text[name] = value(text[name]) if callable(value) else value
    (folder / "model.json").write_text(json.dumps(text))


def test_the_digest_follows_from_the_weights(written):
    made, folder, digest = written
    assert "recomputed" in made.insist_on(folder, digest)
    with pytest.raises(CertificateRejected, match="another model"):
        made.insist_on(folder, "0" * 64)


@pytest.mark.parametrize(
    "alter",
    [
        lambda folder: altered_weights(folder, lambda x: np.nextafter(x, np.inf)),
        lambda folder: rewritten(folder, parameters=lambda x: [x[0] + 1.0, *x[1:]]),
        lambda folder: rewritten(folder, parameters=lambda x: [np.nextafter(x[0], 9.0), *x[1:]]),
        lambda folder: rewritten(folder, parameters=lambda x: x[:-1]),
        lambda folder: rewritten(folder, parameters=lambda x: ["a", *x[1:]]),
        lambda folder: rewritten(folder, parameters=None),
        lambda folder: rewritten(folder, digest="0" * 64),
        lambda folder: (folder / "weights.safetensors").unlink(),
        lambda folder: (folder / "model.json").write_text("{"),
    ],
    ids=["weights", "other", "last bit", "short", "text", "none", "study", "gone", "garbage"],
)
def test_twins_with_anything_altered_are_rejected(written, alter):
    """The hole: the digest in joint.json was compared with nothing."""
    made, folder, digest = written
    alter(folder)
    with pytest.raises(CertificateRejected, match="is rejected"):
        made.insist_on(folder, digest)


# ---- curves ----


def table_of(folder, ages):
    rows = [
        f"{age},{('surgery', 'medicine', 'other')[place % 3]},yes,1.5,b" for place, age in enumerate(ages)
    ]
    (folder / "table.csv").write_text("\n".join(["age,ward,again,days,kind", *rows]) + "\n")
    return folder / "table.csv"


AGES = [18, 18.5, 30, 45.3, 59, 72.6, 99, 100, 140, -5, "", "old"]


@pytest.mark.parametrize("pieces", [2, 5])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_what_is_trained_on_ramps_is_what_predicts_with_curves(target, pieces, tmp_path):
    """The rows that a party's sums are made of, against the model that is written, and a curve worked out by hand."""
    made, path = (
        joint_of(target, pieces, age={"bounds": [18, 100], "missing": "flag"}),
        table_of(tmp_path, AGES),
    )
    rows = made.holder(path)._rows
    theta = np.random.default_rng(pieces).normal(size=made.study.dimension)
    inner = theta.reshape(1 + rows.shape[1], -1)
    trained = rows @ inner[1:] + inner[0]
    cells = table_in(path).whole(made.schema.columns)
    found = made.fitted_model(theta).decision_function(cells).reshape(len(AGES), -1)
    if target == "days":
        found = (found - 0.3) / (77.7 - 0.3)
    assert np.allclose(found, trained, atol=1e-5)
    heights = np.vstack([np.zeros(inner.shape[1]), np.cumsum(inner[1 : 1 + pieces], 0)]) / np.sqrt(pieces)
    for row, age in enumerate(AGES[:10]):
        by_hand = [np.interp(age, np.linspace(18, 100, pieces + 1), one) for one in heights.T]
        ward = rows[row, pieces + 1 :] @ inner[pieces + 2 :]
        assert np.allclose(trained[row], by_hand + ward + inner[0], atol=1e-5)
    for row in (10, 11):
        assert not rows[row, :pieces].any()  # a missing value is on no curve
        assert rows[row, pieces] == 1


@pytest.mark.parametrize("pieces", [2, 64])
def test_ramps_are_no_longer_than_a_line_and_the_diagonal_is_the_line(pieces, tmp_path):
    path = table_of(tmp_path, np.linspace(18, 100, 50))
    ramps = joint_of("again", pieces).holder(path)._rows[:, :pieces]
    line = joint_of("again").holder(path)._rows[:, 0]
    assert (np.square(ramps).sum(1) <= 1 + 1e-6).all()
    assert np.allclose(ramps.sum(1) / np.sqrt(pieces), line, atol=1e-5)


@pytest.mark.parametrize("pieces", [3, 7, 50])
def test_the_ramps_of_a_row_are_the_same_whatever_the_others_are(pieces):
    columns = {f"x{number}": {"bounds": [0, 1]} for number in range(20)} | {"y": {"bounds": [0, 1]}}
    curves = Curves(SchemaEncoding(Schema.from_dict({"columns": columns, "target": "y"})), pieces)
    rows = np.random.default_rng(1).random((203, 20))
    together = curves.ramps(rows)
    for cut in (1, 2, 3, 5, 50, 150, 201):
        assert np.array_equal(curves.ramps(rows[:cut]), together[:cut])
        assert np.array_equal(curves.ramps(rows[cut:]), together[cut:])


@pytest.mark.parametrize("curves", [0, 1, 65, 2.5, True, "4", float("nan"), -3])
def test_curves_have_so_many_pieces_or_are_refused(curves):
    study = joint_of("again", 4).study
    with pytest.raises(InvalidParameter, match="model"):
        JointModel.of(replace(study, model={**study.model, "curves": curves}))


def test_the_dimension_follows_from_the_curves():
    study = joint_of("again", 4).study
    with pytest.raises(InvalidParameter, match=r"model.dimension.*follows from columns"):
        JointModel.of(replace(study, model={**study.model, "curves": 5}))


def test_curves_of_parties_are_shown_and_saved_like_any_others(tmp_path):
    made = joint_of("again", 4)
    made.write(tmp_path, np.arange(made.study.dimension, dtype=float))
    model = load(tmp_path)
    assert list(model.curves_) == ["age", "ward"]
    assert len(model.curves_["age"].at) == 5
    assert model.predict_proba(table_in(table_of(tmp_path, [20, 90])).whole(made.schema.columns)).shape == (
        2,
        2,
    )
