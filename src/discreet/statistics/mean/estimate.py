"""``private_mean``: plan, certify, then look at the data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from discreet.core.mechanisms import Arithmetic, Release, certified_cost, gaussian_event, laplace_event
from discreet.core.noise import SPARED_DELTA, checked_stream, distance_to_continuous, grid_for
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, one_of, real
from discreet.events import Composition, Event, Gaussian
from discreet.guarantee import Budget, of_records
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.statistics.mean.clipped_rows import Array, ClippedRecords
from discreet.statistics.mean.error_bounds import Noise, NoisySum, deviation, share
from discreet.statistics.mean.known import FixedClip, Found, Interval, SecondMoment
from discreet.statistics.mean.recentring import Ball
from discreet.statistics.public_records import public_records
from discreet.statistics.reading import vector_rows
from discreet.trusted.session import Session

Known = Ball | Interval | SecondMoment | FixedClip

BY_PRODUCTS = ("count", "variance")
BY_PRODUCT_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class MeanEstimate(Release):
    """A private mean and what it cost.

    ``predicted_error`` bounds the root mean squared distance between ``value`` and the mean of the distribution that
    the records were drawn from, for the distributions that ``valid_for`` names. It takes the public number of records
    for the true one. ``clip_norm`` is the last one that was used. ``count`` and ``variance`` (of all
    coordinates together, cut off where the records were) are None unless asked for.
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
    known: Known | tuple[float, float],
    *,
    records: int | None = None,
    also: Iterable[str] = (),
    arithmetic: Arithmetic = "hardened",
    stream: RandomStream | None = None,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
) -> MeanEstimate:
    """Return the mean of ``x``, one record in each row: shape ``(n,)`` for numbers or ``(n, d)`` for vectors.

    ``known`` is what is publicly known of a record; bounds ``(lower, upper)`` stand for ``Interval(lower, upper)``.
    ``records`` is the public number of records. Under add-remove neighbours it must be declared, and the
    number of rows is never looked at. ``also`` may name ``"count"`` and ``"variance"``; each takes a tenth of
    the budget (the count is public, hence free, under replace-one neighbours).

    ``arithmetic`` is ``"hardened"``: whole steps of a public grid and discrete noise, so that the guarantee is one of
    the bits of the result. An epsilon above about 16 needs ``"float"``, which is proved for real numbers only.
    ``ledger`` and ``ledger_key`` say what pays, as for every fit; None is a ledger in memory, for this alone.

    Guarantee: all that is in the result costs ``result.guarantee`` together, which is within the budget,
    whatever the rows hold, by the arithmetic that is named and if the stream is trusted. A row with NaN or
    infinity adds nothing to a sum; no error or warning depends on the values of a row.
    """
    known = _checked(budget, known)
    rows, of_numbers = vector_rows(x, budget.neighbours)
    setting = _Setting(
        rows.columns,
        public_records(records, rows.public_count or 0, budget.neighbours),
        "float" if one_of("arithmetic", arithmetic, ("float", "hardened")) == "float" else "hardened",
    )
    remedy = "A delta of 1 / number of records would allow to publish a whole record."
    real("delta", budget.delta, at_least=0, below=1 / setting.records, remedy=remedy)
    wanted = _by_products(also)
    charged = [name for name in wanted if name == "variance" or rows.public_count is None]
    main = 1 - BY_PRODUCT_SHARE * len(charged)
    whole_budget = _noise(budget, known, setting, main)
    extra = share(whole_budget, BY_PRODUCT_SHARE)
    plan = known.plan(NoisySum(share(whole_budget, main), setting.records, setting.dimension))
    event = Composition(tuple((event, 1) for event in (*plan.events, *[extra] * len(charged))))
    guarantee = certified_cost(event, budget, _hardening_cost(event, budget, setting))

    opened = Session.open(
        "private mean",
        {"records": setting.records, "dimension": setting.dimension},
        budget,
        event,
        ledger=ledger,
        ledger_key=ledger_key,
        stream=checked_stream(stream),
        arithmetic=setting.arithmetic,
        most_records=setting.records,
    )
    with opened as session:
        data = ClippedRecords(
            session, session.charge(numbers=setting.dimension, bound=None), rows, setting.records
        )
        found = plan.carry_out(data)
        count, variance = None, None
        if "count" in wanted:
            count = data.noisy_count(extra) if "count" in charged else float(setting.records)
        if "variance" in wanted:
            variance = _variance(data, found, extra)
    return MeanEstimate(
        value=float(found.value[0]) if of_numbers else found.value,
        event=event,
        guarantee=guarantee,
        arithmetic=setting.arithmetic,
        trusted=session.certificate().trusted,
        predicted_error=found.error,
        valid_for=found.valid_for,
        clip_norm=found.clip_norm,
        records=setting.records,
        count=count,
        variance=variance,
    )


class _Setting(NamedTuple):
    """The public parameters of a mean."""

    dimension: int
    records: int
    arithmetic: Arithmetic


def _checked(budget: object, known: object) -> Known:
    of_records(budget)
    if isinstance(known, tuple | list) and len(known) == 2:
        return Interval(*known)
    if not isinstance(known, Known):
        requirement = (
            "must be what is publicly known of a record: bounds (lower, upper), or a Ball, Interval, SecondMoment or "
            "FixedClip of discreet.statistics.mean."
        )
        raise InvalidParameter("known", known, requirement)
    return known


def _by_products(also: Iterable[str]) -> tuple[str, ...]:
    names = (also,) if isinstance(also, str) else tuple(also)
    return tuple(dict.fromkeys(one_of("also", name, BY_PRODUCTS) for name in names))


def _noise(budget: Budget, known: Known, setting: _Setting, main: float) -> Noise:
    """The noise of one release that uses the whole budget: Laplace if it is pure, else what is less."""
    laplace = laplace_event(budget)
    if budget.delta == 0:
        return laplace
    spare = SPARED_DELTA if setting.arithmetic == "hardened" else 0.0
    gaussian = gaussian_event(replace(budget, delta=budget.delta * (1 - spare)))
    louder = known.l1_excess(setting.dimension) * deviation(share(laplace, main))
    return laplace if louder < deviation(share(gaussian, main)) else gaussian


def _hardening_cost(event: Event, budget: Budget, setting: _Setting) -> float:
    """What the discrete noise of hardened sums may add to delta: see :mod:`discreet.core.noise`.

    The clip norms are not known yet, but with any other one than 1 the scale of the noise has at least half
    as many steps, and the distance falls with their square.
    """
    if setting.arithmetic == "float" or budget.delta == 0:
        return 0.0
    distance = 0.0
    for part, count in event.parts():
        if isinstance(part, Gaussian):
            grid = grid_for(part, 1.0, setting.records)
            distance += 4.1 * count * distance_to_continuous(part, 1.0, grid, setting.dimension)
    cost = (1 + math.exp(min(budget.epsilon, 700.0))) * distance
    if cost > SPARED_DELTA * budget.delta:
        requirement = "cannot be certified for so large an epsilon and so small a delta; use 'float'."
        raise InvalidParameter("arithmetic", setting.arithmetic, requirement)
    return cost


def _variance(data: ClippedRecords, found: Found, event: Noise) -> float:
    """The mean squared distance from the center, cut off at the reach, less that of the mean itself."""
    mean_square = data.noisy_fraction(found.center, found.reach, "square", event) * found.reach**2
    return max(0.0, mean_square - float(np.sum((found.value - found.center) ** 2)))
