"""What is released, as frozen data.

An event holds exactly what accounting needs and nothing about the records: it may be published. Events are
values: ``event * n`` repeats, ``a + b`` composes, equal parts merge, and every event survives a round trip
through JSON.

>>> step = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
>>> run = step * 10_000 + Laplace(scale=20.0)
>>> Event.from_json(run.to_json()) == run
True
>>> step * 3 + step * 4 == step * 7
True

The parameters are those of the SUM of clipped contributions, measured in units of what one record may add:

* ``Gaussian(noise_multiplier)``: standard deviation of the noise / l2 clip norm;
* ``Laplace(scale)``: scale of the noise / l1 clip norm.

Composition is adaptive: each release may depend on all earlier outputs. The *list* of events must be fixed in
advance (stopping early is free); for events chosen along the way use a filter of the ledger instead.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, cast

from discreet.errors import InvalidParameter, real, whole

MAX_COUNT = 10**12
_TYPES: dict[str, Callable[[dict[str, Any]], Event]] = {}

Check = Callable[[str, Any], Any]
"""Takes the name of a field and its value, and returns the value to keep or raises."""


class Event:
    """Base of all events. Subclasses are frozen dataclasses.

    ``_checks`` has, for fields that need one, the check that every value passes.
    """

    kind: ClassVar[str]
    _checks: ClassVar[Mapping[str, Check]] = {}

    def __post_init__(self) -> None:
        for name, check in self._checks.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    def parts(self) -> tuple[tuple[Event, int], ...]:
        """The event as a sequence of (simple event, count)."""
        return ((self, 1),)

    def __mul__(self, count: int) -> Composition:
        remedy = "Repeat an event a whole number of times, for instance event * 1000."
        count = whole("count", count, at_least=1, at_most=MAX_COUNT, remedy=remedy)
        return Composition(tuple((event, n * count) for event, n in self.parts()))

    __rmul__ = __mul__

    def __add__(self, other: Event) -> Composition:
        if not isinstance(other, Event):
            return NotImplemented
        return Composition(self.parts() + other.parts())

    def dominating_pair(self, neighbours: str, group_size: int) -> Any:
        """The pair of distributions (:mod:`discreet.accounting.pairs`) that no pair of neighbouring
        data sets is easier to tell apart than, in the direction in which the record is there.

        It is your theorem, and the accountant believes it; None where there is none.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """The event as plain data."""
        names = [field.name for field in fields(cast(Any, self))]
        return {"event": self.kind} | {name: _plain(getattr(self, name)) for name in names}

    @staticmethod
    def from_dict(data: object) -> Event:
        """The inverse of :meth:`to_dict`. Anything that is not an event is refused."""
        if isinstance(data, dict):
            read = _TYPES.get(str(data.get("event")))
            if read is not None:
                try:
                    return read({key: value for key, value in data.items() if key != "event"})
                except (KeyError, TypeError, RecursionError):
                    pass
        raise InvalidParameter("event", data, f"is not an event; known kinds are {', '.join(_TYPES)}.")

    def to_json(self) -> str:
        """Canonical JSON: the same event always gives the same text."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Event:
        """The inverse of :meth:`to_json`."""
        try:
            data = json.loads(text, object_pairs_hook=_without_repeats)
        except (ValueError, TypeError, RecursionError):  # also numbers of thousands of digits
            raise InvalidParameter("event", text, "is not JSON text written by to_json().") from None
        return Event.from_dict(data)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, to name an event in a ledger or certificate."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _plain(value: object) -> object:
    return value.to_dict() if isinstance(value, Event) else list(value) if isinstance(value, tuple) else value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: readers disagree on which of two values counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def registered(cls: type[Event]) -> type[Event]:
    """A class decorator: events of this ``kind`` can be read from JSON, so from plans and ledgers."""
    if cls.kind in _TYPES:
        raise InvalidParameter("kind", cls.kind, "is the kind of another event.")
    _TYPES[cls.kind] = lambda data: cls(**data)
    return cls


_NO_NOISE = "no noise gives no privacy."
checked_noise = partial(
    real, at_least=0, remedy=f"It is the noise's standard deviation divided by the clip norm; {_NO_NOISE}"
)
checked_scale = partial(
    real, at_least=0, remedy=f"It is the noise's scale divided by the l1 clip norm; {_NO_NOISE}"
)


@registered
@dataclass(frozen=True)
class Gaussian(Event):
    """A sum released with Gaussian noise of ``noise_multiplier`` times the l2 clip norm.

    No noise is an event, too: its epsilon is infinite, and engines refuse to release it.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"
    _checks: ClassVar = {"noise_multiplier": checked_noise}


@registered
@dataclass(frozen=True)
class Laplace(Event):
    """A sum released with Laplace noise of ``scale`` times the l1 clip norm on every coordinate."""

    scale: float
    kind: ClassVar[str] = "laplace"
    _checks: ClassVar = {"scale": checked_scale}


@registered
@dataclass(frozen=True)
class ApproximateDP(Event):
    """A black box known only to be (epsilon, delta)-DP, for the neighbours it will be accounted under."""

    epsilon: float
    delta: float = 0.0
    kind: ClassVar[str] = "approximate-dp"
    _checks: ClassVar = {"epsilon": partial(real, at_least=0), "delta": partial(real, at_least=0, below=1)}


def _noise(name: str, value: object) -> Gaussian | Laplace:
    if isinstance(value, dict):
        value = Event.from_dict(value)
    if isinstance(value, Composition) and all(isinstance(part, Gaussian) for part, _ in value.parts()):
        value = _one_gaussian(value)
    if not isinstance(value, Gaussian | Laplace):
        raise InvalidParameter(name, value, "must be a Gaussian or a Laplace event.")
    return value


