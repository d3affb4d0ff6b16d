"""What all private linear models share: reading a table, charging for it, fitting, and answering with the model."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from os import PathLike
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from discreet.core.mechanisms import Arithmetic, gaussian_event
from discreet.errors import BudgetExceeded, InvalidParameter, one_of
from discreet.events import ApproximateDP, Event
from discreet.guarantee import Budget, neighbours_named
from discreet.guarantee import Unit as Protected
from discreet.linear.callers import repeated, what_callers_did
from discreet.linear.cells import declared_numbers
from discreet.linear.diagnosis import diagnosis, without_empty
from discreet.linear.encoder import (
    BoundedNumbers,
    BoundedRows,
    Encoding,
    SchemaEncoding,
    bounds_of,
    encoded_width,
    schema_columns,
)
from discreet.linear.fitted_model import FittedModel
from discreet.linear.fitting import METHODS, Charge, Encoded, Model, by_recipe, by_theorem, charged, shown
from discreet.linear.glm.inference import kind_of
from discreet.linear.glm.marginals import counted
from discreet.linear.glm.people import People, declared_rows, learned_rows
from discreet.linear.glm.ranges import Learned, learned_ranges
from discreet.linear.glm.spending import Elsewhere, Spending, Wealth
from discreet.linear.inputs import (
    OnDemand,
    column_names,
    column_values,
    lazy_column,
    number_table,
    without_column,
)
from discreet.linear.losses import Loss
from discreet.linear.named_coefficients import Coefficients
from discreet.linear.partitions import Partitions
from discreet.linear.preview import EPSILONS, Preview
from discreet.linear.schema import Category, Column, Numeric, Schema, Unit, schema_of, unit_of
from discreet.linear.sources import all_numbers, source_of
from discreet.linear.spool import Spooled, spooled
from discreet.linear.storage import Storage
from discreet.linear.summary import Summary
from discreet.linear.tables import Source
from discreet.linear.targets import one_for_each_row, record_weights

Array = NDArray[np.float64]

_WEAK, _VOID = 10.0, 30.0  # epsilons beyond which a promise is weak, as reports say, and empty
_SCARCE = 3.0  # coefficients over records in units of their noise, from where on little can be learnt
_RECORDS = 0.01  # share of the budget to learn how many records there are, if bounds are to be learnt, too


class DeclarationWarning(UserWarning):
    """What was declared does not fit the data, as far as released, noisy numbers show, or promises nothing."""


class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]
    """Base of the estimators: they add the loss and what a target means.

    Guarantee: ``fit`` releases the fitted attributes within (epsilon, delta) for one record, or for one person with
    all rows if there is a ``unit``, whatever the records hold. No exception, warning or attribute depends on a record
    in any other way than through released values; refusals depend on parameters, names, types and shapes. The number
    of rows is private under add-remove neighbours and is never shown.
    """

    coef_: Array
    ledger_key: Any = None
    inference: bool = False
    _procedures: tuple[str, ...]
    _task: str
    intercept_: Any

    # ---- what each estimator knows ----

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss, as far as the target is known."""

    @abstractmethod
    def _read_target(
        self, y: Any, rows: int, weights: Array | None, reset: bool
    ) -> tuple[OnDemand, Array | None]:
        """The target as the loss wants it, NaN where it does not count, and the weights of the records."""

    @abstractmethod
    def _bounded_target(
        self, y: OnDemand, weights: Array | None, spending: Spending | None
    ) -> tuple[OnDemand, tuple[float, float]]:
        """The target within its bounds, declared or learnt, and these; (0, 1) for classes."""

    @abstractmethod
    def _declared(self) -> str:
        """What was declared of the target, in words."""

    def _not_covered(self) -> tuple[str, ...]:
        """What this fit adds to the certificate's list of what is not covered."""
        return ()

    # ---- fitting ----

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, people: Any = None, engine: Any = None
    ) -> Self:
        """Fit the model, at the cost of (epsilon, delta).

        Without ``y``, the target is the column of the table that the schema names.
        ``sample_weight`` is divided by the declared ``max_weight`` and clamped to [0, 1].
        ``people`` are the ids of the ``unit``, one for each row, where the table has no column of them.
        ``engine`` fits :class:`~discreet.linear.partitions.Partitions` where they lie, such as
        :class:`~discreet.adapters.dask_engine.DaskEngine`.
        """
        if engine is not None:
            if sample_weight is not None or people is not None:
                raise InvalidParameter("engine", type(engine).__name__, "takes columns of the files only.")
            engine.fit(self, X, y)
            return self
        if isinstance(X, Partitions):
            X = X.pattern
        return self._fit(X, y, sample_weight, people, previous=None)

    def fit_more(self, X: Any, y: Any = None, sample_weight: Any = None, people: Any = None) -> Self:
        """Go on with further records, or the same ones, at the cost of another (epsilon, delta).

        The new model and the one so far are averaged, weighed by what their noise and numbers of records say of
        their precision. It needs the ``ledger`` of the first fit, with room for one more; the guarantee is then that
        of the ledger.
        """
        check_is_fitted(self)
        if self.ledger is None:
            raise BudgetExceeded(
                f"fit has spent all of epsilon={self.epsilon:g}. To go on later, fit with a ledger of a larger "
                "budget from the beginning: ledger=Ledger.create(path, GaussianFilter(Budget(epsilon, delta)))."
            )
        return self._fit(X, y, sample_weight, people, previous=self._model)

    def preview(
        self,
        records: int,
        schema: Any = None,
        *,
        columns: int | None = None,
        best: float | None = None,
        guess: float | None = None,
    ) -> Preview:
        """What to expect of a fit at several epsilons, as ranges: a rule of thumb, before any data is touched.

        ``records`` are those that there will be, or people if they are the unit; ``columns`` are counted after
        encoding, and follow from a schema. ``best`` is the score hoped for without privacy, ``guess`` the accuracy of
        naming the most frequent class.
        """
        if self.method != "recipe":
            raise InvalidParameter("method", self.method, "has no preview; it is of method='recipe'.")
        declared = self.schema if schema is None else schema
        if declared is not None:
            found = schema_of(declared)
            if self._task == "classification" and guess is None:
                guess = _by_chance(found)
            columns = encoded_width(found)
        if columns is None:
            raise InvalidParameter("columns", None, "must be given where there is no schema to count them.")
        budget = self._budget()
        wish = tuple(sorted({*EPSILONS, budget.epsilon}))
        even = 0.5 if guess is None else guess
        where = (budget.neighbours, budget.unit)
        return Preview(records, columns, budget.delta, self._task, best, even, wish, *where)

    def event(self) -> Event:
        """What one fit releases, as one event: for a :class:`~discreet.selection.PrivateSearch`.

        Guarantee: a fit costs at most what this event costs. The recipe spends by a Gaussian filter, so in
        floating point all its releases together are as private as one Gaussian release that costs the budget. Of
        hardened releases only the budget itself is proved, which costs a search more.
        """
        budget = self._budget()
        if self.method == "recipe" and self._chosen_arithmetic() == "float":
            return gaussian_event(budget)
        return ApproximateDP(budget.epsilon, budget.delta)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        people: Any,
        previous: Model | None,
        elsewhere: Elsewhere | None = None,
    ) -> Self:
        reset = previous is None
        self._check_method()
        self._warn_of_callers()
        storage = Storage.of(self.memory)
        X, y = self._opened(X, y, storage)
        unit, frame = self._unit(), X
        self._refuse_unknown_unit(X, people)
        X = X if unit is None else without_column(X, unit.column)
        table = self._read_table(X, reset)
        rows = _rows(table)
        owners = self._people_in(frame, people, rows)
        weights = record_weights(sample_weight, rows, self.max_weight)
        y = self._target_in(X) if y is None else y
        target, weights = self._read_target(y, rows, weights, reset)
        self._refuse_inference(reset)  # and what the loss refuses: before anything is spent
        with self._charged(not reset, elsewhere) as charge, shown(self.verbose) as progress:
            charge.refuse_foreign(() if reset else self._procedures)
            spending = charge.spending() if self.method == "recipe" else None
            if spending is not None:
                spending.progress = progress
            averaging = 1.0
            if owners is not None:
                weights, averaging = self._shared(owners, weights, _needed(spending))
            if reset:
                self._encoding = self._new_encoding(X, table, weights, spending)
            encoded = self._encoding.on_demand(table)
            target, bounds = self._bounded_target(target, weights, spending)
            columns = self._encoding.columns
            records = Encoded(encoded, target, columns, weights, bounds, owners, averaging, storage)
            if spending is None:
                model = by_theorem(self.method, self._loss(), records, charge, self.records)
            else:
                model = self._by_recipe(records, spending)
            distance = 0.0 if spending is None else spending.distance
            self.certificate_ = charge.certificate(distance, (*self._not_covered(), *what_callers_did()))
        names = getattr(self, "feature_names_in_", None)
        label = None if self.schema is None else schema_of(self.schema).target
        told = (label or "", self._class_names())
        self.diagnosis_ = diagnosis(self._encoding, names, model.counts, model.released, told)
        model = without_empty(model, self._encoding, self.diagnosis_.empty)
        own = charge.plan.digest()
        self._procedures = (own,) if reset else (*self._procedures, own)
        self._model = model if previous is None else previous.joined(model)
        self._publish()
        warn_undeclared(model, self._declared())
        warn_unseen(self._encoding)
        if spending is not None:
            warn_noise(model, spending.strength)
        warn_weak(self._budget())
        return self

    def _warn_of_callers(self) -> None:
        """Say what several fits cost together, where no ledger adds them up."""
        told = repeated(self._budget()) if self.ledger is None else None
        if told is not None:
            warnings.warn(told, DeclarationWarning, stacklevel=4)

    def _opened(self, X: Any, y: Any, storage: Storage) -> tuple[Any, Any]:
        """A table that is elsewhere, read once; the target, if it is named, taken out of its table."""
        source, name = source_of(X), y if isinstance(y, str) else None
        if source is not None:
            columns = self._to_read(source, name, target=y is None)
            X = spooled(source.chunks(columns), columns, storage)
        if name is None:
            return X, y
        if name not in (column_names(X) or ()):
            raise InvalidParameter("y", name, "must be a column of X, or hold a target for each row.")
        return without_column(X, name), lazy_column(X, name)

    def _to_read(self, source: Source, name: str | None, target: bool) -> dict[str, Column | Unit]:
        """What has to be read of a source: the columns of the schema, or all of them as numbers."""
        columns: dict[str, Column | Unit] = {}
        unit = self._unit()
        if self.schema is not None:
            schema = schema_of(self.schema)
            wanted = {*schema.features, *([schema.target] if target else []), name}
            columns = {key: column for key, column in schema.columns.items() if key in wanted}
        else:
            beside = {name, None if unit is None else unit.column}
            columns.update(all_numbers(source, [key for key in source.names if key not in beside]))
        if name is not None and name not in columns:
            columns[name] = self._plain_target()
        return columns if unit is None else columns | {unit.column: unit}

    def _plain_target(self) -> Column:
        """What the column of a target is where no schema says it."""
        return Numeric()

    def _class_names(self) -> tuple[str, ...]:
        """What the classes of the target are called in words; none of a regression."""
        return ()

    def _unit(self) -> Unit | None:
        """Whom the guarantee is for, if not single rows: as given here, or by the schema."""
        if self.unit is not None or self.schema is None:
            return unit_of(self.unit)
        return schema_of(self.schema).unit

    def _refuse_unknown_unit(self, X: Any, people: Any) -> None:
        """Raise unless there are ids for the unit, and a unit for ids."""
        unit = self._unit()
        if unit is None and people is not None:
            raise InvalidParameter("unit", None, "must name what people= holds, such as unit='person_id'.")
        if unit is not None and people is None and unit.column not in (column_names(X) or ()):
            requirement = "must be a column of X, or its ids must be given: fit(X, y, people=ids)."
            raise InvalidParameter("unit", unit.column, requirement)

    def _people_in(self, X: Any, people: Any, rows: int) -> People | None:
        """Whose each row is; None if single rows are protected."""
        unit = self._unit()
        if unit is None:
            return None
        people = column_values(X, unit.column) if people is None else people
        return People.of(one_for_each_row("people", people, rows))

    def _shared(self, people: People, weights: Array | None, spending: Spending) -> tuple[Array, float]:
        """Weights that sum to at most 1 for each person, and how much averaging shortens gradients."""
        unit = self._unit()
        declared = None if unit is None else unit.rows
        found = (
            learned_rows(people, spending, self.n_features_in_ + 1)
            if declared is None
            else declared_rows(declared)
        )
        return people.weights(found.least, weights), found.averaging

    def _by_recipe(self, records: Encoded, spending: Spending) -> Any:
        seen = np.setdiff1d(np.arange(records.columns.width), self._encoding.guessed)
        whole = len(seen) == records.columns.width or issparse(records.x)
        used = records if whole else records.part(seen)
        model = by_recipe(self._loss(), used, spending, self._references() if whole else None)
        return model if whole else model.widened(seen, records.columns.width)

    def _refuse_inference(self, reset: bool) -> None:
        """Raise if standard errors are asked for where there are none."""
        if not isinstance(self.inference, bool):
            raise InvalidParameter("inference", self.inference, "must be True or False.")
        if self.inference and not (
            self.method == "recipe" and kind_of(self._loss()) is not None and self.row_norm is None and reset
        ):
            requirement = "is for least squares, two classes and counts: one fit by the recipe, with columns."
            raise InvalidParameter("inference", True, requirement)

    def _references(self) -> dict[int, int] | None:
        """Declared references by the number of their group; None without inference."""
        if not self.inference:
            return None
        groups = self._encoding.groups if isinstance(self._encoding, SchemaEncoding) else {}
        columns = [self._encoding.schema.features[name] for name in groups]  # type: ignore[attr-defined]
        return {
            number: column.values.index(column.reference)
            for number, column in enumerate(columns)
            if isinstance(column, Category) and column.reference is not None
        }

    def _check_method(self) -> None:
        method = one_of("method", self.method, METHODS)
        if self._unit() is not None and method != "recipe":
            raise InvalidParameter("method", method, "protects single records; a unit needs method='recipe'.")
        if self._chosen_arithmetic() == "hardened" and method != "recipe":
            raise InvalidParameter("arithmetic", "hardened", "is for method='recipe'.")

    def _chosen_arithmetic(self) -> Arithmetic:
        """As asked for; else the one whose proof covers most: hardened, where the method has it."""
        if self.arithmetic is None:
            return "hardened" if self.method == "recipe" else "float"
        asked = one_of("arithmetic", self.arithmetic, ("float", "hardened"))
        return "float" if asked == "float" else "hardened"

    def _charged(self, continued: bool, elsewhere: Elsewhere | None = None) -> AbstractContextManager[Charge]:
        return charged(
            type(self).__name__,
            self._settings(),
            self._budget(),
            self.ledger,
            self.ledger_key,
            self.unsafe_seed,
            self._chosen_arithmetic(),
            staged=self.method == "recipe",
            continued=continued,
            elsewhere=elsewhere,
        )

    def _budget(self) -> Budget:
        unit: Protected = "record" if self._unit() is None else "person"
        return Budget(self.epsilon, self.delta, neighbours_named(self.neighbours), unit=unit)

    def _publish(self) -> None:
        """The fitted attributes, in the units of the table."""
        coef, intercept = self._encoding.in_units_of_table(self._model.coefficients, self._model.intercept)
        self.coef_, self.intercept_ = coef.T, intercept
        names = self._encoding.names or getattr(self, "feature_names_in_", None)
        self.coef_names_ = None if names is None else np.array(names, object)

    # ---- reading tables ----

    def _target_column(self) -> Column | None:
        """The target as the schema declares it; None if it does not."""
        schema = None if self.schema is None else schema_of(self.schema)
        return None if schema is None or schema.target is None else schema.columns[schema.target]

    def _target_in(self, X: Any) -> Any:
        """The column of a frame that the schema names as the target; None if there is no such column."""
        name = None if self.schema is None else schema_of(self.schema).target
        return lazy_column(X, name) if name is not None and name in (column_names(X) or ()) else None

    def _refuse_target(self, remedy: str) -> NoReturn:
        target = schema_of(self.schema).target
        raise InvalidParameter("schema.target", target, f"{target!r} {remedy}")

    def _read_table(self, X: Any, reset: bool) -> Any:
        """The table, if its columns are those of the schema or of the fit. Refusals depend on names and shapes."""
        unit = self._unit()
        X = X if unit is None else without_column(X, unit.column)
        if self.schema is not None:
            schema = schema_of(self.schema)
            columns = schema_columns(X, schema)
            if reset:
                self.feature_names_in_ = np.array(list(schema.features), object)
                self.n_features_in_ = len(columns)
            return X
        table = number_table(X, None if reset else self.n_features_in_)
        if not isinstance(X, Spooled):
            validate_data(self, X, reset=reset, skip_check_array=True)
        elif reset:  # scikit-learn does not know such a table
            self.feature_names_in_ = np.array(X.column_names, object)
        if reset:
            self.n_features_in_ = table.shape[1]
        return table

    def _new_encoding(self, X: Any, table: Any, weights: Array | None, spending: Spending | None) -> Encoding:
        """The encoding that was declared; what was not is learnt out of the budget."""
        if sum(given is not None for given in (self.schema, self.bounds, self.row_norm)) > 1:
            raise InvalidParameter(
                "schema", "bounds, row_norm", "declare one of schema, bounds and row_norm."
            )
        if self.schema is not None:
            schema = schema_of(self.schema)
            if schema.undeclared:
                columns = schema_columns(table, schema)
                learned = _learned(_undeclared(columns, schema), weights, spending)
                names = schema.undeclared
                schema = schema.with_bounds(dict(zip(names, learned.ranges, strict=True)))
                guessed = [name for name, seen in zip(names, learned.found, strict=True) if not seen]
                return SchemaEncoding(schema, tuple(guessed))
            return SchemaEncoding(schema)
        if self.row_norm is not None:
            return BoundedRows(self.n_features_in_, self.row_norm)
        if self.bounds is not None:
            return BoundedNumbers(*bounds_of(self.bounds, self.n_features_in_, column_names(X)))
        ranges, found = _learned(table, weights, spending)
        if issparse(table):  # zeros must stay zeros
            ranges = [(0.0, max(upper, -lower)) for lower, upper in ranges]
        lower, upper = np.array(ranges).reshape(-1, 2).T
        return BoundedNumbers(lower, upper, guessed=np.flatnonzero(~found))

    def _settings(self) -> dict[str, Any]:
        """The parameters as declared, for the certificate. They are public."""
        hidden = {"ledger", "ledger_key", "verbose", "unsafe_seed", "memory"}
        hidden |= {name for name, used in (("unit", self._unit()), ("inference", self.inference)) if not used}
        settings = self.get_params(deep=False) | {
            "arithmetic": self._chosen_arithmetic(),
            "unit": self._unit(),
        }
        return {name: plain(value) for name, value in settings.items() if name not in hidden}

    # ---- answering ----

    def coefficients(self) -> Coefficients:
        """The coefficients by name, in the table's units; the effects of a category's values have the mean 0."""
        check_is_fitted(self)
        return FittedModel.of(self).coefficients()

    def plot(self, count: int = 10) -> Any:
        """The largest effects as a picture, which a notebook shows and ``save("effects.svg")`` writes."""
        return self.coefficients().plot(count)

    def _repr_html_(self) -> str:
        if not hasattr(self, "_model"):
            return str(super()._repr_html_())
        return FittedModel.of(self)._repr_html_()

    def summary(self, confidence: float = 0.95) -> Summary:
        """Coefficient, standard error and interval of each effect, and which effects are not resolved.

        It needs ``inference=True``, and costs nothing more. Effects of a category's values are differences from one
        of them: the declared ``reference``, or the most frequent one by the noisy counts of the fit.
        """
        check_is_fitted(self)
        if not self.inference:
            remedy = "a summary needs a share of the budget: fit with inference=True."
            raise InvalidParameter("inference", self.inference, remedy)
        return FittedModel.of(self).summary(confidence)

    def save(self, folder: str | PathLike[str], sign_with: Any = None) -> None:
        """Write the model into a new folder: weights, ``model.json`` and its certificate. Nothing in it could run.

        ``sign_with`` is an Ed25519 key, or the path of one in PEM. :func:`discreet.load` reads the folder.
        """
        from discreet.linear.model_folder import save_model

        check_is_fitted(self)
        save_model(self, folder, sign_with)

    def to_sklearn(self) -> Any:
        """A plain scikit-learn pipeline with the same predictions, for machines without this package."""
        check_is_fitted(self)
        return FittedModel.of(self).to_sklearn()

    def to_onnx(self) -> Any:
        """The model as an ``onnx.ModelProto``, see :meth:`FittedModel.to_onnx`."""
        check_is_fitted(self)
        return FittedModel.of(self).to_onnx()

    def _scores(self, X: Any) -> Array:
        """intercept + encoded row times coefficients, for each row and output."""
        check_is_fitted(self)
        source = source_of(X)
        if source is not None:
            names = getattr(self, "feature_names_in_", source.names)
            columns = (
                schema_of(self.schema).features if self.schema is not None else all_numbers(source, names)
            )
            X = spooled(source.chunks(columns), columns, Storage.of(self.memory))
        return self._model.scores(self._encoding.on_demand(self._read_table(X, reset=False)))

    def __sklearn_clone__(self) -> Any:
        """A fresh estimator with the same parameters and the very same ledger: a copy would be a second account."""
        fresh = type(self)(**deepcopy(self.get_params(deep=False), {id(self.ledger): self.ledger}))
        for name in ("_metadata_request", "_sklearn_output_config"):  # what scikit-learn's own clone keeps
            if hasattr(self, name):
                setattr(fresh, name, deepcopy(getattr(self, name)))
        return fresh

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = True
        tags.input_tags.sparse = True
        tags.non_deterministic = self.unsafe_seed is None
        return tags


