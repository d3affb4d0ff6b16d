"""The only function that adds noise; :func:`~discreet.core.noise_shares.add_noise_share` adds a part of it.

It takes a :class:`BoundedSum`, which carries what one record may add to it, and the event that was accounted.
There is no standard deviation to pass, so noise and accounting cannot disagree.

>>> import numpy as np
>>> from discreet.events import Gaussian
>>> total = BoundedSum(np.zeros(3, np.float32), clip_norm=0.5)
>>> total
BoundedSum(clip_norm=0.5, norm='l2', grid=None)
>>> add_noise(total, Gaussian(noise_multiplier=4.0)).dtype  # noise of standard deviation 2
dtype('float32')

The value may be a numpy array or a torch tensor on any device; the result is of the same kind. With a
``grid`` the value holds integers, and so does the noise: see :func:`hardened_sum`.

In docs/engines.md: E1.

>>> event, rows = Gaussian(noise_multiplier=2.0), np.full((1000, 3), 0.5)
>>> grid = grid_for(event, clip_norm=1.0, most_records=10_000)
>>> total = hardened_sum(rows, clip_norm=1.0, grid=grid)
>>> total.arithmetic, add_noise(total, event).shape
('hardened', (3,))

**What is proved.** Let C be the clip norm and g the grid.

1. Rounding toward zero never increases a norm. So the sums of two data sets that differ by one record differ
   by a vector of integers of norm at most C/g, in whatever order the records come; a sum that left the
   range of int64 would still obey this, modulo 2**64.
2. The noise is the discrete Gaussian of scale s >= noise_multiplier * C/g. Every Rényi divergence is at most
   that of the event's continuous Gaussian (Canonne, Kamath, Steinke 2020), so accounting by Rényi or
   concentrated privacy holds as it is.
3. Accounting by the whole privacy curve holds up to :func:`distance_to_continuous`: the noise is that close
   in total variation to a rounded continuous Gaussian, and rounding is post-processing. A release adds at
   most (1 + exp(epsilon)) times that distance to delta. It is below 1e-24 * sqrt(dimension) for the grids of
   :func:`grid_for`, unless the number of records asks for a coarser one, and never above
   4e-14 * sqrt(dimension) for a grid that :func:`~discreet.core.noise.add_noise` accepts.
4. Laplace noise is the discrete Laplace distribution of scale at least scale * C/g: epsilon is 1/scale and delta is
0.

In docs/engines.md: E2.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from discreet.core.arrays import (
    AnyArray,
    float_limits,
    is_floating,
    is_tensor,
    new_float_like,
    shared_view,
    store,
    to_numpy,
    type_name,
)
from discreet.core.compiler import compiled
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, PlanViolation, one_of, real, whole
from discreet.events import Gaussian, Laplace

FEWEST_STEPS, MOST_STEPS = 2**20, 2**40
"""Limits of the scale of hardened noise in grid steps: indistinguishable from continuous, and safe in int64."""

_HARDENED_BLOCK = 2**20


@dataclass(frozen=True, eq=False)
class BoundedSum:
    """A sum of contributions, one from each record, each of norm at most ``clip_norm``.

    With ``grid`` None the value is floating point. Otherwise ``grid`` is a public power of two and the
    value is an int64 count of grid steps. The value is private; it does not appear when the object is
    printed.

    Guarantee: none by itself. Whoever makes a BoundedSum promises that every contribution was clipped.
    """

    value: AnyArray = field(repr=False)
    clip_norm: float
    norm: Literal["l2", "l1"] = "l2"
    grid: float | None = None

    def __post_init__(self) -> None:
        remedy = "It is the most that one record may add to the sum."
        object.__setattr__(self, "clip_norm", real("clip_norm", self.clip_norm, above=0, remedy=remedy))
        one_of("norm", self.norm, ("l2", "l1"))
        if not is_tensor(self.value):
            object.__setattr__(self, "value", np.asarray(self.value))
        if self.grid is None:
            if not is_floating(self.value):
                requirement = "must hold floating-point numbers if no grid is given."
                raise InvalidParameter("value", type_name(self.value), requirement)
            return
        object.__setattr__(self, "grid", checked_grid(self.grid))
        if type_name(self.value) != "int64":
            requirement = "must hold int64 counts of grid steps if a grid is given."
            raise InvalidParameter("value", type_name(self.value), requirement)

    @property
    def arithmetic(self) -> Literal["float", "hardened"]:
        """``"float"``: proved for real numbers only. ``"hardened"``: proved for the bits released."""
        return "float" if self.grid is None else "hardened"


def add_noise(
    total: BoundedSum,
    event: Gaussian | Laplace,
    stream: RandomStream | None = None,
    *,
    out: AnyArray | None = None,
) -> AnyArray:
    """The sum with the noise of ``event``: a new array, or ``out`` overwritten.

    Gaussian noise has standard deviation ``noise_multiplier * clip_norm`` on each coordinate and needs an l2
    clip norm; Laplace noise has scale ``scale * clip_norm`` and needs an l1 clip norm. Both round up. ``out``
    may be ``total.value`` itself and may have another floating-point type. Without it the result has the type
    of the value, and a hardened sum becomes float64.

    Guarantee: the release costs what ``account(event)`` says, by the arithmetic that ``total.arithmetic``
    names, if ``stream.trusted``.

    ===================  ====================================================================
    empty array          stays empty
    non-finite sum       :class:`PlanViolation` before anything is written: the clip failed
    float16, bfloat16    sum and noise are added in float32, then rounded once
    ===================  ====================================================================
    """
    check_fit(total, event)
    stream = checked_stream(stream)
    out = new_float_like(total.value) if out is None else _checked_out(out, total)
    if total.grid is None:
        _add_float(total, event, stream, out)
    else:
        _add_hardened(total, total.grid, event, stream, out)
    return out


def checked_grid(grid: object) -> float:
    """``grid`` as a float if it is a power of two, or raise."""
    number = real("grid", grid, at_least=2.0**-1000, at_most=2.0**1000)
    if math.frexp(number)[0] != 0.5:
        raise InvalidParameter("grid", grid, "must be a power of two, such as 2**-30.")
    return number


def noise_ratio(event: Gaussian | Laplace) -> float:
    """The scale of the noise in clip norms. An event without noise may be accounted, and is never released."""
    remedy = "No noise gives no privacy: nothing is released."
    if isinstance(event, Gaussian):
        return real("noise_multiplier", event.noise_multiplier, above=0, remedy=remedy)
    if isinstance(event, Laplace):
        return real("scale", event.scale, above=0, remedy=remedy)
    raise InvalidParameter("event", event, "must be a Gaussian or a Laplace event, without its sampling.")


def noise_steps(event: Gaussian | Laplace, clip_norm: float, grid: float, shares: int = 1) -> int:
    """The scale of the noise in grid steps, rounded up to an integer in exact arithmetic.

    Of ``shares`` equal shares it is the scale of one: divided by their root, because variances add up.
    """
    steps = _whole_steps(noise_ratio(event), clip_norm, grid, whole("shares", shares, at_least=1))
    if not FEWEST_STEPS <= steps <= MOST_STEPS:
        requirement = (
            "must divide the noise's scale into 2**20 to 2**40 steps; discreet.core.grid_for() does."
        )
        raise InvalidParameter("grid", grid, requirement)
    return steps


@lru_cache(maxsize=64)  # a run asks the same in every step, and exact arithmetic is slow
def _whole_steps(ratio: float, clip_norm: float, grid: float, shares: int) -> int:
    exact = Fraction(ratio) * Fraction(clip_norm) / Fraction(grid)
    return math.isqrt(math.ceil(exact**2 / shares) - 1) + 1


def checked_stream(stream: object) -> RandomStream:
    """The stream itself, or the operating system's for None."""
    if stream is None:
        return system_stream()
    if not isinstance(stream, RandomStream):
        raise InvalidParameter("stream", type(stream), "must be a RandomStream.")
    return stream


