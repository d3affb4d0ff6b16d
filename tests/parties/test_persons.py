"""Persons with several rows, and persons whom several parties know: what one can change, and what it costs."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from discreet.adapters.joint_model import JointModel, table_and_people
from discreet.adapters.joint_study import joint_of
from discreet.cli import main
from discreet.cli.study_file import evaluation_text
from discreet.errors import InvalidParameter
from discreet.guarantee import Budget
from discreet.linear.gate.people import People
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Logistic
from discreet.linear.schema import Schema
from discreet.parties import Arrangement, Party, Study, noise_for, observers, rehearse
from discreet.parties.messages import Roster
from discreet.parties.observation.observer_views import views
from discreet.parties.party_plan import PartyPlan

GRID = 2.0**-30


def table(rng, rows=60, persons=15):
    X, y = rng.uniform(-3, 3, (rows, 3)), rng.integers(0, 2, rows)
    return X, y, np.array([f"p{number}" for number in rng.integers(persons, size=rows)], object)


def by_hand(X, y, ids, theta, clip):
    total = np.zeros(4)
    for one in set(ids) - {None}:
        rows = np.column_stack([np.ones((ids == one).sum()), X[ids == one]])
        residual = 1 / (1 + np.exp(-rows @ theta)) - y[ids == one]
        mean = (residual[:, None] * rows).mean(0)
        total += mean * min(1, clip / np.linalg.norm(mean))
    return total


def test_the_sum_is_that_of_persons_and_rows_of_nobody_do_not_count():
    rng = np.random.default_rng(0)
    X, y, ids = table(rng)
    ids[:3] = None
    theta = rng.normal(size=4)
    holder = LinearHolder(Logistic(), X, y, clip_norm=0.7, people=ids)
    found = holder.hardened_sum(theta, None, GRID).value * GRID
    assert found == pytest.approx(by_hand(X, y, ids, theta, 0.7), abs=1e-4)
    assert holder.records == len(set(ids) - {None})


def test_chosen_persons_are_summed_alone():
    rng = np.random.default_rng(1)
    X, y, ids = table(rng)
    theta = rng.normal(size=4)
    holder = LinearHolder(Logistic(), X, y, clip_norm=0.7, people=ids)
    each = [holder.hardened_sum(theta, np.array([one]), GRID).value for one in range(holder.records)]
    assert np.array_equal(np.sum(each, 0), holder.hardened_sum(theta, None, GRID).value)
    assert not holder.hardened_sum(theta, np.array([], int), GRID).value.any()
    assert np.array_equal(holder.one_by_one.hardened_sum(theta, np.array([2]), GRID).value, each[2])


def farthest(X, y, ids, theta, clip, **people):
    """By how much the sum moves at most when one person leaves with all rows, in clip norms."""
    whole = LinearHolder(Logistic(), X, y, clip_norm=clip, **people)
    total, most = whole.hardened_sum(theta, None, GRID).value, 0.0
    for one in set(ids):
        kept = ids != one
        rest = LinearHolder(
            Logistic(), X[kept], y[kept], clip_norm=clip, **{k: v[kept] for k, v in people.items()}
        )
        gap = (total - rest.hardened_sum(theta, None, GRID).value).astype(float)
        most = max(most, np.linalg.norm(gap) * GRID / clip)
    return most


@pytest.mark.parametrize("seed", range(5))
def test_a_person_moves_the_sum_by_one_clip_norm_at_most(seed):
    rng = np.random.default_rng(seed)
    X, y, ids = table(rng)
    theta = 5 * rng.normal(size=4)
    assert 0.5 < farthest(X, y, ids, theta, 0.1, people=ids) <= 1.0
    assert farthest(X, y, ids, theta, 0.1) > 1.5  # the broken twin: rows are clipped one by one


def worst(arrangement, seen, coalition):
    """By brute force: how far a person moves what is seen, in standard deviations of the noise that stays hidden."""
    weights = arrangement.weights or dict.fromkeys(arrangement.parties, 1.0)
    names, scale = set(weights), arrangement.noise * arrangement.noise_share
    most = 0.0
    for known in itertools.combinations(sorted(names), arrangement.across):
        if seen == "messages":
            most = max(most, math.sqrt(len(known)) / arrangement.noise)
            continue
        for gone in itertools.combinations(sorted(names), coalition + arrangement.dropouts):
            left = names - set(gone)
            if not left & set(known):
                continue
            moved = sum(weights[name] for name in set(known) & left)
            most = max(most, moved / (scale * math.hypot(*(weights[name] for name in left))))
    return most


def noise_of(view):
    (face,) = view.faces
    (event, rounds), *_ = face.parts()
    assert rounds == 7
    return event.noise_multiplier


@pytest.mark.parametrize(("kind", "weighted"), [("plain", False), ("plain", True), ("secure", False)])
@pytest.mark.parametrize("across", [1, 2, 3])
@pytest.mark.parametrize("dropouts", [0, 1])
def test_every_row_of_the_table_covers_a_person_known_to_several(kind, across, dropouts, weighted):
    weights = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 3.0, "e": 1.0} if weighted else None
    arrangement = Arrangement(
        "sgd2",
        dict.fromkeys("abcde", 50),
        noise_multiplier=4.0,
        rounds=7,
        aggregation=kind,
        dropouts=dropouts,
        weights=weights,
        unit="person",
        across=across,
    )
    found = {view.observer: view for view in views(arrangement, 1)}
    everything = "messages" if kind == "plain" else "sum"
    seen = {"final model": ("sum", 0), "broadcasts": ("sum", 0), "another party": ("sum", 1)}
    seen |= {"coordinator": (everything, 0), "coordinator and colluders": (everything, 1)}
    for observer, (what, coalition) in seen.items():
        assert 1 / noise_of(found[observer]) >= worst(arrangement, what, coalition) * (1 - 1e-12), observer
    assert noise_of(found["coordinator"]) == pytest.approx(
        {"plain": 4 / math.sqrt(across), "secure": 4 / across}[kind]
    )


def test_what_it_costs_that_several_parties_know_a_person():
    budget = Budget(1.0, 1e-6, "replace-one", unit="person")

    def needed(kind, across):
        plan = Arrangement(
            "sgd2", dict.fromkeys("abcd", 50), rounds=9, aggregation=kind, unit="person", across=across
        )
        return noise_for(plan, budget, against="coordinator")

    assert needed("plain", 2) == pytest.approx(math.sqrt(2) * needed("plain", 1), rel=1e-3)
    assert needed("secure", 3) == pytest.approx(3 * needed("secure", 1), rel=1e-3)


@pytest.mark.parametrize(
    "words",
    [
        {"across": 2},
        {"across": 6, "unit": "person"},
        {"across": 2, "unit": "person", "rate": 0.5, "neighbours": "add-remove"},
        {"across": 2, "unit": "person", "contraction": 0.9},
        {"unit": "household"},
    ],
)
def test_what_has_no_theorem_is_refused(words):
    with pytest.raises(InvalidParameter):
        Arrangement("sgd2", dict.fromkeys("abcde", 50), rounds=3, **words)


def test_sgd1_draws_persons_but_not_across_parties():
    assert Arrangement("sgd1", {"a": 5, "b": 5}, unit="person", schedule="private").cap > 0
    for schedule in (
        "uniform",
        "balanced",
    ):  # numbers, which the coordinator knows, would move with who is there
        with pytest.raises(InvalidParameter, match="schedule = 'private'"):
            Arrangement("sgd1", {"a": 5, "b": 5}, unit="person", schedule=schedule)
    with pytest.raises(InvalidParameter, match="SGD2"):
        Arrangement("sgd1", {"a": 5, "b": 5}, unit="person", across=2, schedule="private")
    with pytest.raises(InvalidParameter, match="unit"):
        noise_for(
            Arrangement("sgd2", {"a": 5}, rounds=3),
            Budget(1, 1e-6, "replace-one", unit="person"),
            against="messages",
        )


def test_large_ids_beside_a_missing_one_are_the_same_person_in_all_chunks(tmp_path):
    """As floats, ids above 2**53 were others in the chunk with the missing one: one person counted twice."""
    rows, ann = 65_536, 2**60 + 1
    ids = [None, ann, *[5] * (rows - 2), ann]
    path = tmp_path / "visits.parquet"
    columns = {"patient": pa.array(ids, pa.int64()), "age": np.ones(len(ids)), "again": ["yes"] * len(ids)}
    pq.write_table(pa.table(columns), path)
    schema = Schema.from_dict(
        {"columns": {"age": {"bounds": [0, 1]}, "again": {"flag": "yes"}}, "target": "again"}
    )
    _, people = table_and_people(path, schema, "patient")
    assert (people[1], people[-1]) == (ann, ann)
    assert People.of(people)._count() == 2


SCHEMA = """
target = "again"
[unit]
column = "patient"
[columns]
age = { bounds = [0, 100] }
again = { flag = "yes" }
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of persons, as the command line writes it, and a table of 20 persons for each party."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    rng = np.random.default_rng(2)
    for party in "ab":
        rows = [
            f"{party}{person % 20},{rng.integers(100)},{rng.choice(['yes', 'no'])}" for person in range(50)
        ]
        (tmp_path / f"{party}.csv").write_text("\n".join(["patient,age,again", *rows]) + "\n")
    words = ("study", "new", "visits", "--party", "a=20", "--party", "b=20", "--schema", "schema.toml")
    limits = ("--epsilon", "2", "--delta", "1e-4", "--rounds", "5", "--persons-across-parties", "2")
    done = CliRunner().invoke(main, (*words, *limits))
    assert done.exit_code == 0, done.output
    return Study.load("study.toml")


