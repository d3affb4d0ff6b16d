"""Where the examples are in a tensor.

Inside a model the batch may be the first dimension, or the second (time first), or folded together with time
or with channels into one. A layout undoes that. It is never guessed from shapes, as a sequence may happen to be as
long as the batch: see :mod:`discreet.pytorch.ownership`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Dimension ``dim`` counts the examples; or examples times others, ``outer`` of which are outside of them."""

    dim: int
    outer: int = 1

    def examples_first(self, tensor: Tensor, examples: int) -> Tensor:
        """The same numbers with the examples as dimension 0 and nothing else in it."""
        dim, shape, outer = self.dim, tensor.shape, self.outer
        inner = shape[dim] // (examples * outer)
        if outer * inner == 1:
            return tensor.movedim(dim, 0) if dim else tensor
        apart = tensor.reshape(*shape[:dim], outer, examples, inner, *shape[dim + 1 :]).movedim(dim + 1, 0)
        return apart.flatten(dim + 1, dim + 2)
