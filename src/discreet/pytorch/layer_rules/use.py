"""Base of all rules: a use of a parameter, and sums of squares with bounded rounding errors.

A forward pass is a list of operations, some of which use parameters. Each use keeps what the gradient of its
parameter needs: usually the input of the operation and, from the backward pass, the gradient of its output.
The gradient of one example is a product of the two; a use knows how to measure it, show it and add it up
over the examples with weights, and for most operations neither the first nor the last needs the middle one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discreet.pytorch.kernels import norms

CANCELLED = 0.1  # a ghost norm this far below that of unrelated positions is computed the long way
LEAST_LEFT = (
    1e-4  # of its parts: a gradient that cancels further counts as this long, and longer of many positions
)
ROUNDED = (
    2.0**-16
)  # of a product of two inner products, in each of which a number is added up 128 times at most
PRECISION = 2.0**-20  # of squared norms
# Squared: see norms.REACH, which is that of float32.
REACH = {torch.float32: norms.REACH, torch.float64: 2.0**256}


@dataclass(frozen=True)
class Layout:
    """Position of the examples: ``dim`` counts them; or examples times others, ``outer`` of which are outside of
    them.

    Inside a model the batch may be the first dimension, or the second (time first), or folded together with time or
    with channels into one. It is never guessed from shapes, as a sequence may happen to be as long as the batch: see
    :mod:`discreet.pytorch.batch_axis`.
    """

    dim: int
    outer: int = 1

    def examples_first(self, tensor: Tensor, examples: int) -> Tensor:
        """Return the tensor with the examples, and nothing else, as dimension 0."""
        dim, shape, outer = self.dim, tensor.shape, self.outer
        inner = shape[dim] // (examples * outer)
        if outer * inner == 1:
            return tensor.movedim(dim, 0) if dim else tensor
        apart = tensor.reshape(*shape[:dim], outer, examples, inner, *shape[dim + 1 :]).movedim(dim + 1, 0)
        return apart.flatten(dim + 1, dim + 2)


class Source:
    """A parameter, or a tensor that is computed from parameters alone, as the model sees it."""

    def __init__(self, name: str, tensor: Tensor, roots: dict[str, Tensor], isometric: bool) -> None:
        self.name = name
        self.tensor = tensor
        self.roots = roots
        self.isometric = isometric  # a gradient here is as long as it is at the parameter
        self.is_parameter = tensor.is_leaf
        self._value: Tensor | None = None

    @classmethod
    def of(cls, name: str, parameter: Tensor) -> Source:
        """A parameter itself."""
        return cls(name, parameter, {name: parameter}, True)

    @property
    def value(self) -> Tensor:
        """Its numbers, cut off from the graph."""
        if self._value is None:
            self._value = self.tensor.detach()
        return self._value

    def pull_back(self, rows: Tensor) -> dict[str, Tensor]:
        """Gradients at this tensor, one per row, as gradients of the parameters behind it."""
        if self.is_parameter:
            return {self.name: rows}
        found = torch.autograd.grad(
            self.tensor,
            list(self.roots.values()),
            rows.to(self.tensor.dtype),
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        none = {name: root.new_zeros(len(rows), *root.shape) for name, root in self.roots.items()}
        return {name: none[name] if grad is None else grad for name, grad in zip(none, found, strict=True)}

    def gain(self, name: str) -> float:
        """By how much the way back to a parameter changes squared lengths, in the mean over all directions."""
        if self.isometric:
            return 1.0
        signs = (
            torch.arange(2 * self.tensor.numel(), device=self.tensor.device)
            .mul_(2654435761)
            .bitwise_and_(1 << 20)
        )
        directions = (signs == 0).to(self.tensor.dtype).mul_(2).sub_(1).view(2, *self.tensor.shape)
        lengths = sums_of_squares(wide(self.pull_back(directions)[name])).mean()
        return float(lengths.nan_to_num(0.0, 0.0, 0.0)) / max(1, self.tensor.numel())

    def pull_back_sum(self, total: Tensor, name: str) -> Tensor:
        """One gradient at this tensor as that of the parameter ``name``."""
        return total if self.is_parameter else self.pull_back(total.unsqueeze(0))[name][0]


class Scratch:
    """Arrays that live from step to step, as asking the system for large ones costs more than filling them."""

    def __init__(self) -> None:
        self.arrays: dict[Any, Tensor] = {}

    def of(self, owner: Any, like: Tensor, *shape: int) -> Tensor:
        """An array with any content; the same memory whenever ``owner`` asks."""
        size = math.prod(shape)
        found = self.arrays.get(owner)
        if found is None or found.numel() < size or found.dtype != like.dtype or found.device != like.device:
            found = self.arrays[owner] = torch.empty(size, dtype=like.dtype, device=like.device)
        return found[:size].view(shape)


class Use(ABC):
    """One use of one source; ``input`` is what its gradient needs besides the gradient of the output."""

    def __init__(self, source: Source, input: Tensor | None = None) -> None:
        self.source = source
        self.input: Any = None if input is None else input.detach()
        self.version = 0 if input is None else input._version
        self.examples = 0
        self.squares: Tensor | None = None
        self.received = 0

    def accepts(self, layout: Layout, output: Tensor) -> bool:
        """Return whether the rule knows what to do with this layout of the output."""
        return layout.dim == 0

    def receive(self, grad: Tensor, layout: Layout, examples: int, scratch: Scratch, place: Any) -> None:
        """Take the gradient of the output; called once, in the backward pass."""
        self.scratch, self.place = scratch, place
        self.received = grad.nbytes if norms.on_host(grad) else 0
        if self.input is not None and self.input._version != self.version:
            raise RuntimeError(
                "the input of a layer was changed in place after the layer had read it, so that its gradient "
                "is lost; use the operation that returns a new tensor instead."
            )
        self.examples = examples
        self.prepare(self.input, grad, layout)
        self.input = None

    @abstractmethod
    def prepare(self, x: Any, grad: Tensor, layout: Layout) -> None:
        """Bring input and gradient into the form that the rule works on."""

    def measure(self) -> None:
        """Find the norms at once, while the gradient is in the cache; only for the one use of a parameter.

        Whatever the weighted sum does not need may be dropped here.
        """
        if self.squares is None:
            self.squares = self.squared_norms()

    @abstractmethod
    def forget(self, bad: Tensor) -> None:
        """Put zeros where ``bad`` says that an example's gradient is not finite."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Per example, in float64."""

    def of_parts(self) -> Tensor:
        """Squared norms that the gradients would have if nothing cancelled; 0 if what is measured is what is
        added up, infinity if it is out of reach."""
        return torch.zeros(self.examples, dtype=torch.float64, device=self.source.tensor.device)

    @abstractmethod
    def rows(self, part: slice) -> Tensor:
        """The gradients themselves of some examples: shape (examples, *source)."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over examples of weight times gradient, of the source's shape."""

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        """Add the weighted sum to ``total``."""
        total += self.weighted_sum(weights).to(total.device)

    def put_into(self, total: Tensor, weights: Tensor) -> None:
        """Put the weighted sum in place of whatever is in ``total``."""
        total.zero_()
        self.add_to(total, weights)