def test_a_study_of_persons_from_file_to_certificate(study, tmp_path):
    assert study.privacy.unit == "person"
    assert Study.from_dict(study.to_dict()).digest() == study.digest()
    model = JointModel.of(study)
    result = rehearse(study, {party: model.holder(tmp_path / f"{party}.csv") for party in "ab"})
    for certificate in result.certificates.values():
        assert certificate.guarantee.unit == "person"
        assert certificate.guarantee.epsilon.upper == pytest.approx(2.0, rel=2e-3)
        assert any("more than 2 parties know" in text for text in certificate.not_covered)
        assert not any("for one record" in text for text in certificate.not_covered)
    assert PartyPlan(study, "a").budget.unit == "person"
    assert "for one person with all of their rows, known to 2 parties at most" in str(observers(study))
    checked = CliRunner().invoke(main, ("study", "check", "study.toml"))
    assert "a (20 persons) spends epsilon 2" in checked.output


class WithoutUnit:
    """A holder of records, from before holders named what they clip."""

    def __init__(self, holder):
        self.dimension, self.records = holder.dimension, holder.records
        self.clipped_sum, self.hardened_sum = holder.clipped_sum, holder.hardened_sum


class OtherWord(WithoutUnit):
    unit = "household"


class Column(WithoutUnit):
    unit = np.array(["secret person"], object)


