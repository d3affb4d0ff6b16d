"""One paid release, and scores with intervals that keep what they say."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import discreet
from discreet import Budget, Ledger
from discreet.errors import BudgetExceeded, InvalidParameter
from discreet.evaluation import answers, evaluate, question
from discreet.evaluation.count_layout import CountLayout
from discreet.evaluation.outcomes import Outcome, Shared
from discreet.evaluation.scoring import NoisyCounts, Score, Scoring, error_bins, probability_bins
from discreet.evaluation.splitting import unit_ids
from discreet.evaluation.tasks import Labels, ManyClasses, NumericTask, TwoClasses
from discreet.events import Gaussian, Laplace
from discreet.ledger import GaussianFilter
from discreet.linear import PrivateLinearRegression, PrivateLogisticRegression
from discreet.trusted.rows import PrivateRows, person_weights

HUGE = {"epsilon": 12.0, "delta": 0.0, "unsafe_seed": 11}


def people(rows=6000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 2))
    p = 1 / (1 + np.exp(-(6 * x[:, 0] - 3 + x[:, 1] - 0.5)))
    return x, (rng.random(rows) < p).astype(int), p


def second_column(x):
    return 1 / (1 + np.exp(-(6 * x[:, 0] - 3 + x[:, 1] - 0.5)))


def test_scores_of_two_classes_are_those_of_scikit_learn():
    x, y, p = people()
    found = evaluate(second_column, x, y, classes=(0, 1), **HUGE)
    exact = {
        "records": len(y),
        "accuracy": np.mean((p > 0.5) == y),
        "AUC": roc_auc_score(y, p),
        "log loss": log_loss(y, p),
        "Brier score": brier_score_loss(y, p),
        "recall": np.mean(p[y == 1] > 0.5),
        "precision": np.mean(y[p > 0.5]),
        "prevalence": y.mean(),
    }
    for name, value in exact.items():
        assert found[name].value == pytest.approx(value, rel=0.006), name
    assert found.overall.confusion == pytest.approx(
        np.array([[np.sum((y == a) & ((p > 0.5) == b)) for b in (0, 1)] for a in (0, 1)]), abs=30
    )
    for point in found.overall.calibration:
        assert abs(point.predicted - point.observed.value) < 0.08


def test_scores_of_many_classes():
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.ones(4), 8000)
    y = np.array([rng.choice(4, p=row) for row in chances])
    found = evaluate(lambda x: x, chances, np.array(list("abcd"))[y], classes=tuple("abcd"), **HUGE)
    assert found["accuracy"].value == pytest.approx(np.mean(chances.argmax(1) == y), rel=0.01)
    assert found["log loss"].value == pytest.approx(log_loss(y, chances), rel=0.01)
    brier = np.mean(np.square(chances - np.eye(4)[y]).sum(1))
    assert found["Brier score"].value == pytest.approx(brier, rel=0.015)
    assert found["recall of b"].value == pytest.approx(np.mean(chances[y == 1].argmax(1) == 1), rel=0.03)
    assert found.overall.confusion.shape == (4, 4)
    assert found.classes == tuple("abcd")


def test_scores_of_numbers():
    rng = np.random.default_rng(0)
    x = rng.random((8000, 1))
    y = 100 * (0.6 * x[:, 0] + 0.2 + 0.05 * rng.standard_normal(8000))
    model = LinearRegression().fit(x, y)
    error = y - model.predict(x)
    found = evaluate(model, x, y, target_bounds=(0.0, 100.0), **HUGE)
    assert found["R2"].value == pytest.approx(1 - np.mean(error**2) / y.var(), abs=0.005)
    assert found["MAE"].value == pytest.approx(np.mean(abs(error)), rel=0.01)
    assert found["RMSE"].value == pytest.approx(np.sqrt(np.mean(error**2)), rel=0.01)


def test_models_that_answer_with_classes_or_scores_only():
    x, y, _ = people()
    model = LogisticRegression().fit(x, y)

    class Scored:
        classes_ = np.array([0, 1])
        decision_function = staticmethod(model.decision_function)
        predict = staticmethod(model.predict)

    class Plain:
        predict = staticmethod(model.predict)

    scored, plain = (
        evaluate(Scored(), x, y, **HUGE),
        evaluate(Plain(), x, y, classes=(0, 1), **HUGE),
    )
    assert scored["AUC"].value == pytest.approx(roc_auc_score(y, model.decision_function(x)), abs=0.003)
    assert "log loss" not in scored.scores
    assert plain["accuracy"].value == pytest.approx(model.score(x, y), abs=0.005)
    assert "AUC" not in plain.scores


def cells_of(task, y, answers):
    """The cells and shares of all records, for each block."""
    rows = np.column_stack([y, answers])
    return [Shared(*Outcome(view)(rows, None)) for view in task.views]


def counted(cells, shares, size):
    """How many records each cell has."""
    return np.bincount(cells.ravel(), shares.ravel(), size)[:size]


def covered(task, y, answers, truths, epsilon, repeats, rng, rows):
    """How often the intervals hold the truth, over records drawn anew and noise drawn anew."""
    cells, scale, scoring = (
        cells_of(task, y, answers),
        math.sqrt(2) / epsilon,
        Scoring(float(stats.norm.ppf(0.95))),
    )
    longer = sum(math.sqrt(block.share) for block in task.blocks)
    hits = dict.fromkeys(truths, 0)
    for _ in range(repeats):
        drawn, counts = rng.integers(len(y), size=rows), []
        for place, block in enumerate(task.blocks):
            noise = scale * longer / math.sqrt(block.share)
            size = block.size - (place == 0)
            exact = counted(*(part[drawn] for part in cells[place]), size)
            noisy = exact + rng.laplace(0, noise / math.sqrt(2), size)
            counts.append(NoisyCounts(noisy, noise))
        measured = task.measure(counts, scoring)
        for name, truth in truths.items():
            hits[name] += measured[name].lower <= truth <= measured[name].upper
    return hits


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_intervals_hold_what_they_say(epsilon):
    """90 % intervals, 400 tables each: fewer than 83 % or more than 97 % is a fault. False alarm: below 1e-5."""
    rng = np.random.default_rng(7)
    _, y, p = people(20_000)
    truths = {
        "accuracy": np.mean((p > 0.5) == y),
        "AUC": roc_auc_score(y, p),
        "Brier score": np.mean((p - y) ** 2),
    }
    task, answers = TwoClasses((0, 1)), np.column_stack([1 - p, p])
    hits = covered(task, y.astype(float), answers, truths, epsilon, 400, rng, 3000)
    assert all(0.83 * 400 < count < 0.97 * 400 for count in hits.values()), hits
    z = np.clip(p + 0.1 * rng.standard_normal(len(p)), 0, 1)
    error = {"MAE": np.mean(abs(z - p)), "R2": 1 - np.mean((z - p) ** 2) / z.var()}
    hits = covered(NumericTask((0.0, 1.0)), z, p[:, None], error, epsilon, 400, rng, 3000)
    assert all(0.83 * 400 < count < 0.975 * 400 for count in hits.values()), hits


@pytest.mark.parametrize("width", [5.0, 10.0, 20.0, 50.0])
def test_intervals_of_rare_counts_within_wide_bounds_hold_what_they_say(width):
    """Errors far below the bounds, and a variance that noise hides: MAE covered 0 %, R2 58 %, of 150 tables before.

    What is not resolved says nothing wrong. Fewer than 83 % of 300 tables is a fault: a false alarm below 1e-4 each.
    """
    rng = np.random.default_rng(11)
    mean = np.exp(-2.5 + 0.5 * rng.standard_normal(200_000))
    y = rng.poisson(mean).astype(float)
    truths = {
        "MAE": np.mean(abs(y - mean)),
        "RMSE": np.sqrt(np.mean((y - mean) ** 2)),
        "R2": 1 - np.mean((y - mean) ** 2) / y.var(),
    }
    task = NumericTask((0.0, width))
    hits = covered(task, y, mean[:, None], truths, 2.0, 300, rng, 20_000)
    assert all(count > 0.83 * 300 for count in hits.values()), hits


def test_a_share_of_a_whole_that_noise_hides_is_not_resolved():
    scoring = Scoring(1.645)
    part, whole = Score(1.0, 0.0, 2.0, 0.1, 0.1), Score(2.0, 0.0, 4.0, 0.4, 0.1)
    found = scoring.missing_share(part, whole, 0.0)
    assert (found.value, found.upper) < (0.5 + 1e-12, 1.0)
    # Fieller's ends, by their own definition: part - r * whole is just as far from 0 as the interval reaches.
    for end in (found.lower, found.upper):
        r = 1 - end
        assert abs(1.0 - r * 2.0) == pytest.approx(1.645 * math.sqrt(0.02 + r**2 * 0.17))
    assert 0.5 - found.lower > found.upper - 0.5
    assert not scoring.missing_share(part, replace(whole, noise=0.5), 0.0).resolved
    assert not scoring.missing_share(part, replace(whole, sampling=1.3), 0.0).resolved


def test_a_variance_that_noise_hides_is_noted_with_what_to_do():
    rng = np.random.default_rng(0)
    y = rng.poisson(0.1, 5000).astype(float)
    found = evaluate(
        lambda rows: np.full(len(rows), 0.1), y[:, None], y, target_bounds=(0, 50), epsilon=0.5, unsafe_seed=1
    )
    assert not found["R2"].resolved
    assert any("target bounds" in note for note in found.notes)


def test_recalls_of_many_classes_are_resolved_and_hold_what_they_say():
    """The noise of 26 cells hid half of them. 26 recalls of 20 tables: below 84 % is a false alarm of 1e-5."""
    rng, classes = np.random.default_rng(5), tuple(range(26))
    found, truths = [], 1 - (0.1 + 0.3 * (np.arange(26) % 2)) * 25 / 26
    for seed in range(20):
        y = rng.integers(0, 26, 6000)
        said = np.where(rng.random(6000) < 0.1 + 0.3 * (y % 2), rng.integers(0, 26, 6000), y)
        answers = np.where(said[:, None] == np.arange(26), 0.8, 0.2 / 25)
        scores = evaluate(lambda rows: rows, answers, y, classes=classes, epsilon=0.5, unsafe_seed=seed)
        found += [(scores[f"recall of {label}"], truths[label]) for label in classes]
        assert scores.overall.confusion.shape == (26, 26)
    assert np.mean([score.resolved for score, _ in found]) > 0.95
    assert np.mean([score.lower <= truth <= score.upper for score, truth in found]) > 0.84


def test_intervals_without_the_noise_would_be_caught():
    """The broken twin: sampling alone does not cover at a small epsilon."""
    rng = np.random.default_rng(7)
    _, y, p = people(20_000)

    class Deaf(Scoring):
        def score(self, value, errors, *limits):
            return super().score(value, (0.0, errors[1]), *limits)

    task, hits, truth = TwoClasses((0, 1)), 0, roc_auc_score(y, p)
    cells = cells_of(task, y.astype(float), np.column_stack([1 - p, p]))[0].cells[:, 0]
    for _ in range(200):
        noisy = np.bincount(cells[rng.integers(len(y), size=3000)], minlength=64) + rng.normal(0, 20.0, 64)
        score = task.measure([NoisyCounts(noisy, 20.0)], Deaf(1.645))["AUC"]
        hits += score.lower <= truth <= score.upper
    assert hits < 0.83 * 200


def test_squared_errors_and_variance_go_together(monkeypatch):
    """Errors of targets far from the mean are large here: R2 has the error that resampling finds, within 10 %, and
    the broken twin, which takes both as independent, says a fifth more."""
    rng = np.random.default_rng(3)
    target = np.clip(0.5 + 0.2 * rng.standard_normal(20_000), 0, 1)
    answer = target - 0.3 * (target - 0.5) - 0.05 * rng.standard_normal(20_000)
    task, answers = NumericTask((0.0, 1.0)), answer[:, None]
    found = []
    for _ in range(300):
        drawn = rng.integers(20_000, size=3000)
        found.append(1 - np.mean((target - answer)[drawn] ** 2) / target[drawn].var())

    def told():
        counts = [
            NoisyCounts(counted(*where, block.size - last), 0.0)
            for where, block, last in zip(cells_of(task, target, answers), task.blocks, (1, 0), strict=True)
        ]
        return task.measure(counts, Scoring(1.0))["R2"].sampling * math.sqrt(20_000 / 3000)

    assert told() == pytest.approx(np.std(found), rel=0.1)
    monkeypatch.setattr("discreet.evaluation.tasks._MOST_ALIKE", 0.0)
    assert told() > 1.2 * np.std(found)


def test_few_records_are_not_resolved():
    found = evaluate(
        lambda x: np.full(len(x), 0.7),
        np.zeros((3, 1)),
        [0, 1, 1],
        classes=(0, 1),
        epsilon=0.1,
        unsafe_seed=1,
    )
    assert not found["AUC"].resolved
    assert (found["AUC"].lower, found["AUC"].upper) == (0.0, 1.0)
    assert "not resolved" in str(found)
    assert found.to_dict()["overall"]["scores"]["AUC"]["value"] is None
    assert len(found.notes) == 1


TASKS = (
    TwoClasses((0, 1)),
    ManyClasses((0, 1, 2)),
    ManyClasses(tuple(range(9))),
    Labels((0, 1, 2)),
    NumericTask((0.0, 2.0)),
)


def total_of(task, y, answers, norm, persons=None):
    """The sum of all records, in units of the most that one may add."""
    rows, grid = PrivateRows(np.column_stack([y, answers]), "add-remove", persons), 2.0**-30
    return rows._total(CountLayout(task).query(norm), grid) * grid


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{type(task).__name__} {len(task.labels)}")
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_person_moves_the_release_by_one_at_most(task, norm):
    """All rows of a person, missing answers and labels among them, in the norm that the noise is for."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60).astype(float)
    y[::7] = np.nan
    if isinstance(task, TwoClasses):
        y[y == 2] = np.nan
    answers = rng.dirichlet(np.ones(max(3, len(task.labels))), 60)
    answers[3] = np.nan
    if isinstance(task, Labels):
        answers = np.floor(answers[:, :1] * 3)
    elif isinstance(task, NumericTask | TwoClasses):
        answers = answers[:, : 1 if isinstance(task, NumericTask) else 2]
    who = [one.encode() for one in rng.choice(["ann", "bob", "eve", "joe"], 60)]
    order = 2 if norm == "l2" else 1
    whole = total_of(task, y, answers, norm, who)
    for person in set(who):
        rest = np.array([one != person for one in who])
        part = total_of(task, y[rest], answers[rest], norm, [one for one in who if one != person])
        assert 0 < np.linalg.norm(whole - part, order) <= 1.0
    uncapped, part = total_of(task, y, answers, norm), total_of(task, y[rest], answers[rest], norm)
    assert np.linalg.norm(uncapped - part, order) > 1.0  # the broken twin: all rows count