def _by_chance(schema: Schema) -> float | None:
    """The chance to guess one of the declared classes, if all are as frequent."""
    target = None if schema.target is None else schema.columns[schema.target]
    return 1 / len(target.values) if isinstance(target, Category) else None


def _undeclared(columns: Mapping[str, Any], schema: Schema) -> OnDemand:
    """The columns without bounds, as numbers."""
    kinds: dict[str, Any] = {name: schema.features[name] for name in schema.undeclared}

    def made(rows: Any) -> NDArray[Any]:
        parts = [declared_numbers(kind, columns[name][rows], f"X[{name!r}]") for name, kind in kinds.items()]
        return np.column_stack(parts)

    return OnDemand((_rows(columns[schema.undeclared[0]]), len(kinds)), made)


def _rows(table: Any) -> int:
    return int(table.shape[0]) if hasattr(table, "shape") else len(table)


def _needed(spending: Spending | None) -> Spending:
    if spending is None:
        raise InvalidParameter(
            "bounds", None, "must be declared for this method; only 'recipe' can learn them."
        )
    return spending


def _learned(table: Any, weights: Array | None, spending: Spending | None) -> Learned:
    """Ranges for columns that have no bounds; with few records they get more of the budget."""
    spending = _needed(spending)
    records = counted(table.shape[0], weights, spending.stage("records", _RECORDS))
    wealth = Wealth(records, spending.strength, math.sqrt(table.shape[1]))
    return learned_ranges(table, weights, spending, wealth.for_marginals, records=records)


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


