"""Convolutions of one, two and three dimensions, and their transposes.

For each position of the kernel the gradient is a product of the output gradient with a shifted, strided view
of the padded input, so one batched product per kernel position covers every stride, dilation and grouping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.pytorch.kernels import norms
from discreet.pytorch.kernels.convolution_grams import (
    MOST_PIXELS,
    PixelClasses,
    ghost_norms_of_images,
    pixel_classes,
)
from discreet.pytorch.kernels.convolution_weights import Geometry, geometry, gradients
from discreet.pytorch.layer_rules.elementwise import Shift
from discreet.pytorch.layer_rules.use import (
    ROUNDED,
    Layout,
    Source,
    Use,
    arguments,
    find_doubtful,
    ghost_norms,
    not_cancelled,
    product_of_squares,
    settle_doubtful,
    sums_of_squares,
    wide,
    without,
)

KEEP = 3 << 20  # numbers: per-example gradients up to this size are kept rather than computed twice
GHOST = 0.7  # how much cheaper Gram matrices must be by the count of products, as they also copy the input


class ConvolutionWeight(Use):
    """``spread`` convolutions are the transposed ones: input and output change places."""

    def __init__(
        self,
        source: Source,
        input: Tensor,
        stride: tuple[int, ...],
        padding: tuple[tuple[int, int], ...],
        dilation: tuple[int, ...],
        groups: int,
        spread: bool = False,
    ) -> None:
        super().__init__(source, input)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.spread = groups, spread
        self.kernel = tuple(source.tensor.shape[2:])
        self.kept: Tensor | None = None
        self.places: Geometry | None = None

    def prepare(self, x: Tensor, grad: Tensor, layout: Layout) -> None:
        self.a: Any = wide(x)
        self.g: Any = wide(grad)
        self.folded = len(x) // self.examples  # images per example
        if layout.outer > 1:
            self.a = layout.examples_first(self.a, self.examples).flatten(0, 1)
            self.g = layout.examples_first(self.g, self.examples).flatten(0, 1)
        self.simple = self.groups == 1 and not self.spread

    def measure(self) -> None:
        super().measure()
        if self.kept is not None:
            self.a = self.g = None

    def forget(self, bad: Tensor) -> None:
        if self.kept is not None:
            self.kept = without(self.kept, bad)
        if self.a is not None:
            images = bad.repeat_interleave(self.folded)
            self.a, self.g = without(self.a, images), without(self.g, images)

    def squared_norms(self) -> Tensor:
        squares = self.plain_norms()
        if self.kept is not None:
            return squares
        return not_cancelled(squares, self.of_parts(), self.folded * math.prod(self.g.shape[2:]))

    def of_parts(self) -> Tensor:
        if self.kept is not None:
            return super().of_parts()
        of_input, of_grad = (sums_of_squares(part.reshape(self.examples, -1)) for part in (self.a, self.g))
        return math.prod(self.kernel) * product_of_squares(of_input, of_grad, self.a.dtype)

    def plain_norms(self) -> Tensor:
        """Squared norms; the gradients are kept where they are small."""
        weight, positions = self.source.tensor, math.prod(self.g.shape[2:])
        out, entries = len(weight), weight[0].numel()
        keep = self.examples * weight.numel() <= KEEP
        few = positions * (out + entries) < GHOST * out * entries
        if self.simple and self.folded == 1 and few and not keep:
            return self.ghost_norms()
        if self.simple and norms.on_host(self.a) and self.a.dtype == torch.float32:
            return self.compiled_norms(keep)
        if keep:
            self.kept = self.rows(slice(0, self.examples)).flatten(1)
            return sums_of_squares(self.kept)
        parts = norms.chunks(self.examples, weight.numel())
        return torch.cat([sums_of_squares(self.rows(part)) for part in parts])

    def compiled_norms(self, keep: bool) -> Tensor:
        x, channels = pad(self.a, self.padding).contiguous(), self.g.shape[1]
        positions = tuple(self.g.shape[2:])
        shape, images = tuple(x.shape[1:]), self.folded
        self.places = geometry(shape, channels, self.kernel, self.stride, self.dilation, positions, images)
        out = self.scratch.of(self.place, x, *self.places.workspace(self.examples)) if keep else None
        g = self.g.reshape(self.examples, images, channels, -1).transpose(1, 2).flatten(2)
        squares = gradients(x.view(self.examples, -1), g, self.places, out, torch.get_num_threads())
        self.kept = None if out is None else out.flatten(1)
        return squares

    def ghost_norms(self) -> Tensor:
        classes = self.pixel_classes()
        return self.ghost_norms_of_patches() if classes is None else self.ghost_norms_of_pixels(classes)

    def pixel_classes(self) -> PixelClasses | None:
        """Return the plan of norms by products of pixels; None if products of patches are no more work."""
        if not norms.on_host(self.a) or self.a.dtype != torch.float32:
            return None
        shape = [size + sum(pair) for size, pair in zip(self.a.shape[2:], self.padding, strict=True)]
        positions = tuple(self.g.shape[2:])
        classes = pixel_classes(tuple(shape), self.kernel, self.stride, self.dilation, positions)
        of_patches = math.prod(positions) ** 2 * self.source.tensor[0].numel()
        worth_it = classes.work(self.a.shape[1]) < of_patches and classes.pixels.shape[1] <= MOST_PIXELS
        return classes if worth_it else None

    def ghost_norms_of_pixels(self, classes: PixelClasses) -> Tensor:
        x, g = pad(self.a, self.padding).flatten(2), self.g.flatten(2)
        total, unrelated = ghost_norms_of_images(x, g, classes)
        of_grad = sums_of_squares(g)
        of_input = sums_of_squares(x) * classes.patches_of_a_pixel  # of all patches, or more
        sizes = g.shape[2], self.source.tensor[0].numel(), g.shape[1]
        total, doubtful = find_doubtful(total, unrelated, of_input, of_grad, sizes, x.dtype, ROUNDED)
        most = product_of_squares(of_input, of_grad, x.dtype)
        return settle_doubtful(
            total, doubtful, most, lambda i: sums_of_squares(self.rows(slice(i, i + 1)))[0]
        )

    def ghost_norms_of_patches(self) -> Tensor:
        found = []
        for part in norms.chunks(self.examples, self.source.tensor[0].numel() * math.prod(self.g.shape[2:])):
            g, x = self.g[part].flatten(2), pad(self.a[part], self.padding)
            windows = [x[window].flatten(2) for window in self.windows(g_shape=self.g.shape[2:])]
            patches = torch.cat(windows, 1)
            found.append(ghost_norms(patches.mT, g.mT, partial(_square_of_product, g, patches))[0])
        return torch.cat(found)

    def windows(self, g_shape: tuple[int, ...]) -> list[Any]:
        """For each place in the kernel, the input that it meets at all output positions."""
        places = product(*map(range, self.kernel))
        return [(..., *map(_window, place, self.dilation, self.stride, g_shape)) for place in places]

    def rows(self, part: slice) -> Tensor:
        """The twin of the compiled kernel, for every kind of convolution."""
        images = slice(part.start * self.folded, part.stop * self.folded)
        a, g, groups = self.a[images], self.g[images], self.groups
        seen, given = (g, a) if self.spread else (a, g)
        seen, count = pad(seen, self.padding), len(seen)
        by_channel = given.reshape(count * groups, given.shape[1] // groups, -1)
        found = seen.new_empty(math.prod(self.kernel), count, given.shape[1], seen.shape[1] // groups)
        for place, window in zip(found, self.windows(given.shape[2:]), strict=True):
            met = seen[window].reshape(count * groups, seen.shape[1] // groups, -1)
            torch.bmm(by_channel, met.mT, out=place.view(count * groups, *by_channel.shape[1:2], -1))
        rows = found.movedim(0, -1).reshape(count, *self.source.tensor.shape)
        return rows if self.folded == 1 else rows.reshape(-1, self.folded, *rows.shape[1:]).sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.kept is not None:
            total = weights @ self.kept
            if self.places is None:
                return total.view(self.source.tensor.shape)
            table = total.view(self.places.workspace(1)[1:])[: self.places.entries, : self.places.channels]
            return table.mT.reshape(self.source.tensor.shape)
        by_image = weights.repeat_interleave(self.folded).view(-1, *(1,) * (self.g.ndim - 1))
        seen, given = (self.g, self.a * by_image) if self.spread else (self.a, self.g * by_image)
        none, kernel = [0] * len(self.kernel), self.source.value.to(seen.dtype)
        even = all(before == after for before, after in self.padding)
        padding = [before for before, _ in self.padding] if even else none
        with all_digits() if on_cuda(seen) else nullcontext():
            total = torch.ops.aten.convolution_backward(
                given, seen if even else pad(seen, self.padding), kernel, None, self.stride, padding,
                self.dilation, False, none, self.groups, [False, True, False],
            )[1]  # fmt: skip
        assert isinstance(total, Tensor)
        return total


def on_cuda(tensor: Tensor) -> bool:
    """Return whether cuDNN convolves it."""
    return tensor.is_cuda


@contextmanager
def all_digits() -> Iterator[None]:
    """Let cuDNN convolve float32 numbers as such, which it rounds to 11 binary digits by default.

    Sums would be longer than their norms by up to 2**-11, and by many clip norms where large parts cancel.
    """
    cudnn: Any = torch.backends.cudnn
    of, name, exact = (
        (cudnn.conv, "fp32_precision", "ieee") if hasattr(cudnn, "conv") else (cudnn, "allow_tf32", False)
    )
    before = getattr(of, name)
    setattr(of, name, exact)
    try:
        yield
    finally:
        setattr(of, name, before)


def pad(x: Tensor, padding: tuple[tuple[int, int], ...]) -> Tensor:
    """Zeros before and after each of the last dimensions."""
    return F.pad(x, [p for pair in reversed(padding) for p in pair]) if any(map(any, padding)) else x


def _window(place: int, dilation: int, stride: int, positions: int) -> slice:
    start = place * dilation
    return slice(start, start + (positions - 1) * stride + 1, stride)


def convolution(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.conv1d``, ``F.conv2d``, ``F.conv3d``."""
    names = "input weight bias stride padding dilation groups"
    x, weight, bias, stride, padding, dilation, groups = arguments(
        names, args, kwargs, stride=1, padding=0, dilation=1, groups=1
    )
    dims = weight.ndim - 2
    if record.source_of(x) or x.ndim != dims + 2:
        return None
    stride, dilation = _each(stride, dims), _each(dilation, dims)
    pairs = _padding(padding, tuple(weight.shape[2:]), dilation)
    of_weight, of_bias = record.source_of(weight), record.source_of(bias)
    values = (of_weight.value if of_weight else weight, of_bias.value if of_bias else bias)
    out = func(x, *values, stride, padding, dilation, groups)
    uses: list[Use] = []
    if of_weight:
        uses.append(ConvolutionWeight(of_weight, x, stride, pairs, dilation, groups))
    if of_bias:
        uses.append(Shift(of_bias, (len(bias), *(1,) * dims)))
    return out, uses


