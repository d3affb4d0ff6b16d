"""Proposes the numbers of a truncated filter. Any of them are sound, and the filter checks them."""

from __future__ import annotations

from discreet.accounting.truncation_search import best_truncation
from discreet.errors import BudgetExceeded
from discreet.events import Event
from discreet.guarantee import Budget
from discreet.ledger.filters import SPARE, renyi_limit


def proposed_truncation(event: Event, budget: Budget) -> tuple[float, float, float]:
    """Order, cut and exposure of the filter in which ``event`` fits about most often."""

    def limit(order: float, exposure: float) -> float:
        return float(renyi_limit(budget.epsilon, budget.delta * (1 - SPARE) - exposure, order))

    best = best_truncation(event, budget, limit)
    if best is None:
        raise BudgetExceeded(f"no order leaves room for {event!r} in this budget; use more noise.")
    return best.order, best.cut, best.exposure
