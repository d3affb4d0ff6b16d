"""Tables as people have them (frames, arrays, lists, sparse matrices) as numbers, without ever complaining of a cell.

What is refused is refused by shape, type or column name. A cell that is not the number it should be becomes NaN,
for which every encoder has a public rule. Frames of pandas, polars and pyarrow are recognised by what they can do;
none of them is imported.

>>> numbers(np.array([3, "4.5", None, "many"], object))
array([3. , 4.5, nan, nan])
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from discreet.core import columns
from discreet.errors import InvalidParameter
from discreet.linear.declarations import refuse_labels, shape_error, type_error
from discreet.linear.on_demand import OnDemand, sane_csr

Floats = NDArray[np.floating[Any]]


def is_frame(X: Any) -> bool:
    """True for a table with named columns: pandas, polars, pyarrow."""
    return not isinstance(X, np.ndarray) and not issparse(X) and hasattr(X, "__getitem__") and _has_names(X)


def names_of(frame: Any) -> list[Any]:
    """The names of a frame's columns, of whatever type."""
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def column_names(X: Any) -> tuple[str, ...] | None:
    """The names of a frame's columns if they are texts, all different; else None."""
    if not is_frame(X):
        return None
    names = tuple(names_of(X))
    if not all(isinstance(name, str) for name in names):
        return None
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidParameter("X.columns", twice, "every column must have a name of its own.")
    return names


def column_values(X: Any, name: str) -> NDArray[Any]:
    """One column of a frame as a numpy array of whatever type."""
    return cells_of(X[name])


def lazy_column(X: Any, name: str) -> Any:
    """One column of a frame as an array, or :class:`OnDemand` where an array would be a copy of it."""
    column = X[name]
    if isinstance(column, OnDemand):
        return column
    if hasattr(column, "num_chunks") or hasattr(column, "n_chunks"):  # pyarrow, polars
        return OnDemand((len(column),), lambda rows: cells_of(_rows_of(column, rows)))
    return cells_of(column)


def _rows_of(column: Any, rows: Any) -> Any:
    if not isinstance(rows, slice):
        return column.take(rows) if hasattr(column, "take") else column.gather(rows)
    first, last, _ = rows.indices(len(column))
    return column.slice(first, max(0, last - first))


def without_column(X: Any, name: str) -> Any:
    """A frame without one of its columns; a frame that has no such column as it is."""
    if name not in (column_names(X) or ()):
        return X
    if hasattr(X, "drop_columns"):  # pyarrow
        return X.drop_columns([name])
    return X.drop(columns=[name]) if hasattr(X, "iloc") else X.drop(name)


def numbers(values: Any, name: str = "X") -> Floats:
    """The values as floating-point numbers: NaN where a cell is not a number.

    float32 and float64 arrays come back as they are, not copied.
    """
    array = _array_of(values)
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    if array.dtype.kind in "OUST":
        return columns.floats_of(array)
    raise type_error(name, array.dtype)


def codes(values: Any, known: tuple[Any, ...]) -> NDArray[np.int64]:
    """For each value its place among the ``known`` ones, or -1.

    >>> codes(np.array(["b", "a", None, "c"], object), ("a", "b")).tolist()
    [1, 0, -1, -1]
    """
    array = _array_of(values)
    found = np.full(array.shape, -1, np.int64)
    if array.dtype.kind in "fiub":
        for place, value in enumerate(known):
            if not isinstance(value, str):
                np.copyto(found, place, where=array == _as_compared(value, array.dtype.kind))
        return found
    places = {value: place for place, value in enumerate(known)}
    places |= {value.encode(): place for value, place in places.items() if isinstance(value, str)}
    cells = array.ravel().tolist()
    try:
        listed = list(map(places.get, cells, repeat(-1)))
    except Exception:  # a cell that cannot even be compared
        listed = [_place(cell, places) for cell in cells]
    return np.array(listed, np.int64).reshape(array.shape)


def _as_compared(value: Any, kind: str) -> Any:
    """A value as numpy compares it with a column exactly: beside a float it would round integers beyond 2**53.

    Python does not, and it is Python that compares the cells of the same column if one of them is missing.
    """
    if kind in "iu" and isinstance(value, float | np.floating):
        return int(value) if value.is_integer() else None
    return value


