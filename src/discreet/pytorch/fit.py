"""Training in one call: :func:`fit`, with settings that suit privacy, and its twin without.

>>> x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
>>> y = (x[:, 0] > 0).long()
>>> def losses(model, batch):
...     return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
>>> fitted = fit(nn.Linear(5, 2), (x, y), losses, records=400, epsilon=8.0, delta=1e-5, epochs=5)
>>> print(fitted.certificate.guarantee)
(8, 1e-05)-differentially private for one record, add-remove neighbours, against an observer who sees every release
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from discreet.certificate import Certificate
from discreet.core.clipping import AdaptiveClip, ClipRule, Normalised
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, whole
from discreet.guarantee import Budget, Neighbours
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling, Stage
from discreet.pytorch.batches import Collate, reader, taken_apart
from discreet.pytorch.examples import number_of_examples, rebuilt, select
from discreet.pytorch.optimizer_step import Descent, add_plain_sums, as_optimizers
from discreet.pytorch.per_example import Losses, trainable
from discreet.pytorch.planned_clipping import checked_clipping
from discreet.pytorch.run import PrivateRun
from discreet.pytorch.sums import Sums

STEPS = 200
"""So many steps are enough for most models, and larger batches carry less noise than more steps."""

PATH = 20.0
"""Learning rate times steps, for SGD with momentum 0.9 and gradients of length one."""


@dataclass(frozen=True)
class Fitted:
    """The trained model, and the proof of what it gives away. There is none without privacy."""

    model: nn.Module
    certificate: Certificate | None


def fit(
    model: nn.Module,
    dataset: Any,
    losses: Losses,
    *,
    records: int,
    epochs: float,
    epsilon: float | None = None,
    delta: float | None = None,
    privacy: Literal["differential"] | None = "differential",
    neighbours: Neighbours = "add-remove",
    batch_size: int | None = None,
    sampling: Sampling = "poisson",
    clipping: ClipRule | AdaptiveClip | None = None,
    optimizer: Optimizer | None = None,
    collate: Collate | None = None,
    physical_batch_size: int | None = 1024,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
    data: str | None = None,
    progress: bool = False,
    unsafe_seed: int | None = None,
) -> Fitted:
    """Train ``model`` in place within (epsilon, delta).

    ``records`` is the declared, public number of records. The defaults are made for privacy: batches so large
    that about 200 steps make up the epochs (but 64 records at least), gradients brought to length one, and SGD
    with momentum and a learning rate that goes with both.

    ``privacy=None`` trains on batches of the same kind by the same steps, without clipping and noise; then there
    are no epsilon and delta, and the result must not be released as private.

    Guarantee: with privacy, ``fitted.certificate.guarantee`` is within the budget.
    """
    recipe = _recipe(records, epochs, batch_size, sampling, clipping)
    if optimizer is None:
        optimizer = _optimizer(model, recipe.at(1.0).steps)
    if privacy is None:
        _refuse_budget(epsilon, delta)
        stream = RandomStream(unsafe_seed=unsafe_seed)
        _train_plainly(
            model, dataset, losses, recipe.at(1.0), optimizer, collate, physical_batch_size, stream
        )
        return Fitted(model, None)
    plan = recipe.calibrate(_budget(privacy, epsilon, delta, neighbours))
    run = PrivateRun(
        plan,
        model,
        optimizer,
        losses,
        clipping=Normalised(recipe.clip_norm) if clipping is None else clipping,
        physical_batch_size=physical_batch_size,
        ledger=ledger,
        ledger_key=ledger_key,
        data=data,
        progress=progress,
        unsafe_seed=unsafe_seed,
    )
    for batch in run.batches(dataset, collate=collate):
        run.step(batch)
    return Fitted(model, run.certificate())


def _train_plainly(
    model: nn.Module,
    dataset: Any,
    losses: Losses,
    stage: Stage,
    optimizer: Optimizer,
    collate: Collate | None,
    physical_batch_size: int | None,
    stream: RandomStream,
) -> None:
    """Stochastic gradient descent: the plan's batches, sums and divisor, and nothing else of it."""
    dataset, collate, workers = taken_apart(dataset, collate, 0)
    parameters, records = trainable(model), reader(dataset, collate)
    descent = Descent(parameters, as_optimizers(optimizer), stage.divisor)
    device = next(iter(parameters.values())).device
    for data in records.each(stage.batches(stream, rows=records.rows), workers):
        sums = Sums(parameters)
        for part in _parts(data, physical_batch_size):
            values = losses(model, rebuilt(part, lambda tensor: tensor.to(device)))
            add_plain_sums(sums, values, parameters)
        descent.step(sums, finish=lambda total: None)


def _parts(data: Any, size: int | None) -> list[Any]:
    if data is None:
        return []
    count = number_of_examples(data)
    step = count if size is None else whole("physical_batch_size", size, at_least=1)
    return [select(data, slice(start, start + step)) for start in range(0, count, step)]


def _recipe(
    records: int,
    epochs: float,
    batch_size: int | None,
    sampling: Sampling,
    clipping: ClipRule | AdaptiveClip | None,
) -> Recipe:
    if batch_size is None and sampling != "full-batch":
        known = Recipe(records, 1, epochs=epochs).at(1.0)  # which checks both numbers
        batch_size = min(max(64, round(known.steps / STEPS)), known.records)
    clip_norm = 1.0 if clipping is None else checked_clipping(clipping).clip_norm
    return Recipe(records, batch_size, epochs=epochs, clip_norm=clip_norm, sampling=sampling)


def _optimizer(model: nn.Module, steps: int) -> Optimizer:
    return torch.optim.SGD(trainable(model).values(), lr=min(0.5, PATH / steps), momentum=0.9)


def _budget(privacy: object, epsilon: float | None, delta: float | None, neighbours: Neighbours) -> Budget:
    if privacy != "differential":
        raise InvalidParameter(
            "privacy", privacy, "must be 'differential', or None to train without privacy."
        )
    if epsilon is None or delta is None:
        name = "epsilon" if epsilon is None else "delta"
        raise InvalidParameter(name, None, "is needed; privacy=None trains without privacy.")
    return Budget(epsilon, delta, neighbours)


def _refuse_budget(epsilon: float | None, delta: float | None) -> None:
    if epsilon is not None or delta is not None:
        name, value = ("epsilon", epsilon) if epsilon is not None else ("delta", delta)
        raise InvalidParameter(name, value, "cannot be kept with privacy=None; leave one of the two out.")
