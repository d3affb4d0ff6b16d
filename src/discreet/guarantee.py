"""The wish and the fact: :class:`Budget` is what may be spent, :class:`Guarantee` is what was proved.

They are two types on purpose. A bare epsilon means nothing: both carry delta, the relation between
neighbouring data sets and the unit that is protected, so that two numbers are only ever compared when they
speak of the same thing.

>>> budget = Budget(epsilon=1.0, delta=1e-5)
>>> Guarantee(Bounds(0.946, 0.947), delta=1e-5).within(budget)
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, cast, get_args

from discreet.errors import InvalidParameter, one_of, real, whole
from discreet.guarantee_text import GuaranteeText
from discreet.guarantee_text import lower_text as lower_text
from discreet.guarantee_text import protected_unit as protected_unit
from discreet.guarantee_text import upper_text as upper_text

Neighbours = Literal["add-remove", "replace-one"]
"""``add-remove``: one data set has one record more. ``replace-one``: same size, one record differs."""

NEIGHBOURS: tuple[str, ...] = get_args(Neighbours)

AnyNeighbours = Literal["add-remove", "replace-one", "zero-out"]
"""Also ``zero-out``: same size, and one record counts for nothing in one of them. For curves, not for budgets."""

Unit = Literal["record", "person"]
"""What comes and goes between neighbours: one ``record``, or one ``person`` with all of their rows."""

UNITS: tuple[str, ...] = get_args(Unit)


def neighbours_named(value: object) -> Neighbours:
    """Return ``value`` if it names a neighbour relation, or raise."""
    return cast(Neighbours, one_of("neighbours", value, NEIGHBOURS))


def any_neighbours_named(value: object) -> AnyNeighbours:
    """As :func:`neighbours_named`, of what curves are computed for."""
    return cast(AnyNeighbours, one_of("neighbours", value, get_args(AnyNeighbours)))


def unit_named(value: object) -> Unit:
    """Return ``value`` if it names a unit of privacy, or raise."""
    return cast(Unit, one_of("unit", value, UNITS))


def sensitivity_factor(neighbours: AnyNeighbours, group_size: int = 1) -> int:
    """How many clipped contributions two neighbouring data sets differ by, at most.

    To replace a record is to take one away and to add another.
    """
    return group_size * (2 if neighbours == "replace-one" else 1)


class Bounds(NamedTuple):
    """A certified interval: the exact value lies between ``lower`` and ``upper``."""

    lower: float
    upper: float

    @property
    def gap(self) -> float:
        """Width relative to the upper end: ``(upper - lower) / upper``."""
        return (self.upper - self.lower) / self.upper if self.upper else 0.0

    def also(self, other: Bounds) -> Bounds:
        """What both prove of one value."""
        return Bounds(max(self.lower, other.lower), min(self.upper, other.upper))

    @classmethod
    def of_largest(cls, each: Iterable[Bounds]) -> Bounds:
        """What is proved of the largest of several values."""
        found = list(each)
        return cls(max(bounds.lower for bounds in found), max(bounds.upper for bounds in found))


@dataclass(frozen=True)
class Budget:
    """What may be spent.

    ``unit`` is what comes and goes: a record, or a person with all of their rows, whatever their number. With
    ``group_size`` k, so many units come and go together.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours = "add-remove"
    group_size: int = 1
    unit: Unit = "record"

    def __post_init__(self) -> None:
        remedy = "Typical budgets are 0.1 to 10."
        object.__setattr__(self, "epsilon", real("epsilon", self.epsilon, above=0, remedy=remedy))
        remedy = "Choose it well below 1 / number of records, for instance 1e-6; 0 asks for pure privacy."
        object.__setattr__(self, "delta", real("delta", self.delta, at_least=0, below=1, remedy=remedy))
        neighbours_named(self.neighbours)
        object.__setattr__(self, "group_size", whole("group_size", self.group_size, at_least=1))
        unit_named(self.unit)

    @property
    def reach(self) -> int:
        """How many clipped contributions differ between two neighbouring data sets, at most."""
        return sensitivity_factor(self.neighbours, self.group_size)

    def to_dict(self) -> dict[str, Any]:
        """The budget as plain data for JSON. A unit of records goes without saying, as in old files."""
        return without_usual_unit(asdict(self))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Budget:
        """The inverse of :meth:`to_dict`; unknown or missing keys are refused."""
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidParameter("budget", data, f"not a budget ({error}).") from None


def of_records(budget: object) -> Budget:
    """Return ``budget`` if it is one that protects records, or raise: for whatever counts row by row."""
    if not isinstance(budget, Budget):
        raise InvalidParameter("budget", budget, "must be a Budget, for instance Budget(1.0, 1e-6).")
    if budget.unit != "record":
        remedy = (
            "every row counts here, whoever it is of. Bring one row for each person, and say unit='record'."
        )
        raise InvalidParameter("budget.unit", budget.unit, remedy)
    return budget


