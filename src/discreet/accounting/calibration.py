"""Calibration: the cheapest parameter that is proved to stay within a budget.

The search runs on the accountant's estimate, which is fast and smooth; the answer is then moved to the safe
side by certificates. So the result is within the budget by proof, and within a few parts in ten thousand of the
best by measurement. No guarantee rests on it: a ledger and a certificate account for the event that was made with the
result, whatever that is, and refuse one that costs more than the budget.

>>> from discreet.events import Gaussian, PoissonSampled
>>> budget = Budget(epsilon=1.0, delta=1e-5)
>>> noise = calibrate(lambda z: PoissonSampled(0.01, Gaussian(z)) * 10_000, budget)
>>> round(noise, 1)
3.8
>>> steps = calibrate(lambda steps: PoissonSampled(0.01, Gaussian(4.0)) * steps, budget, parameter="steps")
>>> round(steps, -2)
11000

An attacker's success can be the limit, too: the advantage over guessing, or the hits at a rate of false alarms.

>>> noise = calibrate(lambda z: PoissonSampled(0.01, Gaussian(z)) * 10_000, power=(0.01, 0.02))
>>> round(noise, 2)
3.75

So can the success of an attack by name (:mod:`discreet.accounting.attack_risks`).

>>> from discreet.accounting.attack_risks import Reconstruction
>>> birthday = Reconstruction(baseline=1 / 3650, at_most=2 / 3650)
>>> noise = calibrate(lambda z: PoissonSampled(0.01, Gaussian(z)) * 10_000, risk=birthday)
>>> round(noise, 1)
5.3
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from discreet.accounting.attack_risks import Risk, limit_on_power
from discreet.accounting.curve import PrivacyCurve, account
from discreet.errors import BudgetExceeded, InvalidParameter, one_of, real
from discreet.events import Event
from discreet.guarantee import Budget, Neighbours

Parameter = Literal["noise_multiplier", "scale", "steps", "rate"]


class _Search(NamedTuple):
    """Where a parameter lives, where to start, and how the logarithm of epsilon moves with its logarithm."""

    least: float
    most: float
    start: float
    slope: float


SEARCHES = {
    "noise_multiplier": _Search(0.05, 1e8, 1.0, -1.2),
    "scale": _Search(1e-2, 1e8, 1.0, -1.2),
    "steps": _Search(1.0, 1e9, 1000.0, 0.6),
    "rate": _Search(1e-9, 1.0, 0.01, 1.0),
}


def calibrate(
    family: Callable[[float], Event],
    budget: Budget | None = None,
    *,
    parameter: Parameter = "noise_multiplier",
    advantage: float | None = None,
    power: tuple[float, float] | None = None,
    risk: Risk | None = None,
    neighbours: Neighbours = "add-remove",
    group_size: int = 1,
) -> float:
    """The smallest noise (or the largest number of steps, or sampling rate) within ``budget``.

    ``family`` makes the event from the parameter. Which one it is decides what is searched:
    ``"noise_multiplier"`` and ``"scale"`` for the least noise, ``"steps"`` for the most releases,
    ``"rate"`` for the largest batches.

    Instead of a budget, ``advantage`` limits the best attacker's hit rate minus false-alarm rate, and
    ``power=(alarms, hits)`` the hits at that rate of false alarms, for these ``neighbours`` and groups of that size.
    ``risk`` limits the success of an attack by name, such as ``Reconstruction(baseline=1/365, at_most=2/365)``.

    Guarantee: ``account(family(result), ...)`` is proved to stay within the limit.
    """
    search = SEARCHES[one_of("parameter", parameter, SEARCHES)]
    given = [
        name
        for name, value in (("budget", budget), ("advantage", advantage), ("power", power), ("risk", risk))
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidParameter("budget", budget, "or advantage, power or risk: give exactly one of the four.")
    if budget is not None:
        if not isinstance(budget, Budget):
            raise InvalidParameter(
                "budget", budget, "must be a Budget, for instance Budget(epsilon=1.0, delta=1e-6)."
            )
        return _Calibration(family, budget, parameter, search).solve()
    share = _attack(advantage, power if risk is None else limit_on_power(risk))
    return _bisect(lambda value: share(account(family(value), neighbours, group_size)), parameter, search)


def _attack(advantage: float | None, power: object) -> Callable[[PrivacyCurve], float]:
    """A curve -> what the best attacker reaches, proved, as a share of the limit."""
    if advantage is not None:
        most = real("advantage", advantage, above=0, below=1)
        return lambda curve: curve.advantage() / most
    if not (isinstance(power, tuple | list) and len(power) == 2):
        raise InvalidParameter("power", power, "must be (false alarms, hits), for instance (0.01, 0.05).")
    alarms = real("power", power[0], above=0, below=1)
    hits = real(
        "power", power[1], above=alarms, below=1, remedy="Hits exceed false alarms: guessing does as well."
    )
    return lambda curve: curve.power(alarms) / hits


def _bisect(cost: Callable[[float], float], parameter: str, search: _Search) -> float:
    """The value nearest to the limit whose cost is proved to be at most 1; the cost is monotone."""

    def value(x: float) -> float:
        return math.floor(math.exp(x) + 1e-9) if parameter == "steps" else math.exp(x)

    safe, unsafe = math.log(search.least), math.log(search.most)
    if search.slope < 0:
        safe, unsafe = unsafe, safe
    if cost(value(safe)) > 1:
        raise BudgetExceeded(
            f"no {parameter} from {search.least:g} to {search.most:g} keeps the attacker within the limit; raise it."
        )
    if cost(value(unsafe)) <= 1:
        return value(unsafe)
    while abs(safe - unsafe) > 1e-4 and value(safe) != value(unsafe):
        middle = (safe + unsafe) / 2
        safe, unsafe = (middle, unsafe) if cost(value(middle)) <= 1 else (safe, middle)
    return value(safe)


_Tried = tuple[float, float] | None  # a value, and its proved epsilon over the budget's


class _Calibration:
    def __init__(
        self, family: Callable[[float], Event], budget: Budget, parameter: str, search: _Search
    ) -> None:
        self.family, self.budget, self.parameter, self.search = family, budget, parameter, search
        self.costlier = search.slope > 0  # a larger value costs more
        self.start = search.start
        self._estimates: dict[float, float] = {}

    def solve(self) -> float:
        """Search on the estimate, then on the certificate, until what is proved is just within the budget."""
        value, inside, outside = self._where(1.0), None, None
        for attempt in range(12):
            cost = self._certify(value)
            if cost > 1:
                outside = (value, cost)
            elif inside is None or (value > inside[0]) == self.costlier:
                inside = (value, cost)
            if 1 - 2e-4 < cost <= 1 or value == self._end(further=cost <= 1):
                break
            value, before = self._next(value, cost, inside, outside, attempt), value
            if value == before or (inside and attempt > 8):
                break
        best = inside and inside[0]
        if best is None:
            raise BudgetExceeded(
                f"no {self.parameter} from {self.search.least:g} to {self.search.most:g} keeps this event within "
                f"epsilon={self.budget.epsilon:g} at delta={self.budget.delta:g}; raise the budget."
            )
        return self._polish(best)

    def _end(self, further: bool) -> float:
        """The last value that can be tried when more (or less) may be spent."""
        return self.search.most if further == self.costlier else self.search.least

    def _next(self, value: float, cost: float, inside: _Tried, outside: _Tried, attempt: int) -> float:
        """Between two values on either side of the budget, by their slope; else by the estimate."""
        if inside and outside and outside[1] < 1e6 and inside[1] > 1e-6:
            (x, low), (y, high) = ((math.log(v), math.log(c)) for v, c in (inside, outside))
            part = min(max((-1e-4 - low) / (high - low), 0.02), 0.98)
            return self._value(x + part * (y - x))
        # Certificate and estimate differ by a factor that hardly changes nearby. Where nothing is certified, the
        # cost is infinite and says no more than: further away.
        factor = max(cost, 1e-12) if cost < 1e6 else 1.2 ** (attempt + 1)
        return self._where(self._estimate(value) / factor * (1 - min(2e-5 * 4**attempt, 0.5)))

    def _curve(self, value: float) -> PrivacyCurve:
        return account(self.family(value), self.budget.neighbours, self.budget.group_size)

    def _certify(self, value: float) -> float:
        """Proved epsilon over the budget's; at most 1 is within the budget."""
        return min(self._curve(value).epsilon(self.budget.delta) / self.budget.epsilon, 1e12)

    def _estimate(self, value: float) -> float:
        """Estimated epsilon over the budget's."""
        if value not in self._estimates:
            curve = self._curve(value)
            epsilon = (
                curve.estimate_epsilon(self.budget.delta) if self.budget.delta > 0 else curve.epsilon(0.0)
            )
            self._estimates[value] = min(max(epsilon / self.budget.epsilon, 1e-12), 1e12)
        return self._estimates[value]

    def _where(self, goal: float) -> float:
        """The value at which the estimate reaches ``goal``: secant steps in logarithms, kept in a bracket."""
        low, high = math.log(self.search.least), math.log(self.search.most)
        x, slope, sign = math.log(self.start), abs(self.search.slope), 1 if self.costlier else -1
        before: tuple[float, float] | None = None
        for _ in range(80):
            miss = sign * math.log(self._estimate(self._value(x)) / goal)
            low, high = (low, x) if miss > 0 else (x, high)
            if before is not None and (miss - before[1]) * (x - before[0]) > 0:
                slope = (miss - before[1]) / (x - before[0])
            before = (x, miss)
            x -= miss / slope
            if not low < x < high:
                x = (low + high) / 2
            if abs(miss) < 1e-7 or high - low < 1e-9 or self._value(low) == self._value(high):
                break
        self.start = math.exp(x)
        return self._value(low if self.costlier else high) if high - low < 1e-9 else self._value(x)

    def _value(self, x: float) -> float:
        value = math.exp(x)
        for end in (self.search.least, self.search.most):
            if abs(value - end) <= 2e-9 * end:
                value = end
        return math.floor(value) if self.parameter == "steps" else value

    def _polish(self, value: float) -> float:
        """Integers: the last one that still fits, by leaps that double and then halve."""
        if self.parameter != "steps":
            return value
        leap = 1
        while value + leap <= self.search.most and self._certify(value + leap) <= 1:
            value, leap = value + leap, 2 * leap
        while leap > 1:
            leap //= 2
            if value + leap <= self.search.most and self._certify(value + leap) <= 1:
                value += leap
        return value
