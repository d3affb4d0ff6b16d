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
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed, InvalidParameter
from discreet.pytorch.compatibility import refuse_layers
from discreet.pytorch.constancy import Constancy
from discreet.pytorch.exactness import refuse_inexact
from discreet.pytorch.examples import number_of_examples
from discreet.pytorch.independence import (
    losses_of,
    refuse_mixing,
    refuse_mixing_of_halves,
    refuse_other_losses_alone,
)
from discreet.pytorch.mixing import close, random_state, seeded
from discreet.pytorch.per_example import Losses, trainable
from discreet.pytorch.steady import steady_draws
from discreet.pytorch.trial_examples import EXAMPLES, made_up

SEEDS = 48  # so that of losses that mix one batch in ten, one in a hundred passes
STEADY = 3  # draws held still in so many ways, as one of them may leave out a part of the model
MOST_KEPT = 1 << 24  # numbers of a tensor that is put back as it was; larger ones are watched only


def check(model: nn.Module, losses: Losses, batch: Any) -> None:
    """Raise :class:`CheckFailed` if training with these losses could break the guarantee.

    Guarantee: none for what is not tested. A model that passes has, on the examples tried, losses that depend on
    one example each, gradients equal to those of single examples, and buffers that stay as they are.
    """
    refuse_layers(model)
    if not trainable(model):
        raise InvalidParameter("model", type(model).__name__, "must have a parameter to train.")
    with _undisturbed(model):
        for module in model.modules():
            if isinstance(
                module, nn.RReLU
            ):  # it draws where an input is negative, so the others' draws move on
                module.eval()
        few = made_up(batch, EXAMPLES)
        many = made_up(batch, max(EXAMPLES, number_of_examples(batch)))
        watch = Constancy(model, trained_too=True)
        _one_loss_each(model, losses, few)
        watch.refuse_change()
        _no_outsiders(model, losses, few)
        _same_twice(model, losses, few)
        refuse_mixing(model, losses, few)
        refuse_mixing_of_halves(model, losses, many, seeds=1)
        draws = _draws(model, losses, few)
        if draws:
            refuse_mixing_of_halves(model, losses, few, seeds=SEEDS)
        for seed in range(STEADY if draws else 1):
            _held_still(partial(refuse_other_losses_alone, model, losses, many), seed)
        _held_still(partial(refuse_inexact, model, losses, few), 0)
        watch.refuse_change()


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
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(following for following, _ in node.next_functions)
    return found


def _same_twice(model: nn.Module, losses: Losses, examples: Any) -> None:
    """What is drawn must follow the seeds, or nothing can be compared."""
    if not close(losses_of(model, losses, examples), losses_of(model, losses, examples), 1e-4):
        raise CheckFailed(
            "The losses of the same examples differ with the same seeds, so it cannot be seen whether examples "
            "mix. Draw from the global generators of torch, numpy or random, without a generator of your own."
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
    tensors = (*model.parameters(), *model.buffers())
    kept = [(value, value.detach().clone()) for value in tensors if value.numel() <= MOST_KEPT]
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
