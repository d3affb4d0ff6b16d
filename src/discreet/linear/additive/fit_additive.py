"""The fit of additive models without knobs: :func:`fit_additive`.

Its stages are those of :func:`~discreet.linear.glm.glm.fit_glm`. Between the marginals and the coordinates,
histograms give every column a curve, and pairs of columns that act together a grid; after the descent, bends that
noise explains are taken back. Where records are too few for curves, it fits lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.additive_model import AdditiveModel, as_curves
from discreet.linear.additive.curves import (
    choose_curves,
    curve_marginals,
    hat_moments,
    pieces_for,
    roughness_of,
    straight_lines,
)
from discreet.linear.additive.expanded_rows import paired
from discreet.linear.additive.histograms import Histograms, as_histograms, count_histograms
from discreet.linear.additive.interactions import (
    can_find,
    confirm_pairs,
    count_cells,
    propose_pairs,
    rank_correlations,
    ranks_of,
)
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
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.gate.records import Records, WhiteNorms
from discreet.linear.glm.budget_split import WHITENING, BudgetSplit, at_most_half
from discreet.linear.glm.counts import ClassCounts, count_records, sees_slopes
from discreet.linear.glm.frames import CurveFrame, Frame
from discreet.linear.glm.glm import fit_constant
from discreet.linear.glm.marginals import fill_missing, measure_columns, typical_size, zoom_marginals
from discreet.linear.glm.problems import Bounds, DescentProblem, checked_bounds, describe_target
from discreet.linear.glm.steps import (
    DescentResult,
    descend_in,
    descend_noisily,
    recalibrate,
    share_of_recalibration,
    shrink_slopes,
)
from discreet.linear.glm.whitening import choose_coordinates, second_moments
from discreet.linear.losses import Loss
from discreet.linear.residuals import checked_loss
from discreet.linear.row_views.column_views import Places, Residual
from discreet.linear.row_views.coordinates import CurveDirections, Marginals
from discreet.linear.row_views.curve_bases import Basis, Curve, Pair
from discreet.linear.storage import Storage
from discreet.trusted.spending import BudgetAllocator

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
class PublicColumns:
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


@dataclass(frozen=True, eq=False)
class Curves:
    """Records in a basis of curves: their marginals there, coordinates for a descent, and the typical norm of a row.

    ``histograms`` are those of the columns, and ``lines`` the marginals of the columns before they were curves.
    """

    basis: Basis
    histograms: Histograms
    lines: Marginals
    records: Records
    marginals: Marginals
    coordinates: CurveFrame
    row_size: float


def fit_additive(
    loss: Loss,
    x: Any,
    y: Any,
    declared: PublicColumns,
    spending: BudgetAllocator,
    weights: Any = None,
    *,
    target_bounds: Bounds = (0.0, 1.0),
    storage: Storage | None = None,
    people: People | None = None,
    averaging: float = 1.0,
    counts: ClassCounts | None = None,
) -> AdditiveModel:
    """Fit an additive model to encoded records, with all of ``spending``.

    The arguments are those of :func:`~discreet.linear.glm.glm.fit_glm`, with ``declared`` in place of the columns.

    Guarantee: within the budget of ``spending``. The rows that every stage asks are as ``Columns`` promises, which is
    enforced for each of them (:class:`~discreet.linear.gate.records.Records`).
    """
    loss, bounds = checked_loss(loss), checked_bounds(loss, target_bounds)
    records = Records(loss, x, y, declared.columns, weights, people, (storage or Storage()).shelf())
    return fit_curves(records, declared, spending, target_bounds=bounds, averaging=averaging, counts=counts)


def fit_curves(
    records: Records,
    declared: PublicColumns,
    spending: BudgetAllocator,
    *,
    target_bounds: Bounds = (0.0, 1.0),
    averaging: float = 1.0,
    counts: ClassCounts | None = None,
) -> AdditiveModel:
    """Fit an additive model to records that answer queries, stage by stage, with all of ``spending``."""
    loss, columns, bounds = records.loss, records.columns, checked_bounds(records.loss, target_bounds)
    spending.admit(records)
    if counts is None:
        counts = count_records(records, columns, spending)
    count = counts.records
    if columns.width == 0 or not sees_slopes(loss, counts, columns, spending):
        flat = fit_constant(records, bounds, counts, spending)
        return _of_lines(
            columns, flat.limits, flat.coefficients, flat.intercept, flat.counts or counts, spending
        )
    histograms, marginals = _measure_columns(records, declared, counts, spending)
    missing = fill_missing(records, marginals, count)
    curves, problem = None, None
    if histograms is not None:
        basis = _choose_basis(declared, histograms, marginals, loss, counts, spending)
        if basis is None:
            marginals = zoom_marginals(records, marginals, count, spending)
        else:
            curves, problem = _choose_pairs(
                records, declared, basis, histograms, marginals, bounds, counts, averaging, spending
            )
    coordinates: Frame
    if curves is None:
        coordinates, row_size = choose_coordinates(records, marginals, count, spending)
    else:
        records, coordinates, row_size = curves.records, curves.coordinates, curves.row_size
    if problem is None:
        problem = describe_target(records, bounds, counts, spending)
    for_the_end = share_of_recalibration(records, count, spending)
    share = spending.left - for_the_end
    descent = descend_noisily(problem, records, coordinates, row_size, counts, averaging, share, spending)
    theta = shrink_slopes(descent, descent.theta) if curves is None else shrink_curves(descent, curves)
    theta, borne_out = recalibrate(records, descent, theta, for_the_end, spending)
    coefficients, intercept = coordinates.back(theta)
    coefficients, intercept = (
        coefficients * problem.scale,
        np.asarray(intercept * problem.scale + problem.shift),
    )
    if curves is None:
        limits = marginals.lower, marginals.upper
        model = _of_lines(columns, limits, coefficients, intercept, counts, spending)
        if histograms is None and marginals.released is not None:
            histograms = as_histograms(marginals.released, count)
    else:
        precision = _precision(curves.basis, count, spending)
        model = AdditiveModel(curves.basis, coefficients, intercept, precision, counts)
    model = replace(model, histograms=histograms, released=marginals.released, missing=missing)
    return shape_curves(replace(model, borne_out=borne_out), declared)


def _of_lines(
    columns: Columns,
    limits: tuple[Array, Array],
    coefficients: Array,
    intercept: Array,
    counts: ClassCounts,
    spending: BudgetAllocator,
) -> AdditiveModel:
    """A linear model as one of curves with two knots."""
    basis, coefficients, more = as_curves(columns, *limits, coefficients)
    precision = _precision(basis, counts.records, spending)
    return AdditiveModel(basis, coefficients, np.asarray(intercept + more), precision, counts)


def _precision(basis: Basis, count: float, spending: BudgetAllocator) -> float:
    return 1 / (1 / count + basis.columns.width / (count * spending.strength) ** 2)


def _measure_columns(
    records: Records, declared: PublicColumns, counts: ClassCounts, spending: BudgetAllocator
) -> tuple[Histograms | None, Marginals]:
    """Histograms of the columns, where curves are possible, and their marginals."""
    split = BudgetSplit.of(counts.records, records.columns, spending)
    pieces = _pieces(declared, records.loss, counts, spending)
    if not split.sees_histograms or (pieces == 1 and not declared.pairs):
        return None, measure_columns(records, counts.records, spending)
    stage = spending.stage("marginals", at_most_half(split.for_marginals, spending))
    return count_histograms(records, declared.zeros, counts.records, stage)


def _informed(loss: Loss, counts: ClassCounts) -> float:
    """How many records of equally frequent classes would tell as much as these do.

    A record of two classes has the information p (1 - p), which is 1/4 at most.
    """
    return counts.records * (counts.balance if loss.kind == "classes" else 1.0)


def _pieces(declared: PublicColumns, loss: Loss, counts: ClassCounts, spending: BudgetAllocator) -> int:
    """How many straight pieces a curve may have; 1 is a line."""
    count = _informed(loss, counts)
    return pieces_for(count, count * spending.strength, declared.columns)


def _choose_basis(
    declared: PublicColumns,
    histograms: Histograms,
    marginals: Marginals,
    loss: Loss,
    counts: ClassCounts,
    spending: BudgetAllocator,
) -> Basis | None:
    """A curve for every numeric column; None where too few of them could be more than lines."""
    pieces = _pieces(declared, loss, counts, spending)
    allowed = [1 if shape == "linear" else pieces for shape in declared.shapes]
    told = [histograms.pieces(j, wanted) for j, wanted in enumerate(allowed)]
    bent = sum(number > 1 for number in told)
    if bent <= _FEW_CURVES * sum(number > 1 for number in allowed) and not declared.pairs:
        return None
    columns = declared.columns
    return Basis(columns, choose_curves(columns, histograms, marginals, allowed, declared.missing))


# Pairs of columns that act together.


def _choose_pairs(
    records: Records,
    declared: PublicColumns,
    basis: Basis,
    histograms: Histograms,
    marginals: Marginals,
    bounds: Bounds,
    counts: ClassCounts,
    averaging: float,
    spending: BudgetAllocator,
) -> tuple[Curves, DescentProblem | None]:
    """The records in curves, with a grid for each declared or chosen pair; the problem, if it was released."""
    pairs, problem, again = list(declared.pairs or ()), None, ""
    if declared.pairs is None and (candidates := _candidates(declared, records.loss, counts, spending)):
        ranks = ranks_of(histograms)
        stage = spending.stage("pair-ranks", _FOR_RANKS)
        correlations = rank_correlations(records, candidates, ranks, counts.records, stage)
        curves = _expand(records, basis, histograms, marginals, counts, spending)
        problem = describe_target(curves.records, bounds, counts, spending)
        residual = _residual(curves, problem, counts, averaging, spending)
        stage = spending.stage("pairs", _FOR_PAIRS)
        proposed = propose_pairs(records, candidates, correlations, ranks, residual, _MOST_PAIRS, stage)
        stage = spending.stage("pairs-again", _FOR_PROPOSED)
        linked = _two_classes(records.loss)
        within = replace(residual, far=1 / residual.unit if linked else _FAR)
        pairs = confirm_pairs(records, proposed, ranks, within, linked, stage)
        if not pairs:
            return curves, problem
        again = "-1"
    grids = _grids(records, histograms, marginals, counts.records, pairs, spending)
    basis = replace(basis, pairs=grids)
    return _expand(records, basis, histograms, marginals, counts, spending, again), problem


def _candidates(
    declared: PublicColumns, loss: Loss, counts: ClassCounts, spending: BudgetAllocator
) -> list[Places]:
    """The pairs that are asked for; none where the budget could not tell, or the work would be that of many fits.

    Only of numbers and of two classes: with another link, what a short descent has not learned of the curves does
    not add up, and would be taken for pairs.
    """
    free = [j for j, shape in enumerate(declared.shapes) if shape == "free"]
    alike = loss.kind == "numbers" or _two_classes(loss)
    pairs = list(combinations(free, 2)) if alike else []
    signal = _informed(loss, counts) * spending.strength * math.sqrt(_FOR_PAIRS)
    return pairs if len(pairs) <= _MOST_CANDIDATES and can_find(len(pairs), signal) else []


def _two_classes(loss: Loss) -> bool:
    return loss.kind == "classes" and loss.outputs == 1


def _residual(
    curves: Curves, problem: DescentProblem, counts: ClassCounts, averaging: float, spending: BudgetAllocator
) -> Residual:
    """What a short descent leaves of the targets of rows, over its typical size."""
    coordinates = curves.coordinates
    stage = spending.stage("first-gradients", _FOR_FIRST, _FIRST_STEPS)
    descent = descend_in(problem, curves.records, coordinates, curves.row_size, counts, averaging, stage)
    coefficients, intercept = coordinates.back(descent.theta)
    explained = float(coordinates.lengths @ descent.theta[1:] ** 2)
    left = problem.curvature if _two_classes(problem.loss) else max(1 - explained, 0.1)
    unit = math.sqrt(left) * problem.residual
    return Residual(curves.basis, coefficients, intercept, problem.loss, problem.target, unit)


def _grids(
    records: Records,
    histograms: Histograms,
    marginals: Marginals,
    count: float,
    chosen: list[Places],
    spending: BudgetAllocator,
) -> tuple[Pair, ...]:
    """The grids of the pairs that act together."""
    if not chosen:
        return ()
    signal = count * spending.strength
    side = int(min(max(math.sqrt(_CELLS * signal / len(chosen)), 3), _LARGEST_SIDE))
    stage = spending.stage("pair-cells", _FOR_CELLS)
    return count_cells(records, chosen, histograms, marginals, side, count, stage)


def _expand(
    records: Records,
    basis: Basis,
    histograms: Histograms,
    lines: Marginals,
    counts: ClassCounts,
    spending: BudgetAllocator,
    again: str = "",
) -> Curves:
    """The records as rows of a basis, in coordinates in which rough curves are short."""
    loss, count = records.loss, counts.records
    records, marginals = records.in_curves(basis), curve_marginals(basis, histograms, lines, count)
    share = BudgetSplit.of(count, records.columns, spending).for_row_norms
    known = block_moments(basis, histograms, marginals), roughness_of(basis, marginals.scale)
    classes = loss.kind == "classes"
    room = _ROOM_OF_CLASSES * (1.0 if loss.outputs == 1 else _ROOM_OF_MANY) if classes else 1.0
    straight, informed = straight_lines(basis, marginals.scale), _informed(loss, counts)
    directions = smooth_directions(*known, straight, informed, informed * spending.strength, room)
    whitening = WHITENING / 2  # pairs may need another release
    seen = visible(directions, count * spending.strength * math.sqrt(whitening), classes)
    longest = directions.down[:, :seen] / marginals.scale[:, None]
    middle, typical = -marginals.centre @ longest, _TYPICAL * math.sqrt(directions.lengths[:seen].sum())
    rows = CurveDirections(basis, longest, middle)
    stage = spending.stage(f"whitening{again}", whitening)
    moments = second_moments(records, rows, typical, count, stage)
    coordinates = white(directions, moments, marginals, basis)
    stage = spending.stage(f"row-norms{again}", share)
    widest = 2 * math.sqrt(basis.columns.width + 1)
    row_size = min(max(typical_size(records, WhiteNorms(coordinates.map), stage).size, 1.0), widest)
    return Curves(basis, histograms, lines, records, marginals, coordinates, row_size)


# Shrinkage of curves.


def shrink_curves(descent: DescentResult, curves: Curves) -> Array:
    """The result of a descent less what noise and chance explain of each curve, each category and grid.

    If they explain the bends of all curves, these are replaced by lines. The last step shortens each coordinate on
    its own, which would bend lines: they are made straight again.
    """
    problem, error, counts, theta, start = (
        descent.problem,
        descent.error,
        descent.counts,
        descent.theta,
        descent.start,
    )
    basis, coordinates = curves.basis, curves.coordinates
    dimensions, curvature = math.ceil(coordinates.lengths.sum()), _curvature(problem)
    usual = float(error.by_noise(curvature * curves.row_size**2 / dimensions))
    # A descent that has gone a part of the way, as with a rare class, has followed chance by that part only.
    reached = curvature * math.sqrt(float(error.by_chance(curvature, 1.0)))
    usual += _CHANCE * (reached * problem.residual) ** 2 / (counts.records * curvature)
    variances = _variances(descent, curves)
    bent = bend_parts(basis, curves.histograms, coordinates)
    alone = [bands for column, bands in bent.items() if column not in paired(basis)]
    lines = straighten(theta, start, basis, curves.lines, coordinates)
    classes = problem.loss.kind == "classes"
    farthest, roughly = (_FARTHEST_OF_CLASSES, 1.0) if classes else (_FARTHEST, _ROUGHLY)
    parts = level_parts(basis, coordinates)
    straight = are_straight(theta, start, alone, roughly * variances) and are_near(
        theta, lines, alone, variances, farthest
    )
    if straight:
        theta = lines
    else:
        parts = [band for bands in bent.values() for band in bands] + parts
    theta = shrink_slopes(descent, shrunk_parts(theta, start, parts, usual))
    return straighten(theta, start, basis, curves.lines, coordinates) if straight else theta


def _curvature(problem: DescentProblem) -> float:
    """The second derivative by which the steps of a descent were chosen."""
    return problem.bend if problem.loss.kind == "classes" else problem.curvature


def _variances(descent: DescentResult, curves: Curves) -> Array:
    """What noise and chance make of each coordinate."""
    problem, error, lengths = descent.problem, descent.error, curves.coordinates.lengths
    residual, curvature = problem.residual**2, _curvature(problem)
    if problem.loss.kind == "classes":
        residual = curvature  # as the likelihood has it
    elif problem.loss.kind == "numbers":
        residual *= max(1 - float(lengths @ descent.theta[1:] ** 2), 0.1)
        unclipped = error.rule.clip_norm / (curves.row_size * math.sqrt(2 * residual))
        curvature *= math.erf(unclipped)  # a clipped gradient does not turn
    curvatures = curvature * lengths
    chance = error.by_chance(curvatures, lengths * residual / descent.counts.records)
    return error.by_noise(curvatures) + chance


# Curves that must rise or fall.


def shape_curves(model: AdditiveModel, declared: PublicColumns) -> AdditiveModel:
    """The model with the curves that were declared to rise or fall moved to the nearest ones that do.

    Near is meant for the records: knots weigh by how many of them are around.
    """
    coefficients, intercept = model.coefficients.copy(), model.intercept.copy()
    for curve, start in zip(model.basis.curves, model.basis.starts, strict=False):
        shape = declared.shapes[curve.column]
        if shape not in ("increasing", "decreasing"):
            continue
        part = slice(start, start + len(curve.kept))
        sign = 1.0 if shape == "increasing" else -1.0
        values = np.zeros(len(curve.knots))
        values[curve.kept] = sign * coefficients[part]
        moved = sign * rising(values, _weights(model, curve))
        base = float(np.delete(moved, curve.kept)[0])
        coefficients[part] = moved[curve.kept] - base
        intercept = intercept + base
    return replace(model, coefficients=coefficients, intercept=intercept)


def rising(values: Array, weights: Array) -> Array:
    """The nearest values that do not fall, by pooling neighbours that do (Ayer et al. 1955).

    >>> rising(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            mean = (before[0] * before[1] + pool[0] * pool[1]) / total
            pool = (mean, total, before[2] + pool[2])
        pools.append(pool)
    return np.concatenate([np.full(length, value) for value, _, length in pools])


def _weights(model: AdditiveModel, curve: Curve) -> Array:
    if model.histograms is None:
        return np.ones(len(curve.knots))
    known = model.histograms
    means, _ = hat_moments(known.counts[curve.column], known.edges[curve.column], curve.knots)
    return means + 1e-6
