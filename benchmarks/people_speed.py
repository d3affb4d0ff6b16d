"""What it costs in time to protect people: a private step on people with eight rows, over one on as many single rows.

Medians of interleaved CPU times in one process, so that other load matters little. Run with
``python benchmarks/people_speed.py``; part of ``make bench-units``.
"""

import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from discreet.core.clipping import Flat
from discreet.pytorch import PerPerson
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.per_person import PersonLosses

ROWS, PEOPLE, ROUNDS = 8, 128, 15


def models():
    flat = nn.Sequential(nn.Linear(196, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    yield "mlp", flat, torch.randn(ROWS * PEOPLE, 196)
    layers = (nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten())
    yield "cnn", nn.Sequential(*layers, nn.Linear(800, 10)), torch.randn(ROWS * PEOPLE, 1, 28, 28)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    head = nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 16, 10))
    yield "transformer", head, torch.randn(ROWS * PEOPLE, 16, 64)


def losses(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def main():
    print(f"model        rows {ROWS * PEOPLE}, ms   people {PEOPLE} x {ROWS}, ms   ratio")
    for name, model, x in models():
        batch = (x, torch.randint(0, 10, (len(x),)))
        people = PerPerson(batch, torch.arange(len(x)) // ROWS, rows=ROWS).read(range(PEOPLE))
        by_row, by_person = (
            ClippedSum(model, losses, Flat(1.0)),
            ClippedSum(model, PersonLosses(losses), Flat(1.0)),
        )
        pairs = [(cpu(by_row, batch), cpu(by_person, people)) for _ in range(ROUNDS)][3:]
        rows, together = (statistics.median(one) for one in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{name:<12} {1e3 * rows:8.2f} {1e3 * together:20.2f} {ratio:12.2f}", flush=True)


def cpu(engine, batch):
    start = time.process_time()
    engine(batch)
    return time.process_time() - start


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    main()
