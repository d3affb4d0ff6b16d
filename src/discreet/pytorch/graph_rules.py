"""Rules for operations that keep the rows of examples apart, seen from their outputs.

A rule says, for one output of a node of the autograd graph and one of its inputs, which example owns which elements
of the input: how many elements in a row belong to one example (a positive *run*), :data:`SHARED` if all examples
read all of it (a weight), or :data:`MIXED` if the answer is not known or not simple. It may look at shapes, and at
what the node has saved: dimensions, and where it must, the very indices of this batch.

An operation that is not listed mixes, as far as anybody knows, and costs time instead of privacy. A rule that is
wrong would cost privacy: each has a test against the Jacobian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

Shape = tuple[int, ...]

SHARED, MIXED = 0, -1


class RowLayout(NamedTuple):
    """A tensor of this shape whose element number f belongs to example ``f // run % examples``."""

    shape: Shape
    run: int
    examples: int

    def location(self) -> tuple[int, int, int] | None:
        """The dimension that holds the examples, and how many numbers it counts outside and inside of them.

        None if the examples are spread over several dimensions.
        """
        return _location(*self)


@lru_cache(1 << 14)
def _location(shape: Shape, run: int, examples: int) -> tuple[int, int, int] | None:
    after, folded = math.prod(shape), None
    for dim, size in enumerate(shape):
        after = after // size if size else 0
        if after and run % after == 0:
            inner = run // after
            if inner == 1 and size == examples:
                return dim, 1, 1
            if folded is None and inner and size % (inner * examples) == 0:
                folded = dim, size // (inner * examples), inner
    return folded


Rule = Callable[[Any, RowLayout, int, Shape], int]


def joint(one: int | None, other: int) -> int:
    """Return the layout that holds if both hold."""
    return other if one is None or one == other else MIXED


def run_in_input(rows: RowLayout, shape: Shape, to: Callable[[int], int | None]) -> int:
    """The run in an input of this shape, where dimension d of the output is dimension ``to(d)`` of the input."""
    found = rows.location()
    if found is None:
        return MIXED
    dim = to(found[0])
    if dim is None:
        return MIXED
    if dim < 0:
        return SHARED
    if shape[dim] != rows.shape[found[0]]:
        return SHARED if shape[dim] == 1 else MIXED
    return found[2] * math.prod(shape[dim + 1 :])


def as_signed(number: int) -> int:
    """A dimension as it was given; PyTorch shows negative ones as huge."""
    return number - 2**64 if number >= 2**63 else number


def dimensions(value: Any, ndim: int) -> set[int]:
    """One or several dimensions, counted from the front; all of them if nothing is said."""
    if value is None:
        return set(range(ndim))
    values = value if isinstance(value, (tuple, list)) else (value,)
    return {as_signed(d) % ndim for d in values} or set(range(ndim))


