"""LayerNorm, RMSNorm, GroupNorm and InstanceNorm: a scale and a shift after a function without parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from discreet.pytorch.layer_rules.elementwise import Scale, Shift
from discreet.pytorch.layer_rules.use import Use, arguments


def layer_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.layer_norm(input, shape, weight, bias, eps, cudnn)``."""
    names = "input normalized_shape weight bias eps cudnn_enable"
    x, shape, weight, bias, eps, _ = arguments(names, args, kwargs, eps=1e-5)
    return _affine(record, x, weight, bias, None, lambda t, w, b: torch.layer_norm(t, shape, w, b, eps))


def rms_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.rms_norm(input, shape, weight, eps)``."""
    x, shape, weight, eps = arguments("input normalized_shape weight eps", args, kwargs)
    return _affine(record, x, weight, None, None, lambda t, w, b: torch.rms_norm(t, shape, w, eps))


def group_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.group_norm(input, groups, weight, bias, eps, cudnn)``."""
    names = "input num_groups weight bias eps cudnn_enabled"
    x, groups, weight, bias, eps, _ = arguments(names, args, kwargs, eps=1e-5)
    shape = (x.shape[1], *(1,) * (x.ndim - 2))
    return _affine(record, x, weight, bias, shape, lambda t, w, b: torch.group_norm(t, groups, w, b, eps))


def instance_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.instance_norm(input, weight, bias, mean, var, use_input_stats, momentum, eps, cudnn)``."""
    names = "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled"
    x, weight, bias, mean, var, own, momentum, eps, cudnn = arguments(names, args, kwargs)
    if mean is not None and own:
        return None  # its statistics change with every batch: left to the checks of the run
    rest = (mean, var, own, momentum, eps, cudnn)
    shape = (x.shape[1], *(1,) * (x.ndim - 2))
    return _affine(record, x, weight, bias, shape, lambda t, w, b: torch.instance_norm(t, w, b, *rest))


def _affine(record: Any, x: Tensor, weight: Any, bias: Any, shape: Any, normalise: Any) -> Any:
    if record.source_of(x):
        return None
    of_weight, of_bias = record.source_of(weight), record.source_of(bias)
    out = normalise(x, of_weight.value if of_weight else weight, of_bias.value if of_bias else bias)
    uses: list[Use] = []
    if of_weight:
        uses.append(Scale(of_weight, x, shape, prepared=lambda t: normalise(t, None, None)))
    if of_bias:
        uses.append(Shift(of_bias, shape))
    return out, uses
