"""What is declared of a fit, and how a table is read by it: the parameters of an estimator, checked, as values; then
its names, its target, its people, its encoding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from discreet.core.mechanisms import Arithmetic
from discreet.errors import InvalidParameter, one_of, real
from discreet.guarantee import Budget, neighbours_named
from discreet.guarantee import Unit as Protected
from discreet.linear.column_kinds import Column, Numeric, Unit, unit_of
from discreet.linear.declarations import all_numbers, bounds_of, declared_width
from discreet.linear.diagnosis import warn_of_width
from discreet.linear.encoder import (
    BoundedNumbers,
    BoundedRows,
    Encoding,
    SchemaEncoding,
    encoded_columns,
)
from discreet.linear.fitting import METHODS
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.private_table import PrivateTable, TargetRows, UndeclaredColumns
from discreet.linear.glm.budget_split import BudgetSplit
from discreet.linear.glm.counts import FirstCounts, count_first
from discreet.linear.glm.inference import kind_of
from discreet.linear.glm.ranges import Learned, learned_ranges, unlearnt_ranges
from discreet.linear.inputs import without_column
from discreet.linear.losses import Loss
from discreet.linear.private_reader import PrivateReader
from discreet.linear.read_parts import DeclaredTarget, Header, feature_table
from discreet.linear.row_source import Source
from discreet.linear.schema import Schema, schema_of
from discreet.linear.storage import Storage
from discreet.trusted.spending import BudgetAllocator


class Declarations(BaseEstimator):  # type: ignore[misc]
    """The parameters that all private linear models share. Refusals depend on nothing else."""

    ledger_key: Any = None
    inference: bool = False
    sample: float | None = None

    def _keep(self, typed: Mapping[str, Any]) -> None:
        """The parameters as they were typed, by which scikit-learn clones a model; they are checked by a fit."""
        self.__dict__.update({name: value for name, value in typed.items() if name != "self"})

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss, as far as the target is known."""

    def _unit(self) -> Unit | None:
        """Whom the guarantee is for, if not single rows: as given here, or by the schema."""
        if self.unit is not None or self.schema is None:
            return unit_of(self.unit)
        return schema_of(self.schema).unit

    def _budget(self) -> Budget:
        unit: Protected = "record" if self._unit() is None else "person"
        return Budget(self.epsilon, self.delta, neighbours_named(self.neighbours), unit=unit)

    def _chosen_arithmetic(self) -> Arithmetic:
        """As asked for; else the one whose proof covers most: hardened, where the method has it."""
        if self.arithmetic is None:
            return "hardened" if self.method == "recipe" else "float"
        asked = one_of("arithmetic", self.arithmetic, ("float", "hardened"))
        return "float" if asked == "float" else "hardened"

    def _check_method(self) -> None:
        method = one_of("method", self.method, METHODS)
        if self._unit() is not None and method != "recipe":
            raise InvalidParameter("method", method, "protects single records; a unit needs method='recipe'.")
        if self._chosen_arithmetic() == "hardened" and method != "recipe":
            raise InvalidParameter("arithmetic", "hardened", "is for method='recipe'.")
        self._sample()

    def _sample(self) -> float | None:
        """The chance of a record to be in the secret sample, if there is one."""
        if self.sample is None:
            return None
        remedy = "A share of the records, such as 0.01; without it, all of them are used."
        if self.method != "recipe":
            raise InvalidParameter("sample", self.sample, "is for method='recipe'.")
        return real("sample", self.sample, above=0, below=1, remedy=remedy)

    def _refuse_inference(self, reset: bool) -> None:
        """Raise if standard errors are asked for where there are none."""
        if not isinstance(self.inference, bool):
            raise InvalidParameter("inference", self.inference, "must be True or False.")
        if self.inference and not (
            self.method == "recipe" and kind_of(self._loss()) is not None and self.row_norm is None and reset
        ):
            requirement = "is for least squares, two classes and counts: one fit by the recipe, with columns."
            raise InvalidParameter("inference", True, requirement)

    def _target_column(self) -> Column | None:
        """The target as the schema declares it; None if it does not."""
        schema = None if self.schema is None else schema_of(self.schema)
        return None if schema is None or schema.target is None else schema.columns[schema.target]

    def _refuse_target(self, remedy: str) -> NoReturn:
        target = schema_of(self.schema).target
        raise InvalidParameter("schema.target", target, f"{target!r} {remedy}")

    def _settings(self) -> dict[str, Any]:
        """The parameters as declared, for the certificate. They are public."""
        hidden = {"ledger", "ledger_key", "verbose", "unsafe_seed", "memory"}
        rare = {"unit": self._unit(), "inference": self.inference, "sample": self.sample}
        hidden |= {name for name, used in rare.items() if not used}
        settings = self.get_params(deep=False) | {
            "arithmetic": self._chosen_arithmetic(),
            "unit": self._unit(),
        }
        return {name: plain(value) for name, value in settings.items() if name not in hidden}


def plain(value: Any) -> Any:
    """A declared parameter as plain data for JSON."""
    if isinstance(value, Schema | Unit):
        return value.to_dict()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)  # JSON has no such number; whoever reads the parameter refuses it by name
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


Array = NDArray[np.float64]


