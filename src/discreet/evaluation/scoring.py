"""Where a record falls: the cells of an evaluation, and what their noisy counts say.

A record adds to one cell of each of a few blocks, such as (label, bin of the probability). The blocks are weighed so
that what a record adds to all of them has norm 1: a single release is all that an evaluation costs, and every score
is a function of the noisy counts.

**Errors.** To first order a score moves with the count of cell c by some slope s_c. The noise adds the sum of
s_c^2 * noise^2 to its variance, and the drawing of the records from their population the sum of s_c^2 * count_c, the
variance of a Poisson sum. Where persons count and rows weigh less than 1, the latter is an upper bound, by Jensen's
inequality: the square of a person's weighted mean is at most the weighted mean of the squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SURE = 4.0  # standard deviations of noise that a number must be above, to be divided by


@dataclass(frozen=True)
class CellBlock:
    """So many cells, and the share of the squared weight that they have."""

    name: str
    size: int
    share: float = 1.0


@dataclass(frozen=True)
class NoisyCounts:
    """Noisy counts of the cells of one block, and the standard deviation of each one's noise."""

    cells: Array
    noise: float

    def of(self, where: NDArray[np.bool_] | slice) -> NoisyCounts:
        """Some of the cells."""
        return NoisyCounts(self.cells[where], self.noise)

    @property
    def total(self) -> float:
        """How many records there are in all cells, noisily."""
        return float(self.cells.sum())

    @property
    def enough(self) -> bool:
        """False where noise alone could explain the number of records: then nothing can be divided by it."""
        return self.total > SURE * self.noise * math.sqrt(self.cells.size)

    def error(self, slopes: Array, within: Array | float = 0.0) -> tuple[float, float]:
        """The standard deviations, by noise and by sampling, of a score with these slopes.

        ``within`` is the variance of the slope between the records of a cell.
        """
        squares = np.square(slopes)
        sampling = float((self.cells * (squares + within)).sum())
        floor = float(squares.max(initial=0.0)) * max(1.0, self.noise)  # where noise made the sum vanish
        return self.noise * math.sqrt(float(squares.sum())), math.sqrt(max(sampling, floor))


@dataclass(frozen=True)
class Score:
    """A score with its interval, for noise and sampling together; ``value`` is NaN where records are too few.

    ``noise`` and ``sampling`` are the two standard deviations. The interval is of the population from which the
    records were drawn, at the ``confidence`` of the evaluation.
    """

    value: float
    lower: float
    upper: float
    noise: float = math.nan
    sampling: float = math.nan

    @property
    def resolved(self) -> bool:
        """False where the noise leaves nothing to be said."""
        return math.isfinite(self.value)

    def __str__(self) -> str:
        if not self.resolved:
            return "not resolved at this budget"
        return f"{self.value:.4g} ({self.lower:.4g} to {self.upper:.4g})"


@dataclass(frozen=True)
class Scoring:
    """From estimates to scores: how many standard deviations an interval reaches."""

    reach: float

    def score(
        self, value: float, errors: tuple[float, float], least: float = 0.0, most: float = math.inf
    ) -> Score:
        """A score within its limits."""
        half = self.reach * math.hypot(*errors)
        middle, lower, upper = (min(max(end, least), most) for end in (value, value - half, value + half))
        return Score(middle, lower, upper, *errors)

    def unresolved(self, least: float = 0.0, most: float = math.inf) -> Score:
        """The score of records that noise hides."""
        return Score(math.nan, least, most)

    def mean(
        self,
        counts: NoisyCounts,
        values: Array,
        within: Array | float = 0.0,
        *,
        least: float = 0.0,
        most: float = math.inf,
    ) -> Score:
        """The mean of a number that is known for each cell, up to a variance ``within`` it."""
        if not counts.enough:
            return self.unresolved(least, most)
        mean = float((counts.cells * values).sum()) / counts.total
        errors = counts.error((values - mean) / counts.total, within / counts.total**2)
        return self.score(mean, errors, least, most)

    def number(self, counts: NoisyCounts) -> Score:
        """How many records there are: an interval for the noise alone, since these very records are meant."""
        noise = counts.noise * math.sqrt(counts.cells.size)
        return self.score(counts.total, (noise, 0.0))

    def missing_share(self, part: Score, whole: Score, together: float) -> Score:
        """1 - part / whole, which vary ``together`` by the drawing of the records; R2 is such a share.

        The interval is Fieller's: of all ratios r for which part - r * whole may be 0. It reaches further to the side
        on which the whole would be smaller than it seems, where the slopes of a ratio would promise too much.
        """
        if whole.value <= SURE * whole.noise:
            return self.unresolved(-math.inf, 1.0)
        squared = self.reach**2
        varied = [math.hypot(one.noise, one.sampling) ** 2 for one in (part, whole)]
        slope = part.value * whole.value - squared * together
        least, most = part.value**2 - squared * varied[0], whole.value**2 - squared * varied[1]
        if most <= 0:  # any ratio may be
            return self.unresolved(-math.inf, 1.0)
        ratio, half = part.value / whole.value, math.sqrt(max(slope**2 - least * most, 0.0))
        errors = (
            math.hypot(part.noise, ratio * whole.noise) / whole.value,
            math.sqrt(part.sampling**2 + (ratio * whole.sampling) ** 2 - 2 * ratio * together) / whole.value,
        )
        lower, upper = (min(1 - (slope + side * half) / most, 1.0) for side in (1, -1))
        return Score(1 - ratio, lower, upper, *errors)

    def area(self, negative: NoisyCounts, positive: NoisyCounts) -> Score:
        """The area under the ROC curve: the chance that a positive record scores above a negative one.

        Its slopes are DeLong's: how far a cell's share of the others below it is from the mean of that share.
        """
        if not (negative.enough and positive.enough):
            return self.unresolved(0.0, 1.0)
        below = _ranks(negative.cells) / negative.total
        above = _ranks(positive.cells[::-1])[::-1] / positive.total
        area = float((positive.cells * below).sum()) / positive.total
        first = positive.error((below - area) / positive.total)
        second = negative.error((above - area) / negative.total)
        return self.score(area, (math.hypot(first[0], second[0]), math.hypot(first[1], second[1])), 0.0, 1.0)


