"""The model of a study in a folder: its digest is computed from the weights, nothing in the folder is believed."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from discreet.adapters.joint_model import JointModel, dimension
from discreet.errors import CertificateRejected, InvalidParameter
from discreet.linear.schema import Schema
from discreet.linear.tables import table_in
from discreet.parties import Study
from discreet.parties.joint import FinalModel

COLUMNS = {
    "age": {"bounds": [18, 100]},
    "ward": {"categories": ["surgery", "medicine"]},
    "again": {"flag": "yes"},
    "days": {"bounds": [0.3, 77.7]},
    "kind": {"categories": ["a", "b", "c"]},
}
TARGETS = {"logistic": "again", "linear": "days", "softmax": "kind"}


def joint_of(target, **changed):
    features = {name: column for name, column in COLUMNS.items() if name in ("age", "ward", target)} | changed
    size = dimension(Schema.from_dict({"columns": features, "target": target}))
    model = {"target": target, "columns": features, "dimension": size}
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


@pytest.fixture(params=TARGETS.values())
def written(request, tmp_path):
    made = joint_of(request.param)
    theta = np.random.default_rng(3).normal(size=made.study.dimension)
    made.write(tmp_path, theta)
    return made, tmp_path, FinalModel(made.study.digest(), "0" * 64, theta).model


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


@pytest.mark.parametrize("model", [{"curves": 4}, {"kind": "additive"}])
def test_curves_belong_to_studies_by_the_recipe(model):
    study = joint_of("again").study
    with pytest.raises(InvalidParameter, match="recipe"):
        JointModel.of(replace(study, model={**study.model, **model}))


def test_the_dimension_follows_from_the_columns():
    study = joint_of("again").study
    with pytest.raises(InvalidParameter, match=r"model.dimension.*follows from columns"):
        JointModel.of(replace(study, model={**study.model, "dimension": 9}))


def test_what_is_trained_is_what_predicts(tmp_path):
    """The rows that a party's sums are made of, against the model that is written."""
    rows = [f"{age},surgery,yes,1.5,b" for age in (18, 30, 100, 140, "", "old")]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["age,ward,again,days,kind", *rows]) + "\n")
    for target in TARGETS.values():
        made = joint_of(target)
        held = made.holder(path)._rows
        theta = np.random.default_rng(3).normal(size=made.study.dimension)
        inner = theta.reshape(1 + held.shape[1], -1)
        cells = table_in(path).whole(made.schema.columns)
        found = made.fitted_model(theta).decision_function(cells).reshape(len(rows), -1)
        found = (found - 0.3) / (77.7 - 0.3) if target == "days" else found
        assert np.allclose(found, held @ inner[1:] + inner[0], atol=1e-5)
