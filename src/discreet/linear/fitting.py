"""From a budget and encoded records to a released model and its certificate.

:func:`fit_lines` fits lines; :func:`fit_baseline` fits by the methods with theorems.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from scipy.sparse import issparse

from discreet.errors import InvalidParameter
from discreet.linear.encoder import Encoding
from discreet.linear.fit_budget import FitBudget
from discreet.linear.gate.private_table import EncodedRows
from discreet.linear.glm.counts import ClassCounts
from discreet.linear.glm.glm import fit_records
from discreet.linear.glm.typical_people import UserWeighting
from discreet.linear.linear_model import LinearModel
from discreet.linear.losses import Loss
from discreet.trusted.spending import BudgetAllocator
from discreet.trusted.spending import Progress as Told

# Methods of a fit. ``"recipe"`` is the one without knobs (:func:`~discreet.linear.glm.glm.fit_glm`). The others are
# those of :mod:`discreet.lecture.erm`: they need a loss of bounded slope with one output, and, under add-remove
# neighbours, a public number of records.

Array = NDArray[np.float64]

METHODS = ("recipe", "descent", "output-perturbation", "objective-perturbation", "exponential")
_THEOREMS = "discreet.lecture.erm"  # loaded for the methods with theorems only


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """The table of a fit with its encoding, and what else is public of it.

    ``bounds`` are those of the target, None for classes; ``typical`` is how many rows people have, if they are the
    unit; ``counts`` are as for :func:`~discreet.linear.glm.glm.fit_glm`. ``sparse`` encoded rows are not narrowed.
    """

    table: Any
    loss: Loss
    encoding: Encoding
    bounds: tuple[float, float] | None
    typical: UserWeighting | None
    counts: ClassCounts | None
    sparse: bool

    def rows(self, seen: NDArray[np.intp] | None = None, whole_rows: bool = False) -> Any:
        """The columns ``seen``, or all, encoded; with ``whole_rows`` if queries about those will be asked."""
        return self.table.rows(self.view(seen, whole_rows))

    def view(self, seen: NDArray[np.intp] | None = None, whole_rows: bool = False) -> EncodedRows:
        least = None if self.typical is None else self.typical.least
        return EncodedRows(self.loss, self.encoding, seen, self.bounds, least, whole_rows)

    @property
    def target_bounds(self) -> tuple[float, float]:
        """Those of the target; (0, 1) for classes."""
        return (0.0, 1.0) if self.bounds is None else self.bounds

    @property
    def averaging(self) -> float:
        """How much shorter the mean gradient of a person is than that of a row."""
        return 1.0 if self.typical is None else self.typical.averaging


def fit_lines(
    records: EncodedTable, spending: BudgetAllocator, references: Mapping[int, int] | None = None
) -> LinearModel:
    """Fit a generalised linear model with all that is left to spend; ``references`` ask for standard errors.

    Columns whose bounds are a guess are left out.
    """
    width = records.encoding.columns.width
    seen = np.setdiff1d(np.arange(width), records.encoding.guessed)
    whole = len(seen) == width or records.sparse
    references = references if whole else None
    model = fit_records(
        records.rows(None if whole else seen, whole_rows=references is not None),
        spending,
        target_bounds=records.target_bounds,
        averaging=records.averaging,
        references=references,
        counts=records.counts,
    )
    return model if whole else model.widen(seen, width)


def fit_baseline(method: str, records: EncodedTable, budget: FitBudget, declared: int | None) -> LinearModel:
    """One of the methods with theorems, on centred columns with a constant.

    Guarantee: that of the method, within the budget, all of which is charged before it begins.
    """
    loss, columns, arrays = records.loss, records.encoding.columns, records.table._arrays(records.view())
    if arrays.weights is not None:
        requirement = f"are not known to the method {method!r}; use method='recipe'."
        raise InvalidParameter("weights", "given", requirement)
    if declared is None and budget.budget.neighbours == "add-remove":
        requirement = f"the method {method!r} needs a public number of records; or use method='recipe'."
        raise InvalidParameter("records", None, requirement)
    if loss.outputs != 1 or loss.lipschitz is None:
        requirement = f"the method {method!r} needs a bounded slope and one output; use method='recipe'."
        raise InvalidParameter("loss", loss, requirement)
    centre = np.zeros(columns.width)
    centre[: columns.numerics] = 0.5
    dense = arrays.x.toarray() if issparse(arrays.x) else arrays.x[:]
    rows = np.column_stack([np.ones(dense.shape[0]), np.asarray(dense, np.float64) - centre])
    row_bound = math.sqrt(1 + columns.numerics / 4 + len(columns.groups) + columns.text_square)
    paid = budget.reserve_everything()
    release = import_module(_THEOREMS).private_minimiser(
        loss,
        rows,
        np.clip(arrays.y[:], *records.target_bounds),
        paid,
        method=method,
        row_bound=row_bound,
        records=declared,
        stream=budget.stream,
    )
    value = np.asarray(release.value, np.float64)
    anywhere = np.full(columns.width, np.inf)
    return LinearModel(value[1:], np.asarray(value[0] - centre @ value[1:]), 1.0, (-anywhere, anywhere))


@contextmanager
def show_progress(verbose: Any) -> Iterator[Told | None]:
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

        def tell(stage: str, done: int, steps: int) -> None:
            if stage not in lines:
                lines[stage] = bar.add_task(stage, total=steps)
            bar.update(lines[stage], completed=done)

        yield tell
