"""Whose a row is: ids as numbers, and rows person by person.

>>> id_codes(np.array(["ann", "bob", "ann", None], object)).tolist()
[0, 1, 0, -1]
>>> [part.tolist() for part in group_rows(np.array([1, 0, -1, 1]))]
[[1, 0, 3], [0, 1]]
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]

MISSING_USER = -1
"""The number of a row without an id, which might be anybody's."""


def id_codes(ids: NDArray[Any]) -> Codes:
    """A number for each different id; -1 for those of nobody. Which ids are the same: :func:`canonical_user_id`."""
    if ids.dtype.kind in "iub":
        return np.unique(ids, return_inverse=True)[1].astype(np.int64).reshape(-1)
    if ids.dtype.kind in "fmM":
        missing = np.isnan(ids) if ids.dtype.kind == "f" else np.isnat(ids)
        found = np.full(len(ids), MISSING_USER, np.int64)
        found[~missing] = np.unique(ids[~missing], return_inverse=True)[1].reshape(-1)
        return found
    known: dict[Any, int] = {}
    return np.array([number_of_id(cell, known) for cell in ids.tolist()], np.int64)


def group_rows(codes: Codes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows of each person after one another, in the order of the table, and where each person begins."""
    order = np.argsort(codes, kind="stable")
    order = order[np.searchsorted(codes[order], 0) :]
    changes = np.flatnonzero(np.diff(codes[order])) + 1
    starts = np.concatenate([[0], changes]) if len(order) else changes
    return order, starts.astype(np.intp)


_MOST_DIGITS = 4300  # of an integer as a string, in Python


def canonical_user_id(cell: Any) -> Hashable | None:
    """Who is meant by an id; None for None, NaN, an empty text, and what cannot be compared.

    An integer is the same as a text or as a float, and blanks around a text do not make another person: a column
    that was read in pieces holds 7, 7.0 and "7" side by side. To take two people for one never harms either.

    >>> [canonical_user_id(cell) for cell in (7, 7.0, "7", " 7.0 ", b"7", -0.0, "", None, float("nan"))]
    ['7', '7', '7', '7', '7', '0', None, None, None]
    """
    try:
        if hasattr(cell, "as_py"):  # a cell of pyarrow
            cell = cell.as_py()
        elif getattr(cell, "ndim", None) == 0 and not isinstance(cell, np.generic):
            cell = cell.item()  # a tensor: two that are equal have different hashes
        if isinstance(cell, bytes):
            cell = cell.decode("utf-8", "surrogateescape")
        if isinstance(cell, str):
            name = cell.strip()
            head, _, tail = name.partition(".")
            whole = not tail.strip("0") and head.lstrip("-").isdecimal()
            return (head if whole else name) or None
        if cell is None or cell != cell:
            return None
        if isinstance(cell, Decimal) and cell.is_finite() and cell.adjusted() > _MOST_DIGITS:
            return (
                None  # as for every integer that Python does not write out; to compute it would take minutes
            )
        if isinstance(cell, complex | np.complexfloating):
            cell = cell.real if cell.imag == 0 else complex(cell)  # numpy warns where int() drops a part
        if isinstance(cell, Number) and not isinstance(cell, complex) and cell == (nearest := int(cell)):  # type: ignore[call-overload]
            return str(nearest)
        alone: Any = object.__eq__
        if type(cell).__eq__ is alone:  # equal to itself only: whose it is cannot be told
            return None
        hash(cell)
        return cell  # type: ignore[no-any-return]
    except Exception:  # whatever a cell may raise
        return None


def number_of_id(cell: Any, known: dict[Any, int]) -> int:
    """The number of an id among those that are ``known``, to which it is added; -1 if it is nobody's."""
    person = canonical_user_id(cell)
    return MISSING_USER if person is None else known.setdefault(person, len(known))
