"""Per-example clipping: what one record may add, made true in floating point.

Noise hides a record only if its contribution to the sum is at most ``clip_norm``. "At most" is meant exactly
here, of the rational numbers that the floats stand for: norms are bounded from above and factors rounded down
by more than all rounding errors together.

>>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0]]), clip_norm=2.5).round(12)
array([[1.5, 2. ],
       [0.3, 0.4],
       [0. , 0. ]])

| row                       | becomes                                                               |
|---------------------------|-----------------------------------------------------------------------|
| norm surely at most C     | itself, bit for bit (the zero row too)                                |
| longer                    | the same direction; norm at most C, short of it by a few roundings    |
| too long for a float norm | as above: 1e300 in every coordinate is nothing special                |
| NaN or infinity in it     | zero: no error, warning, log or count, since each of them would tell  |

An engine that never holds the rows of a batch (one backward pass, ghost norms) needs factors only: the rules
:class:`Flat`, :class:`PerBlock` and :class:`Normalised` turn norms into factors and know what they bound.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.core.compiler import njit
from discreet.errors import InvalidParameter, one_of, probability, real
from discreet.events import Gaussian

# Within these limits the square of a clip norm and all that is derived from it are ordinary float64 numbers.
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-100, 1e100

UNIT = 2.0**-52  # twice the rounding error of float64: the bounds hold in every rounding mode
_SAFE_NORM = 2.0**450
_SHRINK = 2.0**-600  # an exact factor after which the square of every float64 is finite
_MOST_GROWTH = 2.0**-20  # of the clip norm: shorter gradients are made no longer by a rule of a user's own
LEAST_FACTOR = 2.0**-1000  # float64 numbers below it lose digits and may round up


def clip_rows(
    rows: ArrayLike, clip_norm: float, norm: str = "l2", out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Scale each row down to a norm of at most ``clip_norm``; a row with NaN or infinity becomes 0.

    ``rows`` has one record per row, shape ``(n, d)``, or one number per record, shape ``(n,)``. Floats keep
    their type, integers and booleans become float64. ``out`` (it may be ``rows``) saves the allocation.

    Guarantee: each row of the result, read as exact rational numbers, has an l2 (or l1) norm of at most
    ``clip_norm`` and depends on its own input row only.
    """
    clip_norm = clip_norm_of("clip_norm", clip_norm)
    one_of("norm", norm, ("l1", "l2"))
    source = _as_floats(rows)
    out = _output_like(source, out)
    if source.ndim == 1 or source.shape[1] == 1:
        return _clamp(source, clip_norm, out)
    if source.dtype != np.float16:
        _clip(source, out, clip_norm, *_errors(source, norm), norm == "l2")
        return out
    wide = source.astype(np.float32)
    _clip(wide, wide, clip_norm, *_errors(wide, norm), norm == "l2")
    return _narrow_toward_zero(wide, out)


def scale_factors(norms: ArrayLike, clip_norm: Any, error: float = 1e-12) -> NDArray[np.float64]:
    """The factor in [0, 1] that brings each norm down to ``clip_norm``; 0 for NaN, infinity and negatives.

    ``error`` is the largest relative error of the norms as computed, plus that of the product to come: the
    default fits float64, engines in float32 pass about 1e-6. A factor of 0 does not clean a row that holds
    NaN: put zeros there instead of multiplying. ``clip_norm`` may be an array that broadcasts with ``norms``.

    Guarantee: ``factor * norm * (1 + error) <= clip_norm``, exactly.
    """
    upper = _upper(norms, error)
    return np.where(upper <= clip_norm, 1.0, _divide_down(clip_norm, np.maximum(upper, clip_norm)))


