"""Examples must not see each other: change some, and watch the losses of the others.

Three ways of looking, because each sees what the others miss: all other examples changed in few values, half of a
whole batch changed in all values, and the examples alone instead of together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.checks.exactness import rounds_coarsely
from discreet.pytorch.checks.mixing import close, mixing_layer, same_losses, seeded
from discreet.pytorch.checks.trial_examples import EXAMPLES, with_half_changed, with_others_changed
from discreet.pytorch.examples import number_of_examples, select
from discreet.pytorch.per_example import Losses


def losses_of(model: nn.Module, losses: Losses, batch: Any, seed: int = 0) -> Tensor:
    """The losses of a batch, with what is drawn decided by the seed."""
    with seeded(seed):
        return losses(model, batch).detach()


def refuse_mixing(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Change other examples: the loss of the first one must stay."""
    first = torch.tensor([0])
    one = losses_of(model, losses, examples)
    for changed in with_others_changed(examples):
        try:
            other = losses_of(model, losses, changed)
        except Exception:  # a whole number that has no meaning here, such as a class that does not exist
            continue
        if not close(one[:1], other[:1], 1e-4):
            raise CheckFailed(_mixed(mixing_layer(model, losses, examples, changed, first)))


def refuse_mixing_of_halves(model: nn.Module, losses: Losses, examples: Any, seeds: int) -> None:
    """Change one half of the examples, then the other: what stays must keep its losses, whatever is drawn."""
    for seed in range(seeds):
        one = losses_of(model, losses, examples, seed)
        for kept, changed in with_half_changed(examples):
            try:
                other = losses_of(model, losses, changed, seed)
            except Exception:  # values that do not go together, such as lengths in another order
                continue
            if not same_losses(one[kept], other[kept], 1e-4):
                raise CheckFailed(_mixed(mixing_layer(model, losses, examples, changed, kept, seed)))


def _mixed(layer: str | None) -> str:
    if layer is None:
        return (
            "The loss of one example depends on the other examples of its batch: the loss function mixes them. "
            "Contrast or normalise within each example; do not divide by sums over the batch."
        )
    return (
        f"The loss of one example depends on the other examples of its batch: {layer} mixes them. Let it work "
        "on each example alone, for instance with LayerNorm or with constants known beforehand."
    )


def refuse_other_losses_alone(model: nn.Module, losses: Losses, examples: Any) -> None:
    """The loss of an example in a batch of its own, or in half a batch, must be its loss in the batch."""
    together = losses_of(model, losses, examples)
    tolerance = 0.03 if rounds_coarsely(model, losses, select(examples, slice(0, EXAMPLES))) else 1e-4
    singles = [slice(index, index + 1) for index in range(EXAMPLES)]
    for part in (*singles, slice(0, len(together) // 2)):
        values = _losses_alone(model, losses, select(examples, part))
        if not same_losses(values, together[part], tolerance):
            raise CheckFailed(
                "The loss of an example is another one in a smaller batch, or in a batch of its own: the losses "
                "depend on the size of the batch, are divided by something of the whole batch, as in a mean or a "
                'weighted mean, or padded by it. Return each example\'s own loss (reduction="none"), with its own '
                "weight."
            )


def _losses_alone(model: nn.Module, losses: Losses, examples: Any) -> Tensor:
    count = number_of_examples(examples)
    try:
        values = losses_of(model, losses, examples)
    except Exception as error:
        raise CheckFailed(
            "The losses cannot be computed for a batch of one example, and sampled batches may hold one. "
            "A squeeze() without a dimension is the usual reason."
        ) from error
    if values.shape != (count,):
        raise CheckFailed("The losses of a batch of one example must have shape (1,); avoid squeeze().")
    return values


# ---- other weights for the time of a test ----
#
# Every trained number gets a random sign and a random push, so that no layer is closed, and all of them are
# put back bit by bit, whatever happens meanwhile.


PUSH = 0.1  # of the usual size of the number


@contextmanager
def elsewhere(model: nn.Module, *, turned: bool) -> Iterator[None]:
    """The trained parameters a little elsewhere; if ``turned``, with random signs as well."""
    kept = [(value, value.detach().clone()) for value in model.parameters() if value.requires_grad]
    try:
        with torch.no_grad():
            for value, before in kept:
                value.copy_(_pushed(before, turned))
        yield
    finally:
        with torch.no_grad():
            for value, before in kept:
                value.copy_(before)


def _pushed(value: Tensor, turned: bool) -> Tensor:
    fan_in = max(1, value.numel() // max(1, len(value))) if value.ndim > 1 else 1
    usual = value.float().square().mean().sqrt().nan_to_num().clamp(min=1 / math.sqrt(fan_in))
    pushed = value + (PUSH * usual).to(value.dtype) * torch.randn_like(value)
    return pushed * torch.randint_like(value, 2).mul_(2).sub_(1) if turned else pushed
