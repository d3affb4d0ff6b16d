"""Kinds of columns, and whose the rows are: what is publicly known of each column of a table, as frozen values.

Nothing here has to be believed for the guarantee: no function of this module is given a cell. Whatever the fields of
a column hold, the encoder applies them to each cell by itself and the gate moves every row into its declared limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from discreet.errors import InvalidParameter, one_of, real, whole

Missing = Literal["centre", "flag"]
Value = str | int | float | bool

SHAPES = ("free", "increasing", "decreasing", "linear")
"""What the curve of a number may have to be."""

MOST_ROWS_OF_A_PERSON = 256
"""The largest number that ``Unit.rows`` may be: more rows of a person do not count (``gate/people.py``)."""

EPOCH = date(1970, 1, 1).toordinal()
ISO = "%Y-%m-%d"

_FARTHEST = 1e150  # bounds are kept where their differences and squares are ordinary numbers


@dataclass(frozen=True)
class Numeric:
    """A number between ``lower`` and ``upper``. Without them the bounds are learnt privately.

    A missing value counts as the noisy mean that a fit measures (in encoders without a model, and in studies of
    several parties, as the middle of the bounds); ``missing="flag"`` adds a column that says so. ``missing_values``
    are numbers that stand for a missing one, such as 999. ``decimal`` and ``thousands`` are how texts are written:
    "1.234,5" has the decimal "," and the thousands ".". ``shape`` is what the curve of an additive model has to be:
    ``"increasing"``, ``"decreasing"`` or ``"linear"``.
    """

    lower: float | None = None
    upper: float | None = None
    missing: Missing = "centre"
    decimal: str = "."
    thousands: str = ""
    missing_values: tuple[float, ...] = ()
    shape: str = "free"

    def __post_init__(self) -> None:
        one_of("missing", self.missing, ("centre", "flag"))
        one_of("shape", self.shape, SHAPES)
        _check_separators(self.decimal, self.thousands)
        object.__setattr__(self, "missing_values", _missing_values(self.missing_values))
        if self.lower is None and self.upper is None:
            return
        lower, upper = ordered_bounds(self.lower, self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def declared(self) -> bool:
        """True when the bounds are known."""
        return self.lower is not None

    @property
    def plain(self) -> bool:
        """True where numbers are written and read as everywhere."""
        return (self.decimal, self.thousands, self.missing_values) == (".", "", ())

    def to_dict(self) -> dict[str, Any]:
        """The column as in ``schema.toml``."""
        known: dict[str, Any] = {"bounds": [self.lower, self.upper]} if self.declared else {"learn": True}
        return known | _unusual(self, Numeric(), *_NUMBERS[:-1])


@dataclass(frozen=True)
class Date(Numeric):
    """A day between two, given as dates or as texts such as "1930-01-31". A model counts the days since 1970.

    ``format`` is how texts in the table are written, in the letters of :meth:`datetime.datetime.strptime`.

    >>> Date("1969-12-31", "1970-01-02").lower
    -1.0
    """

    format: str = ISO

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", _days("lower", self.lower))
        object.__setattr__(self, "upper", _days("upper", self.upper))
        super().__post_init__()
        if not isinstance(self.format, str) or "%" not in self.format:
            raise InvalidParameter("format", self.format, "must be like '%d.%m.%Y'.")
        if self.decimal != "." or self.thousands or self.missing_values:
            raise InvalidParameter("columns", "a date", "has no decimal, thousands or missing_values.")

    @property
    def plain(self) -> bool:
        """Dates are not read as numbers."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """The column as in ``schema.toml``."""
        ends = [_day(end).isoformat() for end in (self.lower, self.upper)]
        return (
            {"bounds": ends}
            | _unusual(self, Numeric(), "missing", "shape")
            | _unusual(self, Date(0, 1), "format")
        )


@dataclass(frozen=True)
class Category:
    """One of the ``values``. Anything else, and what is missing, is none of them.

    ``strip`` forgives blanks around a text, ``casefold`` capital letters. ``reference`` is the value that summaries
    compare the others with; by default the most frequent one.
    """

    values: tuple[Value, ...]
    strip: bool = False
    casefold: bool = False
    reference: Value | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", distinct("categories", self.values))
        _check_forgiving(self)
        same = len({self.same(value) for value in self.values}) < len(self.values)
        if same:
            raise InvalidParameter("categories", self.values, "are not distinct with strip and casefold.")
        if self.reference is not None and self.reference not in self.values:
            raise InvalidParameter("reference", self.reference, f"must be one of {list(self.values)}.")

    def same(self, value: Any) -> Any:
        """What is left of a cell when blanks and capitals are forgiven."""
        return _forgiven(value, self.strip, self.casefold)

    def to_dict(self) -> dict[str, Any]:
        """The column as in ``schema.toml``."""
        usual = Category(self.values)
        return {"categories": list(self.values)} | _unusual(self, usual, "strip", "casefold", "reference")


@dataclass(frozen=True)
class Flag:
    """True where the value is ``yes``; anything else, and what is missing, is false.

    ``strip`` forgives blanks around a text, ``casefold`` capital letters.
    """

    yes: Value = True
    strip: bool = False
    casefold: bool = False

    def __post_init__(self) -> None:
        distinct("flag", (self.yes,))
        _check_forgiving(self)

    @property
    def values(self) -> tuple[Value, ...]:
        """The one value that counts."""
        return (self.yes,)

    def same(self, value: Any) -> Any:
        """What is left of a cell when blanks and capitals are forgiven."""
        return _forgiven(value, self.strip, self.casefold)

    def to_dict(self) -> dict[str, Any]:
        """The column as in ``schema.toml``."""
        return {"flag": self.yes} | _unusual(self, Flag(), "strip", "casefold")


Column = Numeric | Category | Flag


@dataclass(frozen=True)
class Unit:
    """Whom the guarantee is for: a person, with all rows that have the same value in ``column``.

    From ``rows`` rows on a person counts in full; with fewer, each row weighs 1 / ``rows``. None works that out from
    the records, privately, out of the same budget. The column is no feature.
    """

    column: str
    rows: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidParameter("unit.column", self.column, "must be the name of a column.")
        if self.rows is not None:
            remedy = (
                "It is the number of rows from which on a person counts in full; leave it out to learn it."
            )
            rows = whole("unit.rows", self.rows, at_least=1, at_most=MOST_ROWS_OF_A_PERSON, remedy=remedy)
            object.__setattr__(self, "rows", rows)

    def to_dict(self) -> dict[str, Any]:
        """The unit as in ``schema.toml``."""
        return {"column": self.column} | ({} if self.rows is None else {"rows": self.rows})


def unit_of(value: object) -> Unit | None:
    """A unit as users give it: the name of a column, a dictionary, or itself."""
    if value is None or isinstance(value, Unit):
        return value
    if isinstance(value, Mapping):
        _only("unit", value, ("column", "rows"))
        return Unit(**{"column": "", **value})
    return Unit(value)  # type: ignore[arg-type]


def ordered_bounds(lower: object, upper: object) -> tuple[float, float]:
    """Two declared numbers, the first below the second."""
    low = real("lower", lower, at_least=-_FARTHEST, at_most=_FARTHEST)
    return low, real("upper", upper, above=low, at_most=_FARTHEST, remedy="It must exceed the lower bound.")


def distinct(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Declared values as a tuple of plain texts, numbers and booleans, no two of them equal."""
    plain = () if isinstance(values, str) or not isinstance(values, Iterable) else tuple(map(_plain, values))
    if not plain or not all(isinstance(value, str | int | float) and value == value for value in plain):
        requirement = "must be a list of at least one text, number or boolean."
        raise InvalidParameter(name, values, requirement)
    if len(set(plain)) < len(plain):
        raise InvalidParameter(name, values, "must not hold a value twice (1, 1.0 and true are equal).")
    return plain


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _only(name: str, data: object, keys: tuple[str, ...] | None) -> None:
    if not isinstance(data, Mapping):
        raise InvalidParameter(name, data, "must be a table (a dictionary).")
    unknown = [] if keys is None else [key for key in data if key not in keys]
    if unknown:
        raise InvalidParameter(name, unknown, f"unknown keys; known are {', '.join(keys or ())}.")


