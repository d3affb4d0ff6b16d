"""The judge of the clip: how far does one record move what is released? It knows nothing of how the engine works.

    contribution = |sum(D) - sum(D without the record)| / C

A clip that holds gives at most 1. :func:`judged` takes the way of a user: a run over all records with next to no
noise, once with the record and once without, and the released gradients of every step are compared. The optimizer
moves the weights by steps that are fixed beforehand, so both runs stay comparable while the model "trains".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from discreet import Recipe
from discreet.core.clipping import Flat
from discreet.errors import InvalidParameter, PlanViolation
from discreet.pytorch import CheckFailed, PrivateRun, check
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.mapped_gradients import per_example_gradients
from discreet.pytorch.per_example import select

LIMIT = 1 + 1e-4
REFUSALS = (CheckFailed, PlanViolation, InvalidParameter)
NOISE = 0.05  # the same in both runs, because they have the same seed


@dataclass
class Setup:
    """A model, its losses, ordinary rows, and the record that breaks it.

    The first ``physical`` rows are worked off before the others, so the record is met by an engine that has seen
    ordinary ones only. The record comes last.
    """

    model: nn.Module
    losses: Callable[[Any, Any], Tensor]
    rows: list[Any]
    record: Any
    collate: Callable[[list[Any]], Any] | None = None
    dataset: Callable[[list[Any]], Any] = list
    clip_norms: tuple[float, ...] = (0.02, 1.0)
    physical: int | None = -1  # half of the rows; None for no parts
    steps: int = 2
    stride: float = 0.05  # how far the weights move in a step


@dataclass(frozen=True)
class Verdict:
    """``refused``, ``named``, ``harmless``, or else ``BROKEN`` or ``CRASHED``; and what was measured or said."""

    kind: str
    detail: str = ""
    contribution: float = 0.0

    @property
    def passed(self) -> bool:
        return self.kind in ("refused", "named", "harmless")


class Wandering(torch.optim.Optimizer):
    """Moves the weights at random, the same way in every run: a training that depends on no record."""

    def __init__(self, parameters: Any, stride: float) -> None:
        super().__init__(parameters, {"lr": stride})
        self.generator = torch.Generator().manual_seed(11)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for value in group["params"]:
                way = torch.randn(value.shape, generator=self.generator, dtype=torch.float64)
                value += (group["lr"] * way).to(value.dtype)


def released(setup: Setup, rows: list[Any], clip_norm: float) -> Iterator[Tensor]:
    """Step by step what a run over all rows releases of them, as a sum in units of the clip norm."""
    records = len(setup.rows) + 1
    recipe = Recipe(records=records, steps=setup.steps, sampling="full-batch", clip_norm=clip_norm)
    trained = [value for value in setup.model.parameters() if value.requires_grad]
    optimizer = Wandering(trained, setup.stride)
    physical = (len(setup.rows) + 1) // 2 if setup.physical == -1 else setup.physical
    run = PrivateRun(
        recipe.with_noise(NOISE, delta=1e-3),
        setup.model,
        optimizer,
        setup.losses,
        physical_batch_size=physical,
        unsafe_seed=5,
    )
    for batch in run.batches(setup.dataset(rows), collate=setup.collate):
        torch.manual_seed(13)
        run.step(batch)
        grads = [torch.zeros_like(value) if value.grad is None else value.grad for value in trained]
        yield torch.cat([grad.double().flatten() for grad in grads]) * recipe_divisor(run) / clip_norm


def recipe_divisor(run: PrivateRun) -> float:
    return float(run.plan.stage().divisor)


def contributions(build: Callable[[], Setup]) -> Iterator[float]:
    """What the record moves, for every clip norm and every step."""
    for clip_norm in _same(build).clip_norms:
        one, other = _same(build), _same(build)
        with_it = released(one, [*one.rows, one.record], clip_norm)
        without = released(other, other.rows, clip_norm)
        for here, there in zip(with_it, without, strict=True):
            moved = float((here - there).norm())
            yield moved if moved == moved else float("inf")


def _same(build: Callable[[], Setup]) -> Setup:
    """Always with the same weights."""
    torch.manual_seed(0)
    return build()


def judged(build: Callable[[], Setup], named: str = "") -> Verdict:
    """Run it as a user would. ``named`` is what "not covered" may say of it instead of a refusal."""
    worst = 0.0
    try:
        for value in contributions(build):
            worst = max(worst, value)
    except REFUSALS as refusal:
        if worst > LIMIT:
            return Verdict("BROKEN", f"refused after {worst:.3g} C were released", worst)
        return Verdict("refused", str(refusal))
    except Exception as error:  # a user sees a traceback and learns nothing
        return Verdict("CRASHED", f"{type(error).__name__}: {error}")
    if worst <= LIMIT:
        return Verdict("harmless", contribution=worst)
    if named and is_named(named, build):
        return Verdict("named", named, worst)
    return Verdict("BROKEN", f"one record moves the sum by {worst:.5g} C", worst)


def is_named(pattern: str, build: Callable[[], Setup]) -> bool:
    setup = build()
    plan = Recipe(records=9, steps=1, sampling="full-batch").with_noise(1.0, delta=1e-3)
    run = PrivateRun(plan, setup.model, Wandering(setup.model.parameters(), 0.0), setup.losses, unsafe_seed=1)
    return names(run, pattern)


def names(run: PrivateRun, pattern: str) -> bool:
    """Whether the certificate of a run says that something is not covered."""
    return any(re.search(pattern, text, re.IGNORECASE) for text in run.certificate().not_covered)


def exact(model: nn.Module, losses: Callable[[Any, Any], Tensor], batch: Any) -> Verdict:
    """An honest model must be accepted, and its sums must be those of single examples.

    ``harmless`` if all is well; ``BROKEN`` if a sum or a contribution is wrong; ``refused`` is a false refusal.
    """
    try:
        check(model, losses, batch)
        return _compared(model, losses, batch)
    except REFUSALS as refusal:
        return Verdict("refused", str(refusal))
    except Exception as error:
        return Verdict("CRASHED", f"{type(error).__name__}: {error}")


def _compared(model: nn.Module, losses: Callable[[Any, Any], Tensor], batch: Any) -> Verdict:
    rows = per_example_gradients(model, losses, batch)
    flat = torch.cat([row.double().reshape(len(row), -1) for row in rows.values()], 1)
    norms = flat.norm(dim=1)
    clip_norm = float(norms.median())
    wanted = ((clip_norm / norms).clamp(max=1)[:, None] * flat).sum(0)
    engine = ClippedSum(model, losses, Flat(clip_norm))
    found = _flat(engine(batch))
    error = float((found - wanted).norm()) / clip_norm
    worst = 0.0
    for place in (0, len(norms) - 1):
        others = select(batch, torch.arange(len(norms)) != place)
        worst = max(worst, float((found - _flat(engine(others))).norm()) / clip_norm)
    if not (error <= 1e-3 and worst <= LIMIT):
        return Verdict("BROKEN", f"off by {error:.2g} C, one record moves the sum by {worst:.6g} C", worst)
    return Verdict("harmless", f"off by {error:.2g} C", worst)


def _flat(sums: Any) -> Tensor:
    return torch.cat([value.double().flatten() for value in sums.values()])


@dataclass(frozen=True)
class Footgun:
    """Something that users do. ``attempt`` does it and says what came of it."""

    name: str
    hole: int  # of issue 14, or 0
    attempt: Callable[[], Verdict] = field(repr=False)
