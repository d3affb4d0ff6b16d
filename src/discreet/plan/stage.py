"""One stage of a plan: a number of noisy sums of clipped contributions, with every number that they depend on.

>>> stage = Stage("descent", "poisson", 60_000, batch_size=600, steps=1000, clip_norm=1.0, noise_multiplier=2.0)
>>> stage.rate, stage.divisor, stage.noise_std_of_mean
(0.01, 600.0, 0.0033333333333333335)
>>> stage.event
Composition(events=((PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=2.0)), 1000),))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from discreet.core.clipping import clip_norm_of
from discreet.core.matrix_mechanism import MOST_BANDS, BlockAllocationSampler, CyclicPoissonSampler
from discreet.core.randomness import RandomStream
from discreet.core.sampling import (
    AllocationSampler,
    FixedSizeSampler,
    FullBatch,
    Indices,
    PoissonSampler,
    Sampler,
)
from discreet.errors import InvalidParameter, PlanViolation, one_of, real, whole
from discreet.events import Event, Gaussian
from discreet.plan.stage_views import StageViews

MOST_STEPS = 10**9
"""Of a plan: nobody takes more, and bounds for more would take minutes to certify, or be too wide."""

Sampling = Literal["poisson", "fixed-size", "random-allocation", "full-batch"]
"""How batches are drawn: see :mod:`discreet.core.sampling`. A shuffled loader is none of these."""

SAMPLERS: dict[str, Callable[[int, int], Sampler]] = {
    "poisson": lambda records, size: PoissonSampler(records, size / records),
    "fixed-size": FixedSizeSampler,
    "random-allocation": lambda records, size: AllocationSampler(records, allocated_steps(records, size)),
    "full-batch": lambda records, size: FullBatch(records),
}
"""The names that a stage may give as its sampling, and the samplers of so many records and so large batches."""


def add_sampling(name: str, make: Callable[[int, int], Sampler]) -> None:
    """Let stages and recipes say ``sampling=name``; ``make(records, batch_size)`` is the sampler.

    Whoever reads such a plan needs the sampler as well; elsewhere the name is refused.
    """
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name)) or name in get_args(
        Sampling
    ):
        raise InvalidParameter("name", name, "must be a short word, and not that of another sampling.")
    SAMPLERS[name] = make


@dataclass(frozen=True)
class Stage(StageViews):
    """One procedure with its noise level: ``steps`` noisy sums of clipped contributions.

    Every field is a declared, public number; what is derived from them is public too. With more than one of
    ``bands`` the noise of a step is correlated with that of the ``bands - 1`` steps before: see
    :mod:`discreet.core.matrix_mechanism`.
    """

    name: str
    sampling: Sampling | str
    records: int
    batch_size: int
    steps: int
    clip_norm: float
    noise_multiplier: float
    bands: int = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and re.fullmatch(r"[a-z][a-z0-9-]{0,39}", self.name)):
            raise InvalidParameter("name", self.name, "must be a short word such as 'descent' or 'moments'.")
        one_of("sampling", self.sampling, tuple(SAMPLERS))
        object.__setattr__(self, "steps", whole("steps", self.steps, at_least=1, at_most=MOST_STEPS))
        object.__setattr__(self, "clip_norm", clip_norm_of("clip_norm", self.clip_norm))
        remedy = "It is the noise's standard deviation divided by the clip norm; no noise gives no privacy."
        noise = real("noise_multiplier", self.noise_multiplier, above=0, remedy=remedy)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "records", FullBatch(self.records).records)
        size = FixedSizeSampler(self.records, self.batch_size).batch_size
        object.__setattr__(self, "batch_size", size)
        if self.sampling == "full-batch" and size != self.records:
            remedy = "a full batch holds all records; leave batch_size out, or choose another sampling."
            raise InvalidParameter("batch_size", size, remedy)
        object.__setattr__(self, "bands", whole("bands", self.bands, at_least=1, at_most=MOST_BANDS))
        if self.bands > 1 and self.sampling not in ("poisson", "random-allocation"):
            remedy = "has no theorem for correlated noise; take 'random-allocation' or 'poisson', or bands=1."
            raise InvalidParameter("sampling", self.sampling, remedy)
        self.sampler()  # which checks the bands
        if self.steps % self.steps_per_charge:
            raise InvalidParameter("steps", self.steps, f"{self.whole_charges}.")

    @property
    def noise(self) -> Gaussian:
        """The noise on each sum."""
        return Gaussian(self.noise_multiplier)

    def sampler(self) -> Sampler:
        """The sampler that realises this stage's event."""
        if self.bands > 1 and self.sampling == "poisson":
            return CyclicPoissonSampler(self.records, float(self.batch_size) / self.records, self.bands)
        if self.bands > 1 and self.sampling == "random-allocation":
            return BlockAllocationSampler(self.records, self.steps_per_charge, self.bands)
        return SAMPLERS[self.sampling](self.records, self.batch_size)

    def batches(
        self, stream: RandomStream | None = None, *, rows: int | None = None, start: int = 0
    ) -> Iterator[Indices]:
        """The batches of the steps from ``start`` on, exactly as many as are planned.

        ``rows`` is how many rows the data really have, if that differs from the declared number.
        """
        start = whole("start", start, at_least=0, at_most=self.steps)
        if start % self.steps_per_charge:
            raise PlanViolation(f"start={start}: {self.whole_charges}, and goes on after them only.")
        return self.sampler().batches((self.steps - start) // self.steps_per_charge, stream, rows=rows)

    @property
    def steps_per_charge(self) -> int:
        """How many steps the smallest accountable event spans: an epoch for random allocation, else a window."""
        if self.sampling != "random-allocation":
            return self.bands
        return allocated_steps(self.records, self.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """The stage as plain data; without bands it is what it was before there were any."""
        return {name: value for name, value in asdict(self).items() if name != "bands" or value > 1}

    @property
    def charge(self) -> Event:
        """The event of ``steps_per_charge`` steps."""
        return self.sampler().event(self.noise)

    @property
    def event(self) -> Event:
        """The event of the whole stage."""
        return self.charge * (self.steps // self.steps_per_charge)


def allocated_steps(records: int, batch_size: int) -> int:
    """The steps of an epoch whose expected batch size is as close as possible to ``batch_size``."""
    return max(1, round(records / batch_size))
