"""Sums over partitions: each counts once, whatever is asked twice, lost, changed or lied about. Without a cluster."""

import hashlib
import json
import pickle

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
from discreet.linear import partition_answers as module
from discreet.linear.column_kinds import Unit
from discreet.linear.gate.partitioned_rows import PartitionedTable, PartitionQuery, QueryContext
from discreet.linear.gate.private_table import TargetRows
from discreet.linear.losses import Logistic
from discreet.linear.packed_questions import Packed, unpack
from discreet.linear.partition_answers import PartitionTask, Reading, answer
from discreet.linear.partition_results import PartitionReply, PartitionSums
from discreet.linear.partitions import PartitionFile
from discreet.linear.public_log import PublicLog
from discreet.linear.row_views.targets import ClassOf
from discreet.linear.tables import table_in
from discreet.linear.user_routing import Share
from discreet.trusted.queries import Blocks, Cells
from support.partitions_here import Here, for_workers, model, written

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


def test_pairs_that_are_found_give_the_bits_of_one_table(tmp_path):
    """Rotations travel in queries: no worker computes an eigenvector, whose sign may depend on the machine."""
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
    engine = Here(partitions)
    found = fitted(engine=engine).predict(pd.DataFrame(x[:50], columns=["a", "b", "c"]))
    np.testing.assert_array_equal(found, told)
    assert any(b"Crossings" in question.asked for question in engine.questions)


def sum_of(place, *counts, release=0, **more):
    return PartitionReply("sum", place, release, np.array(counts, np.int64), 1.0, GRID)._replace(**more)


def tally(places=2, most=(100, 100)):
    return PartitionSums(0, places, BoundedSum(np.zeros(2, np.int64), 1.0, grid=GRID), most)


class CountsTwice(PartitionSums):
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
    for one in answers:
        right.add(one)
        broken.add(one)
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
        (sum_of(1, 1, 2, 3), "more than its rows"),
        (sum_of(1, 1, 2, counts=np.array([0.5, 1.0])), "not one of a partition"),
        (sum_of(1, 1, 2, counts=None), "not one of a partition"),
        (sum_of(1, 0, 2**40), "more than its rows"),
        (PartitionReply("changed", 1, 0), "its file changed"),
        (PartitionReply("failed", 1, 0), "the worker failed"),
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
    counted.add(PartitionReply("lost", 1, 0))
    assert counted.missing == [1]
    with pytest.raises(PlanViolation, match="nothing is released"):
        counted.total()


def test_answers_do_not_depend_on_what_was_asked_before(tmp_path):
    """Asked again, from the beginning, or after another worker had it: the same sum."""
    partitions = written(tmp_path)
    seen = []

    def thrice(task):
        first = answer(task)
        seen.append(first.release)
        if task.release % 19:
            return [first]
        again = answer(task)
        forget()  # as on another worker
        return [first, again, answer(task)]

    found = model().fit(partitions, y="label", engine=Here(partitions, tamper=thrice))
    np.testing.assert_array_equal(found.coef_, model().fit(partitions, y="label").coef_)
    assert max(seen) > 40


def forget():
    module._partitions.clear()
    module._parts.clear()


def some_question(release=0, width=2):
    """How many records there are of each class, as a fit asks it first."""
    query = Blocks((Cells(ClassOf(Logistic()), (width + 1,), (1.0,)),), bound=1.0, everybody=True)
    view, asked = Packed.of(TargetRows(Logistic())), Packed.of(QueryContext(query))
    return PartitionQuery(release, view.data, asked.data, {**view.parts, **asked.parts}, GRID)


def some_task(part, fit, reading=True, target="label", **of_question):
    reading = Reading(for_workers(model()), target) if reading else None
    return PartitionTask(fit, Share(0, part), reading, some_question(**of_question))


def test_a_worker_without_the_rows_or_a_part_of_the_question_says_so(tmp_path):
    task = some_task(written(tmp_path).parts[0], "lost")
    begun = task._replace(reading=None)
    assert answer(begun).code == "behind"
    first = answer(task)
    assert first.code == "sum"
    assert first.counts.tolist()[2:] == [0]
    without = begun._replace(question=task.question._replace(parts={}))
    assert answer(without).counts.tolist() == first.counts.tolist()  # it has kept the parts
    assert answer(begun).public == first.public
    forget()
    assert answer(task._replace(question=without.question)).code == "behind"


def test_a_large_array_is_sent_by_its_digest(tmp_path):
    """The rotation of a descent is the same in all its steps."""
    large, small = np.arange(4096.0).reshape(64, 64), np.arange(3.0)
    for array in (large, np.asfortranarray(large), small):
        data, parts = Packed.of({"array": array, "loss": Logistic()})
        assert len(parts) == 1 + (array is not small)
        assert len(data) < 1000
        found = unpack(data, parts)["array"]
        np.testing.assert_array_equal(found, array)
        assert found.flags.f_contiguous == array.flags.f_contiguous
    with pytest.raises(KeyError):
        unpack(data, {})


def test_partitioned_rows_show_nothing():
    table = PartitionedTable((3, 4), lambda question, tally: None)
    rows = table.rows(TargetRows(Logistic()))
    for one in (table, rows):
        for look in (len, bool, iter, np.asarray, pickle.dumps):
            with pytest.raises(TypeError, match="Private rows"):
                look(one)
    assert (repr(table), repr(rows)) == ("PartitionedTable(partitions=2)", "PartitionedRecords(TargetRows)")
    with pytest.raises(PlanViolation, match="Only encoded records"):
        rows.in_curves(None)
    with pytest.raises(PlanViolation, match="nothing is released"):
        rows._total(Blocks((Cells(ClassOf(Logistic()), (3,), (1.0,)),), bound=1.0), GRID)  # nobody answered


