"""Sums over partitions: each counts once, whatever is asked twice, lost, changed or lied about. Without a cluster."""

import hashlib
import json
import threading

import numpy as np
import pandas as pd
import pytest

from discreet import Budget
from discreet.core.noise import BoundedSum
from discreet.errors import AlreadyRunning, BudgetExceeded, InvalidParameter, PlanViolation
from discreet.events import Gaussian
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear import (
    Partitions,
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
)
from discreet.linear import contributions as module
from discreet.linear.additive import crossings
from discreet.linear.column_kinds import Unit
from discreet.linear.contributions import Task, contribution
from discreet.linear.homes import Share
from discreet.linear.partitions import Part
from discreet.linear.public_log import PublicLog
from discreet.linear.roll_call import Answer, Tally
from discreet.linear.tables import table_in
from support.partitions_here import Here, model, written

GRID = 2.0**-10


@pytest.mark.parametrize(
    "make", [PrivateLogisticRegression, PrivateAdditiveClassifier, PrivateLinearRegression]
)
def test_partitions_give_the_bits_of_one_table(tmp_path, make):
    partitions = written(tmp_path)
    target = "c" if make is PrivateLinearRegression else "label"
    local = model(make).fit(partitions, y=target)
    found = model(make).fit(partitions, y=target, engine=Here(partitions))
    ask = "predict" if make is PrivateLinearRegression else "decision_function"
    rows = np.random.default_rng(1).random((50, 2 + (ask != "predict"))) * 10
    names = [name for name in ("a", "b", "c") if name != target]
    table = pd.DataFrame(rows[:, : len(names)], columns=names)
    if target == "c":
        table["label"] = 1
    np.testing.assert_array_equal(getattr(found, ask)(table), getattr(local, ask)(table))
    assert found.certificate_.guarantee == local.certificate_.guarantee


def test_learnt_bounds_too(tmp_path):
    partitions = written(tmp_path)
    make = {"epsilon": 1.0, "unsafe_seed": 5}
    local = PrivateLogisticRegression(**make).fit(partitions, y="label")
    found = PrivateLogisticRegression(**make).fit(partitions, y="label", engine=Here(partitions))
    np.testing.assert_array_equal(found.coef_, local.coef_)


def test_machines_that_turn_crossings_otherwise_stop_the_fit(tmp_path, monkeypatch):
    x = np.random.default_rng(0).random((4000, 3)) * 10
    y = x[:, 0] + (x[:, 1] - 5) * (x[:, 2] - 5) / 5 + 10
    for part in range(2):
        rows = slice(2000 * part, 2000 * (part + 1))
        columns = {"a": x[rows, 0], "b": x[rows, 1], "c": x[rows, 2], "y": y[rows]}
        pd.DataFrame(columns).to_parquet(tmp_path / f"part-{part}.parquet")
    partitions = Partitions(tmp_path / "part-*.parquet")

    def fitted(**engine):
        make = PrivateAdditiveRegressor(8.0, bounds=(0, 10), target_bounds=(0, 30), unsafe_seed=5)
        return make.fit(partitions, y="y", **engine)

    told = fitted().predict(pd.DataFrame(x[:50], columns=["a", "b", "c"]))
    found = fitted(engine=Here(partitions)).predict(pd.DataFrame(x[:50], columns=["a", "b", "c"]))
    np.testing.assert_array_equal(found, told)
    here, honest = threading.current_thread(), crossings.crossing_weights

    def other(correlation):  # as another library may: eigenvectors have no sign
        return honest(correlation) * (1 if threading.current_thread() is here else -1)

    monkeypatch.setattr(crossings, "crossing_weights", other)
    with pytest.raises(PlanViolation, match="other public numbers"):
        fitted(engine=Here(partitions, run="fit-1"))


# ---- one answer for each partition ----


def sum_of(place, *counts, release=0, **more):
    return Answer("sum", place, release, np.array(counts, np.int64), 1.0, GRID)._replace(**more)


def tally(places=2, most=(100, 100)):
    return Tally(0, places, BoundedSum(np.zeros(2, np.int64), 1.0, grid=GRID), most)


class CountsTwice(Tally):
    """The broken twin: an accumulator, as those of engines with retries."""

    def __init__(self, *known):
        super().__init__(*known)
        self.sum = np.zeros(2, np.int64)

    def add(self, answer):
        self.sum += answer.counts

    def total(self):
        return self.sum


