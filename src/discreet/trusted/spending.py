"""A session that is spent in stages, as its strategy goes: :class:`BudgetAllocator`.

A fit makes many releases, and what the early ones show decides how the later ones are made. All of them are sums
with Gaussian noise, so their costs add up exactly: each has a strength, the contribution of one record over the
noise, and the squares of the strengths may add up to that of the budget (Dong, Roth, Su 2022), also when shares
are chosen along the way (Smith and Thakurta 2022; :class:`~discreet.ledger.GaussianFilter`).

>>> from discreet import Budget
>>> from discreet.linear.gate.people import People
>>> from discreet.linear.row_views.targets import RowsOfPeople
>>> from discreet.trusted.queries import Blocks, Cells
>>> spending = BudgetAllocator(Budget(epsilon=1.0, delta=1e-6), arithmetic="float")
>>> counts = spending.stage("counts", share=0.1)
>>> query = Blocks((Cells(RowsOfPeople(), (9,), (1.0,)),))
>>> counts.ask(People.of(np.array(["ann", "bob", "ann"])), query).value.shape
(9,)
>>> steps = spending.stage("gradients", steps=40)  # all that is left, over 40 releases
>>> round(steps.share, 12), spending.left
(0.9, 0.0)

In docs/engines.md: E4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.gaussian import gaussian_mu
from discreet.core.noise import MOST_ROWS, distance_to_continuous, grid_for, sum_grid
from discreet.core.noise import SPARED_DELTA_OF_FIT as SPARE
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import BudgetExceeded, InvalidParameter, PlanViolation, one_of, real, whole
from discreet.events import Gaussian
from discreet.guarantee import Budget
from discreet.ledger import GaussianFilter, Ledger, Till
from discreet.ledger.ledger_log import Run
from discreet.trusted.permits import _KEY, Permit
from discreet.trusted.plain_data import refuse_foreign
from discreet.trusted.session import BaseSession

Array = NDArray[np.float64]
Progress = Callable[[str, int, int], None]
"""Is told the name of a stage, how many releases it has made, and how many it will make. All are public."""

_MARGIN = 1 + 1e-11  # on every noise multiplier: more than the sums of shares can be off by
_LEAST_SHARE = 1e-9
_MOST_RECORDS, _FEWEST_RECORDS = 2**30, 2**20  # that hardened sums have room for, as the budget allows
_RELEASES, _DIMENSION = 2**7, 2**16  # of a fit that the grid is made for; a larger one is refused on its way


class NoisyAnswer(NamedTuple):
    """What was released: numbers, the standard deviation of the noise of each, and the grid of the sum."""

    value: Array
    noise: float
    grid: float


class BudgetAllocator(BaseSession):
    """What one fit may spend, its till, its randomness and its arithmetic.

    The till's ledger may be shared with other fits; it must have room for all of ``budget``. Without one, the fit
    keeps its own in memory. ``name`` marks this fit's runs in the ledger. With a ``log``,
    a :class:`~discreet.linear.public_log.PublicLog`, each release is reserved on its own, and written down before
    anybody sees it: a fit that was interrupted runs again and finds its values.

    Guarantee: all releases of all stages together are within ``budget``: each is reserved in the ledger before its
    noise is drawn, and only stages release.
    """

    def __init__(
        self,
        budget: Budget,
        till: Till | None = None,
        stream: RandomStream | None = None,
        arithmetic: Literal["float", "hardened"] = "hardened",
        name: str = "fit",
        log: Any = None,
        on_first: Callable[[], object] | None = None,
    ) -> None:
        if not isinstance(budget, Budget):
            raise InvalidParameter("budget", budget, "must be a Budget, for instance Budget(1.0, 1e-6).")
        if stream is not None and not isinstance(stream, RandomStream):
            raise InvalidParameter("stream", type(stream), "must be a RandomStream.")
        hardened = one_of("arithmetic", arithmetic, ("float", "hardened")) == "hardened"
        kept = SPARE if hardened else 0.0
        own = GaussianFilter(replace(budget, delta=budget.delta * (1 - kept)), spare=0.0)
        till = Till.open(None, own) if till is None else _agreeing(till, budget)
        super().__init__(till, system_stream() if stream is None else stream, arithmetic)
        rule = till.ledger.rule
        assert isinstance(rule, GaussianFilter)
        if log is not None:
            log.keep_rule(rule)
        # What the ledger holds back cannot be spent, so a fit of its whole budget fits into it.
        self.budget, self.strength = budget, _strength(budget, max(kept, rule.spare))
        self._allowed = _spare_distance(budget)
        self.most_records = MOST_ROWS
        if hardened:
            self._allowed = min(self._allowed, _share_of_spare(rule, self.strength))
            self.most_records = _room_for_records(budget, self.strength, self._allowed, rule)
        begun = f"{name}-1"
        resumed = log is not None and any(run.startswith(f"{begun}/") for run in self.ledger.runs())
        if not resumed and self.ledger.remaining(Gaussian(_MARGIN / self.strength)) < 1:
            raise BudgetExceeded(
                f"The ledger has no room for another fit of epsilon={budget.epsilon:g}, delta={budget.delta:g}; "
                "nothing was released."
            )
        self._prefix = begun if resumed else till.free_name(name)
        self.progress: Progress | None = None
        self._log, self._on_first = log, on_first
        self._shares: list[float] = []

    @property
    def ledger(self) -> Ledger:
        """The ledger that is charged."""
        return self._till.ledger

    @property
    def left(self) -> float:
        """The share of the budget that no stage has taken yet."""
        return max(0.0, 1.0 - math.fsum(self._shares))

    def stage(self, name: str, share: float | None = None, steps: int = 1) -> StagePermit:
        """Take ``share`` of the budget, or all that is left, for ``steps`` releases.

        The share may depend on earlier releases. It is charged here, before anything is released.
        """
        steps = whole("steps", steps, at_least=1)
        left = self.left
        share = left if share is None else real("share", share, at_least=_LEAST_SHARE)
        if not _LEAST_SHARE <= share <= left + 1e-12:
            raise BudgetExceeded(
                f"The stage {name!r} asks for {share:.3g} of the budget; {left:.3g} is left."
            )
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        event = Gaussian(math.sqrt(steps / share) / self.strength * _MARGIN)
        paid_name, run = f"{self._prefix}/{name}", None
        # The first stage answers for the whole fit, which stays within what is kept back.
        distance = 0.0 if self._shares or self.arithmetic == "float" else self._allowed
        try:
            if self._log is None:
                self._till.pay(event, steps, name=paid_name, distance=distance)
            else:
                run = self._till.run(paid_name, event * steps, distance)
        except BudgetExceeded as error:
            raise self._out_of_budget(name, error) from None
        self._shares.append(share)
        self._tell(name, 0, steps)
        return StagePermit(self, name, share, steps, event, run, _KEY)

    def admit(self, rows: Any) -> None:
        """Raise if there are more rows than integer sums have room for."""
        if rows._row_count() > self.most_records:
            most = f"must have at most {self.most_records}, which is what can be added up exactly at this budget."
            raise InvalidParameter("X", "too many rows", most)

    def _out_of_budget(self, stage: str, error: BudgetExceeded, unpaid: float = 0.0) -> BudgetExceeded:
        """The refusal of a stage: the ledger had room for the whole fit when it began, so others have spent since.

        ``unpaid`` is the share of what stages have taken and not yet paid for.
        """
        paid = math.fsum(self._shares) - unpaid
        if paid < _LEAST_SHARE:
            return BudgetExceeded(f"The fit cannot begin, and nothing was released. {error}")
        return BudgetExceeded(
            f"Other runs have used the ledger while this fit was under way, and too little is left for the stage "
            f"{stage!r}. There is no model; the stages before it were released and stay paid for, "
            f"{paid:.0%} of epsilon={self.budget.epsilon:g}. Run fits on one ledger one after "
            "the other, or give each of them a ledger of its own."
        )

    def _count_distance(self, event: Gaussian, bound: float, grid: float, size: int) -> None:
        """Add the distance of a hardened release of ``size`` numbers to continuous noise; raise if it is too much."""
        if self.arithmetic == "hardened":
            self._distance += distance_to_continuous(event, bound, grid, size)
            if not self._distance <= self._allowed:
                raise _too_large(self.budget, self.ledger.rule.budget)

    def _tell(self, stage: str, done: int, steps: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, steps)


class StagePermit(Permit):
    """A permit for a share of the budget: so many releases with so much noise. Made by :meth:`BudgetAllocator.stage`.

    ``strength`` is that of all its releases together, ``noise_multiplier`` is for each of them.
    """

    __slots__ = ("_run", "_spending", "event", "name", "share", "steps")

    def __init__(
        self,
        spending: BudgetAllocator,
        name: str,
        share: float,
        steps: int,
        event: Gaussian,
        run: Run | None = None,
        key: object = None,
    ) -> None:
        super().__init__({name: steps}, key)
        self.name, self.share, self.steps, self.event = name, share, steps, event
        self._spending, self._run = spending, run

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of one release / contribution of one record."""
        return self.event.noise_multiplier

    @property
    def strength(self) -> float:
        """Contribution of one record / noise of the average of all releases of the stage."""
        return math.sqrt(self.steps) / self.noise_multiplier

    def grid(self, clip_norm: float) -> float:
        """The steps in which a sum is gathered: a matter of public numbers."""
        if self._spending.arithmetic == "float":
            return sum_grid(clip_norm)
        return grid_for(self.event, clip_norm, self._spending.most_records)

    def ask(self, rows: Any, query: Any) -> NoisyAnswer:
        """The sum that a query asks for, with noise of ``noise_multiplier`` times its sensitivity on every number.

        A value that the log holds is returned as it is, without a look at the rows.

        Guarantee: as :class:`BudgetAllocator`; the query derives its sensitivity and the rows enforce it. A stage
        that is used up refuses.
        """
        self._refuse_used(self.name)
        refuse_foreign(query)  # before its bound is read
        spending, log, bound = self._spending, self._spending._log, float(query.bound)
        grid = self.grid(bound)
        spending._count_distance(self.event, bound, grid, query.size)
        value = None if log is None else log.find(self.name, query.digest)
        if value is None:
            total = spending._sum(rows, query, grid)
            self._pay(drawn_before=False)
            value = spending._add_noise(total, self.event)
            if log is not None:
                log.append(self.name, query.digest, value)
        else:
            self._pay(drawn_before=True)
        made = self.steps - self._left[self.name]
        if self._run is not None:
            self._run.mark(made)  # it is in the log
        spending._tell(self.name, made, self.steps)
        return NoisyAnswer(value, self.noise_multiplier * bound, grid)

    def _pay(self, drawn_before: bool) -> None:
        """Count down one release. Where each is paid on its own, it is in the ledger when this returns.

        One that is paid and was never marked as written is drawn again: a process ended between the two, and nobody
        saw what it drew. If it is marked, or a later one is paid, somebody did: the log is an older copy.
        """
        self._count_down(self.name)
        if self._run is None:
            return
        made = self.steps - self._left[self.name]
        paid = self.steps - self._run.remaining(self.event)
        if not drawn_before and (paid > made or self._run.marked >= made):
            raise PlanViolation(
                f"The ledger shows a release of the stage {self.name!r} that the log does not hold: it is an older "
                "copy. Drawing again would give away more than was paid for; begin anew with another folder."
            )
        if paid < made:
            try:
                self._run.reserve(made - paid, self.event)
            except BudgetExceeded as error:
                unpaid = self.share * (self.steps - paid) / self.steps
                raise self._spending._out_of_budget(self.name, error, unpaid) from None


