"""Which order, cut and exposure let an event fit into a filter most often.

Nothing here is a guarantee: a filter is sound for every order, cut and exposure that it accepts, and prices events by
:func:`~discreet.accounting.truncated.truncated_costs`, so that a bad choice leaves room for fewer releases, never for
more than the budget allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from discreet.accounting.pairs import Array
from discreet.accounting.truncated import costs_of_cuts, largest_cut
from discreet.events import Event
from discreet.guarantee import Budget


class Truncation(NamedTuple):
    """What is fixed before the first release, and about how often an event fits then."""

    fits: float
    order: float
    cut: float
    exposure: float


def best_truncation(
    event: Event, budget: Budget, limit: Callable[[float, float], float]
) -> Truncation | None:
    """About the truncation in which ``event`` fits most often; None if none leaves room for it.

    ``limit`` says what divergences may add up to, given the order and how much of delta is set aside as exposure.
    """
    coarse = max(_choices(event, budget, limit, 1 + np.geomspace(0.1, 200, 40), 1.0), default=None)
    if coarse is None:
        return None
    near = 1 + (coarse.order - 1) * np.geomspace(0.85, 1.18, 15)
    return max(coarse, *_choices(event, budget, limit, near, coarse.cut))


def _choices(
    event: Event, budget: Budget, limit: Callable[[float, float], float], orders: Array, about: float
) -> Iterator[Truncation]:
    """The best cut for each order and exposure."""
    for order in [float(f"{order:.4g}") for order in orders]:
        cuts = np.array([float(f"{about * scale:.3g}") for scale in np.geomspace(0.02, 50, 300)])
        cuts = np.unique(cuts[cuts <= largest_cut(order)])
        costs = costs_of_cuts(event, order, cuts, budget.neighbours, budget.group_size)
        for exposure in [share * budget.delta for share in (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)]:
            room = [limit(order, exposure) / divergences for divergences, _ in costs.values()]
            room += [exposure / np.maximum(masses, 1e-300) for _, masses in costs.values()]
            fits = np.minimum.reduce(room)
            best = int(np.argmax(fits))
            if fits[best] > 0:
                yield Truncation(float(fits[best]), order, float(cuts[best]), exposure)
