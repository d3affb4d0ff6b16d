"""Answers of a model, record by record: :func:`answers`. NaN stands for a record that the model fails at.

>>> answers(lambda rows: rows / 2, 1, np.array([[1.0], [3.0]]), "halves").tolist()
[[0.5], [1.5]]
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter
from discreet.linear.rows_alone import row_count, rows_of

Array = NDArray[np.float64]

COMPARED = 8
"""So many records of each block that is read are asked about alone."""

CHECKED = (
    f"in each block of records that was read, {COMPARED} records, chosen by the operating system's randomness, were "
    "given to the model alone before anything was paid for, and its answers compared with those among the others. A "
    f"model that mixes records for a share p of them stays unseen in a block with chance (1 - p)^{COMPARED}"
)
"""For certificates."""


def answers(ask: Callable[[Any], Any], width: int, x: Any, model: str) -> Array:
    """A row of ``width`` numbers for each record; ``model`` is what refusals call the function.

    Guarantee: no exception or warning of ``ask`` is passed on, since one record may be its reason. A function whose
    answer for a secretly chosen record depends on the others is refused, before anything is paid.
    """
    records = row_count(x)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = _ask_rows(ask, x, np.arange(records), width)
        for place in secrets.SystemRandom().sample(range(records), min(COMPARED, records)):
            alone = _ask_rows(ask, x, np.array([place]), width)[0]
            if not np.allclose(alone, found[place], rtol=1e-3, atol=1e-6, equal_nan=True):
                remedy = (
                    "answers otherwise for a record of this table alone than among the others, and must answer for "
                    "each record by itself. Batch statistics, ranks and scaling by the table are the usual reasons."
                )
                raise InvalidParameter("model", model, remedy)
    return found


def _ask_rows(ask: Callable[[Any], Any], x: Any, rows: NDArray[np.int64], width: int) -> Array:
    """Answers for these rows; where the function fails, halves are asked, down to the records at which it fails.

    So a record that a model cannot take changes the answer for itself only.
    """
    try:
        found = np.array(ask(x if len(rows) == row_count(x) else rows_of(x, rows)), np.float64)
    except Exception:  # refusals of ours included: it may quote a record
        found = np.empty(0)
    if found.ndim > 1 and len(found) == len(rows):
        if found.shape[1:] != (width,):
            raise InvalidParameter(
                "model", "other answers", f"must answer with {width} number(s) for each record."
            )
        return found
    if len(rows) <= 1:
        return np.full((len(rows), width), np.nan)
    half = len(rows) // 2
    return np.concatenate([_ask_rows(ask, x, part, width) for part in (rows[:half], rows[half:])])
