"""The coefficients of a model by name, so that they can be read: :class:`Coefficients`.

A one-hot group and an intercept say the same twice: adding 1 to all values of a category and taking it from the
intercept changes no prediction, and noise decides which of them a fit has found. So the effects of a category's
values are shifted to sum to 0, and the shift goes into the intercept: the same model for every record with a known
value.

>>> table = Coefficients((Coefficient("age", (0.04,), "per unit of age", (0.0, 2.4)),), ("score",), (-2.0,))
>>> print(table)
                              score  unit
intercept                        -2
age                            0.04  per unit of age
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.charts import Picture, bar_chart, html_table
from discreet.errors import InvalidParameter
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.schema import Category, Date, Flag, Numeric, Schema

Array = NDArray[np.float64]

_NAME = 26


class Coefficient(NamedTuple):
    """One effect: a value for each score, in a unit; and how far it moves the first score, from end to end."""

    name: str
    values: tuple[float, ...]
    unit: str
    ends: tuple[float, float]

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
        """The columns that move the score most, from one end of their range to the other."""
        return sorted(self.rows, key=lambda row: -abs(row.effect))[:count]

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
        lines = [f"{'':<{_NAME}}{heads}  unit"]
        for name, values, unit in [("intercept", self.intercept, ""), *(row[:3] for row in self.rows)]:
            cells = " ".join(f"{value:>{width}.4g}" for value, width in zip(values, widths, strict=True))
            shown = name if len(name) <= _NAME - 1 else f"{name[: _NAME - 4]}..."
            lines.append(f"{shown:<{_NAME}}{cells}  {unit}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (row["name"], *(f"{row[name]:.4g}" for name in self.outputs), row["unit"])
            for row in self.to_dict()
        ]
        return html_table(("", *self.outputs, "unit"), rows)


def named_coefficients(
    schema: Schema, coefficients: Array, intercept: Array, ends: Array, outputs: Sequence[str]
) -> Coefficients:
    """Coefficients of encoded columns in the table's units, one column for each output, with ``ends`` of each."""
    encoding = SchemaEncoding(schema)
    values, constant = np.array(coefficients, np.float64), np.array(intercept, np.float64)
    start = len(encoding.numerics)
    for labels in encoding.groups.values():
        own = slice(start, start + len(labels))
        if len(labels) > 1:
            shift = values[own].mean(axis=0)
            values[own] -= shift
            constant += shift
        start += len(labels)
    owners = [*encoding.numerics, *(name for name, labels in encoding.groups.items() for _ in labels)]
    rows = tuple(
        Coefficient(name, tuple(row.tolist()), _unit(schema, owner, name), (float(end[0]), float(end[1])))
        for name, owner, row, end in zip(encoding.names or (), owners, values, ends, strict=True)
    )
    return Coefficients(rows, tuple(outputs), tuple(constant.tolist()))


def _unit(schema: Schema, owner: str, name: str) -> str:
    column = schema.features[owner]
    if isinstance(column, Date):
        return "per day"
    if isinstance(column, Numeric):
        return f"per unit of {owner}" if name == owner else "where it is missing"
    if isinstance(column, Flag):
        return f"where it is {column.yes!r}"
    return "against the mean of the values" if isinstance(column, Category) else ""
