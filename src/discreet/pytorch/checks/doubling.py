"""A difference in float32 may be a ReLU that a rounding error turned; in float64 only a real one is left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.examples import rebuilt
from discreet.pytorch.per_example import Losses

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
