"""Quantiles, chosen privately among the points of a public grid: :func:`private_quantiles`.

Every number is moved to the nearest point of the grid. A point c misses the rank q n by max(0, L - q n, q n - E),
where L records are below c and E are not above it: by nothing, if it is the quantile. One record more changes L and
E by 0 or 1 and q n by q, so what is missed by s = max(q, 1 - q) at most; one record exchanged for another leaves n as
it is, and changes it by s = 1 at most. All of it is in whole numbers, in units of 2**-20.

**One level.** Every point gets a geometric number as noise, and the one that is best then wins: as good as
permute-and-flip, and better than the exponential mechanism. Given the noise of all other points, a point wins if its
own noise is above a whole number. One record more moves that number by twice the sensitivity s at most, and
P(noise >= k + 2 s) >= exp(-2 s / scale) P(noise >= k) for a geometric law, P(noise = k) in proportion to
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
import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from discreet.certificate import Arithmetic, Certificate
from discreet.core.choice import choose
from discreet.core.randomness import RandomStream, system_stream
from discreet.core.silence import silently
from discreet.errors import InvalidParameter, probability, real
from discreet.events import ApproximateDP
from discreet.guarantee import Budget, of_records
from discreet.ledger import FixedPlan, Till
from discreet.plan.plan import Plan
from discreet.statistics.bounded_sums import interval, vector
from discreet.statistics.purchase import Paying
from discreet.statistics.statistic import Statistic

Counts = NDArray[np.int64]

POINTS = 2**16
"""Points of the grid between the bounds."""

SPREAD = 2**16
"""Places within a point, for the records of several levels."""

_UNIT = 2**20  # of a score
_SIDES = 0.5  # of the budget goes to the two ends of an interval


@silently
def private_quantiles(
    x: Any,
    budget: Budget,
    levels: float | Sequence[float],
    bounds: tuple[float, float],
    *,
    confidence: float | None = None,
    **paying: Unpack[Paying],
) -> Statistic:
    """The quantiles of numbers at these levels, such as 0.5 or (0.25, 0.5, 0.75), within declared bounds.

    The grid has 65 536 points between the bounds. Ask for all levels at once: up to 3 cost as much as 2 alone, up to
    7 as 3, up to 15 as 4. Without ``confidence`` there are no intervals, and all of the budget goes to the quantiles
    themselves; with it, half of it goes to intervals that hold the quantile of these very records with at least this
    chance each. NaN is no record.

    Guarantee: costs at most epsilon, whatever the records hold; delta is not spent. A ledger that holds Gaussian
    releases only refuses.
    """
    of_records(budget)
    wanted = [levels] if isinstance(levels, int | float) else list(levels)
    asked = sorted({probability("levels", level, remedy="For instance 0.5.") for level in wanted})
    if not asked:
        raise InvalidParameter("levels", levels, "must be one level or more.")
    known = interval(bounds)
    level = None if confidence is None else probability("confidence", confidence, remedy="For instance 0.9.")
    step = (known.upper - known.lower) / (POINTS - 1)
    values = vector(x)
    values = np.clip(values[np.isfinite(values)], known.lower, known.upper)
    places = np.clip(np.rint((values - known.lower) / step), 0, POINTS - 1).astype(np.int64)
    chooser = _Chooser(places, budget, len(asked), level)
    settings = {"levels": asked, "bounds": [known.lower, known.upper], "confidence": level}
    certificate, stream = _pay(settings, chooser.event, budget, **paying)
    found = known.lower + step * chooser.middle(asked, stream)
    ends = [np.full(len(asked), math.nan)] * 2
    if level is not None:  # half a step more, for the moving to the grid
        low, high = chooser.ends(asked, stream)
        ends = [known.lower + step * (low - 0.5), known.lower + step * (high + 0.5)]
        ends = [np.clip(end, known.lower, known.upper) for end in ends]
    order = [asked.index(float(one)) for one in wanted]
    value, lower, upper = (part[order] for part in (found, *ends))
    if isinstance(levels, int | float):
        one = (float(value[0]), float(lower[0]), float(upper[0]))
        return Statistic(f"quantile {levels:g}", *one, math.nan, level or math.nan, certificate)
    labels = tuple(f"quantile {one:g}" for one in wanted)
    return Statistic(
        "quantiles", value, lower, upper, value * math.nan, level or math.nan, certificate, labels
    )


class _Chooser:
    """Choices among the points of the grid, with so much noise that all of them cost the budget."""

    def __init__(self, places: Counts, budget: Budget, levels: int, confidence: float | None) -> None:
        at_each = np.bincount(places, minlength=POINTS)
        self._up_to = np.cumsum(at_each)
        self._below, self._places = self._up_to - at_each, places
        self._budget, self._rounds = budget, levels.bit_length()
        whole = budget.epsilon * (1 - 1e-12)
        sides = 0.0 if confidence is None else whole * _SIDES
        self.epsilon, self._side, self._sides = (whole - sides) / self._rounds, sides / levels / 2, 2 * levels
        self._chance = 1.0 if confidence is None else (1 - confidence) / 2
        for part in (self.epsilon, self._side) if confidence is not None else (self.epsilon,):
            least = 1e-5 * budget.reach
            real("epsilon", part, at_least=least, remedy="This is what is left for one choice; ask for less.")

    @property
    def event(self) -> ApproximateDP:
        """All choices together, for one record of a group."""
        cost = self.epsilon * self._rounds + self._side * self._sides
        return ApproximateDP(cost / self._budget.group_size * (1 + 1e-13), 0.0)

    def middle(self, levels: list[float], stream: RandomStream) -> Counts:
        """The quantiles, in the order of their levels."""
        if len(levels) == 1:
            return np.array([self._choose(levels[0], 0.0, self.epsilon, stream)])
        spread = np.sort(self._places * SPREAD + stream.integers(SPREAD, self._places.shape))
        return np.array(self._split(levels, (0.0, 1.0), spread, (0, POINTS * SPREAD - 1), stream)) // SPREAD

    def _split(
        self,
        levels: list[float],
        between: tuple[float, float],
        spread: Counts,
        ends: tuple[int, int],
        stream: RandomStream,
    ) -> list[int]:
        """The quantiles at these levels of the whole, of whose records ``spread`` is the part between two levels."""
        if not levels:
            return []
        half = len(levels) // 2
        middle, (low, high) = levels[half], between
        share = _share((middle - low) / (high - low))
        scale = _scale(_reach(share, self._budget, alone=between == (0.0, 1.0)), self.epsilon)
        found = _chosen_place(spread, share, scale, ends, stream)
        left, right = _part(spread, found)
        return [
            *self._split(levels[:half], (low, middle), left, (ends[0], found), stream),
            found,
            *self._split(levels[half + 1 :], (middle, high), right, (found, ends[1]), stream),
        ]

    def ends(self, levels: list[float], stream: RandomStream) -> tuple[Counts, Counts]:
        """For each level a point that is surely not above the quantile, and one that is surely not below it.

        With the chance 1 - b no noise of G points is beyond scale * ln(G / b). Some point misses nothing, so the one
        that wins misses its rank by no more than its noise. Aimed so much to the side, it is on that side of the
        quantile.
        """
        found = np.empty((2, len(levels)), np.int64)
        for place, level in enumerate(levels):
            scale = self._scale(level, self._side) / _UNIT
            aside = scale * math.log(POINTS / self._chance) + 1
            for end, side in enumerate((-1, 1)):
                found[end, place] = self._choose(level, side * aside, self._side, stream)
        return found[0], found[1]

    def _choose(self, level: float, aside: float, epsilon: float, stream: RandomStream) -> int:
        """A point of about this rank. The first and the last one have all ranks beyond the records', too."""
        rank = _share(level) * len(self._places) + round(aside * _UNIT)
        missed = _misses(rank, self._below, self._up_to)
        missed[0], missed[-1] = max(0, rank - _UNIT * self._up_to[0]), max(0, _UNIT * self._below[-1] - rank)
        drawn = stream.discrete_laplace(self._scale(level, epsilon), missed.shape)
        # -1, -2, ... become 0, 1, ...: the sum of two geometric laws of the same ratio is one.
        return int(np.argmax(np.where(drawn < 0, -1 - drawn, drawn) - missed))

    def _scale(self, level: float, epsilon: float) -> int:
        return _scale(_reach(_share(level), self._budget, alone=True), epsilon)


