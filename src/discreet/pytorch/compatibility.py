"""Models that were not made for privacy, repaired: batch norm becomes group norm.

>>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
>>> without_batch_norm(net)[1]  # doctest: +ELLIPSIS
GroupNorm(4, 16, ...)
"""

from __future__ import annotations

import copy

import torch
from torch import nn

_LEAST_CHANNELS = 4  # in a group, so that there is something to normalise even without pixels
_MOST_GROUPS = 32


def without_batch_norm(model: nn.Module) -> nn.Module:
    """A copy of the model whose layers normalise each example by itself.

    Batch norm becomes group norm with the same scales and shifts, and instance norm loses its running
    statistics. Call it before the optimizer is made; a model that was trained with batch norm has to be trained
    again.
    """
    return _repaired(copy.deepcopy(model))


def _repaired(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _group_norm(module)
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return _without_statistics(module)
    for name, child in module.named_children():
        setattr(module, name, _repaired(child))
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
