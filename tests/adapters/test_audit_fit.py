"""A fitted model is audited from its certificate, by a function and by the command on its folder."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import discreet
from discreet import InvalidParameter
from discreet.accounting.gaussian import gaussian_mu
from discreet.adapters import audit_subjects
from discreet.adapters.audit_fit import FitAudit, _likelihood, _releases_of, attack, audit_fit, likelihood
from discreet.adapters.audit_subjects import Estimator, neighbouring_tables
from discreet.audit import AuditResult
from discreet.cli import main
from discreet.events import Gaussian
from discreet.linear import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
)
from discreet.linear.gate.column_blocks import ColumnCells
from discreet.linear.gate.people import People
from discreet.linear.gate.private_table import RawColumns
from discreet.linear.recording_spending import Recorded, RecordingSpending, Tape
from discreet.linear.row_views.column_views import PowerCells
from discreet.trusted.queries import Blocks
from discreet.trusted.spending import BudgetAllocator

FEW = {"pairs": 5, "draws": 2000}


@pytest.fixture(autouse=True)
def few_records(request, monkeypatch):
    """Fits are quicker with a small crowd, and what is tested is the same; but not how strong the attack is."""
    if "uses_nearly_all" not in request.node.name:
        monkeypatch.setattr(audit_subjects, "_ORDINARY", 20)
        monkeypatch.setattr(audit_subjects, "_CROWD", 5)


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


@pytest.mark.parametrize("loss", [None, "squared", "poisson"])
def test_canaries_do_not_exceed_the_claim_of_an_additive_fit(loss):
    """False alarms: at most 1e-4, which is what the confidence leaves."""
    x = np.linspace(0, 1, 400)[:, None]
    known = {"epsilon": 4.0, "delta": 1e-5, "bounds": (0, 1)}
    if loss is None:
        model = PrivateAdditiveClassifier(**known).fit(x, x[:, 0] > 0.5)
    else:
        model = PrivateAdditiveRegressor(**known, target_bounds=(0, 2), loss=loss).fit(x, 2 * x[:, 0])
    found = audit_fit(model.certificate_, fits=50, confidence=0.9999, alpha=1e-4, **FEW)
    assert found.passed
    assert found.attack.claimed > 0


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
    monkeypatch.setattr(People, "_weights", lambda people, least, own=None: np.ones(len(people._codes)))
    assert findings() == {names[0]: True, names[1]: False}


def test_people_are_attacked_with_all_of_their_rows():
    model = PrivateLogisticRegression(bounds=(0, 1), unit="person").fit(
        [[0.5]] * 50, [0, 1] * 25, people=range(50)
    )
    without, used = neighbouring_tables(Estimator.of(model.certificate_))
    crowd = 20 + 5
    assert len(np.unique(without[3])) == len(without[1]) == crowd
    people, rows = np.unique(used[3], return_counts=True)
    assert len(people) == crowd + Estimator.of(model.certificate_).group
    assert set(rows[crowd:]) == {8}


def kinds(epsilon):
    x = np.linspace(0, 1, 50)[:, None]
    known = {"epsilon": epsilon, "delta": 1e-5, "bounds": (0, 1)}
    yield PrivateLogisticRegression(**known).fit(x, x[:, 0] > 0.5)
    yield PrivateLinearRegression(**known, target_bounds=(0, 1)).fit(x, x[:, 0])
    yield PrivateAdditiveClassifier(**known).fit(x, x[:, 0] > 0.5)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_what_the_group_adds_uses_nearly_all_that_is_claimed_and_never_more(epsilon):
    """Exact, no chance but the fit's own path: the strength of what the attacker looks for, over all releases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in kinds(epsilon):
            estimator = Estimator.of(model.certificate_)
            worlds, make = neighbouring_tables(estimator), estimator.make
            seen = _releases_of(make(), worlds[1])
            other = _releases_of(make(), worlds[0], seen)
            assert [one.noisy.tolist() for one in seen] == [two.noisy.tolist() for two in other]
            squares = (np.sum((a.total - b.total) ** 2) / a.std**2 for a, b in zip(seen, other, strict=True))
            claimed = estimator.group * gaussian_mu(epsilon, 1e-5)
            assert 0.85 < math.sqrt(sum(squares)) / claimed <= 1 + 1e-9


