"""A cluster of two workers on this machine: the bits of a local fit, also when a worker is killed; open doors."""

import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

distributed = pytest.importorskip("distributed")
cloudpickle = pytest.importorskip("cloudpickle")
yaml = pytest.importorskip("yaml")

from discreet import evaluate  # noqa: E402
from discreet.adapters import DaskEngine, dask_engine  # noqa: E402
from discreet.adapters.dask_engine import refuse_unencrypted_scheduler  # noqa: E402
from discreet.adapters.dask_rounds import Rounds  # noqa: E402
from discreet.errors import InvalidParameter, PlanViolation  # noqa: E402
from discreet.linear import (  # noqa: E402
    Category,
    Flag,
    Numeric,
    Partitions,
    PrivateLogisticRegression,
    Schema,
    cells,
)
from discreet.linear.partition_results import PartitionResults, PartitionSums  # noqa: E402

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("ignore")]  # the cluster's own warnings


@pytest.fixture(scope="module")
def client():
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def partitions(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for number, count in enumerate((700, 0, 500, 301)):
        x = rng.random((count, 2)) * 10
        y = (x[:, 0] - x[:, 1] + rng.logistic(size=count) > 0).astype(np.int64)
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": y})
        if count:
            frame.loc[1, "b"] = np.nan
        frame.to_parquet(folder / f"part-{number}.parquet", index=False)
    return Partitions(folder / "part-*.parquet")


def model(**more):
    return PrivateLogisticRegression(1.0, bounds=(0, 10), unsafe_seed=5, **more)


@pytest.fixture(scope="module")
def local(partitions):
    return model().fit(partitions, y="label")


def test_a_cluster_gives_the_bits_of_a_local_fit(client, partitions, local):
    found = model().fit(partitions, y="label", engine=DaskEngine(client))
    np.testing.assert_array_equal(found.coef_, local.coef_)
    np.testing.assert_array_equal(found.intercept_, local.intercept_)


def test_people_with_rows_in_several_files_too(client, tmp_path):
    rng = np.random.default_rng(1)
    x = rng.random((900, 2)) * 10
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": (x[:, 0] > x[:, 1]).astype(int)})
    frame["person"] = rng.integers(200, size=900)
    for number, part in enumerate(np.split(np.arange(900), 3)):
        frame.iloc[part].to_parquet(tmp_path / f"part-{number}.parquet", index=False)
    partitions = Partitions(tmp_path / "part-*.parquet")
    found = model(unit="person").fit(partitions, y="label", engine=DaskEngine(client))
    np.testing.assert_array_equal(found.coef_, model(unit="person").fit(partitions, y="label").coef_)


def test_an_evaluation_gives_the_scores_of_one_table(client, partitions):
    schema = Schema({"a": Numeric(0, 10), "b": Numeric(0, 10), "label": Category((0, 1))}, target="label")
    fitted = PrivateLogisticRegression(1.0, schema=schema, unsafe_seed=5).fit(partitions)
    here, there = (
        evaluate(fitted, partitions, epsilon=1.0, unsafe_seed=3, engine=engine)
        for engine in (None, DaskEngine(client))
    )
    assert str(there) == str(here)


def test_a_worker_that_is_killed_in_a_task_changes_nothing(client, partitions, local, tmp_path):
    """It is killed with signal 9 as soon as the tenth value is on disk, and its partitions go elsewhere."""
    victim = next(iter(client.run(os.getpid).values()))

    def kill():
        while not (tmp_path / "log" / "release-00009.npz").exists():
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = model().fit(partitions, y="label", engine=DaskEngine(client, log=tmp_path / "log", deadline=60))
    killer.join()
    np.testing.assert_array_equal(found.coef_, local.coef_)


def count_again(self, answer):
    """The broken twin: what is answered again is added again, as by an accumulator."""
    PartitionResults.add(self, answer)
    self.accumulated = getattr(self, "accumulated", 0) + answer.counts


@pytest.mark.parametrize("broken", [False, True])
def test_answers_that_come_twice_count_once(client, partitions, local, monkeypatch, broken):
    honest = Rounds._collect

    def collect(self, futures, roll):
        asked = dict(futures)
        behind = honest(self, futures, roll)
        for answers in self._answers(asked).values():
            for answer in answers:
                roll.add(answer)
        return behind

    monkeypatch.setattr(Rounds, "_collect", collect)
    if broken:
        monkeypatch.setattr(PartitionSums, "add", count_again)
        monkeypatch.setattr(PartitionSums, "total", lambda self: self.accumulated)
    found = model().fit(partitions, y="label", engine=DaskEngine(client))
    assert np.array_equal(found.coef_, local.coef_) != broken


def lie(dask_worker, whole):
    """Let the workers say more than their rows could add up to, from the fourth release on; or the truth again."""
    from discreet.linear import partition_answers

    if whole:
        partition_answers._answer = getattr(partition_answers, "honest", partition_answers._answer)
        return
    partition_answers.honest = partition_answers._answer

    def lying(task):
        found = partition_answers.honest(task)
        return found if task.release < 3 else found._replace(counts=found.counts + 2**50)

    partition_answers._answer = lying


def test_a_worker_that_lies_stops_the_fit(client, partitions, tmp_path):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
    client.run(lie, whole=False)
    try:
        with pytest.raises(PlanViolation, match="more than its rows can add up to"):
            model().fit(partitions, y="label", engine=DaskEngine(client, log=tmp_path / "log"))
    finally:
        client.run(lie, whole=True)
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert len(list((tmp_path / "log").glob("release-*"))) == 3


def test_a_file_that_changes_in_the_middle_stops_the_fit(client, partitions, tmp_path):
    for part in partitions.parts:
        shutil.copy(part.path, tmp_path)
    released = []

    def change(*_):
        released.append(1)
        if len(released) == 5:
            pd.DataFrame({"a": [1.0], "b": [2.0], "label": [0]}).to_parquet(tmp_path / "part-2.parquet")

    with pytest.raises(PlanViolation, match="Partition 2: its file changed"):
        model(verbose=change).fit(
            Partitions(tmp_path / "part-*.parquet"), y="label", engine=DaskEngine(client)
        )
    assert len(released) == 5


def test_a_deadline_and_no_answer_mean_no_release(client, partitions, tmp_path):
    engine = DaskEngine(client, log=tmp_path / "log", deadline=1e-6, attempts=2)
    with pytest.raises(PlanViolation, match="did not answer 2 times; nothing is released"):
        model().fit(partitions, y="label", engine=engine)
    assert list((tmp_path / "log").glob("release-*")) == []


def test_without_a_scheduler_there_is_no_release(client, partitions, monkeypatch):
    def lost(**which):
        raise distributed.comm.CommClosedError("in <TLS>")

    with distributed.Client(client.scheduler.address, set_as_default=False) as other:
        engine = DaskEngine(other)
        with monkeypatch.context() as patched:
            patched.setattr(other, "scheduler_info", lost)
            with pytest.raises(PlanViolation, match="The scheduler is gone; nothing more is released"):
                model().fit(partitions, y="label", engine=engine)
    with pytest.raises(PlanViolation, match="The scheduler is gone; nothing more is released"):
        model().fit(partitions, y="label", engine=engine)


@pytest.mark.parametrize(
    ("address", "open_to_others"),
    [
        ("tcp://10.0.0.5:8786", True),
        ("tcp://scheduler:8786", True),
        ("ws://192.168.1.1:8786", True),
        ("tcp://0.0.0.0:8786", True),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("tls://10.0.0.5:8786", False),
        ("inproc://10.0.0.5/1/2", False),
    ],
)
def test_plain_tcp_beyond_this_machine_is_refused(address, open_to_others):
    if open_to_others:
        with pytest.raises(InvalidParameter, match="must be tls://"):
            refuse_unencrypted_scheduler(address)
    else:
        refuse_unencrypted_scheduler(address)


def test_refusals_come_before_anything_is_spent(client, partitions):
    engine = DaskEngine(client)
    x = np.zeros((3, 2))
    cases = [
        (lambda: model().fit(x, y="label", engine=engine), "must be Partitions"),
        (lambda: model().fit(partitions, y=[1, 2], engine=engine), "must be the name of a column"),
        (lambda: model().fit(partitions, "label", np.ones(3), engine=engine), "columns of the files only"),
        (lambda: model(unit="who").fit(partitions, y="label", engine=engine), "who"),
        (lambda: model(arithmetic="float").fit(partitions, y="label", engine=engine), "hardened"),
        (lambda: model().fit(partitions, y="lable", engine=engine), "lable"),
        (lambda: DaskEngine("tcp://127.0.0.1:1"), r"must be a distributed\.Client"),
        (lambda: DaskEngine(client, deadline=float("nan")), "deadline"),
        (lambda: DaskEngine(client, attempts=0), "attempts"),
        (lambda: model().fit(partitions, y="label", engine="dask"), r"engine='str': must be an engine"),
        (lambda: model().fit(partitions, y="label", engine=client), r"engine='Client': must be an engine"),
        (
            lambda: evaluate(model(), partitions, epsilon=1.0, classes=(0, 1), engine="dask"),
            "must be an engine",
        ),
    ]
    for refused, said in cases:
        with pytest.raises(InvalidParameter, match=said):
            refused()


def test_workers_get_no_ledger_no_key_and_no_seed(client, tmp_path):
    sent = DaskEngine(client).for_workers(model(ledger=str(tmp_path / "ledger.db"), ledger_key="key"))
    assert (sent.ledger, sent.ledger_key, sent.unsafe_seed, sent.verbose) == (None, None, None, False)


def test_the_settings_of_the_example_are_ones_that_dask_has():
    """A name that Dask does not know would be passed over without a word."""

    def names(settings, before=()):
        for key, value in settings.items():
            yield from names(value, (*before, key)) if isinstance(value, dict) else [(*before, key)]

    example = Path(__file__).parents[2] / "examples" / "dask.yaml"
    defaults = Path(distributed.__file__).with_name("distributed.yaml")
    ours, known = (set(names(yaml.safe_load(path.read_text()))) for path in (example, defaults))
    assert ours
    assert ours <= known


def leaky(task):
    """The broken twin of an answer: it lets an exception through."""
    task.reading.model._read(task.share.source(), task.reading.target, None, None, True)


def all_that_is_told(client, refused):
    """What the driver's user, the logs of workers and scheduler, and the scheduler's own memory say."""
    told = [str(refused), repr(refused.__cause__), repr(refused.__context__)]
    told += [str(client.get_worker_logs()), str(client.get_scheduler_logs())]

    def remembered(dask_scheduler):
        tasks = dask_scheduler.tasks.values()
        kept = [(task.exception_text, task.traceback_text, str(task.run_spec)) for task in tasks]
        return str([*kept, *dask_scheduler.get_events().items()])

    return "".join([*told, client.run_on_scheduler(remembered)])


@pytest.mark.parametrize("broken", [False, True])
def test_no_word_of_a_record_reaches_messages_logs_or_the_scheduler(tmp_path, monkeypatch, capfd, broken):
    """A cell makes the worker fail with an exception that quotes it, and its whole column."""

    def quotes(self, cells):
        if "secret-cell" in list(cells):
            raise ValueError(f"cannot read {cells}")
        return honest(self, cells)

    for name in (
        "distributed",
        "distributed.worker",
        "distributed.scheduler",
    ):  # others may have silenced them
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
        logging.getLogger(name).manager._clear_cache()
    honest = cells._Known.read
    monkeypatch.setattr(cells._Known, "read", quotes)
    if broken:
        monkeypatch.setattr(dask_engine, "answer", leaky)
    frame = pd.DataFrame({"a": [1.0, 2.0], "job": ["clerk", "secret-cell"], "label": [0, 1]})
    frame.to_parquet(tmp_path / "part-0.parquet", index=False)
    schema = Schema(
        {"a": Numeric(0, 9), "job": Category(("clerk", "farmer")), "label": Flag()}, target="label"
    )
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, dashboard_address=None, silence_logs=False
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as alone,
    ):
        with pytest.raises(PlanViolation) as refused:
            PrivateLogisticRegression(1.0, schema=schema).fit(
                Partitions(tmp_path / "part-*.parquet"), engine=DaskEngine(alone, attempts=1)
            )
        told = all_that_is_told(alone, refused.value)
    out, err = capfd.readouterr()
    assert ("secret" in told + out + err) == broken
    assert ("the worker failed" in str(refused.value)) != broken
