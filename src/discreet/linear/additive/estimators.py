"""Private additive models in scikit-learn's habits: a curve for every column, no knobs, one certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import check_is_fitted

from discreet.errors import InvalidParameter, one_of
from discreet.linear.additive.effects import Effect, Places, contributions, effects_of, in_words, places_of
from discreet.linear.additive.fit_additive import PublicColumns, fit_curves
from discreet.linear.additive.pictures import page, plot_effects
from discreet.linear.classification import PrivateLogisticRegression
from discreet.linear.column_kinds import Numeric
from discreet.linear.encoder import BoundedNumbers, Encoding, SchemaEncoding
from discreet.linear.fitting import EncodedTable
from discreet.linear.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from discreet.linear.regression import PrivateRegressor
from discreet.trusted.spending import BudgetAllocator

Array = NDArray[np.float64]


def declared_pairs(pairs: Any, places: Mapping[str, Places]) -> tuple[tuple[int, int], ...] | None:
    """Pairs of column names as places of numeric columns; None if they are to be chosen."""
    if pairs is None:
        return None
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(p, list | tuple) and len(p) == 2 for p in pairs
    ):
        requirement = "must be a list of pairs of column names, such as [('longitude', 'latitude')], or None."
        raise InvalidParameter("pairs", pairs, requirement)
    found = []
    for pair in pairs:
        columns = [places[name].numeric if name in places else None for name in pair]
        if None in columns or columns[0] == columns[1]:
            raise InvalidParameter("pairs", pair, "must be two different numeric columns of the table.")
        found.append((int(columns[0] or 0), int(columns[1] or 0)))
    if len({frozenset(pair) for pair in found}) < len(found):
        raise InvalidParameter("pairs", pairs, "must not hold a pair twice.")
    return tuple(found)


def declarations(encoding: Encoding) -> PublicColumns:
    """What an encoding says of its columns."""
    columns = encoding.columns
    if isinstance(encoding, SchemaEncoding):
        zeros = _zeros(encoding.lower, encoding.upper)
        shapes = [getattr(column, "shape", "free") for column in encoding.numerics.values()]
        return PublicColumns(columns, tuple(zeros), _flags(encoding), tuple(shapes))
    assert isinstance(encoding, BoundedNumbers)
    zeros = _zeros(encoding.lower, encoding.upper)
    return PublicColumns(columns, tuple(zeros), {}, ("free",) * columns.numerics)


def _zeros(lower: Array, upper: Array) -> list[float]:
    """Where the number 0 is in each column, in units of its bounds."""
    return [float(-low / (high - low)) for low, high in zip(lower, upper, strict=True)]


def _flags(encoding: SchemaEncoding) -> dict[int, int]:
    """For each numeric column with a flag of missing values, the place of that flag."""
    places, found = list(encoding.numerics), {}
    start = len(places)
    for name, labels in encoding.groups.items():
        if isinstance(encoding.schema.features[name], Numeric):
            found[places.index(name)] = start
        start += len(labels)
    return found


class Additive:
    """What both additive estimators add to the linear ones: how they are fitted, and how they are looked at."""

    method: str = "recipe"
    row_norm: float | None = None
    records: int | None = None
    coef_names_: Any
    chosen_: str
    curves_: dict[str, Effect]
    pairs: Any
    _encoding: Any
    _model: Any

    def _fit_model(self, records: EncodedTable, spending: BudgetAllocator) -> Any:
        declared, loss = declarations(self._encoding), self._loss()  # type: ignore[attr-defined]
        schema = getattr(self._encoding, "schema", None)
        pairs = self.pairs if schema is None or self.pairs is not None else schema.pairs or None
        declared = replace(declared, pairs=declared_pairs(pairs, self._places_of_columns()))
        monotone = [shape for shape in declared.shapes if shape in ("increasing", "decreasing")]
        if monotone and loss.outputs > 1:
            requirement = "is for one score: two classes, a number or a count."
            raise InvalidParameter("shape", monotone[0], requirement)
        return fit_curves(
            records.rows(whole_rows=True),
            declared,
            spending,
            target_bounds=records.target_bounds,
            averaging=records.averaging,
            counts=records.counts,
        )

    def _places_of_columns(self) -> dict[str, Places]:
        return places_of(self._encoding, self._column_names())

    def _publish(self) -> None:
        """The fitted attributes, in the units of the table."""
        self.coef_names_ = np.array(self._column_names(), object)
        self._places = self._places_of_columns()
        self.curves_, self.intercept_ = effects_of(self._model, self._places)
        self.chosen_ = in_words(self._model)

    def _column_names(self) -> list[str]:
        """The table's columns, by their names where it has any."""
        names = getattr(self, "feature_names_in_", None)
        return [f"x{j}" for j in range(self.n_features_in_)] if names is None else list(names)  # type: ignore[attr-defined]

    def coefficients(self) -> NoReturn:
        """There are none: ``curves_`` tell the effects."""
        raise InvalidParameter("coefficients", type(self).__name__, "has curves; see curves_.")

    def summary(self, confidence: float = 0.95) -> NoReturn:
        """There is none: what is fitted is a curve, and it is smoothed."""
        raise InvalidParameter("summary", type(self).__name__, "no valid errors are known for curves.")

    def explain(self, row: Any) -> dict[str, Any]:
        """What each column adds to the score of one row (a table of one row), and the intercept.

        The sum of all is the score: the log-odds of the second class, the logarithm of an expected count, or the
        expected number before it is clamped to its bounds.
        """
        check_is_fitted(self)
        encoded = self._encoding.encode(self._read_table(row, reset=False))  # type: ignore[attr-defined]
        if encoded.shape[0] != 1:
            raise InvalidParameter("row", f"{encoded.shape[0]} rows", "must be a table of one row.")
        dense = encoded.toarray() if issparse(encoded) else encoded
        return contributions(self._model, dense[0], self._places, self.curves_, self.intercept_)

    def plot(self, columns: Any = None) -> Any:
        """The curves as a matplotlib figure, of all columns or of those that are named."""
        check_is_fitted(self)
        names = list(self.curves_) if columns is None else list(columns)
        unknown = [name for name in names if name not in self.curves_]
        if unknown:
            raise InvalidParameter("columns", unknown, f"must be among {list(self.curves_)}.")
        return plot_effects({name: self.curves_[name] for name in names})

    def _repr_html_(self) -> str:
        if not hasattr(self, "curves_"):
            return str(super()._repr_html_())  # type: ignore[misc]
        headline: str = self.certificate_.headline  # type: ignore[attr-defined]
        return page(type(self).__name__, self.curves_, headline)


