"""The ledger's side of a training run: every step is paid for before it happens.

A step of the plan is not always what the ledger counts: random allocation is charged by the epoch.
"""

from __future__ import annotations

from pathlib import Path

from discreet.certificate.procedure import rule_of
from discreet.errors import InvalidParameter, PlanViolation
from discreet.ledger import Anchor, Ledger, LedgerCorrupted, Run
from discreet.plan import Plan
from discreet.pytorch.distributed import Processes


class Payments:
    """The steps of one plan, as paid in a ledger. ``taken`` is the number of the last one paid for.

    Guarantee: when :meth:`pay` returns, the step is in the ledger; past the plan's last step it refuses.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        plan: Plan,
        processes: Processes,
        *,
        data: str | None = None,
        resumed: bool = False,
    ) -> None:
        self._stage, self._processes = plan.stage(), processes
        self._run: Run | None = None
        self._before = processes.decided_by_first(lambda: self._open(ledger, plan, data, resumed))
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

    def _open(self, ledger: Ledger | None, plan: Plan, data: str | None, resumed: bool) -> int:
        assert ledger is not None  # the first process has one
        name = self._stage.name
        if name in ledger.runs() and not resumed:
            raise PlanViolation(
                f"The run {name!r} has begun in this ledger. Call resume(directory) with its checkpoint, or plan "
                "another run: Recipe(..., name=...)."
            )
        self._run = ledger.run(plan.event, plan.digest(), name=name, data=data)
        return self._run.reserved

    def _charge(self) -> int:
        assert self._run is not None
        return self._run.next_step(self._stage.charge)


def check_anchor(ledger: Ledger, anchor: Anchor) -> None:
    """Refuse a ledger that is older than the checkpoint: what was spent in between would be forgotten."""
    entries = ledger.entries()[: anchor.sequence + 1]
    if len(entries) <= anchor.sequence or Anchor.of(entries) != anchor:
        raise LedgerCorrupted(
            "The ledger was rolled back, or is not the one of this checkpoint. Bring back the newest copy; what "
            "was spent after an older one would be forgotten."
        )


def ledger_of(ledger: Ledger | str | Path | None, plan: Plan) -> Ledger:
    """The ledger of a run: the one given, that of a file, or one in memory."""
    if isinstance(ledger, Ledger):
        return ledger
    rule = rule_of(plan)
    if ledger is None:
        return Ledger.in_memory(rule)
    if not isinstance(ledger, str | Path):
        raise InvalidParameter("ledger", type(ledger).__name__, "must be a Ledger or the name of its file.")
    return Ledger.open(ledger, rule) if Path(ledger).exists() else Ledger.create(ledger, rule)