def check_fit(total: BoundedSum, event: Gaussian | Laplace) -> None:
    """Refuse an event whose noise is for another norm."""
    if not isinstance(total, BoundedSum):
        raise InvalidParameter("total", type(total), "must be a BoundedSum.")
    noise_ratio(event)
    if total.norm != ("l2" if isinstance(event, Gaussian) else "l1"):
        raise InvalidParameter("norm", total.norm, "must be 'l2' for Gaussian and 'l1' for Laplace noise.")


def _checked_out(out: AnyArray, total: BoundedSum) -> AnyArray:
    kind = "a torch tensor" if is_tensor(total.value) else "a numpy array"
    if is_tensor(out) != is_tensor(total.value) or not hasattr(out, "dtype"):
        raise InvalidParameter("out", type(out), f"must be {kind}, like the value.")
    if tuple(out.shape) != tuple(total.value.shape) or not is_floating(out):
        shown = f"{type_name(out)}{tuple(out.shape)}"
        raise InvalidParameter("out", shown, "must hold floating-point numbers in the shape of the value.")
    return out


def _add_float(total: BoundedSum, event: Gaussian | Laplace, stream: RandomStream, out: AnyArray) -> None:
    source = to_numpy(total.value)
    dtype = np.dtype(np.float32 if source.itemsize <= 4 else np.float64)
    scale = _scale(total, event, dtype, out)
    refuse_not_finite(source)
    shared = shared_view(out, source.dtype)
    noisy = np.empty(source.shape, source.dtype) if shared is None else shared
    if out is not total.value or shared is None:
        np.copyto(noisy, source)
    flat = noisy.reshape(-1)

    def take(where: slice, draws: NDArray[Any]) -> None:
        np.add(flat[where], draws, out=flat[where])

    stream.each_block("normal" if isinstance(event, Gaussian) else "laplace", flat.size, scale, dtype, take)
    if shared is None:
        store(out, noisy)