def _chosen_place(spread: Counts, share: int, scale: int, ends: tuple[int, int], stream: RandomStream) -> int:
    """A place of about this share of the records, which are sorted. Places between two records are a group."""
    taken, records = np.unique(spread, return_counts=True)
    up_to = np.cumsum(records)
    after = np.concatenate(([0], up_to))
    first = np.concatenate(([ends[0]], taken + 1, taken))
    sizes = np.concatenate((taken, [ends[1] + 1], taken + 1)) - first
    below, within = np.concatenate((after, up_to - records)), np.concatenate((after, up_to))
    group, place = choose(_misses(share * len(spread), below, within), sizes, scale, stream)
    return int(first[group]) + place


def _part(spread: Counts, place: int) -> tuple[Counts, Counts]:
    """The records up to a place, and those above it: nobody's side depends on others."""
    cut = int(np.searchsorted(spread, place, side="right"))
    return spread[:cut], spread[cut:]


def _misses(rank: int, below: Counts, up_to: Counts) -> Counts:
    """By how much points miss a rank, in units of 2**-20, where so many records are below and up to them."""
    missed: Counts = np.maximum(0, np.maximum(_UNIT * below - rank, rank - _UNIT * up_to))
    return missed


def _share(level: float) -> int:
    return round(level * _UNIT)


def _reach(share: int, budget: Budget, *, alone: bool) -> int:
    """By how much neighbouring tables can change what is missed, if all records make the choice ``alone``.

    Otherwise records exchanged may be in two parts, whose choices pay for one of them each.
    """
    if alone and budget.neighbours == "replace-one":
        return _UNIT * budget.group_size
    return max(share, _UNIT - share) * budget.reach


def _scale(reach: int, epsilon: float) -> int:
    """Of the noise, rounded up: twice the sensitivity over epsilon."""
    return math.ceil(2 * reach / Fraction(epsilon))


def _pay(
    settings: dict[str, Any], event: ApproximateDP, budget: Budget, **paying: Unpack[Paying]
) -> tuple[Certificate, RandomStream]:
    """Pay for all choices, before the first."""
    seed = paying.get("unsafe_seed")
    stream = system_stream() if seed is None else RandomStream(unsafe_seed=seed)
    run = f"quantiles-{os.urandom(8).hex()}"
    rule = FixedPlan(event, replace(budget, delta=0.0))
    plan = Plan.adaptive("private quantiles", rule, {**settings, "run": run})
    with Till.open(paying.get("ledger"), plan, key=paying.get("ledger_key")) as opened:
        till = Till.open(opened.ledger, plan)
        till.refuse_other_neighbours()
        till.pay(event, name=run)
        exact = Arithmetic("hardened", 1e-300)  # whole numbers: nothing is approximated
        return Certificate.of(till.ledger, plan, arithmetic=exact, trusted=stream.trusted), stream
