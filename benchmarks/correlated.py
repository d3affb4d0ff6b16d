"""Correlated noise against independent noise: the error of the weights by theory, and accuracy on MNIST.

    python benchmarks/correlated.py                     # the table of errors, in seconds
    python benchmarks/correlated.py --data FOLDER       # and accuracies: FOLDER/mnist holds the four files of MNIST

Accuracies are those of a network 196-64-10 on 20 000 images at 14 x 14 pixels, 3 epochs in batches of about 333, with
the learning rate that each plan suggests; no number was chosen by looking at them.
"""

import argparse
import gzip
import statistics
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from discreet import Budget, Plan, Recipe
from discreet.core.clipping import Normalised
from discreet.core.matrix_mechanism_error import error_of_iterates
from discreet.pytorch import PrivateRun
from discreet.pytorch.fit import length_of_weights

DELTA = 1e-5


def error_of(plan: Plan) -> float:
    stage = plan.stage()
    return stage.noise_multiplier * error_of_iterates(stage.bands, stage.steps)


def errors() -> None:
    print("| epsilon | epochs | Poisson, best bands | random allocation, best bands |")
    print("|---:|---:|---|---|")
    for epsilon, epochs in ((0.5, 5), (1.0, 10), (2.0, 10), (4.0, 10), (8.0, 15)):
        budget = Budget(epsilon, DELTA)
        plain = Recipe(60_000, 1000, epochs=epochs).calibrate(budget)
        cells = []
        for sampling in ("poisson", "random-allocation"):
            plan = Recipe(60_000, 1000, epochs=epochs, sampling=sampling, bands="best").calibrate(budget)
            cells.append(f"{error_of(plan) / error_of(plain):.3f} ({plan.stage().bands})")
        print(f"| {epsilon:g} | {epochs} | {cells[0]} | {cells[1]} |", flush=True)


def images(folder: Path, part: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pictures = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(-1, 1, 28, 28)[:count] / 255
    found = torch.frombuffer(bytearray(labels), dtype=torch.uint8)[:count].long()
    return functional.avg_pool2d(pictures, 2).flatten(1), found


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def accuracy(plan: Plan, training, testing, seed: int) -> float:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    weights = sum(value.numel() for value in model.parameters())
    optimizer = torch.optim.SGD(
        model.parameters(), lr=plan.learning_rate(weights, length_of_weights(model)), momentum=0.9
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    run = PrivateRun(plan, model, optimizer, losses, clipping=Normalised(1.0))
    for batch in run.batches(training):
        run.step(batch)
        schedule.step()
    return float((model(testing[0]).argmax(1) == testing[1]).double().mean())


def accuracies(folder: Path, seeds: int) -> None:
    training, testing = images(folder, "train", 20_000), images(folder, "t10k", 10_000)
    print(f"\n| epsilon | independent, Poisson | random allocation, best bands |  (mean of {seeds} fits)")
    for epsilon in (1.0, 2.0, 8.0):
        budget, cells = Budget(epsilon, DELTA), []
        for options in ({}, {"sampling": "random-allocation", "bands": "best"}):
            plan = Recipe(20_000, 20_000 // 60, epochs=3, **options).calibrate(budget)
            found = [100 * accuracy(plan, training, testing, seed) for seed in range(seeds)]
            cells.append(f"{statistics.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
        print(f"| {epsilon:g} | {cells[0]} | {cells[1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="folder that has MNIST in its folder mnist"
    )
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    errors()
    if chosen.data is not None:
        accuracies(chosen.data / "mnist", chosen.seeds)


if __name__ == "__main__":
    main()
