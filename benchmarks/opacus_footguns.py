"""Opacus under our detectors: plain use passes, and five ways of using it that leak without a word are found.

    python benchmarks/opacus_footguns.py [--json]

Each subject is a few lines of user code around Opacus' own GradSampleModule and DPOptimizer, as its engine builds
them. What one record may move is C / expected batch size; the loss decides whether that is true.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from discreet.audit.examine import Specification, Subject, examine

CLIP, NOISE, BATCH, WIDTH, CLASSES = 1.0, 1.0, 40, 8, 3


class Centred(nn.Module):
    """A custom layer that subtracts the mean of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def class_weighted(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y, weight=torch.tensor([1.0, 1.0, 20.0]))


def contrastive(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """In-batch negatives: each record against all others."""
    z = F.normalize(model(x), dim=1)
    return F.cross_entropy(z @ z.detach().T / 0.1, torch.arange(len(x)))


def token_mean(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Tokens of all records averaged together; how many a record has is its first number, the rest is padding."""
    scores = model(x)
    lengths = x[:, 0].abs().clamp(0.05, 20.0)
    losses = F.cross_entropy(scores, y, reduction="none")
    return (losses * lengths).sum() / lengths.sum()


torch.manual_seed(0)
START = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def network(centred: bool = False) -> nn.Module:
    model = copy.deepcopy(
        START
    )  # a seed here would repeat the noise, for Opacus draws it from the same generator
    return nn.Sequential(Centred(), *model) if centred else model


def release(loss: Callable[..., torch.Tensor], noise: float, centred: bool = False) -> Callable[[Any], Any]:
    """One step of Opacus on these records: the gradient that its optimizer sees."""

    def step(records: Any) -> np.ndarray:
        x, y = torch.tensor(records[0], dtype=torch.float32), torch.tensor(records[1])
        model = GradSampleModule(network(centred))
        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            noise_multiplier=noise,
            max_grad_norm=CLIP,
            expected_batch_size=BATCH,
        )
        if len(x):
            loss(model, x, y).backward()
        else:
            for value in model.parameters():
                value.grad_sample = torch.zeros((0, *value.shape))
        optimizer.pre_step()
        return torch.cat([value.grad.reshape(-1) for value in model.parameters()]).numpy()

    return step


def loader_batches(poisson: bool) -> Callable[[], Any]:
    """The batches of five epochs: of Opacus' own loader, or of the one that the user forgot to exchange."""

    def batches() -> list[np.ndarray]:
        data = TensorDataset(torch.randn(400, WIDTH), torch.arange(400))
        model = network()
        original = DataLoader(data, batch_size=BATCH, shuffle=True)
        _, _, private = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=original,
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
        )
        return [rows.numpy() for _ in range(10) for _, rows in (private if poisson else original)]

    return batches


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(BATCH) < 0.1, 2, rng.integers(0, 2, BATCH))
    return rng.normal(size=(BATCH, WIDTH)), labels


def subjects() -> dict[str, Subject]:
    """By name; the first two should pass. All but the last are given clean records."""

    def of(loss: Callable[..., torch.Tensor], centred: bool = False, **more: Any) -> Subject:
        return Subject(records(), sums=release(loss, 0.0, centred), **more)

    return {
        "plain mean of a cross-entropy": of(plain, noisy=release(plain, NOISE)),
        "its own Poisson loader": Subject(records(), batches=loader_batches(poisson=True)),
        "class-weighted cross-entropy": of(class_weighted),
        "mean of the batch subtracted in a layer": of(plain, centred=True),
        "contrastive loss with in-batch negatives": of(contrastive),
        "mean over all tokens of the batch": of(token_mean),
        "the original loader, shuffled": Subject(records(), batches=loader_batches(poisson=False)),
        "a record with NaN or huge numbers": of(plain),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    claim = Specification(CLIP / BATCH, NOISE * CLIP / BATCH, rate=0.1, records=400)
    rows = []
    for name, subject in subjects().items():
        start = time.perf_counter()
        found = examine(subject, claim, pairs=66, hostile="NaN" in name)
        wrong = [str(finding) for finding in found.findings if not finding.passed]
        rows.append(
            {"use": name, "passed": found.passed, "seconds": time.perf_counter() - start, "found": wrong}
        )
        if not arguments.json:
            print(
                f"{name:42} {rows[-1]['seconds']:5.1f} s  {'; '.join(wrong) or 'nothing found'}", flush=True
            )
    if arguments.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
