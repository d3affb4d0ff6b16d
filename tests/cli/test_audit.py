"""``discreet audit``: a plan as carried out by our engines, and a function of the user's."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from discreet.adapters.audit_fit import attack
from discreet.adapters.audit_subjects import Estimator, neighbouring_tables
from discreet.certificate import Certificate
from discreet.cli import main
from discreet.events import Gaussian
from discreet.guarantee import Budget
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    PrivateSVC,
)
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage

FEW = ["--pairs", "22", "--draws", "2000", "--canaries", "100", "--runs", "2", "--alpha", "1e-6"]
FEW += ["--confidence", "0.999999"]

FOREIGN = """
import numpy as np
from discreet.audit import Specification, Subject

rng = np.random.default_rng(0)

def clipped(rows):
    rows = np.clip(np.nan_to_num(rows, posinf=0.0, neginf=0.0), -1e100, 1e100)
    norms = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return (rows * np.minimum(1.0, 1.0 / norms)).sum(0)

def subject(noise):
    noisy = lambda rows: clipped(rows) + rng.normal(0, noise, 8)
    return Subject(rng.normal(size=(20, 8)), sums=clipped, noisy=noisy, name="mine"), Specification(1.0, 1.0)

def honest():
    return subject(1.0)

def broken():
    return subject(0.5)

def nothing():
    return 3