def test_a_partition_that_answers_twice_counts_once():
    answers = [sum_of(0, 1, 2), sum_of(1, 10, 20), sum_of(0, 1, 2)]
    right, broken = tally(), CountsTwice(0, 2, BoundedSum(np.zeros(2, np.int64), 1.0, grid=GRID), (100, 100))
    for answer in answers:
        right.add(answer)
        broken.add(answer)
    assert right.total().tolist() == [11, 22]
    assert broken.total().tolist() == [12, 24]  # what must not happen, and would be seen


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (sum_of(0, 1, 3), "two different sums"),
        (sum_of(1, 1, 2, release=1), "other public numbers"),
        (sum_of(1, 1, 2, clip_norm=2.0), "other public numbers"),
        (sum_of(1, 1, 2, public="another rotation"), "other public numbers"),
        (sum_of(7, 1, 2), "not one of a partition"),
        (sum_of(1, 1, 2, 3), "another kind"),
        (sum_of(1, 1, 2, counts=np.array([0.5, 1.0])), "another kind"),
        (sum_of(1, 1, 2, counts=None), "not one of a partition"),
        (sum_of(1, 0, 2**40), "more than its rows"),
        (Answer("changed", 1, 0), "its file changed"),
        (Answer("failed", 1, 0), "the worker failed"),
    ],
)
def test_lies_and_changes_stop_the_fit(answer, said):
    counted = tally()
    counted.add(sum_of(0, 1, 2))
    with pytest.raises(PlanViolation, match=said):
        counted.add(answer)


def test_without_an_answer_of_all_there_is_no_total():
    counted = tally()
    counted.add(sum_of(0, 1, 2))
    counted.add(Answer("lost", 1, 0))
    assert counted.missing == [1]
    with pytest.raises(PlanViolation, match="nothing is released"):
        counted.total()


def test_answers_do_not_depend_on_what_was_asked_before(tmp_path):
    """Asked again, from the beginning, or after another worker had it: the same sum."""
    partitions = written(tmp_path)
    seen = []

    def thrice(task):
        first = contribution(task)
        seen.append(first.release)
        if task.release % 19:
            return [first]
        again = contribution(task)
        module._waiting.clear()  # as on another worker
        return [first, again, contribution(task)]

    found = model().fit(partitions, y="label", engine=Here(partitions, tamper=thrice))
    np.testing.assert_array_equal(found.coef_, model().fit(partitions, y="label").coef_)
    assert max(seen) > 40


def test_a_worker_that_lost_its_state_says_so(tmp_path):
    partitions = written(tmp_path)
    task = Task("lost", 3, Share(0, partitions.parts[0]), model(), "label", 3, ())
    assert contribution(task).code == "behind"


# ---- files ----


def test_a_file_that_changes_stops_the_fit(tmp_path):
    partitions = written(tmp_path)

    def changing(task):
        if task.release == 5 and task.place == 2:
            written(tmp_path, (700, 0, 501, 301))
        return [contribution(task)]

    with pytest.raises(PlanViolation, match="Partition 2: its file changed"):
        model().fit(partitions, y="label", engine=Here(partitions, tamper=changing))


@pytest.mark.parametrize("trouble", ["gone", "other columns", "raises"])
def test_workers_answer_with_codes_and_no_word_of_a_record(tmp_path, trouble, monkeypatch):
    partitions = written(tmp_path)
    part = partitions.parts[0]
    if trouble == "gone":
        (tmp_path / "part-0.parquet").unlink()
    elif trouble == "other columns":
        pd.DataFrame({"secret-cell": [1.0]}).to_parquet(part.path)
        part = Part.of(part.path)
    else:
        monkeypatch.setattr(module._Waiting, "release", lambda *_: 1 / 0)
    answer = contribution(Task(trouble, 0, Share(0, part), model(), "label", 0, ()))
    assert answer.code == {"gone": "unreadable", "other columns": "refused", "raises": "failed"}[trouble]
    assert "secret" not in repr(answer)
    assert answer.counts is None


