"""The private mean: of bits, numbers or vectors, by whatever is publicly known about one record.

>>> from discreet.guarantee import Budget
>>> budget = Budget(epsilon=1.0, delta=1e-6, neighbours="replace-one")
>>> smokers, incomes = np.arange(1000) % 4 == 0, np.linspace(20.0, 80.0, 1000)
>>> estimate = private_mean(smokers, budget, Interval(0, 1))
>>> round(estimate.predicted_error, 4)
0.0159
>>> estimate = private_mean(incomes, budget, Ball(radius=1000.0))
>>> estimate.guarantee.within(budget), bool(abs(estimate.value - 50.0) < 20.0)
(True, True)

=========================  ==============================================================================
what is known              what happens
=========================  ==============================================================================
``Interval(lower, upper)`` numbers are moved into the interval; no bias, the error bound is a theorem
``Ball(radius)``           where the records are and how far they spread is found out privately, in a few
                           rounds; then the clip is tight. The one to reach for
``SecondMoment(s)``        the clip with the best error bound for E \\|x\\|^2 <= s^2 and nothing else
``FixedClip(norm)``        a clip of your own choice
=========================  ==============================================================================

Every number that leaves is a sum over the records of clipped contributions, with noise; see
:class:`_Records`. What is known is public and is never taken from the data. So is the number of records: under
replace-one neighbours it is the number of rows, and under add-remove neighbours it has to be declared.

**The error.** For n records of dimension d, a clip norm C and noise of variance v C^2 on each coordinate of the
sum, the mean squared error of the mean of the clipped records is at most

    s^2 / n  +  b s^4 / (16 C^2)  +  d v C^2 / n^2

with b = 1 for l2 clips and b = d for l1 clips (Laplace noise). The middle term is the sharp form of the bias of
clipping: (\\|x\\| - C)+ <= \\|x\\|^2 / (4 C), attained where \\|x\\| = 2 C. See :func:`error_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.clipping import clip_rows
from discreet.errors import InvalidParameter, one_of, real, whole
from discreet.events import Event, Gaussian, Laplace
from discreet.guarantee import Budget
from discreet.hardened import distance_to_continuous, grid_for, hardened_sum
from discreet.mechanisms import Arithmetic, Release, certified, gaussian_event, laplace_event
from discreet.noise import BoundedSum, add_noise
from discreet.randomness import RandomStream, system_stream

Array = NDArray[np.float64]
Noise = Gaussian | Laplace
Norm = Literal["l2", "l1"]

_BLOCK = 2**18  # numbers that are clipped and added at once
_BY_PRODUCTS = ("count", "variance")
_BY_PRODUCT_SHARE = 0.1
_SPARE_DELTA = 1e-4  # of delta, kept back for what hardened noise differs from continuous noise


# ---- what is known about one record --------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """Every coordinate lies between ``lower`` and ``upper``; what does not is moved there."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", real("lower", self.lower, at_least=-1e50, at_most=1e50))
        upper = real("upper", self.upper, above=self.lower, at_most=1e50)
        if upper - self.lower < 1e-50:
            raise InvalidParameter("upper", upper, "must differ from lower by at least 1e-50.")
        object.__setattr__(self, "upper", upper)

    def _clip(self, case: _Case) -> _Clip:
        half = (self.upper - self.lower) / 2
        factor = math.sqrt(case.dimension) if case.norm == "l2" else case.dimension
        limit = math.nextafter(half * factor, math.inf)
        spread = half * math.sqrt(case.dimension)
        return _Clip(np.full(case.dimension, self.lower + half), limit, spread, 0.0, "every record", half)


