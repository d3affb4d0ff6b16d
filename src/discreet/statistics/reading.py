"""Reads the tables of statistics into private rows.

What a cell becomes depends on that cell and on declared parameters alone, and refusals depend on types and shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from discreet.core.columns import floats_of, list_table
from discreet.errors import InvalidParameter
from discreet.guarantee import Neighbours
from discreet.linear.declarations import declared_width
from discreet.linear.inputs import cells_of, codes, is_list, list_width, number_table, numbers
from discreet.linear.rows_alone import read_compared
from discreet.statistics.mean.known import Interval
from discreet.trusted.rows import PrivateRows

Array = NDArray[np.float64]


def counted_rows(x: Any, neighbours: Neighbours) -> PrivateRows:
    """Return private rows of 1 for each record that counts and 0 for others: of booleans, those that are not true."""
    return PrivateRows(read_compared(_ones, x)[:, None], neighbours)


def number_rows(x: Any, neighbours: Neighbours) -> PrivateRows:
    """Return private rows of one number for each record; NaN where it is none."""
    return PrivateRows(read_compared(_vector, x)[:, None], neighbours)


def category_rows(x: Any, declared: tuple[Any, ...], neighbours: Neighbours) -> PrivateRows:
    """Return private rows of each record's place among the declared values, -1 for others."""
    places = read_compared(lambda x: _one_for_each_record(codes(x, declared)), x)
    return PrivateRows(places[:, None], neighbours)


def bounded_rows(
    x: Any, bounds: tuple[ArrayLike, ArrayLike], neighbours: Neighbours
) -> tuple[PrivateRows, Array, Array]:
    """Return private rows of a table of numbers, and the bounds of its columns."""
    table, lower, upper = bounded_table(x, bounds)
    return PrivateRows(table, neighbours), lower, upper


def bounded_table(x: Any, bounds: tuple[ArrayLike, ArrayLike]) -> tuple[Array, Array, Array]:
    """The table as numbers, and the bounds of its columns."""
    if issparse(x):
        raise InvalidParameter("x", type(x).__name__, "must be a table with all its cells: x.toarray().")
    width = declared_width(bounds)
    if width is None and is_list(x):
        width = list_width(x, "x")
    table = read_compared(lambda x: np.asarray(number_table(x, width, name="x"), np.float64), x)
    try:
        limits = [np.asarray(end, np.float64) for end in bounds]
    except (TypeError, ValueError):
        limits = []
    if len(limits) != 2 or any(end.shape not in ((), (table.shape[1],)) for end in limits):
        raise InvalidParameter("bounds", bounds, "must be (lower, upper): numbers, or one for each column.")
    lower, upper = (np.broadcast_to(end, (table.shape[1],)) for end in limits)
    for low, high in zip(lower.tolist(), upper.tolist(), strict=True):
        Interval(low, high)
    return table, lower, upper


def vector_rows(x: Any, neighbours: Neighbours) -> tuple[PrivateRows, bool]:
    """Return private rows of a vector for each record, and whether it is a single number.

    Items of a list are numbers, or vectors of :func:`~discreet.linear.inputs.list_width`; others are missing.
    """
    width = list_width(x, "x") or 1 if is_list(x) else None
    array = read_compared(lambda x: _vectors(x, width), x)
    return PrivateRows(array[:, None] if array.ndim == 1 else array, neighbours), array.ndim == 1


def _vectors(x: Any, width: int | None) -> NDArray[Any]:
    array: NDArray[Any]
    if width is not None:
        table = floats_of(list_table(x, width))
        array = table[:, 0] if table.shape[1] == 1 else table
    else:
        array = x if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray) else cells_of(x)
        array = floats_of(array) if array.dtype.kind == "O" and array is not x else array
    if array.dtype.kind not in "fiub":
        raise InvalidParameter("x.dtype", str(array.dtype), "must be real numbers, for instance float64.")
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        requirement = "must be (records,) for numbers or (records, coordinates) for vectors."
        raise InvalidParameter("x.ndim" if array.ndim else "x", array.ndim, requirement)
    return array


def _vector(x: Any) -> Array:
    """One number for each record; NaN where it is none."""
    values = np.asarray(numbers(x, "x"), np.float64)
    return np.where(np.isfinite(_one_for_each_record(values)), values, np.nan)


def _one_for_each_record(values: NDArray[Any]) -> NDArray[Any]:
    """Return ``values`` if a record has just one of them: with more it would count for more than is paid for."""
    if values.ndim != 1:
        raise InvalidParameter("x.ndim", values.ndim, "must have one value for each record.")
    return values


def _ones(x: Any) -> Array:
    """1 for each record that counts: all but what is False; where the type says truths, only what is True.

    What a record is decides about itself alone: a None among truths does not count the others another way.
    """
    array = np.fromiter(x, object, len(x)) if isinstance(x, list | tuple) else cells_of(x)
    if array.ndim == 0:
        raise InvalidParameter("x", type(x).__name__, "must have a row or a value for each record.")
    if array.dtype.kind == "b":
        return _one_for_each_record(array).astype(np.float64)
    if array.dtype.kind != "O" or array.ndim > 1:
        return np.ones(len(array))
    kind = str(getattr(x, "dtype", getattr(x, "type", ""))).lower()
    silent = kind not in ("boolean", "bool", "bool[pyarrow]")  # else what is missing is not true
    return np.array([bool(one) if isinstance(one, bool | np.bool_) else silent for one in array], np.float64)
