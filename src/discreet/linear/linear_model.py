"""A released linear model of encoded columns: :class:`LinearModel`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from discreet.linear.encoder import Scaled
from discreet.linear.glm.counts import ClassCounts
from discreet.linear.glm.inference import Inference
from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import score_rows
from discreet.linear.row_views.coordinates import Released

Array = NDArray[np.float64]

_CELLS = 2**18  # numbers of which scores are computed at once


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A released linear model in the units of the encoded columns.

    ``precision`` is one over the variance of a coefficient, in units in which the columns are white, as far as it
    follows from what was released; it weighs models that are joined. ``limits`` are the ends of the part of each
    column in which records were found, beyond which a line means nothing. ``counts`` are the noisy numbers of
    records, None for the methods with theorems, and ``released`` those in each column, where there were enough.
    ``inference`` are estimates with their errors, where they were asked for and there were enough records.
    ``missing`` is what a missing number counts as, for each numeric column: its noisy mean.
    ``borne_out`` is the share of slopes for classes that other records will bear out.
    """

    coefficients: Array
    intercept: Array
    precision: float
    limits: tuple[Array, Array]
    counts: ClassCounts | None = None
    released: Released | None = None
    inference: Inference | None = None
    missing: Array | None = None
    borne_out: float = 1.0

    def scores(self, encoded: Any) -> Array:
        """intercept + row times coefficients, for each row and output; values beyond the limits count as these."""
        lower, upper = self.limits
        if not issparse(encoded):
            return self._dense_scores(encoded)
        zero = np.clip(0.0, lower, upper)  # what an empty cell counts as
        rows = csr_array(encoded, dtype=np.float64, copy=True)
        rows.data = np.clip(rows.data, lower[rows.indices], upper[rows.indices]) - zero[rows.indices]
        return np.asarray(rows @ self.coefficients + zero @ self.coefficients + self.intercept, np.float64)

    def _dense_scores(self, encoded: Any) -> Array:
        """The same of dense rows, block by block; numbers for a single output are scaled on the way."""
        limits = readable(self.limits[0]), readable(self.limits[1])
        weights = readable(self.coefficients.reshape(len(self.coefficients), -1).T)
        table, bounds = encoded, (np.empty(0), np.empty(0), np.empty(0))
        if isinstance(encoded, Scaled) and len(weights) == 1:
            table, bounds = encoded.table, (encoded.lower, encoded.upper, readable(encoded.missing))
        found = np.empty((len(weights), table.shape[0]))
        step = max(1, _CELLS // max(1, table.shape[1]))
        for start in range(0, table.shape[0], step):
            rows, part = readable(table[start : start + step]), found[:, start : start + step]
            for weight, intercept, out in zip(weights, np.atleast_1d(self.intercept), part, strict=True):
                score_rows(rows, *bounds, limits, weight, float(intercept), out)
        return np.ascontiguousarray(found.T).reshape(-1, *self.coefficients.shape[1:])

    def without(self, columns: NDArray[np.bool_], constant: Array) -> LinearModel:
        """The model with coefficients 0 for these columns, whose values are ``constant`` in every record."""
        moved = np.clip(constant, *self.limits)[columns] @ self.coefficients[columns]
        kept = np.where(columns, 0.0, self.coefficients.T).T
        return replace(self, coefficients=kept, intercept=np.asarray(self.intercept + moved))

    def widen(self, seen: NDArray[np.intp], width: int) -> LinearModel:
        """The model of ``width`` columns, of which it knows those at ``seen``; the others have coefficients of 0."""

        def place(values: Array, empty: float) -> Array:
            whole = np.full((width, *values.shape[1:]), empty)
            whole[seen] = values
            return whole

        limits = (place(self.limits[0], 0.0), place(self.limits[1], 1.0))
        coefficients, released = place(self.coefficients, 0.0), self.released
        if released is not None:
            missing, known = width - len(seen), len(released.bins)
            bins = np.zeros((known + missing, released.bins.shape[1]))
            bins[seen[:known]] = released.bins
            released = released._replace(bins=bins)
        means = self.missing
        if means is not None:
            numerics = len(means)
            means = np.full(numerics + width - len(seen), 0.5)
            means[seen[:numerics]] = self.missing
        fitted = replace(self, coefficients=coefficients, limits=limits, released=released)
        return replace(fitted, inference=None, missing=means)

    def join(self, other: LinearModel) -> LinearModel:
        """The mean of two models, each with the weight of its precision."""
        weight = self.precision / (self.precision + other.precision)
        coefficients = weight * self.coefficients + (1 - weight) * other.coefficients
        intercept = weight * self.intercept + (1 - weight) * other.intercept
        limits = (np.minimum(self.limits[0], other.limits[0]), np.maximum(self.limits[1], other.limits[1]))
        precision = self.precision + other.precision
        known = other.counts, other.released, None, self.missing  # which the other was fitted with as well
        return LinearModel(coefficients, intercept, precision, limits, *known)
