"""The coefficients of a model by name, so that they can be read: :class:`Coefficients`.

A one-hot group and an intercept say the same twice: adding 1 to all values of a category and taking it from the
intercept changes no prediction, and noise decides which of them a fit has found. So the effects of a category's
values are shifted to a mean of 0, and the shift goes into the intercept: the same model for every record with a
known value. The mean is over the records, by the noisy shares that the fit has released, if it has: a plain mean
would carry the noise of values that hardly anybody has into all others. Values whose share noise alone could explain
are told to be ``rare``, and are never among the largest effects.

>>> table = Coefficients((Coefficient("age", (0.04,), "per unit of age", (0.0, 2.4)),), ("score",), (-2.0,))
>>> print(table)
                              score  unit
intercept                        -2
age                            0.04  per unit of age
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.charts import Picture, bar_chart, html_table
from discreet.errors import InvalidParameter
from discreet.linear.column_kinds import Category, Date, Flag, Numeric
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.schema import Schema

Array = NDArray[np.float64]

_NAME, _LONGEST = 26, 60  # letters of a name, at least and at most


class Coefficient(NamedTuple):
    """One effect: a value for each score, in a unit; and how far it moves the first score, from end to end.

    ``rare`` is True of a value of a category that so few records have that noise hides them.
    """

    name: str
    values: tuple[float, ...]
    unit: str
    ends: tuple[float, float]
    rare: bool = False

    @property
    def effect(self) -> float:
        """What the score changes by over the range of the column; of several scores the largest change."""
        return max(self.values, key=abs) * (self.ends[1] - self.ends[0])


@dataclass(frozen=True)
class Coefficients:
    """Coefficients by name; ``outputs`` are the scores that they add to, ``intercept`` has one number for each."""

    rows: tuple[Coefficient, ...]
    outputs: tuple[str, ...]
    intercept: tuple[float, ...]

    def __getitem__(self, name: str) -> float | tuple[float, ...]:
        """The coefficient of this name: a number, or one for each score."""
        known = {"intercept": self.intercept} | {row.name: row.values for row in self.rows}
        if name not in known:
            raise InvalidParameter("name", name, f"must be one of {', '.join(known)}.")
        return known[name][0] if len(known[name]) == 1 else known[name]

    def largest(self, count: int = 10) -> list[Coefficient]:
        """The columns that move the score most, from one end of their range to the other; no rare values."""
        known = [row for row in self.rows if not row.rare and abs(row.effect) > 1e-12]
        return sorted(known, key=lambda row: -abs(row.effect))[:count]

    def plot(self, count: int = 10) -> Picture:
        """The largest effects as bars: what the score changes by, from one end of a column to the other."""
        bars = [(row.name, row.effect) for row in self.largest(count)]
        return Picture(bar_chart("The largest effects", bars))

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain data, which makes a frame: ``pandas.DataFrame(model.coefficients().to_dict())``."""
        first = {"name": "intercept", **dict(zip(self.outputs, self.intercept, strict=True)), "unit": ""}
        rest = [
            {"name": row.name, **dict(zip(self.outputs, row.values, strict=True)), "unit": row.unit}
            for row in self.rows
        ]
        return [first, *rest]

    def __str__(self) -> str:
        widths = [max(9, len(name)) for name in self.outputs]
        heads = " ".join(f"{name:>{width}}" for name, width in zip(self.outputs, widths, strict=True))
        longest = min(max((len(row.name) for row in self.rows), default=0), _LONGEST) + 1
        size = max(longest, _NAME)
        lines = [f"{'':<{size}}{heads}  unit"]
        for name, values, unit in [("intercept", self.intercept, ""), *(row[:3] for row in self.rows)]:
            cells = " ".join(f"{value:>{width}.4g}" for value, width in zip(values, widths, strict=True))
            shown = name if len(name) < size else f"{name[: size - 4]}..."
            lines.append(f"{shown:<{size}}{cells}  {unit}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (row["name"], *(f"{row[name]:.4g}" for name in self.outputs), row["unit"])
            for row in self.to_dict()
        ]
        return html_table(("", *self.outputs, "unit"), rows)


def named_coefficients(
    schema: Schema,
    coefficients: Array,
    intercept: Array,
    ends: Array,
    outputs: Sequence[str],
    shares: Mapping[str, float],
) -> Coefficients:
    """Coefficients of encoded columns in the table's units, one column for each output, with ``ends`` of each.

    ``shares`` are those of :attr:`discreet.linear.fitted_model.FittedModel.shares`; without any, values count alike.
    """
    encoding = SchemaEncoding(schema)
    values, constant = np.array(coefficients, np.float64), np.array(intercept, np.float64)
    start, names = len(encoding.numerics), encoding.names or ()
    for labels in encoding.groups.values():
        own = slice(start, start + len(labels))
        if len(labels) > 1:
            held = [shares.get(name, 0.0) for name in names[own]]
            shift = np.average(values[own], axis=0, weights=held if sum(held) > 0 else None)
            values[own] -= shift
            constant += shift
        start += len(labels)
    owners = [*encoding.numerics, *(name for name, labels in encoding.groups.items() for _ in labels)]
    rows = tuple(
        Coefficient(
            name,
            tuple(row.tolist()),
            _unit(schema, owner, name, shares),
            (float(end[0]), float(end[1])),
            shares.get(name) == 0.0,
        )
        for name, owner, row, end in zip(names, owners, values, ends, strict=True)
    )
    return Coefficients(rows, tuple(outputs), tuple(constant.tolist()))


def _unit(schema: Schema, owner: str, name: str, shares: Mapping[str, float]) -> str:
    column = schema.features[owner]
    if shares.get(name) == 0.0:
        return "too rare: noise hides it"
    if isinstance(column, Date):
        return "per day"
    if isinstance(column, Numeric):
        return f"per unit of {owner}" if name == owner else "where it is missing"
    if isinstance(column, Flag):
        return f"where it is {column.yes!r}"
    if isinstance(column, Category):
        return "against the average record" if shares else "against the mean of the values"
    return ""
