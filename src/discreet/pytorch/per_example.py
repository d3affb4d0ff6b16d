"""Examples of a batch, and the gradient of one of them by plain autograd.

A batch is any nesting of tuples, lists and dicts of tensors that share their first dimension.

>>> batch = {"x": torch.zeros(3, 2), "more": (torch.arange(3), "a label")}
>>> number_of_examples(batch)
3
>>> select(batch, slice(1, 3))["more"]
(tensor([1, 2]), 'a label')

:func:`gradients_alone` gives an example a batch of its own: slow, and right for every model whose examples do not
depend on one another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import InvalidParameter


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in the order in which :func:`rebuild` visits them."""
    if isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors_of(value)
    elif isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)


def rebuild(batch: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return the nesting with ``change`` applied to every tensor; whatever is no tensor stays."""
    if isinstance(batch, (tuple, list)):
        parts = [rebuild(value, change) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        values = {key: rebuild(value, change) for key, value in batch.items()}
        if type(batch) is dict:
            return values
        changed: Any = copy.copy(batch)  # keeps classes such as the batches of a tokeniser
        for key, value in values.items():
            changed[key] = value
        return changed
    return batch


def number_of_examples(batch: Any) -> int:
    """The common first dimension of all tensors, or a refusal that does not tell it."""
    tensors = list(tensors_of(batch))
    if any(tensor.is_nested for tensor in tensors):
        needed = "must hold plain tensors; pad nested ones, and mask in losses what was added."
        raise InvalidParameter("batch", "a nested tensor", needed)
    sizes = {tensor.shape[0] if tensor.ndim else -1 for tensor in tensors}
    if len(sizes) != 1 or -1 in sizes:
        shown = ", ".join(map(shape_without_examples, tensors)) or "no tensor"
        needed = "must hold tensors that have the examples as their common first dimension."
        raise InvalidParameter("batch", shown, needed)
    return sizes.pop()


def shape_without_examples(tensor: Tensor) -> str:
    """The shape with a dot for the number of examples, which is private."""
    return "(" + ", ".join(["."] * (tensor.ndim > 0) + [str(size) for size in tensor.shape[1:]]) + ")"


def select(batch: Any, index: slice | Tensor) -> Any:
    """The examples at ``index``."""
    return rebuild(batch, lambda tensor: tensor[index])


def move_like(batch: Any, parameter: Tensor) -> Any:
    """The batch on the device of a parameter."""
    return rebuild(batch, lambda tensor: tensor.to(parameter.device, non_blocking=True))


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


def gradients_alone(
    model: nn.Module, losses: Losses, batch: Any, index: int, parameters: list[nn.Parameter]
) -> list[Tensor]:
    """The gradient of one example's loss.

    Guarantee: it depends on nothing but that example and the model, down to the last bit, as far as the same call on
    the same numbers gives the same.
    """
    return loss_and_gradients(model, losses, select_alone(batch, index), parameters)[1]


def select_alone(batch: Any, place: int) -> Any:
    """A batch of one example, in memory of its own: its place in a batch may decide how it is read."""
    return rebuild(
        batch, lambda tensor: tensor[place : place + 1].clone(memory_format=torch.contiguous_format)
    )


def loss_and_gradients(
    model: nn.Module, losses: Losses, alone: Any, parameters: list[nn.Parameter]
) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch of one example, and its gradients by plain autograd."""
    with torch.enable_grad():
        loss = checked_losses(losses, model, alone, 1).sum()
    if not (loss.requires_grad and parameters):
        return loss.detach(), [torch.zeros_like(value, requires_grad=False) for value in parameters]
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.detach(), list(found)


@contextmanager
def silent_gradients() -> Iterator[None]:
    """Meanwhile a gradient that is not a number raises nothing, whatever torch was told to look for.

    ``torch.autograd.set_detect_anomaly``, which Lightning's ``detect_anomaly`` calls, would end a step by an error
    that says that such a record was drawn, and what its numbers led to.
    """
    with torch.autograd.set_detect_anomaly(False):
        yield