def _add_hardened(
    total: BoundedSum, grid: float, event: Gaussian | Laplace, stream: RandomStream, out: AnyArray
) -> None:
    steps = noise_steps(event, total.clip_norm, grid)
    draw = stream.discrete_gaussian if isinstance(event, Gaussian) else stream.discrete_laplace
    counts = to_numpy(total.value).reshape(-1)
    noisy = np.empty(counts.size)
    for start in range(0, counts.size, _HARDENED_BLOCK):
        part = counts[start : start + _HARDENED_BLOCK]
        noisy[start : start + _HARDENED_BLOCK] = part + draw(steps, part.size)
    noisy *= grid
    store(out, noisy.reshape(total.value.shape))


def _scale(total: BoundedSum, event: Gaussian | Laplace, dtype: np.dtype[Any], out: AnyArray) -> float:
    """The scale of the noise, not below its exact value, as a number of type ``dtype``."""
    limits = float_limits(out)
    smallest, largest = 2.0**10 * float(limits.tiny) * float(limits.eps), float(limits.max) / 2.0**6
    scale = _round_up(noise_ratio(event), total.clip_norm, dtype)
    if not smallest <= scale <= largest:
        requirement = f"gives noise that {type_name(out)} cannot hold; use float64 or rescale the records."
        raise InvalidParameter("clip_norm", total.clip_norm, requirement)
    return scale


@lru_cache(maxsize=64)  # a run asks the same in every step, and exact arithmetic is slow
def _round_up(ratio: float, clip_norm: float, dtype: np.dtype[Any]) -> float:
    """The product of the first two, not below its exact value, or infinity where ``dtype`` ends."""
    exact = Fraction(ratio) * Fraction(clip_norm)
    if exact > 2**1000:
        return math.inf
    with np.errstate(over="ignore", under="ignore"):
        scale = dtype.type(float(exact))
        if not math.isfinite(scale) or Fraction(float(scale)) >= exact:
            return float(scale)
        return float(np.nextafter(scale, dtype.type(np.inf)))


def refuse_not_finite(values: NDArray[Any]) -> None:
    """Raise if a sum is not finite: then something is wrong with the clip."""
    finite = np.isfinite(values).all() if values.itemsize > 8 else _all_finite(values.reshape(-1))
    if not finite:
        raise PlanViolation(
            "The sum is not finite. A clip turns non-finite contributions into zeros; nothing was released."
        )


@partial(compiled, fastmath={"reassoc"})
def _all_finite(values: NDArray[Any]) -> Any:
    """Zero times a number is not zero only where the number is not finite, and no sum of zeros overflows."""
    total = values.dtype.type(0)
    for place in range(len(values)):
        total += values[place] * values.dtype.type(0)
    return total == 0


# Sums whose guarantee holds for the bits that are released, not only for real numbers.
#
# Floating-point sums break the textbook proof in three ways: their error depends on the order of the records,
# it can exceed the clip norm, and the last bits of sum + noise show which sum it was (Mironov 2012;
# Casacuberta et al. 2022; Haney et al. 2022). Here every clipped record is rounded toward zero to a public
# grid, the records are added as integers, and the noise is an integer too; one conversion to
# floating point comes last.

SPARED_DELTA = 1e-4
"""The part of delta kept for :func:`distance_to_continuous`; the rest is accounted as for continuous noise."""

SPARED_DELTA_OF_FIT = 1e-5
"""The part of delta that a fit of a table keeps, whose grid is made for its budget and may be finer."""

MOST_ROWS = 2**32
"""Records in one sum of integers that becomes a float."""

FLOAT_ROOM = 2.0**-20
"""What turning such a sum into float64 can add to its sensitivity, in clip norms (docs/engines.md: E14)."""

_BLOCK = 2**20  # numbers that are converted at once


