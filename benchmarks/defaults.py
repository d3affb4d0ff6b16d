"""Training without a number: the learning rate that follows from the noise, beside a grid of six.

    python benchmarks/defaults.py                       # the digits of scikit-learn, two networks
    python benchmarks/defaults.py --data FOLDER         # and 5 000 images of MNIST: FOLDER/mnist holds its four files

Every cell is the mean accuracy on other images over ``--seeds`` fits, all else as ``fit`` works it out. The best of a
grid is chosen by looking at those images, and pays nothing for it: more than anybody could have.
"""

import argparse
import statistics
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from correlated import images, losses
from discreet import Budget, Recipe
from discreet.pytorch import fit
from timing import Targets, table

FACTORS = (0.1, 0.25, 0.5, 2.0, 4.0, 10.0)
"""The grid: these times the rate that is worked out."""
EPSILONS = (0.5, 2.0, 8.0)


def digits():
    """1 497 small pictures to train with, and 300 others."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(found.data, dtype=torch.float32)[order] / 16, torch.tensor(found.target)[order]
    return (x[:1497], y[:1497]), (x[1497:], y[1497:])


def perceptron(width):
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))


def convolutional():
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 10)),
    )


def accuracy(make, training, testing, epsilon, factor, seed):
    """Of one fit; with ``factor`` the learning rate is so many times the one that follows from the noise."""
    torch.manual_seed(seed)
    model = make()
    options = {"records": len(training[1]), "epsilon": epsilon, "delta": 1e-5}
    if factor != 1.0:
        options["learning_rate"] = factor * suggested(model, options)
    fit(model, training, losses, **options)
    with torch.no_grad():
        return float((model(testing[0]).argmax(1) == testing[1]).float().mean())


def suggested(model, options):
    """The rate that ``fit`` takes by itself."""
    weights = sum(value.numel() for value in model.parameters())
    budget = Budget(options["epsilon"], options["delta"])
    plan = Recipe.suggest(options["records"], weights, budget).calibrate(budget)
    return plan.learning_rate(weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="*", default=EPSILONS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = {
        "digits, perceptron": (lambda: perceptron(64), *digits()),
        "digits, convolutions": (convolutional, *digits()),
    }
    if options.data is not None:
        folder = options.data / "mnist"
        parts = images(folder, "train", 5000), images(folder, "t10k", 10_000)
        cases["5 000 of MNIST, perceptron"] = (lambda: perceptron(196), *parts)
    rows, targets = [], Targets()
    for title, (make, training, testing) in cases.items():
        alone = {}
        for epsilon in options.epsilons:
            found = {
                factor: statistics.mean(
                    accuracy(make, training, testing, epsilon, factor, seed) for seed in range(options.seeds)
                )
                for factor in (1.0, *FACTORS)
            }
            alone[epsilon] = found[1.0]
            best = max(FACTORS, key=found.get)
            rows.append([title, f"{epsilon:g}", f"{found[1.0]:.1%}", f"{found[best]:.1%}", f"{best:g}"])
            print(*rows[-1], flush=True)
            targets.limit("points below the best of the grid", 2.0, {title: 100 * (found[best] - found[1.0])})
        low, high = min(alone), max(alone)
        targets.limit("points that more epsilon costs", 0.0, {title: 100 * (alone[low] - alone[high])})
    table(
        f"Learning rates, {options.seeds} fits each",
        ("data and network", "epsilon", "worked out", "best of the grid", "at, times"),
        rows,
    )
    targets.print()


if __name__ == "__main__":
    main()
