"""``discreet audit``: a plan as carried out by our engines, and a function of the user's."""

import json

import pytest
from click.testing import CliRunner

from discreet.certificate import Certificate
from discreet.certificate.procedure import rule_of
from discreet.cli import main
from discreet.ledger import Ledger
from discreet.plan import Plan
from discreet.stage import Stage

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
    ledger = Ledger.in_memory(rule_of(plan))
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
    from audit.faults import weaker

    monkeypatch.setattr("discreet.cli.audit_subjects.add_noise", weaker(0.3))
    result = run(tmp_path / "plan.json", *FEW)
    assert result.exit_code == 1
    assert "THE CLAIM IS CONTRADICTED" in result.stdout
    assert "release less its sum: CONTRADICTED" in result.stdout


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
