"""Several processes that train one model together: the loop of one process, and one line more.

    torchrun --nproc-per-node=2 examples/torchrun_digits.py     # or without torchrun, in a single process

Every process is given the same records and works on its own part of them. Nothing is wrapped: the clipped sums are
added up, each process adds the noise for its share of the weights, and all of them take the same step.
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import discreet as dp
from discreet.pytorch import PrivateRun

RECORDS = 1497  # public: the other 300 of the digits are for testing


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels, reduction="none")  # one loss per example


def main() -> None:
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")  # "nccl" on GPUs
    torch.set_num_threads(1)
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.data, dtype=torch.float32)[order] / 16  # the range of a pixel is public
    labels = torch.tensor(found.target)[order]

    plan = dp.Recipe(RECORDS, batch_size=256, epochs=10).calibrate(dp.Budget(epsilon=3.0, delta=1e-5))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))  # all begin with the first one's
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    run = PrivateRun(plan, model, optimizer, losses)
    for epoch in run.epochs((images[:RECORDS], labels[:RECORDS])):
        for batch in epoch:
            run.step(batch)
    certificate = run.certificate()  # the same one in every process
    if not dist.is_initialized() or dist.get_rank() == 0:
        right = (model(images[RECORDS:]).argmax(1) == labels[RECORDS:]).float().mean()
        print(f"{right:.1%} of {len(images) - RECORDS} other digits are told right")
        print(f"  epsilon {certificate.guarantee.epsilon.upper:.3f} at delta {certificate.guarantee.delta:g}")


if __name__ == "__main__":
    main()
