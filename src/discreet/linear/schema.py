"""What is publicly known of a table: :class:`Schema`, in Python or as ``schema.toml``.

A schema is written from knowledge, never from the records: the bounds of a number, the list of a category's
values. Values outside of it are clamped, and unknown categories count as none, without a word, because any message
would tell something about one record. Nothing here has to be believed for the guarantee: a schema is read from a
public file and holds no record, and the encoder applies whatever it declares to each row by itself.

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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

from discreet.errors import InvalidParameter
from discreet.files import parse_toml
from discreet.linear.column_kinds import (
    _LABELS,
    _NUMBERS,
    Category,
    Column,
    Date,
    Flag,
    Numeric,
    Unit,
    _only,
    distinct,
    unit_of,
)

TASKS = ("classification", "regression", "counts")
"""What a model is for, in the words of the command line and of model.json."""


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
