"""Rows and targets as plain arrays, with the number of records that is public: :class:`RecordTable`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.errors import InvalidParameter
from discreet.guarantee import Neighbours
from discreet.statistics.public_records import public_records

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordTable:
    """One record in each row of ``rows``, with its target. Nothing private appears when it is printed.

    ``records`` is the public number of records, which every sum is divided by: the number of rows under
    replace-one neighbours, and a declared one under add-remove neighbours, where the number of rows is private.
    """

    rows: Floats = field(repr=False)
    targets: Floats = field(repr=False)
    records: int

    @classmethod
    def of(
        cls, X: ArrayLike, y: ArrayLike, neighbours: Neighbours, records: int | None = None
    ) -> RecordTable:
        """The table, or a refusal that depends on types and shapes alone."""
        rows, targets = _numbers("X", X, 2), _numbers("y", y, 1)
        if len(rows) != len(targets):
            raise InvalidParameter("y", targets.ndim, "must have one target for each row of X.")
        if rows.shape[1] == 0:
            raise InvalidParameter("X", "no columns", "must have at least one column.")
        return cls(rows, targets, public_records(records, len(rows), neighbours, "X"))

    @property
    def dimension(self) -> int:
        """The number of columns."""
        return int(self.rows.shape[1])


def _numbers(name: str, values: ArrayLike, dimensions: int) -> Floats:
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError:
        raise InvalidParameter(name, "ragged", "must be an array of numbers.") from None
    if array.dtype.kind not in "fiub":
        requirement = "must be a dense array of real numbers, for instance float64."
        raise InvalidParameter(f"{name}.dtype", str(array.dtype), requirement)
    if array.ndim != dimensions:
        wanted = "(records, columns)" if dimensions == 2 else "(records,)"
        raise InvalidParameter(f"{name}.ndim", array.ndim, f"must have the shape {wanted}.")
    with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite, hence zero
        return np.ascontiguousarray(array, np.float64)
