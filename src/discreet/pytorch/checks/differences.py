"""How far an example alone is from the same example in its batch: in its loss, its norms and its gradient.

Losses are compared on the scale of the batch's median loss and weighed by the part of a clip norm that their gradient
has, because the loss of an example that is fitted well consists of rounding errors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from discreet.core.clipping import ClipRule, Flat, PerBlock
from discreet.pytorch.checks.generators import Draws
from discreet.pytorch.clipped_sum import ClippedSum, ExampleNorms
from discreet.pytorch.integer_gradients import squares_of
from discreet.pytorch.per_example import loss_and_gradients, per_example_gradients, rebuild

MOST_ROUNDED = {torch.float32: 1e-4, torch.float64: 1e-6}
"""Of losses and norms: smaller differences count as rounding."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Of whole gradients."""
COARSE = 0.05
"""A larger difference is refused, whatever the reason."""
LEAST_LOSS = 1e-3
"""Smaller losses are compared on this scale."""
LEAST_PART = 1e-3
"""Of a clip norm: an example counts as much at least."""


class Alone:
    """The loss and the gradient norms of an example that was passed alone; ``norms`` is None if not asked for."""

    def __init__(self, clipped_sum: ClippedSum, one: Any, with_norms: bool) -> None:
        parameters = list(clipped_sum.parameters.values()) if with_norms else []
        with Draws() as draws:
            value, found = loss_and_gradients(clipped_sum.model, clipped_sum.losses, one, parameters)
        self.norms: Tensor | None = None
        if with_norms:
            self.norms = torch.from_numpy(squares_of(found, list(clipped_sum.blocks().values()))[0]).sqrt()
        self.loss, self.drew = float(value.double()), draws.happened


def tolerance_of(clipped_sum: ClippedSum) -> float:
    """The difference up to which losses and norms of a model count as equal."""
    kinds = {value.dtype for value in clipped_sum.parameters.values()}
    return MOST_ROUNDED[torch.float64 if kinds == {torch.float64} else torch.float32]


def difference_of(rule: ClipRule, seen: ExampleNorms, alone: Alone, place: int, *, anywhere: bool) -> float:
    """How far an example alone is from the one in the batch, in parts of its loss and in clip norms.

    With ``anywhere`` a collation may have changed the order: the example that is nearest counts.
    """
    norms, losses = seen.norms, seen.losses
    if norms.numel() and not anywhere:
        norms = norms[place : place + 1]
    found = _of_norms(rule, norms, alone.norms)
    if losses is not None:
        scale = max(float(losses.nan_to_num(0.0, 0.0, 0.0).abs().median()), LEAST_LOSS)
        losses = losses if anywhere else losses[place : place + 1]
        found = torch.maximum(found, _of_losses(losses, alone.loss, scale) * _parts_of_clip_norm(rule, norms))
    return float(found.min())


def _of_losses(losses: Tensor, alone: float, scale: float) -> Tensor:
    other = torch.tensor(alone, dtype=torch.float64)
    same = (losses == other) | (losses.isnan() & other.isnan())
    sizes = torch.maximum(losses.abs(), other.abs()).clamp(min=scale)
    return torch.where(same, 0.0, ((losses - other).abs() / sizes).nan_to_num(math.inf, math.inf))


def _of_norms(rule: ClipRule, norms: Tensor, alone: Tensor | None) -> Tensor:
    """By how many clip norms an example would be too long or too short, with the factor that the step gave it."""
    if alone is None:
        return torch.zeros(len(norms), dtype=torch.float64)
    finite = norms.isfinite().all(1)
    if not bool(alone.isfinite().all()):  # counts as zero, and must do so in the batch
        return torch.where(finite, math.inf, 0.0).double()
    off = _factors(rule, norms) * (norms - alone).abs() / _clip_norms(rule)
    return torch.where(finite, off.nan_to_num(math.inf, math.inf).amax(1), math.inf)


def _parts_of_clip_norm(rule: ClipRule, norms: Tensor) -> Tensor:
    """How much of a clip norm each example adds, not less than :data:`LEAST_PART`; all of it if it is not finite."""
    parts = (_factors(rule, norms) * norms / _clip_norms(rule)).amax(1)
    return parts.nan_to_num(1.0, 1.0, 1.0).clamp(LEAST_PART, 1.0)


def not_recording(rule: ClipRule) -> ClipRule:
    """The rule without a record of norms: those that are compared must not be counted."""
    return Flat(rule.clip_norm) if isinstance(rule, Flat) else rule


def _factors(rule: ClipRule, norms: Tensor) -> Tensor:
    return torch.from_numpy(not_recording(rule).factors(norms.nan_to_num(0.0, 0.0, 0.0).numpy()))


def _clip_norms(rule: ClipRule) -> Tensor:
    limits = rule.clip_norms if isinstance(rule, PerBlock) else (rule.clip_norm,)
    return torch.tensor(limits, dtype=torch.float64)


def foreign_gradient(
    clipped_sum: ClippedSum, part: Any, chosen: list[int], tolerance: float | None = None
) -> str | None:
    """The name of a parameter whose gradient differs, or None."""
    together = clipped_sum.gradients_of(part, chosen)
    where = torch.tensor(chosen)
    few = rebuild(part, lambda tensor: tensor[where.to(tensor.device)])
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
