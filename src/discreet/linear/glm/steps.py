"""The descent: clip norm, ridge and step size from the noise, full-batch noisy steps, shrinkage, recalibration.

The clip norm is as large as the noise allows: its noise alone may cost ``TOLERANCE`` of excess loss. The ridge
pulls toward the model without features, as strongly as the noise calls for.

In docs/engines.md: E5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.core.descent import Path, descend
from discreet.linear.gate.compiled_sums import ClippedGradient, ScoreLine
from discreet.linear.gate.records import Records, Scores
from discreet.linear.glm.budget_split import BudgetSplit
from discreet.linear.glm.counts import ClassCounts
from discreet.linear.glm.frames import Frame, WhiteFrame
from discreet.linear.glm.marginals import typical_size
from discreet.linear.glm.problems import MIDDLE, DescentProblem
from discreet.linear.row_views.targets import CountExcess
from discreet.trusted.queries import ROUNDING, Blocks, Cells
from discreet.trusted.spending import BudgetAllocator, StagePermit

Array = NDArray[np.float64]

TOLERANCE = 1e-3
_RIDGE = 0.15
_FASTEST = 0.4  # steps over curvature, for many classes
_LONGER, _FEW_NUMBERS = 5 / 3, 2**22  # steps of large tables; numbers, of which forty passes take no time
_STEADY = 1.25  # a step times the curvature; at 2 a descent would grow


@dataclass(frozen=True)
class StepRule:
    """The numbers of the descent."""

    clip_norm: float
    ridge: float
    step_size: float


@dataclass(frozen=True, eq=False)
class DescentResult:
    """The result ``theta`` of a noisy descent, and the released values that it follows from.

    ``size`` is how many numbers a row has, the constant included, as far as they count, and ``row_size`` the typical
    norm of a row. ``error`` says what noise and sampling make of ``theta``.
    """

    problem: DescentProblem
    coordinates: Frame
    counts: ClassCounts
    size: int
    row_size: float
    start: Array
    theta: Array
    error: PathError

    @property
    def unit(self) -> Array:
        """The coordinates of the constant 1."""
        return self.coordinates.of_constant(np.ones(()))

    @property
    def spread(self) -> Array:
        """The mean squares of the numbers of a row."""
        spread = self.coordinates.spread
        return np.asarray(spread * self.row_size**2 / spread.sum())


def descend_noisily(
    problem: DescentProblem,
    records: Records,
    coordinates: Frame,
    row_size: float,
    counts: ClassCounts,
    averaging: float,
    share: float,
    spending: BudgetAllocator,
) -> DescentResult:
    """Forty noisy full-batch steps, or fewer and longer ones, on this share of the budget."""
    size, count = records.columns.width + 1, counts.records
    longer = stride(problem, count, size) if isinstance(coordinates, WhiteFrame) else 1.0
    steps = round(BudgetSplit.of(count, records.columns, spending).steps / longer)
    stage = spending.stage("gradients", share, steps)
    return descend_in(problem, records, coordinates, row_size, counts, averaging, stage, longer)


def descend_in(
    problem: DescentProblem,
    records: Records,
    coordinates: Frame,
    row_size: float,
    counts: ClassCounts,
    averaging: float,
    stage: StagePermit,
    longer: float = 1.0,
) -> DescentResult:
    """The descent of a stage, from the model without features; ``longer`` is the :func:`stride`."""
    size, count = records.columns.width + 1, counts.records
    if isinstance(coordinates, WhiteFrame) and coordinates.dimensions is not None:
        size = math.ceil(coordinates.dimensions)
    rule = step_rule(problem, stage, count, size, row_size * averaging, coordinates.curvature, longer)
    start = coordinates.of_constant(problem.start)
    theta = noisy_descent(problem, records, coordinates, start, rule, count, stage).result
    error = PathError(rule, stage.steps, stage.noise_multiplier * rule.clip_norm / count)
    return DescentResult(problem, coordinates, counts, size, row_size, start, theta, error)


def stride(problem: DescentProblem, count: float, size: int) -> float:
    """How many times longer steps are, and how many times fewer: more than 1 where a pass takes time.

    For rows in white coordinates. As far as noise and start are concerned, the average of 24 steps is as near to the
    optimum as that of 40 that are shorter by as much, for whatever curvature (:func:`step_effects`); only losses
    that could bend too much for long steps, or without a limit, keep short ones. Small tables keep them, too.
    """
    bend = problem.loss.curvature
    steady = bend is not None and problem.free_outputs == 1 and _LONGER * problem.rate * bend <= _STEADY
    return _LONGER if steady and count * size > _FEW_NUMBERS else 1.0


def step_rule(
    problem: DescentProblem,
    stage: StagePermit,
    count: float,
    size: int,
    row_size: float,
    curvature: float,
    longer: float = 1.0,
) -> StepRule:
    """The step rule for rows of ``size`` numbers (the constant included), of typical norm ``row_size``.

    ``count`` is the noisy number of records, ``curvature`` the largest eigenvalue of the second moments, and
    ``longer`` the :func:`stride`.
    """
    signal = stage.strength * count
    free = size * problem.free_outputs
    typical = row_size * problem.residual
    clip_norm = signal * math.sqrt(problem.tolerance * TOLERANCE / free)
    clip_norm = min(max(clip_norm, problem.least * typical), problem.most * typical)
    ridge = _RIDGE * (clip_norm / signal) ** 2 * free / (problem.curvature * problem.prior)
    rate = longer * problem.rate / curvature
    if problem.free_outputs > 1:  # many classes bend the loss less: longer steps, if the noise allows them
        rate = max(rate, min(rate * signal / free, _FASTEST / (problem.bend * curvature)))
    return StepRule(clip_norm, ridge, rate / (1 + rate * ridge))


def noisy_descent(
    problem: DescentProblem,
    records: Records,
    coordinates: Frame,
    start: Array,
    rule: StepRule,
    count: float,
    stage: StagePermit,
) -> Path:
    """``stage.steps`` full-batch steps from ``start``; the average of the last two thirds is what counts."""
    centred = problem.loss.outputs > 1  # adding the same to all scores of a softmax changes nothing

    def gradient(theta: Array) -> Array:
        query = ClippedGradient(problem.loss, coordinates.map, problem.target, theta, rule.clip_norm)
        noisy = stage.ask(records, query).value.reshape(theta.shape) / count
        if centred:
            noisy -= noisy.mean(axis=1, keepdims=True)
        return noisy + rule.ridge * (theta - start)

    return descend(gradient, start, stage.steps, rule.step_size, average="weighted-tail")


@dataclass(frozen=True)
class PathError:
    """What noise and chance make of the averaged path near the optimum; ``noise`` is that of an average gradient."""

    rule: StepRule
    steps: int
    noise: float

    def by_noise(self, curvature: ArrayLike) -> Array:
        """The variance that the noise of all steps leaves in a direction of this curvature."""
        effects = step_effects(self.rule, self.steps, curvature)
        return np.asarray(self.noise**2 * np.sum(effects**2, axis=0))

    def by_chance(self, curvature: ArrayLike, variance: ArrayLike) -> Array:
        """The variance that sampling leaves, where it gives the average gradient this one: the same at all steps."""
        return np.asarray(variance * np.sum(step_effects(self.rule, self.steps, curvature), axis=0) ** 2)


def step_effects(rule: StepRule, steps: int, curvature: ArrayLike) -> Array:
    """How far an error of 1 in each gradient moves the averaged path, where the loss has this curvature.

    The error of step j moves iterate t by ``step_size * fade**(t - j)``; the average weighs iterate t by t, over
    the last two thirds.
    """
    fade = 1 - rule.step_size * (np.asarray(curvature, np.float64) + rule.ridge)
    weights = np.arange(1.0, steps + 1)
    weights[: steps // 3] = 0.0
    effects = np.zeros((steps + 1, *fade.shape))
    for j in range(steps - 1, -1, -1):
        effects[j] = weights[j] + fade * effects[j + 1]
    return np.asarray(rule.step_size / weights.sum() * effects[:-1])


# Recalibration. Clipping and ridge bias a score: its slope comes out too small, and with a rare class its intercept
# is off. With s for what the features add to the score of a record, `recalibrate_classes` fits
# ``intercept + slope * s`` anew; `recalibrate_counts` moves the intercept until predictions and targets have the same
# sum.

_STEPS = 10
_FOR_THE_UNIT = 0.15  # of the share, to learn how large scores are
_CLIP_NORM = 1.2
_UNIT = 1.5  # typical scores
# Counts are cut so many deviations above their mean, or where noise is 2.5 % of their sum. Chosen on splits of the
# RAND records other than those that are quoted.
_FAR, _EXACT = 5.0, 0.025
_LARGEST_SHIFT = math.e - 1


def share_of_recalibration(records: Records, count: float, spending: BudgetAllocator) -> float:
    """The share of the budget for :func:`recalibrate`; 0 for numbers and many classes, which have none."""
    none = records.loss.kind == "numbers" or records.loss.outputs > 1
    split = BudgetSplit.of(count, records.columns, spending)
    return min(0.0 if none else split.for_recalibration, spending.left / 3)


def recalibrate(
    records: Records, descent: DescentResult, theta: Array, share: float, spending: BudgetAllocator
) -> tuple[Array, float]:
    """``theta`` recalibrated on a share of the budget, and the share of its slopes that other records bear out."""
    if not share:
        return theta, 1.0
    if descent.problem.loss.kind == "counts":
        return recalibrate_counts(records, descent, theta, spending.stage("recalibration", share)), 1.0
    way = recalibrate_classes(records, descent, theta, share, spending) - descent.start
    borne_out = _borne_out(descent, way)
    return descent.start + borne_out * way, borne_out


def recalibrate_classes(
    records: Records, descent: DescentResult, theta: Array, share: float, spending: BudgetAllocator
) -> Array:
    """``theta`` with its intercept and the slope of its features learned anew, for two classes."""
    problem, coordinates, start, unit = descent.problem, descent.coordinates, descent.start, descent.unit
    features, count = theta - start, descent.counts.records
    # The size of a typical score, if nothing else is known of it.
    expected = (1.0 if isinstance(coordinates, WhiteFrame) else 0.5) * float(np.linalg.norm(features))
    stage = spending.stage("score-sizes", _FOR_THE_UNIT * share)
    scores = Scores(coordinates.map, problem.target, features)
    typical = typical_size(records, scores, stage)
    size = min(max(typical.size, expected / 8), 4 * expected) if typical.found else expected
    width = _UNIT * max(size, 1e-6)
    stage = spending.stage("recalibration", (1 - _FOR_THE_UNIT) * share, _STEPS)
    before = np.array([float(problem.start), width])
    intercept, slope = _fit_line(problem, records, scores, before, count, stage)
    corrected: Array = start + (intercept - before[0]) * unit + features * max(slope / width, LEAST_SLOPE)
    return corrected


def _fit_line(
    problem: DescentProblem, records: Records, scores: Scores, before: Array, count: float, stage: StagePermit
) -> Array:
    """Damped Newton steps for intercept and slope, with a ridge toward what they were before."""
    chance = 1 / (1 + math.exp(-before[0]))
    curvature = 0.6 * max(chance * (1 - chance), 0.04)
    spread = np.array([1.0, max(0.5 * before[1] ** 2, 0.02)])
    ridge = (_CLIP_NORM / (stage.strength * count)) ** 2 / curvature / spread

    def newton_step(line: Array) -> Array:
        query = ScoreLine(problem.loss, scores, float(before[1]), line, _CLIP_NORM)
        noisy = stage.ask(records, query).value / count
        return (noisy + ridge * (line - before)) / (1.5 * (curvature + ridge))

    return descend(newton_step, before, _STEPS, step_size=1.0, average="weighted-tail").result


def recalibrate_counts(records: Records, descent: DescentResult, theta: Array, stage: StagePermit) -> Array:
    """``theta`` with its intercept moved so that predicted and true counts have the same sum.

    What is summed is how much the targets are above the predictions, both cut: few counts are as large as the largest
    one, and noise grows with the cut. The move is made smaller as far as its noise explains it.
    """
    problem, count, unit = descent.problem, descent.counts.records, descent.unit
    mean = math.exp(float(problem.start))
    cut = max(mean + _FAR * problem.residual, _EXACT * mean * count * stage.strength)
    cut = min(problem.largest, cut)
    scores = Scores(descent.coordinates.map, problem.target, theta)
    excess = Cells(CountExcess(cut), (1,), (cut,))
    noisy, noise, _ = stage.ask(records, Blocks((excess,), cut * ROUNDING, of=scores))
    missing = float(noisy[0]) / (mean * count)
    shift = -math.log1p(-min(max(missing, -_LARGEST_SHIFT), 1 - math.exp(-1)))
    error = noise / (mean * count)
    return np.asarray(theta + unit * shift * max(0.0, 1 - error**2 / max(shift**2, 1e-12)))


# Shrinkage. Post-processing: the noise of every number that a descent returns is known, and what it explains is taken
# back, for numbers and counts by `shrink_numbers`, for classes by `shrink_classes`, which also minds that a class is
# chosen by the sign of a score.

LEAST_SLOPE = 0.1
"""The least share of slopes that is left where chance could explain them: their order costs nothing."""

_FLATTEST, _STEEPEST, _SIZES = 0.02, 2.5, 40  # of the deviations that features may give to scores
_LEFT = 0.1  # of the variance of a target, that features do not explain
_STRETCHED = 4.0  # times, at most, that a correction makes slopes longer
_MOVED = 0.5  # of the deviation of scores: as far may slopes move an intercept
# An intercept is believed where the slopes are not if it is more than so many squared standard errors and one.
_CLEAR = 3.5


def shrink_slopes(descent: DescentResult, theta: Array) -> Array:
    """``theta`` less what its noise explains and, of numbers and counts, the chance of sampling."""
    problem, counts, row_size, error = descent.problem, descent.counts, descent.row_size, descent.error
    if problem.loss.kind == "classes":
        limit = math.inf if problem.loss.outputs > 1 else error.rule.clip_norm / row_size
        bias = clipping_bias(float(np.max(problem.start)), limit)
        variances = error.by_noise(counts.surely * problem.bend * descent.coordinates.spread)
        doubts = (problem.start_error, variances, descent.spread, bias)
        return shrink_classes(theta, descent.start, descent.unit, *doubts)
    square = row_size**2 / descent.size
    curvature = problem.curvature * square
    variance = float(error.by_noise(counts.surely * curvature))
    chance = float(error.by_chance(curvature, problem.residual**2 * square / counts.records))
    reached = curvature * math.sqrt(float(error.by_chance(curvature, 1.0)))
    seen = CoefficientVariances(variance, chance, reached, row_size**2)
    return shrink_numbers(theta, descent.start, descent.unit, problem.start_error, seen)


class CoefficientVariances(NamedTuple):
    """How a descent sees each number of a model: with what variance of its noise, with what variance of sampling as
    long as features explain nothing, and what share of the way it goes; ``size`` is the mean square of rows."""

    variance: float
    chance: float
    reached: float
    size: float


def shrink_numbers(
    theta: Array, start: Array, unit: Array, start_error: float, seen: CoefficientVariances
) -> Array:
    """``theta`` moved toward ``start`` as far as noise and chance explain the way. For numbers and counts.

    What the features add is multiplied as a whole, by :func:`factor_of_slopes`. The move of the intercept, along
    ``unit``, counts by its precision beside that of ``start``.
    """
    way, square = theta - start, float(np.sum(unit**2))
    level = float(unit @ way) / square
    features = way - level * unit
    factor = factor_of_slopes(float(np.sum(features**2)), way.size - 1, seen)
    trusted = start_error**2 / max(start_error**2 + seen.variance / square, 1e-300)
    return np.asarray(start + trusted * level * unit + factor * features)


def factor_of_slopes(square: float, free: int, seen: CoefficientVariances) -> float:
    """The mean of what slopes are over what was found of them, given the sum of ``free`` squares that was found.

    Scores may deviate by anything between 0 and what the target does, all of it as likely (Gelman 2006); each
    deviation counts as far as it explains what was found, and leaves the less to chance the larger it is. Where noise
    is all there is, the factor is small but not 0; it may be above 1 where a descent has not gone all the way.
    """
    deviations = (np.arange(_SIZES) + 0.5) / _SIZES
    signal = deviations**2 / seen.size
    chance = seen.chance * np.maximum(1 - deviations**2, _LEFT)
    total = signal * seen.reached**2 + seen.variance + chance
    likelihood = -0.5 * (free * np.log(total) + square / total)
    weights = np.exp(likelihood - likelihood.max())
    return float(weights @ (signal * seen.reached / total) / weights.sum())


def shrink_classes(
    theta: Array, start: Array, unit: Array, start_error: float, variances: Array, spread: Array, bias: float
) -> Array:
    """``theta`` for classes, as far as it can be believed: its slopes one by one, then its intercept.

    ``variances`` are those of the noise in each row of ``theta``, ``spread`` are the mean squares of the
    numbers of a row, and ``bias`` is what clipping does to the intercept. That one counts by its precision beside
    ``start``, from which steep slopes may move it. Where it is not clear that classes are unequal, it is shortened
    together with the slopes: the signs of scores stay, and modest probabilities cost no accuracy.
    """
    way, square = (theta - start).reshape(len(theta), -1), float(np.sum(unit**2))
    free = max(1, way.shape[1] - 1)
    level = unit @ way / square
    slopes = way - np.multiply.outer(unit, level)
    kept = (
        slopes
        * share_of_signal(np.sum(slopes**2, axis=1) / free, variances, free, float(spread.sum()))[:, None]
    )
    share = math.sqrt(float(np.sum(kept**2)) / max(float(np.sum(slopes**2)), 1e-300))
    doubt = float(unit**2 @ variances) / square**2 + bias**2
    free_to_move = start_error**2 + _MOVED**2 * float(spread @ kept**2 @ np.ones(way.shape[1])) / free
    trusted = free_to_move / max(free_to_move + doubt, 1e-300)
    intercept = unit @ start.reshape(way.shape) / square + trusted * level
    unequal = float(np.sum(intercept**2)) / max(free * trusted * doubt, 1e-300)
    intercept *= share + (1 - share) * min(max(0.0, unequal - _CLEAR), 1.0)
    return np.asarray((np.multiply.outer(unit, intercept) + kept).reshape(theta.shape))


def _borne_out(descent: DescentResult, after: Array) -> float:
    """The share of what features tell of classes that other records will bear out, after a recalibration."""
    problem, unit = descent.problem, descent.unit
    curvatures = problem.bend * descent.coordinates.spread
    level = np.outer(unit, unit) / float(unit @ unit)
    reached = curvatures * np.sqrt(descent.error.by_chance(curvatures, 1.0))
    reached[0] = 0.0  # of the constant
    informed = problem.bend / MIDDLE * descent.counts.records
    before = descent.theta - descent.start
    return out_of_sample_share(
        before - level @ before, after - level @ after, reached, descent.spread, informed
    )


def out_of_sample_share(before: Array, after: Array, reached: Array, spread: Array, records: float) -> float:
    """The share of slopes ``after`` a correction on the same records that others will bear out.

    Records explain themselves better than they explain others (van Houwelingen and le Cessie 1990). Of the slopes
    ``before`` each row followed its records by ``reached``, and by as much less as it was shortened since;
    ``spread`` times the squares of slopes is that of scores, and ``records`` have the information of one each. Where
    all of it could be chance, a tenth is left: probabilities are then nearly equal, but still in the order that the
    descent found, which an exact 0 would lose.
    """
    sizes = [np.sqrt(np.sum(slopes.reshape(len(slopes), -1) ** 2, axis=1)) for slopes in (before, after)]
    followed = reached @ np.minimum(sizes[1] / np.maximum(sizes[0], 1e-300), _STRETCHED)
    return max(LEAST_SLOPE, 1 - float(followed) / max(records * float(spread @ sizes[1] ** 2), 1e-300))


def share_of_signal(squares: Array, variances: Array, free: int, size: float) -> Array:
    """The share of each row of slopes that is signal: mean squares of ``free`` numbers each, and their noise.

    The mean over how steep slopes may be, each steepness weighed by how well it explains all that was seen: with
    one prior for all of them (empirical Bayes) and every order of magnitude as likely.
    """
    steepness = np.geomspace(_FLATTEST, _STEEPEST, _SIZES)[:, None] ** 2 / size
    total = steepness + variances
    likelihood = -0.5 * free * np.sum(np.log(total) + squares / total, axis=1)
    weights = np.exp(likelihood - likelihood.max())
    return np.asarray(weights @ (steepness / total) / weights.sum())


def clipping_bias(start: float, limit: float) -> float:
    """How far clipped residuals move the log odds of two classes: the rare one pulls less than it should."""
    common = 1 / (1 + math.exp(-min(abs(start), 700.0)))
    if common <= limit:
        return 0.0
    rare = min(limit / common, 1.0) * (1 - common)
    return max(0.0, math.log((1 - rare) / max(rare, 1e-300)) - abs(start))