def test_partitions_are_parquet_files(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.parquet").write_text("secret-cell")
    for pattern, said in (
        ("*.csv", "must be a Parquet file"),
        ("*.parquet", "is not a Parquet file"),
        ("*.x", "no file"),
    ):
        with pytest.raises(InvalidParameter, match=said) as refused:
            Partitions(tmp_path / pattern)
        assert "secret" not in str(refused.value)


# ---- a driver that is killed ----


class Killed(BaseException):
    pass


def spent(ledger):
    return {run.name: run.event for run in ledger.statement().runs}


@pytest.mark.parametrize("when", ["between noise and log", "while asking"])
def test_a_driver_that_was_killed_goes_on_without_another_charge(tmp_path, monkeypatch, when):
    files = tmp_path / "files"
    files.mkdir()
    partitions = written(files)
    rule = GaussianFilter(Budget(1.0, 1e-6))
    ledger = Ledger.create(tmp_path / "ledger.db", rule)
    append = PublicLog.append

    def killed_in_append(self, value):
        if len(self.values) == 7:
            raise Killed
        append(self, value)

    def killed_in_ask(task):
        if task.release == 7 and task.place == 1:
            raise Killed
        return [contribution(task)]

    engine = Here(partitions, log=tmp_path / "log")
    if when == "while asking":
        engine.tamper = killed_in_ask
    else:
        monkeypatch.setattr(PublicLog, "append", killed_in_append)
    with pytest.raises(Killed):
        model(ledger=ledger).set_params(unsafe_seed=None).fit(partitions, y="label", engine=engine)
    monkeypatch.setattr(PublicLog, "append", append)
    paid = spent(ledger)
    released = sorted((tmp_path / "log").glob("release-*.npy"))
    before = [np.load(path) for path in released]
    assert len(before) == 7
    again = Here(partitions, log=tmp_path / "log", run="another name, which the log overrules")
    found = model(ledger=ledger).set_params(unsafe_seed=None).fit(partitions, y="label", engine=again)
    for path, value in zip(released, before, strict=True):
        np.testing.assert_array_equal(np.load(path), value)  # nothing was released twice
    everything = spent(ledger)
    assert {name: everything[name] for name in paid} == paid
    assert len(everything) == len({name.partition("/")[2] for name in everything})  # each stage was paid once
    assert found.certificate_.verify()
    assert again.asked < 60 * len(partitions)


def test_an_older_copy_of_the_log_draws_nothing_again(tmp_path):
    """What is in the ledger and not in the log was seen: only the last one may have been lost with its process."""
    files = tmp_path / "files"
    files.mkdir()
    partitions, ledger = (
        written(files),
        Ledger.create(tmp_path / "ledger.db", GaussianFilter(Budget(1.0, 1e-6))),
    )
    secret = model(ledger=ledger).set_params(unsafe_seed=None)
    secret.fit(partitions, y="label", engine=Here(partitions, log=tmp_path / "log"))
    paid, values = spent(ledger), sorted((tmp_path / "log").glob("release-*.npy"))
    again = model(ledger=ledger).set_params(unsafe_seed=None)
    again.fit(
        partitions, y="label", engine=Here(partitions, log=tmp_path / "log")
    )  # the same model for nothing
    np.testing.assert_array_equal(again.coef_, secret.coef_)
    assert spent(ledger) == paid
    for kept in (len(values) - 1, len(values) - 3, 5, 1):  # also where a stage ends
        for path in values[kept:]:
            path.unlink(missing_ok=True)
        with pytest.raises(PlanViolation, match="older copy"):
            again.fit(partitions, y="label", engine=Here(partitions, log=tmp_path / "log"))
        assert sorted((tmp_path / "log").glob("release-*.npy")) == values[:kept]


def test_a_log_pays_at_every_ledger(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    partitions = written(files)
    ledgers = [Ledger.create(tmp_path / f"{k}.db", GaussianFilter(Budget(1.0, 1e-6))) for k in range(2)]
    for ledger in ledgers:
        found = model(ledger=ledger).set_params(unsafe_seed=None)
        found.fit(partitions, y="label", engine=Here(partitions, log=tmp_path / "log"))
    first, second = (sorted(map(str, spent(ledger).values())) for ledger in ledgers)
    assert first == second


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 14.0])
def test_workers_choose_noise_and_grids_by_the_ledger_of_the_driver(tmp_path, epsilon):
    """A ledger holds a part of delta back, and so a fit of epsilon 1 depends on it; workers are sent its rule."""
    partitions, rule = written(tmp_path), GaussianFilter(Budget(epsilon, 1e-6))
    local = model(ledger=Ledger.in_memory(rule)).fit(partitions, y="label")
    found = model(ledger=Ledger.in_memory(rule)).fit(partitions, y="label", engine=Here(partitions))
    np.testing.assert_array_equal(found.coef_, local.coef_)
    assert found.certificate_.together.within(rule.budget)

    def untold(task):  # the broken twin: the rule is not sent
        return [contribution(task._replace(rule=None, fit="untold"))]

    engine = Here(partitions, tamper=untold, run="fit-1")
    with pytest.raises(PlanViolation, match="other public numbers"):
        model(ledger=Ledger.in_memory(rule)).fit(partitions, y="label", engine=engine)


