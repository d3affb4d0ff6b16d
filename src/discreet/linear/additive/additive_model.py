"""A released additive model: :class:`AdditiveModel`, which has the shape of the linear one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.linear.additive.basis import Basis, Curve, hats, products
from discreet.linear.additive.histograms import Histograms
from discreet.linear.glm.columns import Columns
from discreet.linear.glm.marginals import Released
from discreet.linear.glm.noisy_counts import Counts

Array = NDArray[np.float64]

_ROWS = 2**16  # that are answered at once


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """The basis, the coefficients of its columns, and the intercept.

    ``precision`` weighs models that are joined, ``counts`` and ``histograms`` were released with the fit.
    """

    basis: Basis
    coefficients: Array
    intercept: Array
    precision: float
    counts: Counts | None = None
    histograms: Histograms | None = None
    released: Released | None = None
    others: tuple[AdditiveModel, ...] = ()
    inference = None

    def parts(self) -> Iterator[tuple[float, AdditiveModel]]:
        """The models that this one is the mean of, with their weights."""
        models = (replace(self, others=()), *self.others)
        total = sum(model.precision for model in models)
        return ((model.precision / total, model) for model in models)

    def scores(self, encoded: Any) -> Array:
        """The sum of the curves, levels, products and the intercept, for each row and output."""
        found: list[Array] = []
        for start in range(0, max(1, encoded.shape[0]), _ROWS):
            part = encoded[start : start + _ROWS]
            rows = part.toarray() if issparse(part) else np.asarray(part)
            found.append(sum(weight * model._scores(rows) for weight, model in self.parts()))  # type: ignore[arg-type]
        return np.concatenate(found)

    def added(self, column: int, values: Array) -> Array:
        """What numeric column ``column`` adds to the score at these values in [0, 1]."""
        curve, start = self.basis.curves[column], self.basis.starts[column]
        part = self.coefficients[start : start + len(curve.kept)]
        return np.asarray(hats(values, curve.knots)[:, curve.kept] @ part, np.float64)

    def together(self, columns: tuple[int, int], rows: NDArray[Any]) -> Array:
        """What two columns add together, for each encoded row, beside their curves."""
        first = len(self.basis.curves) + len(self.basis.inputs.groups)
        total = np.zeros((len(rows), *self.coefficients.shape[1:]))
        for pair, start in zip(self.basis.pairs, self.basis.starts[first:], strict=False):
            if pair.columns == columns:
                total += products(pair, rows) @ self.coefficients[start : start + len(pair.kept)]
        return total

    def levels(self, place: int, size: int) -> Array:
        """What ``size`` one-hot columns add, from ``place`` on, counted in the columns before the curves."""
        first = self.basis.starts[len(self.basis.curves)] + place - self.basis.inputs.numerics
        return self.coefficients[first : first + size]

    def _scores(self, rows: NDArray[Any]) -> Array:
        return np.asarray(self.basis.expanded(rows) @ self.coefficients + self.intercept, np.float64)

    def without(self, columns: NDArray[np.bool_], constant: Array) -> AdditiveModel:
        """The model without curves and levels of these columns, whose values are ``constant`` in every record."""
        starts, inputs, dead = self.basis.starts, self.basis.inputs, np.zeros(self.basis.columns.width, bool)
        for curve, start in zip(self.basis.curves, starts, strict=False):
            dead[start : start + len(curve.kept)] = columns[curve.column]
        first = starts[len(self.basis.curves)]
        dead[first : first + sum(inputs.groups)] = columns[inputs.categories]
        moved = self.basis.expanded(constant[None])[0][dead] @ self.coefficients[dead]
        kept = np.where(dead, 0.0, self.coefficients.T).T
        return replace(self, coefficients=kept, intercept=np.asarray(self.intercept + moved))

    def joined(self, other: AdditiveModel) -> AdditiveModel:
        """The mean of two models, each with the weight of its precision."""
        return replace(self, others=(*self.others, other), counts=other.counts, released=other.released)


def as_curves(
    columns: Columns, lower: Array, upper: Array, coefficients: Array
) -> tuple[Basis, Array, Array]:
    """A linear model of encoded columns as one of curves with two knots: basis, coefficients, and what the
    intercept grows by."""
    count = columns.numerics
    ends = [(low, high if high > low else low + 1e-6) for low, high in zip(lower, upper, strict=True)]
    curves = tuple(Curve(j, np.array(ends[j]), np.array([1])) for j in range(count))
    widths = np.array([high - low for low, high in ends[:count]])
    turned = np.array(coefficients)
    turned[:count] = (coefficients[:count].T * widths).T
    starts = np.array([low for low, _ in ends[:count]])
    return Basis(columns, curves), turned, np.asarray(starts @ coefficients[:count])
