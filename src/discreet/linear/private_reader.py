"""Reads a table, its target, its weights and its people into a :class:`PrivateTable`: :class:`PrivateReader`.

What a row becomes depends on that row and on what was declared, and refusals depend on names, types and shapes. What
is public of the table comes back beside it as a :class:`Header`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.core.grouping import canonical_user_id
from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear.cells import declared_numbers
from discreet.linear.column_kinds import Category, Column, Flag, Numeric, Unit
from discreet.linear.declarations import class_weights, declared_classes
from discreet.linear.encoder import (
    class_numbers,
    combined_weights,
    declared_labels,
    one_for_each_row,
    record_weights,
    schema_columns,
    target_numbers,
)
from discreet.linear.gate.people import People
from discreet.linear.gate.private_table import PrivateTable
from discreet.linear.inputs import column_names, lazy_column, number_table, without_column
from discreet.linear.on_demand import OnDemand
from discreet.linear.out_of_core import OutOfCoreTable
from discreet.linear.row_source import Source, store_rows
from discreet.linear.rows_alone import chosen_rows, compare_rows, read_alone, rows_of
from discreet.linear.schema import Schema
from discreet.linear.sources import source_of
from discreet.linear.storage import Storage

Array = NDArray[np.float64]


class DeclaredTarget(NamedTuple):
    """What is declared of a target: its ``classes``, or None for numbers; ``column`` is that of the schema.

    ``counts`` are numbers of at least 0. ``class_weight`` are the public weights of the classes.
    """

    column: Column | None = None
    classes: Any = None
    class_weight: Any = None
    counts: bool = False

    def read(self, y: Any, rows: int) -> OnDemand:
        """Each target as the place of its class or as a number, NaN where it does not count."""
        cells = one_for_each_row("y", y, rows)

        def read_rows(part: Any) -> Array:
            found = cells[part]
            if self.classes is not None:
                if isinstance(self.column, Category | Flag):
                    found = declared_labels(self.column, found)
                return class_numbers(found, self.classes)
            if isinstance(self.column, Numeric):
                found = declared_numbers(self.column, found, "y")
            values = target_numbers(found)
            return np.where(values < 0, np.nan, values) if self.counts else values

        read_rows(slice(0, 0))  # a type that cannot be numbers is refused before anything is spent
        return OnDemand((rows,), read_rows)


class Header(NamedTuple):
    """What is public of a table: its width, its names, and the classes of its target.

    ``empty`` is a table of its kind without rows; None where the names say all.
    """

    empty: Any
    width: int
    names: tuple[str, ...] | None
    classes: NDArray[Any] | None = None


@dataclass(frozen=True)
class PrivateReader:
    """How a table is read, as declared.

    ``width`` is the number of its columns, if that is known. ``columns`` says what to read of a table that is
    elsewhere, from its source and ``y``; whatever it returns, each cell is read by itself.
    """

    target: DeclaredTarget
    columns: Callable[[Source, Any], Mapping[str, Column | Unit]]
    schema: Schema | None = None
    unit: Unit | None = None
    width: int | None = None
    max_weight: float = 1.0
    storage: Storage | None = None

    def read(self, X: Any, y: Any, sample_weight: Any, people: Any) -> tuple[PrivateTable, Header]:
        """Read the table; ``y`` is the target, or the name of its column.

        Chosen rows are read alone, too, and the table compares its rows with them when it shows a view.
        """
        source = source_of(X)
        if source is not None:
            columns = self.columns(source, y)
            X = store_rows(source.chunks(columns), columns, self.storage or Storage())
        table, header, ids = self._read(X, y, sample_weight, people)
        resolved = replace(self, target=self.target._replace(classes=header.classes), width=header.width)
        for place in chosen_rows(table._row_count()):
            row = (_one_row(values, place) for values in (X, y, sample_weight, people))
            alone, _, own = read_alone(resolved._read, *row)
            if ids is not None and canonical_user_id(ids[place]) != canonical_user_id(own[0]):
                raise PlanViolation("The id of a row is read otherwise alone; nothing was released.")
            if table._weights is not None:
                compare_rows([table._weights[place : place + 1]], [alone._weights])
            table._alone += ((place, alone),)
        return table, header

    def _read(
        self, X: Any, y: Any, sample_weight: Any, people: Any
    ) -> tuple[PrivateTable, Header, NDArray[Any] | None]:
        """The table, its header, and the ids of its rows."""
        if isinstance(y, str):
            if y not in (column_names(X) or ()):
                raise InvalidParameter("y", y, "must be a column of X, or hold a target for each row.")
            X, y = without_column(X, y), lazy_column(X, y)
        unit = self.unit
        if unit is None and people is not None:
            raise InvalidParameter("unit", None, "must name what people= holds, such as unit='person_id'.")
        if unit is not None:
            if people is None and unit.column not in (column_names(X) or ()):
                requirement = "must be a column of X, or its ids must be given: fit(X, y, people=ids)."
                raise InvalidParameter("unit", unit.column, requirement)
            people = X[unit.column] if people is None else people
            X = without_column(X, unit.column)
        table, header = feature_table(X, self.schema, self.width)
        rows = int(table.shape[0]) if hasattr(table, "shape") else len(table)
        ids = None if unit is None else one_for_each_row("people", people, rows)[:]
        weights = record_weights(sample_weight, rows, self.max_weight)
        y = self._target_in(X) if y is None else y
        target = self.target
        if target.classes is not None:
            labels = one_for_each_row("y", y, rows)[:] if isinstance(target.classes, str) else None
            target = target._replace(classes=declared_classes(target.classes, labels))
        targets = target.read(y, rows)
        if target.class_weight is not None:
            by_class = class_weights(target.class_weight, target.classes)
            weights = combined_weights(weights, by_class, targets[:])
        owners = None if ids is None else People.of(ids)
        sparse = issparse(table) and self.schema is None
        private = PrivateTable(table, targets, weights, owners, self.storage, header.names, sparse)
        return private, header._replace(classes=target.classes), ids

    def _target_in(self, X: Any) -> Any:
        """The column of a frame that the schema names as the target; None if nothing is named, or by no names."""
        name, names = None if self.schema is None else self.schema.target, column_names(X)
        if name is None or names is None:
            return None
        if name not in names:
            needed = "the schema's target is not a column of the table; give it as y."
            raise InvalidParameter("X.columns", name, needed)
        return lazy_column(X, name)


def feature_table(X: Any, schema: Schema | None, width: int | None) -> tuple[Any, Header]:
    """The features of a table: as they are for a schema, which says how they are read, otherwise as numbers."""
    names = column_names(X)
    if schema is not None:
        schema_columns(X, schema)
        return X, Header(None, len(schema.features), names)
    side_by_side = X.numbers() if isinstance(X, OutOfCoreTable) else None
    table = number_table(X if side_by_side is None else side_by_side, width)
    width = int(table.shape[1])
    if isinstance(X, OutOfCoreTable):
        return table, Header(None, width, names)
    is_known = hasattr(X, "iloc") or hasattr(X, "to_pandas")  # to scikit-learn: pandas, polars, pyarrow
    return table, Header(X[:0] if is_known else np.empty((0, width)), width, names)


def _one_row(values: Any, place: int) -> Any:
    """One row of a table, of targets, weights or ids; names, numbers and None are for all rows."""
    if values is None or isinstance(values, str | int | float):
        return values
    return rows_of(values, np.array([place]))
