"""The command line of studies by the recipe: new, check, evaluate, and what a party reads before it consents."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.support.recipe_studies import COLUMNS, NAMES, TARGETS, Sites, cut, table
from tests.support.recipe_studies import study as recipe_study

from discreet.adapters.joint_study import joint_of
from discreet.cli import main
from discreet.cli.watching import EpsilonSoFar, charged_so_far, may_be_asked
from discreet.errors import InvalidParameter
from discreet.linear.schema import Schema
from discreet.parties.coordinator import Progress
from discreet.parties.network.status import StatusPage
from discreet.parties.party_plan import PartyPlan
from discreet.parties.rehearsal import rehearse
from discreet.parties.study import Study
from discreet.parties.table_ledger import answers_folder, spending

NEW = ("study", "new", "demo", "--party", "ann=1000", "--party", "bob=1000", "--party", "cem=1000")
NEW += ("--schema", "schema.toml", "--epsilon", "2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a schema, and a table for each party."""
    monkeypatch.chdir(tmp_path)
    lines = ['target = "t"', "[columns]"]
    for name, column in {**COLUMNS, "t": TARGETS["classification"]}.items():
        inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in column.items())
        lines.append(f"{name} = {{ {inner} }}")
    Path("schema.toml").write_text("\n".join(lines) + "\n")
    for name, rows in cut(table(3000)).items():
        with open(f"{name}.csv", "w", newline="") as file:
            names = rows.column_names
            csv.writer(file).writerows(
                [names, *zip(*(rows[column].tolist() for column in names), strict=True)]
            )
    return tmp_path


def run(*words, status=0):
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == status, done.output
    return done.output


def test_a_new_study_is_one_by_the_recipe(folder):
    run(*NEW)
    made = Study.load("study.toml")
    assert (made.algorithm, made.privacy.delta, made.privacy.neighbours) == ("recipe", 1e-6, "add-remove")
    assert (made.aggregation.kind, made.dropouts, made.model["family"]) == ("plain", 0, "auto")
    assert "pairs" in made.questions.kinds
    assert joint_of(made).schema == Schema.load("schema.toml")


def test_settings_of_sgd2_make_a_study_of_sgd2(folder):
    for option in (
        ("--rounds", 5),
        ("--clip-norm", 2),
        ("--learning-rate", 1),
        ("--party-bound", 9),
        ("--robust",),
    ):
        run(*NEW, *option, "--overwrite")
        assert Study.load("study.toml").algorithm == "sgd2"
    run(*NEW, "--algorithm", "sgd2", "--overwrite")
    assert Study.load("study.toml").algorithm == "sgd2"
    assert "sgd2" in run(*NEW, "--algorithm", "recipe", "--rounds", 5, "--overwrite", status=2)
    for option in (("--model", "linear"), ("--inference",), ("--task", "classification")):
        assert "recipe" in run(*NEW, "--rounds", 5, *option, "--overwrite", status=2)


def test_lines_with_errors(folder):
    run(*NEW, "--model", "linear", "--inference", "--secure", "--task", "classification")
    made = Study.load("study.toml")
    assert (made.model["family"], made.model["inference"], made.aggregation.kind) == (
        "linear",
        True,
        "secure",
    )
    assert "errors" in made.questions.kinds
    assert "is for lines" in run(*NEW, "--inference", "--overwrite", status=2)


def test_a_study_of_persons_is_written_from_the_unit_of_the_schema(folder):
    text = Path("schema.toml").read_text()
    Path("schema.toml").write_text(text.replace('target = "t"\n', 'target = "t"\nunit = "who"\n'))
    run(*NEW)
    made = Study.load("study.toml")
    assert made.privacy.unit == "person"
    assert "persons" in made.questions.kinds
    assert joint_of(made).schema.unit.column == "who"


def test_a_check_says_what_may_be_asked(folder):
    run(*NEW)
    said = run("study", "check", "study.toml")
    for words in ("at most 400 answers", "clipped gradients", "the columns a, b, c, g, t", "epsilon 2"):
        assert words in " ".join(said.split())
    assert may_be_asked(replace(Study.load("study.toml"), name="x")) != ""


def test_a_model_of_the_recipe_is_evaluated_jointly(folder):
    sites = Sites(recipe_study(family="auto", epsilon=4.0), cut(table(6000)), seed=None)
    result = sites.coordinator().run()
    Path("model").mkdir()
    sites.joint.write(Path("model"), result.theta)
    run("study", "evaluate", "model", "--epsilon", 4, "--by", "g", "--secure")
    made = Study.load("evaluation.toml")
    joint = joint_of(made)
    scored = rehearse(made, {name: joint.holder(Path(f"{name}.csv")) for name in NAMES})
    found = joint.evaluation(scored.theta)
    assert found.scores["AUC"].value > 0.7
    assert set(found.groups) == {"g"}
    Path("scores").mkdir()
    joint.write(Path("scores"), scored.theta)
    assert "recomputed" in joint.insist_on(Path("scores"), joint.digest_in(Path("scores")))
    for word, value in (("files", "no base64!"), ("files", "AAAA"), ("parameters", [1.0])):
        with pytest.raises(InvalidParameter):
            joint_of(replace(made, model={**made.model, word: value}))
    with pytest.raises(InvalidParameter, match="another target"):
        joint_of(
            replace(
                made, model={**made.model, "target": "g", "columns": {"a": COLUMNS["a"], "g": COLUMNS["g"]}}
            )
        )


def test_a_party_is_shown_what_it_has_spent(folder):
    sites = Sites(recipe_study(), cut(table(3000)), folder, seed=None)
    terms, party = PartyPlan(sites.study, "ann"), sites.parties["ann"]
    place = folder / "ann.ledger"
    assert charged_so_far(terms, party.ledger) == (0, 0)
    assert "epsilon 0 spent so far -> 2 " in spending(place, folder / "ann.csv", terms)
    result = sites.coordinator().run()
    charged, part = charged_so_far(terms, party.ledger)
    assert charged == result.updates
    assert part == pytest.approx(1.0, rel=1e-6)
    assert EpsilonSoFar(terms).at(part) == "epsilon 2 of 2"
    assert EpsilonSoFar(terms).at(0.1).startswith("epsilon 0.")
    said = spending(place, folder / "ann.csv", terms)
    assert "epsilon 2 spent so far -> 2 " in said
    assert answers_folder(place, sites.study, "ann").parent.name == "ann.ledger.answers"


def test_the_page_of_a_study_shows_the_stage():
    made = recipe_study()
    with StatusPage(made, 0, "0123456789abcdef") as page:
        page.tell(Progress(7, made.updates, (), {}, "gradients, 3 of 40"))
        assert page.status()["stage"] == "gradients, 3 of 40"
        from discreet.parties.network.status import _html

        assert "7 questions of 400 at most; stage gradients, 3 of 40" in _html(page.status())


def test_predictions_of_sites_agree(folder):
    sites = Sites(recipe_study(target="regression", learn=True), cut(table(3000, "regression")), seed=None)
    model = sites.joint.fitted_model(sites.coordinator().run().theta)
    assert np.isfinite(model.predict(table(50, "regression", seed=9))).all()