def test_weights_of_persons_sum_to_one_and_nobody_counts_nothing():
    ids = unit_ids(pd.DataFrame({"who": ["a", None, "b", "a", float("nan")]}), "who", 5)
    assert person_weights(ids).tolist() == [0.5, 0.0, 1.0, 0.5, 0.0]


def test_a_person_counts_as_one():
    frame = pd.DataFrame({"x": [1.0] * 5000 + [0.0] * 500, "who": [0] * 5000 + list(range(1, 501))})
    frame["y"] = 0
    found = evaluate(lambda rows: rows["x"].to_numpy(), frame, "y", classes=(0, 1), unit="who", epsilon=8.0)
    assert found["records"].value == pytest.approx(501, abs=10)
    assert found["accuracy"].value == pytest.approx(500 / 501, abs=0.02)
    assert found.certificate.plan.settings["unit"] == {"column": "who"}
    assert found.unit == found.certificate.guarantee.unit == "person"


def test_noise_is_laplace_where_that_is_less_and_gaussian_where_the_ledger_says_so():
    x, y, _ = people(500)
    alone = evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0)
    (event,) = alone.certificate.ledger.spent()
    assert isinstance(event, Laplace)
    assert alone.certificate.guarantee.within(Budget(1.0, 0.0))
    with Ledger.in_memory(GaussianFilter(Budget(3.0, 1e-5))) as ledger:
        shared = evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0, ledger=ledger)
        (event,) = shared.certificate.ledger.spent()
        assert isinstance(event, Gaussian)
        assert shared.certificate.guarantee.within(Budget(1.0, 1e-6))
        assert shared.certificate.verify(ledger).outcome == "accepted"
        with pytest.raises(BudgetExceeded):
            evaluate(second_column, x, y, classes=(0, 1), epsilon=3.5, delta=1e-5, ledger=ledger)


