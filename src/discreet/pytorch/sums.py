"""Sums of gradients, all in one vector: noise is added to it at once, and each parameter has its view of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def wide_type(parameter: Tensor) -> torch.dtype:
    """The type of sums of gradients of a parameter: half precision is for the model."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


class Sums(dict[str, Tensor]):
    """By parameter a view of ``vector``, which begins as zeros.

    >>> sums = Sums({"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    >>> sums["bias"] += 1
    >>> sums.vector
    tensor([0., 0., 0., 0., 0., 0., 1., 1.])
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        values = list(parameters.values())
        kind = torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32
        size = sum([value.numel() for value in values])
        self.vector = torch.zeros(size, dtype=kind, device=values[0].device)
        super().__init__(zip(parameters, _views(self.vector, values), strict=True))


def _views(vector: Tensor, values: list[Tensor]) -> list[Tensor]:
    """The vector in parts that have the shapes of ``values``, by one call however many they are."""
    return list(torch._C._nn.unflatten_dense_tensors(vector, values))
