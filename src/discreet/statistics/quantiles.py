"""Quantiles of a private column: :func:`private_quantiles`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from discreet.core.fp_errors import ignore_fp_errors
from discreet.errors import InvalidParameter, probability
from discreet.guarantee import Budget, of_records
from discreet.statistics.bounded_sums import interval
from discreet.statistics.reading import number_rows
from discreet.statistics.statistic import Paying, Statistic
from discreet.trusted.choices import Quantiles
from discreet.trusted.session import Session


@ignore_fp_errors
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
    query = Quantiles(
        tuple(asked),
        known.lower,
        known.upper,
        budget.epsilon,
        level,
        budget.neighbours,
        budget.group_size,
    )
    rows = number_rows(x, budget.neighbours)
    settings = {"levels": asked, "bounds": [known.lower, known.upper], "confidence": level}
    pure = replace(budget, delta=0.0)
    with Session.open("private quantiles", settings, pure, query.event, **paying) as session:
        found, *ends = session.release(session.charge(), rows, query)
        certificate = session.certificate()
    order = [asked.index(float(one)) for one in wanted]
    value, lower, upper = (part[order] for part in (found, *ends))
    if isinstance(levels, int | float):
        one = (float(value[0]), float(lower[0]), float(upper[0]))
        return Statistic(f"quantile {levels:g}", *one, math.nan, level or math.nan, certificate)
    labels = tuple(f"quantile {one:g}" for one in wanted)
    return Statistic(
        "quantiles", value, lower, upper, value * math.nan, level or math.nan, certificate, labels
    )
