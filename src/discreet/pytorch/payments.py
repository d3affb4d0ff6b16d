"""The ledger's side of a training run: every step is paid for before it happens.

A step of the plan is not always what the ledger counts: random allocation is charged by the epoch.
"""

from __future__ import annotations

from discreet.errors import PlanViolation
from discreet.ledger import Run, Till
from discreet.plan.plan import Plan
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
        self._stage, self._processes = plan.stage(), processes
        self._run: Run | None = None
        self._before = processes.decided_by_first(lambda: self._open(till, resumed))
        self.taken = self._before * self._stage.steps_per_charge

    def pay(self) -> None:
        """Pay for the next step."""
        if self.taken >= self._stage.steps:
            raise PlanViolation(
                f"The plan has {self._stage.steps} steps, and all of them are taken. More need a plan of their own."
            )
        if self.taken % self._stage.steps_per_charge == 0:
            self._processes.decided_by_first(self._charge)
        self.taken += 1

    def commit(self) -> None:
        """Tell the ledger which steps have happened."""
        charges = self.taken // self._stage.steps_per_charge
        if self._run is not None and charges > self._before:
            self._run.commit(charges)

    def _open(self, till: Till | None, resumed: bool) -> int:
        assert till is not None  # the first process has one
        name = self._stage.name
        if name in till.ledger.runs() and not resumed:
            raise PlanViolation(
                f"The run {name!r} has begun in this ledger. Call resume(directory) with its checkpoint, or plan "
                "another run: Recipe(..., name=...)."
            )
        self._run = till.run(name)
        return self._run.reserved

    def _charge(self) -> int:
        assert self._run is not None
        return self._run.next_step(self._stage.charge)
