"""A plan that is being paid for: charge, permit, release, certificate.

>>> import numpy as np
>>> from discreet.events import Laplace
>>> from discreet.guarantee import Budget
>>> from discreet.statistics.statistic_views import Code
>>> from discreet.trusted.queries import Blocks, Cells
>>> from discreet.trusted.rows import PrivateRows
>>> rows = PrivateRows(np.zeros((1000, 1)), "add-remove")
>>> with Session.open("example", {}, Budget(1.0, 0.0), Laplace(1.01)) as session:
...     permit = session.charge(numbers=1)
...     released = session.release(permit, rows, Blocks((Cells(Code(0), (1,), (1.0,)),), norm="l1"))
>>> bool(abs(released[0] - 1000) < 50), session.certificate().guarantee.delta
(True, 0.0)
>>> session.release(permit, rows, Blocks((Cells(Code(0), (1,), (1.0,)),), norm="l1"))
Traceback (most recent call last):
    ...
discreet.errors.PlanViolation: The permit holds no further release of Laplace(scale=1.01).

Noise needs a permit, only :meth:`Session.charge` makes one, and it returns after the ledger has reserved the
event. So nothing is drawn that was not paid for, and the noise is that of the event that was paid.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from discreet.certificate import Arithmetic, Certificate
from discreet.core.noise import (
    FLOAT_ROOM,
    SPARED_DELTA,
    BoundedSum,
    add_noise,
    distance_to_continuous,
    grid_for,
)
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter, PlanViolation, whole
from discreet.events import ApproximateDP, DiscreteLaplace, Event, Gaussian, Laplace
from discreet.guarantee import Budget
from discreet.ledger import FixedPlan, GaussianFilter, Till
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.plan.procedure import Procedure
from discreet.trusted.choices import Quantiles
from discreet.trusted.permits import _KEY, Permit
from discreet.trusted.plain_data import Array
from discreet.trusted.queries import Blocks, Norm
from discreet.trusted.rows import MOST_RECORDS, PrivateRows

Noise = Gaussian | Laplace | DiscreteLaplace

MOST_NUMBERS = 2**22
"""Numbers of one release, for which that part is enough."""

_NOTHING = 1e-300  # a distance must be above 0
_ANY_BOUND = (
    4.1  # a sensitivity other than 1 halves the steps of the noise at most, and the distance is quadratic
)


class BaseSession:
    """A ledger that is charged, the randomness of the noise and its arithmetic: what all sessions about tables have.

    Guarantee: the noise of tables and statistics is drawn by :meth:`_add_noise` only, which the permits of a session
    call after the charge.
    """

    def __init__(self, till: Till, stream: RandomStream, arithmetic: Literal["float", "hardened"]) -> None:
        self._till, self._stream, self.arithmetic = till, stream, arithmetic
        till.seeded = till.seeded or not stream.trusted
        self._distance = 0.0

    @property
    def trusted(self) -> bool:
        """False when a seed decides the noise: then nothing released is private."""
        return self._stream.trusted

    @property
    def distance(self) -> float:
        """The total variation distance of all releases so far to continuous noise; 0 in floating point."""
        return self._distance

    def _sum(self, rows: Any, query: Any, grid: float | None) -> BoundedSum:
        """Return the sum that a query asks for, with its sensitivity: in grid steps, unless sums are of floats."""
        total, bound = rows._total(query, grid), float(query.bound)
        norm: Norm = getattr(query, "norm", "l2")
        if total.shape != (query.size,) or (grid is not None and total.dtype != np.int64):
            raise PlanViolation(
                f"A sum of {query.size} integers was asked for. Got {total.dtype}{total.shape}."
            )
        if grid is None or self.arithmetic == "hardened":
            return BoundedSum(total, bound, norm, grid)
        return BoundedSum(total * grid, bound * (1 + FLOAT_ROOM), norm)

    def _add_noise(self, total: BoundedSum, event: Noise) -> Array:
        """Return a sum with the noise of ``event``, which a permit has paid for."""
        if isinstance(event, DiscreteLaplace):
            drawn = self._stream.discrete_laplace(_round_up(event.scale), total.value.shape)
            return np.asarray(total.value + drawn, np.float64)
        return np.asarray(add_noise(total, event, self._stream), np.float64)


class EventPermit(Permit):
    """The right to a number of releases of certain events. Made by :meth:`Session.charge`."""

    __slots__ = ("_bound", "_numbers", "_session")

    def __init__(
        self, session: Session, event: Event, numbers: int, bound: float | None, key: object
    ) -> None:
        super().__init__(dict(event.parts()), key)
        self._session, self._numbers, self._bound = session, numbers, bound

    def _use(self, session: Session, event: Event | None, numbers: int, bound: float | None) -> Event:
        """Count down one release of ``event``, which may be left out where the permit is for one kind."""
        if session is not self._session:
            raise PlanViolation("The permit was made by another session.")
        if event is None and len(self._left) != 1:
            raise PlanViolation("The permit is for events of several kinds. Name the one to release.")
        event = next(iter(self._left)) if event is None else event
        self._refuse_used(event)
        if numbers > self._numbers:
            raise PlanViolation(f"The permit is for {self._numbers} numbers per release. Got {numbers}.")
        if bound is not None and self._bound not in (None, bound):
            raise PlanViolation(f"The permit is for queries of sensitivity {self._bound}. Got {bound}.")
        self._count_down(event)
        return event


class Session(BaseSession):
    """A plan, the ledger that pays for it, and the randomness of its noise. Made by :meth:`open`.

    Guarantee: all that :meth:`release` returns is within the budget of the plan, and in the ledger before noise is
    drawn, by the arithmetic that :meth:`certificate` states and if the randomness is secure.
    """

    def __init__(
        self,
        till: Till,
        plan: Procedure,
        event: Event,
        stream: RandomStream,
        arithmetic: Literal["float", "hardened"],
        most_records: int,
    ) -> None:
        super().__init__(till, stream, arithmetic)
        self.event, self._plan, self._most_records = event, plan, most_records
        self._charged = False
        self._certificate: Certificate | None = None

    @classmethod
    @contextmanager
    def open(
        cls,
        name: str,
        settings: Mapping[str, Any],
        budget: Budget,
        *events: Event,
        ledger: AnyLedger = None,
        ledger_key: KeyFile = None,
        unsafe_seed: int | None = None,
        stream: RandomStream | None = None,
        arithmetic: Literal["float", "hardened"] = "hardened",
        most_records: int = MOST_RECORDS,
    ) -> Iterator[Session]:
        """Open a session for the first of ``events`` that the ledger can hold.

        A ledger of Gaussian releases takes a Gaussian event only. ``settings`` are the declared parameters, for the
        certificate. ``stream`` is for engines with a stream of their own. ``most_records`` is a public bound on the
        number of rows, for which integer sums have room.
        """
        if not isinstance(budget, Budget):
            raise InvalidParameter("budget", budget, "must be a Budget, for instance Budget(1.0, 1e-6).")
        if stream is None:
            stream = system_stream() if unsafe_seed is None else RandomStream(unsafe_seed=unsafe_seed)
        rules = [_rule(event, budget, arithmetic) for event in events]
        with Till.open(ledger, rules[0], key=ledger_key) as opened:
            gaussian_only = isinstance(opened.ledger.rule, GaussianFilter)
            fits = [place for place, event in enumerate(events) if not gaussian_only or _is_gaussian(event)]
            chosen = fits[0] if fits else 0
            run = f"{name.replace(' ', '-')}-{os.urandom(8).hex()}"
            plan = Procedure.adaptive(name, rules[chosen], {**settings, "run": run})
            till = Till.open(opened.ledger, plan)
            if isinstance(events[chosen], ApproximateDP):
                till.refuse_other_neighbours()
            session = cls(till, plan, events[chosen], stream, arithmetic, most_records)
            yield session
            if session._charged:
                session.certificate()

    def charge(self, *, numbers: int = 1, bound: float | None = 1.0) -> EventPermit:
        """Pay for all releases of :attr:`event`, of at most ``numbers`` numbers each, and return the right to them.

        ``bound`` is the sensitivity of all queries to come; None if it is chosen along the way.

        Guarantee: the ledger holds the reservation, on disk if it has a file, when this returns.
        """
        whole("numbers", numbers, at_least=1, at_most=MOST_NUMBERS)
        if self._charged:
            raise PlanViolation("The session has been charged for.")
        self._distance = math.fsum(
            count * self._distance_of(part, numbers, bound) for part, count in self.event.parts()
        )
        self._check_distance()
        self._till.pay(self.event, name=str(self._plan.settings["run"]), distance=self._distance)
        self._charged = True
        return EventPermit(self, self.event, numbers, bound, _KEY)

    def release(
        self, permit: EventPermit, rows: PrivateRows, query: Blocks | Quantiles, event: Event | None = None
    ) -> Array:
        """Answer ``query`` with the noise of ``event``, which may be left out where the permit has one kind.

        Guarantee: one record changes the sum by at most the query's sensitivity, for which the noise is drawn.
        """
        if not isinstance(permit, EventPermit):
            raise PlanViolation("A release needs a permit from Session.charge.")
        self._check_rows(rows)
        if type(query) is Quantiles:
            self._check_choice(query, permit._use(self, event, 1, None))
            return query.choose(rows._total(query, None), self._stream)
        if type(query) is not Blocks:
            raise PlanViolation(f"{type(query).__name__} is not a query of the catalogue.")
        noise = permit._use(self, event, query.size, query.bound)
        if not isinstance(noise, Noise):
            raise PlanViolation(f"A sum needs Gaussian or Laplace noise. Got {type(noise).__name__}.")
        if query.norm != ("l2" if isinstance(noise, Gaussian) else "l1"):
            raise PlanViolation(f"The noise of {noise} is for the other norm than {query.norm}.")
        return self._add_noise(self._sum(rows, query, self.grid(noise, query.bound)), noise)

    def prepare(self, rows: PrivateRows, query: Blocks) -> None:
        """Let rows that lie elsewhere compute the sum of the session's one event, before it is paid for.

        A sum that cannot be had then costs nothing. The rows keep it for :meth:`release`.
        """
        self._check_rows(rows)
        if type(query) is not Blocks or not isinstance(self.event, Noise):
            raise PlanViolation("Only the sum of a session with one event can be prepared.")
        rows._total(query, self.grid(self.event, query.bound))

    def grid(self, noise: Noise, bound: float) -> float | None:
        """Return the step in which a sum of this sensitivity is counted; None in floating point."""
        if isinstance(noise, DiscreteLaplace):
            if bound != 1:
                raise PlanViolation("Integer noise needs a query of sensitivity 1.")
            return 1.0
        return None if self.arithmetic == "float" else grid_for(noise, bound, self._most_records)

    def certificate(self, not_covered: tuple[str, ...] = (), checks: tuple[str, ...] = ()) -> Certificate:
        """Return what was paid and what it proves; made once, while the ledger is open.

        ``checks`` are comparisons of user code that were made at run time.
        """
        if self._certificate is None:
            kind = Arithmetic() if self.arithmetic == "float" else Arithmetic("hardened", self._distance)
            self._certificate = Certificate.of(
                self._till.ledger,
                self._plan,
                arithmetic=kind,
                trusted=self._stream.trusted,
                not_covered=not_covered,
                checks=checks,
            )
        return self._certificate

    def _distance_of(self, event: Event, numbers: int, bound: float | None) -> float:
        """The total variation distance between one release's noise and the noise as accounted, at most."""
        if self.arithmetic == "float":
            return 0.0
        if not isinstance(event, Gaussian | Laplace):
            return _NOTHING  # integer noise and choices are exactly as accounted
        grid = grid_for(event, 1.0, self._most_records)
        factor = 1 + 1e-12 if bound == 1.0 else _ANY_BOUND
        return factor * distance_to_continuous(event, 1.0, grid, numbers)

    def _check_distance(self) -> None:
        """Raise if the part of delta that is kept back is less than the noise's distance from continuous noise costs.

        Laplace noise on a grid costs what continuous noise costs, and integer noise is accounted as it is.
        """
        budget = self._plan.rule.budget
        cost = (1 + math.exp(min(budget.epsilon, 700.0))) * self._distance
        if budget.delta > 0 and cost > SPARED_DELTA * budget.delta / (1 - SPARED_DELTA):
            raise PlanViolation("Integer noise is too far from Gaussian noise at this epsilon and delta.")

    def _check_rows(self, rows: PrivateRows) -> None:
        if not isinstance(rows, PrivateRows):
            raise PlanViolation(f"A session answers about PrivateRows. Got {type(rows).__name__}.")
        budget = self._plan.rule.budget
        if (rows.neighbours, rows.unit) != (budget.neighbours, budget.unit):
            raise PlanViolation(
                f"The rows are for {rows.neighbours} neighbours of one {rows.unit}, and the session for "
                f"{budget.neighbours} neighbours of one {budget.unit}."
            )

    def _check_choice(self, query: Quantiles, event: Event) -> None:
        budget = self._plan.rule.budget
        if (query.neighbours, query.group_size) != (budget.neighbours, budget.group_size):
            raise PlanViolation("The query is for other neighbours than the session.")
        if query.event != event:
            raise PlanViolation(f"The query costs {query.event}, and {event} was paid.")


def _is_gaussian(event: Event) -> bool:
    return all(isinstance(part, Gaussian) for part, _ in event.parts())


def _rule(event: Event, budget: Budget, arithmetic: str) -> FixedPlan:
    """The rule of a ledger for this session alone. Where all noise is Laplace noise, no delta is spent."""
    if not any(isinstance(part, Gaussian) for part, _ in event.parts()):
        return FixedPlan(event, replace(budget, delta=0.0))
    spare = SPARED_DELTA if arithmetic == "hardened" else 0.0
    return FixedPlan(event, replace(budget, delta=budget.delta * (1 - spare)))


def _round_up(scale: float) -> Fraction:
    """Return a fraction that is not below ``scale``, of parts that exact sampling takes."""
    parts = 2 ** (39 - max(0, math.ceil(math.log2(scale))))
    return Fraction(math.ceil(Fraction(scale) * parts), parts)