def test_the_certificate_names_what_was_declared_and_nothing_of_the_records(tmp_path):
    x, y, _ = people(300)
    found = evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0, ledger=tmp_path / "test.ledger")
    assert "300" not in json.dumps(found.certificate.plan.to_dict())
    assert any("model" in text for text in found.certificate.not_covered)
    with pytest.raises(BudgetExceeded):
        evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0, ledger=tmp_path / "test.ledger")


def test_a_seed_is_told():
    x, y, _ = people(300)
    one, other = (
        evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0, unsafe_seed=3).to_dict() for _ in range(2)
    )
    assert one["overall"] == other["overall"]
    assert not evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0, unsafe_seed=3).certificate.trusted


def test_a_record_that_the_model_fails_at_is_counted_and_changes_nothing_else():
    x, y, _ = people(2000)
    model = LogisticRegression().fit(x, y)
    hurt = x.copy()
    hurt[[5, 77, 1500], 0] = np.nan
    found = evaluate(model, hurt, y, **HUGE)
    assert found["records"].value == pytest.approx(1997, abs=20)
    good = np.isfinite(hurt).all(1)
    assert found["accuracy"].value == pytest.approx(model.score(hurt[good], y[good]), abs=0.01)


def test_labels_that_nobody_declared_are_noted():
    x, y, _ = people(2000)
    found = evaluate(second_column, x, np.where(y == 1, "yes", "no"), classes=(0, 1), epsilon=1.0)
    assert any("could not be scored" in note for note in found.notes)
    clean = [evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0).notes for _ in range(20)]
    assert clean == [()] * 20  # six standard deviations: a false alarm in 10 000 evaluations


