"""A table as features, targets, weights and ids, as it was declared: :func:`read_parts`.

What a row becomes depends on that row and on what was declared, and refusals depend on names, types and shapes.
Nothing here has to be trusted for it: :class:`~discreet.linear.private_reader.PrivateReader` compares rows with
themselves, read alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.errors import InvalidParameter
from discreet.linear.cells import declared_numbers
from discreet.linear.column_kinds import Category, Column, Flag, Numeric
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
from discreet.linear.inputs import column_names, lazy_column, number_table, without_column
from discreet.linear.on_demand import OnDemand
from discreet.linear.out_of_core import OutOfCoreTable
from discreet.linear.schema import Schema

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


class Parts(NamedTuple):
    """The features, targets, weights and ids of a table, each with an item for each row, and its header."""

    table: Any
    targets: Any
    weights: Array | None
    ids: NDArray[Any] | None
    header: Header
    sparse: bool


def read_parts(reader: Any, X: Any, y: Any, sample_weight: Any, given_ids: Any) -> Parts:
    """Read a table as a :class:`~discreet.linear.private_reader.PrivateReader` declares it."""
    if isinstance(y, str):
        if y not in (column_names(X) or ()):
            raise InvalidParameter("y", y, "must be a column of X, or hold a target for each row.")
        X, y = without_column(X, y), lazy_column(X, y)
    unit = reader.unit
    if unit is None and given_ids is not None:
        raise InvalidParameter("unit", None, "must name what people= holds, such as unit='person_id'.")
    if unit is not None:
        if given_ids is None and unit.column not in (column_names(X) or ()):
            requirement = "must be a column of X, or its ids must be given: fit(X, y, people=ids)."
            raise InvalidParameter("unit", unit.column, requirement)
        given_ids = X[unit.column] if given_ids is None else given_ids
        X = without_column(X, unit.column)
    table, header = feature_table(X, reader.schema, reader.width)
    rows = int(table.shape[0]) if hasattr(table, "shape") else len(table)
    ids = None if unit is None else one_for_each_row("people", given_ids, rows)[:]
    weights = record_weights(sample_weight, rows, reader.max_weight)
    y = _target_in(X, reader.schema) if y is None else y
    target = reader.target
    if target.classes is not None:
        labels = one_for_each_row("y", y, rows)[:] if isinstance(target.classes, str) else None
        target = target._replace(classes=declared_classes(target.classes, labels))
    targets = target.read(y, rows)
    if target.class_weight is not None:
        by_class = class_weights(target.class_weight, target.classes)
        weights = combined_weights(weights, by_class, targets[:])
    sparse = issparse(table) and reader.schema is None
    return Parts(table, targets, weights, ids, header._replace(classes=target.classes), sparse)


def _target_in(X: Any, schema: Schema | None) -> Any:
    """The column of a frame that the schema names as the target; None if nothing is named, or by no names."""
    name, names = None if schema is None else schema.target, column_names(X)
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
