"""The privacy type-check: does the guarantee hold for *this* model and *this* loss?

DP-SGD bounds what one example adds to a sum of gradients. That is true only if an example's loss depends on no
other example, and if the fast gradients are right. Both are tested here, on the user's own model, before the
first release; the refusal names the layer or the loss, and the remedy.

====================================  =========================================================================
what is refused                       because
====================================  =========================================================================
batch norm, tensors that change       statistics of the records get into the model without noise
one loss for the batch (a mean)       there is nothing to clip by example
a weighted or token mean              one example's weight rescales all the others
``x - x.mean(0)``, contrastive loss   one example changes the gradients of all the others
tensors trained outside of the model  they would be neither clipped nor noised
fast gradients that are not exact     the clip would not bound what it says
====================================  =========================================================================

The test runs on a few examples put together at random from the columns of a batch, inside the process. Whether
it passes is all that it tells, and no message holds a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed, InvalidParameter
from discreet.pytorch.batches import Collate, Reader, reader, refuse_mixing_collate, taken_apart
from discreet.pytorch.checks.compatibility import bare, is_fully_sharded, refuse_layers
from discreet.pytorch.checks.constancy import Constancy
from discreet.pytorch.checks.exactness import refuse_in_double_too, refuse_inexact
from discreet.pytorch.checks.independence import (
    elsewhere,
    losses_of,
    refuse_mixing,
    refuse_mixing_of_halves,
    refuse_other_losses_alone,
)
from discreet.pytorch.checks.mixing import close, random_state, seeded
from discreet.pytorch.checks.steady import steady_draws
from discreet.pytorch.checks.trial_examples import EXAMPLES, all_changed, made_up
from discreet.pytorch.examples import number_of_examples
from discreet.pytorch.per_example import Losses, trainable

SEEDS = 48  # so that of losses that mix one batch in ten, one in a hundred passes
STEADY = 3  # draws held still in so many ways, as one of them may leave out a part of the model
ROWS = 64  # of a data set, for the batch to check with
MOST_KEPT = 1 << 24  # numbers of a buffer that is put back as it was; larger ones are watched only


def check(
    model: nn.Module,
    losses: Losses,
    batch: Any = None,
    *,
    dataset: Any = None,
    collate: Collate | None = None,
) -> None:
    """Raise :class:`CheckFailed` if training with these losses could break the guarantee.

    Give a batch, or the data set and ``collate`` as for a run: then it is also tried whether ``collate`` lets an
    example depend on those that it meets in a batch.

    Guarantee: none for what is not tested. A model that passes has, on the examples tried and with weights near
    its own, losses that depend on one example each, gradients equal to those of single examples, and buffers that
    stay as they are.
    """
    if (batch is None) == (dataset is None):
        raise InvalidParameter("batch", "both" if dataset is not None else None, "or dataset= must be given.")
    if is_fully_sharded(model):
        raise CheckFailed(
            "The model is sharded; check it before fully_shard. A PrivateRun checks it in any case."
        )
    dataset, collate, _ = taken_apart(dataset, collate, 0)
    check_read(bare(model), losses, batch, None if dataset is None else reader(dataset, collate))


def check_read(model: nn.Module, losses: Losses, batch: Any, read: Reader | None) -> None:
    """:func:`check` with a batch, or with what a reader reads, or both."""
    refuse_layers(model)
    if not trainable(model):
        raise InvalidParameter("model", type(model).__name__, "must have a parameter to train.")
    if batch is None and read is not None:
        batch = read(range(min(read.rows, ROWS)))
    count = number_of_examples(batch)
    with _undisturbed(model):
        for module in model.modules():
            if isinstance(
                module, nn.RReLU
            ):  # it draws where an input is negative, so the others' draws move on
                module.eval()
        few = made_up(batch, EXAMPLES)
        many = made_up(batch, max(EXAMPLES, count))
        watch = Constancy(model, trained_too=True)
        _one_loss_each(model, losses, few)
        watch.refuse_change()
        _no_outsiders(model, losses, few)
        _same_twice(model, losses, few)
        refuse_in_double_too(refuse_mixing, model, losses, few)
        watch.refuse_change()
        with _wandered(model, losses, few):
            watch = Constancy(model, trained_too=True)
            _compare(model, losses, few, many)
            if read is not None:
                refuse_mixing_collate(model, losses, read)
            watch.refuse_change()


def _compare(model: nn.Module, losses: Losses, few: Any, many: Any) -> None:
    """Examples with others, alone, and in another order; and gradients by the fast way and by the slow one."""
    refuse_in_double_too(refuse_mixing, model, losses, few)
    refuse_in_double_too(partial(refuse_mixing_of_halves, seeds=1), model, losses, many)
    draws = _draws(model, losses, few)
    if draws:
        refuse_in_double_too(partial(refuse_mixing_of_halves, seeds=SEEDS), model, losses, few)
    for seed in range(STEADY if draws else 1):
        alone = partial(refuse_in_double_too, refuse_other_losses_alone, model, losses, many)
        _held_still(alone, seed)
    _held_still(partial(refuse_inexact, model, losses, few), 0)


@contextmanager
def _wandered(model: nn.Module, losses: Losses, examples: Any) -> Iterator[None]:
    """With other weights, as far from the model's own as the losses stand without leaving the numbers."""
    for turned in (True, False):
        with elsewhere(model, turned=turned):
            if _finite(model, losses, examples):
                yield
                return
    yield


