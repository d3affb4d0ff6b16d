"""Sums over encoded records that compiled code clips: gradients, score lines, second moments, a Newton step.

Each query names coordinates and a target, which say how rows and targets are mapped, and parameters; all of them are
public. The store keeps the mapped rows between queries (:meth:`~discreet.linear.gate.records.RecordStore.working`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.clipping import clip_rows
from discreet.errors import PlanViolation, real
from discreet.linear.gate.checks import refuse_other_shapes
from discreet.linear.gate.records import Block, RecordQuery, RecordStore, RowMap, Scores, Working
from discreet.linear.kernels.centred import centred_gradient
from discreet.linear.kernels.coefficients import LOGISTIC, POISSON, SQUARED
from discreet.linear.kernels.kernel import hardened_clipped_gradient, readable, row_norms
from discreet.linear.kernels.moment_lattice import MomentLattice
from discreet.linear.kernels.rowwise import add_cut_rows, put_ones_before, weigh_rows
from discreet.linear.kernels.score_cells import ScoreCells, round_scores
from discreet.linear.kernels.tiled_kernel import tiled_gradient
from discreet.linear.kernels.whole_products import totals_for
from discreet.linear.losses import Loss
from discreet.trusted.plain_data import conform
from discreet.trusted.queries import View, checked_bound, evaluate

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_BLOCK = 2**17  # numbers that are multiplied at once: they stay in the cache
_LEAST_ROOM = 0.25  # of a record's square that rounding must leave


@dataclass(frozen=True, eq=False)
class ClippedGradient(RecordQuery):
    """The sum of the gradients of ``loss`` at ``theta``, each clipped to ``clip_norm``; of a person, their mean.

    Guarantee: the sensitivity is ``clip_norm``; the kernels clip inside (docs/engines.md: E3, E17, E20, E21).
    """

    loss: Loss
    coordinates: RowMap
    target: View
    theta: Array
    clip_norm: float

    def __post_init__(self) -> None:
        conform(self)
        checked_bound("clip_norm", self.clip_norm)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return self.clip_norm

    @property
    def size(self) -> int:
        """The number of values that are released."""
        return self.theta.size

    def total(self, store: RecordStore, grid: float) -> Integers:
        """Return the sum in grid steps."""
        rows, outputs = self.coordinates.width + 1, self.loss.outputs
        refuse_other_shapes(theta=(self.theta, (rows,) if outputs == 1 else (rows, outputs)))
        working = store.working(self.coordinates, self.target)
        return sum_of_gradients(self.loss, working, self.theta, self.clip_norm, grid)


def sum_of_gradients(loss: Loss, working: Any, theta: Array, clip_norm: float, grid: float) -> Integers:
    """Return the sum of clipped gradients over blocks of records, in grid steps.

    Guarantee: a record, or a person with all rows, changes it by a vector of norm at most ``clip_norm / grid``.
    """
    total = np.zeros(theta.size, np.int64)
    for block in working:
        z, y, weights, norms, people = block
        if block.tiled:
            found = tiled_gradient(loss, z, y, theta, norms, clip_norm, grid, weights)
        elif working.centre is None:
            found = hardened_clipped_gradient(
                loss, z, y, theta, working.constant, norms, clip_norm, grid, weights, people
            )
        else:
            found = centred_gradient(
                working.centre, loss, z, y, theta, working.constant, norms, clip_norm, grid, weights
            )
        total += found.reshape(-1)
    return total


@dataclass(frozen=True, eq=False)
class ScoreLine(RecordQuery):
    """The gradient of ``loss`` in an intercept and a slope, for the score of each record in ``unit``, rounded.

    Guarantee: the gradient of a record, or the mean of a person's, is clipped to ``clip_norm``: the sensitivity.
    """

    loss: Loss
    scores: Scores
    unit: float
    line: Array
    clip_norm: float
    size = 2

    def __post_init__(self) -> None:
        conform(self)
        checked_bound("unit", self.unit)
        checked_bound("clip_norm", self.clip_norm)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return self.clip_norm

    def total(self, store: RecordStore, grid: float) -> Integers:
        """Return the sum in grid steps. Records without weights are counted in cells once, for all steps."""
        working = store.working(self.scores.coordinates, self.scores.target)
        refuse_other_shapes(line=(self.line, (2,)))
        key = self.scores.digest + float(self.unit).hex().encode()
        if all(block.weights is None and block.people is None for block in working):
            pairs = ((scores, block.y) for block, scores in store.scores(self.scores))
            cells = store.remember("cells", key, lambda: ScoreCells.count(pairs, self.unit))
            return cells.gradient(self.loss, self.line, self.clip_norm, grid)
        rounded = store.remember("line", key, lambda: Working(self._rounded(store), 1.0, store.shelf))
        return sum_of_gradients(self.loss, rounded, self.line, self.clip_norm, grid)

    def _rounded(self, store: RecordStore) -> Iterator[Block]:
        for block, scores in store.scores(self.scores):
            z = round_scores(scores, self.unit)[:, None]
            yield block._replace(z=z, norms=row_norms(z, 1.0))


@dataclass(frozen=True, eq=False)
class SecondMoments(RecordQuery):
    """The sum of w w' over the records, w = (1, z) clipped to norm ``limit``, where ``view`` makes rows z.

    What is released is the upper triangle, its entries off the diagonal times a number just below sqrt(2).

    Guarantee: a record adds a vector of norm |w|^2, which is at most ``limit``^2 (docs/engines.md: E15).
    """

    view: View
    limit: float

    def __post_init__(self) -> None:
        conform(self)
        checked_bound("limit", self.limit)

    @property
    def bound(self) -> float:
        """The sensitivity."""
        return self.limit**2

    @property
    def size(self) -> int:
        """The number of values that are released."""
        return (self._width + 1) * (self._width + 2) // 2

    @property
    def _width(self) -> int:
        return int(self.view.width)  # type: ignore[attr-defined]

    def total(self, store: RecordStore, grid: float) -> Integers:
        """Return the sum in grid steps."""
        size = self._width + 1
        lattice, total = MomentLattice.of(grid), totals_for(size)
        clip = self.limit - lattice.rounding(size)
        if not clip > 0:
            raise PlanViolation("The grid is too coarse for second moments of so many numbers.")
        rows = np.empty((max(1, _BLOCK // size), size), np.float32)
        for part in store.chunks():
            for piece in part.pieces(size):
                (z,) = evaluate(self.view, piece, np.float32)
                refuse_other_shapes(z=(z, (len(z), self._width)))
                for start in range(0, len(z), len(rows)):
                    own = slice(start, start + len(rows))
                    few = rows[: len(z[own])]
                    put_ones_before(readable(z[own]), few)
                    clip_rows(few, clip, out=few)
                    lattice.add_products(few, None if piece.weights is None else piece.weights[own], total)
        return lattice.pack(total, size)


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


@dataclass(frozen=True, eq=False)
class NewtonStep(RecordQuery):
    """The sums g of w r z, H of w v z z' and J of w^2 r^2 z z' over the records.

    ``view`` maps encoded rows to rows z; r is the residual at ``theta``, clamped for numbers and counts, v the
    curvature. The weight w makes the norm of all three, in the units of ``scale``, at most 1 whatever the target is
    (docs/engines.md: E18). Of a person's rows the residuals are added up before they are squared; their weights sum
    to at most 1, so together they add no more than one row could (docs/mathematics.md: U3).

    Guarantee: the sensitivity is 1. g is cut toward zero, and the weights leave room for the rounding of H and J.
    """

    view: View
    target: View
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
        """The number of values that are released: g, and the triangles of H and J."""
        return len(self.theta) * (len(self.theta) + 2)

    def total(self, store: RecordStore, grid: float) -> Integers:
        """Return the sum in grid steps."""
        size, lattice = len(self.theta), MomentLattice.of(grid)
        refuse_other_shapes(theta=(self.theta, (self.view.width,)))  # type: ignore[attr-defined]
        rounding = lattice.rounding(size)
        room = 1 - 2 * rounding * (2 + rounding) - 1e-9
        if not room >= _LEAST_ROOM:
            raise PlanViolation("The grid is too coarse for a Newton step of so many numbers.")
        total = np.zeros(self.size, np.int64)
        for z, y, weights, _, people in store.blocks(self.view, self.target, 0.0):
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
    """Return the sums of the rows of each person, which follow one another; without people the rows themselves."""
    if people is None or not len(people):
        return rows
    return np.asarray(np.add.reduceat(rows, np.flatnonzero(np.diff(people, prepend=-1)), axis=0))
