"""Who is in a batch: index streams that know the event they realise.

A sampler is public, frozen data; what it draws is secret, for amplification hides exactly that. The distribution of
the batches and the event to account for come from one object, so they cannot disagree. A shuffled loader
follows none of these distributions and has no sampler here.

>>> sampler = PoissonSampler(records=60_000, rate=0.01)
>>> sampler.event(Gaussian(noise_multiplier=1.0)) * 100
Composition(events=((PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=1.0)), 100),))
>>> sampler.expected_batch_size
600.0
>>> all(batch.dtype == np.int64 for batch in sampler.batches(steps=100))
True

Batches are sorted arrays of distinct indices, and some are empty: that is a step like any other. ``records``
is the declared number of records; rate, divisor and event follow from what is declared. How many rows there
really are is data: pass it as ``rows`` where it may differ, and nothing but the indices depends on it.

The draws are exact: from uniform bits they make the stated distribution with an error below 2**-200, and no floating
point number decides anything it cannot decide for sure (see :func:`_gaps`).
"""

from __future__ import annotations

import decimal
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, PlanViolation, real, whole
from discreet.events import (
    ApproximateDP,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)

Indices = NDArray[np.int64]

MAX_RECORDS = 10**12
SMALLEST_RATE = 1e-15

_BITS = 53  # leading bits of a uniform number; the others are drawn when they matter
_MARGIN = 2.0**-48  # relative; 32 units in the last place for two logarithms, a division and a product
_CHUNK = 2**17  # gaps drawn at a time: their arrays stay in the cache
_DIGITS = decimal.Context(prec=120)


class Sampler(ABC):
    """The distribution of the batches, and the event that follows from it. Frozen, and public.

    One of your own is added to plans by :func:`discreet.plan.add_sampling`.
    """

    records: int

    @property
    @abstractmethod
    def expected_batch_size(self) -> float:
        """The public divisor of a step's sum."""

    @abstractmethod
    def event(self, of: Any) -> Event:
        """The event of one step that releases ``of``, as :meth:`batches` realises it."""

    @abstractmethod
    def batches(
        self, steps: int, stream: RandomStream | None = None, *, rows: int | None = None
    ) -> Iterator[Indices]:
        """The batches of ``steps`` steps. How many ``rows`` the data have decides nothing but the indices."""


class DrawnSampler(Sampler):
    """A sampler whose batches come in rounds: a step, a window or an epoch of steps."""

    _rounds = "steps"

    def batches(
        self, steps: int, stream: RandomStream | None = None, *, rows: int | None = None
    ) -> Iterator[Indices]:
        """The batches of ``steps`` rounds; checks its arguments before anything is drawn."""
        count = whole(self._rounds, steps, at_least=0)
        return self._draw(count, self._checked_rows(rows), stream or system_stream())

    def _checked_rows(self, rows: object) -> int:
        return self.records if rows is None else whole("rows", rows, at_least=0, at_most=MAX_RECORDS)

    @abstractmethod
    def _draw(self, rounds: int, rows: int, stream: RandomStream) -> Iterator[Indices]: ...


@dataclass(frozen=True)
class PoissonSampler(DrawnSampler):
    """Every record joins each batch independently with probability ``rate``. Work per batch: its size.

    ``max_batch`` limits the memory of a step: of a larger batch a uniformly random subset of that size is
    kept. The event then pays the probability that this happens, as :func:`cap_tail` explains.
    """

    records: int
    rate: float
    max_batch: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", _records(self.records))
        object.__setattr__(self, "rate", _rate(self.rate))
        if self.max_batch is not None:
            object.__setattr__(self, "max_batch", whole("max_batch", self.max_batch, at_least=1))
            if not cap_tail(self.records, self.rate, self.max_batch, 1) < 1:
                remedy = f"must leave room above the expected batch size {self.expected_batch_size:g}."
                raise InvalidParameter("max_batch", self.max_batch, remedy)

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a step's sum."""
        return self.records * self.rate

    def event(self, of: Gaussian | Laplace, group_size: int = 1) -> Event:
        """The event of one step that releases ``of``.

        With a ``max_batch``, give the ``group_size`` that the event will be accounted for.
        """
        step = PoissonSampled(self.rate, of)
        if self.max_batch is None:
            return step
        tail = cap_tail(self.records, self.rate, self.max_batch, 1, group_size)
        return step + ApproximateDP(0.0, tail) if tail > 0 else step

    def _draw(self, rounds: int, rows: int, stream: RandomStream) -> Iterator[Indices]:
        return (self._batch(rows, stream) for _ in range(rounds))

    def _batch(self, rows: int, stream: RandomStream) -> Indices:
        batch = successes(rows, Fraction(self.rate), stream)
        if self.max_batch is None or len(batch) <= self.max_batch:
            return batch
        return batch[_subset(len(batch), self.max_batch, stream)]


