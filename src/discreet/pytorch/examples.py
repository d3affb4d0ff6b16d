"""A batch is any nesting of tuples, lists and dicts of tensors that share their first dimension.

>>> batch = {"x": torch.zeros(3, 2), "more": (torch.arange(3), "a label")}
>>> number_of_examples(batch)
3
>>> select(batch, slice(1, 3))["more"]
(tensor([1, 2]), 'a label')
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from discreet.errors import InvalidParameter


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in the order in which :func:`rebuilt` visits them."""
    if isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors_of(value)
    elif isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)


def rebuilt(batch: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same nesting with ``change`` applied to every tensor; whatever is no tensor stays."""
    if isinstance(batch, (tuple, list)):
        parts = [rebuilt(value, change) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        values = {key: rebuilt(value, change) for key, value in batch.items()}
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
    return rebuilt(batch, lambda tensor: tensor[index])


def first_examples(batch: Any, count: int, turned: bool = False) -> Any:
    """``count`` examples from the start of the batch, over and over again if it is shorter.

    ``turned`` gives the same ones in reverse order.
    """
    index = torch.arange(count) % number_of_examples(batch)
    index = index.flip(0) if turned else index
    return rebuilt(batch, lambda tensor: tensor[index.to(tensor.device)])
