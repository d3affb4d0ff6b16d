"""What is publicly known of a table: :class:`Schema`, in Python or as ``schema.toml``.

A schema is written from knowledge, never from the records: the bounds of a number, the list of a category's
values. Values outside of it are clamped, and unknown categories count as none, without a word, because any message
would tell something about one record.

>>> schema = Schema.from_toml('''
... target = "income"
...
... [columns]
... age    = { bounds = [17, 90] }
... hours  = { bounds = [0, 100], missing = "flag" }  # a column of its own says where it was missing
... gains  = { learn = true }                         # bounds unknown: learnt privately
... job    = { categories = ["clerk", "farmer"] }
... smoker = { flag = "yes" }                         # the value that counts as yes
... income = { categories = ["low", "high"] }
... ''')
>>> schema.features["age"].upper, schema.features["age"].missing, schema.target
(90.0, 'centre', 'income')
>>> Schema.from_dict(schema.to_dict()) == schema
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from discreet.errors import InvalidParameter, one_of, real, whole
from discreet.files import parse_toml

Missing = Literal["centre", "flag"]
Value = str | int | float | bool

SHAPES = ("free", "increasing", "decreasing", "linear")
"""What the curve of a number may have to be."""

TASKS = ("classification", "regression", "counts")
"""What a model is for, in the words of the command line and of model.json."""

MOST_ROWS_OF_A_PERSON = 256
"""Rows of a person that count; of somebody with more, so many are taken, evenly spaced."""

EPOCH = date(1970, 1, 1).toordinal()
ISO = "%Y-%m-%d"

_FARTHEST = 1e150  # bounds are kept where their differences and squares are ordinary numbers


@dataclass(frozen=True)
class Numeric:
    """A number between ``lower`` and ``upper``. Without them the bounds are learnt privately.

    A missing value counts as the middle; ``missing="flag"`` adds a column that says so. ``missing_values`` are
    numbers that stand for a missing one, such as 999. ``decimal`` and ``thousands`` are how texts are written:
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


