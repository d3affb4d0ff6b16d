"""What changes gradients behind the back of the graph: hooks, which no node shows.

A hook on a tensor may do anything with the gradients of a whole batch, and hooks on saved tensors decide what the
backward pass reads. Where a forward pass sets one, every gradient is formed from its example alone. Checkpoints are
such hooks too, of a known kind: they run a part of the forward pass again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHECKPOINTS = "torch.utils.checkpoint"
_HARMLESS = (_CHECKPOINTS, "torch.autograd.graph")  # the latter for tensors that wait in other memory

_HOOKING = {
    Tensor.register_hook,
    vars(torch._C.TensorBase)["grad_fn"].__get__,
    vars(torch._C.TensorBase)["_backward_hooks"].__set__,
}
"""How a forward pass gets at the gradients of a tensor: by itself, or by its node."""


def is_hooked(func: Any) -> bool:
    """Whether this call, or whatever surrounds it, may change gradients without a node of the graph."""
    return func in _HOOKING or _keeper() not in (None, *_HARMLESS)


def is_checkpointed() -> bool:
    """Whether what is saved for the backward pass will be computed again."""
    return _keeper() == _CHECKPOINTS


def _keeper() -> str | None:
    """Which module decides how tensors are saved for the backward pass; None if nobody does."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else str(getattr(hooks[0], "__module__", ""))