class TableReader(Declarations):
    """Reads tables as they were declared. Refusals depend on names, types and shapes, never on a record."""

    def _reader(self, reset: bool) -> PrivateReader:
        """How a table is read: as declared, or as the table of the first fit."""
        schema = None if self.schema is None else schema_of(self.schema)
        width = declared_width(self.bounds) if reset else self.n_features_in_
        target, storage = self._target(reset), Storage.of(self.memory)
        return PrivateReader(
            target, self._columns_to_read, schema, self._unit(), width, self.max_weight, storage
        )

    def _columns_to_read(self, source: Source, y: Any) -> dict[str, Column | Unit]:
        """What has to be read of a source: the columns of the schema, or all of them as numbers."""
        name, unit = y if isinstance(y, str) else None, self._unit()
        if self.schema is not None:
            schema = schema_of(self.schema)
            wanted = {*schema.features, schema.target if y is None else name}
            columns = {key: column for key, column in schema.columns.items() if key in wanted}
        else:
            beside = {name, None if unit is None else unit.column}
            columns = {**all_numbers(source, [key for key in source.names if key not in beside])}
        if name is not None and name not in columns:
            columns[name] = self._plain_target()
        return {**columns} if unit is None else {**columns, unit.column: unit}

    def _plain_target(self) -> Column:
        """What the column of a target is where no schema says it."""
        return Numeric()

    @abstractmethod
    def _target(self, reset: bool) -> DeclaredTarget:
        """What is declared of the target, or known of it from the first fit."""

    def _note_columns(self, header: Header, reset: bool) -> None:
        """Keep names and number of the columns, or raise if they are not those of the first fit."""
        if self.schema is not None:
            if reset:
                self.feature_names_in_ = np.array(list(schema_of(self.schema).features), object)
                self.n_features_in_ = header.width
        elif header.empty is None:  # read in chunks: scikit-learn does not know such a table
            if reset:
                self.feature_names_in_, self.n_features_in_ = np.array(header.names, object), header.width
        else:
            validate_data(self, header.empty, reset=reset, skip_check_array=True)

    def _read_table(self, X: Any, reset: bool) -> Any:
        """The table, if its columns are those of the schema or of the fit. Refusals depend on names and shapes."""
        reader = self._reader(reset)
        X = X if reader.unit is None else without_column(X, reader.unit.column)
        table, header = feature_table(X, reader.schema, reader.width)
        self._note_columns(header, reset)
        return table

    def _count_first(
        self, table: Any, least: int | None, spending: BudgetAllocator | None
    ) -> FirstCounts | None:
        """The records, if there are bounds to be learnt, which is worth it if they are enough."""
        if self.bounds is not None or self.row_norm is not None or spending is None:
            return None
        columns = Columns(self.n_features_in_)
        if self.schema is not None:
            schema = schema_of(self.schema)
            if not schema.undeclared:
                return None
            columns = encoded_columns(schema)
        return count_first(table.rows(TargetRows(self._loss(), least)), columns, spending)

    def _new_encoding(
        self,
        read: PrivateTable,
        table: Any,
        least: int | None,
        spending: BudgetAllocator | None,
        counted: FirstCounts | None,
    ) -> Encoding:
        """The encoding that was declared; what was not is learnt out of the budget.

        ``read`` is what was read here, of which types and names count; ``table`` has the rows.
        """
        if sum(given is not None for given in (self.schema, self.bounds, self.row_norm)) > 1:
            raise InvalidParameter(
                "schema", "bounds, row_norm", "declare one of schema, bounds and row_norm."
            )
        if self.schema is not None:
            schema = schema_of(self.schema)
            if schema.undeclared:
                names = schema.undeclared
                view = UndeclaredColumns(len(names), schema, least)
                learned = _learn_ranges(table, view, spending, counted)
                schema = schema.with_bounds(dict(zip(names, learned.ranges, strict=True)))
                guessed = [name for name, seen in zip(names, learned.found, strict=True) if not seen]
                return SchemaEncoding(schema, tuple(guessed), tuple(names))
            return SchemaEncoding(schema)
        if self.row_norm is not None:
            return BoundedRows(self.n_features_in_, self.row_norm)
        if self.bounds is not None:
            return BoundedNumbers(*bounds_of(self.bounds, self.n_features_in_, read.names))
        if read.sparse:
            warn_of_width(self.n_features_in_)
        view = UndeclaredColumns(self.n_features_in_, None, least)
        ranges, found = _learn_ranges(table, view, spending, counted)
        if read.sparse:  # zeros must stay zeros
            ranges = [(0.0, max(upper, -lower)) for lower, upper in ranges]
        lower, upper = np.array(ranges).reshape(-1, 2).T
        return BoundedNumbers(lower, upper, guessed=np.flatnonzero(~found))


def known_spending(spending: BudgetAllocator | None) -> BudgetAllocator:
    if spending is None:
        raise InvalidParameter(
            "bounds", None, "must be declared for this method; only 'recipe' can learn them."
        )
    return spending


def _learn_ranges(
    table: Any, view: UndeclaredColumns, spending: BudgetAllocator | None, counted: FirstCounts | None
) -> Learned:
    """Ranges for columns that have no bounds; with few records they get more of the budget, with too few nothing."""
    spending = known_spending(spending)
    if counted is None or not counted.enough:
        return unlearnt_ranges(view.columns)
    records = counted.counts.records
    split = BudgetSplit(records, spending.strength, math.sqrt(view.columns))
    return learned_ranges(table.rows(view), spending, split.for_marginals, records=records)
