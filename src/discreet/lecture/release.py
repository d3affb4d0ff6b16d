"""A private linear model as released, and how it is charged."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from discreet.core.mechanisms import Release
from discreet.core.randomness import RandomStream
from discreet.events import ApproximateDP
from discreet.guarantee import Budget, Guarantee
from discreet.ledger import FixedPlan, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.trusted.permits import NoisePermit, StepNoise, pay_at_once


@dataclass(frozen=True, eq=False)
class LinearRelease(Release):
    """Coefficients and what they cost: ``value`` has one number for each column of X.

    ``predicted_excess`` bounds the expected empirical risk of ``value`` above that of every parameter of norm at
    most ``norm_guess``; see :mod:`discreet.lecture.utility`. ``settings`` are the public numbers of the
    procedure.
    """

    predicted_excess: float
    settings: dict[str, Any]


def charge(
    ledger: AnyLedger,
    ledger_key: KeyFile,
    noise: StepNoise,
    clip_norm: float | None,
    stream: RandomStream,
    guarantee: Guarantee,
    settings: dict[str, Any],
    *,
    times: int | None = None,
) -> NoisePermit:
    """Charge ``noise`` once, or ``times`` times, in a run that is named after the method, and return the permit.

    Guarantee: when this returns, the cost is in the ledger, and what it holds is within its budget.
    """
    event = noise.event if times is None else noise.event * times
    rule = FixedPlan.at_its_cost(event, guarantee.delta, guarantee.neighbours, guarantee.group_size)
    canonical = json.dumps({"event": event.to_dict()} | settings, sort_keys=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    with Till.open(ledger, rule, key=ledger_key, digest=digest) as till:
        if isinstance(event, ApproximateDP):
            till.refuse_other_neighbours()
        name = till.free_name(settings["method"])
        return pay_at_once(till, noise, clip_norm, stream, name=name, times=times)


def black_box(budget: Budget, delta: float) -> ApproximateDP:
    """The event of a release that is calibrated to the budget as a whole, with a hair of room for rounding."""
    return ApproximateDP(budget.epsilon * (1 - 1e-10), delta)
