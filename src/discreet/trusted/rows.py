"""Private rows: an opaque table that answers queries of the catalogue, and nothing else.

>>> import numpy as np
>>> rows = PrivateRows(np.array([[1.0], [2.0]]), neighbours="add-remove")
>>> rows
PrivateRows(columns=1)
>>> len(rows)
Traceback (most recent call last):
    ...
TypeError: Private rows have no length, no items and no truth value. Ask a query of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.core.noise import BoundedSum
from discreet.errors import InvalidParameter, PlanViolation
from discreet.guarantee import Neighbours
from discreet.trusted.choices import Quantiles
from discreet.trusted.opaque import AnyRows
from discreet.trusted.plain_data import Array, Integers
from discreet.trusted.queries import Blocks, Part

MOST_RECORDS = 2**27
"""Rows that an integer sum of a session has room for."""

_BLOCK = 2**15  # numbers that are read at once


class PrivateRows(AnyRows):
    """Rows of numbers, one per record, of this process.

    ``numbers`` is an array of shape ``(records, columns)``; what a cell becomes must not depend on other cells, which
    is the duty of the code that read the table. ``neighbours`` is the relation of the session that will ask: under
    ``"replace-one"`` the number of rows is public, and :attr:`public_count` holds it. ``persons`` holds the canonical
    id of each row's person, None for nobody: then the rows of a person weigh one over their number, and rows of
    nobody add nothing.

    Guarantee: sums leave through :meth:`_total` only, which sessions call. Each row, or each person with all rows,
    adds to them at most what the query's blocks allow.
    """

    __slots__ = ("_numbers", "_weights", "columns", "neighbours", "public_count", "unit")

    _answers: ClassVar[tuple[type, ...]] = (Blocks, Quantiles)

    def __init__(
        self, numbers: NDArray[Any], neighbours: Neighbours, persons: Sequence[bytes | None] | None = None
    ) -> None:
        if numbers.ndim != 2 or numbers.dtype.kind not in "fiub":
            raise PlanViolation("Private rows are a two-dimensional array of numbers.")
        if len(numbers) > MOST_RECORDS:
            raise InvalidParameter("x", "too many rows", f"must have at most {MOST_RECORDS}.")
        if persons is not None and len(persons) != len(numbers):
            raise PlanViolation("Each of the private rows needs one id of a person, or None.")
        self._numbers = numbers
        self._weights = None if persons is None else person_weights(persons)
        self.columns: int = numbers.shape[1]
        self.neighbours, self.unit = neighbours, "record" if persons is None else "person"
        rows_are_public = neighbours == "replace-one" and persons is None
        self.public_count: int | None = len(numbers) if rows_are_public else None

    def _sum(self, query: Blocks | Quantiles, grid: float | None) -> Integers | Array:
        """Return a sum in grid steps, in floating point if ``grid`` is None; for a choice, the numbers' places."""
        parts = NumberParts(self._numbers, self._weights)
        if isinstance(query, Quantiles):
            if self._weights is not None:
                raise PlanViolation("Rows of persons answer sums only.")
            return np.concatenate([query.places(part.x) for part in parts.parts()])
        return query.float_total(parts) if grid is None else query.total(parts, grid)

    def __repr__(self) -> str:
        return f"PrivateRows(columns={self.columns})"


class NumberParts:
    """Rows of numbers, dense or CSR, as parts of records without targets, for :meth:`Blocks.total`."""

    def __init__(
        self, numbers: Any, weights: Array | None, slices: Iterable[slice] | None = None, block: int = _BLOCK
    ) -> None:
        self._numbers, self._weights, self.row_columns = numbers, weights, numbers.shape[1]
        step = max(1, block // max(1, self.row_columns))
        even = (slice(start, start + step) for start in range(0, max(1, numbers.shape[0]), step))
        self._slices = even if slices is None else slices

    def parts(self, of: None = None) -> Iterator[Part]:
        """Yield some rows at a time as float64; one empty part if there are none.

        In memory each row is one piece: otherwise numpy would add up a row in another order where it is alone.
        """
        if of is not None:
            raise PlanViolation("Rows of numbers answer queries about themselves only.")
        for place in self._slices:
            rows = self._numbers[place]
            x = rows if issparse(rows) else np.asarray(rows, np.float64, order="C")
            yield Part(x, weights=None if self._weights is None else self._weights[place])

    everybody = parts


class PartitionedRows(PrivateRows):
    """Rows that lie in partitions elsewhere. ``gather`` returns the sum of a query over all of them, exactly once.

    Its second argument is an empty sum with the sensitivity, norm and grid of the answer. The last sum is kept, so
    that it can be computed before it is paid for.
    """

    __slots__ = ("_gather", "_last")

    _answers: ClassVar[tuple[type, ...]] = (Blocks,)
    _elsewhere = True

    def __init__(
        self,
        gather: Callable[[Blocks, BoundedSum], Integers],
        columns: int,
        neighbours: Neighbours,
        persons: bool,
    ) -> None:
        super().__init__(np.empty((0, columns)), neighbours, () if persons else None)
        self.public_count = None
        self._gather = gather
        self._last: tuple[Blocks, float | None, Integers] | None = None

    def _sum(self, query: Any, grid: float | None) -> Integers:
        """Return the sum over all partitions, in grid steps."""
        if grid is None:
            raise PlanViolation("Partitions answer sums of blocks in integers.")
        if self._last is None or self._last[:2] != (query, grid):
            like = BoundedSum(np.zeros(query.size, np.int64), query.bound, query.norm, grid)
            self._last = (query, grid, self._gather(query, like))
        return self._last[2]


def person_weights(persons: Sequence[bytes | None]) -> Array:
    """Return one over the number of a person's rows for each row, rounded down, and 0 for rows of nobody.

    Guarantee: the weights of a person sum to at most 1, exactly.
    """
    rows_of = Counter(persons)
    share = {rows: _round_down(Fraction(1, rows)) for rows in set(rows_of.values())}
    return np.array([0.0 if one is None else share[rows_of[one]] for one in persons], np.float64)


def _round_down(number: Fraction) -> float:
    near = float(number)
    return near if Fraction(near) <= number else math.nextafter(near, 0.0)
