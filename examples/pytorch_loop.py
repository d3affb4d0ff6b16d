"""A network trained with differential privacy in an ordinary PyTorch loop, and its twin without.

The records are the 1 797 handwritten digits that ship with scikit-learn; 300 of them are kept for testing.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import discreet as dp
from discreet.pytorch import PrivateRun, fit

RECORDS = 1497


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.data, dtype=torch.float32) / 16  # the range of a pixel is public
    return images[order], torch.tensor(found.target)[order]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def losses(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels, reduction="none")  # one loss per example


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    torch.set_num_threads(1)  # for so small a network more threads only wait for each other
    images, labels = digits()
    training, testing = (images[:RECORDS], labels[:RECORDS]), (images[RECORDS:], labels[RECORDS:])

    plan = dp.Recipe(RECORDS, batch_size=256, epochs=30).calibrate(dp.Budget(epsilon=3.0, delta=1e-5))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    run = PrivateRun(plan, model, optimizer, losses)
    for batch in run.batches(training):
        run.step(batch)
        scheduler.step()
    certificate = run.certificate()
    certificate.verify()
    print(f"private: {accuracy(model, *testing):.1%} of {len(testing[1])} test digits")
    print(
        f"  epsilon {certificate.guarantee.epsilon.upper:.3f} at delta {certificate.guarantee.delta:g}, verified"
    )

    twin = fit(network(), training, losses, records=RECORDS, epochs=30, privacy=None)
    print(f"without privacy: {accuracy(twin.model, *testing):.1%}")


if __name__ == "__main__":
    main()
