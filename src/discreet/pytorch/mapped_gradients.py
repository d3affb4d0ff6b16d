"""Per-example gradients by ``torch.func.vmap``, for parameters that have no rule."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from discreet.pytorch.checks.state_guard import modules_of
from discreet.pytorch.per_example import (
    Losses,
    gradients_alone,
    number_of_examples,
    rebuild,
    tensors_of,
    trainable,
)


def mapped_gradients(
    model: nn.Module, losses: Losses, batch: Any, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """The gradient of each example's loss, stacked by parameter; raises what ``vmap`` raises on other models."""
    parameters = trainable(model)
    chosen = {name: parameters[name] for name in (parameters if names is None else names)}

    def loss(values: dict[str, Tensor], *leaves: Tensor) -> Tensor:
        example = iter(leaves)
        single = rebuild(batch, lambda _: next(example).unsqueeze(0))
        with exchange_parameters(model, {id(chosen[name]): value for name, value in values.items()}):
            return torch.sum(losses(model, single))

    leaves = tuple(tensors_of(batch))
    mapped = vmap(grad(loss), in_dims=(None, *(0 for _ in leaves)), randomness="different")
    with warnings.catch_warnings(), _Untouched(chosen.values()):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return dict(mapped({name: value.detach() for name, value in chosen.items()}, *leaves))


@contextmanager
def exchange_parameters(model: nn.Module, values: dict[int, Tensor]) -> Iterator[None]:
    """Other tensors in all places of parameters, named by their identity, for the time being.

    ``torch.func.functional_call`` does not put all of them back where one module has two names.
    """
    places = [
        (module._parameters, name, value)
        for module in modules_of(model)
        for name, value in module._parameters.items()
        if id(value) in values
    ]
    try:
        for own, name, value in places:
            own[name] = values[id(value)]  # type: ignore[assignment]
        yield
    finally:
        for own, name, value in places:
            own[name] = value


class _Untouched(TorchFunctionMode):
    """Raises where a parameter is used that the model does not hold by name: its gradient would seem to be zero."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self._known = {id(value) for value in parameters}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        used = (*args, *(kwargs or {}).values())
        nested = (value for group in used if isinstance(group, (tuple, list)) for value in group)
        if any(id(value) in self._known for value in (*used, *nested)):
            raise RuntimeError("A parameter is used that was not reached through the model.")
        return func(*args, **(kwargs or {}))


def per_example_gradients(
    model: nn.Module, losses: Losses, batch: Any, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """The gradient of each example's loss, stacked by parameter: one pass for each example."""
    parameters = trainable(model)
    chosen = {name: parameters[name] for name in (parameters if names is None else names)}
    rows: dict[str, list[Tensor]] = {name: [] for name in chosen}
    for index in range(number_of_examples(batch)):
        found = gradients_alone(model, losses, batch, index, list(chosen.values()))
        for name, value in zip(chosen, found, strict=True):
            rows[name].append(value)
    empty = {name: parameter.detach().new_zeros(0, *parameter.shape) for name, parameter in chosen.items()}
    return {name: torch.stack(rows.pop(name)) if rows[name] else empty[name] for name in chosen}
