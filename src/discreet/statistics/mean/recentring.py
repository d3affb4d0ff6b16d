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
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from discreet.events import Gaussian
from discreet.statistics.mean.clipped_rows import Array, ClippedRecords
from discreet.statistics.mean.error_bounds import Noise, NoisySum, norm_of, share, size
from discreet.statistics.mean.known import Center, Found, OneRelease, as_vector, checked_center

QUERIES = 5  # noisy counts in one search: they narrow a range of 1 to 100 down to 15 %
RESOLUTION = 1e-12  # of the radius; nobody asks for more, and subtraction in float64 could not give it
LOUDEST = 1.5  # clip norms: where the noise of the first round is longer, one release is better (measured)


@dataclass(frozen=True)
class Ball:
    """Records lie within ``radius`` (l2) of ``center``; where in the ball, and how far apart, is unknown.

    A radius that is a hundred times too large costs little. The predicted error is for distributions that are
    symmetric around their mean; the last clip is tight and has some bias on skewed ones.
    """

    radius: float
    center: Center = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", size("radius", self.radius))
        object.__setattr__(self, "center", checked_center(self.center))

    def l1_excess(self, dimension: int) -> float:
        """Many releases add up better with Gaussian noise."""
        return math.inf

    def plan(self, release: NoisySum) -> OneRelease | Recentring:
        center = as_vector(self.center, release.dimension)
        plan = Recentring(release, center, self.radius, *_shares(release))
        if _loudness(plan.first) <= LOUDEST:
            return plan
        clip_norm = self.radius * release.widening * (1 + 1e-15)
        return OneRelease(release, center, clip_norm, self.radius, 0.0, "every distribution in the ball")


class RecentringRound(NamedTuple):
    """One look at the data: the noise of each count in the search, and the sum that moves the center."""

    counts: Noise
    sum: NoisySum


def _shares(release: NoisySum) -> tuple[NoisySum, tuple[RecentringRound, ...]]:
    """The sum of the first round, and the later rounds: growing shares of the budget of ``release``.

    So little is lost on rounds that only search. Laplace releases add up worse, so they get fewer rounds that
    grow faster. Counts get a share that falls with the dimension: they have one, and the sums have them all.
    """
    number, growth = (10, 1.25) if isinstance(release.noise, Gaussian) else (6, 2.0)
    counting = 0.4 / math.sqrt(release.dimension)
    weights = growth ** np.arange(number)
    sums = weights / weights.sum() * (1 - counting)
    counts = weights / (QUERIES * weights[1:].sum() + weights[-1]) * counting
    first, *others = (replace(release, noise=share(release.noise, part)) for part in sums)
    return first, tuple(
        RecentringRound(share(release.noise, c), s) for c, s in zip(counts[1:], others, strict=True)
    )


def _loudness(release: NoisySum) -> float:
    """Length of the noise on the mean, in clip norms and in the norm that is clipped."""
    return release.noise_error(1.0) * release.widening


