"""A fitted model is audited from its certificate, by a function and by the command on its folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import discreet
from discreet import InvalidParameter
from discreet.adapters.audit_fit import Estimator, FitAudit, _worlds, audit_fit
from discreet.audit import AuditResult
from discreet.cli import main
from discreet.linear import PrivateLogisticRegression
from discreet.linear.glm.people import People

FEW = {"pairs": 5, "draws": 2000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    x = np.linspace(0, 1, 400)[:, None]
    place = tmp_path_factory.mktemp("audited") / "model"
    PrivateLogisticRegression(epsilon=2, delta=1e-5, bounds=(0, 1)).fit(x, x[:, 0] > 0.5).save(place)
    return place


def test_a_fit_is_audited_from_the_certificate_of_a_loaded_model(folder):
    begun, counted = [], []
    found = audit_fit(
        discreet.load(folder).certificate_,
        fits=50,
        **FEW,
        progress=begun.append,
        counted=lambda *n: counted.append(n),
    )
    assert found.passed
    assert isinstance(found.attack, AuditResult)
    assert begun[-1] == "fitted models"
    assert counted
    assert audit_fit(discreet.load(folder).certificate_, fits=0, **FEW).attack is None


def test_an_attack_above_the_claim_contradicts_it(folder):
    """The broken twin: a bound above what is claimed does not pass."""
    found = audit_fit(discreet.load(folder).certificate_, fits=50, **FEW)
    stronger = replace(found.attack, lower=found.attack.claimed * 2)
    assert not FitAudit(found.examination, stronger).passed
    with pytest.raises(InvalidParameter, match="fits=5"):
        audit_fit(discreet.load(folder).certificate_, fits=5)


def test_the_command_takes_the_folder(folder):
    words = ["audit", str(folder), "--fits", "0", "--pairs", "5", "--draws", "2000", "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["passed"]


def test_people_are_the_canaries_where_they_are_the_unit(monkeypatch):
    """The detector is exact: no false alarm; weights that are not capped are found, and nobody honest is accused."""
    rng = np.random.default_rng(0)
    x, ids = rng.uniform(size=(300, 2)), rng.integers(0, 100, 300)
    model = PrivateLogisticRegression(bounds=(0, 1), unit="person").fit(x, x[:, 0] > 0.5, people=ids)

    def findings():
        found = audit_fit(model.certificate_, fits=0, pairs=50, draws=2000).examination.findings
        return {finding.name: finding.passed for finding in found if "sensitivity" in finding.name}

    names = ("sensitivity", "sensitivity, of the weights")
    assert findings() == dict.fromkeys(names, True)
    monkeypatch.setattr(People, "weights", lambda people, least, own=None: np.ones(len(people.codes)))
    assert findings() == {names[0]: True, names[1]: False}


def test_people_are_attacked_with_all_of_their_rows():
    model = PrivateLogisticRegression(bounds=(0, 1), unit="person").fit(
        [[0.5]] * 50, [0, 1] * 25, people=range(50)
    )
    (without, used), _ = _worlds(Estimator.of(model.certificate_))
    assert len(np.unique(without[3])) == len(without[1]) == 20
    people, rows = np.unique(used[3], return_counts=True)
    assert len(people) == 20 + Estimator.of(model.certificate_).group
    assert set(rows[20:]) == {8}
