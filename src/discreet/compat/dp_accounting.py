"""Events of Google's dp-accounting: read as events of ours, and an accountant with the interface of theirs.

Events are known by the names of their classes and fields, so that nothing need be installed to read a log.

>>> from types import SimpleNamespace
>>> class GaussianDpEvent(SimpleNamespace): ...
>>> DpAccountant().compose(GaussianDpEvent(noise_multiplier=1.0), 4).get_epsilon(target_delta=1e-5) > 9
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from discreet.accounting.account import account
from discreet.errors import UnsupportedEvent
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
    ZeroConcentratedDP,
)
from discreet.guarantee import Bounds, Neighbours

RELATIONS: dict[str, Neighbours] = {"ADD_OR_REMOVE_ONE": "add-remove", "REPLACE_ONE": "replace-one"}


def event_of(theirs: Any) -> Event:
    """The same releases as an event of ours; :class:`~discreet.errors.UnsupportedEvent` where there is none."""
    parts = tuple(_parts(theirs, 1))
    return Composition(parts) if parts else ApproximateDP(0.0)


def _parts(theirs: Any, count: int) -> Iterator[tuple[Event, int]]:
    match type(theirs).__name__:
        case "NoOpDpEvent":
            return
        case "SelfComposedDpEvent":
            yield from _parts(theirs.event, count * theirs.count)
        case "ComposedDpEvent":
            for event in theirs.events:
                yield from _parts(event, count)
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
        case "MixtureOfGaussiansDpEvent":
            chances = dict(zip(theirs.sensitivities, theirs.sampling_probs, strict=True))
            shifts = sorted(shift for shift, chance in chances.items() if chance > 0)
            return MixtureOfGaussians(
                theirs.standard_deviation, tuple(shifts), tuple(chances[shift] for shift in shifts)
            )
        case "RandomizedResponseDpEvent":
            share, buckets = theirs.noise_parameter, theirs.num_buckets
            return RandomisedResponse(math.log1p(buckets * (1 - share) / share) * (1 + 1e-14), buckets)
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
