"""Parameters that are added to the activations, or multiplied with them, and are broadcast over the rest.

The gradient of one example is its output gradient (times the other factor), summed over all dimensions that
the parameter does not have. It is as small as the parameter, so it is computed at once and kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from discreet.pytorch.kernels import normalised
from discreet.pytorch.layer_rules.use import KeptRows, Layout, Source, Use, arguments, wide


class Shift(KeptRows):
    """``x + b``. ``shape`` is how the parameter lines up with the last dimensions of the output."""

    def __init__(
        self,
        source: Source,
        shape: tuple[int, ...] | None = None,
        sign: float = 1.0,
        input: Tensor | None = None,
    ) -> None:
        super().__init__(source, input)
        self.shape = tuple(source.tensor.shape) if shape is None else shape
        self.sign = sign
        self.found: Tensor | None = None  # by another use of the same call, together with its own

    def accepts(self, layout: Layout, output: Tensor) -> bool:
        return output.ndim >= len(self.shape) and self._aligned_shape(output)[layout.dim] == 1

    def _aligned_shape(self, output: Tensor) -> tuple[int, ...]:
        return (1,) * (output.ndim - len(self.shape)) + self.shape

    def prepare(self, x: Any, grad: Tensor, layout: Layout) -> None:
        self.held = self.sum_broadcast(wide(grad), layout) if self.found is None else self.found
        if self.sign != 1.0:
            self.held = self.held * self.sign

    def sum_broadcast(self, grad: Tensor, layout: Layout) -> Tensor:
        """Sum over what the parameter was broadcast over, except the examples."""
        if layout.dim == 0 and grad.shape == (self.examples, *self.source.tensor.shape):
            return grad
        aligned = self._aligned_shape(grad)
        over = [d for d in range(grad.ndim) if d != layout.dim and aligned[d] == 1 and grad.shape[d] > 1]
        if over:
            grad = grad.sum(over, keepdim=True)
        grad = layout.examples_first(grad, self.examples)
        if grad.numel() != self.examples * self.source.tensor.numel():  # positions folded into the examples
            grad = grad.sum(layout.dim + 1)
        return grad.reshape(self.examples, *self.source.tensor.shape)


class Scaling(Shift):
    """``x * w``; the other factor may be computed only when it is needed."""

    def __init__(
        self,
        source: Source,
        factor: Tensor,
        shape: tuple[int, ...] | None = None,
        prepared: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(source, shape, input=factor)
        self.prepared = prepared

    def prepare(self, x: Tensor, grad: Tensor, layout: Layout) -> None:
        factor = x if self.prepared is None else self.prepared(x)
        self.held = self.sum_broadcast(wide(grad) * wide(factor), layout)


Compiled = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor] | None]
"""From input, output gradient and the number of examples to the gradients of weight and bias; None if it cannot."""


class NormalisedScale(Scaling):
    """The weight of a normalised layer; ``bias`` is that of the same call."""

    def __init__(
        self,
        source: Source,
        x: Tensor,
        shape: tuple[int, ...] | None,
        normalise: Callable[[Tensor], Tensor],
        compiled: Compiled,
        bias: Shift | None,
    ) -> None:
        super().__init__(source, x, shape, normalise)
        self.compiled, self.bias = compiled, bias

    def prepare(self, x: Tensor, grad: Tensor, layout: Layout) -> None:
        plain = layout.dim == 0 and layout.outer == 1 and normalised.supports(x, grad)
        found = self.compiled(x, grad, self.examples) if plain else None
        if found is None:
            super().prepare(x, grad, layout)
            return
        rows = (self.examples, *self.source.tensor.shape)
        self.held = found[0].view(rows)
        if self.bias is not None:
            self.bias.found = found[1].view(rows)


def add(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x + b`` in either order."""
    return _sum(record, func, args, kwargs, 1.0)


