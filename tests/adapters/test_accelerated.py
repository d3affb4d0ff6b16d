"""accelerate: a run where the accelerator says, with what it would do to gradients refused by name."""

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
