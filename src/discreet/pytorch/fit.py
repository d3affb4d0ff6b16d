"""Training in one call: :func:`fit`, with settings that suit privacy, and its twin without.

>>> x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
>>> y = (x[:, 0] > 0).long()
>>> def losses(model, batch):
...     return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
>>> fitted = fit(nn.Linear(5, 2), (x, y), losses, records=400, epsilon=8.0, delta=1e-5)
>>> print(fitted.certificate.guarantee)
(8, 1e-05)-differentially private for one record, add-remove neighbours, against an observer who sees every release
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from discreet.certificate import Certificate
from discreet.core.clipping import AdaptiveClip, ClipRule, Normalised
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, one_of, real, whole
from discreet.guarantee import Budget, Neighbours
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Sampling, Stage
from discreet.pytorch.batches import Collate, reader
from discreet.pytorch.checks.compatibility import insist_function, unwrap_model
from discreet.pytorch.clipping_choice import checked_clipping
from discreet.pytorch.gradients import Sums
from discreet.pytorch.loaders import unwrap_loader
from discreet.pytorch.optimizer_step import OptimizerStep, add_plain_sums, as_optimizers
from discreet.pytorch.per_example import (
    Losses,
    checked_losses,
    number_of_examples,
    rebuild,
    select,
    trainable,
)
from discreet.pytorch.run import PrivateRun

PLAIN_STEPS = 200
"""Of the twin without privacy, unless batches are given."""
PLAIN_EPOCHS = 30.0
PLAIN_PATH = 20.0
"""Learning rate times steps of the twin."""
AVERAGED = 0.25
"""The part of the steps at the end whose weights are averaged."""

Augment = Callable[[Any], Any]


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
    epochs: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    privacy: Literal["differential"] | None = "differential",
    neighbours: Neighbours = "add-remove",
    batch_size: int | None = None,
    sampling: Sampling = "poisson",
    bands: int | Literal["best"] = 1,
    clipping: ClipRule | AdaptiveClip | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    learning_rate: float | None = None,
    schedule: Literal["cosine", "constant"] = "cosine",
    views: int = 1,
    augment: Augment | None = None,
    average: bool = False,
    collate: Collate | None = None,
    physical_batch_size: int | None = 1024,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
    data: str | None = None,
    progress: bool = False,
    unsafe_seed: int | None = None,
) -> Fitted:
    """Train ``model`` in place within (epsilon, delta).

    ``records`` is the declared, public number of records. All else is worked out from it, from the budget and from
    the number of weights, unless it is given: epochs and batch size by
    :meth:`~discreet.plan.recipe.Recipe.suggest`, gradients brought to length one, and SGD with momentum 0.9 whose
    learning rate follows from the noise and from the length of the initial weights
    (:meth:`~discreet.plan.stage.Stage.learning_rate`) and falls to zero in a cosine. An ``optimizer`` of your own
    keeps its learning rate.

    ``bands="best"`` correlates the noise of successive steps (:mod:`discreet.core.matrix_mechanism`).

    ``augment(batch)`` returns the batch with each example changed at random; with ``views=K`` every example is seen K
    times in a step, and its mean gradient is clipped once, so that costs time and no privacy. ``average`` leaves the
    mean of the weights of the last quarter of the steps in the model.

    ``privacy=None`` trains on batches of the same kind, without clipping and noise; then there are no epsilon and
    delta, and the result must not be released as private.

    Guarantee: with privacy, ``fitted.certificate.guarantee`` is within the budget.
    """
    model, losses = unwrap_model(model), insist_function(losses)
    if views != 1 or augment is not None:
        losses = of_views(losses, augment, views)
    clip_norm = 1.0 if clipping is None else checked_clipping(clipping).clip_norm
    weights = sum(value.numel() for value in trainable(model).values())
    if privacy is None:
        _refuse_budget(epsilon, delta)
        stage = _plain_stage(records, epochs, batch_size, sampling, clip_norm)
        rate = min(0.5, PLAIN_PATH / stage.steps)
        trainer = _Trainer(model, stage.steps, optimizer, learning_rate, rate, "constant", average)
        stream = RandomStream(unsafe_seed=unsafe_seed)
        _train_plainly(trainer, dataset, losses, stage, collate, physical_batch_size, stream)
        return Fitted(model, None)
    budget = _budget(privacy, epsilon, delta, neighbours)
    recipe = Recipe.suggest(
        records,
        max(1, weights),
        budget,
        batch_size=batch_size,
        epochs=epochs,
        clip_norm=clip_norm,
        sampling=sampling,
    )
    plan = recipe.changed(bands=bands).calibrate(budget)
    rate = plan.learning_rate(max(1, weights), length_of_weights(model))
    trainer = _Trainer(model, plan.steps, optimizer, learning_rate, rate, schedule, average)
    run = PrivateRun(
        plan,
        model,
        trainer.optimizers,
        losses,
        clipping=Normalised(clip_norm) if clipping is None else clipping,
        physical_batch_size=physical_batch_size,
        ledger=ledger,
        ledger_key=ledger_key,
        data=data,
        progress=progress,
        unsafe_seed=unsafe_seed,
    )
    for batch in run.batches(dataset, collate=collate):
        run.step(batch)
        trainer.after_step()
    trainer.finish()
    return Fitted(model, run.certificate())


def of_views(losses: Losses, augment: Augment | None, views: int) -> Losses:
    """Losses of which each is the mean over ``views`` augmented copies of its example.

    Guarantee: one loss per example, so that the clip norm bounds all views of an example together.
    """
    count = whole("views", views, at_least=1)
    if not callable(augment):
        remedy = "must be a function of a batch; without one all views are the same."
        raise InvalidParameter("augment", augment, remedy)

    def mean_of_views(model: Any, batch: Any) -> Tensor:
        seen = augment(rebuild(batch, lambda tensor: tensor.repeat_interleave(count, 0)))
        return checked_losses(losses, model, seen, number_of_examples(seen)).view(-1, count).mean(1)

    return mean_of_views


def length_of_weights(model: nn.Module) -> float:
    """Of all trained matrices and filters together; biases and gains apart, which say nothing about their scale."""
    matrices = [value.detach() for value in trainable(model).values() if value.ndim > 1]
    return math.sqrt(sum(float(value.double().square().sum()) for value in matrices))


class _Trainer:
    """The optimizers of a fit, their learning rate by the step, and the average of the last weights."""

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        given: Optimizer | Sequence[Optimizer] | None,
        learning_rate: float | None,
        suggested: float,
        schedule: str,
        average: bool,
    ) -> None:
        self.model, self._steps, self._taken = model, steps, 0
        one_of("schedule", schedule, ("cosine", "constant"))
        if given is not None and learning_rate is not None:
            raise InvalidParameter(
                "learning_rate", learning_rate, "belongs into the optimizer that is given."
            )
        rate = suggested if learning_rate is None else real("learning_rate", learning_rate, above=0)
        self.optimizers = (
            (torch.optim.SGD(list(trainable(model).values()), lr=rate, momentum=0.9),)
            if given is None
            else as_optimizers(given)
        )
        self._falling = schedule == "cosine" and given is None
        self._rate = rate
        self._mean = None
        if average:
            self._mean = {name: torch.zeros_like(value) for name, value in trainable(model).items()}
        self._averaged = max(1, round(AVERAGED * steps))

    @torch.no_grad()
    def after_step(self) -> None:
        """Lower the learning rate for the step that is next, and take the weights into the mean."""
        self._taken += 1
        if self._falling:
            rate = self._rate * (1 + math.cos(math.pi * self._taken / self._steps)) / 2
            for group in self.optimizers[0].param_groups:
                group["lr"] = rate
        if self._mean is not None and self._taken > self._steps - self._averaged:
            for name, value in trainable(self.model).items():
                self._mean[name].add_(value, alpha=1 / self._averaged)

    @torch.no_grad()
    def finish(self) -> None:
        """Put the mean into the model."""
        if self._mean is not None:
            for name, value in trainable(self.model).items():
                value.copy_(self._mean[name])


def _train_plainly(
    trainer: _Trainer,
    dataset: Any,
    losses: Losses,
    stage: Stage,
    collate: Collate | None,
    physical_batch_size: int | None,
    stream: RandomStream,
) -> None:
    """Stochastic gradient descent: the plan's batches, sums and divisor, and nothing else of it."""
    dataset, collate, workers = unwrap_loader(dataset, collate, 0)
    model = trainer.model
    parameters, records = trainable(model), reader(dataset, collate)
    descent = OptimizerStep(parameters, trainer.optimizers)
    device = next(iter(parameters.values())).device
    for drawn in records.each(stage.batches(stream, rows=records.rows), workers, compared=False):
        sums = Sums(parameters)
        for part in _parts(drawn.batch, physical_batch_size):
            values = losses(model, rebuild(part, lambda tensor: tensor.to(device)))
            add_plain_sums(sums, values, parameters)
        descent.refuse_other_parameters()
        descent.step(sums, stage.divisor)
        trainer.after_step()
    trainer.finish()


def _parts(data: Any, size: int | None) -> list[Any]:
    if data is None:
        return []
    count = number_of_examples(data)
    step = count if size is None else whole("physical_batch_size", size, at_least=1)
    return [select(data, slice(start, start + step)) for start in range(0, count, step)]


def _plain_stage(
    records: int, epochs: float | None, batch_size: int | None, sampling: Sampling, clip_norm: float
) -> Stage:
    epochs = PLAIN_EPOCHS if epochs is None else epochs
    if batch_size is None and sampling != "full-batch":
        known = Recipe(records, 1, epochs=epochs).at(1.0)  # which checks both numbers
        batch_size = min(max(64, round(known.steps / PLAIN_STEPS)), known.records)
    return Recipe(records, batch_size, epochs=epochs, clip_norm=clip_norm, sampling=sampling).at(1.0)


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