"""


def run(*words):
    return CliRunner().invoke(main, ["audit", *map(str, words)])


@pytest.fixture
def plan(tmp_path):
    stage = Stage("descent", "full-batch", 400, 400, steps=30, clip_norm=1.0, noise_multiplier=6.0)
    made = Plan((stage,), delta=1e-5)
    made.save(tmp_path / "plan.json")
    return made


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    (tmp_path / "foreign_training.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)
    return "foreign_training"


def test_a_plan_passes_and_the_answer_serves_the_report(plan, tmp_path):
    result = run(tmp_path / "plan.json", "--json", *FEW)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["passed"]
    assert "nothing contradicts the claim" in data["summary"]
    assert {finding["name"] for finding in data["findings"]} == {
        "release less its sum",
        "sensitivity",
        "noise, with one record more",
        "sampling",
    }
    assert 0 < data["attack"]["lower"] < data["attack"]["claimed"]
    assert data["attack"]["claimed"] == pytest.approx(plan.guarantee.epsilon.upper, rel=1e-3)


def test_a_certificate_is_audited_by_its_plan(plan, tmp_path):
    ledger = Ledger.in_memory(plan.rule)
    ledger.run(plan.event, plan.digest(), name="descent").reserve(1)
    Certificate.of(ledger, plan).save(tmp_path / "certificate.json")
    result = run(tmp_path / "certificate.json", "--canaries", 0, *FEW[:4])
    assert result.exit_code == 0, result.output


def test_the_linear_engine(plan, tmp_path):
    result = run(tmp_path / "plan.json", "--engine", "linear", *FEW)
    assert result.exit_code == 0, result.output
    assert "seen through the noise: as claimed" in result.stdout
    assert "model canaries" in result.stdout


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "random-allocation"])
def test_other_samplings(sampling, tmp_path):
    neighbours = "replace-one" if sampling == "fixed-size" else "add-remove"
    stage = Stage("descent", sampling, 400, 40, steps=30, clip_norm=1.0, noise_multiplier=4.0)
    Plan((stage,), 1e-5, neighbours).save(tmp_path / "plan.json")
    result = run(tmp_path / "plan.json", *FEW, "--canaries", 0)
    assert result.exit_code == 0, result.output
    assert "sampling: as claimed" in result.stdout


def test_an_engine_with_too_little_noise_is_contradicted(plan, tmp_path, monkeypatch):
    from support.audit_faults import weaker

    monkeypatch.setattr("discreet.adapters.audit_subjects.add_noise", weaker(0.3))
    result = run(tmp_path / "plan.json", *FEW)
    assert result.exit_code == 1
    assert "THE CLAIM IS CONTRADICTED" in result.stdout
    assert "release less its sum: CONTRADICTED" in result.stdout


def certificate_of(model, path, targets):
    """A fit to some records, which only its certificate remembers."""
    rows = np.random.default_rng(0).uniform(0, 1, (60, 3))
    model.fit(rows, np.resize(targets, 60))
    model.certificate_.save(path / "certificate.json")
    return path / "certificate.json"


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
def test_a_fit_is_audited_by_fitting_it_again(tmp_path):
    model = PrivatePoissonRegressor(epsilon=2.0, bounds=(0, 1), target_bounds=(0, 9))
    result = run(certificate_of(model, tmp_path, [0, 3]), "--json", *FEW, "--fits", 60)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["summary"].startswith("PrivatePoissonRegressor: 5 detectors, nothing contradicts the claim.")
    assert {finding["name"] for finding in data["findings"]} == {
        "noise of a run",
        "release less its sum",
        "sensitivity",
        "noise, with one record more",
    }
    assert data["attack"]["claimed"] == pytest.approx(2.0)
    assert data["attack"]["lower"] < 2.0
    assert not any("batch" in text for text in data["not_covered"])


SCHEMA = {"columns": {"a": {"learn": True}, "b": {"categories": ["x", "y"]}, "c": {"flag": "yes"}}}


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (
            PrivateLogisticRegression(schema=SCHEMA, classes=("u", "v", "w"), class_weight={"u": 0.5}),
            ["u", "w"],
        ),
        (PrivateLogisticRegression(classes="from-data", row_norm=2.0, neighbours="replace-one"), [0, 1]),
        (PrivateSVC(bounds=([0, 0, 0], 1), arithmetic="hardened"), [0, 1]),
        (PrivateLinearRegression(loss="huber"), [0.0, 1.0]),
    ],
    ids=["schema", "row norm, replace-one", "hardened", "nothing declared"],
)
def test_fits_of_every_kind_have_tables_and_detectors(model, targets, tmp_path):
    certificate = certificate_of(model, tmp_path, targets)
    result = run(certificate, *FEW, "--fits", 0)
    assert result.exit_code == 0, result.output
    estimator = Estimator.of(Certificate.load(certificate))
    for table, labels in neighbouring_tables(estimator):
        assert estimator.make().fit(table, labels).certificate_.guarantee.epsilon.upper <= 1.0


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
def test_a_fit_with_too_little_noise_is_contradicted_by_the_detectors(tmp_path, monkeypatch):
    from support.audit_faults import weaker

    monkeypatch.setattr("discreet.trusted.session.add_noise", weaker(0.3))
    model = PrivateLinearRegression(epsilon=1.0, bounds=(0, 1), target_bounds=(0, 9))
    result = run(certificate_of(model, tmp_path, [0, 3]), *FEW, "--fits", 0)
    assert result.exit_code == 1
    assert "noise of a run: CONTRADICTED" in result.stdout
    assert "release less its sum: CONTRADICTED" in result.stdout


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
def test_a_fit_with_too_little_noise_is_contradicted_by_its_models_alone(tmp_path, monkeypatch):
    """A thirtieth of the noise: models are modest where records are few, so that their scores alone tell little."""
    from support.audit_faults import weaker

    monkeypatch.setattr("discreet.trusted.session.add_noise", weaker(0.03))
    model = PrivateLogisticRegression(epsilon=1.0, bounds=(0, 1))
    certificate = Certificate.load(certificate_of(model, tmp_path, [0, 1]))
    result = attack(Estimator.of(certificate), 60, 0.99, lambda done, total: None)
    assert result.contradicts(certificate.guarantee)


def test_what_cannot_be_fitted_again_is_refused(tmp_path):
    lecture = PrivateLogisticRegression(bounds=(0, 1), method="output-perturbation", records=60)
    result = run(certificate_of(lecture, tmp_path, [0, 1]))
    assert result.exit_code == 2
    assert "only fits by the recipe are audited" in result.stderr
    rule = GaussianFilter(Budget(1.0, 1e-6))
    procedure, ledger = Plan.adaptive("something else", rule), Ledger.in_memory(rule)
    ledger.run(Gaussian(30.0), procedure.digest()).reserve(1)
    Certificate.of(ledger, procedure).save(tmp_path / "other.json")
    result = run(tmp_path / "other.json")
    assert result.exit_code == 2
    assert "--subject" in result.stderr


def test_foreign_code(foreign):
    assert run("--subject", f"{foreign}:honest", *FEW).exit_code == 0
    result = run("--subject", f"{foreign}:broken", "--json", *FEW)
    assert result.exit_code == 1
    assert not json.loads(result.stdout)["passed"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "exactly one of DOCUMENT and --subject"),
        (["--subject", "nowhere:at_all"], "cannot be imported"),
        (["--subject", "foreign_training"], "module:function"),
        (["--subject", "foreign_training:nothing"], "must return a Subject"),
        (["missing.json"], "missing.json"),
        (["--subject", "foreign_training:honest", "--alpha", "nan"], "--alpha=nan"),
        (["--subject", "foreign_training:honest", "--pairs", "0"], "--pairs=0"),
        (["--subject", "foreign_training:honest", "--draws", "nan"], "--draws=nan"),
    ],
)
def test_refusals_are_one_sentence(words, message, foreign):
    result = run(*words)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
