"""Linear maps ``x @ W.T``: gradient of an example = sum over its positions of output gradient times input.

| positions T          | squared norm                                | cost              |
|----------------------|---------------------------------------------|-------------------|
| 1                    | product of the two squared norms            | in + out          |
| few                  | ghost: sum of the products of two T x T Gram matrices | T² (in + out) |
| many                 | the gradient itself, kept if small          | T in out          |

In docs/engines.md: E6 to E8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from discreet.pytorch.kernels import norms
from discreet.pytorch.layer_rules.elementwise import Shift
from discreet.pytorch.layer_rules.use import (
    Layout,
    Source,
    Use,
    arguments,
    ghost_norms,
    not_cancelled,
    product_of_squares,
    sums_of_squares,
    wide,
    without,
)

FEW = 16  # positions: for so many, Gram matrices in float64 are as fast as those by torch, and never doubtful
KEEP = 6 << 20  # numbers: per-example gradients up to this size are kept rather than computed twice


class LinearWeight(Use):
    """``transposed`` is for ``x @ W``, whose weight has the inputs as rows."""

    def __init__(self, source: Source, input: Tensor, transposed: bool = False) -> None:
        super().__init__(source, input)
        self.transposed = transposed
        self.bias: Shift | None = None  # of the same call
        self.kept: Tensor | None = None
        self.a: Any = None
        self.g: Any = None

    def accepts(self, layout: Layout, output: Tensor) -> bool:
        return layout.dim < output.ndim - 1

    def prepare(self, x: Tensor, grad: Tensor, layout: Layout) -> None:
        a = wide(layout.examples_first(x, self.examples))
        g = wide(layout.examples_first(grad, self.examples))
        self.a, self.g = (a.flatten(1, -2), g.flatten(1, -2)) if a.ndim > 3 else (a, g)

    @property
    def by_position(self) -> tuple[Tensor, Tensor]:
        """Inputs and gradients with a dimension for the positions, even if there is but one."""
        return (self.a, self.g) if self.a.ndim == 3 else (self.a.unsqueeze(1), self.g.unsqueeze(1))

    def measure(self) -> None:
        if self.a.ndim > 2:
            super().measure()
            if self.kept is not None:
                self.a = self.g = None
            return
        of_grad = sums_of_squares(self.g)
        self.squares = product_of_squares(sums_of_squares(self.a), of_grad, self.a.dtype)
        if self.bias is not None:
            self.bias.squares = of_grad

    def forget(self, bad: Tensor) -> None:
        if self.kept is not None:
            self.kept = without(self.kept, bad)
        if self.a is not None:
            self.a, self.g = without(self.a, bad), without(self.g, bad)

    def squared_norms(self) -> Tensor:
        positions, out, into = self.a[0].numel() // self.a.shape[-1], self.g.shape[-1], self.a.shape[-1]
        if positions == 1:
            return self.of_parts()
        ghost = positions * (out + into) < out * into and positions < 2048
        if not ghost and self.examples * out * into <= KEEP:
            self.kept = torch.bmm(self.g.mT, self.a)
            return sums_of_squares(self.kept)
        if ghost and positions <= FEW and self.a.dtype == torch.float32 and norms.on_host(self.a):
            total, of_input, of_grad = norms.gram_norms(self.a, self.g)
            return not_cancelled(total, product_of_squares(of_input, of_grad, self.a.dtype), positions)
        if ghost:
            exact = lambda i: sums_of_squares(self.rows(slice(i, i + 1)))[0]  # noqa: E731
            total, apart = ghost_norms(self.a, self.g, exact)
        else:
            parts = norms.chunks(self.examples, out * into)
            total = torch.cat([sums_of_squares(self.rows(part)) for part in parts])
            apart = self.of_parts()
        return not_cancelled(total, apart, positions)

    def of_parts(self) -> Tensor:
        if self.kept is not None:
            return super().of_parts()
        return product_of_squares(sums_of_squares(self.a), sums_of_squares(self.g), self.a.dtype)

    def rows(self, part: slice) -> Tensor:
        a, g = self.by_position
        left, right = (a, g) if self.transposed else (g, a)
        return torch.bmm(left[part].mT, right[part])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.kept is not None:
            total = (weights @ self.kept.flatten(1)).view(self.kept.shape[1:])
            return total.mT if self.transposed else total
        return torch.mm(*self.weighted_factors(weights))

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        if self.kept is None and (total.dtype, total.device) == (self.a.dtype, self.a.device):
            total.addmm_(*self.weighted_factors(weights))
        else:
            super().add_to(total, weights)

    def weighted_factors(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Two matrices whose product is the weighted sum."""
        a, g, by_example = self.a, self.g, weights.view(-1, *(1,) * (self.a.ndim - 1))
        if a.shape[-1] < g.shape[-1]:
            a = a * by_example
        else:
            g = g * by_example
        if a.ndim > 2:
            a, g = a.flatten(0, -2), g.flatten(0, -2)
        return (a.mT, g) if self.transposed else (g.mT, a)

    def join(self, other: LinearWeight) -> LinearWeight:
        """Two uses of one weight are one use with the positions of both."""
        both = LinearWeight(self.source, self.a[:0], self.transposed)
        (a, g), (more_a, more_g) = self.by_position, other.by_position
        both.a, both.g = torch.cat([a, more_a], 1), torch.cat([g, more_g], 1)
        both.examples, both.scratch, both.place = self.examples, self.scratch, self.place
        return both


def linear(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.linear(input, weight, bias)``."""
    x, weight, bias = args if len(args) == 3 else arguments("input weight bias", args, kwargs)
    of_weight, of_bias = record.source_of(weight), record.source_of(bias)
    if record.source_of(x) or x.ndim < 2 or weight.ndim != 2:
        return None
    out = func(x, of_weight.value if of_weight else weight, of_bias.value if of_bias else bias)
    uses: list[Use] = []
    of_output = Shift(of_bias) if of_bias else None
    if of_weight:
        use = LinearWeight(of_weight, x)
        use.bias = of_output
        uses.append(use)
    if of_output:
        uses.append(of_output)
    return out, uses


def matmul(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x @ weight``."""
    if len(args) != 2 or kwargs:
        return None
    x, weight = args
    source = record.source_of(weight)
    if record.source_of(x) or not source or weight.ndim != 2 or x.ndim < 2:
        return None
    return func(x, source.value), [LinearWeight(source, x, transposed=True)]


def addmm(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``bias + x @ weight``, the linear map of GPT-2."""
    if len(args) != 3 or kwargs:
        return None
    bias, x, weight = args
    of_bias, of_weight = record.source_of(bias), record.source_of(weight)
    if record.source_of(x) or not of_weight or not of_bias or bias.ndim != 1:
        return None
    uses: list[Use] = [LinearWeight(of_weight, x, transposed=True), Shift(of_bias)]
    return func(of_bias.value, x, of_weight.value), uses
