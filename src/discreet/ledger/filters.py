"""Three rules by which a ledger spends its budget, each with its theorem.

* :class:`FixedPlan`: the list of releases was written down before the first one. It is accounted as a whole, by
  the sharpest accountant; its releases may then happen in any order, and stopping early is free.
* :class:`GaussianFilter`: releases are chosen along the way, each from what the earlier ones showed, and all
  have Gaussian noise. Their squared signal-to-noise ratios may add up to that of the budget. This costs nothing
  over a fixed plan (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).
* :class:`~discreet.ledger.filters.TruncatedRenyiFilter`: as before, for every event that can be accounted
  for. The Renyi divergences of one order, fixed before the first release, may add up to what the budget allows at
  that order (Feldman and Zrnic 2021); rare large losses count as exposure, which allows twice the steps on small
  samples.

>>> budget = Budget(epsilon=1.0, delta=1e-5)
>>> GaussianFilter(budget).room({}, Gaussian(noise_multiplier=20.0))
28

Two tempting rules are missing because they are false. To go on while *some* order is within the budget, or while
the composed privacy curve of the releases so far is, lets a choice that looks at the outputs exceed the budget.

In the truncated filter rare large losses count as exposure, and the others as moments. Fixed before the first
release: one real order a, one ``cut``, and the part of delta, ``exposure``, that is set aside for losses above the
cut. Each event has two prices in each direction (a record is removed, or added), from the pair (P, Q) that dominates
it (:mod:`discreet.accounting.truncated`): its truncated divergence, and the probability of a loss above the cut. In
each direction the divergences may add up to ``limit`` and the probabilities to ``exposure``.

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

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from discreet.accounting.curve import PrivacyCurve, account
from discreet.accounting.gaussian import gaussian_mu
from discreet.accounting.truncated import checked_order_and_cut, truncated_costs
from discreet.errors import AccuracyNotReached, InvalidParameter, UnsupportedEvent, real
from discreet.events import Composition, Event, Gaussian
from discreet.guarantee import Bounds, Budget, Guarantee, Neighbours, Unit, round_up

SPARE = 1e-4
"""The part of delta that a filter holds back for releases in integers: see :meth:`SpendingRule.at_distance`."""

Spent = Mapping[Event, int]
"""Everything that was reserved: simple events and how often."""


class SpendingRule(ABC):
    """Decides, from the events already reserved, how many more of an event fit into the budget."""

    kind: ClassVar[str]
    budget: Budget

    @abstractmethod
    def room(self, spent: Spent, event: Event) -> int:
        """Return how often ``event`` still fits.

        Guarantee: releases that are always reserved within the room, each chosen from all earlier outputs, give
        away at most what :meth:`guarantee` says.
        """

    @abstractmethod
    def guarantee(self, spent: Spent) -> Guarantee:
        """Return the guarantee of all releases under this rule together, those to come included."""

    def closer_guarantee(self, spent: Spent) -> Guarantee:
        """Return the guarantee with more digits if possible: other accountant versions may have proved less."""
        return self.guarantee(spent)

    @abstractmethod
    def at_distance(self, guarantee: Guarantee, distance: float) -> Guarantee:
        """Return the guarantee of releases whose joint distribution is ``distance`` from the accounted one.

        ``guarantee`` is that of this rule, and ``distance`` a total variation distance: noise in integers has one to
        continuous noise. It costs a part of delta, which comes out of the budget as far as the rule holds it back.
        """

    @property
    def largest_distance(self) -> float:
        """The largest distance of all releases together that leaves :meth:`at_distance` within the budget.

        Infinity where the rule holds nothing back, and the distance is added to the delta of the budget.
        """
        return math.inf

    def curve(self) -> PrivacyCurve | None:
        """Return the privacy curve of all releases under this rule, where more is known than a guarantee."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as plain data for JSON.

        A filter that holds a part of delta back has a name that versions before 0.2 refuse.
        """
        values = {name: _plain(value) for name, value in vars(self).items()}
        spare = values.pop("spare", 0.0)
        name = {"rule": f"{self.kind}-2", "spare": spare} if spare else {"rule": self.kind}
        return name | values

    @staticmethod
    def from_dict(data: object) -> SpendingRule:
        """Return the rule of plain data; refuse all that :meth:`to_dict` does not write."""
        name = str(data.get("rule")) if isinstance(data, dict) else ""
        rule = RULES.get(name.removesuffix("-2"))
        if isinstance(data, dict) and rule is not None:
            values: dict[str, Any] = ({"spare": 0.0} if issubclass(rule, Filter) else {}) | data
            del values["rule"]
            with suppress(TypeError, KeyError):
                values["budget"] = Budget.from_dict(values["budget"])
                if rule is FixedPlan:
                    values["event"] = Event.from_dict(values["event"])
                spending_rule: SpendingRule = rule(**values)
                if spending_rule.to_dict() == data:
                    return spending_rule
        raise InvalidParameter("rule", data, f"is not a spending rule; known kinds are {', '.join(RULES)}.")


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Event | Budget) else value


CLOSER = 1e-5  # the tolerance of a second look


@dataclass(frozen=True)
class FixedPlan(SpendingRule):
    """Only the releases of ``event``, fixed in advance and accounted as a whole.

    Guarantee: any choice among them, in any order, stopped at any time, costs at most what ``event`` costs: what
    remains after a release is again a fixed list, and the release together with it is the list before.
    """

    event: Event
    budget: Budget
    kind: ClassVar[str] = "fixed-plan"

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise InvalidParameter("event", self.event, "must be the event of the whole plan.")
        _a_budget(self.budget)

    @classmethod
    def at_its_cost(
        cls,
        event: Event,
        delta: float,
        neighbours: Neighbours = "add-remove",
        group_size: int = 1,
        unit: Unit = "record",
    ) -> FixedPlan:
        """Return the rule of a ledger for ``event`` alone: its budget is what that costs at ``delta``.

        Guarantee: the plan decides what may happen, and its curve what is promised, whatever epsilon is proposed.
        """
        from discreet.ledger.filter_search import proposed_epsilon

        wish = delta, neighbours, group_size
        return cls(event, Budget(proposed_epsilon(event, *wish), *wish, unit))

    def room(self, spent: Spent, event: Event) -> int:
        planned = dict(self.event.parts())
        return min((planned.get(part, 0) - spent.get(part, 0)) // count for part, count in event.parts())

    def guarantee(self, spent: Spent) -> Guarantee:
        return replace(self.curve().guarantee(self.budget.delta), unit=self.budget.unit)

    def closer_guarantee(self, spent: Spent) -> Guarantee:
        with suppress(AccuracyNotReached):
            found = self.curve().guarantee(self.budget.delta, tolerance=CLOSER)
            return replace(found, unit=self.budget.unit)
        return self.guarantee(spent)

    def at_distance(self, guarantee: Guarantee, distance: float) -> Guarantee:
        """The guarantee at the delta of the budget, if epsilon stays within it, for the whole curve is known."""
        budget = self.budget
        if not distance or guarantee.delta == 0:
            return guarantee
        left = Fraction(budget.delta) - _cost_of_distance(budget.epsilon) * Fraction(distance)
        epsilon = epsilon_at(self.curve(), math.nextafter(float(left), 0.0)) if left > 0 else math.inf
        if epsilon > budget.epsilon:
            return guarantee.at_distance(distance)
        bounds = Bounds(guarantee.epsilon.lower, max(epsilon, guarantee.epsilon.upper))
        return replace(guarantee, epsilon=bounds)

    def curve(self) -> PrivacyCurve:
        return account(self.event, self.budget.neighbours, self.budget.group_size)


class Filter(SpendingRule):
    """A rule that gives every event a price, in one or more currencies, and lets each add up to a limit.

    Prices are floats above 0, rounded up; limits are rounded down; they are added as exact fractions.

    The part ``spare`` of delta is held back for noise in integers, and the limits are those of the rest. Let P and
    Q be the distributions of all releases in two neighbouring worlds with the noise as accounted, P' and Q' those
    with the noise in integers, and d the sum of the distances of all runs. Given the past, each release in integers
    is within its part of d of the accounted one, so P' is within d of P and Q' within d of Q, in total variation,
    however releases are chosen. Hence for every set S

        P'(S)  <=  P(S) + d  <=  e^epsilon Q(S) + (1 - spare) delta + d
               <=  e^epsilon Q'(S) + (1 - spare) delta + (1 + e^epsilon) d,

    which is within the budget if (1 + e^epsilon) d <= spare * delta. A ledger enforces that on every path
    (:attr:`largest_distance`). The part is fixed before the first release, as everything else in a filter. In ledgers
    that were begun before version 0.2 it is 0.
    """

    spare: float

    def _check_shares(self) -> None:
        checked_budget(self.budget)
        remedy = (
            f"It is the part of delta that is held back for noise in integers; leave it out for {SPARE:g}."
        )
        spare = real("spare", self.spare, at_least=0, at_most=0.5, remedy=remedy)
        object.__setattr__(self, "spare", spare)

    @property
    def accounted_delta(self) -> float:
        """The delta of the budget without what is held back."""
        return self.budget.delta * (1 - self.spare)

    @property
    def largest_distance(self) -> float:
        if not self.spare:
            return math.inf
        held = (Fraction(self.budget.delta) - Fraction(self.accounted_delta)) * Fraction(1 - 1e-12)
        return float(held / _cost_of_distance(self.budget.epsilon)) * (1 - 1e-12)

    def at_distance(self, guarantee: Guarantee, distance: float) -> Guarantee:
        if distance <= self.largest_distance < math.inf:
            return guarantee
        return replace(guarantee, delta=self.accounted_delta).at_distance(distance)

    @abstractmethod
    def prices(self, event: Event) -> tuple[float, ...]:
        """Return the costs of one simple event, or raise :class:`~discreet.errors.UnsupportedEvent`."""

    @abstractmethod
    def limits(self) -> tuple[Fraction, ...]:
        """Return the limits that the costs of all events may add up to."""

    def room(self, spent: Spent, event: Event) -> int:
        prices, gone = self.totals(dict(event.parts())), self.totals(spent)
        fits = (
            0 if price == math.inf else math.floor((limit - before) / price)
            for limit, before, price in zip(self.limits(), gone, prices, strict=True)
        )
        return max(0, min(fits))

    def totals(self, events: Spent) -> tuple[Fraction | float, ...]:
        """Return the costs of ``events`` together: exact fractions, or infinity."""
        totals: list[Fraction | float] = [Fraction(0)] * len(self.limits())
        for event, count in events.items():
            for currency, price in enumerate(self.prices(event)):
                # An infinite price, or one that is not a number, leaves room for nothing.
                totals[currency] += count * Fraction(price) if price < math.inf else math.inf
        return tuple(totals)

    def guarantee(self, spent: Spent) -> Guarantee:
        """The budget itself: a smaller epsilon read off along the way would not be a guarantee.

        The lower end is what the releases reserved so far would cost had they been fixed in advance.
        """
        budget, lower = self.budget, 0.0
        if spent:
            curve = account(Composition(tuple(spent.items())), budget.neighbours, budget.group_size)
            lower = min(budget.epsilon, curve.epsilon_bounds(budget.delta).lower)
        bounds = Bounds(lower, budget.epsilon)
        return Guarantee(bounds, budget.delta, budget.neighbours, budget.group_size, unit=budget.unit)


@dataclass(frozen=True)
class GaussianFilter(Filter):
    """Releases with Gaussian noise, chosen along the way: the sum of mu^2 stays within that of the budget.

    mu is the sensitivity over the noise's standard deviation. Guarantee: the releases together are as private as
    a single Gaussian one that costs exactly the budget.
    """

    budget: Budget
    spare: float = SPARE
    kind: ClassVar[str] = "gaussian-filter"

    def __post_init__(self) -> None:
        self._check_shares()

    def prices(self, event: Event) -> tuple[float]:
        if not isinstance(event, Gaussian):
            raise UnsupportedEvent(
                f"a GaussianFilter holds only Gaussian releases, not {type(event).__name__}; "
                "use a TruncatedRenyiFilter, or fix the whole list of releases in advance with a FixedPlan."
            )
        real("noise_multiplier", event.noise_multiplier, above=0, remedy="No noise fits into no budget.")
        reach = self.budget.reach
        return (round_up((reach / Fraction(event.noise_multiplier)) ** 2),)

    def limits(self) -> tuple[Fraction]:
        return (Fraction(_gaussian_mu(self.budget.epsilon, self.accounted_delta)) ** 2,)

    def curve(self) -> PrivacyCurve:
        reach = self.budget.reach
        mu = math.nextafter(_gaussian_mu(self.budget.epsilon, self.accounted_delta), math.inf)
        return account(Gaussian(reach / mu), self.budget.neighbours, self.budget.group_size)


LEAST = 1e-200  # stands for every smaller price, which floating point might take for nothing

_gaussian_mu = lru_cache(maxsize=64)(gaussian_mu)


def renyi_limit(epsilon: float, delta: float, order: float) -> Fraction:
    """The divergence of this order that is still (epsilon, delta) (Canonne, Kamath, Steinke 2020), rounded down."""
    log_order, rest = math.log(order), order - 1
    terms = (epsilon, log_order, -math.log(rest), (math.log(delta) + log_order) / rest)
    return Fraction(sum(terms) - 1e-15 * sum(map(abs, terms)))


def checked_budget(budget: Budget) -> Budget:
    """Return the budget, if it is one for noise with Gaussian tails."""
    remedy = "Noise with Gaussian tails is never purely private; choose for instance 1e-6."
    real("delta", _a_budget(budget).delta, at_least=1e-300, below=1, remedy=remedy)
    return budget


def _cost_of_distance(epsilon: float) -> Fraction:
    """What delta grows by for each unit of total variation distance: see :meth:`Guarantee.at_distance`."""
    return 1 + Fraction(math.exp(min(epsilon, 700.0)) * (1 + 1e-15))


def epsilon_at(curve: PrivacyCurve, delta: float) -> float:
    """The certified epsilon at ``delta``; infinity if none was found."""
    try:
        return curve.guarantee(delta).epsilon.upper
    except (AccuracyNotReached, InvalidParameter):
        return math.inf


def _a_budget(budget: Budget) -> Budget:
    if not isinstance(budget, Budget):
        raise InvalidParameter("budget", budget, "must be a Budget, for instance Budget(1.0, 1e-6).")
    return budget


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
    spare: float = SPARE
    kind: ClassVar[str] = "truncated-renyi-filter"

    def __post_init__(self) -> None:
        self._check_shares()
        order, cut = checked_order_and_cut(self.order, self.cut)
        exposure = real("exposure", self.exposure, above=0, below=self.accounted_delta)
        for name, value in (("order", order), ("cut", cut), ("exposure", exposure)):
            object.__setattr__(self, name, value)
        if self.limits()[0] <= 0:
            remedy = "at this order the budget has room for nothing; choose a larger one, or use for_event()."
            raise InvalidParameter("order", order, remedy)

    def prices(self, event: Event) -> tuple[float, ...]:
        return _prices(event, self.order, self.cut, self.budget)

    def limits(self) -> tuple[Fraction, ...]:
        """Return the limits of divergences and masses, for each direction."""
        left = self.accounted_delta - self.exposure
        limit = renyi_limit(self.budget.epsilon, left, self.order)
        return (limit, Fraction(self.exposure)) * 2

    @classmethod
    def for_event(cls, event: Event, budget: Budget) -> TruncatedRenyiFilter:
        """The filter in which ``event`` fits about most often, by search; any choice would be sound."""
        from discreet.ledger.filter_search import proposed_truncation

        return cls(budget, *proposed_truncation(event, checked_budget(budget)))


@lru_cache(maxsize=4096)
def _prices(event: Event, order: float, cut: float, budget: Budget) -> tuple[float, ...]:
    costs = truncated_costs(event, order, cut, budget.neighbours, budget.group_size)
    return tuple(max(price, LEAST) for cost in costs.values() for price in cost)


RULES: dict[str, type[Any]] = {rule.kind: rule for rule in (FixedPlan, GaussianFilter, TruncatedRenyiFilter)}
