"""A column as an array of cells, of whose type no cell decides: one odd cell never changes what the others are.

numpy makes texts of a list that holds one text, floats of integers beside one number beyond 64 bits, and frames make
floats of integers beside one missing cell. Then large ids of different people are the same float, because of a record
that has nothing to do with them. Here a column of integers stays one of integers.

>>> column_to_array([2**60 + 1, None]).tolist() == [2**60 + 1, None]
True
>>> column_to_array(["7", 7]).tolist()
['7', 7]
"""

from __future__ import annotations

import warnings
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIKE = (str, bytes, memoryview, array)  # sequences of one type, which no cell decides


def column_to_array(values: Any) -> NDArray[Any]:
    """A column of a frame, or a list, as an array.

    Guarantee: what a cell becomes depends on the type of the column and on the cell. A list holds cells of any type.
    It is a table if most of its items are rows of two cells or more (:func:`list_width`); so is a frame.
    """
    if hasattr(values, "columns") and hasattr(values, "to_numpy"):
        return _table(_columns(values), values.shape)
    if isinstance(values, np.ma.MaskedArray):
        return np.asarray(unmasked(values))
    if hasattr(values, "dtype") or hasattr(values, "__array__") or hasattr(values, "to_numpy"):
        return _column(values)
    if not isinstance(values, Sequence) or isinstance(values, _ALIKE):
        return np.asarray(values)
    items = list(values)
    width = list_width(items)
    return _each(list(map(_only_cell, items))) if width is None or width < 2 else list_table(items, width)


def list_width(items: Iterable[Any], declared: int | None = None) -> int | None:
    """Return how many cells most of the items of a list have; None if most of them are no rows.

    The shape of a list follows from its items, which are private. One record changes the most frequent length only
    where two lengths are equally frequent: then the ``declared`` one counts, or the smaller. None is no item.
    """
    lengths = Counter(len(item) if _is_row(item) else -1 for item in items if item is not None)
    if not lengths:
        return declared
    most = max(lengths.values())
    frequent = {length for length, count in lengths.items() if count == most}
    width = declared if declared in frequent else min(frequent)
    return None if width == -1 else width


def list_table(rows: Sequence[Any], width: int) -> NDArray[Any]:
    """A list of rows as an array of cells; the cells of an item that is no row of ``width`` cells are None.

    Guarantee: each row of the result depends on the same item of the list only. No item raises.
    """
    table = np.full((len(rows), width), None, object)
    for place, row in enumerate(rows):
        cells = list(row) if _is_row(row) else [row] if width == 1 else ()
        if len(cells) == width:
            for column, cell in enumerate(cells):
                table[place, column] = cell
    return table


def unmasked(values: Any) -> Any:
    """A masked array as an array whose masked cells are missing: NaN, NaT, or None where its type has neither.

    Anything else comes back as it is. Integers become objects whether or not a cell is masked.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return values
    mask, data = np.ma.getmaskarray(values), np.asarray(values.data)
    if data.dtype.kind in "fcmM":
        missing = np.nan if data.dtype.kind in "fc" else np.array("NaT", data.dtype)
        return np.where(mask, missing, data).astype(data.dtype)
    cells = data.astype(object)
    cells[mask] = None
    return cells


def list_cells(column: Any) -> list[Any]:
    """The cells of a column of pyarrow, polars or pandas as Python objects; None where Python has no value.

    A date after the year 9999 is such a cell. A text that is not UTF-8 keeps its bytes, as surrogates: pyarrow would
    raise, and quote it.

    Guarantee: a cell becomes the same whatever the others are.
    """
    names = ("to_pylist", "to_list", "tolist")
    with suppress(Exception):
        found: list[Any] = next(getattr(column, name) for name in names if hasattr(column, name))()
        return found
    cells = getattr(column, "iloc", column)
    return [_cell_alone(cells, place) for place in range(len(column))]


def _cell_alone(cells: Any, place: int) -> Any:
    cell: Any = None
    with suppress(Exception):
        cell = cells[place]
        return cell.as_py() if hasattr(cell, "as_py") else cell
    with suppress(Exception):
        return cell.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
    return None


def _is_row(item: Any) -> bool:
    return isinstance(item, list | tuple) or (isinstance(item, np.ndarray) and item.ndim > 0)


def _only_cell(item: Any) -> Any:
    """The cell of a row that has one; anything else as it is."""
    return item[0] if _is_row(item) and len(item) == 1 else item


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
        except OverflowError:  # an integer beyond all floats
            return float("inf") if cell > 0 else float("-inf")
    return float("nan")


def _table(columns: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Columns side by side: of one type of numpy's own if all are declared as such, else cells of any type."""
    kinds = {getattr(column, "dtype", None) for column in columns}
    if len(kinds) == 1 and isinstance(next(iter(kinds)), np.dtype):
        return np.stack([column_to_array(column) for column in columns], axis=1)
    parts = [column_to_array(column).astype(object) for column in columns]
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
        return _each(list_cells(values))
    if kind.startswith(("date", "timestamp")) and hasattr(getattr(values, "dtype", None), "pyarrow_dtype"):
        values = values.array.__arrow_array__()  # numbers in pyarrow, objects of Python in pandas
    if kind.startswith(("str", "cat", "enum")) and hasattr(values, "to_arrow"):
        with suppress(ImportError):  # polars panics at texts that are not UTF-8
            values = values.to_arrow()
            return _column(values)
    with suppress(Exception):  # a text that is not UTF-8, a date that Python does not have
        return _as_numpy_has_it(values, kind)
    return _each(list_cells(values))


def _as_numpy_has_it(values: Any, kind: str) -> NDArray[Any]:
    if kind == "category":
        return np.asarray(values.astype(object))
    own = getattr(getattr(values, "dtype", None), "numpy_dtype", None)
    if getattr(own, "kind", "") == "f":  # older versions of pandas make objects of floats beside a gap
        return np.asarray(values.to_numpy(dtype=own, na_value=np.nan))
    asked = hasattr(values, "to_numpy") and not hasattr(values, "buffers")
    found = np.asarray(values.to_numpy() if asked else values)
    return _each(list_cells(values)) if found.dtype.kind == "f" and "int" in kind else found


def _each(values: Sequence[Any]) -> NDArray[Any]:
    cells = np.empty(len(values), object)
    for place, value in enumerate(values):
        cells[place] = value
    return cells
