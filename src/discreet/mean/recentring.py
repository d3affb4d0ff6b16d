"""A mean of records that may be anywhere in a large ball: find them first, then clip tightly.

One release clipped to the whole ball has noise in proportion to its radius. So the budget is split into
rounds. Each one looks from the center found so far: it searches the distance within which nearly all records
lie, by a few noisy counts, clips there, and moves the center by the noisy mean. A round shrinks the region by
the ratio of noise to clip norm until it reaches the records' own spread; from then on rounds repeat the same
measurement, and averaging them loses nothing (Gaussian noise of k releases at 1/k of the budget, averaged, is
that of one release). Rounds so weighted are why a radius that is far too large costs little.

How many records should be clipped? More clipping gives less noise and more bias: with clip norm C the noise
is k C and the bias at most E (|x| - C)+, whose sum is least where a share k of the records is clipped (Huang,
Liang, Yi 2021). Clipping a few times as many pays on symmetric data, where most of the bias cancels.

The recentring is that of CoinPress (Biswas, Dong, Kamath, Ullman 2020), which has to know the spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from discreet.events import Gaussian
from discreet.mean.bounds import Noise, Sum, deviation, norm_of, share, size
from discreet.mean.known import Center, Found, OneRelease, as_vector, checked_center
from discreet.mean.records import Array, Records

QUERIES = 5  # noisy counts in one search: they narrow a range of 1 to 100 down to 15 %
RESOLUTION = 1e-12  # of the radius; nobody asks for more, and subtraction in float64 could not give it


@dataclass(frozen=True)
class Ball:
    """Records lie within ``radius`` (l2) of ``center``; where in the ball, and how far apart, is unknown.

    A radius that is a hundred times too large costs little. The predicted error is for laws that are symmetric
    around their mean: the last clip is tight and has a bias on skewed ones, though a small one.
    """

    radius: float
    center: Center = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", size("radius", self.radius))
        object.__setattr__(self, "center", checked_center(self.center))

    def l1_excess(self, dimension: int) -> float:
        """Many releases add up better with Gaussian noise."""
        return math.inf

    def plan(self, release: Sum) -> OneRelease | Recentring:
        center = as_vector(self.center, release.dimension)
        rounds = _rounds(release)
        if rounds[0].loudness > LOUDEST:
            clip_norm = self.radius * release.widening * (1 + 1e-15)
            return OneRelease(release, center, clip_norm, self.radius, 0.0, "every law in the ball")
        return Recentring(release, center, self.radius, rounds)


LOUDEST = 1.0
"""If the noise of the first round were longer than its clip norm, it would find nothing."""


@dataclass(frozen=True)
class Round:
    """One look at the data: the noise of each count (the first round counts nothing), and of the sum."""

    count: Noise | None
    sum: Sum

    @property
    def events(self) -> tuple[Noise, ...]:
        """What the round releases."""
        return (self.sum.noise,) if self.count is None else (*[self.count] * QUERIES, self.sum.noise)

    @property
    def loudness(self) -> float:
        """Length of the noise on the mean, in clip norms and in the norm that is clipped."""
        return self.sum.noise_error(1.0) * self.sum.widening


def _rounds(release: Sum) -> tuple[Round, ...]:
    """Growing shares of the budget, so that little is lost on rounds that only search.

    Laplace releases add up worse, so they get fewer rounds that grow faster. Counts get a share that falls
    with the dimension, because they have one and the sums have them all.
    """
    gaussian = isinstance(release.noise, Gaussian)
    number, growth = (10, 1.25) if gaussian else (4, 3.0)
    counting = 0.4 / math.sqrt(release.dimension) if gaussian else 0.3
    weights = growth ** np.arange(number)
    sums = weights / weights.sum() * (1 - counting)
    counts = weights[1:] / weights[1:].sum() * counting / QUERIES
    return tuple(
        Round(
            share(release.noise, counts[i - 1]) if i else None,
            Sum(share(release.noise, sums[i]), release.records, release.dimension),
        )
        for i in range(number)
    )


@dataclass(frozen=True, eq=False)
class Recentring:
    """The plan of a mean by several rounds, fixed before the data is touched."""

    release: Sum
    center: Array
    radius: float
    rounds: tuple[Round, ...]

    @property
    def events(self) -> tuple[Noise, ...]:
        return tuple(event for step in self.rounds for event in step.events)

    def carry_out(self, data: Records) -> Found:
        average, center = _Average(data.records), self.center
        clip_norm = noise = self.radius * self.release.widening
        for step in self.rounds:
            bias = 0.0
            if step.count is not None:
                clipped = self._share_to_clip(step.count)
                between = (max(noise / 2, RESOLUTION * self.radius), 2 * clip_norm)
                clip_norm = _distance_of_most(data, center, between, 1 - clipped, step.count)
                bias = clipped * average.error
            noise = step.loudness * clip_norm
            value = center + data.noisy_mean(data.rows, _around(center), clip_norm, step.sum.noise)
            average.include(value, step.sum.noise_error(clip_norm), clip_norm, bias)
            center = self._into_the_ball(average.value)
        reach = 2 * clip_norm / self.release.widening
        return Found(center, average.error, "laws symmetric around their mean", clip_norm, center, reach)

    def _share_to_clip(self, count: Noise) -> float:
        """A few times the loudness of the sum, and not so few that the noise of a count would hide them."""
        noise_of_count = 0.5 * deviation(count) / self.release.records
        return min(0.5, 1.5 * self.rounds[-1].loudness + noise_of_count)

    def _into_the_ball(self, point: Array) -> Array:
        """The nearest point in the ball: the mean lies there too."""
        offset = point - self.center
        length = float(np.linalg.norm(offset))
        return self.center + offset * min(1.0, self.radius / max(length, self.radius))


def _around(center: Array) -> Callable[[Array], Array]:
    return lambda rows: rows - center


def _distance_of_most(
    data: Records, center: Array, between: tuple[float, float], most: float, count: Noise
) -> float:
    """The distance from the center within which a share ``most`` of the records lies: bisection of its
    logarithm by noisy counts. A record counts +1/2 or -1/2, so it moves a count by 1/2 at most."""
    distances, (low, high) = data.distances(center, norm_of(count)), between
    for _ in range(QUERIES):
        middle = math.sqrt(low * high)
        majority = data.noisy_mean(distances, _within(middle), 0.5, count)
        low, high = (low, middle) if majority[0] + 0.5 >= most else (middle, high)
    return math.sqrt(low * high)


def _within(distance: float) -> Callable[[Array], Array]:
    return lambda distances: np.where(distances <= distance, 0.5, -0.5)


@dataclass(eq=False)
class _Average:
    """The rounds' estimates, weighted by how little noise they have, and the error of that average.

    All rounds see the same records, so their sampling errors and biases add up; their noise is independent.
    On a symmetric law, clipping around a center that is off by e has a bias of at most e times the share that
    is clipped: the cut-off part of x is odd around the center and moves no faster than x.
    """

    records: int
    rounds: list[tuple[Array, float, float, float]] = field(default_factory=list)

    def include(self, value: Array, noise: float, clip_norm: float, bias: float) -> None:
        self.rounds.append((value, noise, clip_norm / math.sqrt(self.records), bias))

    @property
    def weights(self) -> Array:
        precisions: Array = np.array([(self.rounds[0][1] / noise) ** 2 for _, noise, _, _ in self.rounds])
        return precisions / float(precisions.sum())

    @property
    def value(self) -> Array:
        mean: Array = self.weights @ np.stack([value for value, *_ in self.rounds])
        return mean

    @property
    def error(self) -> float:
        noise, sampling, bias = np.array([numbers for _, *numbers in self.rounds]).T
        return math.hypot(
            float(np.linalg.norm(self.weights * noise)),
            float(self.weights @ sampling),
            float(self.weights @ bias),
        )
