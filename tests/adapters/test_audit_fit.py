"""A fitted model is audited from its certificate, by a function and by the command on its folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import discreet
from discreet import InvalidParameter
from discreet.adapters.audit_fit import FitAudit, audit_fit
from discreet.audit import AuditResult
from discreet.cli import main
from discreet.linear import PrivateLogisticRegression

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
