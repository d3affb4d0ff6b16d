"""The ways to fit a private linear model, behind one interface: encoded records in, a :class:`Model` out.

``"recipe"`` is the one without knobs (:func:`~discreet.linear.glm.glm.fit_glm`). The others are those of
:mod:`discreet.lecture.erm`: they need a loss of bounded slope with one output, and, under add-remove
neighbours, a public number of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from discreet.errors import InvalidParameter
from discreet.linear.charging import Charge
from discreet.linear.glm.columns import Columns
from discreet.linear.glm.glm import fit_glm
from discreet.linear.glm.inference import Inference
from discreet.linear.glm.marginals import Released
from discreet.linear.glm.noisy_counts import Counts
from discreet.linear.glm.people import People
from discreet.linear.glm.spending import Spending
from discreet.linear.inputs import OnDemand
from discreet.linear.losses import Loss
from discreet.linear.storage import Storage

Array = NDArray[np.float64]

METHODS = ("recipe", "descent", "output-perturbation", "objective-perturbation", "exponential")
_THEOREMS = "discreet.lecture.erm"  # loaded for the methods with theorems only


@dataclass(frozen=True, eq=False)
class Model:
    """A released linear model in the units of the encoded columns.

    ``precision`` is one over the variance of a coefficient, in units in which the columns are white, as far as it
    follows from what was released; it weighs models that are joined. ``limits`` are the ends of the part of each
    column in which records were found, beyond which a line means nothing. ``counts`` are the noisy numbers of
    records, None for the methods with theorems, and ``released`` those in each column, where there were enough.
    ``inference`` are estimates with their errors, where they were asked for and there were enough records.
    """

    coefficients: Array
    intercept: Array
    precision: float
    limits: tuple[Array, Array]
    counts: Counts | None = None
    released: Released | None = None
    inference: Inference | None = None

    def scores(self, encoded: Any) -> Array:
        """intercept + row times coefficients, for each row and output; values beyond the limits count as these."""
        lower, upper = self.limits
        if not issparse(encoded):
            return np.asarray(np.clip(encoded, lower, upper) @ self.coefficients + self.intercept, np.float64)
        zero = np.clip(0.0, lower, upper)  # what an empty cell counts as
        rows = csr_array(encoded, dtype=np.float64, copy=True)
        rows.data = np.clip(rows.data, lower[rows.indices], upper[rows.indices]) - zero[rows.indices]
        return np.asarray(rows @ self.coefficients + zero @ self.coefficients + self.intercept, np.float64)

    def without(self, columns: NDArray[np.bool_], constant: Array) -> Model:
        """The model with coefficients 0 for these columns, whose values are ``constant`` in every record."""
        moved = np.clip(constant, *self.limits)[columns] @ self.coefficients[columns]
        kept = np.where(columns, 0.0, self.coefficients.T).T
        return replace(self, coefficients=kept, intercept=np.asarray(self.intercept + moved))

    def widened(self, seen: NDArray[np.intp], width: int) -> Model:
        """The model of ``width`` columns, of which it knows those at ``seen``; the others have coefficients of 0."""

        def placed(values: Array, empty: float) -> Array:
            whole = np.full((width, *values.shape[1:]), empty)
            whole[seen] = values
            return whole

        limits = (placed(self.limits[0], 0.0), placed(self.limits[1], 1.0))
        coefficients, released = placed(self.coefficients, 0.0), self.released
        if released is not None:
            missing, known = width - len(seen), len(released.bins)
            bins = np.zeros((known + missing, released.bins.shape[1]))
            bins[seen[:known]] = released.bins
            released = released._replace(bins=bins)
        return replace(self, coefficients=coefficients, limits=limits, released=released, inference=None)

    def joined(self, other: Model) -> Model:
        """The mean of two models, each with the weight of its precision."""
        weight = self.precision / (self.precision + other.precision)
        coefficients = weight * self.coefficients + (1 - weight) * other.coefficients
        intercept = weight * self.intercept + (1 - weight) * other.intercept
        limits = (np.minimum(self.limits[0], other.limits[0]), np.maximum(self.limits[1], other.limits[1]))
        precision = self.precision + other.precision
        return Model(coefficients, intercept, precision, limits, other.counts, other.released)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded records: columns as promised, targets as the loss wants them (NaN: none), weights in [0, 1].

    ``people``, ``averaging`` and ``storage`` are as for :func:`~discreet.linear.glm.glm.fit_glm`.
    """

    x: Any
    y: Any
    columns: Columns
    weights: Array | None = None
    target_bounds: tuple[float, float] = (0.0, 1.0)
    people: People | None = None
    averaging: float = 1.0
    storage: Storage | None = None

    def part(self, seen: NDArray[np.intp]) -> Encoded:
        """The records with some of their columns: numbers may be missing, all else is there."""
        x, numerics = self.x, int(np.sum(seen < self.columns.numerics))
        narrow = OnDemand((x.shape[0], len(seen)), lambda rows: x[rows][:, seen])
        return replace(self, x=narrow, columns=replace(self.columns, numerics=numerics))


def by_recipe(
    loss: Loss, records: Encoded, spending: Spending, references: Mapping[int, int] | None = None
) -> Model:
    """The recipe without knobs, on all that is left to spend; with ``references``, also which effects are real."""
    fit = fit_glm(
        loss,
        records.x,
        records.y,
        records.columns,
        spending,
        records.weights,
        target_bounds=records.target_bounds,
        people=records.people,
        averaging=records.averaging,
        references=references,
        storage=records.storage,
    )
    # The variance of sampling, and that of noise as large as a typical row.
    count, size = fit.counts.records, records.columns.width + 1
    variance = 1 / count + size / (count * spending.strength) ** 2
    intercept = np.asarray(fit.intercept)
    limits = (fit.lower, fit.upper)
    return Model(fit.coefficients, intercept, 1 / variance, limits, fit.counts, fit.released, fit.inference)


def by_theorem(method: str, loss: Loss, records: Encoded, charge: Charge, declared: int | None) -> Model:
    """One of the methods with theorems, on centred columns with a constant.

    Guarantee: that of the method, within the budget, all of which is charged before it begins.
    """
    if records.weights is not None:
        requirement = f"are not known to the method {method!r}; use method='recipe'."
        raise InvalidParameter("weights", "given", requirement)
    if declared is None and charge.budget.neighbours == "add-remove":
        requirement = f"the method {method!r} needs a public number of records; or use method='recipe'."
        raise InvalidParameter("records", None, requirement)
    if loss.outputs != 1 or loss.lipschitz is None:
        requirement = f"the method {method!r} needs a bounded slope and one output; use method='recipe'."
        raise InvalidParameter("loss", loss, requirement)
    columns, centre = records.columns, np.zeros(records.columns.width)
    centre[: columns.numerics] = 0.5
    dense = records.x.toarray() if issparse(records.x) else records.x[:]
    rows = np.column_stack([np.ones(dense.shape[0]), np.asarray(dense, np.float64) - centre])
    lower, upper = records.target_bounds
    row_bound = math.sqrt(1 + columns.numerics / 4 + len(columns.groups) + columns.text_square)
    budget = charge.reserve_everything()
    release = import_module(_THEOREMS).private_minimiser(
        loss,
        rows,
        np.clip(records.y[:], lower, upper),
        budget,
        method=method,
        row_bound=row_bound,
        records=declared,
        stream=charge.stream,
    )
    value = np.asarray(release.value, np.float64)
    anywhere = np.full(columns.width, np.inf)
    return Model(value[1:], np.asarray(value[0] - centre @ value[1:]), 1.0, (-anywhere, anywhere))
