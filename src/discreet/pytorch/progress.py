"""A progress bar that shows planned values only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

from discreet.accounting.curve import account
from discreet.errors import missing_extra
from discreet.events import Event
from discreet.guarantee import upper_text
from discreet.plan.plan import Plan
from discreet.pytorch.training_stages import Schedule

_MILESTONES = 20  # epsilon is computed so often in a run, and never shown below the truth in between


def epoch_ends(schedule: Schedule) -> Iterator[int]:
    """Yield the number of the last step of each epoch; each stage has equally long epochs of its own."""
    for span in schedule.spans:
        epochs = max(1, round(span.stage.epochs))
        yield from (span.before + (epoch * span.stage.steps) // epochs for epoch in range(1, epochs + 1))


def show_progress(batches: Iterator[Any], plan: Plan, start: int) -> Iterator[Any]:
    """Yield the batches and move a bar as they are taken."""
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
    """Return what a run that stops about here has cost, rounded up to the next milestone.

    >>> from discreet.plan.recipe import Recipe
    >>> plan = Recipe(records=1000, batch_size=100, steps=40).with_noise(2.0, delta=1e-6)
    >>> cost_so_far(plan, 1), cost_so_far(plan, 40)
    ('epsilon 0.578 of 1.73', 'epsilon 1.73 of 1.73')
    """
    whole = upper_text(plan.guarantee.epsilon.upper, 3)
    return f"epsilon {_epsilon(plan, milestone(step, plan))} of {whole}"


def milestone(step: int, plan: Plan) -> int:
    """Return the number of charges at the end of the stretch that ``step`` belongs to."""
    schedule = Schedule(plan)
    span, charges = schedule.span(step), schedule.charges(plan.steps)
    charge = schedule.charges(span.before) - (span.before - step) // span.steps_per_charge
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
    """Return what the first so many charges release."""
    events = []
    for span in Schedule(plan).spans:
        used = min(charges, span.charges)
        charges -= used
        events += [span.charge * used] if used else []
    return reduce(add, events)


_known: dict[tuple[str, int], str] = {}