def _ranks(cells: Array) -> Array:
    """How many of the records in ``cells`` are below a record of each cell, on average.

    In its own cell it is half of them, and a little more or less where the cells beside it say that they lean to one
    side: with densities 1 + a t and 1 + b t on a cell, t from -1/2 to 1/2, the chance is 1/2 + (a - b)/12.
    """
    beside = np.concatenate([[0.0], cells, [0.0]])
    return np.asarray(np.cumsum(cells) - cells / 2 + (beside[:-2] - beside[2:]) / 12)


class ScoreBins:
    """Public bins of [0, 1], and means over each of them of functions of the number binned, were it spread evenly."""

    def __init__(self, edges: Array) -> None:
        self.edges = edges
        self.low, self.high = edges[:-1], edges[1:]
        self.size = len(edges) - 1

    @property
    def middle(self) -> Array:
        """The mean."""
        return (self.low + self.high) / 2

    @property
    def square(self) -> Array:
        """The mean square."""
        return (self.low**2 + self.low * self.high + self.high**2) / 3

    @property
    def surprise(self) -> Array:
        """The mean of minus the logarithm."""
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = [np.where(end > 0, end - end * np.log(end), 0.0) for end in (self.high, self.low)]
        return np.asarray((parts[0] - parts[1]) / (self.high - self.low))

    @property
    def fourth(self) -> Array:
        """The mean of the fourth power."""
        return np.asarray((self.high**5 - self.low**5) / (self.high - self.low) / 5)

    def leaning(self, power: int) -> Array:
        """What a count in each bin adds to the sum of the number (power 1) or of its square (power 2).

        As :attr:`middle` and :attr:`square`, but the density leans within a bin as the bins beside it say: it is a
        line whose slope goes through their means. Beyond the last bin there is nothing.
        """
        width, middle = self.high - self.low, self.middle
        moment = width**3 / 12 * (1.0 if power == 1 else 2 * middle)
        beyond = np.append(middle, self.edges[-1] + width[-1] / 2)
        per_slope = moment[1:] / (beyond[2:] - beyond[:-2])
        sums = np.copy(middle if power == 1 else self.square)
        sums[:-1] -= per_slope / width[:-1]
        sums[2:] += per_slope[:-1] / width[2:]
        return np.asarray(sums)


def probability_bins(size: int) -> ScoreBins:
    """Bins that are narrow near 0 and 1, where a logarithm is steep; ``size`` is even, and 1/2 is an edge."""
    edges = np.sin(np.pi / 2 * np.arange(size + 1) / size) ** 2
    edges[[0, size // 2, size]] = 0.0, 0.5, 1.0
    return ScoreBins(edges)


def error_bins(size: int) -> ScoreBins:
    """Bins each of which is a third wider than the one below: few are where errors are large and rare."""
    return ScoreBins(np.concatenate([[0.0], 1.35 ** -np.arange(size - 1, -1, -1.0)]))


class Nodes:
    """Public points from 0 to 1. A number between two of them counts for both, in shares that keep its mean exact.

    ``power`` is that of the number whose mean is kept: 2 for a square. So nothing is lost where many records are at
    an end, as errors and targets that were moved to their bounds are.
    """

    def __init__(self, points: Array, power: int) -> None:
        self.points, self.power, self.size = points, power, len(points)

    @property
    def above(self) -> Array:
        """By how much the squares of its two points are above that of a number between them.

        A sixth of their distance squared on average, half of it from either side; nothing at the ends, where numbers
        may be exactly.
        """
        sixth = np.diff(self.points) ** 2 / 6
        return np.concatenate([[0.0], (sixth[:-1] + sixth[1:]) / 2, [0.0]])
