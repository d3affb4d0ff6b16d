"""Per-example gradients without any tricks: the reference, and the way out for what has no rule.

:func:`per_example_gradients` gives each example a batch of its own: slow, and right for every model whose
examples do not depend on one another. :func:`mapped_gradients` lets ``torch.func`` do the same in one go.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from discreet.errors import InvalidParameter
from discreet.pytorch.examples import (
    number_of_examples,
    rebuilt,
    select,
    shape_without_examples,
    tensors_of,
)

Losses = Callable[[Any, Any], Tensor]
"""``losses(model, batch)`` returns a vector with one loss per example."""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name; a shared one counts once, under its first name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def checked_losses(losses: Losses, model: Any, batch: Any, count: int) -> Tensor:
    """The losses of a batch, refused unless there is one per example."""
    values = losses(model, batch)
    if not isinstance(values, Tensor) or values.shape != (count,):
        shown = shape_without_examples(values) if isinstance(values, Tensor) else type(values).__name__
        needed = 'must be a vector with one loss per example of the batch: use reduction="none".'
        raise InvalidParameter("losses(model, batch)", shown, needed)
    return values


def per_example_gradients(
    model: nn.Module, losses: Losses, batch: Any, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """The gradient of each example's loss, stacked by parameter: one pass for each example."""
    parameters = trainable(model)
    chosen = {name: parameters[name] for name in (parameters if names is None else names)}
    rows: dict[str, list[Tensor]] = {name: [] for name in chosen}
    for index in range(number_of_examples(batch)):
        with torch.enable_grad():
            loss = checked_losses(losses, model, select(batch, slice(index, index + 1)), 1).sum()
        found: Any = (None,) * len(chosen)
        if loss.requires_grad:
            found = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
        for (name, parameter), value in zip(chosen.items(), found, strict=True):
            rows[name].append(torch.zeros_like(parameter) if value is None else value.detach())
    empty = {name: parameter.detach().new_zeros(0, *parameter.shape) for name, parameter in chosen.items()}
    return {name: torch.stack(rows.pop(name)) if rows[name] else empty[name] for name in chosen}


def mapped_gradients(
    model: nn.Module, losses: Losses, batch: Any, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """The same by ``torch.func.vmap``; raises whatever it raises on a model that it cannot map."""
    parameters = trainable(model)
    chosen = {name: parameters[name].detach() for name in (parameters if names is None else names)}
    whole = WithLosses(model, losses)

    def loss(values: dict[str, Tensor], *leaves: Tensor) -> Tensor:
        example = iter(leaves)
        single = rebuilt(batch, lambda _: next(example).unsqueeze(0))
        renamed = {f"model.{name}": value for name, value in values.items()}
        return torch.sum(functional_call(whole, renamed, (single,)))

    leaves = tuple(tensors_of(batch))
    mapped = vmap(grad(loss), in_dims=(None, *(0 for _ in leaves)), randomness="different")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return dict(mapped(chosen, *leaves))


class WithLosses(nn.Module):
    """A model and its losses as one module, so that ``functional_call`` reaches through the losses."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model = model
        self.losses = losses

    def forward(self, batch: Any) -> Tensor:
        return self.losses(self.model, batch)
