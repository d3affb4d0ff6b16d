"""Who can learn what: an epsilon for every observer of a joint training, and never one without its observer.

>>> from discreet.parties.arrangement import Arrangement
>>> from discreet.guarantee import Budget
>>> hospitals = {"hospital-a": 1200, "hospital-b": 800, "hospital-c": 2000}
>>> arrangement = Arrangement("sgd2", hospitals, rounds=200)
>>> noise = noise_for(arrangement, Budget(1.0, 1e-6, "replace-one"), against="coordinator")
>>> table = observers(arrangement.with_noise(noise), delta=1e-6)
>>> table["coordinator"].guarantee.within(Budget(1.0, 1e-6, "replace-one"))
True
>>> round(table["another party"].guarantee.epsilon.upper, 2)     # the others' noise hides it, too
0.69

The events behind the rows are in :mod:`discreet.parties.observation.observer_views`, their theory in
docs/observers.md.

In docs/engines.md: E10, E11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from discreet.accounting.calibration import calibrate
from discreet.accounting.curve import account
from discreet.certificate.guarantees import Arithmetic
from discreet.core.noise import SPARED_DELTA, SPARED_DELTA_OF_FIT
from discreet.errors import BudgetExceeded, InvalidParameter, UnsupportedEvent, one_of, probability
from discreet.events import Event
from discreet.guarantee import Bounds, Budget, Guarantee, Neighbours, upper_text
from discreet.parties.arrangement import Arrangement
from discreet.parties.observation.mixtures import MixtureCurve
from discreet.parties.observation.observer_views import ObserverEvent, View, views

MOST_TELLING = 50.0
"""An epsilon above it, for a whole party, is said in words: it rules out nothing."""

UNBOUNDED_PARTY = "nothing is promised for all records of a party together; party_bound would bound them"
REAL_NUMBERS = "for real numbers: the parties' sums are weighed differently, and so rounded one by one"
_SEE_ONLY_SUMS = ("final model", "broadcasts", "another party", "colluding parties")
FLOAT_MESSAGES = (
    "FLOAT ARITHMETIC: these epsilons are proved for real numbers. Messages are floating-point numbers, whose low "
    "bits can show a record to whoever sees them, with certainty. Prefer arithmetic = 'hardened'."
)


@dataclass(frozen=True)
class Observer:
    """One row: who, what they see, and what is proved against them; or a sentence why nothing is."""

    name: str
    sees: str
    guarantee: Guarantee | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data; an infinite epsilon is null."""
        row: dict[str, Any] = {"observer": self.name, "sees": self.sees, "note": self.note}
        if self.guarantee is not None:
            lower, upper = self.guarantee.epsilon
            row |= {
                "epsilon": upper if math.isfinite(upper) else None,
                "epsilon_lower": lower if math.isfinite(lower) else None,
                "delta": self.guarantee.delta,
                "neighbours": self.guarantee.neighbours,
                "group_size": self.guarantee.group_size,
            }
        return row


