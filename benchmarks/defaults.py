"""Training without a number: the learning rate that is worked out, beside a grid of six and the first default.

    python benchmarks/defaults.py                       # what ships with scikit-learn, and the example of LoRA
    python benchmarks/defaults.py --data FOLDER         # and 5 000 images of MNIST: FOLDER/mnist holds its four files
    python benchmarks/defaults.py --only lora --seeds 1 --epsilons 2
    python benchmarks/defaults.py --only perceptron --seeds 30 --epsilons 0.5 --no-grid     # the two defaults alone

Every cell is the mean accuracy on other records over ``--seeds`` fits, all else as ``fit`` works it out; for LoRA it
is that of the next letter. The best of a grid is chosen by looking at those records, and pays nothing for it: more
than anybody could have. The first default is that of version 0.1.0: one rate, 20 / steps, whatever the noise.

The rule was settled on the digits, on perceptrons and MNIST's images held out of its training set, and on LoRA; no
number was chosen for the patches of photographs.
"""

import argparse
import copy
import statistics
import sys
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn
from torch.nn import functional

from correlated import images
from discreet import Budget, Recipe
from discreet.pytorch import fit
from discreet.pytorch.fit import length_of_weights
from timing import Targets, table

sys.path.append(str(Path(__file__).parent.parent / "examples"))
import lora
import mnist

FACTORS = (0.1, 0.25, 0.5, 2.0, 4.0, 10.0)
"""The grid: these times the rate that is worked out."""
EPSILONS = (0.5, 2.0, 8.0)
DELTA = 1e-5


def halved(x, y, count):
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return (x[:count], y[:count]), (x[count:], y[count:])


@cache
def digits():
    found = load_digits()
    return halved(torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target), 1497)


@cache
def patches():
    """16 x 16 pixels in colour: which photograph of two, and which half of it; brightness tells nothing."""
    draw, x, y = torch.Generator().manual_seed(1), [], []
    for number, photograph in enumerate(load_sample_images().images):
        pixels = torch.tensor(photograph).permute(2, 0, 1) / 255
        half, width = pixels.shape[1] // 2, pixels.shape[2]
        for below in range(2):
            rows = below * half + torch.randint(half - 16, (1000,), generator=draw)
            columns = torch.randint(width - 16, (1000,), generator=draw)
            x += [pixels[:, i : i + 16, j : j + 16] for i, j in zip(rows, columns, strict=True)]
            y += [2 * number + below] * 1000
    pictures = torch.stack(x)
    return halved(pictures - pictures.mean((1, 2, 3), keepdim=True), torch.tensor(y), 3000)


def text():
    return lora.sentences(lora.PRIVATE, lora.RECORDS, seed=2), lora.sentences(lora.PRIVATE, 500, seed=9)


def perceptron(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))


def convolutional():
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 10)),
    )


def normalised():
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(512, 4)),
    )


@cache
def language_model():
    """Trained on public sentences, as in the example."""
    torch.manual_seed(0)
    model, public = lora.language_model(), lora.sentences(lora.PUBLIC, lora.RECORDS, seed=1)
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    options = {"records": lora.RECORDS, "epochs": 5, "batch_size": 200, "optimizer": adam, "privacy": None}
    fit(model, public, lora.losses, **options)
    return model


def adapters():
    kept = copy.deepcopy(language_model())
    return lora.adapted(kept)


def right(model, batch):
    """The share told right."""
    if isinstance(batch, torch.Tensor):
        scores, truth = model(input_ids=batch, use_cache=False).logits[:, :-1], batch[:, 1:]
    else:
        scores, truth = model(batch[0]), batch[1]
    return float((scores.argmax(-1) == truth).float().mean())