class KeptRows(Use):
    """A use whose per-example gradients are small and simply held."""

    held: Tensor

    def forget(self, bad: Tensor) -> None:
        self.held = without(self.held, bad)

    def squared_norms(self) -> Tensor:
        return sums_of_squares(self.held)

    def rows(self, part: slice) -> Tensor:
        return self.held[part].reshape(-1, *self.source.tensor.shape)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return (weights @ self.held.reshape(len(self.held), -1)).reshape(self.source.tensor.shape)

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        if (total.dtype, total.device) == (self.held.dtype, self.held.device):
            rows = self.held if self.held.ndim == 2 else self.held.reshape(len(self.held), -1)
            total.view(-1).addmv_(rows.mT, weights)
        else:
            super().add_to(total, weights)


def wide(tensor: Tensor) -> Tensor:
    """At least float32: half precision is for the model, not for norms and sums."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def without(rows: Tensor, bad: Tensor) -> Tensor:
    """A copy with zeros in the rows that ``bad`` marks; multiplying would keep NaN."""
    return rows.masked_fill(bad.reshape(-1, *(1,) * (rows.ndim - 1)), 0)


def sums_of_squares(rows: Tensor) -> Tensor:
    """The squared norm of each row in float64, whatever the rows are."""
    rows = rows if rows.ndim == 2 else rows.reshape(len(rows), -1)
    if rows.dtype == torch.float32 and norms.on_host(rows):
        return norms.squared_norms(rows)
    return norms.squared_norms_by_torch(rows)


def not_cancelled(squares: Tensor, of_parts: Tensor, positions: int = 1) -> Tensor:
    """Squared norms, not below what is left of the parts after float32 rounding with weights.

    A weighted sum rounds every part of a gradient on its own. Where large parts cancel, these errors would be
    longer than the gradient, and the clip norm would not bound them. They grow with the number of ``positions``;
    gradients of unrelated positions are one over its root of their parts long, and a fifth of that changes none.
    """
    least = LEAST_LEFT * max(1.0, min(positions / 52, 2000 / math.sqrt(positions)))
    return torch.maximum(squares, least**2 * of_parts)


def product_of_squares(of_input: Tensor, of_grad: Tensor, kind: torch.dtype) -> Tensor:
    """The product of two squared norms, infinite where one of them is out of reach."""
    beyond = torch.maximum(of_input, of_grad) > REACH[kind]
    return (of_input * of_grad).masked_fill_(beyond, torch.inf)


def ghost_norms(a: Tensor, g: Tensor, exact: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
    """Squared norms of ``g[i].T @ a[i]`` by Gram matrices, and those of their parts, as in :meth:`Use.of_parts`.

    Doubtful ones (:func:`find_doubtful`) are as ``exact`` finds them.
    """
    compiled = norms.on_host(a) and a.dtype == torch.float32 and a.is_contiguous() and g.is_contiguous()
    sizes = a.shape[1], a.shape[2], g.shape[2]
    if compiled:
        total, unrelated, of_input, of_grad = norms.ghost_norms(a, g)
        rounded = ROUNDED
    else:
        total, unrelated = norms.ghost_norms_by_torch(a, g)
        of_input, of_grad = (sums_of_squares(x if x.is_contiguous() else x.mT) for x in (a, g))
        rounded = rounding_in_any_order(*sizes[1:], a.dtype)
    total, doubtful = find_doubtful(total, unrelated, of_input, of_grad, sizes, a.dtype, rounded)
    most = product_of_squares(of_input, of_grad, a.dtype)
    return settle_doubtful(total, doubtful, most, exact), most


def rounding_in_any_order(one: int, other: int, kind: torch.dtype) -> float:
    """:data:`ROUNDED` for inner products of so many numbers that are added up in an order that nobody tells.

    The product of two of them is rounded once more.
    """
    first, second = (1 + inner_product_error(n, kind) for n in (one, other))
    return (first * second * (1 + torch.finfo(kind).eps / 2) - 1) * (1 + 2.0**-20)


def inner_product_error(numbers: int, kind: torch.dtype) -> float:
    """By how much of the product of lengths an inner product may be off, whatever the order of its additions.

    Each number goes through one multiplication and ``numbers - 1`` additions at most.
    """
    error = numbers * torch.finfo(kind).eps / 2
    return error / (1 - error)


def find_doubtful(
    total: Tensor,
    unrelated: Tensor,
    of_input: Tensor,
    of_grad: Tensor,
    sizes: tuple[int, int, int],
    kind: torch.dtype,
    rounded: float,
) -> tuple[Tensor, Tensor]:
    """Squared norms by Gram matrices with what rounding may have taken away, and which of them are doubtful.

    That is where large positions cancel, or where products could have been too small or too large for their type.
    ``unrelated`` is what the norms were if nothing cancelled, ``of_input`` and ``of_grad`` are the squared norms of
    inputs and output gradients, or more; ``sizes`` are the number of positions, and of numbers in an input and in a
    gradient of each. What is ``rounded`` in products of inner products is added: it is relative to
    |a_s| |a_t| |g_s| |g_t|, whose sum over all s and t is of_input * of_grad at most.
    """
    positions, into, out = sizes
    lost = positions * (out * of_input + into * of_grad + positions)
    least = torch.maximum(CANCELLED * unrelated, torch.finfo(kind).tiny / PRECISION * lost)
    sure = (total >= least) & (total < torch.inf) | (of_input == 0) | (of_grad == 0)
    return total + rounded * product_of_squares(of_input, of_grad, kind), ~sure


def settle_doubtful(
    squares: Tensor, doubtful: Tensor, most: Tensor, exact: Callable[[int], Tensor]
) -> Tensor:
    """Squared norms with those that are doubtful found the long way.

    Or, on a device, which would have to be waited for, as large as they can be: nobody is clipped too little.
    """
    if not norms.on_host(squares):
        return torch.where(doubtful, most, squares)
    for i in torch.nonzero(doubtful).flatten().tolist():
        squares[i] = exact(i)
    return squares


def arguments(names: str, args: tuple[Any, ...], kwargs: dict[str, Any], **defaults: Any) -> list[Any]:
    """The arguments of a call in the order of ``names``, wherever the caller put them."""
    order = names.split()
    given = dict(zip(order, args, strict=False)) | kwargs
    return [given.get(name, defaults.get(name)) for name in order]