def test_answers_that_are_no_probabilities_are_not_scored():
    x, y, _ = people(2000)
    found = evaluate(lambda rows: 5 * rows[:, 0], x, y, classes=(0, 1), epsilon=4.0)
    assert any("probabilities" in note for note in found.notes)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 1.0, "confidence": 1.0}, "confidence"),
        ({"epsilon": 1.0, "classes": (1,)}, "classes"),
        ({"epsilon": 1.0, "target_bounds": (1, 0)}, "target_bounds"),
        ({"epsilon": 1.0, "by": "sex", "classes": (0, 1)}, "by"),
        ({"epsilon": 1.0, "unit": "who", "classes": (0, 1)}, "unit"),
        ({"epsilon": 1.0, "ledger": 7, "classes": (0, 1)}, "ledger"),
        ({"epsilon": 1.0}, "model"),
    ],
)
def test_what_means_nothing_is_refused_by_name(wrong, name):
    x, y, _ = people(10)
    with pytest.raises(InvalidParameter, match=rf"^{name}"):
        evaluate(second_column, x, y, **wrong)


def test_a_deaf_model_is_refused_before_anything_is_paid():
    x, y, _ = people(10)

    def deaf(rows):
        raise RuntimeError("no")

    with pytest.raises(InvalidParameter, match="made-up row"):
        evaluate(deaf, x, y, classes=(0, 1), epsilon=1.0)
    with pytest.raises(InvalidParameter, match="for each record"):
        evaluate(lambda rows: np.ones((len(rows), 3)), x, y, classes=(0, 1), epsilon=1.0)


