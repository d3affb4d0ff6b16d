"""The stages of a plan in their order, and the charges of their steps to a ledger.

Steps are numbered from 1 through the whole plan. A ledger counts charges: as many as steps, or one per epoch for
random allocation and one per window for correlated noise. Each stage has an event of its own, and the ledger grants
no more of it than the plan holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from discreet.core.clipping import AdaptiveClip
from discreet.core.randomness import RandomStream
from discreet.core.sampling import Indices
from discreet.errors import CheckFailed, InvalidParameter, PlanViolation
from discreet.ledger import Till
from discreet.ledger.ledger_log import LEASES, Run
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage
from discreet.pytorch.distributed import Processes
from discreet.pytorch.refusals import IN_A_WINDOW, REFUSED_BEFORE, RUN_HAS_BEGUN
from discreet.trusted.permits import Charger, NoisePermit, StepNoise

REFUSED = 1
"""The mark in the ledger of a run that a comparison has refused; runs of networks make no other."""


def checked_plan(plan: object) -> Plan:
    """Return the plan, if it is one that a run can carry out."""
    if isinstance(plan, Plan) and plan.stages:
        return plan
    given = plan.name if isinstance(plan, Plan) else type(plan).__name__
    raise InvalidParameter("plan", given, "must be a Plan with stages; Recipe.calibrate makes one.")


class StageSpan:
    """A stage, its index, the number of steps before it, and its charges; computed once, since every step asks."""

    def __init__(self, index: int, stage: Stage, before: int) -> None:
        self.index, self.stage, self.before = index, stage, before
        self.charge = stage.charge
        """The event that the ledger counts."""
        self.divisor, self.steps_per_charge = stage.divisor, stage.steps_per_charge
        self.charges = stage.steps // self.steps_per_charge
        """How many of them the whole stage takes."""


class Schedule:
    """The stages of a plan in their order."""

    def __init__(self, plan: Plan) -> None:
        self.spans: list[StageSpan] = []
        for stage in plan.stages:
            before = self.spans[-1].before + self.spans[-1].stage.steps if self.spans else 0
            self.spans.append(StageSpan(len(self.spans), stage, before))
        self.name = ":".join(stage.name for stage in plan.stages)[:100]
        """What a ledger calls the run."""

    def span(self, step: int) -> StageSpan:
        """Return the stage that a step belongs to; past the end, the last one."""
        if len(self.spans) == 1:
            return self.spans[0]
        step = max(step, 1)
        return next(span for span in reversed(self.spans) if span.before < step)

    def batches(self, stream: RandomStream, rows: int, start: int) -> Iterator[Indices]:
        """Draw the batches of all steps after ``start``, stage after stage."""
        spans = self.spans[self.span(start + 1).index :]
        first = max(start - spans[0].before, 0)
        if first % spans[0].steps_per_charge:
            raise PlanViolation(IN_A_WINDOW.format(step=start, window=spans[0].steps_per_charge))
        return chain(
            spans[0].stage.batches(stream, rows=rows, start=first),
            *(span.stage.batches(stream, rows=rows) for span in spans[1:]),
        )

    def epoch_ends(self) -> Iterator[int]:
        """Yield the number of the last step of each epoch; each stage has equally long epochs of its own."""
        for span in self.spans:
            epochs = max(1, round(span.stage.epochs))
            yield from (span.before + (epoch * span.stage.steps) // epochs for epoch in range(1, epochs + 1))

    def charges(self, steps: int) -> int:
        """Return how many charges lie within the first so many steps."""
        taken = (min(max(steps - span.before, 0), span.stage.steps) for span in self.spans)
        return sum(count // span.steps_per_charge for span, count in zip(self.spans, taken, strict=True))

    def steps(self, charges: int) -> int:
        """Return how many steps so many charges pay for, those of the first stages first."""
        paid = 0
        for span in self.spans:
            used = min(charges, span.charges)
            charges, paid = charges - used, paid + used * span.steps_per_charge
        return paid


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

    def refuse_from_now_on(self) -> None:
        """Store in the ledger that a comparison has refused this run, so that it cannot be resumed."""
        if self._run is not None:
            self._run.mark(REFUSED)

    def _open(self, till: Till | None, resumed: bool) -> int:
        assert till is not None  # the first process has one
        name = self._schedule.name
        begun = till.ledger.runs().get(name)
        if begun is not None and begun.marked >= REFUSED:
            raise CheckFailed(f"The run {name!r} {REFUSED_BEFORE}")
        if begun is not None and not resumed:
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
