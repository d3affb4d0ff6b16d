"""The second line of defence: on random steps, gradients in the batch are compared with gradients alone.

The check before training tries made-up examples, and the proof by the graph sees what autograd sees. What gets past
both (statistics of the batch without a gradient, a loss that changes its ways after a while, a mistake of ours) shows
when an example of the very batch is worked on by itself. That costs about as much as a step, so it happens at random,
one step in :data:`EVERY`, and nobody can foresee when: the operating system's entropy decides. A difference ends the
run before anything is charged or released.
"""

from __future__ import annotations

import copy
import secrets
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.checks.steady import steady_draws
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.examples import number_of_examples, rebuilt, select
from discreet.pytorch.per_example import Losses, per_example_gradients

EVERY = 256
EXAMPLES = 2
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE = 0.05  # where float64 cannot decide, as in models of half precision

DESCRIPTION = (
    f"on one step in {EVERY}, at random, the gradients of {EXAMPLES} examples were compared with those alone"
)


class SpotCheck:
    """Over the sums of a run. ``every`` is for tests."""

    def __init__(self, clipped_sum: ClippedSum, every: int = EVERY) -> None:
        self._sum, self._every = clipped_sum, every

    def before_step(self, examples: Any, count: int) -> None:
        """Refuse the model if, on this batch, an example's gradient is not its own. Most steps are not looked at."""
        if count and self.is_due():
            self.check(examples)

    def is_due(self) -> bool:
        """Whether this step is looked at, which nobody can foresee."""
        return secrets.randbelow(self._every) == 0

    def check(self, examples: Any) -> None:
        """:func:`refuse_foreign_gradients` of these examples."""
        refuse_foreign_gradients(self._sum, examples)


def refuse_foreign_gradients(clipped_sum: ClippedSum, batch: Any) -> None:
    """Compare the gradients of a few examples in a part of the batch with their gradients alone.

    Guarantee: none for examples that are not looked at.
    """
    model, losses = clipped_sum.model, clipped_sum.losses
    part = _any_part(batch, clipped_sum.physical_batch_size)
    chosen = [secrets.randbelow(number_of_examples(part)) for _ in range(EXAMPLES)]
    with steady_draws():
        if _foreign(clipped_sum, part, chosen) is None:
            return
    name = _foreign_in_float64(model, losses, clipped_sum, part, chosen)
    if name is not None:
        raise CheckFailed(
            f"The gradient of an example at {name!r} in its batch is not the one that it has alone: the losses or "
            "the model mix examples. The run ends here; nothing of this step was released. Return each example's own "
            "loss, from its own values only."
        )


def _any_part(batch: Any, size: int | None) -> Any:
    """One of the parts in which a batch is worked off, so that big batches take no more memory here either."""
    count = number_of_examples(batch)
    size = min(count, size or count)
    start = size * secrets.randbelow(-(-count // size))
    return select(batch, slice(start, start + size))


def _foreign(
    clipped_sum: ClippedSum, part: Any, chosen: list[int], tolerance: float | None = None
) -> str | None:
    """The name of a parameter whose gradient differs, or None."""
    together = clipped_sum.gradients_of(part, chosen)
    where = torch.tensor(chosen)
    few = rebuilt(part, lambda tensor: tensor[where.to(tensor.device)])
    with torch.enable_grad():
        alone = per_example_gradients(clipped_sum.model, clipped_sum.losses, few)
    for place in range(len(chosen)):
        one = {name: rows[place].double() for name, rows in alone.items()}
        length = torch.stack([value.norm() for value in one.values()]).norm()
        if not bool(length.isfinite()):
            continue  # counts as zero either way
        for name, value in one.items():
            allowed = tolerance or TOLERANCE.get(alone[name].dtype, COARSE)
            if not bool((together[name][place].double() - value).norm() <= allowed * length):
                return name
    return None


def _foreign_in_float64(
    model: nn.Module, losses: Losses, clipped_sum: ClippedSum, part: Any, chosen: list[int]
) -> str | None:
    """The same where rounding cannot be the reason, such as a unit at zero that a batch switches on."""
    try:
        wide = copy.deepcopy(model).double()
        doubled = rebuilt(part, _doubled)
        with steady_draws():
            return _foreign(ClippedSum(wide, losses, clipped_sum.rule), doubled, chosen)
    except Exception:  # a model that cannot be copied, or is made for one type only
        with steady_draws(varied=False):
            return _foreign(clipped_sum, part, chosen, COARSE)


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