@dataclass(frozen=True)
class FixedClip:
    """Records are clipped to ``clip_norm`` around ``center``: in the l2 norm, or l1 where delta is 0.

    With a public bound on the root mean square distance from the center, the predicted error covers the bias
    of clipping. Without it, it speaks of the mean of the clipped records.
    """

    clip_norm: float
    center: float | tuple[float, ...] = 0.0
    root_mean_square: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", _size("clip_norm", self.clip_norm))
        object.__setattr__(self, "center", _center(self.center))
        if self.root_mean_square is not None:
            object.__setattr__(self, "root_mean_square", _size("root_mean_square", self.root_mean_square))

    def _clip(self, case: _Case) -> _Clip:
        center = _as_vector(self.center, case.dimension)
        if self.root_mean_square is None:
            return _Clip(center, self.clip_norm, self.clip_norm, 0.0, "the mean of the clipped records")
        spread = min(self.root_mean_square, self.clip_norm)
        bias = _bias(case.norm, self.clip_norm, self.root_mean_square, case.dimension)
        return _Clip(center, self.clip_norm, spread, bias, "every law with this root mean square")


@dataclass(frozen=True)
class SecondMoment:
    """The root mean square distance of a record from ``center`` is at most ``root_mean_square``.

    Nothing else need hold, so this is the choice for heavy tails; the clip norm is the one with the best
    error bound. On light tails :class:`Ball` is two to ten times as exact.
    """

    root_mean_square: float
    center: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "root_mean_square", _size("root_mean_square", self.root_mean_square))
        object.__setattr__(self, "center", _center(self.center))

    def _clip(self, case: _Case) -> _Clip:
        best = best_clip_norm(case.noise, self.root_mean_square, case.records, case.dimension)
        return FixedClip(best, self.center, self.root_mean_square)._clip(case)


@dataclass(frozen=True)
class Ball:
    """Records lie within ``radius`` (l2) of ``center``; where in the ball, and how far apart, is unknown.

    A radius that is a hundred times too large costs little. The predicted error assumes that the records are
    spread symmetrically around their mean: the final clip is tight, and on skewed data it has a bias.
    """

    radius: float
    center: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", _size("radius", self.radius))
        object.__setattr__(self, "center", _center(self.center))


Known = Interval | Ball | SecondMoment | FixedClip


# ---- theory --------------------------------------------------------------------------------------------


def error_bound(
    event: Noise, clip_norm: float, root_mean_square: float, records: int, dimension: int = 1
) -> float:
    """Root mean squared error of a mean of clipped records, at most, for every law with this root mean square.

    ``event`` is the noise on the sum. The formula is in the module's description.

    >>> lecture = lecture_clip_norm(root_mean_square=1.0, records=100, epsilon=1.0)
    >>> round(error_bound(Laplace(2.0), lecture, root_mean_square=1.0, records=100) ** 2, 6)
    0.0325
    """
    event, records, dimension = _noise_of(event), _whole("records", records), _whole("dimension", dimension)
    clip_norm, spread = _size("clip_norm", clip_norm), _size("root_mean_square", root_mean_square)
    bias = _bias(_norm(event), clip_norm, spread, dimension)
    noise = _deviation(event) * clip_norm * math.sqrt(dimension) / records
    return math.hypot(min(spread, clip_norm) / math.sqrt(records), bias, noise)


def best_clip_norm(event: Noise, root_mean_square: float, records: int, dimension: int = 1) -> float:
    """The clip norm with the smallest :func:`error_bound`.

    >>> round(best_clip_norm(Laplace(2.0), root_mean_square=1.0, records=100), 6)
    2.973018
    """
    event, records, dimension = _noise_of(event), _whole("records", records), _whole("dimension", dimension)
    spread = _size("root_mean_square", root_mean_square)
    noise = _deviation(event) * math.sqrt(dimension) / records
    return math.sqrt(_bias(_norm(event), 1.0, spread, dimension) / noise)


def lecture_clip_norm(root_mean_square: float, records: int, epsilon: float) -> float:
    """The lecture's clip for numbers with Laplace noise, s sqrt(n epsilon) / 2: 1.68 times the best one."""
    spread = _size("root_mean_square", root_mean_square)
    return spread * math.sqrt(_whole("records", records) * real("epsilon", epsilon, above=0)) / 2


