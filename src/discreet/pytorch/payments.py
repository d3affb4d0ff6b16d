"""The ledger's side of a training run: every step is paid for before it happens.

A step of the plan is not always what the ledger counts: random allocation is charged by the epoch. Each stage
has an event of its own, and the ledger grants no more of it than the plan holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from discreet.errors import PlanViolation
from discreet.ledger import Till
from discreet.ledger.journal import LEASES, Run
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage
from discreet.pytorch.distributed import Processes

# ---- a plan's stages, one after the other ----
#
# Steps are numbered from 1 through the whole plan. A ledger counts charges: as many as steps, or an epoch at
# a time for random allocation.


class Leg:
    """A stage, its place among the stages, how many steps lie before it, and what follows from that for a ledger.

    All of it is worked out once, because a step asks for it several times.
    """

    def __init__(self, index: int, stage: Stage, before: int) -> None:
        self.index, self.stage, self.before = index, stage, before
        self.charge = stage.charge
        """The event that the ledger counts."""
        self.steps_per_charge = stage.steps_per_charge
        self.charges = stage.steps // self.steps_per_charge
        """How many of them the whole stage takes."""


class Course:
    """The stages of a plan in their order."""

    def __init__(self, plan: Plan) -> None:
        self.legs: list[Leg] = []
        for stage in plan.stages:
            before = self.legs[-1].before + self.legs[-1].stage.steps if self.legs else 0
            self.legs.append(Leg(len(self.legs), stage, before))
        self.name = ":".join(stage.name for stage in plan.stages)[:100]
        """What a ledger calls the run."""

    def leg(self, step: int) -> Leg:
        """The stage that a step belongs to; past the end, the last one."""
        if len(self.legs) == 1:
            return self.legs[0]
        step = max(step, 1)
        return next(leg for leg in reversed(self.legs) if leg.before < step)

    def epoch_ends(self) -> Iterator[int]:
        """The number of the last step of each epoch; a stage begins a new one, and its epochs are equally long."""
        for leg in self.legs:
            epochs = max(1, round(leg.stage.epochs))
            yield from (leg.before + (epoch * leg.stage.steps) // epochs for epoch in range(1, epochs + 1))

    def charges(self, steps: int) -> int:
        """How many charges lie within the first so many steps."""
        taken = (min(max(steps - leg.before, 0), leg.stage.steps) for leg in self.legs)
        return sum(count // leg.steps_per_charge for leg, count in zip(self.legs, taken, strict=True))

    def steps(self, charges: int) -> int:
        """How many steps so many charges pay for, those of the first stages first."""
        paid = 0
        for leg in self.legs:
            used = min(charges, leg.charges)
            charges, paid = charges - used, paid + used * leg.steps_per_charge
        return paid


class Payments:
    """The steps of one plan, as paid in a ledger. ``taken`` is the number of the last one paid for.

    Guarantee: when :meth:`pay` returns, the step is in the ledger; past the plan's last step it refuses.
    """

    def __init__(
        self,
        till: Till | None,
        plan: Plan,
        processes: Processes,
        distance: float = 0.0,
        *,
        resumed: bool = False,
    ) -> None:
        self._course, self._planned, self._processes = Course(plan), plan.steps, processes
        self._run: Run | None = None
        self._distance = distance
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
        self._run = till.run(name, distance=self._distance)
        return self._run.reserved

    def _charge(self, leg: Leg, left: int) -> int:
        """Pay for what is next, in leases that end with the stage: what is paid for follows the order of the plan.

        They double from one after each start: who is killed again and again loses no more than he had done.
        """
        assert self._run is not None
        since_start = self._course.charges(self.taken) - self._before
        lease = max(1, min(leg.charges // LEASES, left, since_start))
        return self._run.next_step(leg.charge, lease=lease)