IDS = np.repeat(np.arange(20), 3)


def alike(**people):
    """Sixty equal rows; with ``people``, of twenty persons with three rows each."""
    return LinearHolder(Logistic(), np.full((60, 1), 100.0), np.ones(60), clip_norm=1.0, **people)


def with_clip_norm_one(study):
    privacy, training = (
        replace(study.privacy, neighbours="add-remove"),
        replace(study.training, clip_norm=1.0),
    )
    return replace(study, privacy=privacy, training=training)


def joined(study, holder, path):
    """The party ``a`` with this holder, and a ledger in a file."""
    return Party("a", with_clip_norm_one(study), holder, path, None, Roster.without_wire())


@pytest.mark.parametrize(
    "holder",
    [alike(), WithoutUnit(alike()), WithoutUnit(alike(people=IDS)), OtherWord(alike()), Column(alike())],
    ids=["rows", "rows, no unit", "persons, no unit", "another word", "an array"],
)
def test_a_study_of_persons_refuses_holders_that_clip_rows(study, tmp_path, holder):
    with pytest.raises(
        InvalidParameter, match=r"holder\.unit=.*must be 'person'.*LinearHolder\(..., people="
    ) as caught:
        joined(study, holder, tmp_path / "a.ledger")
    assert type(holder).__name__ in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "a.ledger").exists()  # nothing was charged


