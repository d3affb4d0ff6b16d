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

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from discreet.errors import InvalidParameter, real, whole
from discreet.files import canonical, digest, parse_json

MAX_COUNT = 10**12
_TYPES: dict[str, type[Event]] = {}

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
        """Return a dominating pair (:mod:`discreet.accounting.pairs`) of an event of your own, or None.

        No pair of neighbouring data sets is easier to tell apart than this pair of distributions, in the direction in
        which the record is there. It is your theorem, and the accountant believes it.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        names = [field.name for field in fields(cast(Any, self))]
        return {"event": self.kind} | {name: _plain(getattr(self, name)) for name in names}

    @staticmethod
    def from_dict(data: object) -> Event:
        """Return the event of plain data from :meth:`to_dict`; refuse anything else."""
        if isinstance(data, dict) and str(data.get("event")) in _TYPES:
            values = {key: value for key, value in data.items() if key != "event"}
            try:
                return _TYPES[str(data["event"])](**values)
            except (TypeError, RecursionError):
                pass
        raise InvalidParameter("event", data, f"is not an event; known kinds are {', '.join(_TYPES)}.")

    def to_json(self) -> str:
        """Return canonical JSON: equal events have equal texts."""
        return canonical(self.to_dict())

    @staticmethod
    def from_json(text: str) -> Event:
        """Return the event of a text from :meth:`to_json`."""
        return Event.from_dict(parse_json(text, "event"))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, by which ledgers and certificates name an event."""
        return digest(self.to_dict())


def _plain(value: object) -> object:
    return value.to_dict() if isinstance(value, Event) else list(value) if isinstance(value, tuple) else value


AnEvent = TypeVar("AnEvent", bound=Event)


def registered(cls: type[AnEvent]) -> type[AnEvent]:
    """Let events of the ``kind`` of this class be read from JSON, and so from plans and ledgers."""
    if cls.kind in _TYPES:
        raise InvalidParameter("kind", cls.kind, "is the kind of another event.")
    _TYPES[cls.kind] = cls
    return cls


@dataclass_transform(frozen_default=True)
def event(kind: str, **checks: Check) -> Callable[[type[AnEvent]], type[AnEvent]]:
    """Make a class a frozen dataclass of this ``kind``, registered, whose fields pass ``checks``."""

    def declare(cls: type[AnEvent]) -> type[AnEvent]:
        cls.kind, cls._checks = kind, checks
        return registered(dataclass(frozen=True)(cls))

    return declare


def as_event(name: str, value: object) -> Event:
    """Return an event, or the event of plain data."""
    event = Event.from_dict(value) if isinstance(value, dict) else value
    if isinstance(event, Event):
        return event
    raise InvalidParameter(name, value, "must be an event.")


_NO_NOISE = "no noise gives no privacy."
checked_noise = partial(
    real, at_least=0, remedy=f"It is the noise's standard deviation divided by the clip norm; {_NO_NOISE}"
)
checked_scale = partial(
    real, at_least=0, remedy=f"It is the noise's scale divided by the l1 clip norm; {_NO_NOISE}"
)


@event("gaussian", noise_multiplier=checked_noise)
class Gaussian(Event):
    """A sum released with Gaussian noise of ``noise_multiplier`` times the l2 clip norm.

    No noise is an event, too: its epsilon is infinite, and engines refuse to release it.
    """

    noise_multiplier: float


@event("laplace", scale=checked_scale)
class Laplace(Event):
    """A sum released with Laplace noise of ``scale`` times the l1 clip norm on every coordinate."""

    scale: float


@event("approximate-dp", epsilon=partial(real, at_least=0), delta=partial(real, at_least=0, below=1))
class ApproximateDP(Event):
    """A black box known only to be (epsilon, delta)-DP, for the neighbours it will be accounted under."""

    epsilon: float
    delta: float = 0.0


def _noise(name: str, value: object) -> Gaussian | Laplace:
    value = as_event(name, value)
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


@event("poisson-sampled", rate=checked_rate, of=_noise)
class PoissonSampled(Event):
    """``of`` on a batch that every record joins independently with probability ``rate``.

    Several Gaussian releases of the same batch, such as one for every layer, may be given as their sum.
    The batch size is random and the divisor public. A shuffled or fixed-size loader is *not* this event.
    At the rate 0 nothing is released.
    """

    rate: float
    of: Gaussian | Laplace

    def parts(self) -> tuple[tuple[Event, int], ...]:
        if self.rate == 0:
            return ((ApproximateDP(0.0), 1),)
        return ((self.of if self.rate == 1 else self, 1),)


@event("fixed-size-sampled", records=partial(whole, at_least=1), of=_noise)
class FixedSizeSampled(Event):
    """``of`` on a uniformly random subset of exactly ``batch_size`` of ``records`` records, drawn afresh.

    The number of records is public, so this event is accounted under replace-one neighbours.
    """

    batch_size: int
    records: int
    of: Gaussian

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


@event(
    "randomly-allocated",
    steps=partial(whole, at_least=1, remedy="It is the number of releases in one epoch."),
    of=_noise,
)
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


@event("composition")
class Composition(Event):
    """Several events one after the other. Equal parts are merged, in order of first appearance."""

    events: tuple[tuple[Event, int], ...]

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
            if not (isinstance(pair, tuple | list) and len(pair) == 2):
                raise InvalidParameter("events", pair, "must be an (event, count) pair.")
            count = whole("count", pair[1], at_least=1, at_most=MAX_COUNT)
            for part, n in as_event("events", pair[0]).parts():
                yield part, n * count

    def parts(self) -> tuple[tuple[Event, int], ...]:
        return self.events

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "events": [[event.to_dict(), count] for event, count in self.events]}
