"""Private classifiers: :class:`PrivateLogisticRegression` and :class:`PrivateSVC`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from discreet.errors import InvalidParameter
from discreet.linear.base import PrivateLinearModel
from discreet.linear.column_kinds import Category, Column, Flag, Numeric
from discreet.linear.encoder import class_numbers
from discreet.linear.losses import Logistic, Loss, SmoothedHinge, Softmax
from discreet.linear.read_parts import DeclaredTarget
from discreet.linear.table_reader import plain

Array = NDArray[np.float64]

_BINARY = (0, 1)


class PrivateClassifier(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]
    """Base of the classifiers. Labels that were not declared make a record count as nothing."""

    classes_: NDArray[Any]
    _task = "classification"

    def _target(self, reset: bool) -> DeclaredTarget:
        column = None if self.classes is not None else self._target_column()
        return DeclaredTarget(column, self._classes() if reset else self.classes_, self.class_weight)

    def _classes(self) -> Any:
        """The classes as declared: here, or by the target of the schema."""
        if self.classes is not None:
            return self.classes
        column = self._target_column()
        if column is None:
            return _BINARY
        if isinstance(column, Numeric):
            self._refuse_target(
                "has bounds, which are of a regression: declare categories or a flag, or give classes."
            )
        if isinstance(column, Category) and len(column.values) < 2:
            self._refuse_target("must have two or more categories in the schema, or be a flag.")
        return column.values if isinstance(column, Category) else (False, True)

    def _plain_target(self) -> Column:
        classes = self._classes()
        if isinstance(classes, str):
            requirement = "must be declared for a table that is read from elsewhere, for instance (0, 1)."
            raise InvalidParameter("classes", classes, requirement)
        return Category(tuple(classes)) if any(isinstance(label, str) for label in classes) else Numeric()

    def _class_names(self) -> tuple[str, ...]:
        column = None if self.classes is not None else self._target_column()
        if isinstance(column, Flag):
            return f"anything but {column.yes!r}", repr(column.yes)
        return tuple(map(repr, self.classes_.tolist()))

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"classes": plain(self._classes())}

    def _target_range(self, table: Any, least: int | None, spending: Any) -> tuple[float, float] | None:
        return None

    def _target_in_words(self) -> str:
        return f"classes={tuple(self.classes_.tolist())}"

    def _not_covered(self) -> tuple[str, ...]:
        if not isinstance(self.classes, str):
            return ()
        return ("the set of classes, which was taken from the data (classes='from-data')",)

    def _publish(self) -> None:
        super()._publish()
        if self.coef_.ndim == 1:  # two classes have one row, as scikit-learn has it
            self.coef_, self.intercept_ = self.coef_[None, :], np.atleast_1d(self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on the few records of scikit-learn's own checks
        return tags

    def decision_function(self, X: Any) -> Array:
        """The score of each row: positive for the second class; one for each class if there are more than two."""
        return self._scores(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row."""
        scores = self._scores(X)
        places = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.int64)
        return np.asarray(self.classes_[places])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose class is predicted. ``y`` is as in the table; what nobody declared is missed.

        It is exact: a release like any other, which :func:`discreet.evaluate` would pay for.
        """
        predicted = class_numbers(self.predict(X), self.classes_)
        labels = self._target(reset=False).read(y, len(predicted))
        return float(np.average(labels[:] == predicted, weights=sample_weight))


class PrivateLogisticRegression(PrivateClassifier):
    """Logistic regression, for two or more declared classes, at the cost of (epsilon, delta). No knobs.

    Parameters
    ----------
    epsilon, delta, neighbours : the budget of one fit, and between which tables it is promised.
    unit : the column that says whose a row is, by name, or a :class:`~discreet.linear.Unit`; by default that
        of the schema. The guarantee is then for a person with all rows. Rows without an id count for nothing. None
        protects single rows.
    classes : the labels, declared; by default those of the schema's target, or (0, 1). ``"from-data"`` takes
        them from ``y``, which is not covered by the guarantee.
    bounds : ``(lower, upper)`` of the columns, declared: numbers, lists, or dictionaries by column name. None
        learns them privately, out of the same budget.
    schema : a :class:`~discreet.linear.schema.Schema` or ``schema.toml`` instead of bounds.
    row_norm : a bound on the norm of a row instead of bounds, for hashed text and other sparse rows.
    class_weight : public weights of the classes, as a dictionary; the largest counts as 1.
    max_weight : the declared maximum of ``sample_weight``.
    method : ``"recipe"``, or one of :mod:`discreet.lecture.erm`.
    records : a public number of records; only the other methods need it, under add-remove neighbours.
    arithmetic : ``"hardened"``, for a proof of the very bits that are released, or ``"float"``, for one of real
        numbers. None is hardened for the recipe, and float for the other methods, which have no other.
    inference : spend a share of the budget, worked out from it, on standard errors: :meth:`summary` shows them. For
        two classes.
    ledger : what pays, and what several fits may share: a :class:`~discreet.ledger.Ledger`, a path (a ledger for
        this fit alone is begun there if there is none), a ``postgresql://`` address, or None for one in memory.
    ledger_key : the key file of a ledger at an address, or of one whose key does not lie beside it.
    unsafe_seed : a seed for tests; the certificate then says that nothing is private.
    verbose : show a progress bar for every stage on standard error.
    sample : a chance such as 0.01 for each record, or person, to be looked at: a secret sample of a large table.
    memory : bytes of encoded rows that are kept in memory, by default 2**28; the rest is in a scratch file without a
        name, in the folder for temporary files or that of a :class:`~discreet.linear.storage.Storage` given here.

    Attributes: ``coef_``, ``intercept_`` (in the table's units), ``coef_names_``, ``classes_``,
    ``n_features_in_``, ``feature_names_in_``, ``certificate_``, and ``diagnosis_``: what released numbers say of the
    table, for instance that nobody has a flag.

    >>> x = np.linspace(0, 10, 5000)[:, None]
    >>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, bounds=(0, 10)).fit(x, x[:, 0] > 3)
    >>> model.predict([[2.0], [4.0]]).tolist()
    [0, 1]
    >>> model.certificate_.guarantee.epsilon.upper, model.certificate_.guarantee.delta
    (1.0, 1e-06)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        classes: Any = None,
        bounds: Any = None,
        schema: Any = None,
        row_norm: float | None = None,
        class_weight: Any = None,
        max_weight: float = 1.0,
        neighbours: str = "add-remove",
        unit: Any = None,
        method: str = "recipe",
        records: int | None = None,
        arithmetic: str | None = None,
        inference: bool = False,
        ledger: Any = None,
        ledger_key: Any = None,
        unsafe_seed: int | None = None,
        verbose: bool = False,
        memory: Any = None,
        sample: float | None = None,
    ) -> None:
        self._keep(locals())

    def _loss(self) -> Loss:
        return Logistic() if len(self.classes_) == 2 else Softmax(len(self.classes_))

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class for each row."""
        scores = self._scores(X)
        chances = self._loss().mean(scores)
        return chances if chances.ndim == 2 else np.column_stack([1 - chances, chances])

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))


class PrivateSVC(PrivateClassifier):
    """A linear support vector machine for two declared classes, with the corner of the hinge rounded.

    ``smoothness`` is the half-width over which it is rounded. The other parameters and attributes are those of
    :class:`PrivateLogisticRegression`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        classes: Any = None,
        smoothness: float = 0.5,
        bounds: Any = None,
        schema: Any = None,
        row_norm: float | None = None,
        class_weight: Any = None,
        max_weight: float = 1.0,
        neighbours: str = "add-remove",
        unit: Any = None,
        method: str = "recipe",
        records: int | None = None,
        arithmetic: str | None = None,
        ledger: Any = None,
        ledger_key: Any = None,
        unsafe_seed: int | None = None,
        verbose: bool = False,
        memory: Any = None,
        sample: float | None = None,
    ) -> None:
        self._keep(locals())

    def _loss(self) -> Loss:
        if len(self.classes_) > 2:
            requirement = (
                "Only binary classification is supported; PrivateLogisticRegression takes more classes."
            )
            raise InvalidParameter("classes", self.classes_.tolist(), requirement)
        return SmoothedHinge(self.smoothness)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
