"""Whose a row is: ids as numbers, and rows person by person.

>>> id_codes(np.array(["ann", "bob", "ann", None], object)).tolist()
[0, 1, 0, -1]
>>> [part.tolist() for part in grouped(np.array([1, 0, -1, 1]))]
[[1, 0, 3], [0, 1]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]

NOBODY = -1
"""The number of a row without an id, which might be anybody's."""


def id_codes(ids: NDArray[Any]) -> Codes:
    """A number for each different id; -1 for None, NaN, an empty text, and what cannot be compared.

    Blanks around a text do not make another person.
    """
    if ids.dtype.kind in "iub":
        return np.unique(ids, return_inverse=True)[1].astype(np.int64).reshape(-1)
    if ids.dtype.kind in "fmM":
        missing = np.isnan(ids) if ids.dtype.kind == "f" else np.isnat(ids)
        found = np.full(len(ids), NOBODY, np.int64)
        found[~missing] = np.unique(ids[~missing], return_inverse=True)[1].reshape(-1)
        return found
    known: dict[Any, int] = {}
    return np.array([_number(cell, known) for cell in ids.tolist()], np.int64)


def grouped(codes: Codes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows of each person after one another, in the order of the table, and where each person begins."""
    order = np.argsort(codes, kind="stable")
    order = order[np.searchsorted(codes[order], 0) :]
    changes = np.flatnonzero(np.diff(codes[order])) + 1
    starts = np.concatenate([[0], changes]) if len(order) else changes
    return order, starts.astype(np.intp)


def _number(cell: Any, known: dict[Any, int]) -> int:
    try:
        name = cell.strip() if isinstance(cell, str | bytes) else cell
        if name is None or name != name or (isinstance(name, str | bytes) and not name):
            return NOBODY
        return known.setdefault(name, len(known))
    except Exception:  # whatever a cell may raise
        return NOBODY
