"""Charges the steps of a plan to a ledger, and returns the permit for the noise of each."""

from __future__ import annotations

from collections.abc import Sequence

from discreet.core.clipping import AdaptiveClip
from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation
from discreet.ledger import Till
from discreet.ledger.journal import LEASES, Run
from discreet.plan.plan import Plan
from discreet.pytorch.distributed import Processes
from discreet.pytorch.refusals import RUN_HAS_BEGUN
from discreet.pytorch.schedule import Schedule, StageSpan
from discreet.trusted.permits import Charger, NoisePermit, StepNoise


def noises_of(
    plan: Plan, clipping: Sequence[object], grids: Sequence[float | None], processes: int = 1
) -> list[StepNoise]:
    """Return what each stage of a plan is charged and what noise its steps draw, both from the stage itself."""
    return [
        StepNoise.of_stage(
            stage, rule if isinstance(rule, AdaptiveClip) else None, grid=grid, processes=processes
        )
        for stage, rule, grid in zip(plan.stages, clipping, grids, strict=True)
    ]


class StepCharger:
    """The steps of one plan as charged to a ledger. ``taken`` is the number of the last one that was charged.

    Guarantee: when :meth:`pay` returns, the step is in the ledger; past the plan's last step it refuses.
    """

    def __init__(
        self,
        till: Till | None,
        plan: Plan,
        processes: Processes,
        noises: Sequence[StepNoise],
        stream: RandomStream,
        distance: float = 0.0,
        *,
        resumed: bool = False,
    ) -> None:
        self._schedule, self._planned, self._noises = Schedule(plan), plan.steps, noises
        self._run: Run | None = None
        self._distance = distance
        processes.let_first_decide(lambda: self._open(till, resumed))
        agree = processes.let_first_decide if processes.size > 1 else None
        self._charger = Charger(self._run, stream, agree)
        self.taken = self._schedule.steps(self._charger.before)

    def refuse_past_the_end(self) -> None:
        """Raise if the plan holds no further step."""
        if self.taken >= self._planned:
            raise PlanViolation(
                f"The plan has {self._planned} steps, and all of them are taken. More need a plan of their own."
            )

    def pay(self, clip_norm: float) -> NoisePermit:
        """Charge the next step, whose sum is of this clip norm, and return the permit for its noise."""
        self.refuse_past_the_end()
        span = self._schedule.span(self.taken + 1)
        permit = self._charger.next_step(self._noises[span.index], clip_norm, self._lease(span))
        self.taken += 1
        return permit

    def commit(self) -> None:
        """Record in the ledger which steps have happened."""
        charges = self._schedule.charges(self.taken)
        if self._run is not None and charges > self._charger.before:
            self._run.commit(charges)

    def _open(self, till: Till | None, resumed: bool) -> int:
        assert till is not None  # the first process has one
        name = self._schedule.name
        if name in till.ledger.runs() and not resumed:
            raise PlanViolation(f"The run {name!r} {RUN_HAS_BEGUN}")
        self._run = till.run(name, distance=self._distance)
        return 0

    def _lease(self, span: StageSpan) -> int:
        """Return how many charges to reserve at once.

        A lease ends with its stage, so charges follow the order of the plan. Lease sizes double after each start, so
        a run that is killed repeatedly never loses more steps than it completed.
        """
        left = span.charges - (self.taken - span.before) // span.steps_per_charge
        since_start = self._schedule.charges(self.taken) - self._charger.before
        return max(1, min(span.charges // LEASES, left, since_start))