@pytest.mark.parametrize(
    "mixing",
    [
        lambda rows: 0.5 + 0.1 * (rows[:, 0] - rows[:, 0].mean()),
        lambda rows: rows[:, 0].argsort().argsort() / len(rows),
        lambda rows: np.full(len(rows), rows.mean()),
    ],
)
def test_a_model_that_looks_at_its_neighbours_is_refused(mixing):
    x, y, _ = people(10)
    with pytest.raises(InvalidParameter, match="each record by itself"):
        evaluate(mixing, x, y, classes=(0, 1), epsilon=1.0)


def mixes_on_real_rows_only(rows):
    """Made-up rows of zeros and ones are left alone; gaps of real ones are filled with the mean of the others."""
    real = ~np.isin(rows, (0.0, 1.0)).all()
    return 0.5 + 0.4 * np.tanh(rows[:, 0] - (rows[:, 0].mean() if real else 0.0))


def test_a_model_that_mixes_real_records_only_is_refused_before_anything_is_paid(tmp_path, monkeypatch):
    x, y, _ = people(200)
    settings = {"classes": (0, 1), "epsilon": 1.0, "ledger": tmp_path / "ledger"}
    with pytest.raises(InvalidParameter, match="alone than among the others"):
        evaluate(mixes_on_real_rows_only, x, y, **settings)
    assert not (tmp_path / "ledger").exists()
    frame = pd.DataFrame(x, columns=["a", "b"])
    with pytest.raises(InvalidParameter, match="alone than among the others"):
        evaluate(lambda rows: mixes_on_real_rows_only(rows.to_numpy()), frame, y, **settings)
    sound = evaluate(second_column, x, y, **settings)
    assert any("(1 - p)^8" in check for check in sound.certificate.checks)
    monkeypatch.setattr(answers, "COMPARED", 0)  # the broken twin
    evaluate(mixes_on_real_rows_only, x, y, classes=(0, 1), epsilon=1.0)