@dataclass(frozen=True)
class FixedSizeSampler(DrawnSampler):
    """Every batch is a uniformly random subset of ``batch_size`` records, drawn afresh for each step.

    The number of records is public (replace-one neighbours), so it is also the number of rows.
    """

    records: int
    batch_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", _records(self.records))
        remedy = "A batch cannot hold more than all records."
        size = whole("batch_size", self.batch_size, at_least=1, at_most=self.records, remedy=remedy)
        object.__setattr__(self, "batch_size", size)

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a step's sum."""
        return float(self.batch_size)

    def event(self, of: Gaussian) -> Event:
        """The event of one step that releases ``of``."""
        return FixedSizeSampled(self.batch_size, self.records, of)

    def _checked_rows(self, rows: object) -> int:
        if rows not in (None, self.records):
            raise PlanViolation(
                f"the plan declares {self.records} records and the data have {rows} rows; with fixed-size "
                "batches the number is public and must agree: plan again, or use Poisson sampling."
            )
        return self.records

    def _draw(self, rounds: int, rows: int, stream: RandomStream) -> Iterator[Indices]:
        return (_subset(rows, self.batch_size, stream) for _ in range(rounds))


@dataclass(frozen=True)
class AllocationSampler(DrawnSampler):
    """Every record takes part once in an epoch of ``steps`` batches, at a step that it draws for itself.

    The draw is made as the steps come: whoever is left after k of t steps joins the next one with probability
    1 / (t - k), which makes all steps equally likely and keeps the records independent. So the work of a step
    is its batch; remembered is only who is left, in 4 bytes per record (8 beyond 2**32 records).
    """

    records: int
    steps: int
    _rounds = "epochs"

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", _records(self.records))
        remedy = "It is the number of batches in one epoch."
        object.__setattr__(self, "steps", whole("steps", self.steps, at_least=1, remedy=remedy))

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a step's sum."""
        return self.records / self.steps

    def event(self, of: Gaussian) -> Event:
        """The event of one *epoch* in which every step releases ``of``."""
        return RandomlyAllocated(self.steps, of)

    def _draw(self, rounds: int, rows: int, stream: RandomStream) -> Iterator[Indices]:
        pool = np.arange(rows, dtype=np.uint32 if rows <= 2**32 else np.int64)
        for _ in range(rounds):
            left = pool
            for to_come in range(self.steps, 0, -1):
                batch, left = take_places(left, successes(len(left), Fraction(1, to_come), stream))
                yield np.sort(batch).astype(np.int64)


@dataclass(frozen=True)
class FullBatch(DrawnSampler):
    """Every record takes part in every step."""

    records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", _records(self.records))

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a step's sum."""
        return float(self.records)

    def event(self, of: Gaussian | Laplace) -> Event:
        """The event of one step that releases ``of``: as it is, since everybody takes part."""
        return PoissonSampled(1.0, of).of  # which checks it

    def _draw(self, rounds: int, rows: int, stream: RandomStream) -> Iterator[Indices]:
        return (np.arange(rows) for _ in range(rounds))


def cap_tail(records: int, rate: float, max_batch: int, steps: int, group_size: int = 1) -> float:
    """What capping Poisson batches at ``max_batch`` adds to delta over ``steps`` steps.

    Fix which of the *other* records are drawn at which step: neighbours share that draw. If it always leaves
    room for one more (for ``group_size`` more), no batch is cut with or without the records in question, and the
    capped run is the plain one, whose guarantee holds given any such draw. So delta grows by the chance that there
    is ever no room, at most ``steps * P(Binomial(records, rate) > max_batch - group_size)``, and not by
    1 + exp(epsilon) times as much, which is what comparing each run with its uncapped twin would give.

    Guarantee: an upper bound, rounded up, for all data sets of up to ``records + group_size`` rows.

    >>> cap_tail(records=60_000, rate=0.01, max_batch=800, steps=6000) < 1e-10
    True
    """
    room = whole("max_batch", max_batch, at_least=1) - whole("group_size", group_size, at_least=1) + 1
    records, rate, steps = _records(records), _rate(rate), whole("steps", steps, at_least=0)
    if room > records:
        return 0.0
    # P(X >= room) is a regularised incomplete beta function, which scipy computes to 1e-9 of itself or better.
    beyond = room > records * rate  # below the mean it is no bound worth having
    return min(
        1.0, steps * (float(betainc(room, records - room + 1, rate)) * (1 + 1e-6) + 1e-305 if beyond else 1.0)
    )