def _strength(budget: Budget, kept: float) -> float:
    """Contribution of one record / noise, for one release that spends everything; rounded down.

    ``kept`` is the part of delta that is held back.
    """
    remedy = "Gaussian noise needs a delta above 0, well below 1 / number of records."
    delta = real("delta", budget.delta, at_least=1e-300, at_most=0.5, remedy=remedy)
    strength = gaussian_mu(budget.epsilon, delta * (1 - kept)) / budget.reach / _MARGIN
    if not 1e-8 <= strength <= 1e4:
        remedy = "is beyond what can be certified for Gaussian noise; choose it between 1e-6 and 1e6."
        raise InvalidParameter("epsilon", budget.epsilon, remedy)
    return strength


def _spare_distance(budget: Budget) -> float:
    """How far discrete noise may be from continuous noise, in total variation, for what is kept back of delta."""
    return SPARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0))) * (1 - 1e-10)


def _share_of_spare(rule: GaussianFilter, strength: float) -> float:
    """The part of the distance that a ledger leaves room for, in proportion to what the fit spends of the ledger.

    So fits never use up what is held back before they use up the budget.
    """
    limit = float(rule.limits()[0]) / rule.budget.reach**2
    return rule.largest_distance * min(1.0, strength**2 / limit) * (1 - 1e-10)