def number_table(X: Any, width: int | None = None, name: str = "X") -> Any:
    """The table as a two-dimensional array of floats, as a CSR array if it is sparse, on demand if it is a frame.

    A list has ``width`` columns, as declared, or else those of :func:`list_width`. The cells of a row of another
    length count as missing.
    """
    if issparse(X):
        table = csr_array(X)
        numbers(table.data[:0], name)  # types are refused here
        table = sane_csr(table)
    elif is_frame(X):
        names = names_of(X)
        for column in names:
            cells = X[column]
            kind = str(getattr(cells, "dtype", getattr(cells, "type", ""))).lower()
            refuse_labels(kind, f"{name}[{column!r}].dtype")
        table = _numbers_of_frame(X, names, name) if len(names) else np.empty((len(X), 0))
    elif isinstance(X, OnDemand):
        table = X
    else:
        array = _rectangular(X, width, name)
        table = numbers(array[:0], name)  # types are refused here
        if table.dtype == array.dtype or array.dtype.kind not in "fiub" or array.ndim != 2:
            table = numbers(array, name)
        else:
            table = OnDemand(array.shape, lambda rows: numbers(array[rows], name))
    if table.ndim != 2 or table.shape[1] < 1:
        raise shape_error(name, table.ndim, is_list(X) and not len(X))
    return table


def _numbers_of_frame(X: Any, names: Any, table: str) -> OnDemand:
    columns = {name: lazy_column(X, name) for name in names}

    def read_rows(rows: Any) -> Floats:
        return np.column_stack(
            [numbers(column[rows], f"{table}[{name!r}]") for name, column in columns.items()]
        )

    read_rows(slice(0, 0))  # types are refused here
    return OnDemand((len(next(iter(columns.values()))), len(columns)), read_rows)


def _has_names(X: Any) -> bool:
    return hasattr(X, "column_names") or (hasattr(X, "columns") and hasattr(X, "shape"))


def cells_of(values: Any) -> NDArray[Any]:
    """A column as an array, of whose type and shape no cell decides. An item of a list that is no cell is missing."""
    if isinstance(values, OnDemand):
        return values[:]
    return columns.list_table(values, 1)[:, 0] if is_list(values) else columns.column_to_array(values)


def _array_of(values: Any) -> NDArray[Any]:
    plain = isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray)
    return values if plain else cells_of(values)


def _place(cell: Any, places: dict[Any, int]) -> int:
    """Where a cell is among the known values; -1 for anything that is not even comparable."""
    try:
        return places.get(cell, -1)
    except Exception:
        return -1


def is_list(values: Any) -> bool:
    """True for a sequence of Python objects, whose type and shape would follow from its items."""
    typed = isinstance(values, str | bytes | memoryview) or hasattr(values, "__array__")
    return isinstance(values, Sequence) and not typed


def list_width(rows: Sequence[Any], name: str = "X") -> int | None:
    """The number of cells that more than half of the items of a list have; None if most of them are no rows.

    Guarantee: lists that differ in one item, or by one more, have the same width, or one of them is refused.

    Raises:
        InvalidParameter: If the largest number of items of one length is not at least two above that of all others.
    """
    is_row = [isinstance(row, list | tuple) or (isinstance(row, np.ndarray) and row.ndim > 0) for row in rows]
    lengths = Counter(len(row) if found else None for row, found in zip(rows, is_row, strict=True))
    width, count = lengths.most_common(1)[0] if lengths else (None, 2)
    if 2 * count < len(rows) + 2:
        remedy = (
            "has too few rows of one length: give an array, or declare schema=, or bounds= for each column."
        )
        raise InvalidParameter(name, "a list", remedy)
    return width


def _rectangular(X: Any, width: int | None, name: str) -> NDArray[Any]:
    """An array of what may be a list of rows. The type of a list comes from its cells, hence is not believed."""
    if not is_list(X):
        return np.asanyarray(columns.unmasked(X))
    declared = list_width(X, name) if width is None else width
    if declared is None:
        return np.empty(len(X))
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a masked cell, for instance
        found = np.asarray(X)
        if found.dtype.kind in "fiub" and found.shape[1:] == (declared,):
            return found
    return columns.list_table(X, declared)