@dataclass(frozen=True, eq=False)
class Recentring:
    """The plan of a mean by several rounds, fixed before the data is touched.

    The first round clips to the whole ball. After the last one, one more release tells how far the records
    spread, for the prediction of the error.
    """

    release: NoisySum
    center: Array
    radius: float
    first: NoisySum
    rounds: tuple[RecentringRound, ...]

    @property
    def events(self) -> tuple[Noise, ...]:
        searches = (event for step in self.rounds for event in (*[step.counts] * QUERIES, step.sum.noise))
        return (self.first.noise, *searches, self.rounds[-1].counts)

    def carry_out(self, data: ClippedRecords) -> Found:
        average, clip_norm = _Average(data.records), self.radius * self.release.widening
        average.include(self.center, data, clip_norm, self.first, 0.0)
        noise = _loudness(self.first) * clip_norm
        for step in self.rounds:
            center = self._into_the_ball(average.value)
            between = (max(noise / 2, RESOLUTION * self.radius), 2 * clip_norm)
            beyond = self._share_to_clip(data.fraction_noise(step.counts))
            clip_norm = self._room * _distance_of_most(data, center, between, beyond, step.counts)
            average.include(center, data, clip_norm, step.sum, beyond * average.error)
            noise = _loudness(step.sum) * clip_norm
        value = self._into_the_ball(average.value)
        average.spread = _spread(data, value, clip_norm, self.rounds[-1].counts)
        reach = min(2 * clip_norm / self.release.widening, 4 * average.spread)
        return Found(
            value, average.error, "distributions symmetric around their mean", clip_norm, value, reach
        )

    def _share_to_clip(self, noise_of_count: float) -> float:
        """A few times the loudness of the sum, and not so few that the noise of a count would hide them."""
        return min(0.5, 1.5 * _loudness(self.rounds[-1].sum) + noise_of_count)

    @property
    def _room(self) -> float:
        """A factor of 1 to 1.5. Where noise is small beside the sampling error, a wider clip has less bias."""
        return min(1.5, max(1.0, 0.18 / (_loudness(self.release) * math.sqrt(self.release.records))))

    def _into_the_ball(self, point: Array) -> Array:
        """The nearest point in the ball: the mean lies there too."""
        offset = point - self.center
        return self.center + offset * (self.radius / max(self.radius, float(np.linalg.norm(offset))))


def _distance_of_most(
    data: ClippedRecords, center: Array, between: tuple[float, float], beyond: float, counts: Noise
) -> float:
    """The distance from the center beyond which a share ``beyond`` of the records lies.

    Bisection of its logarithm by noisy counts. They count the far records and not the near ones: that is right
    even if there are fewer records than declared.
    """
    low, high = between
    for _ in range(QUERIES):
        middle = math.sqrt(low * high)
        far = data.noisy_fraction(center, middle, "beyond", counts, norm_of(counts))
        low, high = (low, middle) if far <= beyond else (middle, high)
    return math.sqrt(low * high)


def _spread(data: ClippedRecords, center: Array, clip_norm: float, event: Noise) -> float:
    """The root mean square distance of clipped records from the center, plus twice its noise."""
    fraction = data.noisy_fraction(center, clip_norm, "square", event)
    return clip_norm * math.sqrt(min(1.0, max(0.0, fraction) + 2 * data.fraction_noise(event)))


@dataclass(eq=False)
class _Average:
    """The rounds' estimates, weighted by how little noise they have, and the error of their average.

    All rounds see the same records, so their sampling errors and biases add up; their noise is independent.
    On a symmetric distribution, clipping around a center that is off by e has a bias of at most e times the share
    that is clipped: what is cut off is odd around the center, and moves no faster than the center does.
    """

    records: int
    spread: float | None = None  # of clipped records; until it is known, the clip norm bounds it
    values: list[Array] = field(default_factory=list)
    rounds: list[tuple[float, float, float]] = field(default_factory=list)  # noise, clip norm, bias

    def include(
        self, center: Array, data: ClippedRecords, clip_norm: float, release: NoisySum, bias: float
    ) -> None:
        """One more round: move the center by the noisy mean of the records clipped around it."""
        moved = data.noisy_offset(center, clip_norm, release.noise, math.inf)
        self.values.append(center + moved)
        self.rounds.append((release.noise_error(clip_norm), clip_norm, bias))

    @property
    def weights(self) -> Array:
        noise = np.array(self.rounds)[:, 0]
        precisions: Array = (noise[0] / noise) ** 2
        return precisions / float(precisions.sum())

    @property
    def value(self) -> Array:
        mean: Array = self.weights @ np.stack(self.values)
        return mean

    @property
    def error(self) -> float:
        """Root mean squared, predicted."""
        weights, (noise, clip_norms, biases) = self.weights, np.array(self.rounds).T
        spread = float(weights @ clip_norms) if self.spread is None else self.spread
        noise_of_average = float(np.linalg.norm(weights * noise))
        return math.hypot(noise_of_average, spread / math.sqrt(self.records), float(weights @ biases))
