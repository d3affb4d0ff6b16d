"""Private regressions: :class:`PrivateLinearRegression` and :class:`PrivatePoissonRegressor`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from discreet.errors import InvalidParameter, one_of
from discreet.linear.base import PrivateLinearModel
from discreet.linear.column_kinds import Date, Numeric
from discreet.linear.declarations import target_range
from discreet.linear.gate.private_table import TargetColumn
from discreet.linear.glm.ranges import learned_ranges
from discreet.linear.losses import Huber, Loss, Poisson, Squared
from discreet.linear.read_parts import DeclaredTarget
from discreet.linear.residuals import checked_loss
from discreet.linear.table_reader import plain
from discreet.trusted.spending import BudgetAllocator

Array = NDArray[np.float64]

_TARGET = 0.10  # share of the budget for the bounds of the target, if they are not declared


class PrivateRegressor(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    """Base of the regressions. Targets outside of their bounds are clamped; what is no number does not count."""

    _task = "regression"

    def _target(self, reset: bool) -> DeclaredTarget:
        if reset:
            self.target_bounds_ = target_range(self._declared_bounds())
        return DeclaredTarget(self._target_column(), counts=self._task == "counts")

    def _declared_bounds(self) -> Any:
        """The bounds of the target as declared: here, or by the target of the schema."""
        column = self._target_column()
        if self.target_bounds is not None or column is None:
            return self.target_bounds
        if not isinstance(column, Numeric) or isinstance(column, Date):
            self._refuse_target("must have bounds in numbers; categories and flags are of a classification.")
        return (column.lower, column.upper) if column.declared else None

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"target_bounds": plain(self._declared_bounds())}

    def _target_range(
        self, table: Any, least: int | None, spending: BudgetAllocator | None
    ) -> tuple[float, float] | None:
        if self.target_bounds_ is None:
            if spending is None:
                requirement = "must be declared for this method; only 'recipe' can learn them."
                raise InvalidParameter("target_bounds", None, requirement)
            rows = table.rows(TargetColumn(least))
            self.target_bounds_ = learned_ranges(
                rows, spending, _TARGET, "target-range", by_mass=True
            ).ranges[0]
        return self._usable(self.target_bounds_)

    def _usable(self, bounds: tuple[float, float]) -> tuple[float, float]:
        """The bounds as the loss can use them."""
        return bounds

    def _target_in_words(self) -> str:
        return "finite numbers"

    def _publish(self) -> None:
        super()._publish()
        self.intercept_ = float(self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few records of scikit-learn's own checks
        return tags

    def predict(self, X: Any) -> Array:
        """The expected target of each row, within the bounds of the target."""
        scores = self._scores(X)
        return np.clip(self._loss().mean(scores), *self._usable(self.target_bounds_))  # type: ignore[arg-type]


class PrivateLinearRegression(PrivateRegressor):
    """Linear regression by least squares, or by Huber's loss, at the cost of (epsilon, delta). No knobs.

    ``target_bounds`` are the public bounds of the target; None takes
    those of the schema's target, or learns them privately, out of the same budget.
    ``loss="huber"`` counts distances beyond ``huber_threshold``, in the target's units, only linearly; by default
    that is a tenth of the width of the target's bounds, and much less makes the descent slow. ``loss`` may also be a
    :class:`~discreet.linear.losses.Loss` of numbers, your own for instance (docs/extending.md). The other parameters
    and attributes are those of :class:`~discreet.linear.classification.PrivateLogisticRegression`, without classes.

    >>> x = np.linspace(0, 10, 5000)[:, None]
    >>> model = PrivateLinearRegression(epsilon=1.0, bounds=(0, 10), target_bounds=(0, 50)).fit(x, 3 * x[:, 0] + 7)
    >>> bool(abs(model.coef_[0] - 3) < 0.3), bool(abs(model.predict([[5.0]])[0] - 22) < 1)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        target_bounds: Any = None,
        loss: str | Loss = "squared",
        huber_threshold: float | None = None,
        bounds: Any = None,
        schema: Any = None,
        row_norm: float | None = None,
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
        if isinstance(self.loss, Loss):
            if self.loss.kind != "numbers":
                raise InvalidParameter("loss", self.loss, "must be a loss of numbers.")
            return checked_loss(self.loss)
        if one_of("loss", self.loss, ("squared", "huber")) == "squared":
            return Squared()
        if self.huber_threshold is not None:
            return Huber(self.huber_threshold)
        lower, upper = self.target_bounds_ or (0.0, 1.0)
        return Huber((upper - lower) / 10)


class PrivatePoissonRegressor(PrivateRegressor):
    """Regression of counts with the log link, at the cost of (epsilon, delta). No knobs.

    ``target_bounds=(0, most)`` declares the largest count; larger ones are clamped, negative ones do not count.
    ``score`` is the share of the deviance that is explained. The other parameters and attributes are those of
    :class:`~discreet.linear.classification.PrivateLogisticRegression`, without classes.
    """

    _task = "counts"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        target_bounds: Any = None,
        bounds: Any = None,
        schema: Any = None,
        row_norm: float | None = None,
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
        return Poisson()

    def _usable(self, bounds: tuple[float, float]) -> tuple[float, float]:
        return 0.0, max(bounds[1], 1.0)

    def _target_in_words(self) -> str:
        return "finite counts"

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the Poisson deviance that the model explains (D2); 0 is a constant, 1 is perfect."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))
