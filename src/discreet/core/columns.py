"""A column as an array of cells, of whose type no cell decides: one odd cell never changes what the others are.

numpy makes texts of a list that holds one text, floats of integers beside one number beyond 64 bits, and frames make
floats of integers beside one missing cell. Then large ids of different people are the same float, because of a record
that has nothing to do with them. Here a column of integers stays one of integers.

>>> cells_of([2**60 + 1, None]).tolist() == [2**60 + 1, None]
True
>>> cells_of(["7", 7]).tolist()
['7', 7]
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROWS = (list, tuple, np.ndarray)
_ALIKE = (str, bytes, memoryview, array)  # sequences of one type, which no cell decides


def cells_of(values: Any) -> NDArray[Any]:
    """A column of a frame, or a list, as an array.

    Guarantee: what a cell becomes depends on the type of the column and on the cell. A list holds cells of any type;
    one of nothing but rows is a table, and so is a frame.
    """
    if hasattr(values, "columns") and hasattr(values, "to_numpy"):
        return _table(_columns(values), values.shape)
    if hasattr(values, "dtype") or hasattr(values, "__array__") or hasattr(values, "to_numpy"):
        return _column(values)
    if not isinstance(values, Sequence) or isinstance(values, _ALIKE):
        return np.asarray(values)
    values = list(values)
    if not values or not all(isinstance(row, _ROWS) and np.ndim(row) for row in values):
        return _each(values)
    return np.asarray(values, None if all(isinstance(row, np.ndarray) for row in values) else object)


def floats_of(cells: NDArray[Any]) -> NDArray[np.float64]:
    """Each cell as a float, NaN for what is none. No cell is heard: none can raise or warn, or decide of another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if cells.dtype.kind == "O":
            with suppress(Exception):  # whatever a cell may raise
                return cells.astype(np.float64)  # the same float(cell), and NaN for None
        return np.array([_float(cell) for cell in cells.ravel().tolist()], np.float64).reshape(cells.shape)


def _float(cell: Any) -> float:
    with suppress(Exception):
        try:
            return float(cell)
        except OverflowError:  # a whole number beyond all floats
            return float("inf") if cell > 0 else float("-inf")
    return float("nan")


def _table(columns: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Columns side by side: of one type of numpy's own if all are declared as such, else cells of any type."""
    kinds = {getattr(column, "dtype", None) for column in columns}
    if len(kinds) == 1 and isinstance(next(iter(kinds)), np.dtype):
        return np.stack([cells_of(column) for column in columns], axis=1)
    parts = [cells_of(column).astype(object) for column in columns]
    return np.stack(parts, axis=1) if parts else np.empty(shape, object)


def _columns(frame: Any) -> list[Any]:
    """The columns of a frame of polars or pandas, two of which may have the same name."""
    if hasattr(frame, "get_columns"):
        return list(frame.get_columns())
    return [frame.iloc[:, place] for place in range(frame.shape[1])]


def _column(values: Any) -> NDArray[Any]:
    """Categories are what they stand for: numpy takes a missing one for the last, or makes floats of the others.

    pyarrow's own arrays are asked by numpy: their to_numpy() refuses missing cells.
    """
    kind = str(getattr(values, "dtype", getattr(values, "type", ""))).lower()
    if kind.startswith("dictionary"):
        return _each(_list_cells(values))
    if kind == "category":
        return np.asarray(values.astype(object))
    own = getattr(getattr(values, "dtype", None), "numpy_dtype", None)
    if getattr(own, "kind", "") == "f":  # older versions of pandas make objects of floats beside a gap
        return np.asarray(values.to_numpy(dtype=own, na_value=np.nan))
    asked = hasattr(values, "to_numpy") and not hasattr(values, "buffers")
    found = np.asarray(values.to_numpy() if asked else values)
    return _each(_list_cells(values)) if found.dtype.kind == "f" and "int" in kind else found


def _list_cells(values: Any) -> list[Any]:
    """The cells as they are, by whatever name a library has for that."""
    names = ("to_pylist", "to_list", "tolist")
    found: list[Any] = next(getattr(values, name) for name in names if hasattr(values, name))()
    return found


def _each(values: Sequence[Any]) -> NDArray[Any]:
    cells = np.empty(len(values), object)
    for place, value in enumerate(values):
        cells[place] = value
    return cells
