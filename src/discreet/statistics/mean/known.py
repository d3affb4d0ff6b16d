"""What is publicly known about one record, and the single clipped release that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from discreet.errors import InvalidParameter, real
from discreet.statistics.mean.clipped_rows import Array, ClippedRecords
from discreet.statistics.mean.error_bounds import Noise, NoisySum, best_clip_norm, size

Center = float | Sequence[float]


class Found(NamedTuple):
    """A mean as released, how exact it is, and where the records were looked for."""

    value: Array
    error: float
    valid_for: str
    clip_norm: float
    center: Array
    reach: float  # l2 distance from the center within which to look for their spread


@dataclass(frozen=True, eq=False)
class OneRelease:
    """The plan of a mean by one release: fixed before the data is touched."""

    release: NoisySum
    center: Array
    clip_norm: float
    spread: float
    bias: float
    valid_for: str
    half_width: float = math.inf

    @property
    def events(self) -> tuple[Noise, ...]:
        return (self.release.noise,)

    def carry_out(self, data: ClippedRecords) -> Found:
        shift = data.noisy_offset(self.center, self.clip_norm, self.release.noise, self.half_width)
        error = math.hypot(
            self.spread / math.sqrt(self.release.records),
            self.bias,
            self.release.noise_error(self.clip_norm),
        )
        reach = min(self.clip_norm, self.half_width * math.sqrt(self.release.dimension), 4 * self.spread)
        return Found(self.center + shift, error, self.valid_for, self.clip_norm, self.center, reach)


@dataclass(frozen=True)
class Interval:
    """Every coordinate lies between ``lower`` and ``upper``; what does not is moved there.

    The estimate has no bias, so it may leave the interval.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", real("lower", self.lower, at_least=-1e50, at_most=1e50))
        object.__setattr__(self, "upper", real("upper", self.upper, above=self.lower, at_most=1e50))
        size("upper - lower", self.upper - self.lower)

    def l1_excess(self, dimension: int) -> float:
        """How much larger the l1 norm of a record may be than its l2 norm."""
        return math.sqrt(dimension)

    def plan(self, release: NoisySum) -> OneRelease:
        half, root = (self.upper - self.lower) / 2, math.sqrt(release.dimension)
        center = np.full(release.dimension, self.lower + half)
        clip_norm = half * root * release.widening * (1 + 1e-15)
        return OneRelease(
            release, center, clip_norm, half * root, 0.0, "every distribution in the interval", half
        )


@dataclass(frozen=True)
class FixedClip:
    """Records are clipped to ``clip_norm`` around ``center``: in the l2 norm, or l1 for Laplace noise.

    With a public bound on the root mean square distance from the center, the predicted error covers the bias
    of clipping. Without it, it speaks of the mean of the clipped records.
    """

    clip_norm: float
    center: Center = 0.0
    root_mean_square: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", size("clip_norm", self.clip_norm))
        object.__setattr__(self, "center", checked_center(self.center))
        if self.root_mean_square is not None:
            object.__setattr__(self, "root_mean_square", size("root_mean_square", self.root_mean_square))

    def l1_excess(self, dimension: int) -> float:
        """A given clip norm is meant in one norm; only for numbers they are the same."""
        return 1.0 if dimension == 1 else math.inf

    def plan(self, release: NoisySum) -> OneRelease:
        center = as_vector(self.center, release.dimension)
        if self.root_mean_square is None:
            target = "the mean of the clipped records"
            return OneRelease(release, center, self.clip_norm, self.clip_norm, 0.0, target)
        spread = min(self.root_mean_square, self.clip_norm)
        bias = release.clipping_bias(self.clip_norm, self.root_mean_square)
        target = "every distribution with this root mean square"
        return OneRelease(release, center, self.clip_norm, spread, bias, target)


@dataclass(frozen=True)
class SecondMoment:
    """The root mean square distance of a record from ``center`` is at most ``root_mean_square``.

    Nothing else need hold: this is for heavy tails and for those who want a theorem. The clip norm is the one
    with the best error bound. On light tails a ``Ball`` is two to ten times as exact.
    """

    root_mean_square: float
    center: Center = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "root_mean_square", size("root_mean_square", self.root_mean_square))
        object.__setattr__(self, "center", checked_center(self.center))

    def l1_excess(self, dimension: int) -> float:
        """How much larger the l1 norm of a record may be than its l2 norm."""
        return math.sqrt(dimension)

    def plan(self, release: NoisySum) -> OneRelease:
        best = best_clip_norm(release.noise, self.root_mean_square, release.records, release.dimension)
        return FixedClip(best, self.center, self.root_mean_square).plan(release)


def checked_center(value: Center) -> float | tuple[float, ...]:
    """A public point: one number for all coordinates, or one for each."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(_coordinate(f"center[{i}]", number) for i, number in enumerate(value))
    return _coordinate("center", value)


def _coordinate(name: str, value: object) -> float:
    return real(name, value, at_least=-1e50, at_most=1e50, remedy="It is public, never taken from the data.")


def as_vector(center: Center, dimension: int) -> Array:
    """The point with as many coordinates as a record."""
    point = np.asarray(center, np.float64)
    if point.ndim == 1 and len(point) != dimension:
        requirement = f"must be one number or have {dimension} coordinates, as many as a record."
        raise InvalidParameter("center", center, requirement)
    return np.broadcast_to(point, (dimension,)).copy()
