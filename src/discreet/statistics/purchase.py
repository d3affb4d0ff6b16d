"""One release of many numbers, bought as a whole: :func:`buy`.

A statistic of a table is a sum of one vector from each record. Whoever asks for it says how long these vectors are in
the l1 and in the l2 norm; the noise is Laplace or Gaussian, whichever is less for the budget. A ledger that holds
Gaussian releases only gets Gaussian noise. It is paid for before it is released.

Counts get whole numbers as noise where delta is 0: nothing is less at this epsilon (Ghosh, Roughgarden, Sundararajan
2009). Where losses add up at a delta above 0 it would cost more than Laplace noise of its scale, and is not taken.

>>> from discreet.guarantee import Budget
>>> with buy("example", {}, Budget(1.0, 1e-6), numbers=2) as purchase:
...     noisy = purchase.release(np.array([purchase.steps(1.0) * 5, 0]))
>>> purchase.certificate.guarantee.delta, noisy.shape
(0.0, (2,))

In docs/statistics.md: what is proved.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from discreet.certificate import Arithmetic, Certificate
from discreet.core.mechanisms import gaussian_event, laplace_event
from discreet.core.noise import BoundedSum, add_noise, distance_to_continuous, grid_for
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, PlanViolation, whole
from discreet.events import DiscreteLaplace, Gaussian, Laplace
from discreet.guarantee import Budget
from discreet.ledger import FixedPlan, GaussianFilter, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.plan.plan import Plan

Array = NDArray[np.float64]
Noise = Gaussian | Laplace | DiscreteLaplace

MOST_RECORDS = 2**27
"""Records that a sum of whole numbers has room for."""

_LARGEST_SCALE = 2.0**30  # of whole numbers

_SPARE = 1e-4  # of delta, kept back for what hardened Gaussian noise differs from continuous noise

MOST_NUMBERS = 2**22
"""Numbers of one release, for which what is kept back is enough."""


class Paying(TypedDict, total=False):
    """What pays, as everywhere: ``ledger``, ``ledger_key``; and ``unsafe_seed``, for tests."""

    ledger: AnyLedger
    ledger_key: KeyFile
    unsafe_seed: int | None


class Purchase:
    """A paid right to one release, of a sum to which a record adds a vector of norm 1 at most.

    The norm is l1 for Laplace and l2 for Gaussian noise: see ``norm``. The steps of the grid are 1 for whole numbers.
    """

    def __init__(
        self,
        till: Till,
        plan: Plan,
        event: Noise,
        stream: RandomStream,
        not_covered: tuple[str, ...] = (),
        numbers: int = 1,
    ) -> None:
        self._till, self._plan, self.event, self._stream = till, plan, event, stream
        self._not_covered = not_covered
        self.grid = 1.0 if isinstance(event, DiscreteLaplace) else grid_for(event, 1.0, MOST_RECORDS)
        self._numbers, self._made = whole("numbers", numbers, at_least=1, at_most=MOST_NUMBERS), False
        self._paid = False

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """The norm in which a record's vector has length 1 at most."""
        return "l2" if isinstance(self.event, Gaussian) else "l1"

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each number."""
        event = self.event
        if isinstance(event, Gaussian):
            return event.noise_multiplier
        if isinstance(event, DiscreteLaplace):
            return 1 / (math.sqrt(2) * math.sinh(1 / (2 * event.scale)))
        return math.sqrt(2) * event.scale

    def farthest(self, level: float) -> float:
        """How far the noise on one number is from 0 at most, with the chance ``level``."""
        event = self.event
        if isinstance(event, Gaussian):
            return event.noise_multiplier * float(ndtri(0.5 + level / 2))
        if isinstance(event, Laplace):
            return -event.scale * math.log(1 - level)
        # P(|noise| > m) = 2 a^(m + 1) / (1 + a), where a = exp(-1 / scale).
        least = event.scale * math.log(2 / (1 + math.exp(-1 / event.scale)) / (1 - level))
        return float(max(0, math.ceil(least * (1 + 1e-12)) - 1))

    def weights(self, lengths: Array) -> Array:
        """What a record may add to each of several parts of the sum, whose wanted lengths (l2 norm 1) are given."""
        norm = np.linalg.norm(lengths, 2 if self.norm == "l2" else 1)
        return np.asarray(lengths / norm * (1 - 1e-12))

    @property
    def distance(self) -> float:
        """How far the noise on all numbers is from the event's, in total variation, at most."""
        if isinstance(self.event, DiscreteLaplace):
            return 1e-300  # nothing is approximated
        return distance_to_continuous(self.event, 1.0, self.grid, self._numbers) * (1 + 1e-12)

    def steps(self, length: float) -> int:
        """A length in whole steps of the grid, rounded toward zero."""
        return int(length / self.grid)

    def release(self, total: NDArray[np.int64]) -> Array:
        """The sum, in steps of the grid, with noise.

        Guarantee: costs the budget, if one record adds a vector of norm 1 / grid at most. A second one is refused.
        """
        if self._made:
            raise PlanViolation("One release was paid for, and was made.")
        if total.dtype != np.int64 or total.size > self._numbers:
            raise PlanViolation(
                f"{self._numbers} whole numbers were paid for, not {total.size} of {total.dtype}."
            )
        self._made = True
        if not self._paid:
            self.pay()
        if isinstance(self.event, DiscreteLaplace):
            drawn = self._stream.discrete_laplace(_rounded_up(self.event.scale), total.shape)
            return np.asarray(total + drawn, np.float64)
        return np.asarray(add_noise(self.sum_of(total), self.event, self._stream), np.float64)

    def pay(self) -> None:
        """Pay for the release."""
        self._till.pay(self.event, name=str(self._plan.settings["run"]), distance=self.distance)
        self._paid = True

    def sum_of(self, total: NDArray[np.int64]) -> BoundedSum:
        """Whole steps of the grid as a sum to which a record adds 1 at most."""
        return BoundedSum(total, 1.0, self.norm, self.grid)

    @cached_property
    def certificate(self) -> Certificate:
        """What was paid, and what it proves."""
        return Certificate.of(
            self._till.ledger,
            self._plan,
            arithmetic=Arithmetic("hardened", self.distance),
            trusted=self._stream.trusted,
            not_covered=self._not_covered,
        )