def _one_gaussian(several: Composition) -> Gaussian:
    """Several Gaussian releases of the same batch are one, of the noise 1 / sqrt(sum 1 / noise^2), rounded down.

    One kernel makes all of them from it, with the record and without.
    """
    parts = [(part.noise_multiplier, n) for part, n in several.parts() if isinstance(part, Gaussian)]
    if any(noise == 0 for noise, _ in parts):
        return Gaussian(0.0)
    shifts = [math.sqrt(n) / noise for noise, n in parts]
    return Gaussian(1 / math.hypot(*shifts) * (1 - 1e-15))


checked_rate = partial(
    real,
    at_least=0,
    at_most=1,
    remedy="It is the chance of one record to be in a batch: expected batch size / number of records.",
)


@registered
@dataclass(frozen=True)
class PoissonSampled(Event):
    """``of`` on a batch that every record joins independently with probability ``rate``.

    Several Gaussian releases of the same batch, such as one for every layer, may be given as their sum.
    The batch size is random and the divisor public. A shuffled or fixed-size loader is *not* this event.
    At the rate 0 nothing is released.
    """

    rate: float
    of: Gaussian | Laplace
    kind: ClassVar[str] = "poisson-sampled"
    _checks: ClassVar = {"rate": checked_rate, "of": _noise}

    def parts(self) -> tuple[tuple[Event, int], ...]:
        if self.rate == 0:
            return ((ApproximateDP(0.0), 1),)
        return ((self.of if self.rate == 1 else self, 1),)


@registered
@dataclass(frozen=True)
class FixedSizeSampled(Event):
    """``of`` on a uniformly random subset of exactly ``batch_size`` of ``records`` records, drawn afresh.

    The number of records is public, so this event is accounted under replace-one neighbours.
    """

    batch_size: int
    records: int
    of: Gaussian
    kind: ClassVar[str] = "fixed-size-sampled"
    _checks: ClassVar = {"records": partial(whole, at_least=1), "of": _noise}

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "A batch cannot hold more than all records."
        size = whole("batch_size", self.batch_size, at_least=1, at_most=self.records, remedy=remedy)
        object.__setattr__(self, "batch_size", size)

    @property
    def rate(self) -> float:
        """The chance of one record to be in the batch."""
        return self.batch_size / self.records

    def parts(self) -> tuple[tuple[Event, int], ...]:
        return ((self.of if self.batch_size == self.records else self, 1),)


@registered
@dataclass(frozen=True)
class RandomlyAllocated(Event):
    """One epoch of ``steps`` releases in which every record takes part exactly once, at a random step.

    Each record draws its own step, independently of the others and afresh for each epoch, so batch sizes vary
    (balls in bins). Several epochs are ``event * epochs``. A shuffled loader with batches of equal size is
    *not* this event: there the other records' places determine the last one's.

    With ``selected`` > 1 a record takes part at that many steps, a random subset of them. A random division of the
    steps into so many blocks and one step of each is such a subset, so the blocks one after the other dominate it.
    """

    steps: int
    of: Gaussian
    selected: int = 1
    kind: ClassVar[str] = "randomly-allocated"
    _checks: ClassVar = {
        "steps": partial(whole, at_least=1, remedy="It is the number of releases in one epoch."),
        "of": _noise,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "A record cannot take part at more steps than there are."
        chosen = whole("selected", self.selected, at_least=1, at_most=self.steps, remedy=remedy)
        object.__setattr__(self, "selected", chosen)

    def parts(self) -> tuple[tuple[Event, int], ...]:
        if self.selected == 1:
            return ((self.of if self.steps == 1 else self, 1),)
        short, longer = divmod(self.steps, self.selected)
        blocks = ((short, self.selected - longer), (short + 1, longer))
        return tuple(
            (part, n * count)
            for steps, count in blocks
            if count
            for part, n in RandomlyAllocated(steps, self.of).parts()
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name != "selected" or value > 1}


@dataclass(frozen=True)
class Composition(Event):
    """Several events one after the other. Equal parts are merged, in order of first appearance."""

    events: tuple[tuple[Event, int], ...]
    kind: ClassVar[str] = "composition"

    def __post_init__(self) -> None:
        merged: dict[Event, int] = {}
        for event, count in self._flat():
            merged[event] = merged.get(event, 0) + count
        if not merged:
            raise InvalidParameter("events", (), "is empty; a composition needs at least one event.")
        for count in merged.values():
            whole("count", count, at_least=1, at_most=MAX_COUNT)
        object.__setattr__(self, "events", tuple(merged.items()))

    def _flat(self) -> Iterable[tuple[Event, int]]:
        if not isinstance(self.events, tuple | list):
            raise InvalidParameter("events", self.events, "must be a tuple of (event, count) pairs.")
        for pair in self.events:
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Event)):
                raise InvalidParameter("events", pair, "must be an (event, count) pair.")
            event, count = pair
            count = whole("count", count, at_least=1, at_most=MAX_COUNT)
            for part, n in event.parts():
                yield part, n * count

    def parts(self) -> tuple[tuple[Event, int], ...]:
        return self.events

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "events": [[event.to_dict(), count] for event, count in self.events]}

    @classmethod
    def _read(cls, data: dict[str, Any]) -> Composition:
        if set(data) != {"events"} or not isinstance(data["events"], list):
            raise TypeError("a composition holds its events and nothing else")
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in data["events"]):
            raise TypeError("events are (event, count) pairs")
        return cls(tuple((Event.from_dict(event), count) for event, count in data["events"]))


_TYPES[Composition.kind] = Composition._read
