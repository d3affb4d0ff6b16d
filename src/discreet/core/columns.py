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

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROWS = (list, tuple, np.ndarray)


def cells_of(values: Any) -> NDArray[Any]:
    """A column of a frame, or a list, as an array.

    Guarantee: what a cell becomes depends on the type of the column and on the cell. A list holds cells of any type;
    one of nothing but rows is a table.
    """
    if hasattr(values, "dtype") or hasattr(values, "__array__") or hasattr(values, "to_numpy"):
        return _column(values)
    if not isinstance(values, list | tuple) or (values and all(isinstance(row, _ROWS) for row in values)):
        return np.asarray(values)
    return _each(values)


def _column(values: Any) -> NDArray[Any]:
    """pyarrow's own arrays are asked by numpy: their to_numpy() refuses missing cells."""
    array = np.asarray(
        values if hasattr(values, "buffers") or not hasattr(values, "to_numpy") else values.to_numpy()
    )
    kind = str(getattr(values, "dtype", getattr(values, "type", ""))).lower()
    if array.dtype.kind != "f" or "int" not in kind:
        return array
    return _each(values.to_pylist() if hasattr(values, "to_pylist") else values.to_list())


def _each(values: Sequence[Any]) -> NDArray[Any]:
    cells = np.empty(len(values), object)
    for place, value in enumerate(values):
        cells[place] = value
    return cells