def _bias(norm: Norm, clip_norm: float, root_mean_square: float, dimension: int) -> float:
    """Of clipping. In the l1 norm, \\|x\\|_1 <= sqrt(d) \\|x\\|_2 makes it that of an l2 clip at C / sqrt(d)."""
    factor = 1.0 if norm == "l2" else math.sqrt(dimension)
    return factor * root_mean_square**2 / (4 * clip_norm)


def _deviation(event: Noise) -> float:
    """Standard deviation of the noise on one coordinate, in clip norms."""
    return event.noise_multiplier if isinstance(event, Gaussian) else math.sqrt(2) * event.scale


def _norm(event: Noise) -> Norm:
    return "l2" if isinstance(event, Gaussian) else "l1"


# ---- the estimate --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MeanEstimate(Release):
    """A private mean and what it cost.

    ``predicted_error`` bounds the root mean squared distance between ``value`` and the mean of the law that
    the records were drawn from, for ``valid_for``; under add-remove neighbours it supposes that the declared
    number of records is about right. ``clip_norm`` is the (last) one that was used. ``count`` and
    ``variance`` (of all coordinates together) are None unless asked for.
    """

    predicted_error: float
    valid_for: str
    clip_norm: float
    records: int
    count: float | None
    variance: float | None

    @property
    def sum(self) -> float | Array:
        """The mean times the public number of records."""
        return self.value * self.records


def private_mean(
    x: ArrayLike,
    budget: Budget,
    known: Known,
    *,
    records: int | None = None,
    also: Iterable[str] = (),
    arithmetic: Arithmetic = "float",
    stream: RandomStream | None = None,
) -> MeanEstimate:
    """The mean of ``x``, one record a row: shape ``(n,)`` or ``(n, d)``.

    ``records`` is the public number of records, required under add-remove neighbours: there the number of
    rows is private and never looked at. ``also`` may name ``"count"`` and ``"variance"``; each takes a tenth
    of the budget (the count is free under replace-one neighbours). Without delta the noise is Laplace noise,
    and also with delta where one release of it is more exact.

    Guarantee: everything in the result together costs ``result.guarantee``, which is within the budget, for
    any rows whatever, in the arithmetic that is named, if the stream is trusted. A row with NaN or infinity
    counts as a row of zeros around the center.
    """
    if not isinstance(budget, Budget):
        raise InvalidParameter("budget", budget, "must be a Budget, for instance Budget(1.0, 1e-6).")
    if not isinstance(known, Known):
        raise InvalidParameter("known", known, "must be an Interval, Ball, SecondMoment or FixedClip.")
    data = _Records(x, budget, records, arithmetic, stream)
    extras = _by_products(also, budget)
    whole_budget = _noise(budget, known, data)
    parts = [_share(whole_budget, _BY_PRODUCT_SHARE)] * len(extras)
    case = _Case(_share(whole_budget, 1 - _BY_PRODUCT_SHARE * len(extras)), data.records, data.dimension)
    rounds = _schedule(case) if isinstance(known, Ball) else [_Round(None, case.noise)]
    event = reduce(add, [event for step in rounds for event in step.events()] + parts)
    guarantee = certified(event, budget, data.hardening_cost(event, budget))
    found = _recentred(data, known, rounds, case) if isinstance(known, Ball) else _clipped(data, known, case)
    count, variance = _released_by_products(data, extras, found, parts)
    return MeanEstimate(
        value=float(found.value[0]) if data.scalar else found.value,
        event=event,
        guarantee=guarantee,
        arithmetic=data.arithmetic,
        trusted=data.stream.trusted,
        predicted_error=found.error,
        valid_for=found.valid_for,
        clip_norm=found.clip_norm,
        records=data.records,
        count=data.records if count is None and "count" in _names(also) else count,
        variance=variance,
    )
