"""accelerate: a run where the accelerator says, with what it would do to gradients refused by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType

import discreet as dp
from discreet.adapters.accelerated import accelerated_run
from discreet.errors import InvalidParameter, PlanViolation
from discreet.pytorch import PrivateRun

RECORDS = 60


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerators share their settings through the process."""
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    yield
    for state in (AcceleratorState, GradientState):
        state._reset_state()


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def plan():
    return dp.Recipe(RECORDS, batch_size=20, epochs=2).calibrate(dp.Budget(epsilon=8.0, delta=1e-4))


def parts():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(RECORDS, 4)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16, shuffle=True)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def test_prepared_or_not_it_is_the_same_run():
    found = []
    for prepared in (False, True):
        accelerator = Accelerator(cpu=True)
        model, optimizer, loader = parts()
        if prepared:
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        run = accelerated_run(accelerator, plan(), model, optimizer, losses, unsafe_seed=3)
        for epoch in run.epochs(loader):
            for batch in epoch:
                run.step(batch)
        found.append(model.weight.detach().clone())
        assert run.steps_taken == plan().steps
    model, optimizer, loader = parts()
    run = PrivateRun(plan(), model, optimizer, losses, unsafe_seed=3)
    for batch in run.batches(loader):
        run.step(batch)
    assert torch.equal(found[0], model.weight)
    assert torch.equal(found[1], model.weight)


@pytest.mark.parametrize(("name", "value"), [("mixed_precision", "bf16"), ("gradient_accumulation_steps", 4)])
def test_what_it_does_to_gradients_is_refused_by_name(name, value):
    model, optimizer, _ = parts()
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        accelerated_run(Accelerator(cpu=True, **{name: value}), plan(), model, optimizer, losses)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"])
def test_sharded_models_are_refused(kind, monkeypatch):
    model, optimizer, _ = parts()
    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(Accelerator, "distributed_type", getattr(DistributedType, kind))
    with pytest.raises(InvalidParameter, match=f"^distributed_type='{kind}'"):
        accelerated_run(accelerator, plan(), model, optimizer, losses)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_fsdp2_sharded_trains(monkeypatch):
    """Their FSDP2 needs other devices than this one; what it does to a model is ``fully_shard``."""
    model, _, loader = parts()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        from torch.distributed.fsdp import fully_shard

        accelerator = Accelerator(cpu=True)
        monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
        monkeypatch.setattr(Accelerator, "is_fsdp2", True)
        with pytest.raises(InvalidParameter, match="of version 2"):
            accelerated_run(accelerator, plan(), model, torch.optim.SGD(model.parameters(), lr=0.1), losses)
        fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.full_tensor().clone()
        run = accelerated_run(accelerator, plan(), model, optimizer, losses)
        for batch in run.batches(loader):
            run.step(batch)
        assert run.steps_taken == plan().steps
        assert not torch.equal(before, model.weight.full_tensor())
    finally:
        torch.distributed.destroy_process_group()


def test_the_example_runs_in_shards(tmp_path):
    example, script = Path(__file__).parents[2] / "examples" / "accelerate_digits.py", tmp_path / "started.py"
    script.write_text(
        f"import os, runpy, sys, torch\nrunpy.run_path({str(example)!r}, run_name='__main__')\n"
        "sys.stdout.flush()\ntorch.distributed.barrier()\nos._exit(0)  # gloo's threads may abort on the way out\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=0"]
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*torchrun, *meeting, str(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epsilon 3.000 at delta 1e-05") == 1


def test_a_model_that_adds_up_gradients_is_refused():
    model, optimizer, _ = parts()
    wrapped = object.__new__(nn.parallel.DistributedDataParallel)
    with pytest.raises(InvalidParameter, match="adds up gradients without noise"):
        accelerated_run(Accelerator(cpu=True), plan(), wrapped, optimizer, losses)
    with pytest.raises(InvalidParameter, match=r"^accelerator="):
        accelerated_run("cpu", plan(), model, optimizer, losses)


def test_a_step_of_the_plain_loop_beside_it_is_noticed():
    """``accelerator.backward`` and ``optimizer.step`` left in the loop would train without noise."""
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*parts())
    run = accelerated_run(accelerator, plan(), model, optimizer, losses)
    batches = run.batches(loader)
    run.step(next(batches))
    accelerator.backward(losses(model, next(iter(loader))).mean())
    optimizer.step()
    with pytest.raises(PlanViolation, match="changed between two steps"):
        run.step(next(batches))
