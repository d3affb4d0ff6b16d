"""Cells of a declared column: what number, which category, as the schema says; never a word about a cell.

>>> from discreet.linear.column_kinds import Flag, Numeric
>>> declared_numbers(Numeric(0, 99, decimal=",", thousands="."), np.array(["1.234,5", "7", "1.5", "x"], object))
array([1234.5,    7. ,    nan,    nan])
>>> declared_codes(Flag("yes", strip=True, casefold=True), np.array(["YES ", "no", None], object)).tolist()
[0, -1, -1]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.columns import floats_of
from discreet.linear.column_kinds import EPOCH, ISO, Category, Column, Date, Flag, Numeric, Unit
from discreet.linear.inputs import codes, numbers

Floats = NDArray[np.floating[Any]]
Cells = NDArray[Any]
Read = Callable[[Any], Cells]
"""From the cells of a column, as they are in a file, to an array for estimators."""

_PER_DAY = {
    "D": 1,
    "h": 24,
    "m": 1440,
    "s": 86_400,
    "ms": 86_400_000,
    "us": 86_400_000_000,
    "ns": 86_400 * 10**9,
}
_KEPT = 2**16  # texts whose meaning is remembered


def declared_numbers(column: Numeric, values: NDArray[Any], name: str = "X") -> Floats:
    """The cells of a numeric column as numbers, days for a date; NaN for what is missing or not as declared."""
    if column.plain:
        return numbers(values, name)
    if isinstance(column, Date):
        return _days(column, values)
    if values.dtype.kind in "OUST" and (column.decimal != "." or column.thousands):
        values = _each(values, _number_reader(column))
    found = numbers(values, name)
    coded = np.isin(found, column.missing_values)
    return np.where(coded, np.nan, found) if coded.any() else found


def declared_codes(column: Category | Flag, values: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each cell among the declared values, or -1."""
    if values.dtype.kind in "OUST" and (column.strip or column.casefold):
        values = _each(values, lambda cell: forgiven(column, cell))
    return codes(values, tuple(forgiven(column, value) for value in column.values))


def forgiven(column: Category | Flag, cell: Any) -> Any:
    """What is left of a cell when the blanks and capitals that the column forgives are taken away."""
    if not isinstance(cell, str):
        return cell
    cell = cell.strip() if column.strip else cell
    return cell.casefold() if column.casefold else cell


def _number_reader(column: Numeric) -> Callable[[Any], Any]:
    """From a text to a float as the separators say; other cells stay as they are."""
    thousands, decimal = re.escape(column.thousands), re.escape(column.decimal)
    grouped = rf"\d{{1,3}}(?:{thousands}\d{{3}})+|" if thousands else ""
    number = re.compile(rf"[+-]?(?:{grouped}\d+)?(?:{decimal}\d*)?(?:[eE][+-]?\d+)?")

    def read(cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        text = cell.strip()
        if not number.fullmatch(text):
            return float("nan")
        plain = text.replace(column.thousands, "") if column.thousands else text
        with suppress(ValueError):
            return float(plain.replace(column.decimal, "."))
        return float("nan")

    return read


def _days(column: Date, values: NDArray[Any]) -> Floats:
    """Cells as days since 1970: dates of any type, and texts in the declared format."""
    if values.dtype.kind == "M":
        unit, count = np.datetime_data(values.dtype)
        if unit in _PER_DAY and count == 1:  # numpy's own conversion wraps around at the ends of 64 bits
            days = (values.astype(np.int64) // _PER_DAY[unit]).astype(np.float64)
        else:
            days = values.astype("datetime64[D]").astype(np.float64)
        return np.where(np.isnat(values), np.nan, days)

    def read(cell: Any) -> float:
        if isinstance(cell, int | float | np.number) and not isinstance(cell, bool):
            cell = f"{cell:.0f}"  # such as 20240131 for %Y%m%d
        if isinstance(cell, str):
            cell = _parse_date(cell.strip(), column.format)
        return float(cell.toordinal() - EPOCH) if isinstance(cell, date) else float("nan")

    return _each(values, read, np.float64)


def dates(days: Floats) -> NDArray[np.datetime64]:
    """Days since 1970 as dates of numpy's, which reach as far as 64 bits; NaT for NaN."""
    found = np.full(len(days), np.datetime64("NaT"), "datetime64[D]")
    known = ~np.isnan(days)
    found[known] = days[known].astype(np.int64).astype("datetime64[D]")
    return found


def _parse_date(text: str, form: str) -> date | None:
    with suppress(ValueError):
        return datetime.fromisoformat(text) if form == ISO else datetime.strptime(text, form)
    return None


def _each(values: NDArray[Any], read: Callable[[Any], Any], kind: Any = object) -> NDArray[Any]:
    """A function of every cell; a text is read once. What a cell raises is a missing value."""
    known: dict[str, Any] = {}
    found = np.empty(values.size, kind)
    for place, cell in enumerate(values.ravel().tolist()):
        if isinstance(cell, str) and cell in known:
            found[place] = known[cell]
            continue
        try:
            meaning = read(cell)
        except Exception:  # whatever a cell may raise
            meaning = float("nan")
        if isinstance(cell, str) and len(known) < _KEPT:
            known[cell] = meaning
        found[place] = meaning
    return found.reshape(values.shape)


def reader(column: Column | Unit) -> Read:
    """How to read the cells of such a column."""
    if isinstance(column, Unit):
        return as_they_are
    if isinstance(column, Date):
        return lambda cells: dates(declared_numbers(column, _any_array(cells)))
    if isinstance(column, Numeric):
        return numbers_in if column.plain else as_they_are
    return _Known(column).read


def numbers_in(cells: Sequence[Any]) -> NDArray[np.float64]:
    """The cells as numbers, NaN where one is none.

    >>> numbers_in(["1.5", " 2 ", "", "many", None]).tolist()
    [1.5, 2.0, nan, nan, nan]
    """
    array = _any_array(cells)
    return array.astype(np.float64) if array.dtype.kind in "fiu" else floats_of(array)


def _any_array(cells: Sequence[Any]) -> Cells:
    return cells if isinstance(cells, np.ndarray) else as_they_are(cells)


def as_they_are(cells: Sequence[Any]) -> Cells:
    """The cells in an array, whatever they are."""
    array = np.empty(len(cells), object)
    array[:] = cells
    return array


class _Known(dict[Any, Any]):
    """From a cell to the declared value that it stands for; None if it is none of them."""

    def __init__(self, column: Category | Flag) -> None:
        super().__init__({value: value for value in column.values if isinstance(value, str)})
        self._numbers = {value: value for value in column.values if not isinstance(value, str)}
        self._column, self._texts = column, {forgiven(column, value): value for value in self}

    def read(self, cells: Sequence[Any]) -> Cells:
        """The declared values of the cells.

        >>> _Known(Category(("clerk", 1))).read(["clerk", " clerk", "1.0", "pilot", None]).tolist()
        ['clerk', 'clerk', 1, None, None]
        """
        return as_they_are(list(map(self.__getitem__, cells)))

    def __missing__(self, cell: Any) -> Any:
        text = cell.strip() if isinstance(cell, str) else None
        found = dict.get(self, text, self._texts.get(forgiven(self._column, text)))
        if found is None and self._numbers:
            word = {"true": True, "false": False}.get(text.lower(), text) if text is not None else cell
            found = self._numbers.get(numbers_in([word])[0] if isinstance(word, str) else word)
        if len(self) < 10_000:
            self[cell] = found
        return found