_NUMBERS = ("missing", "decimal", "thousands", "missing_values", "shape", "format")
_LABELS = ("strip", "casefold")


def _check_separators(decimal: object, thousands: object) -> None:
    one_of("decimal", decimal, (".", ","))
    one_of("thousands", thousands, ("", ",", ".", " ", "'", "_"))
    if decimal == thousands:
        raise InvalidParameter("thousands", thousands, "must not be the decimal separator, too.")


def _missing_values(values: object) -> tuple[float, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidParameter("missing_values", values, "must be a list of numbers, such as [999].")
    remedy = "Texts that are no numbers count as missing anyway."
    return tuple(real("missing_values", _plain(value), remedy=remedy) for value in values)


def _check_forgiving(column: Category | Flag) -> None:
    for name in _LABELS:
        if not isinstance(getattr(column, name), bool):
            raise InvalidParameter(name, getattr(column, name), "must be true or false.")


def _forgiven(value: Any, strip: bool, casefold: bool) -> Any:
    if not isinstance(value, str):
        return value
    value = value.strip() if strip else value
    return value.casefold() if casefold else value


def _unusual(column: Any, usual: Any, *names: str) -> dict[str, Any]:
    """What differs from the defaults, as plain data: old schemas are written as they always were."""
    told = {name: getattr(column, name) for name in names if getattr(column, name) != getattr(usual, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def _days(name: str, value: Any) -> float:
    """A day as the number of days since 1970."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = date.fromisoformat(value)
    if isinstance(value, date):
        return float(value.toordinal() - EPOCH)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise InvalidParameter(name, value, "must be a date such as '1930-01-31'.")


def _day(days: float | None) -> date:
    return date.fromordinal(int(days or 0) + EPOCH)
