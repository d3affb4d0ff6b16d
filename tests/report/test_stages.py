"""Every stage of a fit is told in words: no blank cell in the table of what happened."""

import ast
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import random as random_sparse

import discreet.linear
from discreet import Budget, Certificate, Gaussian, Ledger
from discreet.ledger import GaussianFilter, Till
from discreet.linear import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
)
from discreet.plan import Plan
from discreet.report import Report
from discreet.report.stages import SENTENCES, sentence_for

LINEAR = Path(discreet.linear.__file__).parent
FALLBACK = sentence_for("no such stage", "fit")


def names_in(tree):
    """What a module calls its stages; a number or a suffix that is computed stands for itself as 1."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if called in ("stage", "stage_for") and isinstance(first, ast.Constant | ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "1"
                    for part in (first.values if isinstance(first, ast.JoinedStr) else [first])
                )
            if called == "learned_ranges":
                named = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                for name in [one for one in named if isinstance(one, str)] or ["ranges"]:
                    yield from (name, f"{name}-zoom")


def test_every_stage_of_the_source_has_a_sentence():
    found = {name for path in LINEAR.rglob("*.py") for name in names_in(ast.parse(path.read_text()))}
    found -= {"1-zoom"}  # the name of learned_ranges, which is among the others
    found = {re.sub(r"(whitening|row-norms)1$", r"\1", name) for name in found}  # "" or "-1"
    assert {"counts", "gradients", "inference", "rows-of-people", "target-range-zoom"} <= found
    blank = {name for name in found if sentence_for(name, "fit") == FALLBACK}
    assert not blank, "give these stages a sentence in report/stages.py"
    twin = ast.parse("spending.stage('unheard-of', 0.1); stage_for(f'news-{look}')")
    assert [sentence_for(name, "fit") == FALLBACK for name in names_in(twin)] == [True, True]


def test_numbers_at_the_end_of_a_name_count():
    assert sentence_for("counts-5", "fit") == SENTENCES["counts"]
    assert sentence_for("whitening-1", "fit") == SENTENCES["whitening-1"] != SENTENCES["whitening"]
    assert sentence_for("ann", "a study") == "sums that belong to a study"
    assert all(SENTENCES.values())


BUDGET = {"epsilon": 1.0, "delta": 1e-6}


@pytest.mark.parametrize("records", [60, 3000])
@pytest.mark.parametrize(
    "kind", ["logistic", "linear", "poisson", "curves", "curves of numbers", "sparse", "people"]
)
def test_the_default_paths_leave_no_cell_blank(kind, records):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (records, 3))
    y = x[:, 0] + 0.2 * rng.standard_normal(records)
    model, target = {
        "logistic": (PrivateLogisticRegression(**BUDGET, classes=(0, 1)), (y > 0).astype(int)),
        "linear": (PrivateLinearRegression(**BUDGET, inference=records > 60), y),
        "poisson": (PrivatePoissonRegressor(**BUDGET), rng.poisson(np.exp(x[:, 0]))),
        "curves": (PrivateAdditiveClassifier(**BUDGET, classes=(0, 1), bounds=(-1, 1)), (y > 0).astype(int)),
        "curves of numbers": (PrivateAdditiveRegressor(**BUDGET, bounds=(-1, 1)), y),
        "sparse": (PrivateLogisticRegression(**BUDGET, classes=(0, 1), bounds=(0, 1)), (y > 0).astype(int)),
        "people": (PrivateLinearRegression(**BUDGET, unit="person"), y),
    }[kind]
    rows = random_sparse(records, 30, 0.1, format="csr", random_state=1) if kind == "sparse" else x
    more = {"people": np.arange(records) // 3} if kind == "people" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows, target, **more)
    report = Report(model.certificate_)
    assert report.facts.stages
    for stage in report.facts.stages:
        assert sentence_for(stage.name, "fit") != FALLBACK, stage.name
    assert "<td></td>" not in report.to_html()
    assert "|  |" not in report.to_markdown().split("## What happened")[1].split("##")[0]


def test_runs_of_other_engines_are_told_by_their_plan():
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger:
        plan = Plan.adaptive("a study", GaussianFilter(Budget(1.0, 1e-6)))
        Till.open(ledger, plan).pay(Gaussian(40.0), name="tiny/ann")
        report = Report(Certificate.of(ledger, plan))
    assert [stage.what for stage in report.facts.stages] == ["sums that belong to a study"]
