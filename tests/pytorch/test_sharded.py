"""Sharded parameters are refused in a sentence, not by an error of torch in the middle of a step."""

import pytest
import torch
from torch import nn

from discreet import Budget, Recipe
from discreet.errors import CheckFailed
from discreet.pytorch import PrivateRun


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("process_group")
def test_a_fully_sharded_model_is_refused_by_the_name_of_a_parameter():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    model = nn.Linear(3, 2)
    mesh = init_device_mesh("cpu", (1,))
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh))
    plan = Recipe(records=100, batch_size=10, epochs=1, clip_norm=1.0).calibrate(Budget(2.0, 1e-5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CheckFailed, match="'weight' is sharded over processes"):
        PrivateRun(plan, model, optimizer, lambda net, batch: net(batch).sum(1))