def test_code_that_asks_a_model_is_believed_no_more_than_the_model(monkeypatch):
    """A hostile twin of ``how_to_ask``, also for a model of this library: its answers are compared all the same."""
    x, y, _ = people(200)
    model = PrivateLogisticRegression(1.0, bounds=(0, 1), unsafe_seed=1).fit(x, y)
    found = evaluate(model, x, y, epsilon=1.0)
    assert not any("(1 - p)^8" in check for check in found.certificate.checks)
    for hostile, refusal in [
        (lambda rows: np.full((len(rows), 2), rows.mean()), "alone than among the others"),
        (lambda rows: np.full((len(rows), 3), 0.5), "must answer with 2"),
    ]:
        monkeypatch.setattr(question, "how_to_ask", lambda *_, ask=hostile: (ask, 2))
        with pytest.raises(InvalidParameter, match=refusal):
            evaluate(model, x, y, epsilon=1.0)

    def quoting(rows):
        raise InvalidParameter("secret", rows.tolist(), "of a record")

    monkeypatch.setattr(question, "how_to_ask", lambda *_: (quoting, 2))
    assert (
        evaluate(model, x, y, epsilon=1.0)["records"].value < 50
    )  # nobody could be scored, and nothing is quoted


def test_a_network_in_training_mode_is_refused():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2), torch.nn.Softmax(1)
    )
    x, y, _ = people(10)

    def model(rows):
        return net(torch.as_tensor(rows).float())

    torch.manual_seed(0)
    with pytest.raises(InvalidParameter, match=r"net\.eval"):
        evaluate(model, x, y, classes=(0, 1), epsilon=1.0)
    net.eval()
    evaluate(model, x, y, classes=(0, 1), epsilon=1.0)