def _finite(model: nn.Module, losses: Losses, examples: Any) -> bool:
    try:
        return bool(losses_of(model, losses, examples).isfinite().all())
    except Exception:  # a model that looks at its weights
        return False


def _held_still(refuse: Callable[[], None], seed: int) -> None:
    """Compare what could not be compared while every batch draws anew.

    A refusal must hold for draws that differ along the last dimension and for draws that do not, because a model may
    have its examples there.
    """
    try:
        with steady_draws(seed):
            refuse()
    except CheckFailed:
        with steady_draws(seed, varied=False):
            refuse()


# ---- what cannot be private ----


def _one_loss_each(model: nn.Module, losses: Losses, examples: Any) -> None:
    values = losses(model, examples)
    if not isinstance(values, Tensor):
        raise CheckFailed(
            f"The losses are a {type(values).__name__}; return a tensor with one loss per example."
        )
    if tuple(values.shape) == (EXAMPLES,):
        if values.requires_grad:
            return
        raise CheckFailed(
            "The losses depend on no parameter that is trained, so every step would cost privacy and change "
            "nothing but noise. Compute them from the model's outputs, without detach() and no_grad()."
        )
    if values.numel() == 1:
        raise CheckFailed(
            'The losses are one number for the whole batch, a mean or a sum. Use reduction="none"; with class '
            "weights multiply each example's loss by its own weight, with tokens average each example's own."
        )
    raise CheckFailed(
        f"The losses have shape {tuple(values.shape)} for {EXAMPLES} examples; return one loss per example, for "
        "instance the mean over each example's own tokens or outputs: values.flatten(1).mean(1)."
    )


def _no_outsiders(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Of the tensors to which the graph of the losses leads, all that last must be parameters of the model."""
    ours = {id(value) for value in trainable(model).values()}
    first, second = (
        _ends(losses(model, examples)) for _ in range(2)
    )  # what is made anew each time is no parameter
    lasting = {id(leaf) for leaf in first}
    for leaf in second:
        if id(leaf) in lasting and id(leaf) not in ours:
            raise CheckFailed(
                f"The losses depend on a tensor of shape {tuple(leaf.shape)} that requires a gradient and is no "
                "parameter of the model, so it would be neither clipped nor noised. Make it a parameter of the "
                "model, or detach it."
            )


def _ends(values: Tensor) -> list[Tensor]:
    """The tensors at the ends of the graph of ``values``."""
    found, visited, waiting = [], set(), [values.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise CheckFailed(
                "The model uses gradient checkpoints of the old kind, which hide its layers. Say "
                'use_reentrant=False; in transformers gradient_checkpointing_enable({"use_reentrant": False}).'
            )
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(following for following, _ in node.next_functions)
    return found


def _same_twice(model: nn.Module, losses: Losses, examples: Any) -> None:
    """What is drawn must follow the seeds, and what was seen be forgotten, or nothing can be compared."""
    first, second = (losses_of(model, losses, examples) for _ in range(2))
    with suppress(Exception):  # values that have no meaning here
        losses_of(model, losses, all_changed(examples))
    for later in (second, losses_of(model, losses, examples)):
        if not close(first, later, 1e-4):
            raise CheckFailed(
                "The losses of the same examples differ with the same seeds, so it cannot be seen whether examples "
                "mix. Let neither the model nor the losses remember earlier batches, and draw from the global "
                "generators of torch, numpy or random, without a generator of your own."
            )


# ---- leaving no trace ----


def _draws(model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Whether a forward pass draws random numbers."""
    before = random_state()
    losses(model, examples)
    return random_state() != before


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Afterwards modes, parameters, buffers and generators are what they were."""
    modes = {module: module.training for module in model.modules()}
    kept = [
        (value, value.detach().clone())
        for value in (*model.parameters(), *model.buffers())
        if value.numel() <= MOST_KEPT
    ]
    with seeded(), torch.enable_grad():
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            with torch.no_grad():
                for value, before in kept:
                    if value.shape == before.shape and not torch.equal(value, before):
                        value.copy_(before)
