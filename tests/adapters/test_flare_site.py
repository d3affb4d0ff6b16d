"""A site of an NVFlare job: models of its Client API, and the converted example over loopback."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from torch import nn
from torch.nn import functional

import discreet as dp
from discreet.adapters import FlareSite
from discreet.certificate import Certificate
from discreet.errors import InvalidParameter
from discreet.ledger import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "federation" / "nvflare"


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
    model, x = nn.Linear(3, 2), torch.randn(100, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def losses(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return FlareSite(
        plan(), model, optimizer, losses, (x, (x[:, 0] > 0).long()), rounds=rounds, folder=folder
    )


def sent(value=0.0):
    params = {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value)}
    return FLModel(ParamsType.FULL, params, current_round=0, total_rounds=2)


def test_a_task_is_answered_with_full_weights_and_public_numbers(tmp_path):
    site = site_at(tmp_path, rounds=1)
    reply, again = site.train(sent()), site.train(sent(1.0))
    assert reply.params_type == again.params_type == ParamsType.FULL
    assert not torch.equal(reply.params["bias"], torch.zeros(2))
    assert reply.metrics["privacy_epsilon"] == plan().guarantee.epsilon.upper
    assert (reply.metrics["privacy_trained"], reply.metrics["privacy_steps"]) == (1.0, 8.0)
    assert torch.equal(again.params["bias"], torch.ones(2))
    assert (again.metrics["privacy_trained"], again.metrics["privacy_steps"]) == (0.0, 0.0)
    assert "used up" in again.meta["privacy_note"]
    assert reply.meta["NUM_STEPS_CURRENT_ROUND"] == again.meta["NUM_STEPS_CURRENT_ROUND"] == 8


@pytest.mark.parametrize(
    "received", [None, FLModel(metrics={"accuracy": 1.0}), FLModel(ParamsType.DIFF, {"bias": torch.zeros(2)})]
)
def test_what_holds_no_full_weights_is_refused(tmp_path, received):
    site = site_at(tmp_path)
    with pytest.raises(InvalidParameter, match="full weights"):
        site.train(received)


@pytest.mark.network
def test_the_converted_example_runs_in_a_job_of_two_sites(tmp_path):
    """The server asks for three rounds, and the plans of the sites hold two."""
    for path in EXAMPLE.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    client = f"--folder {tmp_path / 'sites'} --rounds 2 --epochs 2"
    words = [
        sys.executable,
        "job.py",
        "--rounds",
        "3",
        "--workspace",
        str(tmp_path / "work"),
        "--client",
        client,
    ]
    ended = subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed[-3000:]
    for name in ("site-1", "site-2"):
        with Ledger.open(tmp_path / "sites" / name / "run" / "site.ledger") as ledger:
            (record,) = ledger.runs().values()
        assert record.reserved == record.committed == 40
        certificate = Certificate.load(tmp_path / "sites" / name / "certificate.json")
        certificate.verify()
        assert certificate.guarantee.within(dp.Budget(4.0, 1e-5))
        trained = [line for line in printed.splitlines() if f"{name}, round" in line]
        assert len(trained) == 3
        assert "'privacy_trained': 1.0" in trained[1]
        assert "'privacy_trained': 0.0" in trained[2]