def test_a_file_that_changes_stops_the_fit(tmp_path):
    partitions = written(tmp_path)

    def changing(task):
        if task.release == 5 and task.place == 2:
            written(tmp_path, (700, 0, 501, 301))
        return [answer(task)]

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
        part = PartitionFile.of(part.path)
    else:
        monkeypatch.setattr(module.Views, "rows", lambda *_: 1 / 0)
    found = answer(some_task(part, trouble))
    assert found.code == {"gone": "unreadable", "other columns": "refused", "raises": "failed"}[trouble]
    assert "secret" not in repr(found)
    assert found.counts is None


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

    def killed_in_append(self, stage, query, value):
        if len(self.entries) == 7:
            raise Killed
        append(self, stage, query, value)

    def killed_in_ask(task):
        if task.release == 7 and task.place == 1:
            raise Killed
        return [answer(task)]

    engine = Here(partitions, log=tmp_path / "log")
    if when == "while asking":
        engine.tamper = killed_in_ask
    else:
        monkeypatch.setattr(PublicLog, "append", killed_in_append)
    with pytest.raises(Killed):
        model(ledger=ledger).set_params(unsafe_seed=None).fit(partitions, y="label", engine=engine)
    monkeypatch.setattr(PublicLog, "append", append)
    paid = spent(ledger)
    released = sorted((tmp_path / "log").glob("release-*.npz"))
    before = [path.read_bytes() for path in released]
    assert len(before) == 7
    again = Here(partitions, log=tmp_path / "log", run="another name, which the log overrules")
    found = model(ledger=ledger).set_params(unsafe_seed=None).fit(partitions, y="label", engine=again)
    assert [path.read_bytes() for path in released] == before  # nothing was released twice
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
    paid, values = spent(ledger), sorted((tmp_path / "log").glob("release-*.npz"))
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
        assert sorted((tmp_path / "log").glob("release-*.npz")) == values[:kept]


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
def test_partitions_are_asked_on_the_grids_of_the_ledger(tmp_path, epsilon):
    """A ledger holds a part of delta back, and so the grids of a fit of epsilon 1 depend on it."""
    partitions, rule = written(tmp_path), GaussianFilter(Budget(epsilon, 1e-6))
    local = model(ledger=Ledger.in_memory(rule)).fit(partitions, y="label")
    found = model(ledger=Ledger.in_memory(rule)).fit(partitions, y="label", engine=Here(partitions))
    np.testing.assert_array_equal(found.coef_, local.coef_)
    assert found.certificate_.together.within(rule.budget)

    def coarser(task):  # the broken twin: a worker counts on another grid
        grid = 2 * task.question.grid
        return [answer(task._replace(question=task.question._replace(grid=grid)))]

    engine = Here(partitions, tamper=coarser, run="fit-1")
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
    (log / "rule.json").unlink()
    with pytest.raises(InvalidParameter, match="under a ledger with another rule"):
        fitted(GaussianFilter(budget))


def test_a_log_of_another_version_is_refused(tmp_path):
    with PublicLog(tmp_path / "log", "a", "fit").lock():
        pass
    head = tmp_path / "log" / "log.json"
    head.write_text(head.read_text().replace("public log 3", "public log 2"))
    again = PublicLog(tmp_path / "log", "a", "fit")
    with pytest.raises(InvalidParameter, match="written by another version of discreet"), again.lock():
        pass


@pytest.mark.parametrize("other", ["stage", "query"])
def test_a_logged_value_is_the_answer_to_its_own_query_only(tmp_path, other):
    """The log of a fit is not that of one which asks otherwise, and no row is read for what it holds."""
    files = tmp_path / "files"
    files.mkdir()
    partitions = written(files)
    first = model().fit(partitions, y="label", engine=Here(partitions, log=tmp_path / "log"))
    engine = Here(partitions, log=tmp_path / "log")
    again = model().fit(partitions, y="label", engine=engine)
    np.testing.assert_array_equal(again.coef_, first.coef_)
    assert engine.asked == 0
    path = tmp_path / "log" / "release-00004.npz"
    with np.load(path) as found:
        entry = dict(found)
    np.savez(path, **entry | {other: np.str_("00" if other == "query" else "another")})
    with pytest.raises(PlanViolation, match="Release 4 of the log is the answer to another query"):
        model().fit(partitions, y="label", engine=Here(partitions, log=tmp_path / "log"))


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
            return [answer(task)]

        engine = Here(partitions, log=tmp_path / "log", tamper=meanwhile)
        with pytest.raises(BudgetExceeded) as refused:
            model(ledger=ledger).fit(partitions, y="label", engine=engine)
        told = str(refused.value)
        assert "Other runs have used the ledger while this fit was under way" in told
        assert "(" not in told, "no event is printed"
        runs = [run for run in ledger.statement().runs if run.name != "other"]
        assert (
            sum(sum(run.taken) for run in runs) == len(list((tmp_path / "log").glob("release-*.npz"))) == 12
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
        early.append("counts", b"query", np.arange(3.0))
    with late.lock():
        assert late.run == "early"
        assert len(late.entries) == 1


def test_a_value_that_was_half_written_is_none(tmp_path):
    log, again = (PublicLog(tmp_path / "log", name, "fit") for name in "ab")
    with log.lock():
        log.append("counts", b"query", np.arange(3.0))
    (tmp_path / "log" / ".release-00001.npz.part").write_bytes(b"half")
    with again.lock():
        assert len(again.entries) == 1


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
