"""A plan as a run carries it out: what each step pays before it happens, how its stage clips, which noise it adds.

A step of the plan is not always what the ledger counts: random allocation is charged by the epoch. Each stage has an
event of its own, and the ledger grants no more of it than the plan holds.

With :class:`~discreet.core.clipping.AdaptiveClip` every step has its own clip norm, and the count of norms within it
takes part of the step's cost, so the sum gets more noise than planned for it alone.

Noise of a plan with bands is partly taken back in the steps to come, see :mod:`discreet.core.banded`. What is
remembered is noise and nothing else, in memory only. It is forgotten whenever steps do not follow one another or
batches are drawn anew: then the matrix of the coefficients falls into blocks, no column of which is longer, so the
guarantee is the same, and only the benefit begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from discreet.accounting.curve import account
from discreet.core.banded import coefficients, length_of_column
from discreet.core.clipping import AdaptiveClip, ClipRule, Flat
from discreet.core.noise import BoundedSum, add_noise, refuse_not_finite
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, PlanViolation, missing_extra
from discreet.events import Event, Gaussian
from discreet.guarantee import upper_text
from discreet.ledger import Till
from discreet.ledger.journal import LEASES, Run
from discreet.plan.plan import Plan, refuse_uncovered_bands
from discreet.plan.stage import Stage
from discreet.pytorch.distributed import Processes

if TYPE_CHECKING:
    pass


def checked_plan(plan: object) -> Plan:
    """The plan, if it is one that a run can carry out."""
    if isinstance(plan, Plan) and plan.stages:
        return plan
    given = plan.name if isinstance(plan, Plan) else type(plan).__name__
    raise InvalidParameter("plan", given, "must be a Plan with stages; Recipe.calibrate makes one.")


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
        self.divisor, self.steps_per_charge = stage.divisor, stage.steps_per_charge
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
        self._before = processes.let_first_decide(lambda: self._open(till, resumed))
        self.taken = self._course.steps(self._before)

    def refuse_past_the_end(self) -> None:
        """Refuse a step that the plan does not hold."""
        if self.taken >= self._planned:
            raise PlanViolation(
                f"The plan has {self._planned} steps, and all of them are taken. More need a plan of their own."
            )

    def pay(self) -> None:
        """Pay for the next step."""
        self.refuse_past_the_end()
        leg = self._course.leg(self.taken + 1)
        done, odd = divmod(self.taken - leg.before, leg.steps_per_charge)
        if not odd:
            self._processes.let_first_decide(lambda: self._charge(leg, leg.charges - done))
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


# ---- the clipping of each stage ----


# ---- a clip norm that follows the gradients, as a run carries it out ----
#
# See `AdaptiveClip` for the idea and for what it costs.


@dataclass(frozen=True)
class Watched(Flat):
    """Flat clipping that remembers the norms it is asked about, so that no second pass is needed to count them.

    >>> rule = Watched(clip_norm=2.0)
    >>> rule.factors([[1.0], [4.0]]).round(9).tolist(), rule.norms()
    ([[1.0], [0.5]], array([1., 4.]))
    """

    _seen: list[NDArray[Any]] = field(default_factory=list, repr=False, compare=False)

    def factors(self, norms: ArrayLike, error: float = 1e-12) -> NDArray[np.float64]:
        """As :meth:`Flat.factors`."""
        self._seen.append(np.asarray(norms, dtype=np.float64).ravel())
        return super().factors(norms, error)

    def norms(self) -> NDArray[np.float64]:
        """All norms so far. They are private."""
        return np.concatenate([np.zeros(0), *self._seen])


def follow_norms(
    adaptive: AdaptiveClip, norms: NDArray[np.float64], processes: Processes, stream: RandomStream
) -> AdaptiveClip:
    """Release how many of the norms were within the clip norm, and let the clip norm follow.

    Guarantee: what is used of the norms is their count with the noise of ``adaptive.count_event``.
    """
    count = torch.tensor([adaptive.count(norms)], dtype=torch.float64)
    add_noise(BoundedSum(count, clip_norm=0.5), processes.share(adaptive.count_event), stream, out=count)
    processes.add_up(count)
    return adaptive.updated(float(count))


def checked_clipping(clipping: object) -> ClipRule | AdaptiveClip:
    """``clipping`` if it is a rule for clipping, or raise."""
    if isinstance(clipping, ClipRule | AdaptiveClip):
        return clipping
    raise InvalidParameter(
        "clipping", clipping, "must be Flat, Normalised, PerBlock, AdaptiveClip or your own ClipRule."
    )


def planned_clipping(clipping: object, clip_norm: float) -> ClipRule | AdaptiveClip:
    """``clipping`` if it bounds what the plan says, or raise; without it, flat clipping."""
    if clipping is None:
        return Flat(clip_norm)
    rule = checked_clipping(clipping)
    if not abs(rule.clip_norm - clip_norm) <= 1e-9 * clip_norm:
        remedy = f"must have the clip norm of the plan, {clip_norm:g}; an adaptive one begins there."
        raise InvalidParameter("clipping", clipping, remedy)
    return rule


def clipping_of_stages(clipping: object, stages: Iterable[Stage]) -> list[ClipRule | AdaptiveClip]:
    """The clipping of each stage: by the stages' names, or one rule for all of them."""
    stages = tuple(stages)
    if not isinstance(clipping, Mapping):
        return [planned_clipping(clipping, stage.clip_norm) for stage in stages]
    unknown = clipping.keys() - {stage.name for stage in stages}
    if unknown:
        names = ", ".join(stage.name for stage in stages)
        raise InvalidParameter(
            "clipping", sorted(map(str, unknown)), f"must name stages of the plan: {names}."
        )
    return [planned_clipping(clipping.get(stage.name), stage.clip_norm) for stage in stages]