class ObserverTable:
    """Every observer of an arrangement. ``table["coordinator"]`` is a row; ``print(table)`` shows them all.

    A row is computed when it is asked for.
    """

    def __init__(
        self,
        arrangement: Arrangement,
        delta: float,
        coalition: int | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.arrangement, self.delta = arrangement, probability("delta", delta)
        self.arithmetic = arithmetic
        self._hardened = arithmetic is not None and arithmetic.kind == "hardened"
        spared = SPARED_DELTA_OF_FIT if arrangement.algorithm == "recipe" else SPARED_DELTA
        self._accounted = self.delta * (1 - spared) if self._hardened else self.delta
        self._views = {view.observer: view for view in views(arrangement, coalition)}
        self._bounds = cache(lambda face, left: _epsilon_bounds(face, arrangement.neighbours, left))

    @property
    def names(self) -> tuple[str, ...]:
        """The observers, as ``against=`` of :func:`noise_for` names them."""
        return tuple(self._views)

    @property
    def rows(self) -> tuple[Observer, ...]:
        """All rows."""
        return tuple(self[name] for name in self._views)

    def __iter__(self) -> Iterator[Observer]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, name: str) -> Observer:
        view = self._views[one_of("observer", name, self._views)]
        if not view.faces:
            return Observer(view.observer, view.sees, None, view.note)
        faces, left = view.at(self._accounted)
        try:
            found = [self._bounds(face, left) for face in faces]
        except UnsupportedEvent as error:  # noise so small that nothing can be said
            return Observer(view.observer, view.sees, None, str(error).rstrip("."))
        worst = Bounds(max(bounds.lower for bounds in found), max(bounds.upper for bounds in found))
        guarantee = Guarantee(
            worst,
            self._accounted,
            self.arrangement.neighbours,
            view.group_size,
            view.sees,
            self.arrangement.unit,
        )
        if view.observer == "whole party" and worst.upper > MOST_TELLING:
            return Observer(view.observer, view.sees, None, UNBOUNDED_PARTY)
        if self.arithmetic is not None and guarantee.at_distance(self.arithmetic.distance).delta > self.delta:
            return Observer(
                view.observer, view.sees, None, f"epsilon {upper_text(worst.upper)} hides nothing"
            )
        note = view.note or (REAL_NUMBERS if self._adds_unequally(view) else "")
        return Observer(view.observer, view.sees, replace(guarantee, delta=self.delta), note)

    def _adds_unequally(self, view: View) -> bool:
        """Whether the row counts on noise of others in a sum whose parts are rounded one by one."""
        weights = set((self.arrangement.weights or {}).values())
        return self._hardened and len(weights) > 1 and view.observer in _SEE_ONLY_SUMS

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data for reports."""
        kind = {} if self.arithmetic is None else {"arithmetic": self.arithmetic.kind}
        rows = [row.to_dict() for row in self.rows]
        return {"arrangement": self.arrangement.to_dict(), **kind, "observers": rows}

    def __str__(self) -> str:
        """An aligned table; epsilons are rounded up."""
        cells = [("observer", "epsilon", "who")]
        cells += [
            (row.name, _epsilon(row), row.sees + (f" ({row.note})" if row.note else "")) for row in self.rows
        ]
        widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {epsilon:<{widths[1]}}  {who}" for name, epsilon, who in cells]
        absent, parties = self.arrangement.dropouts, len(self.arrangement.parties)
        missing = f", while at most {absent} of {parties} parties are missing" if absent else ""
        lines.append(
            f"at delta = {upper_text(self.delta)}, {self.arrangement.neighbours} neighbours{missing}"
        )
        if self.arrangement.unit == "person":
            known = "one party" if self.arrangement.across == 1 else f"{self.arrangement.across} parties"
            lines.append(f"for one person with all of their rows, known to {known} at most")
        if self.arithmetic is not None and self.arithmetic.kind == "float":
            lines.append(FLOAT_MESSAGES)
        return "\n".join(lines)


class StudyPrivacy(Protocol):
    """The part of a study that holds its delta."""

    @property
    def delta(self) -> float: ...


class Arranged(Protocol):
    """A study: anything that knows its arrangement and its delta."""

    @property
    def arrangement(self) -> Arrangement: ...

    @property
    def privacy(self) -> StudyPrivacy: ...

    @property
    def arithmetic(self) -> Arithmetic | None: ...


def observers(
    arrangement: Arrangement | Arranged,
    delta: float | None = None,
    *,
    coalition: int | None = None,
    arithmetic: Arithmetic | None = None,
) -> ObserverTable:
    """What every observer of ``arrangement`` (or of a study) can learn about one record of another party.

    ``coalition`` is the size of the colluding group that is shown: the arrangement's colluders unless given.
    ``arithmetic`` says how messages are computed; a study knows it, an arrangement speaks of real numbers.

    Guarantee: each epsilon is a certified upper bound for the record that is worst off. It assumes that parties
    add the noise they agreed on: one that does not hurts its own records only, but everybody's with secure sums.
    Rows of those who do not see the messages assume, besides, a coordinator that makes no update while more parties
    are missing than ``dropouts``, as :class:`~discreet.parties.coordinator.Coordinator` does.
    """
    if not isinstance(arrangement, Arrangement):
        delta = arrangement.privacy.delta if delta is None else delta
        arithmetic = arithmetic or arrangement.arithmetic
        arrangement = arrangement.arrangement
    if delta is None:
        raise InvalidParameter("delta", None, "is needed; choose it well below 1 / number of records.")
    return ObserverTable(arrangement, delta, coalition, arithmetic)


def noise_for(
    arrangement: Arrangement, budget: Budget, *, against: str, coalition: int | None = None
) -> float:
    """The least noise multiplier with which ``against`` learns no more than ``budget`` allows.

    ``against`` names an observer of the table; ``coalition`` is as in :func:`observers`. Stronger observers than the
    one named learn more: look at the table. Against ``"whole party"`` the budget is for all records of a party.

    Guarantee: the table row of this observer is within the budget with the noise that is returned.
    """
    if budget.neighbours != arrangement.neighbours:
        remedy = f"the arrangement is for {arrangement.neighbours!r} neighbours; use the same in both."
        raise InvalidParameter("neighbours", budget.neighbours, remedy)
    if budget.unit != arrangement.unit:
        remedy = f"the arrangement counts each {arrangement.unit}; use the same in both."
        raise InvalidParameter("unit", budget.unit, remedy)
    if budget.group_size != 1:
        raise InvalidParameter(
            "group_size", budget.group_size, "must be 1: the parties protect single records."
        )
    probability("delta", budget.delta)
    budget = replace(budget, unit="record")  # what it costs is the same

    def facing(noise: float) -> View:
        rows = {view.observer: view for view in views(arrangement.with_noise(noise), coalition)}
        return rows[one_of("against", against, rows)]

    view = facing(1.0)
    if not view.faces:
        raise InvalidParameter("against", against, f"cannot be protected against: {view.note}")
    faces, left = view.at(budget.delta)

    def one(number: int) -> Callable[[float], ObserverEvent]:
        return lambda noise: facing(noise * view.group_size).at(budget.delta)[0][number]

    found = [_noise_against(one(number), replace(budget, delta=left)) for number in range(len(faces))]
    return max(found) * view.group_size


def price_of_dropouts(study: Any) -> dict[int, dict[str, float]]:
    """The price of letting so many parties of a study be missing at a time, for numbers below six that it allows.

    ``noise`` is that in the sum of everybody, in clip norms: with secure sums each party adds more, the more may be
    missing. ``epsilon`` is what those learn who see only the model, and count on the noise of the others.
    """
    found = {}
    for number in range(min(len(study.parties), 6)):
        try:
            other = replace(study, aggregation=replace(study.aggregation, dropouts=number))
        except InvalidParameter:  # nobody would be left to hide a record, or lies could not be withstood
            continue
        noise = other.noise_multiplier * math.sqrt(len(other.parties) / other.shares)
        row = observers(other)["final model"]
        found[number] = {
            "noise": noise,
            "epsilon": row.guarantee.epsilon.upper if row.guarantee is not None else math.inf,
        }
    return found


def _epsilon_bounds(face: ObserverEvent, neighbours: Neighbours, delta: float) -> Bounds:
    if isinstance(face, Event):
        return account(face, neighbours).epsilon_bounds(delta)
    return MixtureCurve(face, neighbours).epsilon_bounds(delta)


def _epsilon(row: Observer) -> str:
    if row.guarantee is None:
        return "none"
    return (
        upper_text(row.guarantee.epsilon.upper) if math.isfinite(row.guarantee.epsilon.upper) else "infinite"
    )


def _noise_against(facing: Callable[[float], ObserverEvent], budget: Budget) -> float:
    """The least noise against one event, or against a random number of repetitions."""

    def typical(noise: float) -> Event:
        face = facing(noise)
        return face if isinstance(face, Event) else face.typical

    noise = calibrate(typical, budget)
    if isinstance(facing(noise), Event):
        return noise
    # The mean number of repetitions gave a first guess; epsilon falls about like 1 / noise.
    inside, outside = math.inf, 0.0
    for _ in range(20):
        cost = _epsilon_bounds(facing(noise), budget.neighbours, budget.delta).upper / budget.epsilon
        inside, outside = (min(inside, noise), outside) if cost <= 1 else (inside, max(outside, noise))
        if 1 - 5e-4 < cost <= 1:
            return noise
        noise *= min(max(cost, 0.5), 2.0) * (1 + 1e-4)
        if not outside < noise < inside:
            noise = math.sqrt(outside * inside) if outside > 0 and inside < math.inf else noise
    if inside == math.inf:
        raise BudgetExceeded(
            f"no noise was found that keeps this observer within epsilon={budget.epsilon:g} at "
            f"delta={budget.delta:g}; raise the budget."
        )
    return inside