def grid_for(event: Gaussian | Laplace, clip_norm: float, most_records: int) -> float:
    """A power of two that suits ``event``, from public numbers only.

    It divides the scale of the noise into 2**38 to 2**39 steps, or into fewer where the contributions of
    ``most_records`` could otherwise leave the range of int64. Rounding moves each coordinate of the sum by
    less than ``most_records`` steps: for a million records and a noise multiplier of 1, by less than 1e-5 of
    the noise. The dimension plays no part, because rounding and noise act on every coordinate alike.
    """
    remedy = "Rescale the records."
    clip_norm = real("clip_norm", clip_norm, at_least=1e-250, at_most=1e250, remedy=remedy)
    most_records = whole("most_records", most_records, at_least=1, at_most=2**59)
    ratio = noise_ratio(event)
    finest = max(ratio * 2.0**-39, most_records * 2.0**-60) * clip_norm
    grid = math.ldexp(1.0, math.frexp(finest)[1])
    if ratio * clip_norm < 2.0 * FEWEST_STEPS * grid:
        requirement = f"is too many for int64 sums with this noise; at most {int(ratio * 2.0**38)} would do."
        raise InvalidParameter("most_records", most_records, requirement)
    noise_steps(event, clip_norm, grid)  # raises where no grid can serve, for instance for a vast multiplier
    return grid


def sum_grid(clip_norm: float) -> float:
    """A power of two for sums of integers that become floats: 2**29 to 2**30 steps make ``clip_norm``.

    So :data:`MOST_ROWS` contributions stay within int64.
    """
    return math.ldexp(1.0, math.frexp(clip_norm)[1] - 30)


def hardened_sum(
    rows: AnyArray, clip_norm: float, grid: float, norm: Literal["l2", "l1"] = "l2"
) -> BoundedSum:
    """The sum over the first axis of ``rows``, each clipped before to ``clip_norm``, in whole grid steps.

    ``rows`` is a numpy array or a torch tensor of float64 or a narrower type; no rows give a sum of zeros.

    Guarantee: exact and independent of the order of the rows; a row that has norm at most ``clip_norm``
    before rounding has it after rounding.
    """
    clip_norm, grid = real("clip_norm", clip_norm, above=0), checked_grid(grid)
    if not is_floating(rows) or type_name(rows) in ("float96", "float128"):
        raise InvalidParameter("rows", type_name(rows), "must hold float64 or narrower numbers.")
    total = _zero_counts(rows)
    step = max(1, _BLOCK // max(1, math.prod(rows.shape[1:])))
    for start in range(0, rows.shape[0], step):
        total += _counts(rows[start : start + step], clip_norm, grid)
    return BoundedSum(total, clip_norm, norm, grid)


def _zero_counts(rows: AnyArray) -> AnyArray:
    if is_tensor(rows):
        return rows.new_zeros(rows.shape[1:], dtype=sys.modules["torch"].int64)
    return np.zeros(rows.shape[1:], np.int64)


def _counts(rows: AnyArray, clip_norm: float, grid: float) -> AnyArray:
    """The rows in grid steps, cut toward zero and added up. The division by a power of two is exact."""
    wide = rows.detach().double() if is_tensor(rows) else rows.astype(np.float64)
    if not bool((abs(wide) <= clip_norm).all()):
        raise PlanViolation("A row exceeds the clip norm or is not finite; clip before hardened_sum().")
    with np.errstate(all="ignore"):  # a number that becomes no step is no reason to speak
        steps = wide / grid
    return (steps.long() if is_tensor(steps) else steps.astype(np.int64)).sum(0)


def distance_to_continuous(event: Gaussian | Laplace, clip_norm: float, grid: float, dimension: int) -> float:
    """An upper bound on the total variation between the hardened noise and rounded continuous noise.

    Gaussian: let s be the scale in grid steps, and x follow the discrete distribution. The ratio of the two
    probabilities of x is, up to a factor 1 + exp(-s**2), the mean of cosh(x t / s**2) exp(-t**2 / (2 s**2))
    over t uniform on (-1/2, 1/2). It lies between 1 - 1/(24 s**2) and exp(x**2 / (24 s**4)), so its mean
    squared distance from 1 is (1 + 3) / (24 s**2)**2 at most, up to lower order; over all coordinates these
    chi-square divergences add up, and half the root bounds the total variation. Laplace: the rounded distribution
    exceeds the discrete one everywhere but at 0, where it falls short by less than 1/(8 s**2).
    """
    dimension = whole("dimension", dimension, at_least=0)
    steps = float(noise_steps(event, clip_norm, grid))
    if isinstance(event, Laplace):
        return min(1.0, 1.001 * dimension / (8.0 * steps**2))
    return min(1.0, 0.5 * math.sqrt(math.expm1(min(1.001 * dimension / (144.0 * steps**4), 4.0))))
