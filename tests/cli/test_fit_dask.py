"""fit --engine dask: the bits of a fit on this machine, and refusals in one sentence."""

import logging
import socket
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

distributed = pytest.importorskip("distributed")

from discreet import Budget  # noqa: E402
from discreet.adapters import dask_engine  # noqa: E402
from discreet.cli import fitting, main  # noqa: E402
from discreet.ledger import GaussianFilter, Ledger  # noqa: E402
from discreet.linear.public_log import PublicLog  # noqa: E402

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("ignore")]  # the cluster's own warnings

SCHEMA = """
target = "label"
[columns]
a = { bounds = [0, 10] }
b = { bounds = [0, 10] }
label = { categories = ["no", "yes"] }
"""
DASK = ("--engine", "dask")


@pytest.fixture(scope="module")
def scheduler():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for number, count in enumerate((700, 0, 801)):
        x = rng.random((count, 2)) * 10
        label = np.where(x[:, 0] - x[:, 1] + rng.logistic(size=count) > 0, "yes", "no").astype(object)
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": label})
        if count:
            frame.loc[1, "b"] = np.nan
        frame.to_parquet(folder / f"part-{number}.parquet", index=False)
    frame.to_csv(folder / "table.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "people.toml").write_text(SCHEMA + "[unit]\ncolumn = 'person'\n")
    return folder


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine may take its time."""
    monkeypatch.setattr(dask_engine, "_ANSWER", 120.0)


def fit(place, out, *words, table="part-*.parquet", schema="schema.toml"):
    budget = ("--epsilon", 1, "--delta", 1e-6)
    words = ("fit", place / table, "--schema", place / schema, *budget, "--out", out, *words)
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.mark.parametrize("family", ["auto", "linear"])
def test_a_cluster_writes_the_bits_of_a_fit_on_this_machine(scheduler, place, tmp_path, monkeypatch, family):
    """The command has no seed, so the estimator that it makes is given one."""
    made = fitting.estimator_for
    monkeypatch.setattr(fitting, "estimator_for", lambda *a, **more: made(*a, **more, unsafe_seed=5))
    there = fit(place, tmp_path / "there", "--model", family, *DASK, "--scheduler", scheduler)
    here = fit(place, tmp_path / "here", "--model", family)
    assert (there.exit_code, here.exit_code) == (0, 0), there.stderr + here.stderr
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("there", "here")]
    assert weights[0] == weights[1]
    assert there.stdout == here.stdout.replace(str(tmp_path / "here"), str(tmp_path / "there"))


def test_a_command_that_was_killed_goes_on_from_its_log(scheduler, place, tmp_path, monkeypatch):
    """The ledger has room for one fit; what was released before is neither drawn nor paid again."""

    class Killed(BaseException):
        pass

    append = PublicLog.append

    def killed(self, stage, query, value):
        if len(self.entries) == 7:
            raise Killed
        append(self, stage, query, value)

    ledger = tmp_path / "a.ledger"
    Ledger.create(ledger, GaussianFilter(Budget(1.0, 1e-6))).close()
    words = (
        *DASK,
        "--scheduler",
        scheduler,
        "--model",
        "linear",
        "--log",
        tmp_path / "log",
        "--ledger",
        ledger,
    )
    monkeypatch.setattr(PublicLog, "append", killed)
    with pytest.raises(Killed):
        fit(place, tmp_path / "model", *words)
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").glob("release-*.npz")}
    assert len(before) == 7
    monkeypatch.setattr(PublicLog, "append", append)
    result = fit(place, tmp_path / "model", *words)
    assert result.exit_code == 0, result.stderr
    assert all((tmp_path / "log" / name).read_bytes() == value for name, value in before.items())
    again = fit(place, tmp_path / "more", *words[:-4], "--ledger", ledger)
    assert "error[budget-exceeded]" in again.stderr  # one fit was paid for, and no room is left


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (DASK, "--engine=dask: needs --scheduler, the address of a cluster that runs; none is started here."),
        (("--scheduler", "tls://host:8786"), "--scheduler=tls://host:8786: goes with --engine dask."),
        ((*DASK, "--scheduler", "tcp://10.0.0.5:8786"), "--scheduler=tcp://10.0.0.5:8786: must be tls://"),
        ((*DASK, "--scheduler", "tls://["), "must be tls://"),
        ((*DASK, "--scheduler", "localhost:8786"), "must be tls://"),
        (("--log", "folder"), "--log=folder: goes with --engine dask."),
        ((*DASK, "--scheduler", "tls://host:8786", "--log", "folder"), "--log=folder: goes with --ledger"),
        ((*DASK, "--scheduler", "tcp://127.0.0.1"), "must be an address with a port"),
        ((*DASK, "--scheduler", "tcp://127.0.0.1:nan"), "must be an address with a port"),
    ],
)
def test_half_a_cluster_is_refused_before_anybody_is_asked(place, tmp_path, monkeypatch, words, says):
    monkeypatch.delattr(dask_engine, "_client")
    refused(fit(place, tmp_path / "m", *words), 2, says)
    assert list(tmp_path.iterdir()) == []


def refused(result, status, says):
    assert result.exit_code == status, result.output
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_the_engine_does_not_do_is_refused(scheduler, place, tmp_path):
    where = (*DASK, "--scheduler", scheduler)
    refused(fit(place, tmp_path / "m", *where, table="table.csv"), 2, "must be a Parquet file")
    refused(fit(place, tmp_path / "m", *where, table="none-*.parquet"), 2, "names no file")
    refused(fit(place, tmp_path / "m", *where, schema="people.toml"), 2, "has no column 'person'")
    refused(fit(place, tmp_path / "m", *where, "--arithmetic", "float"), 2, "hardened arithmetic")
    assert list(tmp_path.iterdir()) == []


def test_tls_without_its_files_is_refused(place, tmp_path):
    import dask

    keys = ("ca-file", "client.cert", "client.key")
    with dask.config.set({f"distributed.comm.tls.{key}": None for key in keys}):
        result = fit(place, tmp_path / "m", *DASK, "--scheduler", "tls://127.0.0.1:1")
    refused(result, 2, "needs to know the files of TLS: set distributed.comm.tls.ca-file")
    files = dict.fromkeys(keys, str(tmp_path / "none.pem"))
    with dask.config.set({f"distributed.comm.tls.{name}": file for name, file in files.items()}):
        result = fit(place, tmp_path / "m", *DASK, "--scheduler", "tls://127.0.0.1:1")
    refused(result, 2, "has TLS files that cannot be read: set distributed.comm.tls.ca-file")


def test_without_dask_it_says_what_to_install(place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = fit(place, tmp_path / "m", *DASK, "--scheduler", "tcp://127.0.0.1:1")
    refused(result, 1, "error[missing-dependency]: A cluster needs Dask: install 'discreet[dask]'")


@pytest.mark.parametrize("silent", [False, True])
def test_nobody_and_one_who_is_silent_are_told_in_a_sentence(place, tmp_path, monkeypatch, silent):
    """A port that is bound and does not listen refuses; one that listens and is never read stays silent."""
    monkeypatch.setattr(dask_engine, "_ANSWER", 0.5)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        if silent:
            door.listen()
        address = "tcp://{}:{}".format(*door.getsockname())
        result = fit(place, tmp_path / "m", *DASK, "--scheduler", address)
    refused(result, 1, f"error[cannot-connect]: No scheduler answered at {address} within 0.5 s.")
    assert list(tmp_path.iterdir()) == []
