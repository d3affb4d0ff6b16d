"""One Newton step with all that its error needs, as one query: :class:`NewtonStep`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation, real
from discreet.linear.gate.adding import Integers
from discreet.linear.gate.clipped_gradients import Target
from discreet.linear.gate.coordinates import Whitened
from discreet.linear.gate.data import dense, refuse_other_shapes
from discreet.linear.gate.record_store import RecordStore
from discreet.linear.gate.second_moments import Lattice
from discreet.linear.kernels.coefficients import LOGISTIC, POISSON, SQUARED
from discreet.linear.kernels.rowwise import add_cut_rows, times, weigh_rows
from discreet.trusted.plain_data import Data, conform

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The units of the release: g, H and J are multiplied by these. Residuals are clamped to +-``clamp``."""

    code: int
    slope: float
    curvature: float
    square: float
    clamp: float

    @property
    def units(self) -> tuple[float, float, float, float]:
        """The units of g, H and J, and the clamp."""
        return self.slope, self.curvature, self.square, self.clamp


_LEAST_ROOM = 0.25  # of a record's square that rounding must leave


@dataclass(frozen=True, eq=False)
class NewtonStep(Data):
    """The sums g of w r z, H of w v z z' and J of w^2 r^2 z z' over the records.

    ``merge`` maps encoded rows to those of which ``white`` are the coordinates; r is the residual at ``theta``,
    clamped for numbers and counts, v the curvature. The weight w makes the norm of all three, in the units of
    ``scale``, at most 1 whatever the target is (docs/engines.md: E18). Of a person's rows the residuals are added up
    before they are squared; their weights sum to at most 1, so together they add no more than one row could
    (docs/mathematics.md: U3).

    Guarantee: the sensitivity is 1. g is cut toward zero, and the weights leave room for the rounding of H and J.
    """

    white: Whitened
    merge: Array
    target: Target
    theta: Array
    scale: Scale
    bound = 1.0

    def __post_init__(self) -> None:
        conform(self)
        for name, value in zip(("slope", "curvature", "square", "clamp"), self.scale.units, strict=True):
            real(name, value, above=0)
        if self.scale.code not in (LOGISTIC, SQUARED, POISSON):
            raise PlanViolation("There is no Newton step for this loss.")

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return self.white.width + 2 * self._triangle

    @property
    def _triangle(self) -> int:
        return self.white.width * (self.white.width + 1) // 2

    def total(self, store: RecordStore, grid: float) -> Integers:
        """The sum in grid steps."""
        refuse_other_shapes(theta=(self.theta, (self.white.width,)))
        size, lattice = self.white.width, Lattice.of(grid)
        rounding = lattice.rounding(size)
        room = 1 - 2 * rounding * (2 + rounding) - 1e-9
        if not room >= _LEAST_ROOM:
            raise PlanViolation("The grid is too coarse for a Newton step of so many numbers.")
        total = np.zeros(self.size, np.int64)

        def transform(x: NDArray[np.float32]) -> NDArray[np.float32]:
            return self.white.apply(times(dense(x), self.merge))

        for z, y, weights, _, people in store.blocks(transform, self.target, 0.0):
            factors = np.zeros((3, len(z)))
            weigh_rows(z, y.astype(np.float64), self.theta, self.scale.code, *self.scale.units, room, factors)
            z[~np.isfinite(z).all(axis=1)] = 0.0  # which have no factors either
            own = np.ones(len(z)) if weights is None else weights.astype(np.float64)
            first = np.zeros(size, np.int64)
            add_cut_rows(z, own * factors[0] / grid, 0.0, first)
            bent = lattice.products(z * factors[1][:, None], None if weights is None else own)
            residuals = z * (own * np.copysign(factors[2], factors[0]))[:, None]
            squares = lattice.products(_by_person(residuals, people), None)
            total += np.concatenate([first, bent, squares])
        return total


def _by_person(rows: Array, people: NDArray[np.int64] | None) -> Array:
    """The sums of the rows of each person, which follow one another; the rows themselves if there are no people."""
    if people is None or not len(people):
        return rows
    return np.asarray(np.add.reduceat(rows, np.flatnonzero(np.diff(people, prepend=-1)), axis=0))
