"""Quantiles, chosen privately among the points of a public grid: :func:`private_quantiles`.

Every number is moved to the nearest point of the grid. A point c misses the rank q n by max(0, L - q n, q n - E),
where L records are below c and E are not above it: by nothing, if it is the quantile. One record more changes that by
max(q, 1 - q) at most. Every point gets a geometric number as noise, and the one that is best then wins: as good as
permute-and-flip, and better than the exponential mechanism. All of it is in whole numbers, in units of 2**-20, so
the choice is exact.

**What is proved.** Given the noise of all other points, a point wins if its own noise is above a whole number. One
record more moves that number by twice the sensitivity s at most, and P(noise >= k + 2 s) >= exp(-2 s / scale)
P(noise >= k) for a geometric law, P(noise = k) in proportion to exp(-k / scale), k = 0, 1, ... So with scale
2 s / epsilon the choice costs epsilon, and delta 0, however many points there are and however ties are broken.
Choices add up.
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
from discreet.core.randomness import RandomStream, system_stream
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

_UNIT = 2**20  # of a score
_SIDES = 0.5  # of the budget goes to the two ends of an interval


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

    The grid has 65 536 points between the bounds. Without ``confidence`` there are no intervals, and all of the
    budget goes to the quantiles themselves; with it, half of it goes to intervals that hold the quantile of these
    very records with at least this chance each. NaN is no record.

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
    certificate, stream = _paid(settings, chooser.event, budget, **paying)
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
        self._below, self._records = self._up_to - at_each, len(places)
        epsilon = budget.epsilon / budget.reach * (1 - 1e-12) / levels
        side = 0.0 if confidence is None else epsilon * _SIDES
        self.epsilon, self._side, self._levels = epsilon - side, side / 2, levels
        self._chance = 1.0 if confidence is None else (1 - confidence) / 2
        for part in (self.epsilon, self._side) if confidence is not None else (self.epsilon,):
            real("epsilon", part, at_least=1e-5, remedy="This is what is left for one choice; ask for less.")

    @property
    def event(self) -> ApproximateDP:
        """All choices together, for one record more."""
        return ApproximateDP((self.epsilon + 2 * self._side) * self._levels, 0.0)

    def middle(self, levels: list[float], stream: RandomStream) -> Counts:
        """The quantiles, in the order of their levels."""
        return np.sort([self._chosen(level, 0.0, self.epsilon, stream) for level in levels])

    def ends(self, levels: list[float], stream: RandomStream) -> tuple[Counts, Counts]:
        """For each level a point that is surely not above the quantile, and one that is surely not below it.

        With the chance 1 - b no noise of G points is beyond scale * ln(G / b), so the point that wins misses its rank
        by at most twice that. Aimed so much to the side, it is on that side of the quantile.
        """
        found = np.empty((2, len(levels)), np.int64)
        for place, level in enumerate(levels):
            scale = _scale(level, self._side) / _UNIT
            aside = 2 * scale * math.log(POINTS / self._chance) + 1
            for end, side in enumerate((-1, 1)):
                found[end, place] = self._chosen(level, side * aside, self._side, stream)
        return found[0], found[1]

    def _chosen(self, level: float, aside: float, epsilon: float, stream: RandomStream) -> int:
        share = _share(level)
        rank = share * self._records + round(aside * _UNIT)
        missed = np.maximum(0, np.maximum(_UNIT * self._below - rank, rank - _UNIT * self._up_to))
        drawn = stream.discrete_laplace(_scale(level, epsilon), missed.shape)
        # -1, -2, ... become 0, 1, ...: the sum of two geometric laws of the same ratio is one.
        return int(np.argmax(np.where(drawn < 0, -1 - drawn, drawn) - missed))


def _share(level: float) -> int:
    return round(level * _UNIT)


def _scale(level: float, epsilon: float) -> int:
    """Of the noise, rounded up: twice the sensitivity over epsilon."""
    return math.ceil(2 * max(_share(level), _UNIT - _share(level)) / Fraction(epsilon))


def _paid(
    settings: dict[str, Any], event: ApproximateDP, budget: Budget, **paying: Unpack[Paying]
) -> tuple[Certificate, RandomStream]:
    """Pay for all choices, before the first."""
    seed = paying.get("unsafe_seed")
    stream = system_stream() if seed is None else RandomStream(unsafe_seed=seed)
    run = f"quantiles-{os.urandom(8).hex()}"
    # A group or a replaced record is so many records more or less: each costs the event.
    whole = ApproximateDP(min(event.epsilon * budget.reach * (1 + 1e-13), budget.epsilon), 0.0)
    rule = FixedPlan(whole, replace(budget, delta=0.0))
    plan = Plan.adaptive("private quantiles", rule, {**settings, "run": run})
    with Till.open(paying.get("ledger"), plan, key=paying.get("ledger_key")) as opened:
        till = Till.open(opened.ledger, plan)
        till.refuse_other_neighbours()
        till.pay(whole, name=run)
        exact = Arithmetic("hardened", 1e-300)  # whole numbers: nothing is approximated
        return Certificate.of(till.ledger, plan, arithmetic=exact, trusted=stream.trusted), stream
