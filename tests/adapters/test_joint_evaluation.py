"""How good a joint model is, on everybody's records: scores of the pooled table, one paid round, nothing believed."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import log_loss, roc_auc_score

from discreet import evaluate
from discreet.adapters.joint_evaluation import JointEvaluation, rates
from discreet.adapters.joint_model import JointModel, dimension
from discreet.adapters.joint_study import joint_of
from discreet.cli import main
from discreet.cli.study_file import evaluation_text
from discreet.core.randomness import RandomStream
from discreet.errors import CertificateRejected, InvalidParameter, StudyStopped
from discreet.linear.schema import Schema
from discreet.linear.tables import table_in
from discreet.parties import Coordinator, Study, observers, rehearse
from discreet.parties.joint import model_digest
from discreet.parties.messages import DirectTransport, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.trusted.queries import Blocks
from discreet.trusted.rows import PrivateRows

COLUMNS = {
    "age": {"bounds": [0, 100]},
    "ward": {"categories": ["surgery", "medicine"]},
    "again": {"flag": "yes"},
    "days": {"bounds": [0, 60]},
    "kind": {"categories": ["a", "b", "c"]},
}
PARTIES = ("north", "south", "west")


def trained(target, rows=600):
    """A study that trained a model for this target, and that model."""
    columns = {name: column for name, column in COLUMNS.items() if name in ("age", "ward", target)}
    size = dimension(Schema.from_dict({"columns": columns, "target": target}))
    study = Study.from_dict(
        {
            "study": {"name": "stays", "algorithm": "sgd2"},
            "parties": dict.fromkeys(PARTIES, rows),
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "training": {"clip_norm": 1.0, "rounds": 3},
            "model": {
                "kind": "linear" if target == "days" else "logistic",
                "target": target,
                "columns": columns,
                "dimension": size,
            },
        }
    )
    theta = {
        "again": np.array([-1.0, 3.0, -0.8, 0.2]),
        "days": np.array([0.2, 0.5, 0.1, 0.0]),
        "kind": np.linspace(-1.5, 1.5, size)[np.random.default_rng(3).permutation(size)],
    }[target]
    return JointModel.of(study), theta


def tables(folder, rows=600, seed=0):
    """A table for each party, with what is true a matter of age and ward; one label of each is undeclared."""
    rng, found = np.random.default_rng(seed), {}
    for party in PARTIES:
        age, ward = rng.uniform(0, 100, rows), rng.choice(["surgery", "medicine"], rows)
        score = 3 * age / 100 - 1.2 + np.where(ward == "surgery", -0.5, 0.0)
        again = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
        days = np.clip(60 * (0.3 + 0.4 * age / 100 + 0.1 * rng.standard_normal(rows)), 0, 60)
        kind = np.array(list("abc"))[np.clip((age / 34 + rng.normal(0, 0.5, rows)).astype(int), 0, 2)]
        lines = [
            f"{a:.3f},{w},{g},{d:.3f},{k}" for a, w, g, d, k in zip(age, ward, again, days, kind, strict=True)
        ]
        lines[0] = "50,surgery,perhaps,many,z"
        found[party] = folder / f"{party}.csv"
        found[party].write_text("\n".join(["age,ward,again,days,kind", *lines]) + "\n")
    return found


def evaluation_of(folder, target="again", epsilon=1.0, by=("ward",), **words):
    """The study that evaluates such a model, as the command line writes it."""
    model, theta = trained(target)
    place = folder / f"model-{target}"
    place.mkdir(exist_ok=True)
    model.write(place, theta)
    settings = {"delta": None, "parties": (), "secure": False, "coordinator": None, "name": None} | words
    return joint_of(Study.from_toml(evaluation_text(place, epsilon, by=by, **settings)))


def run(made, files, **words):
    return rehearse(made.study, {name: made.holder(path) for name, path in files.items()}, **words)


def agree(found, alone):
    """The scores differ by at most 8 standard deviations of their noise, which is below a tenth of the score's scale.

    Gaussian noise exceeds that less than once in 10^14 times.
    """
    for name, score in alone.items():
        noise = math.hypot(found[name].noise, score.noise)
        assert noise < 0.1 * max(1.0, abs(score.value)), name
        assert abs(found[name].value - score.value) <= 8 * noise + 1e-3 * abs(score.value), name


@pytest.mark.parametrize("target", ["again", "days", "kind"])
def test_joint_scores_are_those_of_the_pooled_table(tmp_path, target):
    """Against `evaluate` of the pooled table, and scikit-learn, both with next to no noise."""
    made, files = evaluation_of(tmp_path, target, epsilon=200.0), tables(tmp_path)
    pooled = tmp_path / "pooled.csv"
    texts = [path.read_text().split("\n", 1) for path in files.values()]
    pooled.write_text(texts[0][0] + "\n" + "".join(rest for _, rest in texts))
    found = made.evaluation(run(made, files).theta)
    table = table_in(pooled).whole(made.schema.columns)
    alone = evaluate(made.fitted, table, by=["ward"], epsilon=200.0, delta=0.0)
    assert found["records"].value == pytest.approx(3 * 599, abs=15)
    agree(found.scores, alone.scores)
    for value, measured in alone.by("ward").items():
        agree(found.by("ward")[value].scores, measured.scores)
    if target == "again":
        chances = made.fitted.predict_proba(table)[:, 1]
        labels = np.array([line.split(",")[2] for line in pooled.read_text().split("\n")[1:-1]])
        good = labels != "perhaps"
        truth = labels[good] == "yes"
        assert found["AUC"].value == pytest.approx(roc_auc_score(truth, chances[good]), abs=0.01)
        assert found["log loss"].value == pytest.approx(log_loss(truth, chances[good]), rel=0.02)
        taken = (chances[good] > 0.5)[truth]
        assert found["recall"].value == pytest.approx(taken.mean(), abs=0.02)


def test_secure_sums_give_the_same_scores_with_less_noise(tmp_path):
    files = tables(tmp_path)
    plain, secure = (evaluation_of(tmp_path, epsilon=4.0, secure=kind) for kind in (False, True))
    found = [made.evaluation(run(made, files).theta) for made in (plain, secure)]
    assert found[1]["AUC"].noise < 0.7 * found[0]["AUC"].noise  # sqrt(3) times less
    assert abs(found[0]["accuracy"].value - found[1]["accuracy"].value) < 0.1


def test_intervals_hold_the_truth_as_often_as_they_say(tmp_path):
    """300 joint evaluations at epsilon 1 on one set of tables: noise alone, so 90 % intervals hold it more often.

    Fewer than 250 of 300 would happen by chance less than once in a million times.
    """
    made, files = evaluation_of(tmp_path), tables(tmp_path)
    holders = {name: made.holder(path) for name, path in files.items()}
    exact = -sum(holder.hardened_sum(None, None, 2.0**-30).value for holder in holders.values()) * 2.0**-30
    truth, records = made.evaluation(exact / made.study.records), made.study.records
    noise = made.study.noise_multiplier * np.sqrt(3)
    rng, held = np.random.default_rng(5), dict.fromkeys(("accuracy", "AUC", "log loss", "recall"), 0)
    for _ in range(300):
        noisy = made.evaluation((exact + rng.normal(0, noise, exact.size)) / records)
        for name in held:
            held[name] += noisy[name].lower <= truth[name].value <= noisy[name].upper
    assert min(held.values()) >= 250, held


@pytest.mark.parametrize("target", ["again", "days", "kind"])
def test_a_record_adds_a_vector_of_norm_one_at_most(tmp_path, target):
    made, files = evaluation_of(tmp_path, target), tables(tmp_path, rows=40)
    longest = longest_step(made, made.holder(files["north"]))
    assert 0.9 < longest <= 1.0
    broken = made.holder(files["north"])
    query = made.layout.query("l2")  # the twin: blocks weighed a tenth too much
    blocks = tuple(
        replace(block, limits=(1.1 * block.limits[0],), unit=1.1 * block.unit) for block in query.blocks
    )
    broken._query = Blocks(blocks, 1.2)
    assert longest_step(made, broken) > 1.0


def longest_step(made, holder, grid=2.0**-20):
    """The most that leaving out one record changes, by norm."""
    everybody, rows = holder.hardened_sum(None, None, grid).value, holder._rows
    longest = 0.0
    for record in range(len(rows._numbers)):
        holder._rows = PrivateRows(np.delete(rows._numbers, record, 0), "add-remove")
        rest = holder.hardened_sum(None, None, grid).value
        longest = max(longest, float(np.linalg.norm((everybody - rest).astype(float))) * grid)
    holder._rows = rows
    return longest


def test_each_party_pays_for_one_round_and_the_table_of_observers_covers_it(tmp_path):
    made, files = evaluation_of(tmp_path, epsilon=0.5), tables(tmp_path)
    result = run(made, files)
    for name, certificate in result.certificates.items():
        assert certificate.guarantee.epsilon.upper == pytest.approx(0.5, rel=2e-3)
        assert PartyPlan(made.study, name).steps == 1
        assert any("move every score" in text for text in certificate.not_covered)
    seen = observers(made.study)
    assert seen["coordinator"].guarantee.epsilon.upper <= 0.5
    assert seen["final model"].guarantee.neighbours == "add-remove"


def test_what_is_sent_has_the_noise_of_the_study(tmp_path):
    """Cells that nobody is in: 300 draws; their standard deviation is within a fifth (one in a million)."""
    made, files = evaluation_of(tmp_path, epsilon=1.0), tables(tmp_path, rows=30)
    result = run(made, files, unsafe_seed=4)
    noisy = result.theta * made.study.records
    holders = [made.holder(path) for path in files.values()]
    exact = -sum(holder.hardened_sum(None, None, 2.0**-30).value for holder in holders) * 2.0**-30
    empty = noisy[exact == 0]
    assert empty.size > 100
    assert empty.std() == pytest.approx(made.study.noise_multiplier * np.sqrt(3), rel=0.35)


def test_if_nobody_answers_there_is_no_evaluation_of_nothing(tmp_path):
    made, files = evaluation_of(tmp_path), tables(tmp_path)
    from discreet.parties import Party

    roster = Roster.without_wire()
    parties = {
        name: Party(name, made.study, made.holder(path), None, None, roster, stream=RandomStream())
        for name, path in files.items()
    }
    silent = {
        name: lambda frame, p=p: p.answer(frame) if b'"hello"' in frame else b""
        for name, p in parties.items()
    }
    with pytest.raises(StudyStopped, match="Too few parties"):
        Coordinator(made.study, DirectTransport(silent), roster).run()


def test_a_folder_is_believed_only_if_its_scores_follow_from_the_histogram(tmp_path):
    made, files = evaluation_of(tmp_path), tables(tmp_path)
    theta = run(made, files).theta
    (path,) = made.write(tmp_path, theta)
    assert made.digest_in(tmp_path) == model_digest(theta)
    assert "follow from the histogram" in made.insist_on(tmp_path, model_digest(theta))
    text = json.loads(path.read_text())
    assert text["evaluated"] == model_digest(np.array(made.study.model["parameters"]))
    for change in (
        lambda data: data["overall"]["scores"]["AUC"].update(value=0.99),
        lambda data: data["histogram"].__setitem__(0, 0.5),
        lambda data: data.pop("histogram"),
    ):
        data = json.loads(json.dumps(text))
        change(data)
        path.write_text(json.dumps(data))
        with pytest.raises(CertificateRejected):
            made.insist_on(tmp_path, model_digest(theta))


def test_every_screen_shows_the_rates_of_each_group(tmp_path):
    made, files = evaluation_of(tmp_path, epsilon=8.0), tables(tmp_path)
    told = made.describe(run(made, files).theta)
    for words in (
        "ward, recall: surgery 0.",
        "ward, AUC:",
        "medicine 0.",
        "AUC",
        "90% intervals",
        "north, south, west",
    ):
        assert words in told
    assert rates(replace(made.evaluation(np.zeros(made.study.dimension)), groups={})) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"rounds": 2}}, "training.rounds"),
        ({"training": {"learning_rate": 0.5}}, "training.learning_rate"),
        ({"privacy": {"arithmetic": "float"}}, "arithmetic"),
        ({"aggregation": {"robust": "geometric-median"}}, "robust"),
        ({"model": {"parameters": [1.0]}}, "model.parameters"),
        ({"model": {"parameters": [float("inf")] * 4}}, "model"),
        ({"model": {"by": ["age"]}}, "by"),
        ({"model": {"by": ["again"]}}, "is the target"),
        ({"model": {"by": ["ward", "ward"]}}, "by"),
        ({"model": {"dimension": 7}}, "model.dimension"),
        ({"model": {"rounds": 7}}, "unknown words"),
    ],
)
def test_what_would_be_something_else_is_refused(tmp_path, change, words):
    data = evaluation_of(tmp_path).study.to_dict()
    for section, values in change.items():
        data[section] = data[section] | values
    with pytest.raises(InvalidParameter, match=words):
        JointEvaluation.of(Study.from_dict(data))


def test_the_commands_write_and_show_such_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, theta = trained("again")
    (tmp_path / "stays").mkdir()
    model.write(tmp_path / "stays", theta)
    words = ("study", "evaluate", "stays", "--epsilon", "0.5", "--by", "ward", "--party", "north=300")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "one noisy histogram" in done.output
    made = Study.load("evaluation.toml")
    assert made.parties["north"] == 300
    assert made.privacy.delta == 1e-6
    checked = CliRunner().invoke(main, ("study", "check", "evaluation.toml"))
    assert checked.exit_code == 0
    assert "north (300 records) spends epsilon 0.5" in checked.output
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 2
    wrong = CliRunner().invoke(main, (*words[:-1], "east=3", "--out", "other.toml"))
    assert "must be one of north, south, west" in wrong.output
