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
    """Dimension ``dim`` counts the examples; if ``folded``, examples times others, ``inner`` examples last."""

    dim: int
    folded: bool = False
    inner: bool = False

    def examples_first(self, tensor: Tensor, examples: int) -> Tensor:
        """The same numbers with the examples as dimension 0 and nothing else in it."""
        folded, dim, shape = tensor.shape[self.dim] // examples, self.dim, tensor.shape
        if folded == 1:
            return tensor.movedim(dim, 0) if dim else tensor
        if self.inner:
            return tensor.reshape(*shape[:dim], folded, examples, *shape[dim + 1 :]).movedim(dim + 1, 0)
        return tensor.reshape(*shape[:dim], examples, folded, *shape[dim + 1 :]).movedim(dim, 0)
