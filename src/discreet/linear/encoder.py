"""From a table to the columns that a private fit needs, by public rules only: an encoder never looks at data.

Targets and weights are numbers by the same rules: a label by its place among the declared classes, NaN for what
does not count.

======================  ============================================================================
a number below, above   the lower, the upper bound; so are -inf and inf
NaN, missing, no number the middle of the bounds, or what a model says (``missing``), and 1 in the flag column if one
                        was asked for
an unknown category     none of the known ones: zeros
======================  ============================================================================

>>> from discreet.linear.column_kinds import Category, Numeric

>>> from discreet.linear.schema import Schema
>>> encoding = SchemaEncoding(Schema({"job": Category(("clerk", "farmer")), "age": Numeric(20, 60)}))
>>> encoding.names, encoding.columns
(('age', 'job=clerk', 'job=farmer'), Columns(numerics=1, groups=(2,), text=0, text_norm=1.0))
>>> encoding.encode(np.array([["farmer", 30], ["pilot", 99], [None, "old"]], object)).tolist()
[[0.25, 0.0, 1.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.0]]
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from sklearn.exceptions import DataConversionWarning

from discreet.core.columns import list_table, unmasked
from discreet.errors import InvalidParameter, real
from discreet.linear.cells import declared_codes, declared_numbers
from discreet.linear.column_kinds import Category, Flag, Numeric
from discreet.linear.declarations import type_error
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.inputs import cells_of, codes, column_names, is_frame, lazy_column, number_table, numbers
from discreet.linear.kernels.csr_entries import bound_entries
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import scale_rows
from discreet.linear.on_demand import OnDemand
from discreet.linear.schema import Schema

Floats = NDArray[np.floating[Any]]
Array = NDArray[np.float64]

_BLOCK = 2**20  # numbers that are encoded at once


class Encoding(ABC):
    """A public map from tables to encoded columns, and from their coefficients back to the table's units.

    ``names`` are those of the encoded columns, or None where the table gives them.

    Guarantee: every encoded row depends on the same row of the table only. Refusals depend on names, types and
    shapes.
    """

    columns: Columns
    names: tuple[str, ...] | None
    lower: Array = np.empty(0)
    upper: Array = np.empty(0)
    """The bounds of the numbers, which come first."""
    guessed: NDArray[np.intp] = np.empty(0, np.intp)
    """Encoded columns whose bounds are no more than a guess: nothing can be learnt from them."""
    learnt: NDArray[np.intp] = np.empty(0, np.intp)
    """Encoded columns whose bounds nobody has declared."""
    missing: Array | None = None
    """What a missing number counts as, for each numeric column, in [0, 1]; the middle if nobody has said."""

    @property
    def fills(self) -> Array:
        """The same as an array in any case."""
        return np.full(self.columns.numerics, 0.5) if self.missing is None else self.missing

    def encode(self, X: Any) -> Any:
        """The encoded table: a new float32 array, or a CSR array for a sparse table."""
        encoded = self.on_demand(X)
        return encoded if issparse(encoded) else encoded[:]

    @abstractmethod
    def on_demand(self, X: Any) -> Any:
        """The encoded table as something that encodes its rows when they are asked for, by slices; or as CSR."""

    def in_units_of_table(self, coefficients: Array, intercept: Any) -> tuple[Array, Any]:
        """The same linear model, up to clamping, of the table's own numbers."""
        count = len(self.lower)
        head = (coefficients[:count].T / (self.upper - self.lower)).T
        return np.concatenate([head, coefficients[count:]]), intercept - self.lower @ head