@contextmanager
def buy(
    name: str,
    settings: Mapping[str, Any],
    budget: Budget,
    l1_excess: float = 1.0,
    *,
    ledger: AnyLedger = None,
    ledger_key: KeyFile = None,
    unsafe_seed: int | None = None,
    not_covered: tuple[str, ...] = (),
    numbers: int = 1,
    counts: bool = False,
    later: bool = False,
) -> Iterator[Purchase]:
    """Pay for one release within ``budget``, from ``ledger``.

    ``l1_excess`` is how much longer a record's vector may be in the l1 than in the l2 norm, and ``numbers`` how many
    are released at most; ``counts`` says that a record adds 1 to one of them. The certificate is made when the block
    is left, at the latest. ``later`` pays when something is released, not at once: for sums that are gathered from
    others, who may fail.

    Guarantee: what is released costs at most the budget; nothing of it depends on a record.
    """
    if not isinstance(budget, Budget):
        raise InvalidParameter("budget", budget, "must be a Budget, for instance Budget(1.0, 1e-6).")
    stream = system_stream() if unsafe_seed is None else RandomStream(unsafe_seed=unsafe_seed)
    event = _of_counts(budget) if counts else _quietest(budget, l1_excess)
    with Till.open(ledger, _rule(event, budget), key=ledger_key) as opened:
        if isinstance(opened.ledger.rule, GaussianFilter) and not isinstance(event, Gaussian):
            event = _gaussian(budget)
        unique = f"{name.replace(' ', '-')}-{os.urandom(8).hex()}"
        plan = Plan.adaptive(name, _rule(event, budget), {**settings, "run": unique})
        purchase = Purchase(Till.open(opened.ledger, plan), plan, event, stream, not_covered, numbers)
        if not later:
            purchase.pay()
        yield purchase
        _ = purchase.certificate


def _of_counts(budget: Budget) -> Noise:
    event = _quietest(budget, 1.0)
    if budget.delta == 0 and isinstance(event, Laplace) and event.scale < _LARGEST_SCALE:
        return DiscreteLaplace(event.scale)
    return event


def _rounded_up(scale: float) -> Fraction:
    """A fraction that is not below the scale, of parts that exact draws take."""
    parts = 2 ** (39 - max(0, math.ceil(math.log2(scale))))
    return Fraction(math.ceil(Fraction(scale) * parts), parts)


def _quietest(budget: Budget, l1_excess: float) -> Gaussian | Laplace:
    laplace = laplace_event(budget)
    if budget.delta == 0:
        return laplace
    gaussian = _gaussian(budget)
    return laplace if math.sqrt(2) * laplace.scale * l1_excess <= gaussian.noise_multiplier else gaussian


def _gaussian(budget: Budget) -> Gaussian:
    event = gaussian_event(_less(budget))
    distance = distance_to_continuous(event, 1.0, grid_for(event, 1.0, MOST_RECORDS), MOST_NUMBERS)
    if (1 + math.exp(min(budget.epsilon, 700.0))) * distance > _SPARE * budget.delta:
        requirement = "is too large for whole-number noise at this delta; Laplace noise (delta=0) would do."
        raise InvalidParameter("epsilon", budget.epsilon, requirement)
    return event


def _less(budget: Budget) -> Budget:
    """The budget of Gaussian noise as if it were continuous."""
    return replace(budget, delta=budget.delta * (1 - _SPARE))


def _rule(event: Noise, budget: Budget) -> FixedPlan:
    """Of a ledger for this release alone. Laplace noise spends no delta."""
    return FixedPlan(event, _less(budget) if isinstance(event, Gaussian) else replace(budget, delta=0.0))