@dataclass(frozen=True)
class Guarantee(GuaranteeText):
    """One proved point of a privacy curve: (epsilon, delta) with all that gives it a meaning.

    ``epsilon.upper`` is the guarantee. ``epsilon.lower`` shows how much of it is slack of the computation:
    no accountant can prove less than that for the event as accounted.
    """

    epsilon: Bounds
    delta: float
    neighbours: Neighbours = "add-remove"
    group_size: int = 1
    observer: str = "sees every release"
    unit: Unit = "record"

    def within(self, budget: Budget) -> bool:
        """True when this guarantee is proved to stay inside ``budget``.

        Different neighbours, group sizes or units cannot be compared and raise :class:`InvalidParameter`.
        """
        for name in ("neighbours", "group_size", "unit"):
            ours, theirs = getattr(self, name), getattr(budget, name)
            if ours != theirs:
                remedy = f"the guarantee was proved for {ours!r}; account the event again for the budget's."
                raise InvalidParameter(name, theirs, remedy)
        return self.epsilon.upper <= budget.epsilon and self.delta <= budget.delta

    def at_distance(self, distance: float) -> Guarantee:
        """The guarantee for releases at this total variation distance from those that it was proved for.

        Delta grows by (1 + exp(epsilon)) times as much: P(S) <= P*(S) + distance <= exp(epsilon) Q*(S) + delta +
        distance, and Q*(S) <= Q(S) + distance. A pure guarantee, with delta 0, is one of Laplace noise alone, and
        discrete Laplace noise of the same scale keeps it exactly (point 4 in :mod:`discreet.core.noise`).
        """
        if not distance or self.delta == 0:
            return self
        factor = 1 + Fraction(math.exp(min(self.epsilon.upper, 700.0)) * (1 + 1e-15))
        return replace(self, delta=round_up(Fraction(self.delta) + factor * Fraction(distance)))


def without_usual_unit(data: dict[str, Any]) -> dict[str, Any]:
    """Plain data without the unit if that is a record: digests and files are what they were before people were."""
    return {key: value for key, value in data.items() if key != "unit" or value != "record"}


def round_up(exact: Fraction) -> float:
    """The smallest float that is not below ``exact``."""
    try:
        rounded = float(exact)
    except OverflowError:
        return math.inf
    return rounded if rounded >= exact else math.nextafter(rounded, math.inf)


# A guarantee of which only (epsilon, delta) is known.
#
# The classical theorems speak of such pairs. They hold for whatever neighbours the pair was proved for; where that
# matters, the function asks. Sums and products are rounded up, so a pair never promises too much.

ROUND_UP = 1 + 1e-14
"""More than the rounding of the closed formulas that are multiplied by it."""

_LARGEST_GROUP = 10**12


class EpsilonDelta(NamedTuple):
    """A proved (epsilon, delta); its neighbours are those of the guarantees it was made of."""

    epsilon: float
    delta: float


def group_privacy(epsilon: float, delta: float, group_size: int) -> EpsilonDelta:
    """Guarantee: what (epsilon, delta) for one record promises a group of records.

    (group_size epsilon, delta (1 + e^epsilon + ... + e^{(group_size - 1) epsilon})), by going from one data
    set to the other one record at a time.

    >>> group_privacy(epsilon=0.0, delta=1e-6, group_size=3)
    EpsilonDelta(epsilon=0.0, delta=3e-06)
    """
    pair = checked_pair(epsilon, delta)
    group_size = whole("group_size", group_size, at_least=1, at_most=_LARGEST_GROUP)
    total_epsilon = round_up(group_size * Fraction(pair.epsilon))
    if pair.epsilon == 0:
        return EpsilonDelta(0.0, min(1.0, round_up(group_size * Fraction(pair.delta))))
    if pair.delta == 0 or group_size == 1:
        return EpsilonDelta(total_epsilon, pair.delta)
    # log of (e^{k epsilon} - 1) / (e^epsilon - 1), which may overflow
    log_sum = (group_size - 1) * pair.epsilon
    log_sum += math.log(-math.expm1(-group_size * pair.epsilon)) - math.log(-math.expm1(-pair.epsilon))
    log_delta = math.log(pair.delta) + log_sum
    return EpsilonDelta(total_epsilon, min(1.0, math.exp(min(0.0, log_delta)) * (1 + 1e-12)))


def checked_pair(epsilon: object, delta: object) -> EpsilonDelta:
    """The pair as floats, or :class:`~discreet.errors.InvalidParameter`."""
    return EpsilonDelta(real("epsilon", epsilon, at_least=0), real("delta", delta, at_least=0, below=1))