def resumed_clipping(given: ClipRule | AdaptiveClip, kept: AdaptiveClip | None) -> ClipRule | AdaptiveClip:
    """The rule of a run that goes on: the one given; of an adaptive one, with the clip norm of the checkpoint.

    Nothing else may differ: the noise of the sums follows from what was given, and that of the counts would follow
    from what was kept, so that a step would cost more than is paid for.
    """
    if not isinstance(given, AdaptiveClip) and kept is None:
        return given
    if isinstance(given, AdaptiveClip) and kept == replace(given, clip_norm=kept.clip_norm if kept else 1.0):
        return kept
    raise PlanViolation("The checkpoint was made with another kind of clipping; resume with the same.")


def rule_of_step(clipping: ClipRule | AdaptiveClip) -> ClipRule:
    """The rule for the next step; an adaptive one is new each time and remembers the norms it sees."""
    return Watched(clipping.clip_norm) if isinstance(clipping, AdaptiveClip) else clipping


def noise_of_sum(clipping: ClipRule | AdaptiveClip, planned: Gaussian) -> Gaussian:
    """What is planned, or more where the count of an adaptive clip norm takes its part of a step's cost."""
    return clipping.of_sum(planned) if isinstance(clipping, AdaptiveClip) else planned


# ---- the noise of a stage with bands ----


class BandedNoise:
    """The noise of the steps of one stage, over its ``bands``."""

    def __init__(self, bands: int) -> None:
        self._bands = bands
        self._past: deque[Tensor] = deque(maxlen=bands - 1)  # the latest first
        self._last = 0

    def forget(self) -> None:
        """Begin anew, as if nothing had been released before."""
        self._past.clear()

    def add_to(
        self, total: Tensor, step: int, clip_norm: float, event: Gaussian, stream: RandomStream
    ) -> None:
        """Add the noise of step number ``step`` to a sum in place.

        Guarantee: for consecutive steps, the coefficients times what was added are independent Gaussians of standard
        deviation ``event.noise_multiplier * clip_norm`` times the length of the coefficients, or more.
        """
        refuse_not_finite(total.detach().cpu().numpy())
        if step != self._last + 1:
            self.forget()
        noise = torch.zeros_like(total)
        add_noise(BoundedSum(noise, clip_norm), fresh_noise(event, self._bands), stream, out=noise)
        for value, before in zip(coefficients(self._bands)[1:], self._past, strict=False):
            noise.add_(before, alpha=-float(value))
        self._past.appendleft(noise)
        self._last = step
        total += noise


