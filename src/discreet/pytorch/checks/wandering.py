"""Other weights for the time of a test: a head that begins as zeros hides what stands before it.

Every trained number gets a random sign and a random push, so that no layer is closed, and all of them are put back
bit by bit, whatever happens meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PUSH = 0.1  # of the usual size of the number


@contextmanager
def elsewhere(model: nn.Module, *, turned: bool) -> Iterator[None]:
    """The trained parameters a little elsewhere; if ``turned``, with random signs as well."""
    kept = [(value, value.detach().clone()) for value in model.parameters() if value.requires_grad]
    try:
        with torch.no_grad():
            for value, before in kept:
                value.copy_(_pushed(before, turned))
        yield
    finally:
        with torch.no_grad():
            for value, before in kept:
                value.copy_(before)


def _pushed(value: Tensor, turned: bool) -> Tensor:
    fan_in = max(1, value.numel() // max(1, len(value))) if value.ndim > 1 else 1
    usual = value.float().square().mean().sqrt().nan_to_num().clamp(min=1 / math.sqrt(fan_in))
    pushed = value + (PUSH * usual).to(value.dtype) * torch.randn_like(value)
    return pushed * torch.randint_like(value, 2).mul_(2).sub_(1) if turned else pushed
