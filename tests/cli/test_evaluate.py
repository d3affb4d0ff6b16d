"""``discreet split`` and ``discreet evaluate``: from a table to scores in the report."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from discreet.cli import main

SCHEMA = """
target = "ill"
[columns]
age = { bounds = [0, 100] }
sex = { categories = ["F", "M"] }
ill = { flag = "yes" }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, sex = rng.integers(0, 100, 3000), rng.choice(["F", "M"], 3000)
    ill = rng.random(3000) < 1 / (1 + np.exp(-(age - 50) / 10))
    lines = [
        f"{a},{s},{'yes' if i else 'no'},p{n // 2}\n"
        for n, (a, s, i) in enumerate(zip(age, sex, ill, strict=True))
    ]
    (tmp_path / "people.csv").write_text("age,sex,ill,who\n" + "".join(lines))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def run(*words, status=0):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == status, result.output
    return result.output


def test_from_a_table_to_a_report(folder):
    parts = ["--train-out", "train.csv", "--test-out", "test.csv", "--key", "split.key"]
    run("split", "people.csv", "--test", "0.4", *parts)
    train, test = ((folder / name).read_text().splitlines() for name in ("train.csv", "test.csv"))
    assert train[0] == test[0] == "age,sex,ill,who"
    assert sorted(train[1:] + test[1:]) == sorted((folder / "people.csv").read_text().splitlines()[1:])
    assert (folder / "split.key").stat().st_mode & 0o077 == 0
    run("fit", "train.csv", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-6", "--out", "model")
    run("ledger", "new", "test.ledger", "--epsilon", "2", "--delta", "1e-5")
    said = run(
        *("evaluate", "model", "test.csv", "--epsilon", "1", "--by", "sex", "--ledger", "test.ledger"),
        *("--out", "evaluation.json", "--certificate", "evaluation-certificate.json"),
    )
    assert "AUC" in said
    assert "sex F: accuracy" in said
    found = json.loads((folder / "evaluation.json").read_text())
    assert found["overall"]["scores"]["accuracy"]["value"] > 0.7
    assert "evaluate" in run("ledger", "show", "test.ledger")
    run("verify", "evaluation-certificate.json", "--ledger", "test.ledger")
    page = run("report", "model", "--evaluation", "evaluation.json")
    assert "How good the model is" in page
    run("report", "model", "--evaluation", "evaluation.json", "--html", "page.html")
    assert "Calibration" in (folder / "page.html").read_text()
    refused = run("evaluate", "model", "test.csv", "--epsilon", "2.5", "--ledger", "test.ledger", status=1)
    assert "budget" in refused


def test_persons_stay_together_and_are_scored_as_one(folder):
    run(
        "split", "people.csv", "--test", "0.4", "--train-out", "a.csv", "--test-out", "b.csv", "--unit", "who"
    )
    sides = [
        {line.rpartition(",")[2] for line in (folder / name).read_text().splitlines()[1:]}
        for name in ("a.csv", "b.csv")
    ]
    assert not sides[0] & sides[1]
    run("fit", "a.csv", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-6", "--out", "model")
    found = json.loads(run("evaluate", "model", "b.csv", "--epsilon", "4", "--unit", "who", "--json"))
    assert found["unit"] == "person"
    assert found["overall"]["scores"]["records"]["value"] == pytest.approx(len(sides[1]), abs=30)


def test_parquet_files_are_dealt_row_by_row_and_keep_their_types(folder):
    frame = pd.read_csv(folder / "people.csv")
    frame["seen"] = pd.Timestamp("2020-02-01")
    frame.to_parquet(folder / "people.parquet")
    outs = ("--train-out", "a.parquet", "--test-out", "b.parquet", "--unit", "who", "--key", "k")
    run("split", "people.parquet", "--test", "0.4", *outs)
    sides = [pd.read_parquet(folder / name) for name in ("a.parquet", "b.parquet")]
    assert not set(sides[0]["who"]) & set(sides[1]["who"])
    assert all(list(side.dtypes) == list(frame.dtypes) and len(side) for side in sides)
    every = list(frame)
    both = pd.concat(sides).sort_values(every).reset_index(drop=True)
    pd.testing.assert_frame_equal(both, frame.sort_values(every).reset_index(drop=True))
    run("split", "people.parquet", "--test", "0.4", *outs, "--overwrite")
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "a.parquet"), sides[0])
    run("fit", "a.parquet", "--schema", "schema.toml", "--epsilon", "4", "--delta", "1e-6", "--out", "model")


@pytest.mark.parametrize(
    ("table", "out", "said"),
    [
        ("people.parquet", "a.csv", "--train-out=a.csv: must end in .parquet"),
        ("people.csv", "a.parquet", "--train-out=a.parquet: must end in .csv"),
        ("people.arrow", "a.csv", "TABLE=people.arrow: must be a CSV or Parquet file"),
    ],
)
def test_sides_of_another_kind_than_the_table_are_refused(folder, table, out, said):
    """Bytes of a Parquet file were dealt like lines: the sides could not be read again."""
    assert said in run("split", table, "--test", "0.4", "--train-out", out, "--test-out", "b.csv", status=2)
    assert not (folder / out).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("split", "people.csv", "--test", "2", "--train-out", "a.csv", "--test-out", "b.csv"), "--test=2"),
        (
            ("split", "people.csv", "--test", ".3", "--train-out", "a.csv", "--test-out", "a.csv"),
            "--test-out",
        ),
        (
            (
                "split",
                "people.csv",
                "--test",
                ".3",
                "--train-out",
                "a.csv",
                "--test-out",
                "b.csv",
                "--unit",
                "x",
            ),
            "--unit",
        ),
        (
            (
                "split",
                "people.csv",
                "--test",
                ".3",
                "--train-out",
                "a",
                "--test-out",
                "b",
                "--key",
                "schema.toml",
            ),
            "--key",
        ),
    ],
)
def test_refusals_name_what_was_typed(folder, words, said):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert said in result.output
    assert not (folder / "a.csv").exists()
