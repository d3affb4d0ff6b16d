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
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from discreet.accounting.curve import account
from discreet.errors import InvalidParameter, MissingDependency, UnsupportedEvent, whole
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
    """Convert a DpEvent; raises :class:`~discreet.errors.UnsupportedEvent` where Discreet has no event for it."""
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
    if not count:
        return
    match type(theirs).__name__:
        case "NoOpDpEvent":
            return
        case "PoissonSampledDpEvent" if theirs.sampling_probability == 0:
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
    """Event that is released of a sample; several Gaussians are merged into one."""
    several = event_of(theirs)
    return several.parts()[0][0] if len(several.parts()) == 1 and several.parts()[0][1] == 1 else several


def _is_unprotected(theirs: Any) -> bool:
    """Whether an event has no guarantee: it is declared non-private, or its noise is zero."""
    match type(theirs).__name__:
        case "NonPrivateDpEvent":
            return True
        case "GaussianDpEvent" | "LaplaceDpEvent":
            return bool(theirs.noise_multiplier == 0)
        case "SelfComposedDpEvent":
            return theirs.count > 0 and _is_unprotected(theirs.event)
        case "PoissonSampledDpEvent":
            return theirs.sampling_probability > 0 and _is_unprotected(theirs.event)
        case "SampledWithoutReplacementDpEvent":
            return theirs.sample_size > 0 and _is_unprotected(theirs.event)
        case "ComposedDpEvent":
            return any(map(_is_unprotected, theirs.events))
    return False


class CompositionError(NamedTuple):
    """The part of an event that cannot be accounted for, and why: as dp-accounting describes it."""

    invalid_event: Any
    error_message: str


class DpAccountant:
    """The interface of dp-accounting's ``PrivacyAccountant``: compose, then ask.

    It can be given to their ``calibrate_dp_mechanism``. Where dp-accounting is imported, refusals are also its
    ``UnsupportedEventError``. Events without noise are accepted and cost an infinite epsilon, as they do there.
    """

    def __init__(self, neighboring_relation: Any = "ADD_OR_REMOVE_ONE") -> None:
        name = getattr(neighboring_relation, "name", neighboring_relation)
        if name not in RELATIONS:
            raise UnsupportedEvent(f"the relation {name} is not known here; {' and '.join(RELATIONS)} are.")
        self.neighbours = RELATIONS[name]
        self.neighboring_relation = neighboring_relation
        self._parts: list[tuple[Event, int]] = []
        self._theirs: list[tuple[Any, int]] = []
        self._unprotected = False

    def supports(self, event: Any) -> bool:
        """Whether a theorem covers ``event`` for these neighbours."""
        return self._maybe_compose(event, 0, False) is None

    def compose(self, event: Any, count: int = 1) -> DpAccountant:
        """Add ``count`` releases; what has no theorem is refused and changes nothing."""
        times = whole("count", count, at_least=1)
        problem = self._maybe_compose(event, times, True)
        if problem is not None:
            raise _unsupported()(
                f"Unsupported event: {problem.error_message} This is caused by subevent {problem.invalid_event}."
            )
        self._theirs.append((event, times))
        return self

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> CompositionError | None:
        """Return the reason against composing, or None; compose if ``do_compose``. Named as in dp_accounting."""
        unprotected = _is_unprotected(event)
        more: Event | None = None
        if not unprotected:
            try:
                more = event_of(event) * max(1, count)
                account(more, self.neighbours)
            except (UnsupportedEvent, ValueError) as error:
                return CompositionError(self._culprit(event), str(error))
        if do_compose:
            self._unprotected |= unprotected
            self._parts += () if more is None else more.parts()
        return None

    def _culprit(self, event: Any) -> Any:
        """The innermost part of a refused event that is refused by itself."""
        match type(event).__name__:
            case "SelfComposedDpEvent":
                inside = [event.event]
            case "ComposedDpEvent":
                inside = list(event.events)
            case _:
                inside = []
        problems = (self._maybe_compose(part, 1, False) for part in inside)
        return next((problem.invalid_event for problem in problems if problem is not None), event)

    @property
    def ledger(self) -> Any:
        """Everything composed so far, as an event of dp-accounting, which has to be imported for it."""
        library = sys.modules.get("dp_accounting")
        if library is None:
            raise MissingDependency("`ledger` is an event of dp-accounting. Import dp_accounting first.")
        builder = library.DpEventBuilder()
        for event, count in self._theirs:
            builder.compose(event, count)
        return builder.build()

    def epsilon_bounds(self, target_delta: float) -> Bounds:
        """Certified bounds on epsilon."""
        if self._unprotected:
            return Bounds(0.0, math.inf)
        if not self._parts or target_delta == 1:
            return Bounds(0.0, 0.0)
        return account(Composition(tuple(self._parts)), self.neighbours).epsilon_bounds(target_delta)

    def get_epsilon(self, target_delta: float) -> float:
        """Guarantee: everything composed so far is (this epsilon, target_delta)-DP."""
        return self.epsilon_bounds(target_delta).upper

    def get_delta(self, target_epsilon: float) -> float:
        """Guarantee: everything composed so far is (target_epsilon, this delta)-DP."""
        if self._unprotected:
            return 1.0
        if not self._parts:
            return 0.0
        curve = account(Composition(tuple(self._parts)), self.neighbours)
        return curve.delta(min(target_epsilon, LARGEST_EPSILON))


LARGEST_EPSILON = 1e6
"""Delta at this epsilon stands for delta at larger ones: it is an upper bound there."""


def _unsupported() -> type[UnsupportedEvent]:
    """Our error for events without a theorem, which is theirs, too, where dp-accounting is imported."""
    theirs = getattr(sys.modules.get("dp_accounting"), "UnsupportedEventError", None)
    if theirs is None:
        return UnsupportedEvent
    return type("UnsupportedEvent", (UnsupportedEvent, theirs), {})
