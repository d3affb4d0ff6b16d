"""A private linear model as released, and how it is charged."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from itertools import count
from typing import Any

from discreet.errors import InvalidParameter
from discreet.events import ApproximateDP, Event, Gaussian, Laplace
from discreet.guarantee import Budget
from discreet.ledger import Ledger
from discreet.mechanisms import Release


@dataclass(frozen=True, eq=False)
class LinearRelease(Release):
    """Coefficients and what they cost: ``value`` has one number for each column of X.

    ``predicted_excess`` bounds the expected empirical risk of ``value`` above that of every parameter of norm at
    most ``norm_guess``; see :mod:`discreet.linear.lecture.utility`. ``settings`` are the public numbers of the
    procedure.
    """

    predicted_excess: float
    settings: dict[str, Any]


def charge(ledger: Ledger | None, event: Event, settings: dict[str, Any], name: str) -> None:
    """Reserve all of ``event`` before anything is released. Without a ledger there is nothing to do.

    Guarantee: when this returns, the cost is in the ledger, and what it holds is within its budget.
    """
    if ledger is None:
        return
    if not isinstance(ledger, Ledger):
        raise InvalidParameter("ledger", type(ledger), "must be a Ledger, such as Ledger.create(...).")
    canonical = json.dumps({"event": event.to_dict()} | settings, sort_keys=True)
    taken = ledger.runs()
    free = next(free for number in count(1) if (free := f"{name}-{number}") not in taken)
    run = ledger.run(event, hashlib.sha256(canonical.encode()).hexdigest(), name=free)
    for part, times in event.parts():
        run.reserve(times, part)


def black_box(budget: Budget, delta: float) -> ApproximateDP:
    """The event of a release that is calibrated to the budget as a whole, with a hair of room for rounding."""
    return ApproximateDP(budget.epsilon * (1 - 1e-10), delta)


def deviation(event: Gaussian | Laplace) -> float:
    """Standard deviation of the noise on one coordinate of a sum, in clip norms."""
    return event.noise_multiplier if isinstance(event, Gaussian) else math.sqrt(2) * event.scale
