"""Proposals for the numbers of spending rules. Any of them are sound, and the rules check them."""

from __future__ import annotations

import math

from discreet.accounting.curve import account
from discreet.accounting.truncation_search import best_truncation
from discreet.errors import BudgetExceeded
from discreet.events import Event
from discreet.guarantee import Budget, Neighbours
from discreet.ledger.filters import SPARE, epsilon_at, renyi_limit


def proposed_truncation(event: Event, budget: Budget) -> tuple[float, float, float]:
    """Order, cut and exposure of the filter in which ``event`` fits about most often."""

    def limit(order: float, exposure: float) -> float:
        return float(renyi_limit(budget.epsilon, budget.delta * (1 - SPARE) - exposure, order))

    best = best_truncation(event, budget, limit)
    if best is None:
        raise BudgetExceeded(f"no order leaves room for {event!r} in this budget; use more noise.")
    return best.order, best.cut, best.exposure


def proposed_epsilon(event: Event, delta: float, neighbours: Neighbours, group_size: int) -> float:
    """Return the epsilon of ``event`` at ``delta``, and a little less delta for noise in integers if possible."""
    curve = account(event, neighbours, group_size)
    epsilon = epsilon_at(curve, delta * (1 - SPARE))
    epsilon = curve.guarantee(delta).epsilon.upper if epsilon == math.inf else epsilon
    return max(epsilon, math.ulp(0.0))
