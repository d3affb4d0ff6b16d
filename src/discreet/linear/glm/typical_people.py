"""How many rows a person typically has, so that people count by a weight that wastes little: :func:`learned_rows`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from discreet.linear.gate.people import MOST_ROWS, People
from discreet.linear.row_views.targets import RowsOfPeople
from discreet.trusted.queries import Blocks, Cells
from discreet.trusted.spending import BudgetAllocator

_SHARE = 0.01  # of the budget, to learn how many rows people have
_OWN = 0.5  # the part of what a model leaves unexplained that is taken to be the person's own


@dataclass(frozen=True)
class UserWeighting:
    """How a person counts: in full from ``least`` rows on. ``averaging`` is how much shorter than the gradient of a
    row the mean gradient of a person's rows is, typically."""

    least: int
    averaging: float


def declared_rows(rows: int) -> UserWeighting:
    """What follows from a declared number of rows."""
    return UserWeighting(rows, math.sqrt(_variance(float(rows))))


def learned_rows(people: People, spending: BudgetAllocator, size: int) -> UserWeighting:
    """From how many rows on a person should count in full, for a model of ``size`` numbers.

    People with fewer rows count less, so the noise counts more; but a row among few tells more than one among many.
    What is least is the variance of sampling and noise together.
    """
    query = Blocks((Cells(RowsOfPeople(), (MOST_ROWS.bit_length(),), (1.0,)),))
    found = spending.stage("rows-of-people", _SHARE).ask(people, query)
    seen = np.where(found.value > 2 * found.noise, found.value, 0.0)
    if not seen.any():
        return UserWeighting(1, 1.0)
    rows = 2.0 ** np.arange(query.size)  # of the people of each cell, at most
    variance = _variance(rows)

    def doubt(least: float) -> float:
        weight = np.minimum(rows / least, 1.0)
        total = float(seen @ weight)
        return float(seen @ (weight**2 * variance) / total**2 + size / (total * spending.strength) ** 2)

    best = min(rows.tolist(), key=doubt)
    return UserWeighting(int(best), math.sqrt(float(seen @ variance / seen.sum())))


def _variance(rows: Any) -> Any:
    """Of the mean of so many rows of one person, over that of one row."""
    return _OWN + (1 - _OWN) / rows