def test_a_log_goes_on_under_a_ledger_of_the_same_rule_only(tmp_path):
    """Another ledger would be charged for other noise than the values of the log have."""
    files, log = tmp_path / "files", tmp_path / "log"
    files.mkdir()
    partitions, budget = written(files), Budget(1.0, 1e-6)

    def fitted(rule):
        with Ledger.in_memory(rule) as ledger:
            model(ledger=ledger).fit(partitions, y="label", engine=Here(partitions, log=log))
            return ledger.spent()

    paid = fitted(GaussianFilter(budget))
    assert fitted(GaussianFilter(budget)) == paid
    for other in (GaussianFilter(budget, spare=0.0), GaussianFilter(Budget(2.0, 1e-6))):
        with pytest.raises(InvalidParameter, match="under a ledger with another rule"):
            fitted(other)
    (log / "rule.json").unlink()  # as by versions before 0.2, whose ledgers held nothing back
    with pytest.raises(InvalidParameter, match="under a ledger with another rule"):
        fitted(GaussianFilter(budget))
    assert fitted(GaussianFilter(budget, spare=0.0)) is not None


def test_a_fit_of_partitions_that_loses_a_race_pays_for_what_it_released_only(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    partitions = written(files)
    with Ledger.in_memory(GaussianFilter(Budget(1.05, 1e-6))) as ledger:

        def meanwhile(task):
            if task.release == 12 and task.place == 0:
                rest = Gaussian(200.0)
                ledger.run(rest * ledger.remaining(rest), "0" * 64, name="other").reserve(
                    ledger.remaining(rest)
                )
            return [contribution(task)]

        engine = Here(partitions, log=tmp_path / "log", tamper=meanwhile)
        with pytest.raises(BudgetExceeded) as refused:
            model(ledger=ledger).fit(partitions, y="label", engine=engine)
        told = str(refused.value)
        assert "Other runs have used the ledger while this fit was under way" in told
        assert "(" not in told, "no event is printed"
        runs = [run for run in ledger.statement().runs if run.name != "other"]
        assert (
            sum(sum(run.taken) for run in runs) == len(list((tmp_path / "log").glob("release-*.npy"))) == 12
        )


def test_one_process_at_a_time_goes_on_with_a_log(tmp_path):
    logs = [PublicLog(tmp_path / "log", "a", "fit") for _ in range(2)]
    with logs[0].lock(), pytest.raises(AlreadyRunning, match="Another process goes on"), logs[1].lock():
        pass


def test_a_log_of_another_fit_is_refused(tmp_path):
    with PublicLog(tmp_path / "log", "a", "this fit").lock():
        pass
    other = PublicLog(tmp_path / "log", "b", "that fit")
    with pytest.raises(InvalidParameter, match="the log of another fit"), other.lock():
        pass


def test_a_log_tells_nobody_else_of_which_rows_it_is(tmp_path):
    """A digest of rows, which a frame's is, would tell one row to who knows all others."""
    heads = []
    for folder in ("a", "b"):
        with PublicLog(tmp_path / folder, "fit", "digest of rows").lock():
            heads.append(json.loads((tmp_path / folder / "log.json").read_text())["fit"])
        assert (tmp_path / folder / "key").stat().st_mode & 0o077 == 0
    assert len({*heads, hashlib.sha256(b"digest of rows").hexdigest(), "digest of rows"}) == 4


def test_a_log_is_read_while_it_is_locked(tmp_path):
    """Who had read it before would draw a release again that another process has written meanwhile."""
    late, early = (PublicLog(tmp_path / "log", name, "fit") for name in ("late", "early"))
    with early.lock():
        early.append(np.arange(3.0))
    with late.lock():
        assert late.run == "early"
        assert len(late.values) == 1


def test_a_value_that_was_half_written_is_none(tmp_path):
    log, again = (PublicLog(tmp_path / "log", name, "fit") for name in "ab")
    with log.lock():
        log.append(np.arange(3.0))
    (tmp_path / "log" / ".release-00001.npy.part").write_bytes(b"half")
    with again.lock():
        assert len(again.values) == 1


def test_a_file_with_two_names_is_refused(tmp_path):
    """Its records would count twice."""
    written(tmp_path)
    (tmp_path / "part-latest.parquet").symlink_to(tmp_path / "part-0.parquet")
    with pytest.raises(InvalidParameter, match="the same file twice"):
        Partitions(tmp_path / "part-*.parquet")


def test_large_ids_are_the_same_beside_a_missing_one(tmp_path):
    """As floats they would be others: one missing id would make two people of everybody."""
    ids = [2**60 + 2 * k + 1 for k in range(50)]
    for name, column in (("a", ids), ("b", [*ids[:-1], None])):
        pd.DataFrame({"id": pd.array(column, "Int64"), "x": 0.5}).to_parquet(tmp_path / f"{name}.parquet")
    for name, count in (("a", 50), ("b", 49)):
        cells = [
            cell
            for chunk in table_in(tmp_path / f"{name}.parquet").chunks({"id": Unit("id", 2)})
            for cell in chunk["id"]
        ]
        assert [int(cell) for cell in cells if cell is not None] == ids[:count]