def strength_of(estimator):
    """What the attacked group adds over all releases of a fit, in units of the noise: what an attack can see."""
    worlds, make = neighbouring_tables(estimator), estimator.make
    seen = _releases_of(make().set_params(unsafe_seed=0), worlds[1])
    other = _releases_of(make().set_params(unsafe_seed=0), worlds[0], seen)
    return math.sqrt(
        sum(np.sum((a.total - b.total) ** 2) / a.std**2 for a, b in zip(seen, other, strict=True))
    )


@pytest.mark.filterwarnings("ignore::discreet.linear.DeclarationWarning")
def test_the_attack_on_people_reaches_beyond_the_claim_if_weights_are_not_capped(monkeypatch):
    """Exact and seeded; ``discreet audit`` turns this strength into a bound on epsilon."""
    model = PrivateLogisticRegression(bounds=(0, 1), unit="person").fit(
        [[0.5]] * 50, [0, 1] * 25, people=range(50)
    )
    estimator = Estimator.of(model.certificate_)
    claimed = estimator.group * gaussian_mu(1.0, 1e-6)
    assert 0.7 < strength_of(estimator) / claimed <= 1 + 1e-9
    monkeypatch.setattr(People, "_weights", lambda people, least, own=None: np.ones(len(people._codes)))
    assert strength_of(estimator) / claimed <= 1 + 1e-9  # the store leaves out such people
    monkeypatch.setattr(People, "_limit", lambda people, weights: weights)
    assert strength_of(estimator) / claimed > 1.2


def test_the_likelihood_is_that_of_the_noise():
    """Against the normal densities, of a release that was made in either world."""
    rng = np.random.default_rng(1)
    without, used = rng.normal(size=(2, 5))
    one = Recorded(without, 0.7, without + 0.7 * rng.normal(size=5))
    expected = np.sum(stats.norm.logpdf(one.noisy, used, 0.7) - stats.norm.logpdf(one.noisy, without, 0.7))
    assert likelihood(one, without, used) == pytest.approx(expected, rel=1e-12)


def test_a_fit_with_too_little_noise_is_caught_by_the_attack(folder, monkeypatch):
    """The broken twin: a quarter of the noise that is paid for, which every guess finds."""
    estimator = Estimator.of(discreet.load(folder).certificate_)
    release = BudgetAllocator._add_noise
    monkeypatch.setattr(
        BudgetAllocator,
        "_add_noise",
        lambda self, total, event: release(self, total, Gaussian(event.noise_multiplier / 4)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = attack(estimator, 50, 0.9, lambda done, total: None)
    assert found.lower > found.claimed


def test_a_fit_whose_sums_are_recorded_is_not_certified_as_private(folder):
    estimator = Estimator.of(discreet.load(folder).certificate_)
    model, world = estimator.make(), neighbouring_tables(estimator)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model._fit_recorded(Tape(), *world)
        plain = estimator.make().fit(*world)
    assert plain.certificate_.trusted
    assert not model.certificate_.trusted
    assert not RecordingSpending(Tape(), estimator.budget).trusted


def test_what_depends_on_the_table_otherwise_gives_it_away(folder):
    """The broken twin: another number of releases in the other world is as good as a name."""
    estimator = Estimator.of(discreet.load(folder).certificate_)
    worlds = neighbouring_tables(estimator)

    class Talkative:
        def _fit_recorded(self, tape, x, y):
            spent = RecordingSpending(tape, estimator.budget)
            for number in range(len(y) % 2 + 1):
                spent.stage(f"count-{number}", 0.1).ask(
                    RawColumns(np.zeros((0, 1))), Blocks((ColumnCells(PowerCells(1), 1, PowerCells.cells),))
                )

    scores = [_likelihood(Talkative, [worlds[0], worlds[0]], world) for world in (0, 1)]
    assert scores == [0.0, 0.0]
    odd = [(worlds[0][0], worlds[0][1][: len(worlds[0][1]) - 1 + world]) for world in (0, 1)]
    assert [_likelihood(Talkative, odd, world) for world in (0, 1)] == [-1e6, 1e6]