def test_groups_have_scores_of_their_own():
    x, y, p = people(6000)
    sex = np.where(np.arange(6000) % 4 == 0, "F", "M")
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "sex": sex, "age": np.arange(6000) % 3})
    frame.loc[:9, "sex"] = None
    y = np.where(sex == "F", 1 - y, y)
    found = evaluate(
        lambda rows: second_column(rows[["a", "b"]].to_numpy()),
        frame,
        y,
        classes=(0, 1),
        by={"sex": ("F", "M"), "age": (0, 1)},
        **HUGE,
    )
    right = (p > 0.5) == y
    for value in "FM":
        exact = right[(frame["sex"] == value).to_numpy()].mean()
        assert found.by("sex")[value]["accuracy"].value == pytest.approx(exact, abs=0.02)
    assert found.by("age")[1]["records"].value == pytest.approx(2000, abs=30)
    assert found.by("age")[None]["records"].value == pytest.approx(2000, abs=30)  # age 2 is not declared
    assert "age (other): accuracy" in str(found)
    assert found["accuracy"].value == pytest.approx(right.mean(), abs=0.01)
    assert "sex F: accuracy" in str(found)
    by_array = evaluate(second_column, x, y, classes=(0, 1), by={"sex": (sex, ("F", "M"))}, **HUGE)
    assert list(by_array.by("sex")) == ["F", "M"]
    assert "(other)" not in str(by_array)
    assert by_array.by("sex")["F"]["records"].value == pytest.approx(1500, abs=20)
    with pytest.raises(InvalidParameter, match="declared values"):
        evaluate(lambda rows: np.ones(len(rows)), frame, y, classes=(0, 1), by="sex", epsilon=1.0)


def test_our_own_models_know_what_they_answer(tmp_path):
    schema = discreet.linear.Schema(
        {
            "a": discreet.linear.Numeric(0, 1),
            "sex": discreet.linear.Category(("F", "M")),
            "ill": discreet.linear.Flag("yes"),
        },
        target="ill",
    )
    x, y, _ = people(3000)
    frame = pd.DataFrame(
        {"a": x[:, 0], "sex": np.where(x[:, 1] > 0.5, "F", "M"), "ill": np.where(y, "yes", "no")}
    )
    model = PrivateLogisticRegression(epsilon=4.0, schema=schema, unsafe_seed=1).fit(frame)
    model.save(tmp_path / "model")
    exact = np.mean(model.predict(frame) == (y == 1))
    for fitted in (model, discreet.load(tmp_path / "model")):
        found = evaluate(fitted, frame, by="sex", **HUGE)
        assert found["accuracy"].value == pytest.approx(exact, abs=0.01)
        assert set(found.by("sex")) == {"F", "M"}
    line = PrivateLinearRegression(epsilon=4.0, bounds=(0, 1), target_bounds=(0, 1), unsafe_seed=1).fit(
        x, x[:, 0]
    )
    assert evaluate(line, x, x[:, 0], **HUGE)["R2"].value > 0.9