def test_a_study_of_persons_takes_holders_that_clip_persons(study, tmp_path):
    joined(study, alike(people=IDS), tmp_path / "a.ledger")
    moved = np.linalg.norm(alike(people=IDS).hardened_sum(np.zeros(2), np.array([0]), GRID).value) * GRID
    assert moved <= 1.0


def test_the_broken_twin_of_the_check_certifies_persons_who_move_the_sum_threefold(study, monkeypatch):
    study, holder = with_clip_norm_one(study), alike()
    assert np.linalg.norm(holder.hardened_sum(np.zeros(2), np.arange(3), GRID).value) * GRID > 2.9
    with pytest.raises(InvalidParameter, match=r"holder\.unit"):
        rehearse(study, {"a": holder, "b": holder})
    monkeypatch.setattr("discreet.parties.answering.check_holder", lambda holder, terms: None)
    result = rehearse(study, {"a": holder, "b": holder})
    assert {one.guarantee.unit for one in result.certificates.values()} == {"person"}


def test_a_study_of_records_refuses_holders_that_clip_persons(study, tmp_path):
    """One row more turns the clipped average of a person round: the sum moves by two clip norms, not by one."""
    records = replace(study, privacy=replace(study.privacy, unit="record", persons_across_parties=1))
    X, y, ids = np.array([[100.0], [300.0]]), np.array([1, 0]), np.array(["ann", "ann"], object)
    both, one = (
        LinearHolder(Logistic(), X[:rows], y[:rows], clip_norm=1.0, people=ids[:rows]) for rows in (2, 1)
    )
    gap = both.hardened_sum(np.zeros(2), None, GRID).value - one.hardened_sum(np.zeros(2), None, GRID).value
    assert np.linalg.norm(gap) * GRID > 1.9
    with pytest.raises(InvalidParameter, match=r"holder\.unit='person': must be 'record'.*without ids"):
        joined(records, both, tmp_path / "a.ledger")
    assert not (tmp_path / "a.ledger").exists()
    joined(records, alike(), tmp_path / "a.ledger")
    joined(records, WithoutUnit(alike()), tmp_path / "b.ledger")


def test_persons_are_evaluated_as_persons(study, tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    JointModel.of(study).write(place, np.array([-1.0, 2.0]))
    text = evaluation_text(place, 5.0, None, (), (), False, None, None)
    made = joint_of(Study.from_toml(text))
    holder = made.holder(tmp_path / "a.csv")
    assert (holder.records, holder.unit) == (20, "person")
    assert -holder.hardened_sum(None, None, GRID).value.sum() * GRID == pytest.approx(20, abs=1e-3)
    assert made.evaluation(np.zeros(made.study.dimension)).unit == "person"


def test_a_study_says_whose_the_rows_are(study):
    data = study.to_dict()
    for change, words in (
        ({"model": data["model"] | {"unit": None}}, "model.unit"),
        ({"privacy": data["privacy"] | {"unit": "record"}}, "persons_across_parties"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-4}}, "goes with unit"),
        ({"model": data["model"] | {"unit": "age"}}, "no feature"),
        ({"privacy": data["privacy"] | {"arithmetic": "float"}}, "hardened"),
        ({"privacy": data["privacy"] | {"persons_across_parties": 3}}, "across"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            JointModel.of(Study.from_dict(data | change))


def test_studies_of_records_keep_their_digests(study):
    """Words that older versions did not know do not stand in a study that does not use them."""
    plain = Study.from_dict(study.to_dict() | {"privacy": {"epsilon": 1.0, "delta": 1e-4}})
    assert {"unit", "persons_across_parties"}.isdisjoint(plain.to_dict()["privacy"])
