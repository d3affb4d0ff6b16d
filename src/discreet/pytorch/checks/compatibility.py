"""Models that were not made for privacy: refused by name, or repaired. Batch norm becomes group norm.

What is refused here shows without any data, so a run refuses it when it is made.

>>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
>>> without_batch_norm(net)[1]  # doctest: +ELLIPSIS
GroupNorm(4, 16, ...)
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.nn.parameter import is_lazy

from discreet.errors import CheckFailed, InvalidParameter
from discreet.pytorch.checks.state_guard import hooks_everywhere
from discreet.pytorch.per_example import Losses

_LEAST_CHANNELS = 4  # in a group, so that there is something to normalise even without pixels
_MOST_GROUPS = 32


def unwrap_model(model: nn.Module) -> nn.Module:
    """The module itself. Of a compiled one this is the module that it was made of: they share their weights."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if not isinstance(model, nn.Module) or isinstance(model, wrappers):
        remedy = (
            "must be the module itself; PrivateRun lets several processes work together without a wrapper."
        )
        raise InvalidParameter("model", type(model).__name__, remedy)
    compiled = getattr(model, "_orig_mod", None)  # no import of the compiler, which takes seconds
    return compiled if isinstance(compiled, nn.Module) else model


def insist_function(losses: Losses) -> Losses:
    """``losses`` as given, refused unless it can be called with a model and a batch; it is not called here."""
    if callable(losses) and not isinstance(losses, _Loss) and _takes_two(losses):
        return losses
    named = getattr(losses, "__name__", type(losses).__name__)
    needed = (
        "must be a function of the model and a batch, such as lambda model, batch: criterion(model(batch[0]), "
        'batch[1]) with reduction="none".'
    )
    raise InvalidParameter("losses", named, needed)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # what is compiled may hide its parameters
        return True
    return True


def is_fully_sharded(model: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on the model itself; its package takes long to import."""
    known = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return known is not None and isinstance(model, known)


def refuse_layers(model: nn.Module) -> None:
    """Refuse what no data is needed to refuse: layers and parameters that cannot be private as they are."""
    if hooks_everywhere():
        raise CheckFailed(
            "A backward hook on all modules (register_module_full_backward_hook) would see gradients without noise. "
            "Remove it; after a step parameter.grad is the private gradient."
        )
    for name, module in model.named_modules():
        problem = _problem(module)
        if problem:
            raise CheckFailed(f"The layer {name!r} ({type(module).__name__}) {problem}")
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise CheckFailed(
                f"The parameter {name!r} has a hook, which would see gradients without noise. Remove it; "
                "after a step parameter.grad is the private gradient."
            )
        if hasattr(parameter, "placements") and not is_fully_sharded(model):  # a DTensor of another kind
            raise CheckFailed(
                f"The parameter {name!r} is sharded over processes (a DTensor), and not by fully_shard on the whole "
                "model, which is all that is known here."
            )
        if is_lazy(parameter):
            raise CheckFailed(
                f"The parameter {name!r} has no shape yet. Run the model on made-up inputs once, and make the "
                "optimizer after that."
            )
        if parameter.is_complex():
            raise CheckFailed(
                f"The parameter {name!r} is complex, and clip norms are for real numbers. Keep its real and "
                "imaginary parts as parameters of their own."
            )


def _problem(module: nn.Module) -> str:
    """Return the problem of a layer and its remedy; nothing if it is in order."""
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        return (
            "was compiled, which hides its layers from per-example gradients. Pass the module as it was before "
            "torch.compile."
        )
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "was scripted or traced, which hides its layers from per-example gradients. Pass the module as it was "
            "before torch.jit."
        )
    if module._backward_hooks or module._backward_pre_hooks:
        return "has a backward hook, which would see gradients without noise. Remove it."
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and _over_the_batch(module):
        return (
            "normalises over the batch, so each example's gradient depends on all others. Use GroupNorm: "
            "discreet.pytorch.without_batch_norm(model) does."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return (
                "rescales in the forward pass the words that occur, which tells without noise who they are. "
                "Set max_norm=None."
            )
        if module.sparse:
            return (
                "has sparse gradients, whose places tell the words that occur; noise goes to all of them. "
                "Set sparse=False."
            )
    return ""


def _over_the_batch(module: nn.modules.batchnorm._BatchNorm) -> bool:
    return module.training or module.running_mean is None


def without_batch_norm(model: nn.Module) -> nn.Module:
    """A copy of the model whose layers normalise each example by itself.

    Batch norm becomes group norm with the same scales and shifts, and instance norm loses its running
    statistics. Call it before the optimizer is made; a model that was trained with batch norm has to be trained
    again.
    """
    return _repair(copy.deepcopy(model))


def _repair(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _group_norm(module)
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return _without_statistics(module)
    for name, child in module.named_children():
        setattr(module, name, _repair(child))
    return module


def _group_norm(module: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    channels = module.num_features
    groups = max(
        k
        for k in range(1, _MOST_GROUPS + 1)
        if channels % k == 0 and (channels // k >= _LEAST_CHANNELS or k == 1)
    )
    made = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
    if module.affine:
        made.to(module.weight.device, module.weight.dtype)
        with torch.no_grad():
            made.weight.copy_(module.weight)
            made.bias.copy_(module.bias)
    made.train(module.training)
    return made


def _without_statistics(module: nn.modules.instancenorm._InstanceNorm) -> nn.Module:
    module.track_running_stats = False
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        module.register_buffer(name, None)
    return module