class BoundedNumbers(Encoding):
    """Numbers between public bounds, one pair for each column, mapped to [0, 1]."""

    def __init__(self, lower: Array, upper: Array, guessed: NDArray[np.intp] | None = None) -> None:
        self.lower, self.upper = lower, upper
        if guessed is not None:
            self.guessed, self.learnt = guessed, np.arange(len(lower))
        self.columns, self.names = Columns(numerics=len(lower)), None

    def on_demand(self, X: Any) -> Any:
        table = _of_width(number_table(X, self.columns.width), self.columns.width)
        if issparse(table):
            return self._sparse(table)
        return Scaled(table, self)

    def scale(self, rows: Any) -> NDArray[np.float32]:
        """These rows, encoded."""
        encoded = np.empty(rows.shape, np.float32)
        step = max(1, _BLOCK // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            part = readable(rows[start : start + step])
            scale_rows(part, self.lower, self.upper, self.fills, encoded[start : start + step])
        return encoded

    def _sparse(self, table: csr_array) -> csr_array:
        if self.lower.any():
            requirement = "zeros must stay zeros in a sparse table: declare lower bounds of 0, or row_norm."
            raise InvalidParameter("lower", self.lower.tolist(), requirement)
        data = np.empty(table.nnz, np.float32)
        bound_entries(readable(table.data), readable(table.indices), self.upper, data)
        return csr_array((data, table.indices, table.indptr), shape=table.shape)


class Scaled(OnDemand):
    """A table of numbers that is scaled when rows are asked for; who needs no scaled copy finds it as it is."""

    def __init__(self, table: Any, numbers: BoundedNumbers) -> None:
        super().__init__(table.shape, lambda rows: numbers.scale(table[rows]))
        self.table, self.lower, self.upper, self.missing = table, numbers.lower, numbers.upper, numbers.fills


class BoundedRows(Encoding):
    """Rows of a public norm, such as hashed words; longer rows are shortened, rows with NaN count as nothing."""

    def __init__(self, width: int, row_norm: float) -> None:
        norm = real("row_norm", row_norm, at_least=1e-6, at_most=1e6)
        self.columns, self.names = Columns(numerics=0, text=width, text_norm=norm), None

    def on_demand(self, X: Any) -> Any:
        table = _of_width(number_table(X, self.columns.width), self.columns.width)
        return _single(table) if issparse(table) else OnDemand(table.shape, lambda rows: _single(table[rows]))


class SchemaEncoding(Encoding):
    """The columns of a schema: numbers first, then flags and categories, each in the order of the schema."""

    def __init__(self, schema: Schema, guessed: tuple[str, ...] = (), learnt: tuple[str, ...] = ()) -> None:
        if schema.undeclared:
            raise InvalidParameter("schema", schema.undeclared, "bounds must be declared to encode.")
        self.schema = schema
        self.numerics = {name: c for name, c in schema.features.items() if isinstance(c, Numeric)}
        groups = [(name, _group_names(name, c)) for name, c in schema.features.items()]
        self.groups = {name: labels for name, labels in groups if labels}
        self.columns = Columns(len(self.numerics), tuple(len(labels) for labels in self.groups.values()))
        self.names = (*self.numerics, *(label for labels in self.groups.values() for label in labels))
        self.lower = np.array([c.lower for c in self.numerics.values()], np.float64)
        self.upper = np.array([c.upper for c in self.numerics.values()], np.float64)
        places = {name: place for place, name in enumerate(self.numerics)}
        self.guessed = np.array([places[name] for name in guessed], np.intp)
        self.learnt = np.array([places[name] for name in learnt], np.intp)

    def on_demand(self, X: Any) -> OnDemand:
        features = schema_columns(X, self.schema)
        for name in self.numerics:  # types are refused here, before anything is spent
            declared_numbers(self.numerics[name], features[name][:0], f"X[{name!r}]")
        if self._is_of_numbers(X):
            numbers = BoundedNumbers(self.lower, self.upper)
            numbers.missing = self.missing
            return Scaled(number_table(X), numbers)
        rows = len(next(iter(features.values())))
        return OnDemand((rows, self.columns.width), lambda rows: self._rows(features, rows))

    def _is_of_numbers(self, X: Any) -> bool:
        """True for an array of which every column is a plain number: the same as one with bounds only."""
        plain = not self.groups and all(column.plain for column in self.numerics.values())
        return plain and isinstance(X, np.ndarray) and X.dtype.kind in "fiub"

    def _rows(self, features: dict[str, Any], rows: Any) -> NDArray[np.float32]:
        part = {name: values[rows] for name, values in features.items()}
        encoded = np.zeros((len(next(iter(part.values()))), self.columns.width), np.float32)
        fills = self.fills
        for place, (name, column) in enumerate(self.numerics.items()):
            values = declared_numbers(column, part[name])
            encoded[:, place] = scale_to_unit(values, column.lower, column.upper, fills[place])
        start = len(self.numerics)
        for name, labels in self.groups.items():
            found = _codes(self.schema.features[name], part[name])
            known = np.flatnonzero(found >= 0)
            encoded[known, start + found[known]] = 1.0
            start += len(labels)
        return encoded


def scale_to_unit(values: Any, lower: Any, upper: Any, missing: float = 0.5) -> Any:
    """The values between the bounds mapped to [0, 1]; what is outside clamped; NaN to ``missing``, the middle."""
    with np.errstate(all="ignore"):
        inside = (np.asarray(values, np.float64) - lower) / (np.asarray(upper, np.float64) - lower)
    return np.where(np.isnan(inside), missing, np.clip(inside, 0.0, 1.0))


def encoded_columns(schema: Schema) -> Columns:
    """The columns that a schema encodes to; of those with bounds to be learnt any bounds will do."""
    return SchemaEncoding(schema.with_bounds(dict.fromkeys(schema.undeclared, (0.0, 1.0)))).columns


def schema_columns(X: Any, schema: Schema) -> dict[str, Any]:
    """The features of a table by name: a frame's by its own names, otherwise by place."""
    names = list(schema.features)
    if is_frame(X):
        missing = [name for name in names if name not in (column_names(X) or ())]
        if missing:
            raise InvalidParameter("X.columns", missing, "declared in the schema and missing from the table.")
        return {name: lazy_column(X, name) for name in names}
    table = X.toarray() if issparse(X) else _cells(X, len(names))
    if table.ndim != 2 or table.shape[1] != len(names):
        raise InvalidParameter(
            "X.shape", table.shape[1:], f"must have the {len(names)} columns of the schema."
        )
    return {name: table[:, place] for place, name in enumerate(names)}


def _cells(X: Any, width: int) -> NDArray[Any]:
    if hasattr(X, "dtype") or hasattr(X, "__array__"):
        return np.asarray(unmasked(X))
    return list_table(list(X), width)


def _codes(column: Any, values: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each value in its one-hot group, or -1."""
    if isinstance(column, Category | Flag):
        return declared_codes(column, values)
    return np.isnan(declared_numbers(column, values)).astype(np.int64) - 1  # the flag of missing numbers


def _group_names(name: str, column: Any) -> tuple[str, ...]:
    if isinstance(column, Category):
        return tuple(f"{name}={value}" for value in column.values)
    if isinstance(column, Flag):
        return (name,)
    return (f"{name}=missing",) if column.missing == "flag" else ()


def _of_width(table: Any, expected: int) -> Any:
    if table.shape[1] != expected:
        raise InvalidParameter("X.shape", f"{table.shape[1]} columns", f"must have {expected} columns.")
    return table


def _single(rows: Any) -> Any:
    with np.errstate(over="ignore"):
        return rows.astype(np.float32)


def one_for_each_row(name: str, values: Any, rows: int) -> Any:
    """The values as a one-dimensional array, or on demand, one for each row. Refusals name no number of rows."""
    if values is None:
        requirement = "requires y to be passed, but the target y is None."
        raise InvalidParameter(name, None, requirement if name == "y" else "must hold a number for each row.")
    array = values if isinstance(values, OnDemand) else _column(name, values)
    if len(array) != rows:
        raise InvalidParameter(name, "another length", f"X and {name} must have the same number of rows.")
    return array


def _column(name: str, values: Any) -> NDArray[Any]:
    array = cells_of(values)
    if array.dtype.kind == "c":
        raise type_error(name, array.dtype)
    if array.ndim == 2 and array.shape[1] == 1:
        message = "A column-vector y was passed when a 1d array was expected. It is read as such."
        warnings.warn(message, DataConversionWarning, stacklevel=5)
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidParameter(f"{name}.ndim", array.ndim, f"{name} should be a 1d array, one value per row.")
    return array


def declared_labels(column: Category | Flag | Numeric, y: NDArray[Any]) -> NDArray[Any]:
    """The labels as a schema declares them: the category that a cell stands for or None, whether a flag is set.

    >>> declared_labels(Flag("yes"), np.array(["yes", "no", None], object)).tolist()
    [True, False, False]
    """
    if isinstance(column, Flag):
        spelt = declared_codes(column, y) >= 0
        if isinstance(column.yes, bool) or y.dtype.kind not in "bO":
            return spelt
        # The flag itself, not how it is spelt; cell by cell, so that a missing one changes no other.
        told = np.array([isinstance(cell, bool) and cell for cell in y.tolist()], bool)
        return np.asarray(spelt | told)
    assert isinstance(column, Category)
    values = np.array([*column.values, None], object)
    return np.asarray(values[declared_codes(column, y)])  # -1, for what nobody declared, is the last


def class_numbers(y: NDArray[Any], classes: Iterable[Any]) -> Array:
    """The place of each label among the classes, as a float; NaN for a label nobody declared."""
    known = classes.tolist() if isinstance(classes, np.ndarray) else classes
    found = codes(y, tuple(known)).astype(np.float64)
    found[found < 0] = np.nan
    return found


def target_numbers(y: NDArray[Any]) -> Array:
    """Targets of a regression; NaN for what is not a finite number."""
    values = numbers(y, "y").astype(np.float64)
    values[~np.isfinite(values)] = np.nan
    return values


def record_weights(sample_weight: Any, rows: int, max_weight: float) -> Array | None:
    """Weights divided by their declared maximum and clamped to [0, 1]; what is not a number is 0.

    Guarantee: no record weighs more than 1, so no sensitivity grows.
    """
    most = real("max_weight", max_weight, above=0, remedy="It is the largest weight that a record may have.")
    if sample_weight is None:
        return None
    if isinstance(sample_weight, int | float):
        sample_weight = np.full(rows, sample_weight)
    with np.errstate(all="ignore"):
        weights = numbers(one_for_each_row("sample_weight", sample_weight, rows), "sample_weight") / most
    return np.clip(np.nan_to_num(weights.astype(np.float64), nan=0.0), 0.0, 1.0)


def combined_weights(weights: Array | None, by_class: Array | None, places: Array) -> Array | None:
    """The weight of each record: its own times that of its class."""
    if by_class is None:
        return weights
    own = by_class[np.nan_to_num(places, nan=0.0).astype(np.int64)]
    return own if weights is None else weights * own
