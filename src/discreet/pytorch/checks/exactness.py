"""Fast gradients must be exact: norms, sums and the effect of one example, against gradients of single examples."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.clipping import Flat
from discreet.errors import CheckFailed
from discreet.pytorch.checks.mixing import close
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.examples import rebuilt, select
from discreet.pytorch.kernels.norms import squared_norms_by_torch
from discreet.pytorch.layer_rules.use import wide
from discreet.pytorch.per_example import Losses, per_example_gradients, trainable

Reference = Callable[[nn.Module, Losses, Any], dict[str, Tensor]]

PAIR = 2  # examples whose whole gradients are held at once
LONGER = 0.02
"""By which part a norm may be too long: what rounding can do to the sums of many positions is added to it."""


def refuse_inexact(model: nn.Module, losses: Losses, examples: Any) -> None:
    """Norms, sums and the effect of one example, against gradients of single examples.

    Where a rounding error turns a ReLU they differ. Then they have to agree with single gradients of the same forward
    pass, and with those of single examples in float64.
    """
    try:
        _refuse_other(model, losses, examples, per_example_gradients)
    except CheckFailed:
        again = partial(_refuse_other, reference=per_example_gradients)
        if not passes_in_double(again, model, losses, examples):
            raise
        _refuse_other(model, losses, examples, gradients_of_one_pass)


def gradients_of_one_pass(model: nn.Module, losses: Losses, examples: Any) -> dict[str, Tensor]:
    """The gradient of each loss by a backward pass of its own, after one forward pass of all examples."""
    parameters = trainable(model)
    values = losses(model, examples)
    rows = [
        torch.autograd.grad(
            value, list(parameters.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for value in values.unbind()
    ]
    return dict(zip(parameters, map(torch.stack, zip(*rows, strict=True)), strict=True))


def _refuse_other(model: nn.Module, losses: Losses, examples: Any, reference: Reference) -> None:
    examples = select(examples, slice(0, PAIR))
    rows = reference(model, losses, examples)
    squares = [squared_norms_by_torch(wide(value).reshape(len(value), -1)) for value in rows.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    if not bool(norms.isfinite().all()):
        return  # such gradients count as zero
    tolerance = 0.05 if rounds_coarsely(model, losses, examples) else 1e-4
    fast = ClippedSum(model, losses, Flat(max(float(norms.mean()) / 2, 1e-6)))
    measured = fast.norms(examples).to(norms.device)
    factors = torch.from_numpy(fast.rule.factors(measured.cpu().numpy(), 1e-6))
    sums, limit = fast(examples), tolerance * fast.rule.clip_norm
    for name, value in rows.items():
        expected = torch.tensordot(factors.to(value.device, sums[name].dtype), value.to(sums[name].dtype), 1)
        if not float((sums[name] - expected).double().norm()) <= PAIR * limit:
            raise CheckFailed(
                f"The gradients of {name.rpartition('.')[0] or 'the model'!r} ({name}) in a batch are not those of "
                "its examples one by one: the layer mixes examples, or has a backward pass of its own that does."
            )
    if not (
        close(measured, norms, max(tolerance, LONGER)) and close(measured, measured.maximum(norms), tolerance)
    ):
        raise CheckFailed("The norms of the gradients are not exact for this model; please report this.")
    if reference is gradients_of_one_pass:
        return  # a batch without one of them is another forward pass
    without = fast(select(examples, slice(0, PAIR - 1)))
    moved = math.sqrt(sum(float((sums[name] - without[name]).double().square().sum()) for name in sums))
    if not moved <= fast.rule.clip_norm * (1 + PAIR * tolerance):
        raise CheckFailed(
            "One example changes the clipped sum by more than the clip norm; please report this."
        )


def rounds_coarsely(model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Whether anything is computed in 16 bits, by the types of what is kept for the backward pass."""
    kept: set[torch.dtype] = {parameter.dtype for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        kept.add(tensor.dtype)
        return tensor.detach()  # an output as it is, held by the node that made it, would never be freed

    with (
        suppress(RuntimeError),  # torch.func has no such hooks
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        losses(model, examples)
    return any(dtype.is_floating_point and dtype.itemsize < 4 for dtype in kept)


# ---- a difference in float32 may be a ReLU that a rounding error turned; in float64 only a real one i ----


Refusing = Callable[[nn.Module, Losses, Any], None]


def refuse_in_double_too(refuse: Refusing, model: nn.Module, losses: Losses, examples: Any) -> None:
    """Refuse what ``refuse`` refuses with the model as it is and with its twin in float64."""
    try:
        refuse(model, losses, examples)
    except CheckFailed:
        if not passes_in_double(refuse, model, losses, examples):
            raise


def passes_in_double(refuse: Refusing, model: nn.Module, losses: Losses, examples: Any) -> bool:
    """Whether the twin in float64 passes. One that cannot be made does not."""
    if all(value.dtype == torch.float64 for value in model.parameters()):
        return False
    try:
        refuse(copy.deepcopy(model).double(), losses, rebuilt(examples, _doubled))
    except Exception:  # another refusal, or a model that insists on its type
        return False
    return True


def _doubled(column: Tensor) -> Tensor:
    return column.double() if column.is_floating_point() else column
