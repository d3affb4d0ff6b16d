"""To whom the rows of a table belong: :class:`People`, so that a person is protected and not just a row.

Every stage of a fit adds up ``weight * f(row)`` with f of norm at most C. If the weights of a person's rows sum to at
most 1, all rows of a person together move the sum by at most C (triangle inequality): what is proved of a record
holds of a person (docs/mathematics.md: U1). Gradients go further: those of a person are averaged first and clipped
then.

>>> people = People.of(np.array(["ann", "bob", "ann", None], object))
>>> people.codes.tolist(), people.rows.tolist()
([0, 1, 0, -1], [2, 1])
>>> people.weights(least=1).round(3).tolist()
[0.5, 1.0, 0.5, 0.0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.grouping import NOBODY, Codes, group_rows, id_codes
from discreet.linear.column_kinds import MOST_ROWS_OF_A_PERSON as MOST_ROWS
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.spending import Spending

Array = NDArray[np.float64]

_ROOM = 2.0**-20  # below 1, for the sum of a person's weights: more than all their roundings, to float32 too
_SHARE = 0.01  # of the budget, to learn how many rows people have
_OWN = 0.5  # the part of what a model leaves unexplained that is taken to be the person's own
_CELLS = int(math.log2(MOST_ROWS)) + 1


@dataclass(frozen=True, eq=False)
class People:
    """``codes``: for each row the number of its person, or -1 if it does not count; ``rows``: how many each has."""

    codes: Codes
    rows: Codes

    @classmethod
    def of(cls, ids: NDArray[Any]) -> People:
        """The people with these ids, one for each row.

        A row without an id (None, NaN, an empty text) counts for nothing: it might be anybody's.

        Guarantee: whether a row counts depends on the rows of the same id only, and so does the number of its
        person's rows.
        """
        codes = id_codes(ids)
        order, starts = group_rows(codes)
        found = np.diff(np.append(starts, len(order)))
        place = np.arange(len(order)) - np.repeat(starts, found)  # among the person's own rows
        often = np.repeat(found, found)
        taken = (place * MOST_ROWS) // often != ((place - 1) * MOST_ROWS) // often
        codes[order[(often > MOST_ROWS) & ~taken]] = NOBODY
        return cls(codes, np.minimum(found, MOST_ROWS))

    def __len__(self) -> int:
        """How many people there are: private."""
        return len(self.rows)

    def at(self, rows: NDArray[np.int64]) -> People:
        """Those to whom these rows belong, who then have no others."""
        left, codes = np.unique(self.codes[rows], return_inverse=True)
        return People(codes.reshape(-1).astype(self.codes.dtype), self.rows[left])

    def weights(self, least: int, own: Array | None = None) -> Array:
        """1 / max(rows of the person, ``least``) for each row, times its ``own`` weight in [0, 1].

        Guarantee: those of a person sum to at most 1, also after they were rounded to float32.
        """
        share = (1 - _ROOM) / np.maximum(self.rows, least)
        weights = np.append(share, 0.0)[self.codes]
        return np.asarray(weights if own is None else weights * own)

    def order(self) -> NDArray[np.intp]:
        """The rows that count, those of a person next to one another, in the order of the table."""
        return group_rows(self.codes)[0]


@dataclass(frozen=True)
class Typical:
    """How a person counts: in full from ``least`` rows on. ``averaging`` is how much shorter than the gradient of a
    row the mean gradient of a person's rows is, typically."""

    least: int
    averaging: float


def declared_rows(rows: int) -> Typical:
    """What follows from a declared number of rows."""
    return Typical(rows, math.sqrt(_variance(float(rows))))


def learned_rows(people: People, spending: Spending, size: int) -> Typical:
    """From how many rows on a person should count in full, for a model of ``size`` numbers.

    People with fewer rows count less, so the noise counts more; but a row among few tells more than one among many.
    What is least is the variance of sampling and noise together.

    Guarantee: a histogram of the numbers of rows, to which each person adds 1: sensitivity 1.
    """
    stage = spending.stage("rows-of-people", _SHARE)
    sums = Sums(stage, _CELLS, clip_norm=1.0)
    sums.add_ones(np.ceil(np.log2(np.maximum(people.rows, 1))).astype(np.int64))
    seen = sums.released()
    seen = np.where(seen > 2 * sums.noise, seen, 0.0)
    if not seen.any():
        return Typical(1, 1.0)
    rows = 2.0 ** np.arange(_CELLS)  # of the people of each cell, at most
    variance = _variance(rows)

    def doubt(least: float) -> float:
        weight = np.minimum(rows / least, 1.0)
        total = float(seen @ weight)
        return float(seen @ (weight**2 * variance) / total**2 + size / (total * spending.strength) ** 2)

    best = min(rows.tolist(), key=doubt)
    return Typical(int(best), math.sqrt(float(seen @ variance / seen.sum())))


def _variance(rows: Any) -> Any:
    """Of the mean of so many rows of one person, over that of one row."""
    return _OWN + (1 - _OWN) / rows