def accuracy(make, training, testing, epsilon, factor, seed):
    """Of one fit; with ``factor`` the learning rate is so many times the one that is worked out."""
    torch.manual_seed(seed)
    model, text_alone = make(), isinstance(training, torch.Tensor)
    records = len(training if text_alone else training[1])
    options = {"records": records, "epsilon": epsilon, "delta": DELTA}
    if factor == "first":
        options |= first_default(records)
    elif factor != 1.0:
        options["learning_rate"] = factor * suggested(model, records, epsilon)
    fit(model, training, lora.losses if text_alone else losses, **options)
    with torch.no_grad():
        return right(model, testing)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def suggested(model, records, epsilon):
    """The rate that ``fit`` takes by itself."""
    weights = sum(value.numel() for value in model.parameters() if value.requires_grad)
    budget = Budget(epsilon, DELTA)
    plan = Recipe.suggest(records, weights, budget).calibrate(budget)
    return plan.learning_rate(weights, length_of_weights(model))


def first_default(records):
    """About 200 steps in 30 epochs, batches of 64 at least."""
    size = min(records, max(64, round(30 * records / 200)))
    rate = min(0.5, 20 * size / (30 * records))
    return {"epochs": 30, "batch_size": size, "learning_rate": rate, "schedule": "constant"}


def error_of_difference(some, others):
    """The standard error of the difference of two means, by how fits of several seeds differ on the same records."""
    if len(some) < 2:
        return float("nan")
    return ((statistics.variance(some) + statistics.variance(others)) / len(some)) ** 0.5


def cases(data):
    found = {
        "digits, perceptron": (lambda: perceptron(64), digits),
        "digits, convolutions": (convolutional, digits),
        "patches, convolutions": (normalised, patches),
        "LoRA, 2 000 sentences": (adapters, text),
    }
    if data is not None:
        small = [(data / "mnist", part, count) for part, count in (("train", 5000), ("t10k", 10_000))]
        found["MNIST, 5 000, perceptron"] = (
            lambda: perceptron(196),
            lambda: tuple(images(*each) for each in small),
        )
        found["MNIST, 5 000, convolutions"] = (
            mnist.convolutional,
            lambda: tuple(
                tuple(part[:count] for part in mnist.mnist(folder, name)) for folder, name, count in small
            ),
        )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--only", metavar="WORDS", default="", help="cases whose names hold these")
    parser.add_argument("--no-grid", action="store_true", help="the two defaults alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, targets = [], Targets()
    for title, (make, records) in cases(options.data).items():
        if options.only.lower() not in title.lower():
            continue
        training, testing = records()
        alone = {}
        for epsilon in options.epsilons:
            fits = {
                factor: [
                    accuracy(make, training, testing, epsilon, factor, seed) for seed in range(options.seeds)
                ]
                for factor in (1.0, "first", *(() if options.no_grid else FACTORS))
            }
            found = {factor: statistics.mean(values) for factor, values in fits.items()}
            alone[epsilon] = found[1.0]
            best = max((factor for factor in FACTORS if factor in found), key=found.get, default=None)
            shown = [f"{found[each]:.1%}" if each in found else "-" for each in ("first", 1.0, best)]
            case, error = f"{title}, epsilon {epsilon:g}", error_of_difference(fits["first"], fits[1.0])
            rows.append([title, f"{epsilon:g}", *shown, "-" if best is None else f"{best:g}", f"{error:.1%}"])
            print(*rows[-1], flush=True)
            if best is not None:
                behind = 100 * (found[best] - found[1.0])
                targets.limit("points below the best of the grid", 2.0, {case: behind})
            targets.limit("points below the first default", 0.0, {case: 100 * (found["first"] - found[1.0])})
        low, high = min(alone), max(alone)
        targets.limit("points that more epsilon costs", 0.0, {title: 100 * (alone[low] - alone[high])})
    table(
        f"Learning rates, {options.seeds} fits each",
        (
            *("data and network", "epsilon", "first default", "worked out", "best of the grid", "at, times"),
            "error of the difference of the defaults",
        ),
        rows,
    )
    targets.print()


if __name__ == "__main__":
    main()
