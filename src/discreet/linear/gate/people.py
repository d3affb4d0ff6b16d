"""To whom the rows of a table belong: :class:`People`, so that a person is protected and not just a row.

Every stage of a fit adds up ``weight * f(row)`` with f of norm at most C. If the weights of a person's rows sum to at
most 1, all rows of a person together move the sum by at most C (triangle inequality): what is proved of a record
holds of a person (docs/mathematics.md: U1). Gradients go further: those of a person are averaged first and clipped
then.

>>> people = People.of(np.array(["ann", "bob", "ann", None], object))
>>> people
People()
>>> people._weights(least=1).round(3).tolist()
[0.5, 1.0, 0.5, 0.0]
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from discreet.core.grouping import MISSING_USER, Codes, group_rows, id_codes
from discreet.trusted.opaque import AnyRows
from discreet.trusted.queries import Blocks
from discreet.trusted.rows import NumberParts

Array = NDArray[np.float64]

MOST_ROWS = 256
"""Rows of a person that count; of somebody with more, so many are taken, evenly spaced."""

_ROOM = 2.0**-20  # below 1, for the sum of a person's weights: more than all their roundings, to float32 too


class People(AnyRows):
    """``codes``: for each row the number of its person, or -1 if it does not count; ``rows``: how many each has."""

    __slots__ = ("_codes", "_rows")

    _answers: ClassVar[tuple[type, ...]] = (Blocks,)

    def __init__(self, codes: Codes, rows: Codes) -> None:
        self._codes, self._rows = codes, rows

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
        codes[order[(often > MOST_ROWS) & ~taken]] = MISSING_USER
        return cls(codes, np.minimum(found, MOST_ROWS))

    def _count(self) -> int:
        """How many people there are."""
        return len(self._rows)

    def _at(self, rows: NDArray[np.int64]) -> People:
        """Those to whom these rows belong, who then have no others."""
        left, codes = np.unique(self._codes[rows], return_inverse=True)
        return People(codes.reshape(-1).astype(self._codes.dtype), self._rows[left])

    def _weights(self, least: int, own: Array | None = None) -> Array:
        """1 / max(rows of the person, ``least``) for each row, times its ``own`` weight in [0, 1].

        Guarantee: those of a person sum to at most 1, also after they were rounded to float32.
        """
        share = (1 - _ROOM) / np.maximum(self._rows, least)
        weights = np.append(share, 0.0)[self._codes]
        return np.asarray(weights if own is None else weights * own)

    def _limit(self, weights: NDArray[Any]) -> Array:
        """The weights, with 0 for all rows of a person whose weights, moved into [0, 1], sum to more than 1.

        Guarantee: weights of a person, also rounded to float32, sum to at most 1. They are compared in multiples of
        2^-40, rounded up; those of at most 256 rows are exact in float64.
        """
        own = np.asarray(weights[:], np.float64)
        sane = np.clip(np.nan_to_num(own), 0.0, 1.0)
        sane = np.maximum(sane, sane.astype(np.float32))
        counted = self._codes >= 0
        steps = np.ceil(sane[counted] * 2.0**40)
        sums = np.bincount(self._codes[counted], steps, len(self._rows) + 1)
        return np.asarray(np.where((sums[self._codes] <= 2.0**40) & counted, own, 0.0))

    def _order(self) -> NDArray[np.intp]:
        """The rows that count, those of a person next to one another, in the order of the table."""
        return group_rows(self._codes)[0]

    def _sum(self, query: Blocks, grid: float) -> NDArray[np.int64]:
        """Return the sum of a query over rows of one number: how many rows each person has."""
        return query.total(NumberParts(self._rows[:, None], None), grid)
