"""The recipe for additive models: the linear one, on curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.crossings import (
    can_find,
    confirm_pairs,
    count_cells,
    propose_pairs,
    rank_correlations,
    ranks_of,
)
from discreet.linear.additive.curves import (
    choose_curves,
    curve_marginals,
    pieces_for,
    roughness_of,
    straight_lines,
)
from discreet.linear.additive.histograms import Histograms, count_histograms
from discreet.linear.additive.smoothing import (
    are_near,
    are_straight,
    bend_parts,
    block_moments,
    level_parts,
    shrunk_parts,
    smooth_directions,
    straighten,
    visible,
    white,
)
from discreet.linear.gate.basis import Basis, Pair
from discreet.linear.gate.clipped_gradients import WhiteNorms
from discreet.linear.gate.column_pairs import Places, Residual
from discreet.linear.gate.coordinates import Coordinates, Marginals, SmoothCurves
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.gate.records import Records
from discreet.linear.gate.second_moments import CurveDirections
from discreet.linear.gate.shelf import Shelf
from discreet.linear.glm.counts import Counts
from discreet.linear.glm.glm import Fit, Recipe
from discreet.linear.glm.marginals import typical_size
from discreet.linear.glm.problems import Problem
from discreet.linear.glm.spending import WHITENING, Spending, Wealth
from discreet.linear.glm.steps import PathError, noisy_descent, step_rule
from discreet.linear.glm.whitening import second_moments
from discreet.linear.losses import Loss

Array = NDArray[np.float64]

_ROOM_OF_CLASSES = 0.4  # of the dimensions that a number may have: the root of how flat their loss is
_ROOM_OF_MANY = 0.4  # of that, for more than two: noise is paid for in each of their scores
_FARTHEST, _FARTHEST_OF_CLASSES = 5.0, 16.0  # variances of bends, from curves to lines that may replace them
_FEW_CURVES = 0.5  # of the columns that may be curves: if no more can be, none is
_ROUGHLY = 4.0  # times the variances of slow bends that the known ones may stand for, but of classes
_TYPICAL = 0.9  # norm of a row, over the root of its mean square: few are long
_CHANCE = 2.0  # of the variance that sampling would give the average direction
_FOR_RANKS, _FOR_FIRST, _FOR_PAIRS, _FOR_PROPOSED, _FOR_CELLS = 0.01, 0.06, 0.02, 0.05, 0.02  # of the budget
_FIRST_STEPS = 15
_FAR = 1.5  # typical residuals, from which on they are clamped
_MOST_PAIRS, _LARGEST_SIDE = 3, 16
_MOST_CANDIDATES = 300  # pairs of 25 columns
_CELLS = 0.04  # of the grid of a pair, for each record over the noise of counting it


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


class AdditiveRecipe(Recipe):
    """One fit of curves. ``basis`` is None where records are too few for any: then it is the linear fit."""

    basis: Basis | None = None
    histograms: Histograms | None = None
    straight: Marginals  # of the columns before they were curves
    are_lines = False  # curves that were replaced by lines after the descent
    row_size: float  # the typical norm of a row in them
    _found: tuple[Coordinates, float] | None = None  # coordinates, if they are known already
    _problem: Problem | None = None
    _looks = 0  # at second moments, so far
    _unit = 1.0  # the typical residual of a short descent

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
        self.spending.admit(records)
        return self.fit(records)

    def marginals(self, records: Records, counts: Counts, wealth: Wealth) -> Marginals:
        if not wealth.sees_histograms or (self.pieces(counts) == 1 and not self.declared.pairs):
            return super().marginals(records, counts, wealth)  # lines: the linear fit
        stage = self.spending.stage("marginals", self.at_most_half(wealth.for_marginals))
        self.histograms, marginals = count_histograms(records, self.declared.zeros, counts.records, stage)
        return marginals

    def informed(self, counts: Counts) -> float:
        """How many records of equally frequent classes would tell as much as these do.

        A record of two classes has the information p (1 - p), which is 1/4 at most.
        """
        return counts.records * (counts.balance if self.loss.kind == "classes" else 1.0)

    def pieces(self, counts: Counts) -> int:
        """How many straight pieces a curve may have; 1 is a line."""
        count = self.informed(counts)
        return pieces_for(count, count * self.spending.strength, self.declared.columns)

    def reshape(self, records: Records, marginals: Marginals, counts: Counts) -> tuple[Records, Marginals]:
        if self.histograms is None:
            return records, marginals
        pieces = self.pieces(counts)
        allowed = [1 if shape == "linear" else pieces for shape in self.declared.shapes]
        told = [self.histograms.pieces(j, wanted) for j, wanted in enumerate(allowed)]
        bent = sum(number > 1 for number in told)
        if bent <= _FEW_CURVES * sum(number > 1 for number in allowed) and not self.declared.pairs:
            return records, self.zoomed(records, marginals, counts, self.wealth(counts))  # lines
        self.straight = marginals
        known = self.histograms, marginals, allowed, self.declared.missing
        basis = Basis(self.declared.columns, choose_curves(self.declared.columns, *known))
        pairs = list(self.declared.pairs or ())
        if self.declared.pairs is None and (candidates := self._candidates(counts)):
            curves = self._expand(records, marginals, counts, basis)
            pairs = self._pairs(records, *curves, counts, candidates)
            if not pairs:
                return curves
            self._found = None
        grids = self._grids(records, self.histograms, marginals, counts.records, pairs)
        return self._expand(records, marginals, counts, replace(basis, pairs=grids))

    def _expand(
        self, records: Records, marginals: Marginals, counts: Counts, basis: Basis
    ) -> tuple[Records, Marginals]:
        """The records as rows of a basis, which is then that of the fit."""
        assert self.histograms is not None
        self.basis, self.columns = basis, basis.columns
        known = curve_marginals(basis, self.histograms, marginals, counts.records)
        return records.in_curves(basis), known

    # ---- columns that act together ----

    def _candidates(self, counts: Counts) -> list[Places]:
        """The pairs that are looked at; none where the budget could not tell, or the work would be that of many fits.

        Only of numbers and of two classes: with another link, what a short descent has not learned of the curves does
        not add up, and would be taken for pairs.
        """
        free = [j for j, shape in enumerate(self.declared.shapes) if shape == "free"]
        alike = self.loss.kind == "numbers" or self._two_classes
        pairs = list(combinations(free, 2)) if alike else []
        signal = self.informed(counts) * self.spending.strength * math.sqrt(_FOR_PAIRS)
        return pairs if len(pairs) <= _MOST_CANDIDATES and can_find(len(pairs), signal) else []

    def _pairs(
        self,
        records: Records,
        curves: Records,
        marginals: Marginals,
        counts: Counts,
        candidates: list[Places],
    ) -> list[Places]:
        """The pairs that a short descent of the curves alone leaves something to say."""
        assert self.histograms is not None
        ranks = ranks_of(self.histograms)
        stage = self.spending.stage("pair-ranks", _FOR_RANKS)
        correlations = rank_correlations(records, candidates, ranks, counts.records, stage)
        residual = self._residual(curves, marginals, counts)
        stage = self.spending.stage("pairs", _FOR_PAIRS)
        proposed = propose_pairs(records, candidates, correlations, ranks, residual, _MOST_PAIRS, stage)
        stage = self.spending.stage("pairs-again", _FOR_PROPOSED)
        far = 1 / self._unit if self._two_classes else _FAR
        within = replace(residual, far=far)
        return confirm_pairs(records, proposed, ranks, within, self._two_classes, stage)

    @property
    def _two_classes(self) -> bool:
        return self.loss.kind == "classes" and self.loss.outputs == 1

    def _residual(self, curves: Records, marginals: Marginals, counts: Counts) -> Residual:
        """What a short descent leaves of the targets of rows, over its typical size."""
        wealth, basis = self.wealth(counts), self.basis
        white, row_size = self._found = self.coordinates(curves, marginals, counts, wealth)
        assert isinstance(white, SmoothCurves)
        assert basis is not None
        problem = self.problem(curves, counts, wealth)
        stage = self.spending.stage("first-gradients", _FOR_FIRST, _FIRST_STEPS)
        known = math.ceil(white.dimensions or 1), row_size * self.averaging, white.curvature
        rule = step_rule(problem, stage, counts.records, *known)
        start = white.of_constant(problem.start)
        theta = noisy_descent(problem, curves, white, start, rule, counts.records, stage).result
        coefficients, intercept = white.back(theta)
        explained = float(white.lengths @ theta[1:] ** 2)
        unit = self._unit = (
            math.sqrt(problem.curvature if self._two_classes else max(1 - explained, 0.1)) * problem.residual
        )
        return Residual(basis, coefficients, intercept, problem.loss, problem.target, unit)

    def _grids(
        self,
        records: Records,
        histograms: Histograms,
        marginals: Marginals,
        count: float,
        chosen: list[Places],
    ) -> tuple[Pair, ...]:
        """The grids of the pairs that act together."""
        if not chosen:
            return ()
        signal = count * self.spending.strength
        side = int(min(max(math.sqrt(_CELLS * signal / len(chosen)), 3), _LARGEST_SIDE))
        stage = self.spending.stage("pair-cells", _FOR_CELLS)
        return count_cells(records, chosen, histograms, marginals, side, count, stage)

    # ---- the stages of the linear fit, on curves ----

    def problem(self, records: Records, counts: Counts, wealth: Wealth) -> Problem:
        if self._problem is None:
            self._problem = super().problem(records, counts, wealth)
        return self._problem

    def settle(
        self,
        theta: Array,
        start: Array,
        error: PathError,
        coordinates: Coordinates,
        problem: Problem,
        counts: Counts,
    ) -> Array:
        """What noise and chance explain of the bends of each curve, of each category and grid is taken back."""
        if self.basis is None or self.histograms is None or not isinstance(coordinates, SmoothCurves):
            return theta
        dimensions, curvature = math.ceil(coordinates.lengths.sum()), self.curvature_of(problem)
        usual = float(error.by_noise(curvature * self.row_size**2 / dimensions))
        # A descent that has gone a part of the way, as with a rare class, has followed chance by that part only.
        reached = curvature * math.sqrt(float(error.by_chance(curvature, 1.0)))
        usual += _CHANCE * (reached * problem.residual) ** 2 / (counts.records * curvature)
        variances = self.variances(theta, error, coordinates.lengths, problem, counts.records)
        bent = bend_parts(self.basis, self.histograms, coordinates)
        alone = [bands for column, bands in bent.items() if column not in self.basis.paired]
        lines = straighten(theta, start, self.basis, self.straight, coordinates)
        classes = self.loss.kind == "classes"
        farthest, roughly = (_FARTHEST_OF_CLASSES, 1.0) if classes else (_FARTHEST, _ROUGHLY)
        parts = level_parts(self.basis, coordinates)
        if are_straight(theta, start, alone, roughly * variances) and are_near(
            theta, lines, alone, variances, farthest
        ):
            self.are_lines, theta = True, lines
        else:
            parts = [band for bands in bent.values() for band in bands] + parts
        return shrunk_parts(theta, start, parts, usual)

    def moderate(
        self,
        theta: Array,
        start: Array,
        error: PathError,
        coordinates: Coordinates,
        problem: Problem,
        row_size: float,
        counts: Counts,
    ) -> Array:
        """Each coordinate is shortened on its own, which would bend lines: they are made straight again."""
        found = super().moderate(theta, start, error, coordinates, problem, row_size, counts)
        if not self.are_lines or self.basis is None or not isinstance(coordinates, SmoothCurves):
            return found
        return straighten(found, start, self.basis, self.straight, coordinates)

    def curvature_of(self, problem: Problem) -> float:
        """The second derivative that the steps of a descent were chosen by (:func:`step_rule`)."""
        return problem.bend if self.loss.kind == "classes" else problem.curvature

    def variances(
        self, theta: Array, error: PathError, lengths: Array, problem: Problem, count: float
    ) -> Array:
        """What noise and chance make of each coordinate; ``lengths`` are their second moments."""
        residual, curvature = problem.residual**2, self.curvature_of(problem)
        if self.loss.kind == "classes":
            residual = curvature  # as the likelihood has it
        elif self.loss.kind == "numbers":
            residual *= max(1 - float(lengths @ theta[1:] ** 2), 0.1)
            unclipped = error.rule.clip_norm / (self.row_size * math.sqrt(2 * residual))
            curvature *= math.erf(unclipped)  # a clipped gradient does not turn
        curvatures = curvature * lengths
        return error.by_noise(curvatures) + error.by_chance(curvatures, lengths * residual / count)

    def coordinates(
        self, records: Records, marginals: Marginals, counts: Counts, wealth: Wealth
    ) -> tuple[Coordinates, float]:
        if self._found is not None:
            return self._found
        if self.histograms is None or records.basis is None:
            return super().coordinates(records, marginals, counts, wealth)
        return self._smooth(self.histograms, records, records.basis, marginals, counts, wealth)

    def _smooth(
        self,
        histograms: Histograms,
        records: Records,
        basis: Basis,
        marginals: Marginals,
        counts: Counts,
        wealth: Wealth,
    ) -> tuple[SmoothCurves, float]:
        """Coordinates in which rough curves are short, and the typical norm of a row in them."""
        count, share = counts.records, wealth.for_row_norms
        known = block_moments(basis, histograms, marginals), roughness_of(basis, marginals.scale)
        classes = self.loss.kind == "classes"
        room = _ROOM_OF_CLASSES * (1.0 if self.loss.outputs == 1 else _ROOM_OF_MANY) if classes else 1.0
        lines, informed = straight_lines(basis, marginals.scale), self.informed(counts)
        directions = smooth_directions(*known, lines, informed, informed * self.spending.strength, room)
        whitening = WHITENING / 2  # pairs may need another look
        seen = visible(directions, count * self.spending.strength * math.sqrt(whitening), classes)
        longest = directions.down[:, :seen] / marginals.scale[:, None]
        middle, typical = -marginals.centre @ longest, _TYPICAL * math.sqrt(directions.lengths[:seen].sum())
        rows = CurveDirections(basis, longest, middle)
        again = f"-{self._looks}" if self._looks else ""
        self._looks += 1
        stage = self.spending.stage(f"whitening{again}", whitening)
        moments = second_moments(records, rows, typical, count, stage)
        found = white(directions, moments, marginals, basis)
        stage = self.spending.stage(f"row-norms{again}", share)
        widest = 2 * math.sqrt(basis.columns.width + 1)
        self.row_size = min(max(typical_size(records, WhiteNorms(found), stage).size, 1.0), widest)
        return found, self.row_size
