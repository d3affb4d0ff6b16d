"""A site of a Flower federation; what needs Flower itself runs by ``make test-flower``."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import discreet as dp
from discreet.adapters import FlowerSite
from discreet.certificate import Certificate
from discreet.errors import InvalidParameter
from discreet.ledger import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "federation" / "flower"
REASON = "Flower is not installed in this environment; `make test-flower` runs this test in one where it is"


@pytest.fixture(autouse=True)
def one_thread():
    """Small sums on several threads take most of their time waiting when other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def plan():
    return dp.Recipe(100, batch_size=20, steps=8).calibrate(dp.Budget(4.0, 1e-4))


def site_at(folder, rounds=2):
    model, x = nn.Linear(3, 2), torch.randn(90, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def losses(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return FlowerSite(
        plan(), model, optimizer, losses, (x, (x[:, 0] > 0).long()), rounds=rounds, folder=folder
    )


def arrays(value=0.0):
    return [np.full((2, 3), value, np.float32), np.full(2, value, np.float32)]


def test_a_numpy_client_fits_by_the_plan_and_tells_its_declared_number_of_records(tmp_path):
    site = site_at(tmp_path, rounds=1)
    trained, count, metrics = site.fit(arrays(), {"epochs": 1000})
    assert [each.shape for each in trained] == [(2, 3), (2,)]
    assert not np.array_equal(trained[1], np.zeros(2))
    assert count == 100  # of the plan; the site has 90
    assert (metrics["privacy_trained"], metrics["privacy_steps"]) == (1.0, 8.0)
    unchanged, count, metrics = site.fit(arrays(1.0))
    assert all(map(np.array_equal, unchanged, arrays(1.0)))
    assert (count, metrics["privacy_trained"]) == (100, 0.0)


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    site = site_at(tmp_path)
    with pytest.raises(InvalidParameter, match="2 arrays"):
        site.fit(arrays()[:1])
    with pytest.raises(InvalidParameter, match="weights='bias'"):
        site.fit([arrays()[0], np.array([np.nan, 0.0])])


def message(content):
    flwr = pytest.importorskip("flwr.app", reason=REASON)
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a process of Flower
    states = {
        name: {"weight": torch.tensor(weight), "bias": torch.tensor(bias)}
        for name, (weight, bias) in content.items()
    }
    records = flwr.RecordDict({name: flwr.ArrayRecord(state) for name, state in states.items()})
    return flwr.Message(records, dst_node_id=1, message_type="train")


def test_a_message_is_answered_with_weights_and_public_numbers(tmp_path):
    asked = message({"arrays": arrays()})
    for trained in (1.0, 1.0, 0.0):
        reply = site_at(tmp_path).train(asked).content
        assert list(reply.array_records) == ["arrays"]
        (metrics,) = reply.metric_records.values()
        assert (metrics["privacy_trained"], metrics["num-examples"]) == (trained, 100)
        assert metrics["privacy_epsilon"] == plan().guarantee.epsilon.upper
        bias = reply["arrays"].to_torch_state_dict()["bias"]
        assert torch.equal(bias, torch.zeros(2)) is not bool(trained)


def test_a_message_without_the_weights_of_one_model_is_refused(tmp_path):
    site = site_at(tmp_path)
    for content in ({}, {"one": arrays(), "other": arrays()}):
        with pytest.raises(InvalidParameter, match="one ArrayRecord"):
            site.train(message(content))


@pytest.mark.network
def test_the_converted_example_runs_with_three_sites_and_secure_aggregation(tmp_path):
    pytest.importorskip("flwr", reason=REASON)
    link, *nodes = free_ports(4)
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    (tmp_path / "flwr").mkdir()
    known = f'[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (tmp_path / "flwr" / "config.toml").write_text(f'[superlink]\ndefault = "loopback"\n\n{known}')
    started = []

    def start(name, *words):
        with (tmp_path / f"{name}.log").open("w") as log:
            program = [str(programs / words[0]), "--insecure", *words[1:]]
            streams = {"stdout": log, "stderr": log}
            started.append(subprocess.Popen(program, env=environment, start_new_session=True, **streams))

    try:
        start("link", "flower-superlink", "--port", str(link), "--disable-runtime-dependency-installation")
        wait_for(link)
        for number, port in enumerate(nodes):
            node = f'partition-id={number} num-partitions=3 folder="{tmp_path / f"site-{number}"}"'
            address = ("--superlink", f"127.0.0.1:{link}", "--port", str(port))
            start(f"node-{number}", "flower-supernode", *address, "--node-config", node)
        run = [str(programs / "flwr"), "run", str(EXAMPLE), "loopback", "--stream"]
        run += ["--run-config", f'result="{tmp_path / "final.npz"}"']
        ended = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=900)
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "Run finished 2 round(s)" in ended.stdout + ended.stderr, ended.stdout[-3000:]
    for number in range(3):
        with Ledger.open(tmp_path / f"site-{number}" / "run" / "site.ledger") as ledger:
            (record,) = ledger.runs().values()
        assert record.reserved == record.committed == 80
        certificate = Certificate.load(tmp_path / f"site-{number}" / "certificate.json")
        certificate.verify()
        assert certificate.guarantee.within(dp.Budget(4.0, 1e-5))
    final = np.load(tmp_path / "final.npz")
    assert all(np.isfinite(final[name]).all() for name in final.files)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(port, seconds=120):
    """Return when a server listens."""
    for _ in range(seconds * 5):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("nothing listens")
