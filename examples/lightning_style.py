"""Private training in a loop that somebody else owns: a trainer in the manner of PyTorch Lightning.

The module says how it is trained and keeps the run; the trainer knows nothing of privacy. In Lightning itself the
same three methods are all it takes, together with ``self.automatic_optimization = False``.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import discreet as dp
from discreet.pytorch import Batch, PrivateRun

RECORDS = 1497  # public: the other 300 of the digits are for testing


class Trainer:
    """What a framework does: it asks for batches, hands them over one by one, and steps the schedulers."""

    def fit(self, module: "Digits") -> None:
        schedulers = module.configure_optimizers()
        for number, batch in enumerate(module.train_dataloader()):
            module.training_step(batch, number)
            for scheduler in schedulers:
                scheduler.step()


class Digits(nn.Module):
    """A module in Lightning's shape."""

    def __init__(self, plan: dp.Plan, records: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.plan, self.records = plan, records
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    @staticmethod
    def losses(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(module(images), labels, reduction="none")  # one loss per example

    def configure_optimizers(self) -> list[torch.optim.lr_scheduler.LRScheduler]:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        self.run = PrivateRun(self.plan, self, optimizer, self.losses)
        return [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.plan.steps)]

    def train_dataloader(self):
        return self.run.batches(self.records)  # drawn by the plan, where a DataLoader would shuffle

    def training_step(self, batch: Batch, number: int) -> None:
        self.run.step(batch)  # returns nothing: a training loss would be released without noise


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.data, dtype=torch.float32) / 16  # the range of a pixel is public
    return images[order], torch.tensor(found.target)[order]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = digits()
    plan = dp.Recipe(RECORDS, batch_size=256, epochs=25).calibrate(dp.Budget(epsilon=3.0, delta=1e-5))
    module = Digits(plan, (images[:RECORDS], labels[:RECORDS]))
    Trainer().fit(module)
    right = (module(images[RECORDS:]).argmax(1) == labels[RECORDS:]).float().mean()
    spent = module.run.certificate().guarantee
    print(f"{right:.0%} of {len(labels) - RECORDS} test digits are told right")
    print(f"  epsilon {spent.epsilon.upper:.3f} at delta {spent.delta:g}")


if __name__ == "__main__":
    main()