class ClipRule(ABC):
    """By which factor the gradient of a record is multiplied: ``clip_norm`` bounds what one record adds to the sum.

    A rule of your own defines ``clip_norm`` and :meth:`wanted`. Guarantee: whatever it wants, no record adds more.

    >>> @dataclass(frozen=True)
    ... class Soft(ClipRule):
    ...     clip_norm: float
    ...
    ...     def wanted(self, norms):
    ...         return self.clip_norm / np.hypot(norms, self.clip_norm)
    >>> Soft(1.0).factors([0.0, 1.0, 100.0]).round(4)
    array([1.    , 0.7071, 0.01  ])
    """

    clip_norm: float

    def wanted(self, norms: NDArray[np.float64]) -> ArrayLike:
        """The factors that the rule would like for gradients of these norms, one for each."""
        raise NotImplementedError(f"{type(self).__name__} has to say which factors it wants()")

    def factors(self, norms: ArrayLike, error: float = 1e-12) -> NDArray[np.float64]:
        """The factors: those wanted, or as much less as the clip norm demands. ``error`` is that of the norms."""
        limit, upper = clip_norm_of("clip_norm", self.clip_norm), _upper(norms, error)
        wanted = np.asarray(self.wanted(np.where(np.isfinite(upper), upper, 0.0)), dtype=np.float64)
        if wanted.shape != upper.shape or not (np.isfinite(wanted) & (wanted >= 0)).all():
            remedy = "must want one factor for each norm, finite and not below 0."
            raise InvalidParameter("clipping", type(self).__name__, remedy)
        return np.minimum(wanted, _divide_down(limit, np.maximum(upper, limit * _MOST_GROWTH)))


@dataclass(frozen=True)
class Flat(ClipRule):
    """One norm over the whole gradient of a record: ``g * min(1, clip_norm / |g|)``."""

    clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", clip_norm_of("clip_norm", self.clip_norm))

    def factors(self, norms: ArrayLike, error: float = 1e-12) -> NDArray[np.float64]:
        """Factors of the same shape as ``norms``; see :func:`scale_factors`, of which this is the compiled twin."""
        values = np.asarray(norms, dtype=np.float64)
        return flat_factors(values.reshape(-1), self.clip_norm, upper_bound_of(error)).reshape(values.shape)


@dataclass(frozen=True)
class PerBlock(ClipRule):
    """One norm for each block of parameters (a layer, say), each clipped on its own.

    >>> PerBlock((3.0, 4.0)).factors([[6.0, 1.0]]).round(9)
    array([[0.5, 1. ]])
    """

    clip_norms: tuple[float, ...]

    def __post_init__(self) -> None:
        limits = tuple(clip_norm_of(f"clip_norms[{k}]", limit) for k, limit in enumerate(self.clip_norms))
        if not limits:
            raise InvalidParameter("clip_norms", limits, "must hold the clip norm of at least one block.")
        object.__setattr__(self, "clip_norms", limits)

    @property
    def clip_norm(self) -> float:  # type: ignore[override]
        """Bound on the norm of a whole clipped gradient: the root of the sum of squares, rounded up."""
        return math.hypot(*self.clip_norms) * (1 + 4 * UNIT)

    def factors(self, norms: ArrayLike, error: float = 1e-12) -> NDArray[np.float64]:
        """Factors for norms of shape ``(n, blocks)``; see :func:`scale_factors`."""
        shape, blocks = np.shape(norms), len(self.clip_norms)
        if not shape or shape[-1] != blocks:
            raise InvalidParameter("norms.shape", shape, f"must end in {blocks}, the number of blocks.")
        return scale_factors(norms, np.array(self.clip_norms), error)


