"""Table of operations and their rules. Everything else is left to ``torch.func``, automatically.

A rule gets the call and says what comes out and which uses of parameters it saw; ``None`` means that it does
not know this form of the call. :func:`add_rule` enters one of your own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from discreet.errors import InvalidParameter
from discreet.pytorch.layer_rules.convolution import convolution, transposed_convolution
from discreet.pytorch.layer_rules.elementwise import (
    add,
    expand,
    group_norm,
    instance_norm,
    layer_norm,
    multiply,
    rms_norm,
    subtract,
)
from discreet.pytorch.layer_rules.embedding import embedding
from discreet.pytorch.layer_rules.linear import addmm, linear, matmul
from discreet.pytorch.layer_rules.recurrent import CELLS, compiled_layer, lstm_layer, unroll, unroll_cell
from discreet.pytorch.layer_rules.use import KeptRows, Use

__all__ = ["KeptRows", "Use", "add_rule"]

Tensor = torch.Tensor

RULES: dict[Any, Callable[..., Any]] = {
    F.linear: linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), matmul),
    **dict.fromkeys((torch.addmm,), addmm),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), convolution),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), transposed_convolution),
    torch.embedding: embedding,
    torch.layer_norm: layer_norm,
    torch.rms_norm: rms_norm,
    torch.group_norm: group_norm,
    torch.instance_norm: instance_norm,
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), add),
    **dict.fromkeys((torch.sub, Tensor.sub, Tensor.__sub__), subtract),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), multiply),
    **dict.fromkeys((Tensor.expand, Tensor.expand_as), expand),
    compiled_layer: lstm_layer,
}


def add_rule(function: Callable[..., Any], rule: Callable[..., Any]) -> None:
    """From now on use ``rule`` for calls of ``function``, an operation of PyTorch that the forward pass makes.

    ``rule(record, function, args, kwargs)`` returns the output, computed with ``record.source_of(weight).value`` in
    place of each trained weight, and a list with a :class:`~discreet.pytorch.layer_rules.use.Use` for each of them,
    most simply a :class:`~discreet.pytorch.layer_rules.use.KeptRows`. Functions that have a rule keep it.

    Guarantee: none by itself. Before the first step gradients by rules are compared with gradients of single
    examples, and a wrong rule is refused.
    """
    for name, value in (("function", function), ("rule", rule)):
        if not callable(value):
            raise InvalidParameter(name, type(value).__name__, "must be a function.")
    if function in RULES or function in UNROLLED:
        raise InvalidParameter("function", getattr(function, "__name__", function), "has a rule already.")
    RULES[function] = rule


UNROLLED: dict[Any, Callable[..., Any]] = {
    func: unroll_cell if func.__name__.endswith("cell") else unroll for func in CELLS
}

# The gradient at the result is the gradient at the argument with its entries in other places.
ISOMETRIES = {
    Tensor.t, torch.t, Tensor.transpose, torch.transpose, Tensor.permute, torch.permute, Tensor.view,
    Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.unsqueeze, torch.unsqueeze,
    Tensor.squeeze, torch.squeeze, Tensor.contiguous, Tensor.unflatten, Tensor.narrow, torch.narrow, Tensor.select,
    *(vars(torch._C.TensorBase)[name].__get__ for name in ("T", "mT")),
}  # fmt: skip

# Their way back reads no tensor that was saved.
SAVING_NOTHING = ISOMETRIES | {
    torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__sub__, Tensor.float,
    Tensor.double, Tensor.to, Tensor.type_as,
}  # fmt: skip


def keeps_length(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a call keeps the norms of gradients between its result and its source: nothing is read twice."""
    if func in ISOMETRIES:
        return True
    if func is Tensor.__getitem__:
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(part is None or part is ... or isinstance(part, (int, slice)) for part in parts)
    if func is torch.embedding and len(args) > 1:
        return bool(args[1].unique().numel() == args[1].numel())
    return False
