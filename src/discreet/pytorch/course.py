"""A plan's stages, one after the other: which of them a step belongs to, and what the ledger counts.

Steps are numbered from 1 through the whole plan. A ledger counts charges: as many as steps, or an epoch at a time for
random allocation.

>>> from discreet.plan.plan import Plan
>>> from discreet.plan.stage import Stage
>>> warm = Stage("warm-up", "full-batch", 60, 60, steps=2, clip_norm=1.0, noise_multiplier=9.0)
>>> descent = Stage("descent", "random-allocation", 60, 20, steps=6, clip_norm=0.5, noise_multiplier=4.0)
>>> course = Course(Plan((warm, descent), delta=1e-3))
>>> [(leg.stage.name, leg.before) for leg in (course.leg(2), course.leg(3), course.leg(9))]
[('warm-up', 0), ('descent', 2), ('descent', 2)]
>>> course.charges(6), course.steps(3), course.name
(3, 5, 'warm-up:descent')
>>> list(course.epoch_ends())
[1, 2, 5, 8]
"""

from __future__ import annotations

from collections.abc import Iterator

from discreet.plan.plan import Plan
from discreet.plan.stage import Stage


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
