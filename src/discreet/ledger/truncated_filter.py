"""A filter for every kind of release, in which rare large losses count as exposure and the others as moments.

Fixed before the first release: one real order a, one ``cut``, and the part of delta, ``exposure``, that is set aside
for losses above the cut. Each event has two prices in each direction (a record is removed, or added), from the pair
(P, Q) that dominates it (:mod:`discreet.accounting.truncated`): its truncated divergence, and the probability of a
loss above the cut. In each direction the divergences may add up to ``limit`` and the probabilities to ``exposure``.

Why this is enough. Fix two neighbours, and so the direction. A dominating pair yields, through some kernel, the
outputs of its event in both worlds (Blackwell), so the releases may be replaced by draws x_1, x_2, ... from P_1, P_2,
..., each chosen from the earlier draws, as Q_1, Q_2, ... are in the other world. Let L_i be the loss of x_i, G_i the
set where it is at most the cut, L the sum of the losses, and G the event that all G_i occur. Given the past,

    E_P[e^{(a-1) L_i}; G_i]  <=  e^{(a-1) divergence_i},         P(not G_i)  <=  mass_i.

So e^{(a-1)(L - sum of divergences)} on G is a supermartingale, and E_P[e^{(a-1) L}; G] <= e^{(a-1) limit} wherever
the run stops, for the sum of divergences never exceeds the limit; and P(not G) is at most the expected sum of the
masses, hence at most ``exposure``. Since 1 - e^{epsilon - L} <= c e^{(a-1)(L - epsilon)}, c = (1/a) (1 - 1/a)^{a-1},

    delta(epsilon)  <=  P(not G) + E_P[(1 - e^{epsilon - L})_+; G]  <=  exposure + c e^{(a-1)(limit - epsilon)},

which is delta by the choice of ``limit``. Nothing was asked of how events are chosen. Order, cut and split, however,
must be fixed before: they may not depend on any output.

>>> from discreet.events import Gaussian, PoissonSampled
>>> step = PoissonSampled(rate=0.001, of=Gaussian(noise_multiplier=1.0))
>>> TruncatedRenyiFilter.for_event(step, Budget(epsilon=1.0, delta=1e-6)).room({}, step)  # untruncated: 11 700
26687
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from discreet.accounting.truncated import best_truncation, checked_order_and_cut, truncated_costs
from discreet.errors import BudgetExceeded, InvalidParameter, UnsupportedEvent, real
from discreet.events import Event
from discreet.guarantee import Budget
from discreet.ledger.filters import LEAST, READ, Filter, checked_budget, renyi_limit


@dataclass(frozen=True)
class TruncatedRenyiFilter(Filter):
    """Releases of any kind, chosen along the way: truncated Renyi divergences of ``order`` add up, and so do the
    probabilities of losses above ``cut``, which may use up ``exposure``, a part of the budget's delta.

    Guarantee: the releases together are within the budget. None of the three numbers may depend on the data;
    :meth:`for_event` finds good ones for what is planned most.
    """

    budget: Budget
    order: float
    cut: float
    exposure: float
    kind: ClassVar[str] = "truncated-renyi-filter"

    def __post_init__(self) -> None:
        checked_budget(self.budget)
        order, cut = checked_order_and_cut(self.order, self.cut)
        exposure = real("exposure", self.exposure, above=0, below=self.budget.delta)
        for name, value in (("order", order), ("cut", cut), ("exposure", exposure)):
            object.__setattr__(self, name, value)
        if self.limits()[0] <= 0:
            remedy = "at this order the budget has room for nothing; choose a larger one, or use for_event()."
            raise InvalidParameter("order", order, remedy)

    def prices(self, event: Event) -> tuple[float, ...]:
        try:
            return _prices(event, self.order, self.cut, self.budget)
        except UnsupportedEvent as error:
            raise UnsupportedEvent(f"no filter can price {event!r}: {error}") from None

    def limits(self) -> tuple[Fraction, ...]:
        """For each direction: what the divergences, and what the masses may add up to."""
        left = self.budget.delta - self.exposure
        limit = renyi_limit(self.budget.epsilon, left, self.order)
        return (limit, Fraction(self.exposure)) * 2

    def to_dict(self) -> dict[str, Any]:
        numbers = {"order": self.order, "cut": self.cut, "exposure": self.exposure}
        return {"rule": self.kind, "budget": self.budget.to_dict()} | numbers

    @classmethod
    def for_event(cls, event: Event, budget: Budget) -> TruncatedRenyiFilter:
        """The filter in which ``event`` fits about most often, by search; any choice would be sound."""
        checked_budget(budget)

        def limit(order: float, exposure: float) -> float:
            return float(renyi_limit(budget.epsilon, budget.delta - exposure, order))

        best = best_truncation(event, budget, limit)
        if best is None:
            raise BudgetExceeded(f"no order leaves room for {event!r} in this budget; use more noise.")
        return cls(budget, best.order, best.cut, best.exposure)


@lru_cache(maxsize=4096)
def _prices(event: Event, order: float, cut: float, budget: Budget) -> tuple[float, ...]:
    costs = truncated_costs(event, order, cut, budget.neighbours, budget.group_size)
    return tuple(max(price, LEAST) for cost in costs.values() for price in cost)


READ[TruncatedRenyiFilter.kind] = lambda data: TruncatedRenyiFilter(
    Budget.from_dict(data["budget"]), data["order"], data["cut"], data["exposure"]
)
