"""A progress bar that shows planned values only: steps, and the epsilon that they have cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

from discreet.accounting.curve import account
from discreet.errors import MissingDependency
from discreet.events import Event
from discreet.guarantee import rounded_up
from discreet.plan.plan import Plan
from discreet.pytorch.payments import Course

_MILESTONES = 20  # epsilon is computed so often in a run, and never shown below the truth in between


def shown(batches: Iterator[Any], plan: Plan, start: int) -> Iterator[Any]:
    """The same batches, with a bar that moves as they are taken."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        raise MissingDependency("progress=True needs rich: pip install 'discreet[torch]'") from None
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("", total=plan.steps, completed=start)
        for step, batch in enumerate(batches, start + 1):
            bar.update(task, description=spent(plan, step))
            yield batch
            bar.update(task, completed=step)


def spent(plan: Plan, step: int) -> str:
    """What a run that stops about here has cost, rounded up to the next milestone.

    >>> from discreet.plan.recipe import Recipe
    >>> plan = Recipe(records=1000, batch_size=100, steps=40).with_noise(2.0, delta=1e-6)
    >>> spent(plan, 1), spent(plan, 40)
    ('epsilon 0.578 of 1.73', 'epsilon 1.73 of 1.73')
    """
    whole = rounded_up(plan.guarantee.epsilon.upper, 3)
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
        _known[key] = rounded_up(curve.epsilon(plan.delta), 3)
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
