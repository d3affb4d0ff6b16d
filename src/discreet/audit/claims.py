"""A claim, and the family of weaker and stronger claims around it.

An audit cannot measure epsilon; it can show that a claim is false. So it asks of every member of a family, the
claimed release with its noise scaled by some factor, whether what was seen is too revealing for it. The member
with the least noise that is refuted gives the lower bound. The family has the claim's own trade-off curve,
which is why the bound comes close to the claim: a bound through (epsilon, delta) alone gives half of it away.

>>> from discreet.events import Gaussian
>>> claim = Claim.of(Gaussian(noise_multiplier=1.0), delta=1e-5)
>>> round(claim.epsilon, 3), round(claim.epsilon_at(STEPS_PER_DOUBLING), 3)  # as claimed; with twice the noise
(4.377, 1.993)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from discreet.accounting.curve import PrivacyCurve, account
from discreet.audit.tradeoff_bound import TradeoffBound
from discreet.certificate import Certificate
from discreet.errors import InvalidParameter, UnsupportedEvent, real
from discreet.events import (
    ApproximateDP,
    Composition,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)
from discreet.guarantee import Guarantee, Neighbours, neighbours_named
from discreet.ledger import GaussianFilter
from discreet.plan.plan import Plan

STEPS_PER_DOUBLING = 512
"""The members of a family: their noise grows by a factor of 2^(1/512) from one to the next."""


@dataclass(frozen=True)
class Claim:
    """An event, the neighbours it is accounted for, and the delta at which epsilon is read off.

    ``group`` is by how many records the data sets of the attack differ, and ``protects`` how many the claim protects
    together: its ``group_size``. The curve that is held against what was seen is that of the attack's group; epsilon
    is that of the claim's. For a small epsilon a group is seen far better than a record.
    """

    event: Event
    neighbours: Neighbours
    delta: float
    group: int = 1
    protects: int = 1

    @classmethod
    def of(cls, claim: Any, *, delta: float | None = None, neighbours: Neighbours | None = None) -> Claim:
        """From a plan, a certificate, a guarantee, a privacy curve or an event.

        A plan, a certificate and a guarantee have a delta and neighbours of their own; a curve has neighbours; an
        event has neither. A guarantee, and a certificate of an adaptive plan, is
        only known to be (epsilon, delta)-private, and is audited as that; under a Gaussian filter, all releases
        together are one Gaussian release.
        """
        plan = claim.plan if isinstance(claim, Certificate) else claim
        if isinstance(plan, Plan):
            if isinstance(plan.adapts_by, GaussianFilter):
                return cls.of(plan.curve, delta=plan.delta)
            claim = plan if plan.stages else claim.guarantee
        event, protects = _event(claim), getattr(claim, "group_size", 1)
        if protects != 1 and isinstance(claim, Guarantee):
            remedy = (
                "of a guarantee says nothing of single records; audit the plan or the curve that it is of."
            )
            raise InvalidParameter("group_size", protects, remedy)
        remedy = "A curve or an event needs one, for instance delta=1e-5."
        own = None if isinstance(claim, Event | PrivacyCurve) else claim.delta
        delta = real("delta", delta if own is None else own, at_least=0, below=1, remedy=remedy)
        known = getattr(claim, "neighbours", None)
        if known is not None and neighbours not in (None, known):
            raise InvalidParameter("neighbours", neighbours, f"the claim was made for {known!r}.")
        found = neighbours_named(known or neighbours or "add-remove")
        return cls(event, found, delta, protects=protects)

    @cached_property
    def epsilon(self) -> float:
        """Claimed epsilon at ``delta``."""
        return self.curve(0).epsilon(self.delta)

    def epsilon_at(self, step: int) -> float:
        """The epsilon of a member of the family, rounded down: nothing below it is consistent with a refutation."""
        return self.curve(step).epsilon_bounds(self.delta).lower

    def curve(self, step: int) -> PrivacyCurve:
        """The certified curve of the claim with 2^(step/512) times the noise."""
        return _curve(self.event, self.neighbours, step, self.protects)

    def lines(self, step: int) -> TradeoffBound:
        """The lines of its curve for ``group`` records: what the attack may show if this member is true."""
        return _lines(self.event, self.neighbours, step, self.group)

    def plain(self) -> Claim:
        """Reduce the claim to its (epsilon, delta) for the number of records that it protects."""
        black_box, units = ApproximateDP(self.epsilon, self.delta), -(-self.group // self.protects)
        return replace(self, event=black_box, group=units, protects=1)


def scale_noise(event: Event, factor: float) -> Event:
    """The event with ``factor`` times the noise; of a black box, epsilon is divided instead."""
    match event:
        case Gaussian():
            return Gaussian(event.noise_multiplier * factor)
        case Laplace():
            return Laplace(event.scale * factor)
        case ApproximateDP():
            return ApproximateDP(event.epsilon / factor, event.delta)
        case PoissonSampled():
            return PoissonSampled(event.rate, _scaled_noise(event.of, factor))
        case FixedSizeSampled():
            return FixedSizeSampled(
                event.batch_size, event.records, Gaussian(event.of.noise_multiplier * factor)
            )
        case RandomlyAllocated():
            return RandomlyAllocated(event.steps, Gaussian(event.of.noise_multiplier * factor))
        case Composition():
            return Composition(tuple((scale_noise(part, factor), count) for part, count in event.parts()))
    raise UnsupportedEvent(f"no family of noise levels is known for {event!r}.")


def _scaled_noise(noise: Gaussian | Laplace, factor: float) -> Gaussian | Laplace:
    return (
        Gaussian(noise.noise_multiplier * factor)
        if isinstance(noise, Gaussian)
        else Laplace(noise.scale * factor)
    )


@lru_cache(maxsize=4096)
def _curve(event: Event, neighbours: Neighbours, step: int, group: int = 1) -> PrivacyCurve:
    return account(
        scale_noise(event, 2.0 ** (step / STEPS_PER_DOUBLING)) if step else event, neighbours, group
    )


@lru_cache(maxsize=4096)
def _lines(event: Event, neighbours: Neighbours, step: int, group: int) -> TradeoffBound:
    return TradeoffBound.of(_curve(event, neighbours, step, group))


def _event(claim: Any) -> Event:
    if isinstance(claim, Guarantee):
        return ApproximateDP(claim.epsilon.upper, claim.delta)
    event = claim if isinstance(claim, Event) else getattr(claim, "event", None)
    if isinstance(event, Event):
        return event
    raise InvalidParameter(
        "claim", type(claim), "must be a Plan, Certificate, Guarantee, PrivacyCurve or Event."
    )
