"""Hugging Face accelerate: the accelerator says where, the plan says what.

The lines that are gone: `accelerator.backward(loss)`, `accelerator.clip_grad_norm_(...)`, `optimizer.step()` and
`optimizer.zero_grad()`; in their place stands `run.step(batch)`. With several processes the model lies in shards:

    accelerate launch --cpu --num_processes 2 examples/accelerate_digits.py
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import discreet as dp
from discreet.adapters import accelerated_run

RECORDS = 1497  # public: the other 300 of the digits are for testing


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels, reduction="none")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.data, dtype=torch.float32)[order] / 16  # the range of a pixel is public
    labels = torch.tensor(found.target)[order]
    loader = DataLoader(TensorDataset(images[:RECORDS], labels[:RECORDS]), batch_size=64, shuffle=True)

    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if accelerator.num_processes > 1:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0])
        fully_shard(model)  # before the optimizer is made
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    plan = dp.Recipe(RECORDS, batch_size=256, epochs=25).calibrate(dp.Budget(epsilon=3.0, delta=1e-5))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)

    run = accelerated_run(accelerator, plan, model, optimizer, losses)
    for epoch in run.epochs(loader):
        for batch in epoch:
            run.step(batch)
            schedule.step()

    right = (model(images[RECORDS:]).argmax(1) == labels[RECORDS:]).float().mean()
    spent = run.certificate().guarantee
    accelerator.print(f"{right:.0%} of {len(labels) - RECORDS} test digits are told right")
    accelerator.print(f"  epsilon {spent.epsilon.upper:.3f} at delta {spent.delta:g}")


if __name__ == "__main__":
    main()
