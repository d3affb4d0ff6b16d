"""Handwritten digits, learnt with differential privacy: ``before.py`` with a few other lines."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import discreet as dp
from discreet.pytorch import PrivateRun, without_batch_norm


class Network(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def digits() -> TensorDataset:
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(found.target))


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = total = 0
    for images, labels in loader:
        right += int((model(images).argmax(1) == labels).sum())
        total += len(labels)
    model.train()
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=150)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    training, testing = random_split(digits(), [1500, 297])
    loader = DataLoader(training, batch_size=options.batch_size, shuffle=True)
    held_out = DataLoader(testing, batch_size=100)
    model = without_batch_norm(Network())
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))

    recipe = dp.Recipe(1500, batch_size=options.batch_size, epochs=options.epochs)
    plan = recipe.calibrate(dp.Budget(epsilon=4.0, delta=1e-5))
    run = PrivateRun(plan, model, optimizer, lambda net, b: criterion(net(b[0]), b[1]))
    for epoch, batches in enumerate(run.epochs(loader)):
        for batch in batches:
            run.step(batch)
            scheduler.step()
        print(f"epoch {epoch + 1}: {accuracy(model, held_out):.1%} of {len(testing)} other digits")
    torch.save(model.state_dict(), "digits.pt")
    run.certificate().save("digits.certificate.json")


if __name__ == "__main__":
    main()
