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
>>> schema.features["age"], schema.target
(Numeric(lower=17.0, upper=90.0, missing='centre'), 'income')
>>> Schema.from_dict(schema.to_dict()) == schema
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from discreet.documents import parsed_toml
from discreet.errors import InvalidParameter, one_of, real

Missing = Literal["centre", "flag"]
Value = str | int | float | bool

_FARTHEST = 1e150  # bounds are kept where their differences and squares are ordinary numbers


@dataclass(frozen=True)
class Numeric:
    """A number between ``lower`` and ``upper``. Without them the bounds are learnt privately.

    A missing value counts as the middle; ``missing="flag"`` adds a column that says so.
    """

    lower: float | None = None
    upper: float | None = None
    missing: Missing = "centre"

    def __post_init__(self) -> None:
        one_of("missing", self.missing, ("centre", "flag"))
        if self.lower is None and self.upper is None:
            return
        lower, upper = ordered_bounds(self.lower, self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def declared(self) -> bool:
        """True when the bounds are known."""
        return self.lower is not None

    def to_dict(self) -> dict[str, Any]:
        """The column as in ``schema.toml``."""
        known: dict[str, Any] = {"bounds": [self.lower, self.upper]} if self.declared else {"learn": True}
        return known | ({} if self.missing == "centre" else {"missing": self.missing})


@dataclass(frozen=True)
class Category:
    """One of the ``values``. Anything else, and what is missing, is none of them."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", distinct("categories", self.values))

    def to_dict(self) -> dict[str, Any]:
        """The column as in ``schema.toml``."""
        return {"categories": list(self.values)}


@dataclass(frozen=True)
class Flag:
    """True where the value is ``yes``; anything else, and what is missing, is false."""

    yes: Value = True

    def __post_init__(self) -> None:
        distinct("flag", (self.yes,))

    def to_dict(self) -> dict[str, Any]:
        """The column as in ``schema.toml``."""
        return {"flag": self.yes}


Column = Numeric | Category | Flag


@dataclass(frozen=True)
class Schema:
    """The columns of a table by name, in their order. ``target`` names the one that is to be predicted."""

    columns: Mapping[str, Column]
    target: str | None = None
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
        features = {name: column for name, column in self.columns.items() if name != self.target}
        if not features:
            raise InvalidParameter("columns", list(self.columns), "must declare at least one feature.")
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "features", features)

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
        return Schema({**self.columns, **found}, self.target)

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
        return cls.from_dict(parsed_toml(text, "schema"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """A schema from plain data, as TOML or JSON give it. Unknown keys are refused."""
        _only("schema", data, ("columns", "target"))
        _only("columns", data.get("columns"), None)
        columns = {name: _column(name, declared) for name, declared in data["columns"].items()}
        return cls(columns, data.get("target"))

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain data, as in ``schema.toml``."""
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        return {"columns": columns} | ({} if self.target is None else {"target": self.target})


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


def _only(name: str, data: object, keys: tuple[str, ...] | None) -> None:
    if not isinstance(data, Mapping):
        raise InvalidParameter(name, data, "must be a table (a dictionary).")
    unknown = [] if keys is None else [key for key in data if key not in keys]
    if unknown:
        raise InvalidParameter(name, unknown, f"unknown keys; known are {', '.join(keys or ())}.")


def _column(name: str, data: Any) -> Column:
    """One entry of ``[columns]``."""
    where = f"columns.{name}"
    if isinstance(data, Column):
        return data
    _only(where, data, ("bounds", "learn", "missing", "categories", "flag"))
    kinds = [key for key in ("bounds", "learn", "categories", "flag") if key in data]
    if len(kinds) != 1 or ("missing" in data and kinds[0] not in ("bounds", "learn")):
        requirement = "must have one of bounds, learn, categories, flag; missing goes with bounds and learn."
        raise InvalidParameter(where, dict(data), requirement)
    kind, value = kinds[0], data[kinds[0]]
    if kind == "categories":
        return Category(distinct(f"{where}.categories", value))
    if kind == "flag":
        return Flag(distinct(f"{where}.flag", (value,))[0])
    missing = data.get("missing", "centre")
    if kind == "learn":
        if value is not True:
            raise InvalidParameter(f"{where}.learn", value, "must be true; or declare bounds.")
        return Numeric(missing=missing)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidParameter(f"{where}.bounds", value, "must be [lower, upper].")
    lower, upper = ordered_bounds(value[0], value[1], where)
    return Numeric(lower, upper, missing)