def elementwise(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Each element of the output reads the elements of its own place, of inputs that may be broadcast."""
    if shape == rows.shape:
        return rows.run
    more = len(rows.shape) - len(shape)
    if more < 0 or any(s not in (1, o) for s, o in zip(shape, rows.shape[more:], strict=True)):
        return MIXED
    return run_in_input(rows, shape, lambda dim: max(dim - more, -1))


def same_order(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Another shape, and the elements one after the other as before."""
    return rows.run if math.prod(shape) == math.prod(rows.shape) else MIXED


def along(name: str) -> Rule:
    """An operation along the dimensions saved as ``name``; output and input have the same dimensions."""

    def rule(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
        if len(shape) != len(rows.shape):
            return MIXED
        busy = dimensions(getattr(node, name), len(shape))
        return _mixed_if_shared(run_in_input(rows, shape, lambda dim: None if dim in busy else dim))

    return rule


def reduction(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """A sum, mean, maximum or norm over dimensions."""
    gone = dimensions(node._saved_dim, len(shape)) if shape else set()
    if node._saved_keepdim:
        return _mixed_if_shared(run_in_input(rows, shape, lambda dim: None if dim in gone else dim))
    left = [dim for dim in range(len(shape)) if dim not in gone]
    return _mixed_if_shared(run_in_input(rows, shape, left.__getitem__))


def slicing(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """A range along one dimension; all of it changes nothing."""
    if shape == rows.shape and node._saved_step == 1:
        return rows.run
    return _along_dim(node, rows, edge, shape)


def selection(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """One place of a dimension, which is gone afterwards."""
    gone = as_signed(node._saved_dim) % len(shape)
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: dim + (dim >= gone)))


def stacking(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Several tensors along a new dimension."""
    new = as_signed(node._saved_dim) % len(rows.shape)
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: None if dim == new else dim - (dim > new)))


def padding(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Constants around the last dimensions."""
    pairs = node._saved_pad
    busy = {len(shape) - 1 - place // 2 for place, size in enumerate(pairs) if as_signed(size)}
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: None if dim in busy else dim))


def leading(keep: int) -> Rule:
    """Only the first ``keep`` dimensions are the same in input and output, and independent of one another."""

    def rule(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
        return _mixed_if_shared(run_in_input(rows, shape, lambda dim: dim if dim < keep else None))

    return rule


def spatial(dims: int) -> Rule:
    """Pooling and the like, over the last ``dims`` dimensions."""

    def rule(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
        return leading(len(shape) - dims)(node, rows, edge, shape)

    return rule


def _mixed_if_shared(run: int) -> int:
    """Here a size of one where there were more is no broadcast."""
    return MIXED if run == SHARED else run


_along_dim = along("_saved_dim")


def permutation(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    order = [as_signed(d) % len(shape) for d in node._saved_dims]
    return _mixed_if_shared(run_in_input(rows, shape, order.__getitem__))


def transposition(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    one, other = as_signed(node._saved_dim0) % len(shape), as_signed(node._saved_dim1) % len(shape)
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: {one: other, other: one}.get(dim, dim)))


def matrix_transposition(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: len(shape) - 1 - dim))


def repetition(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Copies one after the other along dimensions."""
    found = rows.location()
    if found is None:
        return MIXED
    dim, _, inner = found
    place = dim - (len(rows.shape) - len(shape))
    size = shape[place] if place >= 0 else 1
    if inner % size == 0:
        return SHARED  # whole copies for each example
    return inner * math.prod(shape[place + 1 :]) if size % (inner * rows.examples) == 0 else MIXED


def windows(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """``x.unfold``: windows along a dimension become a dimension of their own, the last one."""
    busy = {as_signed(node._saved_dimension) % len(shape), len(shape)}
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: None if dim in busy else dim))


def matrix_product(first: int) -> Rule:
    """``a @ b`` of matrices, the inputs ``first`` and ``first + 1``; what comes before them is added."""

    def rule(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
        if edge < first:
            return elementwise(node, rows, edge, shape)
        own = edge - first  # rows of the output are rows of a, its columns are columns of b
        return run_in_input(rows, shape, lambda dim: dim if dim == own else -1)

    return rule


def batched_product(first: int) -> Rule:
    """Apply the rule of a matrix product to each of a batch of matrices."""

    def rule(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
        if edge < first:
            return elementwise(node, rows, edge, shape)
        own = edge - first + 1
        return run_in_input(rows, shape, lambda dim: dim if dim in (0, own) else -1)

    return rule


def matrix_times_vector(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    return run_in_input(rows, shape, lambda dim: dim) if edge == 0 else SHARED


def linear(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """``x @ w.T + b`` over the last dimension."""
    found = rows.location()
    if found is None or found[0] == len(rows.shape) - 1:
        return MIXED
    return run_in_input(rows, shape, lambda dim: dim) if edge == 0 else SHARED


def attention(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Queries, keys and values of shape (examples, heads, length, width), and a mask that is broadcast."""
    if edge == 3:
        more = len(rows.shape) - len(shape)
        return run_in_input(rows, shape, lambda dim: max(dim - more, -1) if dim < 2 else None)
    found = rows.location()
    if found is None or found[0] > 1 or (found[0] == 1 and shape[1] != rows.shape[1]):
        return MIXED
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: dim))


def layer(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """A layer on (examples, ...) with weights."""
    found = rows.location()
    if found is None or found[0] != 0:
        return MIXED
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: dim)) if edge == 0 else SHARED


def layer_norm(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    found = rows.location()
    if found is None or found[0] >= len(rows.shape) - len(node._saved_normalized_shape):
        return MIXED
    return rows.run if edge == 0 else SHARED


def batch_norm(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Channels are independent; in evaluation images are.

    There channels should be as well, but PyTorch mistakes the order of some gradients and mixes them.
    """
    found = rows.location()
    if found is None or found[0] != int(node._saved_training):
        return MIXED
    if edge == 0:
        return rows.run
    return SHARED if found[0] == 0 else _mixed_if_shared(run_in_input(rows, shape, lambda dim: 0))


def likelihood(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """The negative log-likelihood of scores (examples, classes, ...): classes are gone from the output."""
    if node._saved_reduction != 0 or edge != 0:
        return MIXED
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: dim + (dim >= 1)))


def aligned_sequences(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """The loss of a time-first sequence."""
    return _mixed_if_shared(run_in_input(rows, shape, lambda dim: 1)) if len(shape) == 3 else MIXED


def lookup(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """A table that is read at the indices of all examples."""
    return SHARED


def indexing(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """``x[:, i]``, or ``x[arange(examples), i]``, for the indices of this very batch."""
    indices = node._saved_indices
    used = [dim for dim, index in enumerate(indices) if index is not None]
    if used != list(range(used[0], used[-1] + 1)) or any(indices[dim].dtype == torch.bool for dim in used):
        return MIXED
    wide = np.broadcast_shapes(*(tuple(indices[dim].shape) for dim in used))
    first, after = used[0], used[0] + len(wide)
    found = rows.location()
    if found is None:
        return MIXED
    if not first <= found[0] < after:
        more = len(used) - len(wide)
        return _mixed_if_shared(run_in_input(rows, shape, lambda dim: dim if dim < first else dim + more))
    if found[1:] != (1, 1):
        return MIXED
    own = torch.arange(rows.examples).view(-1, *(1,) * (after - 1 - found[0])).expand(wide)
    for dim in used:
        if shape[dim] == rows.examples and torch.equal(indices[dim].cpu().expand(wide), own):
            return math.prod(shape[dim + 1 :])
    return MIXED


def real_pairs(node: Any, rows: RowLayout, edge: int, shape: Shape) -> int:
    """Complex numbers as pairs, or pairs as complex numbers."""
    return run_in_input(rows, shape, lambda dim: dim if dim < min(len(shape), len(rows.shape)) else None)


def _rules_by_name() -> dict[str, Rule]:
    names: dict[Rule, str] = {
        elementwise: """
            Abs Acos Acosh Add Addcdiv Addcmul Asin Asinh Atan Atanh Atan2 Celu Clamp ClampMax
            ClampMin Clone Conj Copysign Cos Cosh Deg2Rad Digamma Div Elu Erf Erfc Erfinv Exp Exp2 Expand Expm1
            Floor Ceil Round Trunc Frac Fmod Fmax Fmin Gelu Hardshrink Hardsigmoid Hardswish Hypot I0
            Sgn Hardtanh LeakyRelu Lerp Lgamma Log Log10 Log1P Log2 LogSigmoid Logaddexp Logaddexp2 Logit MaskedFill
            Maximum Minimum Mish Mul NanToNum NativeDropout Neg Pow Polygamma PreluKernel Rad2Deg Reciprocal Relu
            Remainder Rsqrt Rsub Selu Sigmoid Sign Silu Sin Sinc Sinh Softplus Softshrink Softsign Sqrt Square Sub Tan
            Tanh Threshold ToCopy Tril Triu Where Xlogy Alias Contiguous SpecialEntr SpecialXlog1Py
            SpecialLogNdtr SpecialNdtr SpecialErfcx BinaryCrossEntropy BinaryCrossEntropyWithLogits HuberLoss MseLoss
            SmoothL1Loss SoftMarginLoss RreluWithNoise
        """,
        same_order: "View UnsafeView ReshapeAlias ReshapeCopy ViewCopy Unsqueeze Squeeze UnsafeViewCopy",
        along("_saved_dim"): """
            Cat Cumsum Cumprod Cummax Cummin Logcumsumexp Gather Glu IndexAdd IndexCopy IndexFill IndexSelect
            LogSoftmax Narrow SafeSoftmax Scatter ScatterAdd ScatterReduce Softmax Sort Split SplitWithSizes Topk
            FftC2C FftR2C FftC2R
        """,
        along("_saved_dims"): "Flip Roll",
        reduction: """
            Sum Mean Amax Amin Max Min Logsumexp Prod Std Var LinalgVectorNorm Norm Median Nanmedian Nansum Aminmax
            Mode Kthvalue
        """,
        slicing: "Slice",
        selection: "Select Unbind",
        stacking: "Stack",
        padding: "ConstantPadNd",
        leading(1): "Im2Col Col2Im MultiMarginLoss",
        spatial(1): "ReflectionPad1D ReplicationPad1D UpsampleNearest1D UpsampleLinear1D AdaptiveMaxPool1D",
        spatial(2): """
            MaxPool2DWithIndices AvgPool2D AdaptiveAvgPool2D AdaptiveMaxPool2D FractionalMaxPool2D ReflectionPad2D
            ReplicationPad2D UpsampleNearest2D UpsampleBilinear2D UpsampleBicubic2D UpsampleNearestExact2D
            UpsampleBilinear2DAa UpsampleBicubic2DAa
        """,
        spatial(3): """
            MaxPool3DWithIndices AvgPool3D AdaptiveAvgPool3D AdaptiveMaxPool3D ReflectionPad3D ReplicationPad3D
            UpsampleNearest3D UpsampleTrilinear3D PixelShuffle PixelUnshuffle
        """,
        permutation: "Permute",
        transposition: "Transpose",
        matrix_transposition: "T",
        repetition: "Repeat",
        windows: "Unfold",
        matrix_product(0): "Mm",
        matrix_product(1): "Addmm",
        batched_product(0): "Bmm",
        batched_product(1): "Baddbmm",
        matrix_times_vector: "Mv",
        linear: "Linear",
        attention: """
            ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention ScaledDotProductEfficientAttention
            ScaledDotProductCudnnAttention ScaledDotProductFusedAttentionOverrideable
        """,
        layer: "Convolution ConvolutionOverrideable NativeGroupNorm",
        layer_norm: "NativeLayerNorm FusedRmsNorm",
        batch_norm: "NativeBatchNorm CudnnBatchNorm",
        likelihood: "NllLoss NllLoss2D",
        aligned_sequences: "CtcLoss",
        lookup: "Embedding",
        indexing: "Index",
        real_pairs: "ViewAsReal ViewAsComplex",
    }
    return {name: rule for rule, listed in names.items() for name in listed.split()}


_RULES = _rules_by_name()
_OWN: dict[type, Rule] = {}


def add_rule(function: type[torch.autograd.Function], rule: Rule) -> None:
    """Say what an autograd function of one's own does to the rows of examples."""
    _OWN[function._backward_cls] = rule


@cache
def rule_of(kind: type) -> Rule | None:
    """The rule for a type of nodes. Functions written in Python may have any name, so theirs is not asked."""
    if issubclass(kind, torch._C._FunctionBase):
        return _OWN.get(kind)
    name, backward, _number = kind.__name__.partition("Backward")
    return _RULES.get(name) if backward else None


_READING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((name for name, rule in _RULES.items() if rule in (elementwise, same_order)), ()),
    "T": (),
    "Mm": (),
    "Addmm": ("_saved_alpha", "_saved_beta"),
    "LogSoftmax": ("_saved_dim",),
    "Softmax": ("_saved_dim",),
    "NllLoss": ("_saved_reduction",),
    "Sum": ("_saved_dim", "_saved_keepdim"),
    "Mean": ("_saved_dim", "_saved_keepdim"),
}


@cache
def numbers_read(kind: type) -> tuple[str, ...] | None:
    """All that the rule for a type of nodes reads of a node besides shapes; None if it is not known, or no number."""
    if issubclass(kind, torch._C._FunctionBase):
        return None
    name, backward, _number = kind.__name__.partition("Backward")
    names = _READING.get(name) if backward else None
    return None if names is None else tuple(each for each in names if hasattr(kind, each))
