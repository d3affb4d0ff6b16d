"""From scores to clipped residuals, for a block of rows at once.

A row's gradient is its residual times the row. It is clipped by moving the residual into
[-limit, limit], where the limit is the clip norm over the row's norm, rounded down by more than all roundings
to come. For softmax the residual is a vector, which is scaled down to a norm of at most the limit.

Residuals are taken for a multiple of :data:`LANES` rows, missing ones with a limit of 0, so that the compiler's
vector code has no remainder: a row gets the same bits wherever it stands.
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

LANES = 16
"""Rows that are a vector for the compiler; what is known of a block has room for whole ones."""

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


class RecordArrays(NamedTuple):
    """The records. ``matrix`` is an array or (data, indices, indptr); no ``weights`` mean weights of 1."""

    matrix: Any
    targets: Array
    weights: Array
    norms: Array


@inlined
def fill_block(
    step: Step, data: RecordArrays, first: int, count: int, targets: Array, limits: Array, weights: Array
) -> bool:
    """What is known of the rows ``first <= i < first + count``; tells whether all of them count.

    A row's limit is the most that its residual may be, and 0 for those beyond. Weights are moved into [0, 1], NaN
    to 0.

    Guarantee: limit * norm <= clip norm, exactly, with room for the roundings that :func:`clip_margin` names.
    """
    none, full = limits.dtype.type(0), limits.dtype.type(1)
    begin = np.uint64(first)  # a number that may be negative would be looked at each time
    missing = np.int32(0)
    for r in range(count):
        limit = step.clip / data.norms[begin + np.uint64(r)]
        limit = limit if limit >= step.least else 0.0  # for norms of infinity or NaN, too
        limits[r] = limit if limit < step.most else step.most
        missing += np.int32(limit == 0.0)
    for r in range(count):
        targets[r] = data.targets[begin + np.uint64(r)]
    if data.weights.size:
        for r in range(count):
            weight = data.weights[begin + np.uint64(r)]
            weights[r] = min(weight if weight > none else none, full)
    if count < limits.size:
        limits[count:] = none
    return bool(missing == 0)


class Spare(NamedTuple):
    """Memory for what softmax has to know of some rows between its loops."""

    top: Array
    total: Array
    squares: Array
    factors: Array


def spare_for(dtype: Any) -> Spare:
    return Spare(np.zeros(LANES, dtype), np.zeros(LANES, dtype), np.zeros(LANES), np.zeros(LANES))


def clip_residuals(
    loss: OneScore | ManyScores, scores: Array, targets: Array, limits: Array, weights: Array, spare: Spare
) -> None:
    """Overwrite the scores of a block, of shape (outputs, rows), with clipped and weighted residuals.

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
    for first in range(0, scores.shape[1], LANES):
        _softmax(scores, targets, limits, weights, spare, np.uint64(first))


@bare
def replace_by_residuals(code: int, scores: Array, targets: Array, parameter: Any) -> None:
    if code == LOGISTIC:
        _logistic(scores, targets)
    elif code == POISSON:
        _poisson(scores, targets)
    elif code == HINGE:
        _hinge(scores, targets, parameter)
    elif code == GIVEN:
        for r in range(scores.size):
            scores[r] = targets[r]
    else:
        _squared(scores, targets)
        if code == HUBER:
            _clamp(scores, parameter)


@vectorised
def _clip(residuals: Array, limits: Array, weights: Array) -> None:
    none = residuals.dtype.type(0)
    for r in range(residuals.size):
        residual, limit = residuals[r], limits[r]
        clipped = min(max(residual, -limit), limit) * weights[r]
        residuals[r] = clipped if residual == residual else none


@vectorised
def _clamp(residuals: Array, threshold: Any) -> None:
    for r in range(residuals.size):
        clamped = min(max(residuals[r], -threshold), threshold)
        residuals[r] = clamped if residuals[r] == residuals[r] else residuals[r]


@vectorised
def _logistic(scores: Array, targets: Array) -> None:
    none, one = scores.dtype.type(0), scores.dtype.type(1)
    for first in range(0, scores.size, LANES):
        for r in range(LANES):
            at = np.uint64(first) + np.uint64(r)
            u, y = scores[at], targets[at]
            residual = one / (one + _exp(-u)) - y
            residual = residual if (y == none) | (y == one) else none
            scores[at] = residual if u == u else u


@vectorised
def _hinge(scores: Array, targets: Array, smoothness: Any) -> None:
    none, one, two = scores.dtype.type(0), scores.dtype.type(1), scores.dtype.type(2)
    for first in range(0, scores.size, LANES):
        for r in range(LANES):
            at = np.uint64(first) + np.uint64(r)
            u, y = scores[at], targets[at]
            sign = one - two * y
            slope = min(max((one + smoothness + sign * u) / (two * smoothness), none), one)
            residual = sign * slope if (y == none) | (y == one) else none
            scores[at] = residual if u == u else u


@vectorised
def _squared(scores: Array, targets: Array) -> None:
    none = scores.dtype.type(0)
    for first in range(0, scores.size, LANES):
        for r in range(LANES):
            at = np.uint64(first) + np.uint64(r)
            y = targets[at]
            scores[at] = scores[at] - y if y - y == none else none


@vectorised
def _poisson(scores: Array, targets: Array) -> None:
    none = scores.dtype.type(0)
    for first in range(0, scores.size, LANES):
        for r in range(LANES):
            at = np.uint64(first) + np.uint64(r)
            u, y = scores[at], targets[at]
            residual = _exp(u) - y if y >= none and y - y == none else none
            scores[at] = residual if u == u else u


@vectorised
def _softmax(scores: Array, targets: Array, limits: Array, weights: Array, spare: Spare, first: Any) -> None:
    """LANES rows from ``first`` on. Loops over classes outside and rows inside: every row is a lane of a vector."""
    classes, kind = scores.shape[0], scores.dtype.type
    top, total, squares, factors = spare.top, spare.total, spare.squares, spare.factors
    for r in range(LANES):
        top[r], total[r], squares[r] = scores[0, first + np.uint64(r)], kind(0), 0.0
    for k in range(1, classes):
        for r in range(LANES):
            top[r] = max(top[r], scores[k, first + np.uint64(r)])
    for k in range(classes):
        for r in range(LANES):
            at = first + np.uint64(r)
            u = scores[k, at] - top[r]  # NaN if a score is NaN or infinite
            power = _exp(u)
            scores[k, at] = power if u == u else u
            total[r] += scores[k, at]
    for k in range(classes):
        own = kind(k)
        for r in range(LANES):
            at = first + np.uint64(r)
            residual = scores[k, at] / total[r] - (kind(1) if targets[at] == own else kind(0))
            scores[k, at] = residual
            squares[r] += np.float64(residual) * np.float64(residual)
    last = kind(classes - 1)
    for r in range(LANES):
        at = first + np.uint64(r)
        y, limit = targets[at], limits[at]
        norm = math.sqrt(squares[r]) * (1.0 + (classes + 8) * _UNIT) + classes * 2.0**-510
        factor = limit / norm if norm > limit else 1.0
        known = y >= kind(0) and y <= last and y == np.floor(y)
        factors[r] = factor * weights[at] if known and norm == norm and limit > kind(0) else 0.0
    for k in range(classes):
        for r in range(LANES):
            at = first + np.uint64(r)
            residual = kind(np.float64(scores[k, at]) * factors[r])
            scores[k, at] = residual if factors[r] > 0.0 else kind(0)


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