def successes(trials: int, chance: Fraction, stream: RandomStream) -> Indices:
    """The positions of the successes among independent trials, in rising order."""
    if chance == 1:
        return np.arange(trials)
    found, start = [np.empty(0, dtype=np.int64)], 0
    while start < trials:
        expected = int((trials - start) * float(chance))
        draws = min(expected + 4 * math.isqrt(expected) + 8, _CHUNK)
        ends = start + np.cumsum(_gaps(draws, trials - start, chance, stream) + 1)
        found.append(ends[: np.searchsorted(ends, trials, side="right")] - 1)
        start = int(ends[-1])
    return np.concatenate(found)


def _gaps(count: int, limit: int, chance: Fraction, stream: RandomStream) -> Indices:
    """How many trials fail before the next success, ``count`` times; what exceeds ``limit`` is cut to it.

    A gap is floor(log U / log(1 - chance)) for a uniform real number U. From its leading bits and with a
    margin for rounding we know the quotient from both sides. Where an integer lies between, about once in
    a million draws, the gap is settled with 256 further bits of U and 120 digits. So neither the grain of
    the uniform numbers nor an error of the logarithms changes the distribution.
    """
    leading = stream.integers(2**_BITS, count)
    slope = -1 / math.log1p(-float(chance))
    with np.errstate(divide="ignore"):
        most = np.log(leading * 2.0**-_BITS) * (-slope * (1 + _MARGIN))
    least = np.log((leading + 1) * 2.0**-_BITS) * (-slope * (1 - _MARGIN))
    gaps = np.minimum(least, limit).astype(np.int64)
    for i in np.flatnonzero(gaps != np.minimum(most, limit).astype(np.int64)):
        gaps[i] = min(_settled_gap(int(leading[i]), chance, stream), limit)
    return gaps


def _settled_gap(leading: int, chance: Fraction, stream: RandomStream) -> int:
    more = int.from_bytes(stream.bytes(32), "big")
    uniform = _decimal(Fraction(2 * (leading << 256 | more) + 1, 2 ** (_BITS + 257)))
    return int(_DIGITS.divide(_DIGITS.ln(uniform), _DIGITS.ln(_decimal(1 - chance))))


def _subset(records: int, size: int, stream: RandomStream) -> Indices:
    """A uniformly random subset, sorted.

    Drawing until enough are distinct treats all labels alike, so all subsets of the size are equally likely.
    """
    if 2 * size > records:  # fewer to leave out than to take
        kept = np.ones(records, dtype=bool)
        kept[_subset(records, records - size, stream)] = False
        return np.flatnonzero(kept)
    chosen = np.empty(0, dtype=np.int64)
    while len(chosen) < size:
        chosen = np.sort(np.append(chosen, stream.integers(records, size - len(chosen))))
        chosen = chosen[np.append(True, chosen[1:] != chosen[:-1])]
    return chosen


def take_places(left: NDArray[Any], chosen: Indices) -> tuple[NDArray[Any], NDArray[Any]]:
    """What stands at the ``chosen`` places of ``left``, and the rest, rearranged in place at the front."""
    batch, size = left[chosen], len(left) - len(chosen)
    front, back = left[:size], left[size:]
    stays = np.ones(len(back), dtype=bool)
    stays[chosen[chosen >= size] - size] = False
    front[chosen[chosen < size]] = back[stays]
    back[:] = batch
    return batch, front


def _decimal(value: Fraction) -> Decimal:
    return _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))


def _records(value: object) -> int:
    remedy = "It is the declared, public number of records."
    return whole("records", value, at_least=1, at_most=MAX_RECORDS, remedy=remedy)


def _rate(value: object) -> float:
    remedy = "It is the chance of one record to be in a batch: expected batch size / number of records."
    return real("rate", value, at_least=SMALLEST_RATE, at_most=1, remedy=remedy)
