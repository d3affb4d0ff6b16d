"""A party's table, for joint training: sums of clipped gradients of a linear model, and nothing else.

>>> from discreet.linear.losses import Logistic
>>> holder = LinearHolder(Logistic(), np.array([[3.0, 4.0], [0.3, 0.4]]), np.array([1, 0]), clip_norm=1.0)
>>> holder.dimension
3
>>> holder.clipped_sum(np.zeros(3), None).value.round(3)
array([ 0.304, -0.438, -0.584])
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from discreet.core.clipping import clip_norm_of
from discreet.core.fp_errors import ignore_fp_errors
from discreet.core.noise import BoundedSum
from discreet.errors import InvalidParameter, real
from discreet.guarantee import Unit
from discreet.linear.gate.people import People
from discreet.linear.inputs import number_table, numbers
from discreet.linear.kernels.coefficients import OneScore
from discreet.linear.kernels.kernel import (
    clip_margin,
    clipped_gradient,
    hardened_clipped_gradient,
    limit_range,
    loss_code,
    row_norms,
)
from discreet.linear.kernels.rowwise import gradient_of_row
from discreet.linear.losses import Loss

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class LinearHolder:
    """The records of one party and a linear model, whose parameters are one vector: intercept first, then columns.

    With K classes the vector holds K numbers for the intercept, then K for each column. ``constant`` is what the
    intercept is multiplied with; ``bounds``, a declared pair (lower, upper), clamps the features, so that a record
    outside of what was agreed does not stand out. Nothing is scaled or encoded here: that is agreed on before.
    With ``people``, the id of the person of each row, a record is a person: the gradients of their rows are averaged,
    and clipped together; rows without an id count for nothing.

    Guarantee: each record adds a vector of norm at most ``clip_norm`` to the sums; one with NaN or infinity in it,
    or a target that the loss does not know, adds zero, and nobody is told.
    """

    _alone = False

    @ignore_fp_errors  # numbers that a narrower type does not hold are no reason to speak
    def __init__(
        self,
        loss: Loss,
        X: Any,
        y: ArrayLike,
        *,
        clip_norm: float,
        constant: float = 1.0,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        people: NDArray[Any] | None = None,
    ) -> None:
        self._loss = loss
        self._rows = _rows(X, bounds)
        self._targets = numbers(y, "y").astype(self._rows.dtype)
        if self._targets.shape != self._rows.shape[:1]:
            raise InvalidParameter("y", type(y), "must hold one number for each row.")
        self._persons = None if people is None else self._sort_people(people)
        self._clip_norm = clip_norm_of("clip_norm", clip_norm)
        self._constant = real("constant", constant, at_least=0, at_most=2.0**450)
        self._norms = row_norms(self._rows, self._constant)
        width = self._rows.shape[1] + 1
        self._shape = (width, loss.outputs) if loss.outputs > 1 else (width,)
        code = loss_code(loss)
        dense = isinstance(self._rows, np.ndarray)
        self._code = code if isinstance(code, OneScore) and dense else None

    @property
    def dimension(self) -> int:
        """The length of the parameter vector."""
        return int(np.prod(self._shape))

    @property
    def records(self) -> int:
        """The number of rows, or of persons."""
        return int(self._rows.shape[0]) if self._persons is None else len(self._persons.starts) - 1

    @property
    def unit(self) -> Unit:
        """What is clipped: ``"person"`` if the holder has ``people``, ``"record"`` otherwise."""
        return "record" if self._persons is None else "person"

    def _sort_people(self, ids: NDArray[Any]) -> _Persons:
        """Put the rows of each person together, and leave out those of nobody."""
        if issparse(self._rows) or np.shape(ids) != self._rows.shape[:1]:
            raise InvalidParameter("people", np.shape(ids), "must hold an id for each row of a dense table.")
        people = People.of(np.asarray(ids, object))
        order = people._order()
        self._rows, self._targets = self._rows[order].astype(np.float32), self._targets[order]
        codes = people._codes[order].astype(np.int64)
        starts = np.searchsorted(codes, np.arange(people._count() + 1))
        return _Persons(codes, people._weights(least=1)[order], starts)

    @cached_property
    def one_by_one(self) -> LinearHolder:
        """The same records for sums of one record each, which take a shorter way to other last digits.

        For protocols in which every sum is of one, as SGD1. Where chance decides how many there are, a record that
        joins another would move the other's digits, too, and the sum by more than the clip norm.
        """
        twin = copy(self)
        twin._alone = self._persons is None
        return twin

    def clipped_sum(self, theta: Floats, records: Indices | None) -> BoundedSum:
        """The sum of the clipped gradients at ``theta`` of the chosen records, or of all."""
        if self._alone and records is not None and len(records) == 1 and self._code is not None:
            return BoundedSum(self._of_one(self._code, theta, int(records[0])), self._clip_norm)
        if self._persons is not None:
            raise InvalidParameter("people", "float sums", "are clipped together in whole numbers only.")
        rows, targets, norms = self._choose(records)
        model = theta.reshape(self._shape)
        total = clipped_gradient(self._loss, rows, targets, model, self._constant, norms, self._clip_norm)
        return BoundedSum(total.reshape(-1), self._clip_norm)

    def hardened_sum(self, theta: Floats, records: Indices | None, grid: float) -> BoundedSum:
        """The same in whole steps of ``grid``."""
        if self._alone and records is not None and len(records) == 1 and self._code is not None:
            exact = self._of_one(self._code, theta, int(records[0])) / grid  # a power of two
            return BoundedSum(exact.astype(np.int64), self._clip_norm, grid=grid)
        weights, people = None, None
        if self._persons is not None:
            records = self._persons.rows_of(records)
            weights, people = self._persons.weights[records], self._persons.codes[records]
        rows, targets, norms = self._choose(records)
        model = theta.reshape(self._shape)
        total = hardened_clipped_gradient(
            self._loss, rows, targets, model, self._constant, norms, self._clip_norm, grid, weights, people
        )
        return BoundedSum(total.reshape(-1), self._clip_norm, grid=grid)

    def _of_one(self, loss: OneScore, theta: Floats, record: int) -> Floats:
        """One record's clipped gradient.

        Guarantee: norm at most the clip norm, exactly: the limit of the residual is rounded down by more than
        the roundings of the quotient and of the product together, as in the kernels.
        """
        out, kind = np.zeros(len(theta)), self._rows.dtype
        limit = self._clip_norm * (1 - clip_margin(kind)) / float(self._norms[record])
        if limit >= limit_range(kind)[0]:  # not for a norm of infinity, either: the record is not finite
            target = float(self._targets[record])
            gradient_of_row(loss, self._rows[record], target, theta, self._constant, limit, out)
        return out

    def _choose(self, records: Indices | None) -> tuple[Any, Any, Floats]:
        if records is None:
            return self._rows, self._targets, self._norms
        return self._rows[records], self._targets[records], self._norms[records]


class _Persons(NamedTuple):
    """Rows in the order of their persons: whose each is, what it weighs, and where each person's begin."""

    codes: NDArray[np.int64]
    weights: Floats
    starts: NDArray[np.intp]

    def rows_of(self, persons: Indices | None) -> Indices:
        """The rows of the chosen persons, or of all."""
        if persons is None:
            return np.arange(len(self.codes))
        parts = [np.arange(self.starts[one], self.starts[one + 1]) for one in persons]
        return np.concatenate(parts) if parts else np.empty(0, np.intp)


def _rows(X: Any, bounds: tuple[ArrayLike, ArrayLike] | None) -> Any:
    if issparse(X):
        if bounds is not None:
            raise InvalidParameter("bounds", bounds, "cannot be applied to sparse rows; clamp them before.")
        return X.tocsr()
    rows = np.asarray(number_table(X))
    rows = np.ascontiguousarray(rows, np.float32 if rows.dtype == np.float32 else np.float64)
    if bounds is None:
        return rows
    lower, upper = (np.asarray(bound, np.float64) for bound in bounds)
    if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower <= upper).all()):
        raise InvalidParameter("bounds", "not ordered", "must be finite, the lower below the upper ones.")
    return np.ascontiguousarray(np.clip(rows, lower, upper), rows.dtype)
