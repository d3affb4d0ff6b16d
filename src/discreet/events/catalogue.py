"""More of what is released: mechanisms of the literature, and black boxes that come with a Renyi curve.

>>> survey = RandomisedResponse(epsilon=1.0, categories=5)
>>> choice = BoundedRange(epsilon=0.1)  # the exponential mechanism
>>> Event.from_json((survey + choice).to_json()) == survey + choice
True
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from discreet.errors import InvalidParameter, real, whole
from discreet.events.common import Event, registered


@registered
@dataclass(frozen=True)
class ZeroConcentratedDP(Event):
    """A black box known only to be rho-zCDP, for the neighbours it will be accounted under (Bun, Steinke 2016)."""

    rho: float
    kind: ClassVar[str] = "zero-concentrated-dp"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", real("rho", self.rho, at_least=0))

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "rho": self.rho}


@registered
@dataclass(frozen=True)
class RenyiDP(Event):
    """A black box of which Renyi divergences are known: at most ``values[i]`` at order ``orders[i]`` > 1.

    The bounds hold for the neighbours it will be accounted under, in both directions.
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]
    kind: ClassVar[str] = "renyi-dp"

    def __post_init__(self) -> None:
        for name in ("orders", "values"):
            if not isinstance(getattr(self, name), tuple | list):
                raise InvalidParameter(name, getattr(self, name), "must be a tuple of numbers.")
        orders = tuple(real("orders", order, above=1, at_most=1e6) for order in self.orders)
        values = tuple(real("values", value, at_least=0) for value in self.values)
        if not orders or any(low >= high for low, high in pairwise(orders)):
            raise InvalidParameter("orders", self.orders, "must increase, and there must be one.")
        if len(values) != len(orders):
            raise InvalidParameter("values", self.values, f"must be {len(orders)}, one for each order.")
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "values", values)

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "orders": list(self.orders), "values": list(self.values)}


@registered
@dataclass(frozen=True)
class BoundedRange(Event):
    """A release whose privacy losses, for any two neighbours, all lie in some interval of this length.

    The exponential mechanism with weights exp(epsilon quality / (2 sensitivity)) is one, and so is its equal: report
    which of several values is largest with Gumbel noise. It is epsilon-DP, and costs less than that (Dong, Durfee,
    Rogers 2020).
    """

    epsilon: float
    kind: ClassVar[str] = "bounded-range"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real("epsilon", self.epsilon, above=0))

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "epsilon": self.epsilon}


@registered
@dataclass(frozen=True)
class RandomisedResponse(Event):
    """Every record reports its category: the true one e^epsilon times as likely as any of the others.

    The reports themselves show who answered, so this event is accounted under replace-one neighbours.
    """

    epsilon: float
    categories: int = 2
    kind: ClassVar[str] = "randomised-response"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real("epsilon", self.epsilon, above=0, at_most=700))
        object.__setattr__(self, "categories", whole("categories", self.categories, at_least=2))

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "epsilon": self.epsilon, "categories": self.categories}


@registered
@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """Whole numbers with noise k of probability proportional to e^{-|k| / scale} on each.

    ``sensitivity`` is the most that one record can add, a whole number, in the l1 norm.
    """

    scale: float
    sensitivity: int = 1
    kind: ClassVar[str] = "discrete-laplace"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", real("scale", self.scale, above=0))
        object.__setattr__(
            self, "sensitivity", whole("sensitivity", self.sensitivity, at_least=1, at_most=10_000)
        )

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "scale": self.scale, "sensitivity": self.sensitivity}


@registered
@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """One whole number with noise k of probability proportional to e^{-k^2 / (2 deviation^2)}.

    ``sensitivity`` is the most that one record can add to the number. For vectors use
    ``ZeroConcentratedDP(sensitivity**2 / (2 * deviation**2))``, with the l2 sensitivity.
    """

    deviation: float
    sensitivity: int = 1
    kind: ClassVar[str] = "discrete-gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "deviation", real("deviation", self.deviation, at_least=0.05, at_most=1e4))
        object.__setattr__(
            self, "sensitivity", whole("sensitivity", self.sensitivity, at_least=1, at_most=10_000)
        )

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "deviation": self.deviation, "sensitivity": self.sensitivity}