def test_who_was_fitted_as_a_person_is_scored_as_one(tmp_path):
    """The unit of the fit is that of the evaluation, unless another is given; never less than it, without a word."""
    x, y, _ = people(3000)
    frame = pd.DataFrame({"a": x[:, 0], "ill": y, "who": np.arange(3000) // 3})
    columns = {"a": {"bounds": [0, 1]}, "ill": {"flag": 1}}
    schema = {"columns": columns, "target": "ill"}
    by_name = PrivateLogisticRegression(epsilon=4.0, schema=schema, unit="who", unsafe_seed=1).fit(frame)
    by_schema = PrivateLogisticRegression(
        epsilon=4.0, schema=schema | {"unit": {"column": "who"}}, unsafe_seed=1
    ).fit(frame)
    by_name.save(tmp_path / "model")
    for model in (by_name, by_schema, discreet.load(tmp_path / "model")):
        found = evaluate(model, frame, **HUGE)
        assert found["records"].value == pytest.approx(1000, abs=10)
        assert found.certificate.guarantee.unit == "person"
        with pytest.raises(InvalidParameter, match=r"unit='who'.* an id for each row"):
            evaluate(model, frame.drop(columns="who"), **HUGE)
    found = evaluate(by_name, frame, unit=np.arange(3000), **HUGE)
    assert found["records"].value == pytest.approx(3000, abs=10)
    rows = PrivateLogisticRegression(epsilon=4.0, schema=schema, unsafe_seed=1).fit(frame)
    assert evaluate(rows, frame, **HUGE).certificate.guarantee.unit == "record"


def test_tables_from_elsewhere_are_read_or_refused_by_name(tmp_path):
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    x, y, _ = people(2000)
    frame = pd.DataFrame({"a": x[:, 0], "ill": y, "who": np.arange(2000) // 2})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    columns = {"a": {"bounds": [0, 1]}, "ill": {"flag": 1}}
    model = PrivateLogisticRegression(
        epsilon=4.0, schema={"columns": columns, "target": "ill"}, unsafe_seed=1
    ).fit(frame)
    expected = str(evaluate(model, frame, unit="who", **HUGE))
    elsewhere = (
        tmp_path / "t.csv",
        str(tmp_path / "t.parquet"),
        polars.from_pandas(frame).lazy(),
        duckdb.connect().read_parquet(str(tmp_path / "t.parquet")),
    )
    for table in elsewhere:
        assert str(evaluate(model, table, unit="who", **HUGE)) == expected
        with pytest.raises(InvalidParameter, match="must be in memory"):
            discreet.split(table, test=0.3)
        with pytest.raises(InvalidParameter, match="must be in memory for a model without a schema"):
            evaluate(second_column, table, "ill", classes=(0, 1), **HUGE)
    with pytest.raises(InvalidParameter, match="unit='nobody'"):
        evaluate(model, tmp_path / "t.csv", unit="nobody", **HUGE)


def test_torch_modules_by_a_function():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Softmax(1))
    x, y, _ = people(500)
    found = evaluate(lambda rows: net(torch.as_tensor(rows).float()), x, y, classes=(0, 1, 2), epsilon=4.0)
    assert 0 <= found["accuracy"].value <= 1


def test_forms_for_people_and_programs():
    x, y, _ = people(2000)
    found = evaluate(second_column, x, y, classes=(0, 1), epsilon=1.0)
    assert "AUC" in str(found)
    assert "(1, 0)-differentially private" in str(found)
    assert found._repr_html_().count("<tr>") == len(found.scores) + 1
    assert json.loads(json.dumps(found.to_dict()))["overall"]["scores"]["AUC"]["value"] == found["AUC"].value
    with pytest.raises(InvalidParameter, match="must be one of"):
        found["auc"]


def test_means_over_bins_are_what_integrals_say():
    for bins in (probability_bins(32), error_bins(18)):
        t = (np.arange(20_000) + 0.5) / 20_000
        for low, high, middle, square, fourth, surprise in zip(
            bins.low, bins.high, bins.middle, bins.square, bins.fourth, bins.surprise, strict=True
        ):
            inside = low + (high - low) * t
            assert middle == pytest.approx(inside.mean())
            assert square == pytest.approx((inside**2).mean(), rel=1e-6)
            assert fourth == pytest.approx((inside**4).mean(), rel=1e-6)
            assert surprise == pytest.approx(-np.log(inside).mean(), rel=1e-3)
        assert (bins.edges[0], bins.edges[-1]) == (0.0, 1.0)
    assert 0.5 in probability_bins(32).edges


def test_leaning_bins_sum_smooth_densities_exactly_where_even_ones_do_not():
    bins, errors = error_bins(18), np.abs(np.random.default_rng(0).normal(0, 0.08, 200_000))
    counts = np.histogram(np.minimum(errors, 1.0), bins.edges)[0]
    for power, even in ((1, bins.middle), (2, bins.square)):
        exact = np.sum(errors**power)
        assert abs(counts @ bins.leaning(power) / exact - 1) < 0.01
        assert abs(counts @ even / exact - 1) > 0.01
