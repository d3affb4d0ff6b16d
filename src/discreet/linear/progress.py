"""A progress bar for long fits: the stages and the steps of the descent, which are public."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from discreet.linear.glm.spending import Progress as Told


@contextmanager
def shown(verbose: Any) -> Iterator[Told | None]:
    """A function to be told of every stage and release, or None if nobody wants to know.

    ``verbose`` may be such a function itself. Otherwise every stage gets a line on standard error; where that is not
    a terminal, all of them are written at the end.
    """
    if not verbose or callable(verbose):
        yield verbose or None
        return
    name = TextColumn("{task.description}")
    with Progress(name, BarColumn(), MofNCompleteColumn(), console=Console(stderr=True)) as bar:
        lines: dict[str, TaskID] = {}

        def told(stage: str, done: int, steps: int) -> None:
            if stage not in lines:
                lines[stage] = bar.add_task(stage, total=steps)
            bar.update(lines[stage], completed=done)

        yield told
