"""Evaluations of files where they lie: the scores of one table, also for people with rows in several files."""

import numpy as np
import pandas as pd
import pytest

from discreet import Budget, Ledger
from discreet.errors import InvalidParameter, PlanViolation
from discreet.evaluation import evaluate
from discreet.evaluation.count_layout import CountLayout
from discreet.evaluation.declared_task import task_for
from discreet.evaluation.evaluate import without_secrets
from discreet.evaluation.question import Counting, EvaluationQuestion, counts_there
from discreet.ledger import GaussianFilter
from discreet.linear import Partitions, PrivateLinearRegression, PrivateLogisticRegression, Schema
from support.partitions_here import Here, shares_of

SCHEMA = """
target = "label"
[columns]
a = { bounds = [0, 10] }
b = { bounds = [0, 10] }
sex = { categories = ["F", "M"] }
label = { categories = ["no", "yes"] }
"""


def frame(rows=900, people=150, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 2)) * 10
    found = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "sex": rng.choice(["F", "M", "?"], rows)})
    found["label"] = np.where(x[:, 0] > x[:, 1], "yes", "no")
    found["person"] = pd.array(2**60 + rng.integers(people, size=rows), "Int64")
    found.loc[3, ["person", "a"]] = None
    return found


def written(folder, table, cuts=(0, 250, 250, 600)):
    folder.mkdir()
    for number, (start, stop) in enumerate(zip(cuts, (*cuts[1:], None), strict=True)):
        table.iloc[start:stop].to_parquet(folder / f"part-{number}.parquet", index=False)
    return Partitions(folder / "part-*.parquet")


@pytest.fixture(scope="module")
def model():
    made = PrivateLogisticRegression(2.0, schema=Schema.from_toml(SCHEMA), unsafe_seed=1)
    return made.fit(frame().drop(columns="person"))


def asked(model, x, **more):
    return evaluate(model, x, epsilon=1.0, unsafe_seed=3, **more)


@pytest.mark.parametrize("more", [{}, {"by": "sex"}, {"unit": "person"}], ids=["records", "groups", "people"])
def test_files_give_the_scores_of_one_table(tmp_path, model, more):
    partitions = written(tmp_path / "files", frame())
    local = asked(model, partitions, **more)
    found = asked(model, partitions, engine=Here(partitions), **more)
    assert found.overall.scores == local.overall.scores
    assert str(found) == str(local)
    assert found.certificate.guarantee == local.certificate.guarantee


def test_numbers_too(tmp_path):
    schema = Schema.from_toml(SCHEMA.replace('target = "label"', 'target = "b"'))
    fitted = PrivateLinearRegression(2.0, schema=schema, unsafe_seed=1).fit(frame().drop(columns="person"))
    partitions = written(tmp_path / "files", frame())
    local, found = (asked(fitted, partitions, engine=engine) for engine in (None, Here(partitions)))
    assert str(found) == str(local)


@pytest.mark.parametrize("broken", [False, True])
def test_a_person_in_all_files_moves_the_counts_by_one_at_most(tmp_path, model, broken):
    table, steps = frame(300), 2**20
    query = CountLayout(task_for(model, None, None)).query("l1")
    mine = frame(1, seed=9).loc[[0] * 9].assign(person=7)
    with_me = pd.concat([table[:100], mine[:3], table[100:200], mine[3:6], table[200:], mine[6:]])
    with_me["person"] = with_me["person"].astype("Int64")
    totals = []
    for name, rows, cuts in (("with", with_me, (0, 103, 206)), ("without", table, (0, 100, 200))):
        partitions = written(tmp_path / name, rows, cuts)
        question = EvaluationQuestion(model, task_for(model, None, None), None, None, "person")
        shares = shares_of(partitions, None if broken else "person")
        answers = [counts_there(Counting(share, question, query, 1.0 / steps)) for share in shares]
        assert {answer.code for answer in answers} == {"sum"}
        totals.append(np.sum([answer.counts for answer in answers], axis=0))
    moved = np.abs(totals[0] - totals[1]).sum() / steps
    assert moved == pytest.approx(3.0 if broken else 1.0, abs=1e-4)
    assert (moved > 1) == broken


def test_nothing_is_paid_where_a_file_fails(tmp_path, model):
    partitions = written(tmp_path / "files", frame(60), cuts=(0, 30))
    frame(31).to_parquet(tmp_path / "files" / "part-1.parquet")
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger:
        with pytest.raises(PlanViolation, match="Partition 1: its file changed"):
            asked(model, partitions, engine=Here(partitions), ledger=ledger)
        assert ledger.spent() is None
        asked(model, partitions := Partitions(partitions.pattern), engine=Here(partitions), ledger=ledger)
        assert ledger.spent() is not None


class Talkative:
    """A model that quotes a record when it fails."""

    schema, classes_ = Schema.from_toml(SCHEMA), ("no", "yes")

    def predict_proba(self, table):
        raise InvalidParameter("record", table["sex"][0], "is what I know.")


@pytest.mark.parametrize(
    ("trouble", "code"), [("gone", "unreadable"), ("other columns", "refused"), ("raises", "sum")]
)
def test_workers_answer_with_codes(tmp_path, model, trouble, code):
    table = frame(30).assign(sex="secret-cell")
    partitions = written(tmp_path / "files", table, cuts=(0,))
    path = tmp_path / "files" / "part-0.parquet"
    if trouble == "gone":
        path.unlink()
    elif trouble == "other columns":
        table.drop(columns="b").to_parquet(path)
        partitions = Partitions(path)
    asks = Talkative() if trouble == "raises" else model
    question = EvaluationQuestion(asks, task_for(asks, None, None), None, None, None)
    answer = counts_there(
        Counting(shares_of(partitions)[0], question, CountLayout(question.task).query("l1"), 2.0**-20)
    )
    assert answer.code == code
    assert (answer.counts is None) == (
        trouble != "raises"
    )  # records that a model fails at are counted as such
    assert "secret" not in repr(answer)


def test_what_is_not_in_the_files_is_refused(tmp_path, model):
    partitions = written(tmp_path / "files", frame(60), cuts=(0, 30))
    engine = Here(partitions)
    cases = [
        (lambda: asked(model, frame(), engine=engine), "must be Partitions"),
        (lambda: asked(model, partitions, y=np.zeros(60), engine=engine), "must be the name of a column"),
        (lambda: asked(model, partitions, unit=np.zeros(60), engine=engine), "must be the name of a column"),
        (lambda: asked(model, partitions, unit="who", engine=engine), "not a column of the table"),
        (lambda: asked(model, partitions, by={"sex": (np.zeros(60), (0, 1))}, engine=engine), "by"),
        (lambda: asked(lambda x: x, partitions, classes=(0, 1), engine=engine), "without a schema"),
    ]
    for refused, said in cases:
        with pytest.raises(InvalidParameter, match=said):
            refused()


def test_workers_get_no_ledger_and_no_seed(model):
    with Ledger.in_memory(GaussianFilter(Budget(1.0, 1e-6))) as ledger:
        mine = PrivateLogisticRegression(1.0, ledger=ledger, unsafe_seed=3)
        sent = without_secrets(EvaluationQuestion(mine, None, None, None, None)).model
    assert (sent.ledger, sent.unsafe_seed, sent.ledger_key) == (None, None, None)
    assert mine.ledger is ledger
    assert without_secrets(EvaluationQuestion(len, None, None, None, None)).model is len