def subtract(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x - b`` or ``b - x``."""
    return _sum(record, func, args, kwargs, -1.0)


def _sum(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sign: float) -> Any:
    if len(args) != 2 or kwargs:
        return None
    left, right = record.source_of(args[0]), record.source_of(args[1])
    if left and right:
        return None
    source, other = (left, args[1]) if left else (right, args[0])
    if not isinstance(other, Tensor):
        return None
    values = (left.value if left else args[0], right.value if right else args[1])
    return func(*values), [Shift(source, sign=1.0 if left else sign)]


def multiply(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x * w`` in either order."""
    if len(args) != 2 or kwargs:
        return None
    left, right = record.source_of(args[0]), record.source_of(args[1])
    source, other = (left, args[1]) if left else (right, args[0])
    if (left and right) or not isinstance(other, Tensor):
        return None
    values = (left.value if left else args[0], right.value if right else args[1])
    return func(*values), [Scaling(source, other)]


def expand(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A parameter copied for each example: class tokens, learned starting states."""
    source = record.source_of(args[0])
    if source is None:  # the parameter is the one that says how far: x.expand_as(weight)
        return None
    uses: list[Use] = [Shift(source)]
    return func(source.value, *args[1:], **kwargs).clone(), uses


def layer_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.layer_norm(input, shape, weight, bias, eps, cudnn)``."""
    names = "input normalized_shape weight bias eps cudnn_enable"
    x, shape, weight, bias, eps, _ = arguments(names, args, kwargs, eps=1e-5)
    width = math.prod(shape)

    def compiled(x: Tensor, grad: Tensor, examples: int) -> tuple[Tensor, Tensor]:
        return normalised.of_layer_norm(x, grad, examples, width, eps)

    normalise = lambda t, w, b: torch.layer_norm(t, shape, w, b, eps)  # noqa: E731
    return _affine(record, x, weight, bias, None, normalise, compiled)


def rms_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.rms_norm(input, shape, weight, eps)``."""
    x, shape, weight, eps = arguments("input normalized_shape weight eps", args, kwargs)
    return _affine(record, x, weight, None, None, lambda t, w, b: torch.rms_norm(t, shape, w, eps))


def group_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.group_norm(input, groups, weight, bias, eps, cudnn)``."""
    names = "input num_groups weight bias eps cudnn_enabled"
    x, groups, weight, bias, eps, _ = arguments(names, args, kwargs, eps=1e-5)
    shape = (x.shape[1], *(1,) * (x.ndim - 2))

    def compiled(x: Tensor, grad: Tensor, examples: int) -> tuple[Tensor, Tensor] | None:
        return normalised.of_group_norm(x, grad, groups, eps) if len(x) == examples else None

    normalise = lambda t, w, b: torch.group_norm(t, groups, w, b, eps)  # noqa: E731
    return _affine(record, x, weight, bias, shape, normalise, compiled)


def instance_norm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.instance_norm(input, weight, bias, mean, var, use_input_stats, momentum, eps, cudnn)``."""
    names = "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled"
    x, weight, bias, mean, var, own, momentum, eps, cudnn = arguments(names, args, kwargs)
    if mean is not None and own:
        return None  # its statistics change with every batch: left to the checks of the run
    rest = (mean, var, own, momentum, eps, cudnn)
    shape = (x.shape[1], *(1,) * (x.ndim - 2))
    return _affine(record, x, weight, bias, shape, lambda t, w, b: torch.instance_norm(t, w, b, *rest))


def _affine(
    record: Any,
    x: Tensor,
    weight: Any,
    bias: Any,
    shape: Any,
    normalise: Any,
    compiled: Compiled = lambda x, grad, examples: None,
) -> Any:
    if record.source_of(x):
        return None
    of_weight, of_bias = record.source_of(weight), record.source_of(bias)
    out = normalise(x, of_weight.value if of_weight else weight, of_bias.value if of_bias else bias)
    shift = Shift(of_bias, shape) if of_bias else None
    uses: list[Use] = []
    if of_weight:
        alone = lambda t: normalise(t, None, None)  # noqa: E731
        uses.append(NormalisedScale(of_weight, x, shape, alone, compiled, shift))
    if shift is not None:
        uses.append(shift)
    return out, uses
