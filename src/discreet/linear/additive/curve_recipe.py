"""The recipe for additive models: the linear one, on curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.linear.additive.basis import Basis, Pair
from discreet.linear.additive.curves import (
    chosen_curves,
    curve_marginals,
    pieces_for,
    roughness_of,
    straight_lines,
)
from discreet.linear.additive.histograms import Histograms, counted
from discreet.linear.additive.interactions import candidates, chosen_pairs, counted_cells, noise_of_cells
from discreet.linear.additive.smoothing import (
    are_near,
    are_straight,
    bend_parts,
    block_moments,
    level_parts,
    shrunk_parts,
    smooth_directions,
    straightened,
    visible,
    white,
)
from discreet.linear.glm.coordinates import Coordinates, Whitened, second_moments, standardised
from discreet.linear.glm.glm import Fit, Recipe
from discreet.linear.glm.marginals import Counts, Marginals, pooled, typical_size
from discreet.linear.glm.people import People
from discreet.linear.glm.problems import Problem
from discreet.linear.glm.records import Columns, Records
from discreet.linear.glm.spending import WHITENING, Spending, Wealth
from discreet.linear.glm.steps import PathError
from discreet.linear.kernels.kernel import row_norms
from discreet.linear.kernels.rowwise import times
from discreet.linear.losses import Loss
from discreet.linear.storage import Shelf

Array = NDArray[np.float64]

_ROOM_OF_CLASSES = 0.4  # of the dimensions that a number may have: the root of how flat their loss is
_FARTHEST, _FARTHEST_OF_CLASSES = 2.0, 16.0  # variances of bends, from curves to lines that may replace them
_CHANCE = 2.0  # of the variance that sampling would give the average direction
_FOR_PAIRS, _FOR_CELLS = 0.08, 0.02  # shares of the budget
_MOST_PAIRS, _LARGEST_SIDE = 3, 16
_CELLS = 0.04  # of the grid of a pair, for each record over the noise of counting it
_CLEAR = 12.0  # how far above its noise the number of records in a cell has to be for pairs to be chosen


@dataclass(frozen=True, eq=False)
class Declared:
    """What is publicly known of the columns beside their kinds.

    ``zeros`` is where the number 0 is in each numeric column, ``missing`` the flag of a column's missing values,
    ``shapes`` what each curve has to be: ``"free"``, ``"increasing"``, ``"decreasing"`` or ``"linear"``. ``pairs``
    are the columns that act together; None leaves them to be chosen.
    """

    columns: Columns
    zeros: tuple[float, ...]
    missing: dict[int, int]
    shapes: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...] | None = None


class Expanded:
    """A table whose rows become curves when they are asked for."""

    def __init__(self, x: Any, basis: Basis) -> None:
        self._x, self._basis = x, basis
        self.shape = (int(x.shape[0]), basis.columns.width)

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        part = self._x[rows]
        return self._basis.expanded(part.toarray() if issparse(part) else np.asarray(part))


class AdditiveRecipe(Recipe):
    """One fit of curves. ``basis`` is None where records are too few for any: then it is the linear fit."""

    widest = math.inf  # many columns are few curves
    basis: Basis | None = None
    histograms: Histograms | None = None
    straight: Marginals  # of the columns before they were curves
    lengths: Array  # second moments of the coordinates of the descent
    row_size: float  # the typical norm of a row in them

    def __init__(
        self,
        loss: Loss,
        declared: Declared,
        spending: Spending,
        bounds: tuple[float, float],
        averaging: float = 1.0,
    ) -> None:
        super().__init__(loss, declared.columns, spending, None, bounds, averaging)
        self.declared = declared

    def fit_table(
        self, x: Any, y: Any, weights: Any, people: People | None = None, shelf: Shelf | None = None
    ) -> Fit:
        records = Records(self.loss, x, y, self.declared.columns, weights, people, shelf)
        self.spending.refuse_more_rows(len(records))
        self._table = (x.tocsr() if issparse(x) else x, y, weights)
        self._people = people
        return self.fit(records)

    def marginals(self, records: Records, counts: Counts, wealth: Wealth) -> tuple[Marginals, Counts]:
        stage = self.spending.stage("marginals", self.at_most_half(wealth.for_marginals))
        if not wealth.sees_histograms:
            return pooled(records, counts, stage)
        self.histograms, marginals = counted(records, self.declared.zeros, counts.records, stage)
        return marginals, counts

    def reshaped(self, records: Records, marginals: Marginals, counts: Counts) -> tuple[Records, Marginals]:
        if self.histograms is None:
            return records, marginals
        pieces = pieces_for(counts.records, counts.records * self.spending.strength, self.declared.columns)
        allowed = [1 if shape == "linear" else pieces for shape in self.declared.shapes]
        told = [self.histograms.pieces(j, wanted) for j, wanted in enumerate(allowed)]
        if max(told, default=1) < 2 and self.declared.pairs == ():
            return records, marginals  # lines: the linear fit
        self.straight = marginals
        known = self.declared.columns, self.histograms, marginals, allowed, self.declared.missing
        pairs = self._pairs(records, self.histograms, marginals, counts.records)
        self.basis = Basis(self.declared.columns, chosen_curves(*known), pairs)
        self.columns = self.basis.columns
        x, y, weights = self._table
        expanded = Expanded(x, self.basis)
        curves = Records(self.loss, expanded, y, self.columns, weights, self._people, records.shelf)
        return curves, curve_marginals(self.basis, self.histograms, marginals, counts.records)

    def _pairs(
        self, records: Records, histograms: Histograms, marginals: Marginals, count: float
    ) -> tuple[Pair, ...]:
        """The grids of the pairs that act together; none where the budget cannot carry them."""
        chosen = list(self.declared.pairs or ())
        if self.declared.pairs is None:
            chosen = self._choice(records, histograms, count)
        if not chosen:
            return ()
        signal = count * self.spending.strength
        side = int(min(max(math.sqrt(_CELLS * signal / len(chosen)), 3), _LARGEST_SIDE))
        stage = self.spending.stage("pair-cells", _FOR_CELLS)
        return counted_cells(records, chosen, histograms, marginals, side, count, stage)

    def _choice(self, records: Records, histograms: Histograms, count: float) -> list[tuple[int, int]]:
        free = [j for j, shape in enumerate(self.declared.shapes) if shape == "free"]
        pairs = candidates(free)
        if not pairs or self.loss.outputs > 1:
            return []
        noise = noise_of_cells(len(pairs), self.spending.strength * math.sqrt(_FOR_PAIRS))
        if noise * _CLEAR > count / 16:
            return []
        stage = self.spending.stage("pairs", _FOR_PAIRS)
        return chosen_pairs(records, pairs, histograms, self.bounds, _MOST_PAIRS, stage)

    def settled(
        self,
        theta: Array,
        start: Array,
        error: PathError,
        coordinates: Coordinates,
        problem: Problem,
        counts: Counts,
    ) -> Array:
        """What noise and chance explain of the bends of each curve, of each category and grid is taken back."""
        if self.basis is None or self.histograms is None or not isinstance(coordinates, Whitened):
            return theta
        usual = float(error.by_noise(problem.curvature * self.row_size**2 / math.ceil(self.lengths.sum())))
        usual += _CHANCE * problem.residual**2 / (counts.records * problem.curvature)
        variances = self.variances(theta, error, problem, counts.records)
        bent = bend_parts(self.basis, self.histograms, coordinates)
        alone = [bands for column, bands in bent.items() if column not in self.basis.paired]
        lines = straightened(theta, start, self.basis, self.straight, coordinates)
        farthest = _FARTHEST_OF_CLASSES if self.loss.kind == "classes" else _FARTHEST
        parts = level_parts(self.basis, coordinates)
        if are_straight(theta, start, alone, variances) and are_near(
            theta, lines, alone, variances, farthest
        ):
            theta = lines
        else:
            parts = [band for bands in bent.values() for band in bands] + parts
        return shrunk_parts(theta, start, parts, usual)

    def variances(self, theta: Array, error: PathError, problem: Problem, count: float) -> Array:
        """What noise and chance make of each coordinate."""
        residual, curvature = problem.residual**2, problem.curvature
        if self.loss.kind == "classes":
            residual = curvature  # as the likelihood has it
        elif self.loss.kind == "numbers":
            residual *= max(1 - float(self.lengths @ theta[1:] ** 2), 0.1)
            unclipped = error.rule.clip_norm / (self.row_size * math.sqrt(2 * residual))
            curvature *= math.erf(unclipped)  # a clipped gradient does not turn
        curvatures = curvature * self.lengths
        return error.by_noise(curvatures) + error.by_chance(curvatures, self.lengths * residual / count)

    def coordinates(
        self, records: Records, marginals: Marginals, counts: Counts, wealth: Wealth
    ) -> tuple[Coordinates, float]:
        if self.basis is None or self.histograms is None:
            return super().coordinates(records, marginals, counts, wealth)
        return self._smooth(self.basis, self.histograms, records, marginals, counts, wealth)

    def _smooth(
        self,
        basis: Basis,
        histograms: Histograms,
        records: Records,
        marginals: Marginals,
        counts: Counts,
        wealth: Wealth,
    ) -> tuple[Whitened, float]:
        """Coordinates in which rough curves are short, and the typical norm of a row in them."""
        count, share, width = counts.records, wealth.for_row_norms, basis.columns.width
        known = block_moments(basis, histograms, marginals), roughness_of(basis, marginals.scale)
        classes = self.loss.kind == "classes"
        room = _ROOM_OF_CLASSES if classes else 1.0
        lines = straight_lines(basis, marginals.scale)
        directions = smooth_directions(*known, lines, count, count * self.spending.strength, room)
        seen = visible(directions, count * self.spending.strength * math.sqrt(WHITENING), classes)
        down = directions.down[:, :seen]

        def rows() -> Iterator[tuple[NDArray[np.float32], Array | None]]:
            for x, _, weights in records.chunks():
                yield times(standardised(x, marginals), down), weights

        stage = self.spending.stage("row-norms", share / 2)
        radius = typical_size(((row_norms(z, 0.0), weights) for z, weights in rows()), stage)
        size = radius.size if radius.found else math.sqrt(float(directions.lengths[:seen].sum()))
        stage = self.spending.stage("whitening", WHITENING)
        moments = second_moments(rows(), seen, size, count, stage)
        found, self.lengths = white(directions, moments, marginals)
        stage = self.spending.stage("whitened-row-norms", share / 2)
        norms = ((row_norms(found.apply(x), 0.0), weights) for x, _, weights in records.chunks())
        self.row_size = min(max(typical_size(norms, stage).size, 1.0), 2 * math.sqrt(width + 1))
        return found, self.row_size