def _room_for_records(budget: Budget, strength: float, distance: float, rule: GaussianFilter) -> int:
    """How many records hardened sums are made for: the more, the coarser their grid, and the noise on it."""
    # (E2) for one release of many, solved for the noise's scale in steps.
    scale = math.sqrt(math.sqrt(_DIMENSION) / max(24 * distance / _RELEASES, 1e-300))
    room = 2.0**59 / strength / scale
    if scale > 2.0**38 or room < _FEWEST_RECORDS:
        raise _too_large(budget, rule.budget)
    return min(int(room), _MOST_RECORDS)


def _too_large(budget: Budget, ledger: Budget) -> InvalidParameter:
    if ledger.epsilon > budget.epsilon:
        remedy = (
            f"is too large for hardened noise of a fit of epsilon={budget.epsilon:g} at this delta; choose "
            "arithmetic='float', or a ledger of a smaller epsilon."
        )
        return InvalidParameter("ledger", f"epsilon={ledger.epsilon:g}", remedy)
    remedy = "is too large for hardened noise at this delta; choose arithmetic='float'."
    return InvalidParameter("epsilon", budget.epsilon, remedy)


def _agreeing(till: Till, budget: Budget) -> Till:
    """The till, if what its ledger counts can be compared with the budget."""
    if not isinstance(till, Till):
        raise InvalidParameter("till", type(till), "must be a Till, such as Till.open(ledger, rule).")
    rule = till.ledger.rule
    if not isinstance(rule, GaussianFilter):
        raise InvalidParameter("ledger", rule, "must spend by a GaussianFilter: a fit chooses as it goes.")
    theirs = (rule.budget.neighbours, rule.budget.group_size, rule.budget.unit)
    if theirs != (budget.neighbours, budget.group_size, budget.unit):
        raise InvalidParameter("ledger", rule, f"must protect the same unit as the budget, {budget}.")
    return till
