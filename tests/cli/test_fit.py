"""fit, predict, verify, ledger: a private model from a file to a file, and nothing private in between."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from discreet import Budget, Certificate
from discreet.certificate import new_signing_key
from discreet.certificate.signatures import public_key_of
from discreet.cli import main
from discreet.cli.fitting import estimator_for, fit_and_note, read_schema, task_of
from discreet.cli.watching import Spent
from discreet.ledger import Anchor, GaussianFilter, Ledger, Till
from discreet.linear.fitted_model import FittedModel
from discreet.linear.tables import table_in

SCHEMA = """
target = "income"
[columns]
age = { bounds = [17, 90] }
hours = { learn = true, missing = "flag" }
job = { categories = ["clerk", "farmer"] }
smoker = { flag = "yes" }
income = { categories = ["low", "middle", "high"] }
spend = { bounds = [0, 100] }
visits = { bounds = [0, 20] }
"""
BUDGET = ["--epsilon", "1", "--delta", "1e-6"]
ROWS = 3000


def run(*words, **extra):
    return CliRunner().invoke(main, list(map(str, words)), **extra)


def done(*words, **extra):
    result = run(*words, "--json", **extra)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(7)
    age, hours = rng.uniform(17, 90, ROWS).round(1), rng.uniform(0, 60, ROWS).round()
    job, smoker = rng.choice(["clerk", "farmer", "pilot"], ROWS), rng.choice(["yes", "no"], ROWS)
    score = (age - 50) / 10 + 2 * (job == "farmer") - (smoker == "yes")
    income = np.select([score < -1.5, score < 1.5], ["low", "middle"], "high")
    data = {"id": np.arange(ROWS), "age": age, "job": job, "hours": hours, "smoker": smoker, "income": income}
    data |= {"spend": (50 + 8 * score).round(2), "visits": rng.poisson(np.exp(score / 6))}
    return pd.DataFrame(data)


@pytest.fixture(scope="module")
def place(tmp_path_factory, frame):
    folder = tmp_path_factory.mktemp("fit")
    frame.to_csv(folder / "table.csv", index=False)
    frame.to_parquet(folder / "table.parquet")
    (folder / "schema.toml").write_text(SCHEMA)
    answer = done(
        "fit", folder / "table.csv", "--schema", folder / "schema.toml", *BUDGET, "--out", folder / "model"
    )
    (folder / "answer.json").write_text(json.dumps(answer))
    return folder


def unvouched(*words):
    """The answer about a certificate that nobody vouches for."""
    result = run(*words, "--json")
    assert result.exit_code == 3, result.output
    answer = json.loads(result.stdout)
    assert (answer["outcome"], answer["accepted"]) == ("consistent", False)
    return answer


def fit(place, *words):
    return ["fit", place / "table.csv", "--schema", place / "schema.toml", *BUDGET, *words]


def test_a_fit_writes_weights_text_and_a_certificate_that_says_so(place):
    answer, model = json.loads((place / "answer.json").read_text()), place / "model"
    assert sorted(file.name for file in model.iterdir()) == sorted(answer["files"])
    certificate = Certificate.load(model / "certificate.json")
    assert answer["certificate"] == certificate.digest()
    assert certificate.verify().guarantee.within(Budget(1.0, 1e-6))
    assert answer["epsilon"]["upper"] == 1.0
    assert 0.9999e-6 < answer["delta"] <= 1e-6  # what discrete noise may add is kept back
    text = json.loads((model / "model.json").read_text())
    assert text["classes"] == ["high", "low", "middle"]
    assert list(text["curves"]) == ["age", "hours", "job", "smoker", "spend", "visits"]
    assert answer["chosen"].startswith(("curves of at most", "lines: there are too few records"))
    assert 'class="chart curve"' in (model / "report.html").read_text()
    assert sum(stage["share"] for stage in answer["spending"]) == pytest.approx(1, rel=1e-5)
    assert [stage["stage"] for stage in answer["spending"]][:2] == ["counts", "ranges"]
    assert text["spending"] == answer["spending"]


def test_the_report_says_that_scores_are_undecided(place, tmp_path):
    """With next to no budget the scores are constant, or could be chance; with one that does, nothing is said."""
    said = ("all scores are the same", "chance could explain all")
    done(*fit(place, "--out", tmp_path / "m")[:-2], "--epsilon", "0.001", "--out", tmp_path / "m")
    page = (tmp_path / "m" / "report.html").read_text()
    assert any(words in page for words in said)
    page = (place / "model" / "report.html").read_text()
    assert not any(words in page for words in said)


def test_the_model_has_learnt_something(place, frame):
    result = run("predict", place / "model", place / "table.csv")
    numbered = [line.split(",") for line in result.stdout.split()[1:]]
    assert [int(row) for row, _ in numbered] == list(range(1, len(frame) + 1))
    labels = np.array([label for _, label in numbered])
    assert np.mean(labels == frame["income"]) > 0.5  # a guess gets 0.4; three columns say it all


TASKS = {"income": None, "smoker": None, "spend": None, "visits": "counts"}


@pytest.mark.parametrize("family", ["auto", "linear"])
@pytest.mark.parametrize("target", TASKS)
def test_the_folder_answers_as_the_librarys_estimator_does(place, frame, tmp_path, target, family):
    schema = read_schema(place / "schema.toml", target)
    task = task_of(schema, TASKS[target])
    ours = estimator_for(task, schema, family, epsilon=5.0, delta=1e-6, unsafe_seed=3)
    assert fit_and_note(ours, table_in(place / "table.csv").whole(schema.columns)) == []
    theirs = estimator_for(task, schema, family, epsilon=5.0, delta=1e-6, unsafe_seed=3)
    theirs.fit(frame, frame[target] == "yes" if target == "smoker" else frame[target])
    assert ours._scores(frame) == pytest.approx(theirs._scores(frame), rel=1e-6)
    FittedModel.of(ours).write(tmp_path, {"note": "more"})
    loaded = FittedModel.read(tmp_path)
    assert loaded.predict(frame).tolist() == ours.predict(frame).tolist()
    if task == "classification":
        assert np.array_equal(loaded.predict_proba(frame), ours.predict_proba(frame))


def test_a_pattern_names_the_files_of_one_table(place, frame, tmp_path):
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 3)):
        frame.iloc[rows].to_parquet(tmp_path / f"part-{number}.parquet", index=False)
    pattern, model = tmp_path / "part-*.parquet", tmp_path / "m"
    fitted = done("fit", pattern, "--schema", place / "schema.toml", *BUDGET, "--out", model)
    assert fitted["estimator"] == json.loads((place / "answer.json").read_text())["estimator"]
    for table, out in ((pattern, "parts.parquet"), (place / "table.parquet", "whole.parquet")):
        done("predict", model, table, "--out", tmp_path / out, "--keep", "id")
    parts, whole = (pd.read_parquet(tmp_path / out) for out in ("parts.parquet", "whole.parquet"))
    assert parts["id"].tolist() == list(range(ROWS))
    assert parts.equals(whole)
    assert "is a folder; name its files" in run("predict", model, tmp_path).stderr


def test_a_fit_of_parquet_and_of_other_tasks(place, tmp_path, monkeypatch):
    words = [
        "fit",
        place / "table.parquet",
        "--schema",
        place / "schema.toml",
        *BUDGET,
        "--arithmetic",
        "hardened",
    ]
    answer = done(*words, "--target", "visits", "--task", "counts", "--out", tmp_path / "m")
    assert (answer["task"], answer["estimator"]) == ("counts", "PrivateAdditiveRegressor")
    predictions = tmp_path / "p.parquet"
    done("predict", tmp_path / "m", place / "table.parquet", "--out", predictions, "--keep", "id,job")
    written = pd.read_parquet(predictions)
    assert list(written.columns) == ["id", "job", "prediction"]
    assert written["id"].tolist() == list(range(ROWS))
    assert written["prediction"].between(0, 20).all()
    monkeypatch.setattr("discreet.linear.parquet.ROWS", 1000)
    done(
        "predict",
        tmp_path / "m",
        place / "table.parquet",
        "--out",
        tmp_path / "q.parquet",
        "--keep",
        "id,job",
    )
    assert pd.read_parquet(tmp_path / "q.parquet").equals(written)
    table, out = tmp_path / "t.csv", tmp_path / "none.parquet"
    table.write_text((place / "table.csv").read_text().splitlines()[0] + "\n")
    done("predict", tmp_path / "m", table, "--out", out)
    assert pd.read_parquet(out).columns.tolist() == ["row", "prediction"]
    assert run("predict", tmp_path / "m", table).stdout == "row,prediction\n"
    assert "--probabilities: are of classes" in run("predict", tmp_path / "m", "x", "--probabilities").stderr
    assert unvouched("verify", tmp_path / "m")["model"]


def test_lines_are_fitted_when_they_are_asked_for(place, tmp_path):
    answer = done(*fit(place, "--model", "linear", "--out", tmp_path / "m"))
    assert (answer["estimator"], answer["chosen"]) == ("PrivateLogisticRegression", "lines, as asked for")
    text = json.loads((tmp_path / "m" / "model.json").read_text())
    assert set(text["coefficients"]) >= {"age", "hours", "job=clerk", "smoker", "hours=missing", "spend"}
    assert 'class="chart curve"' not in (tmp_path / "m" / "report.html").read_text()


def test_effects_and_their_errors_are_told(place, tmp_path):
    line = fit(place, "--target", "smoker", "--model", "linear")
    text = run(*line, "--out", tmp_path / "m").stdout
    assert "largest effects on log odds" in text
    assert text.count("per unit of") >= 2
    answer = done(*line, "--inference", "--out", tmp_path / "n")
    assert {"resolved", "lower", "against"} <= set(answer["summary"][0])
    assert answer["coefficients"][0]["name"] == "intercept"
    assert "inference" in [stage["stage"] for stage in answer["spending"]]
    assert "std err" in run(*line, "--inference", "--out", tmp_path / "o").stdout
    text = run(*fit(place, "--target", "smoker", "--out", tmp_path / "c")).stdout
    assert re.search(r"largest effects on the score +from +to\n", text)
    assert re.search(r"\nage +[-+][.\de-]+ +at [.\d]+ +[-+]", text)
    curves = run(*fit(place, "--target", "smoker", "--inference", "--out", tmp_path / "p"))
    assert "--inference: is for models with coefficients: add --model linear." in curves.stderr
    classes = run(*fit(place, "--model", "linear", "--inference", "--out", tmp_path / "q"))
    assert "two classes" in classes.stderr
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("more", [("--model", "linear"), ("--epsilon", "8")])  # where noise does not choose
def test_neighbouring_tables_look_alike(more, place, tmp_path):
    lines = (place / "table.csv").read_text().splitlines()
    without, other = lines[:1] + lines[2:], [lines[0], 'Jane,"\x00,nonsense,,,9999999', *lines[2:]]
    looks = set()
    for number, content in enumerate([lines, without, other]):
        table, out = tmp_path / "t.csv", tmp_path / "m"
        table.write_text("\n".join(content) + "\n")
        result = run("fit", table, "--schema", place / "schema.toml", *BUDGET, *more, "--out", out)
        text = (out / "model.json").read_text() + (out / "certificate.json").read_text()
        assert "Jane" not in result.output + text
        assert str(ROWS) not in result.output + re.sub(r"\d+\.\d+|[0-9a-f]{16,}", "", text), number
        said = re.sub(r"largest effects.*?\n\n", "", result.stdout, flags=re.DOTALL)  # which noise sorts
        looks.add(re.sub(r"[-\d.e%]+[0-9a-f-]*", "#", said + "/" + result.stderr))
        shutil.rmtree(out)
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--epsilon", "nan"], "--epsilon=nan: must be"),
        (["--delta", "0"], "--delta=0"),
        (["--delta", "nan"], "--delta=nan: must be"),
        (
            ["--delta", "0.001"],
            "--delta=0.001: must be a finite number at least 1e-300 and below 0.001. It is a chance",
        ),
        (["--delta", "0.5"], "and below 0.001."),
        (["--delta", "1"], "--delta=1: must be"),
        (["--epsilon", "1e-7"], "--epsilon=1e-07: must be a finite number at least 1e-06 and at most 1e+06"),
        (["--epsilon", "1e7"], "--epsilon=10000000.0: must be"),
        (["--target", "size"], "--target=size: must be a column of the schema"),
        (
            ["--target", "spend", "--task", "classification"],
            "--task=classification: does not go with the target 'spend'",
        ),
        (["--task", "counts"], "--task=counts: does not go"),
        (["--name", "a b"], "--name=a b: must be 1 to 40"),
        (["--neighbours", "both"], "'--neighbours'"),
    ],
)
def test_fit_refuses_parameters(place, tmp_path, words, says):
    result = run(*fit(place, "--out", tmp_path / "m"), *words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_ledger_is_a_missing_file(place, tmp_path):
    """The same status and code everywhere; a new one is a remedy only for what could use it."""
    none = tmp_path / "none.sqlite"
    begun = run(*fit(place, "--out", tmp_path / "m"), "--ledger", none)
    others = [
        run("verify", place / "model", "--ledger", none),
        run("ledger", "show", none),
        run("ledger", "anchor", none),
        run("studio", "--no-browser", "--ledger", none),
    ]
    assert begun.stderr == (
        f"error[file]: {none}: there is no such ledger; begin one: discreet ledger new {none} --epsilon 3 "
        "--delta 1e-6.\n"
    )
    assert {other.stderr for other in others} == {f"error[file]: {none}: there is no such ledger.\n"}
    assert {other.exit_code for other in (begun, *others)} == {1}
    assert list(tmp_path.iterdir()) == []
    for no_ledger in (place / "table.csv", place):
        result = run("ledger", "show", no_ledger)
        assert (result.exit_code, "is not a ledger" in result.stderr, "key" in result.stderr) == (
            1,
            True,
            False,
        )


def test_fit_refuses_files(place, tmp_path):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(bytes(range(256)) * 8)
    before = list(tmp_path.iterdir())
    schema, table, out = place / "schema.toml", place / "table.csv", tmp_path / "m"
    cases = [
        (table, schema, place / "model", 2, "--out=", "never replaced"),
        (table, schema, table / "m", 1, "error[file]", "Not a directory"),
        (tmp_path / "none.csv", schema, out, 1, "error[file]", "No such file"),
        (tmp_path, schema, out, 2, "TABLE=", "is a folder; name its files by a pattern"),
        (garbage, schema, out, 2, "TABLE=", "has no column 'age'"),
        (table, garbage, out, 2, "--schema=", "is not TOML"),
        (table, table, out, 2, "--schema=", "is not TOML"),
        (table, tmp_path / "none.toml", out, 1, "error[file]", "No such file"),
    ]
    for table_file, schema_file, folder, status, *says in cases:
        result = run("fit", table_file, "--schema", schema_file, *BUDGET, "--out", folder)
        assert result.exit_code == status, result.output
        assert all(words in result.stderr for words in says), result.stderr
        assert result.stderr.count("\n") == 1
        assert "clerk" not in result.stderr
    assert list(tmp_path.iterdir()) == before


def test_chunks_lines_and_kept_columns(place, tmp_path, monkeypatch):
    table, out = tmp_path / "t.csv", tmp_path / "p.csv"
    lines = (place / "table.csv").read_text().splitlines()[:200]
    table.write_text("\n".join([*lines, "broken", "", '"broken']) + "\n")
    whole = run("predict", place / "model", table, "--keep", "id,job").stdout
    assert whole.splitlines()[1].startswith("0,")
    assert len(whole.splitlines()) == 1 + 199 + 2
    monkeypatch.setattr("discreet.linear.csv_records.CHUNK", 300)
    assert (
        run("predict", place / "model", table, "--keep", "id,job", "--out", out).stdout
        == f"written to {out}\n"
    )
    assert out.read_text() == whole
    assert "exists" in run("predict", place / "model", table, "--out", out).stderr
    assert run("predict", place / "model", table, "--out", out, "--overwrite").exit_code == 0


def test_predict_refuses(place, tmp_path):
    model, table = tmp_path / "m", place / "table.csv"
    assert run("predict", model, table).exit_code == 1
    assert "has no column 'colour'" in run("predict", place / "model", table, "--keep", "colour").stderr
    (tmp_path / "t.csv").write_text("a,b\nJane,2\n")
    wrong = run("predict", place / "model", tmp_path / "t.csv")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "TABLE=" in wrong.stderr
    assert "Jane" not in wrong.stderr
    assert "Not a directory" in run("predict", place / "model", table, "--out", table / "p.csv").stderr
    shutil.copytree(place / "model", model)
    content = (model / "weights.safetensors").read_bytes()
    (model / "weights.safetensors").write_bytes(content[:-8] + bytes(8))
    assert "is not the file that the certificate is for" in run("predict", model, table).stderr
    (model / "weights.safetensors").write_bytes(content)
    (model / "certificate.json").unlink()
    text = json.loads((model / "model.json").read_text())
    for change in ({"task": "magic"}, {"schema": {}}, {"classes": ["a", "b"]}, {"format": 2}, {"classes": 3}):
        (model / "model.json").write_text(json.dumps(text | change))
        result = run("predict", model, table)
        assert (result.exit_code, "is not a" in result.stderr) == (2, True), result.output
    (model / "model.json").write_bytes(bytes(range(256)))
    assert run("predict", model, table).exit_code == 2


def test_verify_recomputes_or_rejects(place, tmp_path):
    file = place / "model" / "certificate.json"
    answer = unvouched("verify", file)
    verification = Certificate.load(file).verify()
    assert answer["findings"] == list(verification.findings)
    assert answer["findings"][-2] == "claimed: it is for the files model.json, weights.safetensors"
    assert answer["epsilon"] == verification.guarantee.epsilon._asdict()
    *_, files, whole = unvouched("verify", place / "model")["findings"]
    assert files == "computed: the files in model are those that it names"
    assert whole == "computed: weights, coefficients and model.json agree"
    said = run("verify", place / "model").stdout
    assert said.startswith(f"{file}: consistent; nobody vouches for it\n  claimed: procedure ")
    key = new_signing_key(tmp_path / "key")
    signed = done(*fit(place, "--out", tmp_path / "m", "--sign-with", tmp_path / "key"))
    assert signed["signed_by"] == [public_key_of(key)]
    assert done("verify", tmp_path / "m", "--signed-by", public_key_of(key))["accepted"]
    no_key = run(*fit(place, "--out", tmp_path / "n", "--sign-with", file))
    assert (no_key.exit_code, f"--sign-with={file}"[:60] in no_key.stderr) == (2, True)
    altered = tmp_path / "altered.json"
    altered.write_text(file.read_text().replace('"delta": 1e-06', '"delta": 1e-07', 1))
    garbage = tmp_path / "garbage"
    garbage.write_bytes(bytes(range(256)))
    (tmp_path / "empty.json").write_text("{}")
    for words in ([file, "--signed-by", public_key_of(key)], [altered], [garbage], [tmp_path / "empty.json"]):
        result = run("verify", *words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error[certificate-rejected]: ")
        assert "rejected: it" in result.stderr
        assert result.stderr.count("\n") == 1
    private = run("verify", place / "table.csv")
    assert (private.exit_code, "clerk" in private.stderr) == (1, False)
    assert run("verify", tmp_path / "none").stderr.startswith("error[file]: ")


def test_two_fits_share_a_ledger_and_a_third_is_refused(place, tmp_path):
    ledger, anchor = tmp_path / "l.sqlite", tmp_path / "anchor.json"
    made = done("ledger", "new", ledger, "--epsilon", "1.5", "--delta", "1e-6")
    assert (made["key"], (tmp_path / "l.sqlite.key").stat().st_mode & 0o777) == (f"{ledger}.key", 0o600)
    empty = done("ledger", "show", ledger)
    assert (empty["spent"], empty["runs"], empty["remaining"]["delta"]) == (0, [], 1e-6)
    assert empty["remaining"]["epsilon"] == 1.5
    assert "one more fit of epsilon 1.5 at delta 1e-06 fits" in run("ledger", "show", ledger).stdout
    done(*fit(place, "--out", tmp_path / "m1", "--ledger", ledger, "--name", "first"))
    anchor.write_text(run("ledger", "anchor", ledger).stdout)
    shown = done("ledger", "show", ledger, "--anchor", anchor)
    assert all(
        run["name"].startswith("first:") and run["reserved"] == run["planned"] for run in shown["runs"]
    )
    assert sum(run["share"] for run in shown["runs"]) == pytest.approx(shown["spent"])
    with Ledger.open(ledger) as book:
        price = GaussianFilter(Budget(1.0, 1e-6)).limits()[0] / book.rule.limits()[0]
        assert shown["spent"] == pytest.approx(float(price), rel=1e-5)
        assert Anchor.from_json(anchor.read_text()) == book.anchor()
        assert run("ledger", "entries", ledger).stdout.splitlines() == book.entries()
    listed = run("ledger", "show", ledger).stdout
    assert listed.count("first:") == 1  # its stages share a line
    # all that remains can be spent, and no more
    epsilon = float(f"{shown['remaining']['epsilon'] * (1 - 1e-4):.6g}")
    words = fit(place, "--out", tmp_path / "m2", "--ledger", ledger)
    refused = run(*words, "--epsilon", epsilon * 1.001)
    assert (refused.exit_code, (tmp_path / "m2").exists()) == (1, False)
    assert refused.stderr.startswith("error[budget-exceeded]: The ledger has no room for another fit")
    assert done("ledger", "show", ledger)["spent"] == shown["spent"]
    done(*words, "--epsilon", epsilon)
    assert done("ledger", "show", ledger)["spent"] == pytest.approx(1, abs=1e-3)
    findings = done("verify", tmp_path / "m1", "--ledger", ledger)["findings"]
    assert any("the ledger went on by" in finding for finding in findings)
    entries = tmp_path / "entries"
    entries.write_text(run("ledger", "entries", ledger).stdout)
    # Anybody can write entries: they are compared, and vouch for nothing.
    copied = run("verify", tmp_path / "m2", "--entries", entries, "--json")
    assert copied.exit_code == 3
    assert json.loads(copied.stdout)["outcome"] == "consistent"
    other = run("verify", place / "model", "--ledger", ledger)
    assert (other.exit_code, "the ledger says something else" in other.stderr) == (1, True)


def test_a_ledger_that_was_rolled_back_altered_or_lost_its_key(tmp_path):
    ledger, anchor, key = tmp_path / "l.sqlite", tmp_path / "a.json", tmp_path / "l.sqlite.key"
    done("ledger", "new", ledger, "--epsilon", "1", "--delta", "1e-6")
    anchor.write_text(json.dumps({"sequence": 7, "hash": "0" * 64}))
    rolled = run("ledger", "show", ledger, "--anchor", anchor)
    assert (rolled.exit_code, rolled.stderr.startswith("error[ledger-corrupted]")) == (1, True)
    anchor.write_text("secret")
    assert f"--anchor={anchor}: is not JSON"[:70] in run("ledger", "show", ledger, "--anchor", anchor).stderr
    key.chmod(0o644)
    assert "chmod 600" in run("ledger", "show", ledger).stderr
    key.unlink()
    assert "restore the key file, or give its place with --key=" in run("ledger", "show", ledger).stderr
    again = run("ledger", "new", ledger, "--epsilon", "1", "--delta", "1e-6")
    assert (again.exit_code, key.exists()) == (2, False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--delta", "1e-6"], "--epsilon: is needed"),
        (["--epsilon", "1"], "--delta: is needed"),
        (["--epsilon", "nan", "--delta", "1e-6"], "--epsilon=nan"),
        (["--epsilon", "1", "--delta", "0"], "--delta=0"),
        (["--epsilon", "1", "--delta", "0.01"], "and below 0.001."),
        (
            ["--epsilon", "1", "--delta", "1e-6", "--rule", "fixed-plan"],
            "--plan: is needed for --rule fixed-plan",
        ),
        (["--epsilon", "1", "--delta", "1e-6", "--group-size", "x"], "--group-size=x: must be a number"),
    ],
)
def test_a_new_ledger_needs_a_budget(tmp_path, words, says):
    result = run("ledger", "new", tmp_path / "l.sqlite", *words)
    assert (result.exit_code, says in result.stderr, list(tmp_path.iterdir())) == (2, True, []), result.stderr


def test_a_ledger_where_none_can_be(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 20)
    result = run("ledger", "new", file / "l.sqlite", "--epsilon", "1", "--delta", "1e-6")
    assert (result.exit_code, result.stderr.startswith("error[ledger-unavailable]")) == (1, True)
    (tmp_path / "file.key").write_text("0" * 64)
    (tmp_path / "file.key").chmod(0o600)
    result = run("ledger", "show", file)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    words = ["--epsilon", "1", "--delta", "1e-6", "--key", tmp_path]
    for result in (run("ledger", "new", tmp_path / "l", *words), run("ledger", "show", file, *words[4:])):
        assert "Errno" not in result.stderr
    assert "is a folder; name the key file" in run("ledger", "new", tmp_path / "l", *words).stderr


AFTERWARDS = """
import atexit, os, signal
import discreet.cli.fitting as fitting
whole = fitting.write_model
def write_model(*parts):
    files = whole(*parts)
    os.kill(os.getpid(), signal.SIGINT)
    return files