@dataclass(frozen=True, repr=False)
class Schema:
    """The columns of a table by name, in their order. ``target`` names the one that is to be predicted.

    ``unit`` names the column that says whose a row is: then people are protected, not just rows.
    ``pairs`` are numeric columns that act together, such as longitude and latitude; additive models give them a grid.
    """

    columns: Mapping[str, Column]
    target: str | None = None
    unit: Unit | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    features: dict[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise InvalidParameter("columns", type(self.columns), "must be a dictionary of columns by name.")
        for name, column in self.columns.items():
            if not isinstance(name, str) or not name:
                raise InvalidParameter("columns", name, "the name of a column must be a text.")
            if not isinstance(column, Column):
                requirement = "must be a Numeric, a Category or a Flag."
                raise InvalidParameter(f"columns[{name!r}]", column, requirement)
        if self.target is not None and self.target not in self.columns:
            raise InvalidParameter("target", self.target, "must be the name of a declared column.")
        object.__setattr__(self, "unit", unit_of(self.unit))
        if self.unit is not None and self.unit.column in self.columns:
            requirement = "must not be a feature or the target: it says whose a row is, and nothing else."
            raise InvalidParameter("unit.column", self.unit.column, requirement)
        features = {name: column for name, column in self.columns.items() if name != self.target}
        if not features:
            raise InvalidParameter("columns", list(self.columns), "must declare at least one feature.")
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "pairs", _checked_pairs(self.pairs, features))

    @property
    def undeclared(self) -> tuple[str, ...]:
        """The numeric features whose bounds are not known."""
        return tuple(
            name
            for name, column in self.features.items()
            if isinstance(column, Numeric) and not column.declared
        )

    def with_bounds(self, bounds: Mapping[str, tuple[float, float]]) -> Schema:
        """The same schema with these bounds declared."""
        found = {name: _numeric(self.columns, name, pair) for name, pair in bounds.items()}
        return replace(self, columns={**self.columns, **found})

    def to_read(self) -> dict[str, Column | Unit]:
        """What a fit has to read of a table."""
        return {**self.columns} if self.unit is None else {**self.columns, self.unit.column: self.unit}

    # ---- reading and writing ----

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Schema:
        """Read ``schema.toml``."""
        try:
            return cls.from_toml(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidParameter("schema", str(path), f"cannot be read ({error.strerror}).") from None

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """A schema from the text of a ``schema.toml``."""
        return cls.from_dict(parse_toml(text, "schema"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """A schema from plain data, as TOML or JSON give it. Unknown keys are refused."""
        _only("schema", data, ("columns", "target", "unit", "pairs"))
        _only("columns", data.get("columns"), None)
        columns = {name: _column(name, declared) for name, declared in data["columns"].items()}
        return cls(columns, data.get("target"), unit_of(data.get("unit")), data.get("pairs", ()))

    def __repr__(self) -> str:
        return f"Schema.from_dict({self.to_dict()!r})"

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain data, as in ``schema.toml``."""
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        found: dict[str, Any] = {"columns": columns}
        found |= {} if self.target is None else {"target": self.target}
        found |= {} if self.unit is None else {"unit": self.unit.to_dict()}
        return found | ({"pairs": [list(pair) for pair in self.pairs]} if self.pairs else {})


def schema_of(value: object) -> Schema:
    """A schema as users give it: itself, plain data, or the path of a ``schema.toml``."""
    if isinstance(value, Schema):
        return value
    if isinstance(value, Mapping):
        return Schema.from_dict(value) if "columns" in value else Schema(value)
    if isinstance(value, str | PathLike):
        return Schema.load(value)
    raise InvalidParameter("schema", value, "must be a Schema, a dictionary, or the path of a schema.toml.")


def ordered_bounds(lower: object, upper: object, name: str = "") -> tuple[float, float]:
    """Two declared numbers, the first below the second."""
    prefix = f"{name}." if name else ""
    low = real(f"{prefix}lower", lower, at_least=-_FARTHEST, at_most=_FARTHEST)
    high = real(
        f"{prefix}upper", upper, above=low, at_most=_FARTHEST, remedy="It must exceed the lower bound."
    )
    return low, high


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


def _numeric(columns: Mapping[str, Column], name: str, bounds: tuple[float, float]) -> Numeric:
    column = columns.get(name)
    if not isinstance(column, Numeric):
        raise InvalidParameter("bounds", name, "is not a numeric column of the schema.")
    return replace(column, lower=bounds[0], upper=bounds[1])


def _checked_pairs(pairs: object, features: Mapping[str, Column]) -> tuple[tuple[str, str], ...]:
    """Pairs of names, if each is of two different numeric features, and none is there twice."""
    listed = isinstance(pairs, list | tuple)
    if not listed or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):  # type: ignore[attr-defined]
        raise InvalidParameter(
            "pairs", pairs, "must be a list of pairs, such as [['longitude', 'latitude']]."
        )
    found = tuple((first, second) for first, second in pairs)  # type: ignore[attr-defined]
    for pair in found:
        numeric = [isinstance(name, str) and isinstance(features.get(name), Numeric) for name in pair]
        if not all(numeric) or pair[0] == pair[1]:
            raise InvalidParameter(
                "pairs", list(pair), "must be two different numeric columns, not the target."
            )
    if len({frozenset(pair) for pair in found}) < len(found):
        raise InvalidParameter("pairs", [list(pair) for pair in found], "must not hold a pair twice.")
    return found


def _only(name: str, data: object, keys: tuple[str, ...] | None) -> None:
    if not isinstance(data, Mapping):
        raise InvalidParameter(name, data, "must be a table (a dictionary).")
    unknown = [] if keys is None else [key for key in data if key not in keys]
    if unknown:
        raise InvalidParameter(name, unknown, f"unknown keys; known are {', '.join(keys or ())}.")


_NUMBERS = ("missing", "decimal", "thousands", "missing_values", "shape", "format")
_LABELS = ("strip", "casefold")
_OPTIONS = {
    "bounds": _NUMBERS,
    "learn": _NUMBERS[:-1],
    "categories": (*_LABELS, "reference"),
    "flag": _LABELS,
}
"""What may be said of each kind of column besides."""


def _column(name: str, data: Any) -> Column:
    """One entry of ``[columns]``."""
    where = f"columns.{name}"
    if isinstance(data, Column):
        return data
    _only(where, data, (*_OPTIONS, *_NUMBERS, *_LABELS, "reference"))
    kinds = [key for key in _OPTIONS if key in data]
    if len(kinds) != 1:
        raise InvalidParameter(where, dict(data), "must have one of bounds, learn, categories, flag.")
    kind, value = kinds[0], data[kinds[0]]
    more = {key: item for key, item in data.items() if key != kind}
    if wrong := [key for key in more if key not in _OPTIONS[kind]]:
        fitting = [other for other, options in _OPTIONS.items() if wrong[0] in options]
        requirement = f"{wrong[0]} goes with {' and '.join(fitting)}, not with {kind}."
        raise InvalidParameter(f"{where}.{wrong[0]}", more[wrong[0]], requirement)
    try:
        return _of_kind(where, kind, value, more)
    except InvalidParameter as error:
        if error.name.startswith(where):
            raise
        raise InvalidParameter(f"{where}.{error.name}", error.value, error.requirement) from None


def _of_kind(where: str, kind: str, value: Any, more: dict[str, Any]) -> Column:
    if kind == "categories":
        return Category(distinct(f"{where}.categories", value), **more)
    if kind == "flag":
        return Flag(distinct(f"{where}.flag", (value,))[0], **more)
    if kind == "learn":
        if value is not True:
            raise InvalidParameter(f"{where}.learn", value, "must be true; or declare bounds.")
        return Numeric(**more)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidParameter(f"{where}.bounds", value, "must be [lower, upper].")
    if all(isinstance(end, str | date) for end in value):
        return Date(value[0], value[1], **more)
    if "format" in more:
        raise InvalidParameter(f"{where}.format", more["format"], "is of dates; give the bounds as dates.")
    return Numeric(value[0], value[1], **more)


# ---- how cells are written ----


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