@dataclass(frozen=True)
class Normalised(ClipRule):
    """Every gradient brought to nearly the same length: ``g * clip_norm / (|g| + stabiliser)``.

    Automatic clipping (Bu, Wang, Zha, Karypis 2023): clip norm and learning rate become one knob. The
    stabiliser, in units of the gradient's norm, keeps small gradients small.
    """

    clip_norm: float
    stabiliser: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", clip_norm_of("clip_norm", self.clip_norm))
        remedy = "Without it the smallest gradient would count as much as the largest; 0.01 is usual."
        value = real("stabiliser", self.stabiliser, at_least=SMALLEST_CLIP_NORM, remedy=remedy)
        object.__setattr__(self, "stabiliser", value)

    def factors(self, norms: ArrayLike, error: float = 1e-12) -> NDArray[np.float64]:
        """Factors as guaranteed by :func:`scale_factors`, except that they may exceed 1."""
        return _divide_down(self.clip_norm, _upper(norms, error) + self.stabiliser)


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip norm that follows a quantile of the gradients' norms, and pays for looking.

    Beside the clipped sum each step releases how many norms were within the clip norm (Andrew, Thakkar,
    McMahan, Ramaswamy 2021). Counted as +1/2 or -1/2, a record moves that number by 1/2 at most, so the two
    are one Gaussian release, the event :meth:`combined`. The step of an engine::

        released = add_noise(BoundedSum(adaptive.count(norms), clip_norm=0.5), adaptive.count_event)
        adaptive = adaptive.updated(released)

    ``count_noise`` is the standard deviation of the noise on the count; a twentieth of the batch costs
    little. ``batch_size`` is the declared expected batch size, never the size of a batch.
    """

    clip_norm: float
    batch_size: float
    count_noise: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", clip_norm_of("clip_norm", self.clip_norm))
        for name in ("batch_size", "count_noise", "learning_rate"):
            object.__setattr__(self, name, real(name, getattr(self, name), above=0))
        object.__setattr__(self, "quantile", probability("quantile", self.quantile))

    @property
    def rule(self) -> Flat:
        """The rule for the current step."""
        return Flat(self.clip_norm)

    @property
    def count_event(self) -> Gaussian:
        """The count's noise in units of its clip norm, 1/2."""
        return Gaussian(2 * self.count_noise)

    def count(self, norms: ArrayLike) -> float:
        """Half of: norms within the clip norm, less those above it or NaN. One record moves it by 1/2."""
        values = np.asarray(norms, dtype=np.float64)
        return int(np.count_nonzero(values <= self.clip_norm)) - values.size / 2

    def combined(self, of_sum: Gaussian) -> Gaussian:
        """The event of one step that releases the clipped sum with ``of_sum`` and the noisy count.

        Guarantee: the two releases on the same batch cost at most this event on it, however it is drawn.
        """
        noise = real("noise_multiplier", of_sum.noise_multiplier, above=0)
        signal = math.hypot(1 / noise, 1 / self.count_event.noise_multiplier)
        return Gaussian((1 - 8 * UNIT) / signal)

    def of_sum(self, combined: Gaussian) -> Gaussian:
        """The inverse of :meth:`combined`, rounded up: the sum's noise when a step may cost ``combined``."""
        ratio = combined.noise_multiplier / self.count_event.noise_multiplier
        if not ratio < 1:
            needed = f"must be above {combined.noise_multiplier / 2:g}, or the count alone costs too much."
            raise InvalidParameter("count_noise", self.count_noise, needed)
        rest = (1 - ratio) * (1 + ratio)
        return Gaussian(combined.noise_multiplier / math.sqrt(rest) * (1 + 16 * UNIT / rest))

    def updated(self, released: float) -> AdaptiveClip:
        """The state for the next step, from the count as released with its noise."""
        share = real("released", released) / self.batch_size + 0.5
        # No clip norm survives a change by exp(500), so cutting there only avoids the overflow.
        change = min(max(self.learning_rate * (self.quantile - share), -500.0), 500.0)
        moved = self.clip_norm * math.exp(change)
        return replace(self, clip_norm=min(max(moved, SMALLEST_CLIP_NORM), LARGEST_CLIP_NORM))


def clip_norm_of(name: str, value: object) -> float:
    """Return ``value`` as a float if it can be a clip norm, or raise :class:`InvalidParameter`."""
    remedy = "It is public, never taken from the data, and bounds what one record adds to the sum."
    return real(name, value, at_least=SMALLEST_CLIP_NORM, at_most=LARGEST_CLIP_NORM, remedy=remedy)


def upper_bound_of(error: float) -> float:
    """What makes an upper bound of a norm that is off by ``error`` at most."""
    return 1 + real("error", error, at_least=0, at_most=1) + 4 * UNIT


def _upper(norms: ArrayLike, error: float) -> NDArray[np.float64]:
    """Upper bounds of the true norms; infinity where there is no sensible norm."""
    values = np.asarray(norms, dtype=np.float64)
    relative = upper_bound_of(error)
    with np.errstate(all="ignore"):  # whatever numpy was told to raise: a norm would decide
        return np.where(values >= 0, values * relative, math.inf)