fitting.write_model = write_model
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
from discreet.cli import main
main()
"""


def test_ctrl_c_after_the_model_is_written_changes_nothing(place, tmp_path):
    words = list(map(str, fit(place, "--out", tmp_path / "m", "--json")))
    result = subprocess.run(
        [sys.executable, "-c", AFTERWARDS, *words], capture_output=True, text=True, timeout=300
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["out"] == str(tmp_path / "m")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m"]


def test_ctrl_c_while_the_command_line_is_imported():
    code = "import sys, types\nsys.modules['click'] = Stop = types.ModuleType('click')\n"
    code += "def stop(name): raise KeyboardInterrupt\nStop.__getattr__ = stop\nimport discreet.cli"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (
        130,
        "error[interrupted]: Stopped by Ctrl-C before anything began.\n",
    )


STOPPED = """
import os, signal
from discreet.trusted.spending import StagePermit
whole = StagePermit.ask
def ask(stage, rows, query):
    if stage.name == "gradients" and stage._left[stage.name] == stage.steps // 2:
        os.kill(os.getpid(), signal.SIGINT)
    return whole(stage, rows, query)
StagePermit.ask = ask
from discreet.cli import main
main()
"""


def test_ctrl_c_in_the_middle_of_a_fit_loses_nothing(place, tmp_path):
    ledger = tmp_path / "l.sqlite"
    done("ledger", "new", ledger, "--epsilon", "3", "--delta", "1e-6")
    words = list(map(str, fit(place, "--out", tmp_path / "m", "--ledger", ledger)))
    result = subprocess.run(
        [sys.executable, "-c", STOPPED, *words], capture_output=True, text=True, timeout=300
    )
    assert (result.returncode, result.stdout) == (130, ""), result.stderr
    assert result.stderr.startswith("error[interrupted]: Stopped by Ctrl-C. No model was written.")
    assert result.stderr.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["l.sqlite", "l.sqlite.key"]
    shown = done("ledger", "show", ledger)  # opens, and every entry is verified
    stages = {run["name"].rpartition("/")[2]: run for run in shown["runs"]}
    assert (
        stages["gradients"]["reserved"] == stages["gradients"]["planned"] > 1
    )  # paid for before the first step
    assert "recalibration" not in stages
    done(*fit(place, "--out", tmp_path / "m", "--ledger", ledger))
    assert done("ledger", "show", ledger)["spent"] > shown["spent"]


def test_ctrl_c_while_the_model_is_written_waits(place, tmp_path, monkeypatch):
    whole = FittedModel.write

    def save(self, folder, more):
        os.kill(os.getpid(), signal.SIGINT)
        return whole(self, folder, more)

    monkeypatch.setattr(FittedModel, "write", save)
    assert done(*fit(place, "--out", tmp_path / "m"))["task"] == "classification"
    assert FittedModel.read(tmp_path / "m").classes == ("high", "low", "middle")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_progress_of_a_fit_shows_shares_of_the_budget(monkeypatch):
    from discreet.trusted.spending import BudgetAllocator

    budget = Budget(1.0, 1e-6)
    with Ledger.in_memory(GaussianFilter(Budget(3.0, 1e-6))) as ledger:
        BudgetAllocator(budget, Till.open(ledger, GaussianFilter(budget))).stage("earlier", 0.5)
        spent = Spent(ledger, budget)
        assert spent.share() == 0.0
        spending = BudgetAllocator(budget, Till.open(ledger, GaussianFilter(budget)), name="more")
        spending.stage("counts", 0.25)
        assert spent.share() == pytest.approx(0.25, rel=1e-4)
        with spent.bar() as told:
            assert told is False  # standard error is no terminal here
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        with spent.bar() as told:
            spending.progress = told
            spending.stage("gradients", steps=4)
        assert spent.share() == pytest.approx(1.0, rel=1e-4)  # a part of delta is held back
