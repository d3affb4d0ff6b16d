"""Rows 15 to 19: a training loop that its user gets wrong, on purpose or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from card import Broken, row
from engines import gradients, squares, vector_model, vector_run
from naive import RNG, clipped
from torch import nn
from torch.utils.data import DataLoader

import discreet as dp
from discreet.pytorch import PrivateRun

Loop = Callable[[], Any]
WIDTH, SHOUT = 500, 1e6
"""The width of the model, and what a raw gradient holds: it cannot be overlooked."""


def refused(loop: Loop) -> bool:
    try:
        loop()
    except dp.DiscreetError:
        return True
    return False


def backward_twice() -> float:
    """The largest update, after two raw backward passes before each private step."""
    plan = dp.Recipe(records=20, batch_size=10, steps=3).with_noise(1.0, 1e-6)
    run, model = vector_run(plan, WIDTH)
    largest = 0.0
    for batch in run.batches(torch.full((20, WIDTH), SHOUT, dtype=torch.float64)):
        for _ in range(2):
            (model.weight * SHOUT).sum().backward()
        run.step(batch)
        largest = max(largest, model.weight.grad.abs().max().item())
    return largest


def step_twice() -> float:
    """The same batch for two steps: it was drawn once."""
    plan = dp.Recipe(records=20, batch_size=10, steps=3).with_noise(1.0, 1e-6)
    run, _ = vector_run(plan, WIDTH)
    batch = next(run.batches(torch.zeros(20, WIDTH, dtype=torch.float64)))
    run.step(batch)
    if not refused(lambda: run.step(batch)):
        raise Broken("a batch is used twice")
    return 0.0


def accumulated() -> float:
    """Adds its private gradient to whatever is there."""
    return float(np.abs(2 * SHOUT + RNG.normal(size=WIDTH)).max())


@row(
    15,
    "two backward passes, or two steps, on one batch",
    ours={"backward": backward_twice, "step": step_twice},
    twins={"adds to .grad": accumulated},
)
def twice(largest_update: Callable[[], float]) -> str:
    largest = largest_update()
    if largest > 100:
        raise Broken(f"an update of {largest:.0e} clip norms: raw gradients passed")
    return "nothing raw passes"


def never_zeroed() -> np.ndarray:
    plan = dp.Recipe(records=20, batch_size=10, steps=30).with_noise(1.0, 1e-6)
    run, model = vector_run(plan, WIDTH)
    return np.array(list(gradients(run, model, torch.zeros(20, WIDTH, dtype=torch.float64))))


def summed_up() -> np.ndarray:
    return np.cumsum(RNG.normal(size=(30, WIDTH)), axis=0)


@row(16, "zero_grad is never called", ours={"PrivateRun": never_zeroed}, twins={"sums them up": summed_up})
def zero_grad(updates: Callable[[], np.ndarray]) -> str:
    """Independent updates are correlated by 0.05 or more less than once in a billion times (14 500 products)."""
    found = updates()
    correlation = float(np.corrcoef(found[1:].ravel(), found[:-1].ravel())[0, 1])
    if abs(correlation) > 0.05:
        raise Broken(f"an update and the next are correlated by {correlation:.2f}")
    return f"updates correlated by {abs(correlation):.2f}"


class Remembering(nn.Module):
    """Keeps the mean of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.detach().mean(0)
        return self.layer(x)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def trained(make: Callable[[], nn.Module]) -> Loop:
    def loop() -> dict[str, torch.Tensor] | None:
        model = make()
        plan = dp.Recipe(records=20, batch_size=10, steps=2).with_noise(1.0, 1e-6)

        def train() -> None:
            run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), squares)
            for batch in run.batches((torch.full((20, 3), SHOUT), torch.zeros(20))):
                run.step(batch)

        return None if refused(train) else model.state_dict()

    return loop


def trained_naively() -> dict[str, torch.Tensor]:
    model = Remembering()
    model(torch.full((20, 3), SHOUT))
    return model.state_dict()


@row(
    17,
    "batch norm and buffers with statistics",
    ours={"batch norm": trained(normalised), "buffer": trained(Remembering)},
    twins={"plain loop": trained_naively},
)
def buffers(train: Loop) -> str:
    state = train()
    if state is not None:
        raise Broken(
            f"accepted; the model holds {max(value.abs().max().item() for value in state.values()):.0e}"
        )
    return "refused"


class PlainRun:
    """Noise on clipped sums, and no look at anything else: takes any batches and goes on from any weights."""

    def __init__(self, model: nn.Linear) -> None:
        self.model = model

    def batches(self, rows: Any) -> Iterator[Any]:
        return iter(rows)

    def step(self, batch: Any) -> None:
        rows = batch[0] if isinstance(batch, list) else batch
        total = torch.tensor(clipped(np.atleast_2d(rows.numpy())).sum(0) + RNG.normal(size=3))
        self.model.weight.data -= total / 10


def private_run() -> tuple[PrivateRun, nn.Linear]:
    return vector_run(dp.Recipe(records=20, batch_size=10, steps=3).with_noise(1.0, 1e-6), 3)


def plain_run() -> tuple[PlainRun, nn.Linear]:
    model = vector_model(3)
    return PlainRun(model), model


Make = Callable[[], tuple[Any, nn.Linear]]


@row(
    18,
    "another optimizer steps on raw gradients",
    ours={"PrivateRun": private_run},
    twins={"does not look": plain_run},
)
def foreign_optimizer(make: Make) -> str:
    run, model = make()
    other, batches = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        run.batches(torch.ones(20, 3, dtype=torch.float64)),
    )
    run.step(next(batches))
    model.zero_grad()
    (model.weight * SHOUT).sum().backward()
    other.step()
    if not refused(lambda: run.step(next(batches))):
        raise Broken(f"the weights moved by {model.weight.abs().max().item():.0e} and the run went on")
    return "refused at the next step"


@row(
    19,
    "a loader that shuffles is not accounted as Poisson sampling",
    ours={"PrivateRun": private_run},
    twins={"takes any loader": plain_run},
)
def loader(make: Make) -> str:
    run, _ = make()
    shuffling = DataLoader(torch.ones(20, 3, dtype=torch.float64), batch_size=10, shuffle=True)
    run.batches(shuffling)  # which may take its records, and must draw by itself
    if not refused(lambda: [run.step(batch) for batch in shuffling]):
        raise Broken("trained on shuffled batches")
    return "refused"
