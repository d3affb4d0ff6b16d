"""Principal components of private rows: :class:`PrivatePCA`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from discreet.certificate import Certificate
from discreet.errors import InvalidParameter, whole
from discreet.guarantee import Budget, neighbours_named
from discreet.statistics.bounded_sums import bounded_rows, covariance_of, second_moments

Array = NDArray[np.float64]


class PrivatePCA:
    """Principal components of columns within declared bounds, from their private covariance matrix.

    Attributes: ``mean_``, ``covariance_``, ``components_`` (a row each, as scikit-learn's), ``explained_variance_``,
    ``certificate_``.

    Guarantee: ``fit`` costs (epsilon, delta) at most, whatever the records hold; the components follow from the
    released matrix.

    >>> rng = np.random.default_rng(0)
    >>> x = np.outer(rng.uniform(-1, 1, 5000), [3.0, 4.0]) / 5
    >>> model = PrivatePCA(1, epsilon=1.0, delta=1e-6, bounds=(-1, 1)).fit(x)
    >>> np.abs(model.components_ @ [0.6, 0.8]).round(2).tolist()
    [1.0]
    """

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        bounds: Any,
        neighbours: str = "add-remove",
        ledger: Any = None,
        ledger_key: Any = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta, self.bounds = n_components, epsilon, delta, bounds
        self.neighbours, self.ledger, self.ledger_key = neighbours, ledger, ledger_key
        self.unsafe_seed = unsafe_seed
        self.certificate_: Certificate

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components, at the cost of (epsilon, delta)."""
        budget = Budget(self.epsilon, self.delta, neighbours_named(self.neighbours))
        rows, middle, half = bounded_rows(X, self.bounds)
        kept = whole("n_components", self.n_components, at_least=1, at_most=rows.shape[1])
        moments, noise, purchase = second_moments(
            (rows - middle) / half,
            "private components",
            budget,
            ledger=self.ledger,
            ledger_key=self.ledger_key,
            unsafe_seed=self.unsafe_seed,
        )
        self.covariance_, _ = covariance_of(moments, noise, half)
        number = max(float(moments[0, 0]) / len(half), 1.0)
        self.mean_: Array = middle + half * np.clip(moments[0, 1:] / np.sqrt(len(half)) / number, -1, 1)
        values, vectors = np.linalg.eigh(self.covariance_)
        self.explained_variance_: Array = np.maximum(values[::-1][:kept], 0.0)
        self.components_: Array = np.ascontiguousarray(vectors[:, ::-1].T[:kept])
        self.certificate_ = purchase.certificate
        return self

    def transform(self, X: Any) -> Array:
        """The rows, within the bounds, in the components."""
        if not hasattr(self, "components_"):
            raise InvalidParameter("X", "before fit", "call fit() first.")
        rows, _, _ = bounded_rows(X, self.bounds)
        return np.asarray((rows - self.mean_) @ self.components_.T)
