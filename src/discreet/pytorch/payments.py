"""The ledger's side of a training run: every step is paid for before it happens.

A step of the plan is not always what the ledger counts: random allocation is charged by the epoch. Each stage
has an event of its own, and the ledger grants no more of it than the plan holds.
"""

from __future__ import annotations

from discreet.errors import PlanViolation
from discreet.ledger import Run, Till
from discreet.ledger.run import LEASES
from discreet.plan.plan import Plan
from discreet.pytorch.course import Course, Leg
from discreet.pytorch.distributed import Processes


class Payments:
    """The steps of one plan, as paid in a ledger. ``taken`` is the number of the last one paid for.

    Guarantee: when :meth:`pay` returns, the step is in the ledger; past the plan's last step it refuses.
    """

    def __init__(
        self,
        till: Till | None,
        plan: Plan,
        processes: Processes,
        *,
        resumed: bool = False,
    ) -> None:
        self._course, self._planned, self._processes = Course(plan), plan.steps, processes
        self._run: Run | None = None
        self._before = processes.decided_by_first(lambda: self._open(till, resumed))
        self.taken = self._course.steps(self._before)

    def pay(self) -> None:
        """Pay for the next step."""
        if self.taken >= self._planned:
            raise PlanViolation(
                f"The plan has {self._planned} steps, and all of them are taken. More need a plan of their own."
            )
        leg = self._course.leg(self.taken + 1)
        done, odd = divmod(self.taken - leg.before, leg.steps_per_charge)
        if not odd:
            self._processes.decided_by_first(lambda: self._charge(leg, leg.charges - done))
        self.taken += 1

    def commit(self) -> None:
        """Tell the ledger which steps have happened."""
        charges = self._course.charges(self.taken)
        if self._run is not None and charges > self._before:
            self._run.commit(charges)

    def _open(self, till: Till | None, resumed: bool) -> int:
        assert till is not None  # the first process has one
        name = self._course.name
        if name in till.ledger.runs() and not resumed:
            raise PlanViolation(
                f"The run {name!r} has begun in this ledger. Call resume(directory) with its checkpoint, or plan "
                "another run: Recipe(..., name=...)."
            )
        self._run = till.run(name)
        return self._run.reserved

    def _charge(self, leg: Leg, left: int) -> int:
        """Pay for what is next, in leases that end with the stage: what is paid for follows the order of the plan."""
        assert self._run is not None
        return self._run.next_step(leg.charge, lease=max(1, min(leg.charges // LEASES, left)))
