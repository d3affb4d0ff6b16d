"""A table in a file, read with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from discreet.cli.shell import progress

if TYPE_CHECKING:
    from discreet.linear.schema import Column, Unit
    from discreet.linear.tables import Source, Table
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from discreet.guarantee import Budget, rounded_up
from discreet.ledger import GaussianFilter, Ledger


def watch_chunks(
    what: str, source: Source, columns: Mapping[str, Column | Unit], keep: Sequence[str] = ()
) -> Iterator[Table]:
    """The chunks of a table, with a progress bar."""
    with progress() as bar:
        task = bar.add_task(what, total=1.0)
        for chunk in source.chunks(columns, keep):
            yield chunk
            bar.update(task, completed=source.progress())


# The progress of a fit: its stages, the time left, and how much of the budget is reserved. All of it is public.


Told = Callable[[str, int, int], None]


class Spent:
    """A bar for each stage of a fit, and what the ledger has reserved when it begins."""

    def __init__(self, ledger: Ledger, budget: Budget) -> None:
        self._ledger, self._rule = ledger, GaussianFilter(budget)
        self._before = self._total()

    @contextmanager
    def shown(self) -> Iterator[Told | bool]:
        """A function to be told of every stage and release; False where nobody would see it."""
        if not sys.stderr.isatty():
            yield False
            return
        whole = f"of epsilon {rounded_up(self._rule.budget.epsilon)}"
        with progress("{task.fields[spent]}") as bar:
            lines: dict[str, Any] = {}

            def told(stage: str, done: int, steps: int) -> None:
                if stage not in lines:
                    spent = f"{self.share():.0%} {whole} reserved"
                    lines[stage] = bar.add_task(stage, total=steps, spent=spent)
                bar.update(lines[stage], completed=done)

            yield told

    def share(self) -> float:
        """How much of the budget is reserved: a part of its squared signal-to-noise ratio."""
        return min(1.0, float((self._total() - self._before) / self._rule.limits()[0]))

    def _total(self) -> Any:
        spent = self._ledger.spent()
        return self._rule.totals(dict(spent.parts()))[0] if spent else 0
