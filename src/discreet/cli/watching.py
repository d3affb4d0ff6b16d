"""Progress displays of commands: reading a table, fitting a model, running a study."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from discreet.cli.shell import progress
from discreet.guarantee import Budget, upper_text
from discreet.ledger import GaussianFilter, Ledger

if TYPE_CHECKING:
    from discreet.linear.column_kinds import Column, Unit
    from discreet.linear.row_source import Source, Table


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
        self._ledger, self._rule = ledger, GaussianFilter(budget, spare=0.0)
        self._before = self._total()

    @contextmanager
    def bar(self) -> Iterator[Told | bool]:
        """Progress callback for stages and releases; False where no terminal shows it."""
        if not sys.stderr.isatty():
            yield False
            return
        whole = f"of epsilon {upper_text(self._rule.budget.epsilon)}"
        with progress("{task.fields[spent]}") as bar:
            lines: dict[str, Any] = {}

            def tell(stage: str, done: int, steps: int) -> None:
                if stage not in lines:
                    spent = f"{self.share():.0%} {whole} reserved"
                    lines[stage] = bar.add_task(stage, total=steps, spent=spent)
                bar.update(lines[stage], completed=done)

            yield tell

    def share(self) -> float:
        """Reserved share of the budget, as a part of its squared signal-to-noise ratio."""
        return min(1.0, float((self._total() - self._before) / self._rule.limits()[0]))

    def _total(self) -> Any:
        spent = self._ledger.spent()
        return self._rule.totals(dict(spent.parts()))[0] if spent else 0


def digest_line(ending: Any, made: str = "The model") -> str:
    """Line with the model's digest, which all sites show at the end for comparison."""
    what = made.removeprefix("The ")
    return f"{what.capitalize()} {ending.model}: the same on every screen, or somebody has another {what}."


def study_table(study: Any) -> str:
    """Digest and observers."""
    from discreet.parties import observers

    return f"Study {study.name}, {study.digest()}\n{observers(study)}{tokens_in_words(study)}"


def may_be_asked(study: Any) -> str:
    """The limits of a study by the recipe in words; empty for other studies."""
    asked = study.questions
    if asked is None:
        return ""
    columns = ", ".join(study.model.get("columns", {}))
    kinds = "; ".join(f"{_KINDS.get(kind, '')} ({kind})" for kind in asked.kinds)
    return (
        f"\n\nWhat may be asked of each party, whatever the coordinator wants: at most {asked.releases} answers of "
        f"at most {asked.numbers:,} numbers each, all of them together within the budget. Each is a noisy sum over "
        f"your {study.privacy.unit}s: {kinds}. They are about the columns {columns} and no others."
    )


_KINDS = {
    "classes": "counts of classes",
    "columns": "histograms and sums of columns",
    "ranges": "histograms of columns without bounds",
    "targets": "histograms and means of the target",
    "norms": "histograms of row norms",
    "moments": "second moments of columns",
    "gradients": "clipped gradients of the model",
    "errors": "standard errors",
    "pairs": "interactions of two columns",
    "persons": "numbers of rows of a person",
}


def tokens_in_words(study: Any) -> str:
    """Explain the default of SGD1's ``tokens``: the squared number of records, one message after the other."""
    if study.algorithm != "sgd1" or study.training.tokens is not None:
        return ""
    hours = study.updates / _TOKENS_AN_HOUR
    lasts = f"{hours:,.0f} hours" if hours >= 2 else f"{60 * hours:.0f} minutes"
    return (
        f"\n\nThe study names no `tokens` in [training], so there are {study.records:,} squared = {study.updates:,} "
        f"messages, one after the other: about {lasts} at a hundred a second. `tokens = ...` names fewer."
    )


_TOKENS_AN_HOUR = 360_000


class EpsilonSoFar:
    """Epsilon after a part of a party's plan, as text: all of it is known before anything is sent."""

    def __init__(self, terms: Any) -> None:
        self._terms = terms
        self._known: dict[int, str] = {}

    def at(self, part: float) -> str:
        """Epsilon so far, of how much; in steps of a fiftieth."""
        from discreet.accounting.curve import account

        if self._terms.study.algorithm == "recipe":
            return self._of_share(max(1, round(min(part, 1.0) * 50)))
        (event, count), *_ = self._terms.event.parts()
        steps = max(1, round(min(part, 1.0) * 50) * count // 50)
        if steps not in self._known:
            privacy = self._terms.study.privacy
            epsilon = account(event * steps, privacy.neighbours).epsilon(privacy.delta)
            self._known[steps] = f"epsilon {upper_text(epsilon)} of {upper_text(self._terms.budget.epsilon)}"
        return self._known[steps]

    def _of_share(self, fiftieths: int) -> str:
        """Epsilon after so many fiftieths of a budget that is spent adaptively."""
        from discreet.accounting.curve import account
        from discreet.events import Gaussian

        if fiftieths not in self._known:
            study = self._terms.study
            event = Gaussian(study.noise_multiplier * (50 / fiftieths) ** 0.5)
            epsilon = account(event, study.privacy.neighbours).epsilon(study.accounted_delta)
            self._known[fiftieths] = f"epsilon {upper_text(epsilon)} of {upper_text(study.privacy.epsilon)}"
        return self._known[fiftieths]


def charged_so_far(terms: Any, book: Any) -> tuple[int, float]:
    """The number of answers that a party's ledger has charged, and their part of its plan."""
    runs, whole = book.runs(), f"{terms.study.name}/{terms.party}"
    if terms.study.algorithm != "recipe":
        charged = runs[whole].reserved if whole in runs else 0
        return charged, charged / terms.steps
    own = [run for name, run in runs.items() if name.startswith(f"{terms.run_prefix}/")]
    spent = sum(run.reserved / run.event.parts()[0][0].noise_multiplier ** 2 for run in own)
    return sum(run.reserved for run in own), spent * terms.study.noise_multiplier**2
