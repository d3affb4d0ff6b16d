"""What all private linear models share: a fit, from a table to a paid model, and the answers of that model."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import replace
from itertools import zip_longest
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from discreet.core.fp_errors import ignore_fp_errors
from discreet.core.mechanisms import gaussian_event
from discreet.engines import engine_for
from discreet.errors import BudgetExceeded, InvalidParameter
from discreet.events import ApproximateDP, Event
from discreet.guarantee import Budget
from discreet.linear.column_kinds import Category
from discreet.linear.declarations import all_numbers
from discreet.linear.diagnosis import (
    DeclarationWarning,
    cost_of_repetition,
    diagnosis,
    note_of_weights,
    undecided,
    warn_noise,
    warn_of_learners,
    warn_undecided,
    warn_undeclared,
    warn_unseen,
    warn_weak,
    what_callers_did,
    without_empty,
)
from discreet.linear.encoder import SchemaEncoding, encoded_columns
from discreet.linear.fit_budget import FitBudget, open_budget
from discreet.linear.fitted_model import FittedModel
from discreet.linear.fitting import EncodedTable, fit_baseline, fit_lines, show_progress
from discreet.linear.gate.private_table import PersonRows, PrivateTable
from discreet.linear.gate.records import MISSING
from discreet.linear.glm.typical_people import UserWeighting, declared_rows, learned_rows
from discreet.linear.inputs import is_list
from discreet.linear.linear_model import LinearModel
from discreet.linear.named_coefficients import Coefficients
from discreet.linear.partitions import Partitions, refuse_other_engines
from discreet.linear.preview import EPSILONS, Preview
from discreet.linear.public_log import PublicLog
from discreet.linear.recording_spending import Tape
from discreet.linear.row_source import store_rows
from discreet.linear.schema import Schema, schema_of
from discreet.linear.sources import is_dask_frame, source_of
from discreet.linear.storage import Storage
from discreet.linear.summary import Summary
from discreet.linear.table_reader import TableReader, known_spending
from discreet.trusted.spending import BudgetAllocator

Array = NDArray[np.float64]


class PrivateLinearModel(TableReader):
    """Base of the estimators: they add the loss and what a target means.

    Guarantee: ``fit`` releases the fitted attributes within (epsilon, delta) for one record, or for one person with
    all rows if there is a ``unit``, whatever the records hold. No exception, warning or attribute depends on a record
    in any other way than through released values; refusals depend on parameters, names, types and shapes. The number
    of rows is private under add-remove neighbours and is never shown.
    """

    coef_: Array
    _procedures: tuple[str, ...]
    _budgets: tuple[Budget, ...] = ()
    _task: str
    intercept_: Any

    @abstractmethod
    def _target_range(
        self, table: Any, least: int | None, spending: BudgetAllocator | None
    ) -> tuple[float, float] | None:
        """The bounds that targets are clipped to, declared or learnt; None for classes."""

    @abstractmethod
    def _target_in_words(self) -> str:
        """What was declared of the target, in words."""

    def _not_covered(self) -> tuple[str, ...]:
        """What this fit adds to the certificate's list of what is not covered."""
        return ()

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, people: Any = None, engine: Any = None
    ) -> Self:
        """Fit the model, at the cost of (epsilon, delta).

        Without ``y``, the target is the column of the table that the schema names.
        ``sample_weight`` is divided by the declared ``max_weight`` and clamped to [0, 1].
        ``people`` are the ids of the ``unit``, one for each row, where the table has no column of them.
        ``engine`` fits :class:`~discreet.linear.partitions.Partitions` where they lie, such as
        :class:`~discreet.adapters.dask_engine.DaskEngine`. A Dask frame is fitted by its own client.
        """
        if engine is None and is_dask_frame(X):
            engine = engine_for("dask", X)
        if engine is not None:
            if sample_weight is not None or people is not None:
                raise InvalidParameter("engine", type(engine).__name__, "takes columns of the files only.")
            if self.sample is not None:
                raise InvalidParameter("sample", self.sample, "is drawn on one machine: fit without engine=.")
            refuse_other_engines(engine, "fit")
            engine.fit(self, X, y)
            return self
        if isinstance(X, Partitions):
            X = X.pattern
        return self._fit(X, y, sample_weight, people, previous=None)

    def fit_more(self, X: Any, y: Any = None, sample_weight: Any = None, people: Any = None) -> Self:
        """Go on with further records, or the same ones, at the cost of another (epsilon, delta).

        The new model and the one so far are averaged, weighed by what their noise and numbers of records say of
        their precision. It needs the ``ledger`` of the first fit, with room for one more. The guarantee of the
        certificate is then what all these fits cost together, if they had the same budget, and otherwise that of the
        ledger. It is for a number of fits that was fixed in advance; ``together``, the guarantee of the ledger, holds
        in any case.
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
            columns = encoded_columns(found).width
        if columns is None:
            raise InvalidParameter("columns", None, "must be given where there is no schema to count them.")
        budget = self._budget()
        wish = tuple(sorted({*EPSILONS, budget.epsilon}))
        even = 0.5 if guess is None else guess
        where = (budget.neighbours, budget.unit)
        return Preview(
            records, columns, budget.delta, self._task, best, even, wish, *where, self._sample() or 1.0
        )

    def event(self) -> Event:
        """What one fit releases, as one event: for a :class:`~discreet.selection.PrivateSearch`.

        Guarantee: a fit costs at most what this event costs, for the neighbours of this model. The recipe spends by a
        Gaussian filter, so in floating point all its releases together are as private as one Gaussian release that
        costs the budget. Of hardened releases only the budget itself is proved, which costs a search more.
        """
        budget = self._budget()
        if self.method == "recipe" and self._chosen_arithmetic() == "float" and self.sample is None:
            return gaussian_event(budget)
        return ApproximateDP(budget.epsilon, budget.delta)

    @ignore_fp_errors  # whatever numpy was told to raise: a record would decide
    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        people: Any,
        previous: LinearModel | None,
        partitions: Any = None,
        log: PublicLog | None = None,
        tape: Tape | None = None,
        paid: AbstractContextManager[Any] | None = None,
    ) -> Self:
        """Fit the rows of ``X``, or of ``partitions`` with the columns of ``X``, which then has no rows.

        ``paid`` stands for the budget where others charge their own ledgers: the parties of a study.
        """
        reset = previous is None
        self._check_method()
        if paid is None:
            self._warn_of_callers()
        read = self._read(X, y, sample_weight, people, reset)
        table = read if partitions is None else partitions
        self._refuse_inference(reset)  # and what the loss refuses: before anything is spent
        opened = self._open_budget(reset, log, tape) if paid is None else paid
        with opened as budget, show_progress(self.verbose) as progress:
            budget.refuse_foreign(() if reset else self._procedures)
            spending = budget.spending() if self.method == "recipe" else None
            if spending is not None:
                spending.progress = progress
                spending.admit(table)
            rate = self._sample()
            if rate is not None:
                table = table.sampled(rate, budget.stream)
            typical = self._rows_of_people(table, spending)
            least = None if typical is None else typical.least
            counted = self._count_first(table, least, spending) if reset else None
            if reset:
                self._encoding = self._new_encoding(read, table, least, spending, counted)
                if spending is not None:  # until the mean of each column is known
                    self._encoding.missing = np.full(self._encoding.columns.numerics, float(MISSING))
            read.refuse_types(self._encoding)
            bounds = self._target_range(table, least, spending)
            counts = None if counted is None else counted.counts
            records = EncodedTable(table, self._loss(), self._encoding, bounds, typical, counts, read.sparse)
            if spending is None:
                model = fit_baseline(self.method, records, budget, self.records)
            else:
                model = self._fit_model(records, spending)
            self.certificate_ = budget.certificate((*self._not_covered(), *what_callers_did()))
        if reset:
            self._encoding.missing = model.missing
        names = getattr(self, "feature_names_in_", None)
        label = None if self.schema is None else schema_of(self.schema).target
        told, unit = (label or "", self._class_names()), self._unit()
        self.diagnosis_ = diagnosis(
            self._encoding, names, model.counts, model.released, told, None if unit is None else unit.column
        )
        if sample_weight is not None:
            notes = (*self.diagnosis_.notes, note_of_weights(self.max_weight))
            self.diagnosis_ = replace(self.diagnosis_, notes=notes)
        model = without_empty(model, self._encoding, self.diagnosis_.empty)
        self.diagnosis_ = replace(self.diagnosis_, scores=undecided(model))
        own = () if budget.plan is None else (budget.plan.digest(),)
        self._procedures = own if reset else (*self._procedures, *own)
        self._budgets = (budget.budget,) if reset else (*self._budgets, budget.budget)
        self._model = model if previous is None else previous.join(model)
        self._publish()
        if self.certificate_ is not None:
            warn_of_learners(self.certificate_.not_covered)
        warn_undeclared(model, self._target_in_words())
        warn_unseen(self._encoding)
        if spending is not None:
            warn_noise(model, spending.strength)
            warn_undecided(model)
        warn_weak(self._budget())
        return self

    def _fit_recorded(
        self, tape: Tape, X: Any, y: Any, sample_weight: Any = None, people: Any = None
    ) -> Self:
        """Fit, and let an audit have every sum before its noise. The certificate says that it is not private."""
        return self._fit(X, y, sample_weight, people, previous=None, tape=tape)

    def _warn_of_callers(self) -> None:
        """Say what several fits cost together, where no ledger adds them up."""
        told = cost_of_repetition(self._budget()) if self.ledger is None else None
        if told is not None:
            warnings.warn(told, DeclarationWarning, stacklevel=4)

    def _class_names(self) -> tuple[str, ...]:
        """What the classes of the target are called in words; none of a regression."""
        return ()

    def _read(self, X: Any, y: Any, sample_weight: Any, people: Any, reset: bool) -> PrivateTable:
        """The table with its target, its weights and its people; what is public of it becomes attributes."""
        table, header = self._reader(reset).read(X, y, sample_weight, people)
        self._note_columns(header, reset)
        if reset and header.classes is not None:
            self.classes_ = header.classes
        return table

    def _rows_of_people(self, table: Any, spending: BudgetAllocator | None) -> UserWeighting | None:
        """How many rows a person typically has, declared or learnt; None if single rows are protected."""
        unit = self._unit()
        if unit is None:
            return None
        if unit.rows is not None:
            return declared_rows(unit.rows)
        return learned_rows(table.rows(PersonRows()), known_spending(spending), self.n_features_in_ + 1)

    def _fit_model(self, records: EncodedTable, spending: BudgetAllocator) -> Any:
        return fit_lines(records, spending, self._references())

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

    def _open_budget(
        self, reset: bool, log: PublicLog | None, tape: Tape | None
    ) -> AbstractContextManager[FitBudget]:
        earlier = {} if reset else dict(zip_longest(self._procedures, self._budgets))
        return open_budget(
            type(self).__name__,
            self._settings(),
            self._budget(),
            self.ledger,
            self.ledger_key,
            self.unsafe_seed,
            self._chosen_arithmetic(),
            staged=self.method == "recipe",
            sample=self._sample(),
            earlier=earlier,
            log=log,
            tape=tape,
        )

    def _publish(self) -> None:
        """The fitted attributes, in the units of the table."""
        coef, intercept = self._encoding.in_units_of_table(self._model.coefficients, self._model.intercept)
        self.coef_, self.intercept_ = coef.T, intercept
        names = self._encoding.names or getattr(self, "feature_names_in_", None)
        self.coef_names_ = None if names is None else np.array(names, object)

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
        lengths = {len(row) for row in X if isinstance(row, list | tuple)} if is_list(X) else set()
        if lengths and self.n_features_in_ not in lengths:
            raise InvalidParameter("X", "a list", f"has no row of {self.n_features_in_} cells.")
        source = source_of(X)
        if source is not None:
            names = getattr(self, "feature_names_in_", source.names)
            columns = (
                schema_of(self.schema).features if self.schema is not None else all_numbers(source, names)
            )
            X = store_rows(source.chunks(columns), columns, Storage.of(self.memory))
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
