"""What to expect of a fit, told before there is a table: ranges that measured fits lie in."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from discreet import InvalidParameter
from discreet.cli import main
from discreet.linear import (
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    Schema,
)
from discreet.linear.preview import Preview

SCHEMA = """
target = "ill"
[columns]
age = { bounds = [0, 100], missing = "flag" }
gains = { learn = true }
job = { categories = ["clerk", "farmer", "pilot"] }
ill = { flag = "yes" }
"""


def made_up(records, seed):
    """Records of five independent columns, of which a model without privacy knows 87 % (size 4)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(records, 5))
    score = 4 * x @ np.full(5, 5**-0.5)
    return np.clip((x + 5) / 10, 0, 1), (rng.random(records) < 1 / (1 + np.exp(-score))).astype(int)


def mean_accuracy(x, y, test, truth, epsilon):
    settings = {"epsilon": epsilon, "delta": 1e-5, "bounds": (0, 1), "classes": (0, 1)}
    fits = [PrivateLogisticRegression(**settings, unsafe_seed=seed).fit(x, y) for seed in range(3)]
    return np.mean([model.score(test, truth) for model in fits])


@pytest.mark.parametrize("records", [300, 3000])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_measured_fits_lie_in_the_range(records, epsilon):
    """Seeded: no chance is involved."""
    x, y = made_up(records, 1)
    test, truth = made_up(20_000, 2)
    best = LogisticRegression().fit(x, y).score(test, truth)
    model = PrivateLogisticRegression(epsilon=epsilon, delta=1e-5)
    low, high = model.preview(records, columns=5, best=best).at(epsilon)
    found = mean_accuracy(x, y, test, truth, epsilon)
    assert low - 0.005 <= found
    assert (
        found <= high + 0.005 or found >= best - 0.005
    )  # private fits are regularised, and can be the better ones


def test_a_rule_that_promised_too_much_would_be_noticed():
    """The broken twin: the range for a hundred times as many records."""
    x, y = made_up(300, 1)
    test, truth = made_up(20_000, 2)
    low, _ = Preview(30_000, 5, 1e-5, best=0.87).at(0.2)
    assert mean_accuracy(x, y, test, truth, 0.2) < low - 0.05


def test_breast_cancer_at_a_small_budget():
    """569 patients, of whom 455 are fitted: overlapping columns, so near the upper end."""
    x, y = load_breast_cancer(return_X_y=True)
    x = x / x.max(0)
    order = np.random.default_rng(0).permutation(len(x))
    own, rest = order[:455], order[455:]
    found = mean_accuracy(x[own], y[own], x[rest], y[rest], 0.5)
    low, high = Preview(455, 30, 1e-5, best=0.975, guess=0.627).at(0.5)
    assert low <= found <= high


def test_more_of_anything_good_is_never_worse():
    base = Preview(2000, 30, 1e-6, best=0.8, guess=0.6)
    for better in (
        Preview(4000, 30, 1e-6, best=0.8, guess=0.6),
        Preview(2000, 20, 1e-6, best=0.8, guess=0.6),
    ):
        assert all(b[1] >= a[1] and b[2] >= a[2] for a, b in zip(base.rows, better.rows, strict=True))
    for place in (1, 2):
        column = [row[place] for row in base.rows]
        assert column == sorted(column)
    assert all(0.5 <= low <= high <= 0.8 for _, low, high in base.rows)
    replaced = Preview(2000, 30, 1e-6, best=0.8, guess=0.6, neighbours="replace-one")
    assert replaced.at(1.0)[0] < base.at(1.0)[0]


def test_the_columns_come_from_the_schema():
    schema = Schema.from_toml(SCHEMA)
    found = PrivateLogisticRegression(epsilon=0.7, delta=1e-6, schema=schema).preview(5000)
    assert (found.columns, found.task, found.best) == (6, "classification", None)
    assert 0.7 in [row[0] for row in found.rows]
    assert PrivateLogisticRegression(epsilon=1.0, delta=1e-6).preview(5000, schema) == Preview(5000, 6, 1e-6)
    counts = PrivateAdditiveRegressor(epsilon=1.0, delta=1e-6, loss="poisson").preview(
        5000, columns=3, best=0.1
    )
    assert (counts.task, counts.score) == ("counts", "D2")


def test_where_even_the_mean_is_unsure_a_regression_may_be_worthless():
    found = PrivateLinearRegression(epsilon=0.1, delta=1e-6).preview(50, columns=3, best=0.5)
    assert found.at(0.1)[0] == -np.inf
    assert "below 0 to" in str(found)
    assert found.to_dict()["expected"][0]["low"] is None


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"records": np.nan}, "records"),
        ({"records": 0}, "records"),
        ({"columns": None}, "columns"),
        ({"best": 0.4}, "best"),
        ({"best": np.nan}, "best"),
        ({"guess": 1.0}, "guess"),
        ({"guess": np.nan}, "guess"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong, name):
    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidParameter) as refused:
        model.preview(**({"records": 1000, "columns": 3} | wrong))
    assert refused.value.name == name


def test_only_the_recipe_has_a_preview():
    with pytest.raises(InvalidParameter, match="has no preview"):
        PrivateLogisticRegression(method="descent").preview(1000, columns=3)


def run(*words):
    return CliRunner().invoke(main, ["fit", *map(str, words)])


@pytest.fixture
def schema_file(tmp_path):
    file = tmp_path / "schema.toml"
    file.write_text(SCHEMA)
    return file


def test_the_command_reads_no_table(schema_file, tmp_path):
    """The table is not there, and nothing is written."""
    words = ["--schema", schema_file, "--epsilon", 1, "--delta", "1e-6", "--preview", "--records", 5000]
    told = run(tmp_path / "nowhere.csv", *words, "--best", 0.8, "--guess", 0.7)
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith("5,000 records, 6 columns after encoding")
    assert told.stdout.endswith("without privacy 0.80, by guessing 0.70\n")
    data = json.loads(run(*words, "--json").stdout)
    assert [row["epsilon"] for row in data["expected"]] == [0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert list(tmp_path.iterdir()) == [schema_file]


def test_what_does_not_go_together_is_refused(schema_file):
    words = ["--schema", schema_file, "--epsilon", 1, "--delta", "1e-6"]
    for more, said in (
        (["--preview"], "--records: must say how many"),
        (["table.csv", "--out", "m", "--records", 5], "--records=5: goes with --preview"),
        (["--out", "m"], "TABLE is missing"),
        (["table.csv"], "--out is missing"),
        (["--preview", "--records", "nan"], "--records"),
    ):
        refused = run(*words, *more)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