def fresh_noise(event: Gaussian, bands: int) -> Gaussian:
    """What is drawn in each step, so that a record that moves several sums costs what ``event`` does."""
    return Gaussian(math.nextafter(event.noise_multiplier * length_of_column(bands), math.inf))


def refuse_bands(stages: Iterable[Stage], clipping: Iterable[object], arithmetic: str) -> None:
    """Refuse settings that have no theorem together with correlated noise."""
    for stage, rule in zip(stages, clipping, strict=True):
        if stage.bands == 1:
            continue
        if arithmetic == "hardened":
            raise InvalidParameter("arithmetic", arithmetic, "needs a plan with bands=1.")
        if isinstance(rule, AdaptiveClip):
            raise InvalidParameter("clipping", rule, "must have a fixed clip norm where a plan has bands.")


def refuse_bands_in(till: Till | None, plan: Plan) -> None:
    """Refuse to charge a ledger, which promises for all runs together, where correlated noise has no theorem."""
    if till is not None:
        refuse_uncovered_bands(plan.stages, till.ledger.rule.budget)


# ---- a progress bar that shows planned values only ----


_MILESTONES = 20  # epsilon is computed so often in a run, and never shown below the truth in between


def show_progress(batches: Iterator[Any], plan: Plan, start: int) -> Iterator[Any]:
    """The same batches, with a bar that moves as they are taken."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        raise missing_extra("progress=True needs rich", "torch") from None
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("", total=plan.steps, completed=start)
        for step, batch in enumerate(batches, start + 1):
            bar.update(task, description=cost_so_far(plan, step))
            yield batch
            bar.update(task, completed=step)


def cost_so_far(plan: Plan, step: int) -> str:
    """What a run that stops about here has cost, rounded up to the next milestone.

    >>> from discreet.plan.recipe import Recipe
    >>> plan = Recipe(records=1000, batch_size=100, steps=40).with_noise(2.0, delta=1e-6)
    >>> cost_so_far(plan, 1), cost_so_far(plan, 40)
    ('epsilon 0.578 of 1.73', 'epsilon 1.73 of 1.73')
    """
    whole = upper_text(plan.guarantee.epsilon.upper, 3)
    return f"epsilon {_epsilon(plan, milestone(step, plan))} of {whole}"


def milestone(step: int, plan: Plan) -> int:
    """The number of charges at the end of the stretch that ``step`` belongs to."""
    course = Course(plan)
    leg, charges = course.leg(step), course.charges(plan.steps)
    charge = course.charges(leg.before) - (leg.before - step) // leg.steps_per_charge
    stretch = -(-charges // _MILESTONES)
    return min(charges, -(-charge // stretch) * stretch)


def _epsilon(plan: Plan, charges: int) -> str:
    key = (plan.digest(), charges)
    if key not in _known:
        curve = account(_event(plan, charges), plan.neighbours, plan.group_size)
        _known.clear()
        _known[key] = upper_text(curve.epsilon(plan.delta), 3)
    return _known[key]


def _event(plan: Plan, charges: int) -> Event:
    """What the first so many charges release."""
    events = []
    for leg in Course(plan).legs:
        used = min(charges, leg.charges)
        charges -= used
        events += [leg.charge * used] if used else []
    return reduce(add, events)


_known: dict[tuple[str, int], str] = {}
