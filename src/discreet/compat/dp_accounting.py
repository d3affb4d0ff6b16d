"""Events of Google's dp-accounting: read as events of ours, and an accountant with the interface of theirs.

Events are known by the names of their classes and fields, so that nothing need be installed to read a log. A log may
hold what ``print(event)`` wrote, or ``event.to_named_tuple()`` as JSON objects; a plan of JAX Privacy has such an
event in ``plan.dp_event``.

>>> read_event("SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4)")
Composition(events=((Gaussian(noise_multiplier=2.0), 4),))

>>> from types import SimpleNamespace
>>> class GaussianDpEvent(SimpleNamespace): ...
>>> DpAccountant().compose(GaussianDpEvent(noise_multiplier=1.0), 4).get_epsilon(target_delta=1e-5) > 9
True
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from discreet.accounting.curve import account
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.events import (
    ApproximateDP,
    Composition,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    PoissonSampled,
    RandomisedResponse,
    RepeatAndSelect,
    TreeAggregation,
    TruncatedPoissonSampled,
    ZeroConcentratedDP,
)
from discreet.guarantee import AnyNeighbours, Bounds

RELATIONS: dict[str, AnyNeighbours] = {
    "ADD_OR_REMOVE_ONE": "add-remove",
    "REPLACE_ONE": "replace-one",
    "REPLACE_SPECIAL": "zero-out",
}


def event_of(theirs: Any) -> Event:
    """The same releases as an event of ours; :class:`~discreet.errors.UnsupportedEvent` where there is none."""
    parts = tuple(_parts(theirs, 1))
    return Composition(parts) if parts else ApproximateDP(0.0)


def read_event(text: str) -> Event:
    """The event in a log: its printed form, or its named tuple as JSON."""
    try:
        tree = (
            json.loads(text) if text.lstrip().startswith("{") else ast.parse(text.strip(), mode="eval").body
        )
        return event_of(_rebuilt(tree))
    except (SyntaxError, TypeError, AttributeError, RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, InvalidParameter | UnsupportedEvent):
            raise
        raise InvalidParameter("event", text, "is not an event that dp-accounting printed.") from None


def _rebuilt(tree: Any) -> Any:
    """A value, a list, or an object that is named like the class which was written."""
    match tree:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[], keywords=words):
            return _object(name, {str(word.arg): _rebuilt(word.value) for word in words})
        case dict():
            names = {"module_name", "class_name"}
            fields = {str(key): _rebuilt(value) for key, value in tree.items() if key not in names}
            return _object(tree.get("class_name"), fields)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_rebuilt(part) for part in parts]
        case list():
            return [_rebuilt(part) for part in tree]
        case ast.Name(id="inf"):
            return math.inf
        case ast.AST():
            return ast.literal_eval(tree)
        case _:
            return tree


def _object(name: object, fields: dict[str, Any]) -> Any:
    if not isinstance(name, str):
        raise TypeError("an object without the name of its class")
    return type(name, (SimpleNamespace,), {})(**fields)


def _parts(theirs: Any, count: int) -> Iterator[tuple[Event, int]]:
    match type(theirs).__name__:
        case "NoOpDpEvent":
            return
        case "SelfComposedDpEvent":
            yield from _parts(theirs.event, count * theirs.count)
        case "ComposedDpEvent":
            for event in theirs.events:
                yield from _parts(event, count)
        case "SingleEpochTreeAggregationDpEvent":
            # A record is in one of the trees only: the tallest counts.
            counts = (
                theirs.step_counts if isinstance(theirs.step_counts, list | tuple) else [theirs.step_counts]
            )
            yield TreeAggregation(max(counts), theirs.noise_multiplier), count
        case _:
            yield _simple(theirs), count


def _simple(theirs: Any) -> Event:
    match type(theirs).__name__:
        case "GaussianDpEvent":
            return Gaussian(theirs.noise_multiplier)
        case "LaplaceDpEvent":
            return Laplace(theirs.noise_multiplier)
        case "EpsilonDeltaDpEvent":
            return ApproximateDP(theirs.epsilon, theirs.delta)
        case "PoissonSampledDpEvent":
            return PoissonSampled(theirs.sampling_probability, _noise(theirs.event))
        case "SampledWithoutReplacementDpEvent":
            return FixedSizeSampled(theirs.sample_size, theirs.source_dataset_size, _noise(theirs.event))
        case "DiscreteLaplaceDpEvent":
            return DiscreteLaplace(1 / theirs.noise_parameter * (1 - 1e-15), theirs.sensitivity)
        case "DiscreteGaussianDpEvent" if theirs.dimension == 1:
            return DiscreteGaussian(theirs.sigma, theirs.sensitivity)
        case "TruncatedSubsampledGaussianDpEvent":
            return TruncatedPoissonSampled(
                theirs.sampling_probability,
                theirs.truncated_batch_size,
                theirs.dataset_size,
                theirs.noise_multiplier,
            )
        case "MixtureOfGaussiansDpEvent":
            chances = dict(zip(theirs.sensitivities, theirs.sampling_probs, strict=True))
            shifts = sorted(shift for shift, chance in chances.items() if chance > 0)
            return MixtureOfGaussians(
                theirs.standard_deviation, tuple(shifts), tuple(chances[shift] for shift in shifts)
            )
        case "RandomizedResponseDpEvent":
            share, buckets = theirs.noise_parameter, theirs.num_buckets
            return RandomisedResponse(math.log1p(buckets * (1 - share) / share) * (1 + 1e-14), buckets)
        case "RepeatAndSelectDpEvent":
            return RepeatAndSelect(
                event_of(theirs.event), theirs.mean, None if theirs.shape == math.inf else theirs.shape
            )
        case "ZCDpEvent" if not getattr(theirs, "xi", 0.0):
            return ZeroConcentratedDP(theirs.rho)
    raise UnsupportedEvent(f"{type(theirs).__name__} has no event here; account for it as ApproximateDP.")


def _noise(theirs: Any) -> Any:
    """What is released of a sample: one event, or several Gaussians, which the sampled event makes one."""
    several = event_of(theirs)
    return several.parts()[0][0] if len(several.parts()) == 1 and several.parts()[0][1] == 1 else several


class DpAccountant:
    """The interface of dp-accounting's ``PrivacyAccountant``: compose, then ask."""

    def __init__(self, neighboring_relation: Any = "ADD_OR_REMOVE_ONE") -> None:
        name = getattr(neighboring_relation, "name", neighboring_relation)
        if name not in RELATIONS:
            raise UnsupportedEvent(f"the relation {name} is not known here; {' and '.join(RELATIONS)} are.")
        self.neighbours = RELATIONS[name]
        self._parts: list[tuple[Event, int]] = []

    def supports(self, event: Any) -> bool:
        """Whether a theorem covers ``event`` for these neighbours."""
        try:
            account(event_of(event), self.neighbours)
        except (UnsupportedEvent, ValueError):
            return False
        return True

    def compose(self, event: Any, count: int = 1) -> DpAccountant:
        """Add ``count`` releases; what has no theorem is refused and changes nothing."""
        more = event_of(event) * count
        account(more, self.neighbours)
        self._parts += more.parts()
        return self

    def epsilon_bounds(self, target_delta: float) -> Bounds:
        """Certified bounds on epsilon."""
        event = Composition(tuple(self._parts)) if self._parts else ApproximateDP(0.0)
        return account(event, self.neighbours).epsilon_bounds(target_delta)

    def get_epsilon(self, target_delta: float) -> float:
        """Guarantee: everything composed so far is (this epsilon, target_delta)-DP."""
        return self.epsilon_bounds(target_delta).upper

    def get_delta(self, target_epsilon: float) -> float:
        """Guarantee: everything composed so far is (target_epsilon, this delta)-DP."""
        event = Composition(tuple(self._parts)) if self._parts else ApproximateDP(0.0)
        return account(event, self.neighbours).delta(target_epsilon)