class PrivateAdditiveClassifier(Additive, PrivateLogisticRegression):
    """A curve for every numeric column and a level for every category, for two or more declared classes.

    The parameters are those of :class:`~discreet.linear.classification.PrivateLogisticRegression`, without
    ``row_norm`` and the choice of a method. There are no knobs: how many knots the curves have, and how smooth they
    are, follows from the budget and noisy counts; with few records a curve is a line.

    pairs : numeric columns that act together, such as ``[("longitude", "latitude")]``; they get a grid. By default
        they are those of the schema, or, if it has none, at most three are chosen privately, of two classes, where
        the budget can carry that; ``()`` is none.

    Attributes: ``curves_`` (by column, then by pair), ``chosen_`` (curves or lines, and why), ``intercept_``,
    ``classes_``, ``certificate_``.

    >>> x = np.linspace(-1, 1, 20_000)[:, None]
    >>> model = PrivateAdditiveClassifier(epsilon=1.0, bounds=(-1, 1)).fit(x, abs(x[:, 0]) > 0.5)
    >>> model.predict([[-0.9], [0.0], [0.9]]).tolist()
    [1, 0, 1]
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        classes: Any = None,
        bounds: Any = None,
        schema: Any = None,
        pairs: Any = None,
        class_weight: Any = None,
        max_weight: float = 1.0,
        neighbours: str = "add-remove",
        unit: Any = None,
        arithmetic: str | None = None,
        ledger: Any = None,
        ledger_key: Any = None,
        unsafe_seed: int | None = None,
        verbose: bool = False,
        memory: Any = None,
    ) -> None:
        self._keep(locals())

    def _loss(self) -> Loss:
        return Logistic() if len(self.classes_) == 2 else Softmax(len(self.classes_))


class PrivateAdditiveRegressor(Additive, PrivateRegressor):
    """A curve for every numeric column and a level for every category, for a number or a count.

    ``loss`` is ``"squared"``, ``"huber"`` (distances beyond a tenth of the width of the target's bounds count only
    linearly) or ``"poisson"`` (counts, with the log link). The other parameters are those of
    :class:`~discreet.linear.regression.PrivateLinearRegression`, without ``row_norm`` and the choice of a method.

    >>> x = np.linspace(-1, 1, 20_000)[:, None]
    >>> model = PrivateAdditiveRegressor(epsilon=1.0, bounds=(-1, 1), target_bounds=(0, 1)).fit(x, x[:, 0] ** 2)
    >>> bool(abs(model.predict([[0.0]])[0]) < 0.1), bool(model.predict([[-0.9]])[0] > 0.6)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        target_bounds: Any = None,
        loss: str = "squared",
        bounds: Any = None,
        schema: Any = None,
        pairs: Any = None,
        max_weight: float = 1.0,
        neighbours: str = "add-remove",
        unit: Any = None,
        arithmetic: str | None = None,
        ledger: Any = None,
        ledger_key: Any = None,
        unsafe_seed: int | None = None,
        verbose: bool = False,
        memory: Any = None,
    ) -> None:
        self._keep(locals())

    def _loss(self) -> Loss:
        kind = one_of("loss", self.loss, ("squared", "huber", "poisson"))
        if kind == "squared":
            return Squared()
        if kind == "poisson":
            return Poisson()
        lower, upper = self.target_bounds_ or (0.0, 1.0)
        return Huber((upper - lower) / 10)

    @property
    def _task(self) -> str:  # type: ignore[override]
        return "counts" if self.loss == "poisson" else "regression"

    def _usable(self, bounds: tuple[float, float]) -> tuple[float, float]:
        return (0.0, max(bounds[1], 1.0)) if self.loss == "poisson" else bounds

    def _target_in_words(self) -> str:
        return "finite counts" if self.loss == "poisson" else "finite numbers"

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R2, or for counts the share of the Poisson deviance that the model explains."""
        if self.loss != "poisson":
            return float(super().score(X, y, sample_weight))
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))
