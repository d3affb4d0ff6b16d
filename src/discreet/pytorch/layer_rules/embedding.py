"""Embeddings: an example's gradient has only the rows that it looked up, so only those are ever formed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from discreet.errors import InvalidParameter
from discreet.pytorch.kernels import norms
from discreet.pytorch.layer_rules.use import Layout, Source, Use, arguments, sums_of_squares, wide, without


class EmbeddingWeight(Use):
    """``where`` names (example, row) pairs; ``grads`` holds their gradients, zeros if a pair is there again."""

    def __init__(self, source: Source, index: Tensor, padding: int) -> None:
        super().__init__(source, index)
        self.padding = padding

    def accepts(self, layout: Layout, output: Tensor) -> bool:
        return layout.dim < output.ndim - 1

    def prepare(self, x: Tensor, grad: Tensor, layout: Layout) -> None:
        self.index = layout.examples_first(x, self.examples).reshape(self.examples, -1)
        self.g = wide(layout.examples_first(grad, self.examples)).reshape(*self.index.shape, grad.shape[-1])
        if self.padding >= 0:
            self.g = self.g.masked_fill((self.index == self.padding).unsqueeze(2), 0)
        self.vocabulary = self.source.tensor.shape[0]
        example = torch.arange(self.examples, device=self.index.device)[:, None]
        self.where, inverse = _different((self.index + example * self.vocabulary).flatten())
        self.grads = self.g.new_zeros(len(self.where), self.g.shape[2])
        self.grads.index_add_(0, inverse, self.g.flatten(0, 1))

    def measure(self) -> None:
        super().measure()
        self.g = self.g[:, :0]  # only a tied output layer needs it

    @property
    def example(self) -> Tensor:
        return torch.div(self.where, self.vocabulary, rounding_mode="floor")

    def forget(self, bad: Tensor) -> None:
        self.grads, self.g = without(self.grads, bad[self.example]), without(self.g, bad)

    def squared_norms(self) -> Tensor:
        squares = sums_of_squares(self.grads)
        return squares.new_zeros(self.examples).index_add_(0, self.example, squares)

    def rows(self, part: slice) -> Tensor:
        rows = self.grads.new_zeros(part.stop - part.start, *self.source.tensor.shape)
        chosen = (self.example >= part.start) & (self.example < part.stop)
        where = self.where[chosen] - part.start * self.vocabulary
        rows.view(-1, rows.shape[2]).index_add_(0, where, self.grads[chosen])
        return rows

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = self.grads.new_zeros(self.source.tensor.shape)
        self._add(total, weights)
        return total

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        if (total.dtype, total.device) == (self.grads.dtype, self.grads.device):
            self._add(total, weights)
        else:
            super().add_to(total, weights)

    def _add(self, total: Tensor, weights: Tensor) -> None:
        scaled = self.grads * weights[self.example].unsqueeze(1)
        total.index_add_(0, self.where % self.vocabulary, scaled)


def _different(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The different ones among these numbers, and which of them each is.

    A device would have to be asked how many there are, so there is a place for every number, and spare ones are 0.
    """
    if norms.on_host(numbers):
        found: tuple[Tensor, Tensor] = torch.unique(numbers, return_inverse=True)
        return found
    ordered, order = torch.sort(numbers)
    place = torch.zeros_like(ordered)
    place[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
    where = torch.zeros_like(ordered).scatter_(0, place, ordered)
    return where, torch.empty_like(place).scatter_(0, order, place)


def embedding(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)``."""
    names = "weight indices padding_idx scale_grad_by_freq sparse"
    weight, index, padding, by_frequency, _ = arguments(names, args, kwargs, padding_idx=-1)
    source = record.source_of(weight)
    if by_frequency:
        needed = "must be False: it divides an example's gradient by how often others use the same row."
        raise InvalidParameter("scale_grad_by_freq", True, needed)
    padding = -1 if padding is None else padding
    return func(source.value, index, padding), [EmbeddingWeight(source, index, padding)]
