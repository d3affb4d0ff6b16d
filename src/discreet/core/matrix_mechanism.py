"""Correlated noise: what is added now is partly taken back in the steps to come, so the weights drift less.

With p *bands* the noise of step t is

    n_t = Z_t - c_1 n_(t-1) - ... - c_(p-1) n_(t-p+1)        Z_t independent Gaussians

which is the same as releasing the sums mixed by the banded matrix C of the coefficients, with independent noise Z.
One record must then take part at most once in p steps, at steps that are always the same modulo p: its *offset*,
which it draws once and for itself. The two samplers here do that, and say which event it is. Z has the standard
deviation of the event times the length of (1, c_1, ..., c_(p-1)), because that is what one record moves.

The proof is in docs/mathematics.md, section 9. It is for add-remove neighbours and single records.

>>> coefficients(4).tolist()
[1.0, 0.5, 0.375, 0.3125]
>>> CyclicPoissonSampler(records=6000, rate=0.01, bands=4).event(Gaussian(1.0))
PoissonSampled(rate=0.04, of=Gaussian(noise_multiplier=1.0))
>>> BlockAllocationSampler(records=6000, steps=60, bands=4).event(Gaussian(1.0))
RandomlyAllocated(steps=15, of=Gaussian(noise_multiplier=1.0), selected=1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream
from discreet.core.sampling import (
    AllocationSampler,
    DrawnSampler,
    Indices,
    PoissonSampler,
    successes,
    take_places,
)
from discreet.errors import InvalidParameter, whole
from discreet.events import Event, Gaussian, PoissonSampled, RandomlyAllocated

MOST_BANDS = 4096


@lru_cache(maxsize=64)
def coefficients(bands: int) -> NDArray[np.float64]:
    """The first column of C: the square root of the matrix of running sums, cut off after ``bands`` entries."""
    found = np.ones(whole("bands", bands, at_least=1, at_most=MOST_BANDS))
    for j in range(1, bands):
        found[j] = found[j - 1] * (2 * j - 1) / (2 * j)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def length_of_column(bands: int) -> float:
    """The length of a column of C, not below its exact value for the coefficients as they are in float64."""
    if bands == 1:
        return 1.0
    exact = sum(Fraction(float(value)) ** 2 for value in coefficients(bands))
    return math.nextafter(math.sqrt(float(exact)) * (1 + 2.0**-50), math.inf)


def _offsets(rows: int, bands: int, stream: RandomStream) -> list[NDArray[Any]]:
    """The rows of each offset, drawn by every row for itself."""
    offsets = stream.integers(bands, rows)
    return [np.flatnonzero(offsets == offset) for offset in range(bands)]


@dataclass(frozen=True)
class CyclicPoissonSampler(DrawnSampler):
    """Poisson sampling in turns: at step t only records of offset t modulo ``bands`` may join.

    Each of them does so with probability ``bands * rate``, so that batches are as large as without bands. A *window*
    is ``bands`` steps, in which a record may join once.
    """

    records: int
    rate: float
    bands: int
    _rounds = "windows"

    def __post_init__(self) -> None:
        plain = PoissonSampler(self.records, self.rate)
        object.__setattr__(self, "records", plain.records)
        object.__setattr__(self, "rate", plain.rate)
        object.__setattr__(self, "bands", whole("bands", self.bands, at_least=1, at_most=MOST_BANDS))
        if self.bands * self.rate > 1 + 1e-12:
            remedy = f"must be at most {int(1 / self.rate)}: there are no more batches in an epoch."
            raise InvalidParameter("bands", self.bands, remedy)

    @property
    def rate_of_window(self) -> float:
        """The chance of one record to join within a window."""
        return min(1.0, self.bands * self.rate)

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a step's sum."""
        return self.records * self.rate

    def event(self, of: Gaussian) -> Event:
        """The event of one *window* of steps with the noise of ``of``, correlated over ``bands`` steps."""
        return PoissonSampled(self.rate_of_window, of)

    def _draw(self, rounds: int, rows: int, stream: RandomStream) -> Iterator[Indices]:
        classes = _offsets(rows, self.bands, stream)
        for _ in range(rounds):
            for members in classes:
                yield members[successes(len(members), Fraction(self.rate_of_window), stream)]


@dataclass(frozen=True)
class BlockAllocationSampler(DrawnSampler):
    """Random allocation in turns: in every epoch each record draws one of the epoch's blocks of ``bands`` steps.

    It takes part once, at the step of that block which is its offset. ``bands`` divides ``steps``, those of an epoch.
    """

    records: int
    steps: int
    bands: int
    _rounds = "epochs"

    def __post_init__(self) -> None:
        plain = AllocationSampler(self.records, self.steps)
        object.__setattr__(self, "records", plain.records)
        object.__setattr__(self, "steps", plain.steps)
        object.__setattr__(self, "bands", whole("bands", self.bands, at_least=1, at_most=MOST_BANDS))
        if self.steps % self.bands:
            choice = ", ".join(str(p) for p in divisors(self.steps))
            remedy = f"must divide the {self.steps} steps of an epoch: choose from {choice}."
            raise InvalidParameter("bands", self.bands, remedy)

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a step's sum."""
        return self.records / self.steps

    def event(self, of: Gaussian) -> Event:
        """The event of one *epoch* with the noise of ``of``, correlated over ``bands`` steps."""
        allocated = RandomlyAllocated(self.steps // self.bands, of)  # which checks it
        return allocated if allocated.steps > 1 else of

    def _draw(self, rounds: int, rows: int, stream: RandomStream) -> Iterator[Indices]:
        classes = _offsets(rows, self.bands, stream)
        for _ in range(rounds):
            left = [members.copy() for members in classes]
            for to_come in range(self.steps // self.bands, 0, -1):
                for offset in range(self.bands):
                    chosen = successes(len(left[offset]), Fraction(1, to_come), stream)
                    batch, left[offset] = take_places(left[offset], chosen)
                    yield np.sort(batch).astype(np.int64)


def divisors(number: int) -> list[int]:
    """All divisors in rising order."""
    small = [p for p in range(1, math.isqrt(number) + 1) if number % p == 0]
    return sorted({*small, *(number // p for p in small)})