def transposed_convolution(record: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.conv_transpose1d``, ``2d``, ``3d``."""
    names = "input weight bias stride padding output_padding groups dilation"
    x, weight, bias, stride, padding, more, groups, dilation = arguments(
        names, args, kwargs, stride=1, padding=0, output_padding=0, groups=1, dilation=1
    )
    dims = weight.ndim - 2
    if record.source_of(x) or x.ndim != dims + 2:
        return None
    stride, dilation, padding = _each(stride, dims), _each(dilation, dims), _each(padding, dims)
    of_weight, of_bias = record.source_of(weight), record.source_of(bias)
    values = (of_weight.value if of_weight else weight, of_bias.value if of_bias else bias)
    out = func(x, *values, stride, padding, more, groups, dilation)
    uses: list[Use] = []
    if of_weight:
        pairs = tuple((p, p) for p in padding)
        uses.append(ConvolutionWeight(of_weight, x, stride, pairs, dilation, groups, spread=True))
    if of_bias:
        uses.append(Shift(of_bias, (len(bias), *(1,) * dims)))
    return out, uses


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _padding(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the padding before and after each dimension; "same" adds the odd one after."""
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((t // 2, t - t // 2) for t in total)
    return tuple((p, p) for p in _each(padding, len(kernel)))


def _square_of_product(g: Tensor, patches: Tensor, index: int) -> Tensor:
    """The squared norm of one example's gradient."""
    return sums_of_squares(g[index : index + 1] @ patches[index : index + 1].mT)[0]
