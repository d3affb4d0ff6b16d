"""Quantiles, chosen privately among the points of a public grid.

Every number is moved to the nearest point of the grid. A point c misses the rank q n by max(0, L - q n, q n - E),
where L records are below c and E are not above it: by nothing, if it is the quantile. One record more changes L and
E by 0 or 1 and q n by q, so what is missed by s = max(q, 1 - q) at most; one record exchanged for another leaves n as
it is, and changes it by s = 1 at most. All of it is in integers, in units of 2**-20.

**One level.** Every point gets a geometric number as noise, and the one that is best then wins: as good as
permute-and-flip, and better than the exponential mechanism. Given the noise of all other points, a point wins if its
own noise is above an integer. One record more moves that number by twice the sensitivity s at most, and
P(noise >= k + 2 s) >= exp(-2 s / scale) P(noise >= k) for a geometric distribution, P(noise = k) in proportion to
exp(-k / scale), k = 0, 1, ... So with scale 2 s / epsilon the choice costs epsilon, and delta 0, however many points
there are and however ties are broken.

**Several levels** are chosen from the middle one outwards (Kaplan, Schnapp, Stemmer 2022), by the exponential
mechanism (:mod:`discreet.core.choice`): the middle one splits the records into those up to it and those above it, and
each part goes on by itself with the levels of its side. A record is in one part of each round, and which one depends
on its own number and on what was released before. So a round costs as much as its dearest choice, and 2^k - 1 levels
cost k rounds. Under replace-one neighbours a record may leave one part and enter another: from the second round on
that is one record less and one more.

Many records of the same number have to be split, too. So every record draws a place of its own within its point of
the grid, evenly; neighbouring tables share those of the records they share. The choices are among these places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from discreet.core.choice import exponential_mechanism
from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation, real
from discreet.events import ApproximateDP
from discreet.guarantee import Budget
from discreet.trusted.plain_data import Array, Data, Integers, conform

POINTS = 2**16
"""Points of the grid between the bounds."""

SPREAD = 2**16
"""Places within a point, for the records of several levels."""

_UNIT = 2**20  # of a score
_SIDES = 0.5  # of the budget goes to the two ends of an interval


@dataclass(frozen=True)
class Quantiles(Data):
    """The quantiles at increasing ``levels`` of a number within bounds, at the cost of ``epsilon`` in all.

    With ``confidence``, half of epsilon goes to intervals that hold each quantile of these very records with at least
    this probability. ``neighbours`` and ``group_size`` are those of the session.
    """

    levels: tuple[float, ...]
    lower: float
    upper: float
    epsilon: float
    confidence: float | None = None
    neighbours: str = "add-remove"
    group_size: int = 1
    column: int = 0

    def __post_init__(self) -> None:
        conform(self)
        between = all(0 < level < 1 for level in self.levels)
        if not self.levels or not between or list(self.levels) != sorted(set(self.levels)):
            raise PlanViolation("The levels of quantiles must be increasing, between 0 and 1.")
        real("upper", self.upper, above=real("lower", self.lower))
        if not (math.isfinite(self.upper - self.lower) and self.step > 0):
            raise PlanViolation("The bounds of quantiles must be a finite distance apart.")
        for part in (self._each, self._side) if self.confidence is not None else (self._each,):
            least = 1e-5 * self._budget.reach
            real("epsilon", part, at_least=least, remedy="This is what is left for one choice; ask for less.")

    @property
    def event(self) -> ApproximateDP:
        """All choices together, for one record of a group."""
        cost = self._each * self._rounds + self._side * 2 * len(self.levels)
        return ApproximateDP(cost / self.group_size * (1 + 1e-13), 0.0)

    @property
    def step(self) -> float:
        """The distance of two points of the grid."""
        return (self.upper - self.lower) / (POINTS - 1)

    @property
    def _budget(self) -> Budget:
        return Budget(self.epsilon, 0.0, self.neighbours, self.group_size)  # type: ignore[arg-type]

    @property
    def _rounds(self) -> int:
        return len(self.levels).bit_length()

    @property
    def _sides(self) -> float:
        return 0.0 if self.confidence is None else self.epsilon * (1 - 1e-12) * _SIDES

    @property
    def _each(self) -> float:
        """Epsilon of one round."""
        return (self.epsilon * (1 - 1e-12) - self._sides) / self._rounds

    @property
    def _side(self) -> float:
        """Epsilon of one end of an interval."""
        return self._sides / len(self.levels) / 2

    def places(self, rows: Array) -> Integers:
        """Return the grid point of each number; a NaN or infinity has none."""
        values = rows[:, self.column]
        values = np.clip(values[np.isfinite(values)], self.lower, self.upper)
        return np.clip(np.rint((values - self.lower) / self.step), 0, POINTS - 1).astype(np.int64)

    def choose(self, places: Integers, stream: RandomStream) -> Array:
        """Return quantiles, lower and upper ends in three rows; the ends are NaN without ``confidence``.

        Guarantee: costs what :attr:`event` says, for the records whose grid points are given.
        """
        chooser = _Chooser(places, self)
        found = self.lower + self.step * chooser.middle(list(self.levels), stream)
        ends = [np.full(len(found), math.nan)] * 2
        if self.confidence is not None:  # half a step more, for the rounding to the grid
            low, high = chooser.ends(self.levels, (1 - self.confidence) / 2, stream)
            ends = [self.lower + self.step * (low - 0.5), self.lower + self.step * (high + 0.5)]
            ends = [np.clip(end, self.lower, self.upper) for end in ends]
        return np.stack([found, *ends])


class _Chooser:
    """The choices of a :class:`Quantiles` query among the points of its grid."""

    def __init__(self, places: Integers, query: Quantiles) -> None:
        at_each = np.bincount(places, minlength=POINTS)
        self._up_to = np.cumsum(at_each)
        self._below, self._places = self._up_to - at_each, places
        self._budget, self._epsilon, self._side = query._budget, query._each, query._side

    def middle(self, levels: list[float], stream: RandomStream) -> Integers:
        """The quantiles, in the order of their levels."""
        if len(levels) == 1:
            return np.array([self._choose(levels[0], 0.0, self._epsilon, stream)])
        spread = np.sort(self._places * SPREAD + stream.integers(SPREAD, self._places.shape))
        return np.array(self._split(levels, (0.0, 1.0), spread, (0, POINTS * SPREAD - 1), stream)) // SPREAD

    def _split(
        self,
        levels: list[float],
        between: tuple[float, float],
        spread: Integers,
        ends: tuple[int, int],
        stream: RandomStream,
    ) -> list[int]:
        """The quantiles at these levels of the whole, of whose records ``spread`` is the part between two levels."""
        if not levels:
            return []
        half = len(levels) // 2
        middle, (low, high) = levels[half], between
        share = _share((middle - low) / (high - low))
        scale = _scale(_sensitivity(share, self._budget, alone=between == (0.0, 1.0)), self._epsilon)
        found = _chosen_place(spread, share, scale, ends, stream)
        left, right = _part(spread, found)
        return [
            *self._split(levels[:half], (low, middle), left, (ends[0], found), stream),
            found,
            *self._split(levels[half + 1 :], (middle, high), right, (found, ends[1]), stream),
        ]

    def ends(self, levels: tuple[float, ...], miss: float, stream: RandomStream) -> tuple[Integers, Integers]:
        """For each level a point that is surely not above the quantile, and one that is surely not below it.

        With the chance 1 - b no noise of G points is beyond scale * ln(G / b). Some point misses nothing, so the one
        that wins misses its rank by no more than its noise. Aimed so much to the side, it is on that side of the
        quantile.
        """
        found = np.empty((2, len(levels)), np.int64)
        for place, level in enumerate(levels):
            scale = self._scale(level, self._side) / _UNIT
            aside = scale * math.log(POINTS / miss) + 1
            for end, side in enumerate((-1, 1)):
                found[end, place] = self._choose(level, side * aside, self._side, stream)
        return found[0], found[1]

    def _choose(self, level: float, aside: float, epsilon: float, stream: RandomStream) -> int:
        """A point of about this rank. The first and the last one have all ranks beyond the records', too."""
        rank = _share(level) * len(self._places) + round(aside * _UNIT)
        missed = _misses(rank, self._below, self._up_to)
        missed[0], missed[-1] = max(0, rank - _UNIT * self._up_to[0]), max(0, _UNIT * self._below[-1] - rank)
        drawn = stream.discrete_laplace(self._scale(level, epsilon), missed.shape)
        # -1, -2, ... become 0, 1, ...: the sum of two geometric distributions of the same ratio is one.
        return int(np.argmax(np.where(drawn < 0, -1 - drawn, drawn) - missed))

    def _scale(self, level: float, epsilon: float) -> int:
        return _scale(_sensitivity(_share(level), self._budget, alone=True), epsilon)


