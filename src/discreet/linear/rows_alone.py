"""Compares secretly chosen rows with themselves, read alone: :func:`read_compared`, :func:`compare_rows`.

One cell must not change what another one is read as. Code that parses files, converts columns and encodes cells works
on many rows at once, and is not trusted to keep them apart. :data:`COMPARED` rows, each drawn independently and
uniformly by the operating system, are therefore read again, each from a table of that one row, and nothing is
released unless all of them are what they were among the others. Reading that mixes rows for a share p of them passes
with probability (1 - p)^COMPARED.

>>> read_compared(lambda x: x / 2, np.arange(3.0)).tolist()
[0.0, 0.5, 1.0]
>>> read_compared(lambda x: x - x.mean(), np.arange(3.0))
Traceback (most recent call last):
discreet.errors.PlanViolation: A row of the table is read otherwise alone than among the others; nothing was released.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.core.columns import list_cells
from discreet.errors import InvalidParameter, PlanViolation

COMPARED = 8
"""So many rows of a table are read alone."""


def chosen_rows(rows: int, before: int = 0) -> list[int]:
    """Rows to compare of a further piece of a table, after ``before`` rows.

    Over all pieces, the last choices for each of :data:`COMPARED` places are independent uniform rows of the table.
    """
    total = before + rows
    places = {secrets.randbelow(total) for _ in range(COMPARED)} if total else set()
    return sorted(place for place in places if place < rows)


def read_compared(read: Callable[..., Any], *tables: Any) -> Any:
    """Return ``read(*tables)``, one row for each of theirs, after chosen rows were compared with themselves alone."""
    found = read(*tables)
    for place in chosen_rows(len(found)):
        alone = read_alone(read, *(rows_of(table, np.array([place])) for table in tables))
        compare_rows([found[place : place + 1]], [alone])
    return found


def read_alone(read: Callable[..., Any], *tables: Any) -> Any:
    """Return what ``read`` makes of one row, which must not fail, and whose warnings were given before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read(*tables)
        except Exception:  # it may quote a record
            pass
    raise PlanViolation("A row of the table cannot be read alone; nothing was released.")


def compare_rows(among: Iterable[Any], alone: Iterable[Any]) -> None:
    """Raise unless the parts of a row, each an array of one row, are the same bits; all NaN are the same."""
    if not all(_same(one, other) for one, other in zip(among, alone, strict=True)):
        raise PlanViolation(
            "A row of the table is read otherwise alone than among the others; nothing was released."
        )


def _same(one: Any, other: Any) -> bool:
    if issparse(one) and issparse(other):  # rows in CSR, whose entries are in order
        same = one.shape == other.shape and np.array_equal(one.indices, other.indices)
        return same and _same(one.data, other.data)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.dtype.kind in "fiubmM":
        if one.dtype != other.dtype and other.dtype.kind in "fiub" and one.dtype.kind in "fiub":
            one, other = one.astype(np.float64), other.astype(np.float64)  # integers beside a missing one
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fmM"))
    ours, theirs = list_cells(one), list_cells(other)
    return len(ours) == len(theirs) and all(map(_same_cell, ours, theirs))


def _same_cell(one: Any, other: Any) -> bool:
    try:
        missing = one != one and other != other
        return one is other or (type(one) is type(other) and bool(missing or one == other))
    except Exception:  # whatever a cell may raise
        return False


def row_count(table: Any) -> int:
    """The number of rows of a frame, an array, a list or a sparse matrix."""
    if hasattr(table, "shape") and len(table.shape):
        return int(table.shape[0])
    if hasattr(table, "num_rows"):
        return int(table.num_rows)
    if isinstance(table, list | tuple) or hasattr(table, "take") or hasattr(table, "column_names"):
        return len(table)
    remedy = "must be a frame, an array, a list of rows or a sparse matrix."
    raise InvalidParameter("tables", type(table).__name__, remedy)


def rows_of(table: Any, rows: NDArray[np.int64]) -> Any:
    """These rows of a table, in this order, as a table of the same kind."""
    if hasattr(table, "iloc"):
        return table.iloc[rows]
    if hasattr(table, "take") and hasattr(table, "column_names"):  # pyarrow's tables, and ours
        return table.take(rows)
    if issparse(table):
        return table.tocsr()[rows]
    if hasattr(table, "num_chunks") or hasattr(table, "buffers"):  # pyarrow's columns
        return table.take(rows)
    if not hasattr(table, "__getitem__"):
        return np.asarray(table)[rows]
    return table[rows] if hasattr(table, "shape") else [table[row] for row in rows]
