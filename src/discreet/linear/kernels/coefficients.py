"""From scores to clipped residuals, for a block of rows at once.

A row's gradient is its residual times the row. It is clipped by moving the residual into
[-limit, limit], where the limit is the clip norm over the row's norm, rounded down by more than all roundings
to come. For softmax the residual is a vector, which is scaled down to a norm of at most the limit.

Every block has :data:`BLOCK` rows, the missing ones with a limit of 0, so that the compiler's vector code has
no remainder: a row gets the same bits wherever it stands.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

Array = NDArray[Any]
Function = TypeVar("Function")

BLOCK = 32

LOGISTIC, SQUARED, HUBER, POISSON, HINGE, GIVEN = range(6)
CODES = {"logistic": LOGISTIC, "squared": SQUARED, "huber": HUBER, "poisson": POISSON, "hinge": HINGE}

_UNIT = 2.0**-52
_FUSED = {"contract", "nsz"}
f32, i32, i64 = np.float32, np.int32, np.int64


def compiled(function: Function, **options: Any) -> Function:
    """The function as machine code, compiled when first called and kept on disk; it releases the GIL."""
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        result: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory can be written to: compile anew in every process
        result = numba.njit(**options)(function)
    return result


def bare(function: Function, **options: Any) -> Function:
    """The same for loops that make no array: owners of arrays are not counted, at the cost of the arithmetic."""
    return compiled(function, _nrt=False, **options)


def inlined(function: Function) -> Function:
    """The same, put into its callers: a call would copy the description of every array."""
    return bare(function, inline="always")


def vectorised(function: Function) -> Function:
    """The same, with fused multiply-add; but no reordering, and NaN stays NaN."""
    return bare(function, fastmath=_FUSED)


def reordered(function: Function) -> Function:
    """The same, where sums within a row may be taken in another order; NaN stays NaN."""
    return compiled(function, fastmath=_FUSED | {"reassoc"})


class OneScore(NamedTuple):
    """A loss of one score, for machine code: which one, and its parameter."""

    code: int
    parameter: float


class ManyScores(NamedTuple):
    """Softmax. A type of its own, because it takes long to compile and few need it."""

    classes: int


class Step(NamedTuple):
    """What a kernel needs to know beside the data; all of it public.

    ``weights`` and ``offset`` are the model; ``clip`` is the clip norm less :func:`clip_margin`, and limits
    outside of ``least`` and ``most`` are not used.
    """

    loss: OneScore | ManyScores
    weights: Array
    offsets: Array
    constant: float
    clip: float
    least: float
    most: float


class Data(NamedTuple):
    """The records. ``matrix`` is an array or (data, indices, indptr); no ``weights`` mean weights of 1."""

    matrix: Any
    targets: Array
    weights: Array
    norms: Array


@inlined
def fill_block(
    step: Step, data: Data, first: int, count: int, targets: Array, limits: Array, weights: Array
) -> bool:
    """What is known of the rows ``first <= i < first + count``; tells whether all of them count.

    A row's limit is the most that its residual may be. Weights are moved into [0, 1], NaN to 0.

    Guarantee: limit * norm <= clip norm, exactly, with room for the roundings that :func:`clip_margin` names.
    """
    none, full = limits.dtype.type(0), limits.dtype.type(1)
    begin = np.uint64(first)  # a number that may be negative would be looked at each time
    for r in range(count):
        limit = step.clip / data.norms[begin + np.uint64(r)]
        limit = limit if limit >= step.least else 0.0  # for norms of infinity or NaN, too
        limits[r] = limit if limit < step.most else step.most
    for r in range(count):
        targets[r] = data.targets[begin + np.uint64(r)]
    for r in range(count, BLOCK):
        limits[r] = none
    for r in range(count if data.weights.size else 0):
        weight = data.weights[begin + np.uint64(r)]
        weights[r] = min(weight if weight > none else none, full)
    missing = 0
    for r in range(count):
        missing += limits[r] == none
    return missing == 0


class Spare(NamedTuple):
    """Memory for what softmax has to know of a block between its loops."""

    top: Array
    total: Array
    squares: Array
    factors: Array


def spare_for(dtype: Any) -> Spare:
    return Spare(np.zeros(BLOCK, dtype), np.zeros(BLOCK, dtype), np.zeros(BLOCK), np.zeros(BLOCK))


def clip_residuals(
    loss: OneScore | ManyScores, scores: Array, targets: Array, limits: Array, weights: Array, spare: Spare
) -> None:
    """Overwrite the scores of a block, of shape (outputs, BLOCK), with clipped and weighted residuals.

    Guarantee: a row's residuals have a norm of at most its limit, exactly but for the roundings that
    :func:`clip_margin` names; a score or a target of NaN gives 0.
    """
    raise NotImplementedError("for compiled code only")


@overload(clip_residuals)
def _clip_residuals_for(loss: Any, scores: Any, targets: Any, limits: Any, weights: Any, spare: Any) -> Any:
    return _clip_many if loss.instance_class is ManyScores else _clip_one


def _clip_one(loss: Any, scores: Any, targets: Any, limits: Any, weights: Any, spare: Any) -> Any:
    replace_by_residuals(loss.code, scores[0], targets, scores.dtype.type(loss.parameter))
    _clip(scores[0], limits, weights)


def _clip_many(loss: Any, scores: Any, targets: Any, limits: Any, weights: Any, spare: Any) -> Any:
    _softmax(scores, targets, limits, weights, spare)


@bare
def replace_by_residuals(code: int, scores: Array, targets: Array, parameter: Any) -> None:
    if code == LOGISTIC:
        _logistic(scores, targets)
    elif code == POISSON:
        _poisson(scores, targets)
    elif code == HINGE:
        _hinge(scores, targets, parameter)
    elif code == GIVEN:
        for r in range(BLOCK):
            scores[r] = targets[r]
    else:
        _squared(scores, targets)
        if code == HUBER:
            _clamp(scores, parameter)


@vectorised
def _clip(residuals: Array, limits: Array, weights: Array) -> None:
    none = residuals.dtype.type(0)
    for r in range(BLOCK):
        residual = min(max(residuals[r], -limits[r]), limits[r])
        residuals[r] = residual * weights[r] if residuals[r] == residuals[r] else none


@vectorised
def _clamp(residuals: Array, threshold: Any) -> None:
    for r in range(BLOCK):
        clamped = min(max(residuals[r], -threshold), threshold)
        residuals[r] = clamped if residuals[r] == residuals[r] else residuals[r]


@vectorised
def _logistic(scores: Array, targets: Array) -> None:
    none, one = scores.dtype.type(0), scores.dtype.type(1)
    for r in range(BLOCK):
        u, y = scores[r], targets[r]
        residual = one / (one + _exp(-u)) - y
        residual = residual if (y == none) | (y == one) else none
        scores[r] = residual if u == u else u


@vectorised
def _hinge(scores: Array, targets: Array, smoothness: Any) -> None:
    none, one, two = scores.dtype.type(0), scores.dtype.type(1), scores.dtype.type(2)
    for r in range(BLOCK):
        u, y = scores[r], targets[r]
        sign = one - two * y
        slope = min(max((one + smoothness + sign * u) / (two * smoothness), none), one)
        residual = sign * slope if (y == none) | (y == one) else none
        scores[r] = residual if u == u else u


@vectorised
def _squared(scores: Array, targets: Array) -> None:
    none = scores.dtype.type(0)
    for r in range(BLOCK):
        y = targets[r]
        scores[r] = scores[r] - y if y - y == none else none


@vectorised
def _poisson(scores: Array, targets: Array) -> None:
    none = scores.dtype.type(0)
    for r in range(BLOCK):
        u, y = scores[r], targets[r]
        residual = _exp(u) - y if y >= none and y - y == none else none
        scores[r] = residual if u == u else u


@vectorised
def _softmax(scores: Array, targets: Array, limits: Array, weights: Array, spare: Spare) -> None:
    """Loops over classes outside and rows inside, so that every row is a lane of a vector."""
    classes, kind = scores.shape[0], scores.dtype.type
    top, total, squares, factors = spare.top, spare.total, spare.squares, spare.factors
    for r in range(BLOCK):
        top[r], total[r], squares[r] = scores[0, r], kind(0), 0.0
    for k in range(1, classes):
        for r in range(BLOCK):
            top[r] = max(top[r], scores[k, r])
    for k in range(classes):
        for r in range(BLOCK):
            u = scores[k, r] - top[r]  # NaN if a score is NaN or infinite
            power = _exp(u)
            scores[k, r] = power if u == u else u
            total[r] += scores[k, r]
    for k in range(classes):
        own = kind(k)
        for r in range(BLOCK):
            residual = scores[k, r] / total[r] - (kind(1) if targets[r] == own else kind(0))
            scores[k, r] = residual
            squares[r] += np.float64(residual) * np.float64(residual)
    last = kind(classes - 1)
    for r in range(BLOCK):
        y = targets[r]
        norm = math.sqrt(squares[r]) * (1.0 + (classes + 8) * _UNIT) + classes * 2.0**-510
        factor = limits[r] / norm if norm > limits[r] else 1.0
        known = y >= kind(0) and y <= last and y == np.floor(y)
        factors[r] = factor * weights[r] if known and norm == norm and limits[r] > kind(0) else 0.0
    for k in range(classes):
        for r in range(BLOCK):
            residual = kind(np.float64(scores[k, r]) * factors[r])
            scores[k, r] = residual if factors[r] > 0.0 else kind(0)


def _exp(x: Any) -> Any:
    """e**x, x moved into the range where the result is an ordinary number; for compiled code only."""
    return np.exp(x)


@overload(_exp, jit_options={"fastmath": {"contract", "nsz"}, "error_model": "numpy"})
def _exp_for(x: Any) -> Any:
    return _exp32 if x == numba.types.float32 else _exp64


def _exp32(x: Any) -> Any:
    x = min(max(x, f32(-87.0)), f32(87.0))
    power = np.floor(x * f32(1.44269504) + f32(0.5))
    f = (x - power * f32(0.693359375)) - power * f32(-2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * f + f32(1.3981999507e-3)
    p = p * f + f32(8.3334519073e-3)
    p = p * f + f32(4.1665795894e-2)
    p = p * f + f32(1.6666665459e-1)
    p = p * f + f32(5.0000001201e-1)
    p = p * f * f + f + f32(1)
    return p * i32((i32(power) + i32(127)) << i32(23)).view(np.float32)


def _exp64(x: Any) -> Any:
    x = min(max(x, -700.0), 700.0)
    power = np.floor(x * 1.4426950408889634 + 0.5)
    f = (x - power * 6.93147180369123816490e-01) - power * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0  # the power series, up to f**13 / 13!
    p = p * f + 1.0 / 479001600.0
    p = p * f + 1.0 / 39916800.0
    p = p * f + 1.0 / 3628800.0
    p = p * f + 1.0 / 362880.0
    p = p * f + 1.0 / 40320.0
    p = p * f + 1.0 / 5040.0
    p = p * f + 1.0 / 720.0
    p = p * f + 1.0 / 120.0
    p = p * f + 1.0 / 24.0
    p = p * f + 1.0 / 6.0
    p = p * f + 0.5
    p = (p * f + 1.0) * f + 1.0
    return p * i64((i64(i32(power)) + i64(1023)) << i64(52)).view(np.float64)
