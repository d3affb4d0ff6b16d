"""The rank theorem for linear models: private descent does not suffer from the dimension, but from the rank.

Every gradient of a linear model is a number times a row, so it lies in the span of the rows. Noise outside the span
moves the parameters where no score changes. Let M project onto the span, r be its rank, and |v|_M = sqrt(v' M v).
Then the analysis of :mod:`discreet.lecture.utility` holds with |v|_M for |v| and r for the dimension (Song,
Steinke, Thakkar, Thakurta 2021), for the average iterate, without projection, at any number T of steps:

    E F(average) - F(theta) <= |theta|_M sqrt((L^2 + r noise^2) / T)

with the best step. The exact noise for T steps has noise^2 = T (u L / (n mu))^2, with u = 1 or 2 contributions that
differ between neighbours and mu the Gaussian strength of the budget. So the bound is
L |theta|_M sqrt(1/T + r (u / (n mu))^2).

>>> rows = np.array([[1.0, 0.0, 1.0], [2.0, 0.0, 2.0]])
>>> span = Span.of(rows)
>>> span.rank, round(span.seminorm([1.0, 5.0, 1.0]), 6)
(1, 1.414214)
>>> from discreet import Budget
>>> budget = Budget(1.0, 1e-5, neighbours="replace-one")
>>> round(rank_bound(budget, records=1000, rank=10, lipschitz=1.0, norm=1.0, steps=10**6), 8)
0.02361577
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from discreet.errors import InvalidParameter, real, whole
from discreet.guarantee import Budget
from discreet.lecture.lecture_noise import exact_noise
from discreet.lecture.table import Floats
from discreet.lecture.utility import average_excess


@dataclass(frozen=True, eq=False)
class Span:
    """The span of the rows of a table. For analysis: rank and basis are private as the rows are."""

    basis: Floats = field(repr=False)

    @classmethod
    def of(cls, rows: ArrayLike) -> Span:
        """The span of ``rows``; singular values that are only rounding count as zero."""
        matrix = np.asarray(rows, np.float64)
        if matrix.ndim != 2 or 0 in matrix.shape or not np.isfinite(matrix).all():
            raise InvalidParameter(
                "rows.shape", matrix.shape, "must be finite numbers, one record in each row."
            )
        _, values, directions = np.linalg.svd(matrix, full_matrices=False)
        rank = int(np.sum(values > values[0] * max(matrix.shape) * np.finfo(np.float64).eps))
        return cls(directions[:rank].T.copy())

    @property
    def rank(self) -> int:
        """Rank of the rows."""
        return int(self.basis.shape[1])

    @property
    def projector(self) -> Floats:
        """M: onto the eigenvectors of the second moment of the rows with eigenvalues other than zero."""
        return np.asarray(self.basis @ self.basis.T)

    def seminorm(self, vector: ArrayLike) -> float:
        """|v|_M: the length of what the rows can see of ``vector``."""
        return float(np.linalg.norm(self.basis.T @ np.asarray(vector, np.float64)))


def rank_bound(budget: Budget, records: int, rank: int, lipschitz: float, norm: float, steps: int) -> float:
    """Expected excess risk of the average iterate with the exact noise for ``budget`` and the best step.

    ``norm`` is |theta|_M of the parameter to compare with. The bound falls with ``steps``, but hardly beyond
    :func:`enough_steps`.
    """
    return average_excess(norm, lipschitz, exact_noise(budget, lipschitz, records, steps), rank, steps)


def lecture_rank_bound(budget: Budget, records: int, rank: int, lipschitz: float, norm: float) -> float:
    """Bound printed in lecture 13: L |theta|_M sqrt(1 + 2 r ln(1/delta)) / (n epsilon), T = (n epsilon)^2.

    The noise of the lecture's claim 3.2 gives 4 in place of the 2, and is itself too little for replace-one
    neighbours; :func:`rank_bound` is what holds.
    """
    records, rank = whole("records", records, at_least=1), whole("rank", rank, at_least=1)
    real("delta", budget.delta, above=0, below=1)
    root = math.sqrt(1 + 2 * rank * math.log(1 / budget.delta))
    return (
        real("lipschitz", lipschitz, above=0)
        * real("norm", norm, above=0)
        * root
        / (records * budget.epsilon)
    )


def lecture_steps(budget: Budget, records: int) -> int:
    """The lecture's number of steps, (n epsilon)^2 rounded up: full passes over the data, so rarely practical."""
    return math.ceil((whole("records", records, at_least=1) * budget.epsilon) ** 2 * (1 - 1e-12))


def enough_steps(budget: Budget, records: int, rank: int) -> int:
    """The number of steps after which :func:`rank_bound` is within sqrt(2) of its limit.

    >>> enough_steps(Budget(1.0, 1e-5, neighbours="replace-one"), records=1000, rank=10)
    1797
    """
    per_step = exact_noise(budget, 1.0, records, 1)
    return max(1, math.ceil(1 / (whole("rank", rank, at_least=1) * per_step**2)))


class ExcessByDimension(NamedTuple):
    """One row of a plot: what the rank theorem and the plain analysis promise in so many dimensions."""

    dimension: int
    by_rank: float
    by_dimension: float


def excess_by_dimension(
    budget: Budget,
    records: int,
    rank: int,
    lipschitz: float,
    norm: float,
    steps: int,
    dimensions: Iterable[int],
) -> list[ExcessByDimension]:
    """The two bounds for data of a fixed rank in more and more dimensions: one is flat, the other grows."""
    noise = exact_noise(budget, lipschitz, records, steps)
    flat = average_excess(norm, lipschitz, noise, rank, steps)
    return [ExcessByDimension(d, flat, average_excess(norm, lipschitz, noise, d, steps)) for d in dimensions]