def _divide_down(clip_norm: Any, upper: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        factors = clip_norm / upper * (1 - 4 * UNIT)
    return np.where(factors >= LEAST_FACTOR, factors, 0.0)


def _as_floats(rows: ArrayLike) -> NDArray[Any]:
    """Contiguous floats, one or two dimensions. Refusals depend on type and shape alone and show no data."""
    try:
        array = np.asarray(rows)
    except ValueError:
        raise InvalidParameter("rows", "ragged", "must all have the same length.") from None
    if array.dtype.kind not in "fiub":
        raise InvalidParameter("rows.dtype", str(array.dtype), "must be real numbers, for instance float32.")
    if array.ndim not in (1, 2):
        raise InvalidParameter("rows.shape", array.shape, "must be (records, coordinates) or (records,).")
    kept = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    with np.errstate(all="ignore"):  # a longdouble beyond float64 becomes infinite, hence zero
        return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=") if kept else np.float64)


def _output_like(source: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    if out is None:
        return np.empty_like(source)
    if out.shape != source.shape or out.dtype != source.dtype or not out.flags.c_contiguous:
        needed = f"must be a contiguous {source.dtype} array of shape {source.shape}."
        raise InvalidParameter("out", (str(out.dtype), out.shape), needed)
    return out


def _clamp(values: NDArray[Any], clip_norm: float, out: NDArray[Any]) -> NDArray[Any]:
    """One number per record needs no arithmetic, hence no rounding but that of the limit, down."""
    finite, zero = np.isfinite(values), values.dtype.type(0)
    with np.errstate(all="ignore"):
        limit = values.dtype.type(clip_norm)
        limit = np.nextafter(limit, zero) if float(limit) > clip_norm else limit
    np.clip(values, -limit, limit, out=out)
    np.copyto(out, zero, where=~finite)
    return out


def _narrow_toward_zero(wide: NDArray[np.float32], out: NDArray[Any]) -> NDArray[Any]:
    """Round float32 to float16 without making any coordinate longer."""
    with np.errstate(all="ignore"):
        out[...] = wide
    longer = np.abs(out.astype(np.float32)) > np.abs(wide)
    out.view(np.uint16)[...] -= longer  # floats are sign and magnitude: one less is the next toward zero
    return out


def _errors(rows: NDArray[Any], norm: str) -> tuple[float, float, float]:
    """How far rounding may go: of a norm (relative), of a product (relative), of all products (absolute).

    A sum of d positive terms is off by d roundings at most, in whatever order it is taken. The 16 cover the
    root, the division, and squares too small for float64, which are nothing beside a legal clip norm.
    """
    size, kind = rows.shape[1], np.finfo(rows.dtype)
    of_norm = 1 + (size + 16) * UNIT
    of_product = 1 + float(kind.eps) + 16 * UNIT
    subnormal = float(kind.smallest_subnormal) * (math.sqrt(size) if norm == "l2" else size)
    return of_norm, of_product, 2 * subnormal


@njit(cache=True, nogil=True, error_model="numpy")
def flat_factors(norms: NDArray[np.float64], clip_norm: float, relative: float) -> NDArray[np.float64]:
    """:func:`scale_factors` operation by operation; ``relative`` turns norms into upper bounds."""
    factors = np.zeros_like(norms)
    for place in range(len(norms)):
        upper = norms[place] * relative
        if 0 <= upper <= clip_norm:
            factors[place] = 1.0
        elif upper < math.inf:
            factor = clip_norm / upper * (1 - 4 * UNIT)
            if factor >= LEAST_FACTOR:
                factors[place] = factor
    return factors


@njit(cache=True, nogil=True)
def _shrunk(value: float, shrink: float) -> float:
    """A product that _norm must not reorder into a product of squares, which would overflow."""
    return np.float64(value) * shrink


@njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def _norm(rows: NDArray[Any], i: int, shrink: float, euclidean: bool) -> float:
    """The norm of a row, summed in float64 in whatever order is fastest."""
    total = 0.0
    if euclidean:
        for j in range(rows.shape[1]):
            value = _shrunk(rows[i, j], shrink)
            total += value * value
        return math.sqrt(total)
    for j in range(rows.shape[1]):
        total += abs(_shrunk(rows[i, j], shrink))
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _clip(
    rows: NDArray[Any],
    out: NDArray[Any],
    clip_norm: float,
    of_norm: float,
    of_product: float,
    subnormal: float,
    euclidean: bool,
) -> None:
    """For each row its norm, then the product while the row is still in the cache."""
    for i in range(rows.shape[0]):
        shrink = 1.0
        upper = _norm(rows, i, shrink, euclidean) * of_norm
        if upper <= clip_norm:
            for j in range(rows.shape[1]):
                out[i, j] = rows[i, j]
            continue
        if not upper <= _SAFE_NORM:
            shrink = _SHRINK
            upper = _norm(rows, i, shrink, euclidean) * of_norm
        if not upper < math.inf:  # nothing but NaN and infinity is left
            out[i] = 0
            continue
        factor = max(0.0, clip_norm - subnormal) / (upper * of_product)
        for j in range(rows.shape[1]):
            out[i, j] = _shrunk(rows[i, j], shrink) * factor