def _chosen_place(
    spread: Integers, share: int, scale: int, ends: tuple[int, int], stream: RandomStream
) -> int:
    """A place of about this share of the records, which are sorted. Places between two records are a group."""
    taken, records = np.unique(spread, return_counts=True)
    up_to = np.cumsum(records)
    after = np.concatenate(([0], up_to))
    first = np.concatenate(([ends[0]], taken + 1, taken))
    sizes = np.concatenate((taken, [ends[1] + 1], taken + 1)) - first
    below, within = np.concatenate((after, up_to - records)), np.concatenate((after, up_to))
    group, place = exponential_mechanism(_misses(share * len(spread), below, within), sizes, scale, stream)
    return int(first[group]) + place


def _part(spread: Integers, place: int) -> tuple[Integers, Integers]:
    """The records up to a place, and those above it: nobody's side depends on others."""
    cut = int(np.searchsorted(spread, place, side="right"))
    return spread[:cut], spread[cut:]


def _misses(rank: int, below: Integers, up_to: Integers) -> Integers:
    """By how much points miss a rank, in units of 2**-20, where so many records are below and up to them."""
    missed: Integers = np.maximum(0, np.maximum(_UNIT * below - rank, rank - _UNIT * up_to))
    return missed


def _share(level: float) -> int:
    return round(level * _UNIT)


def _sensitivity(share: int, budget: Budget, *, alone: bool) -> int:
    """By how much neighbouring tables can change what is missed, if all records make the choice ``alone``.

    Otherwise records exchanged may be in two parts, whose choices pay for one of them each.
    """
    if alone and budget.neighbours == "replace-one":
        return _UNIT * budget.group_size
    return max(share, _UNIT - share) * budget.reach


def _scale(reach: int, epsilon: float) -> int:
    """Of the noise, rounded up: twice the sensitivity over epsilon."""
    return math.ceil(2 * reach / Fraction(epsilon))