def warn_weak(budget: Budget) -> None:
    """Say so if a budget promises little."""
    if budget.epsilon > _WEAK:
        little = "nothing" if budget.epsilon > _VOID else "little"
        message = (
            f"epsilon {budget.epsilon:g} promises {little}: an attack that succeeds often is not excluded. "
            "Usual budgets are 0.1 to 10."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)


def warn_undeclared(model: Model, declared: str) -> None:
    """Say so if noisy counts show that many records have a target outside of what was declared.

    Guarantee: depends on released counts only. False alarms: one in about 10**6.
    """
    counts = model.counts
    if counts is not None and counts.other > max(5 * counts.noise_of_other, 0.01 * counts.records):
        message = (
            f"About {counts.other:.0f} records (a noisy count) have a target outside of {declared}: not used."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)


def warn_unseen(encoding: Encoding) -> None:
    """Say so if most bounds could not be learnt; ``diagnosis_`` names each. Depends on noisy histograms only."""
    if len(encoding.guessed) > encoding.columns.numerics / 2:
        message = (
            f"The bounds of {len(encoding.guessed)} of {encoding.columns.numerics} columns were not found, as noise "
            "hides them: these columns are not used. Declare bounds, or allow a larger epsilon."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)


def warn_noise(model: Model, strength: float) -> None:
    """Say so if a model has more coefficients than its records can tell, or therefore none. From noisy counts."""
    if model.counts is None:
        return
    size = len(model.coefficients) + 1
    wealth = Wealth(model.counts.records, strength, 1.0)
    scarcity = size / wealth.overall
    constant = size > 1 and not (wealth.sees_slopes(size) or np.any(model.coefficients))
    if scarcity > _SCARCE or constant:
        told = "a constant" if constant else "mostly noise"
        message = (
            f"This model is {told}: records times epsilon are too few for its columns by a factor of about "
            f"{max(scarcity, 2.0):.1g}."
        )
        warnings.warn(message, DeclarationWarning, stacklevel=4)
