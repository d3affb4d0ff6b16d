"""The optimisation problem that a target poses, as a :class:`DescentProblem`: loss, start, curvature, scale.

Where the target is a class, all of it follows from the class counts. The location and scale of a number or a count
are released first (:func:`describe_target`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from discreet.errors import InvalidParameter, real
from discreet.linear.gate.records import Records
from discreet.linear.glm.budget_split import BudgetSplit, at_most_half
from discreet.linear.glm.counts import ClassCounts, sees_slopes
from discreet.linear.glm.marginals import moments, resolve_bins
from discreet.linear.losses import Loss
from discreet.linear.row_views.targets import Target, TargetBin, TargetHalfOctave, TargetMoments, TargetOffset
from discreet.trusted.queries import ROUNDING, Blocks, Cells
from discreet.trusted.spending import BudgetAllocator, StagePermit

Array = NDArray[np.float64]

MIDDLE = 0.6
"""The second derivative in the middle of a descent, over that at its start, for classes."""

Bounds = tuple[float, float]

_BINS = 64
# Hulls of the clear bins that are left on either side; the share of the bounds below which narrower ones are used.
_BEYOND, _NARROW = 2, 0.25
_ZOOMS = 8  # into the bounds of a target: each makes them a tenth or less, so they may be 1e8 times too wide
_STEPS, _MORE_STEPS = 3, 5  # releases of an iterative mean, where features say more and where they do not
_NEARLY_ALL = 0.9  # of what is left, for a mean where no slope can be seen
_LARGEST = 0.6  # share of what is left, for where a number is and how far it spreads
_FASTEST = 1.5  # below 2, where a descent on a loss of curvature 1 would grow
_ANYWHERE = 1e6  # the error of a start that says nothing of the best score


@dataclass(frozen=True, eq=False)
class DescentProblem:
    """A loss in working units, where to start, and the sizes by which clip norm, ridge and step are chosen.

    ``start`` is the score of the best model without features. ``curvature`` is a typical second derivative of
    the loss, ``residual`` a typical first one. ``tolerance`` weighs the noise against the bias of clipping,
    ``least`` and ``most`` limit the clip norm in residuals times row norms, ``prior`` is the squared score that
    features are expected to give, and ``rate`` the step size where the second moments are 1. A score u of the
    working loss means ``shift + scale * u``. ``largest`` is the largest count that was seen, ``start_error`` the
    standard error of ``start``, ``bend`` the second derivative in the middle of the descent, for classes.
    """

    loss: Loss
    target: Target
    start: Array
    curvature: float
    tolerance: float
    prior: float
    rate: float
    residual: float = 1.0
    least: float = 0.4
    most: float = 8.0
    shift: float = 0.0
    scale: float = 1.0
    largest: float = math.inf
    start_error: float = 0.0
    bend: float = 1.0

    @property
    def free_outputs(self) -> int:
        """How many scores a model may choose freely."""
        return max(1, self.loss.outputs - 1)


def checked_bounds(loss: Loss, bounds: Bounds) -> Bounds:
    """The bounds of a target, if the loss can use them."""
    lower = real("target_bounds[0]", bounds[0], at_least=-1e100, at_most=1e100)
    upper = real("target_bounds[1]", bounds[1], above=lower, at_most=1e100)
    if loss.kind == "counts" and lower != 0:
        raise InvalidParameter("target_bounds", bounds, "must begin at 0 for counts.")
    return lower, upper


def describe_target(
    records: Records, bounds: Bounds, counts: ClassCounts, spending: BudgetAllocator
) -> DescentProblem:
    """The problem of a target: from the counts for classes, else from a release of its location and scale."""
    loss, count = records.loss, counts.records
    split = BudgetSplit.of(count, records.columns, spending)
    if loss.kind == "classes":
        return of_classes(loss, counts)
    if loss.fits_mean and not split.sees_target:
        return _of_some_numbers(records, bounds, count, spending)
    stage = spending.stage("target", at_most_half(split.for_target, spending))
    if loss.kind == "counts":
        return of_counts(loss, records, bounds[1], count, stage, _stage_of_mean(records, split, spending))
    seen = count_targets(records, bounds, stage)
    for zoom in range(1, _ZOOMS + 1):
        narrow = narrower_bounds(seen, count)
        if narrow is None:
            break
        stage = spending.stage(f"target-zoom-{zoom}", at_most_half(split.for_target, spending))
        seen = count_targets(records, narrow, stage)
    if loss.fits_mean and not split.resolves_target:
        return _of_some_numbers(records, seen.bounds, count, spending)
    return of_numbers(loss, records, seen, count, _stage_of_mean(records, split, spending))


def describe_constant(
    records: Records, bounds: Bounds, counts: ClassCounts, spending: BudgetAllocator
) -> DescentProblem:
    """The problem of a target where no column is used: a mean of few numbers may then cost all that is left."""
    loss = records.loss
    if loss.kind != "numbers" or sees_slopes(loss, counts, records.columns, spending):
        return describe_target(records, bounds, counts, spending)
    stage = spending.stage("target-mean", steps=_MORE_STEPS)
    unknown = Location(0.5, UNKNOWN, 0.0)
    found = iterative_mean(records, Within.of(bounds), unknown, counts.records, stage)
    return _problem_of_number(loss, bounds, found._replace(spread=UNKNOWN))


def _of_some_numbers(
    records: Records, bounds: Bounds, count: float, spending: BudgetAllocator
) -> DescentProblem:
    """A number of which a histogram hides how far it spreads, or shows nothing."""
    split = BudgetSplit.of(count, records.columns, spending)
    share = min(split.for_target + split.for_mean, _LARGEST * spending.left)
    stage = spending.stage("target-mean", share, _MORE_STEPS)
    found = iterative_location(records, Within.of(bounds), count, stage)
    return _problem_of_number(records.loss, bounds, found)


def _stage_of_mean(records: Records, split: BudgetSplit, spending: BudgetAllocator) -> StagePermit | None:
    """For an iterative mean: None if there are many records, nearly all that is left if very few."""
    share = min(split.for_mean, spending.left / 3)
    if not split.sees_slopes(records.columns.width + 1):
        share = _NEARLY_ALL * spending.left
    return spending.stage("target-mean", share, _STEPS) if share else None


def of_classes(loss: Loss, counts: ClassCounts) -> DescentProblem:
    """Two or more classes; the priors are known from the counts."""
    priors = counts.priors
    score, curvature, rate = loss.start(priors)
    error = counts.share_error * float(np.mean(1 / (priors * (1 - priors))))  # of the log odds
    known = {"start_error": error, "bend": MIDDLE * loss.bend(priors)}
    return DescentProblem(
        loss, Target(), np.asarray(score), curvature, 2 * curvature * counts.balance, 4.0, rate, **known
    )


class TargetHistogram(NamedTuple):
    """Released of targets within bounds: 64 bins and two sums, and the noise on each."""

    bounds: Bounds
    noisy: Array
    noise: float


def count_targets(records: Records, bounds: Bounds, stage: StagePermit) -> TargetHistogram:
    """The histogram and the moments of a number within bounds that are public or were released."""
    lower, width = bounds[0], bounds[1] - bounds[0]
    parts = (
        Cells(TargetBin(lower, width, _BINS), (_BINS,), (1.0,)),
        Cells(TargetMoments(lower, width), (1, 1), (0.5, 0.5)),
    )
    noisy, noise, _ = stage.ask(records, Blocks(parts, ROUNDING * math.sqrt(1.5)))
    return TargetHistogram(bounds, noisy, noise)


def narrower_bounds(seen: TargetHistogram, count: float) -> Bounds | None:
    """Bounds around all that stands out of the noise, with as much again and more on either side. Post-processing.

    None if most records do not stand out, or if that is not much narrower.
    """
    found, (lower, upper) = resolve_bins(seen.noisy[:_BINS], seen.noise, count), seen.bounds
    if found is None:
        return None
    bins, first, last = len(found.counts), int(found.clear[0]), int(found.clear[-1]) + 1
    beyond, width = _BEYOND * (last - first), (upper - lower) / bins
    first, last = max(first - beyond, 0), min(last + beyond, bins)
    narrow = lower + first * width, lower + last * width
    return narrow if last - first <= _NARROW * bins and narrow[0] < narrow[1] else None


def of_numbers(
    loss: Loss, records: Records, seen: TargetHistogram, count: float, again: StagePermit | None = None
) -> DescentProblem:
    """A number within bounds, brought to mean 0 and variance 1; ``again`` is for an iterative mean."""
    found = _location_and_scale(seen.noisy, seen.noise, count)
    if again is not None:
        found = iterative_mean(records, Within.of(seen.bounds), found, count, again)
    return _problem_of_number(loss, seen.bounds, found)


def _problem_of_number(loss: Loss, bounds: Bounds, found: Location) -> DescentProblem:
    """The problem of a number with this location and scale within its bounds."""
    lower, width = bounds[0], bounds[1] - bounds[0]
    middle, spread = lower + width * found.mean, width * found.spread
    working = loss.in_units(middle, spread)
    residual, curvature = working.typical_residual, working.typical_curvature
    target = Target(*bounds, middle, spread)
    limits = {"least": 0.5, "most": 32.0, "shift": middle, "scale": spread}
    limits["start_error"] = found.error / found.spread if loss.fits_mean else _ANYWHERE
    limits["residual"] = residual
    rate = min(0.5 / curvature, _FASTEST)
    return DescentProblem(working, target, np.zeros(()), curvature, curvature, 0.6, rate, **limits)


def _location_and_scale(noisy: Array, noise: float, count: float) -> Location:
    """Mean, its error and standard deviation in units of the bounds. Post-processing."""
    offset, error = noisy[-2] / count, noise / count
    mean = float(np.clip(0.5 + offset, 0, 1))
    variance = min(max(noisy[-1] / 2 / count - (mean - 0.5) ** 2, 0.25 * error, 1e-8), 1 / 12)
    found = moments(noisy[:-2], noise, count)
    if found is None:  # the mean is pulled to the middle as far as its noise explains the offset
        pulled = offset * max(0.0, 1 - error**2 / max(offset**2, 1e-12))
        return Location(float(np.clip(0.5 + pulled, 0, 1)), min(error, UNKNOWN), math.sqrt(variance))
    width = math.sqrt(found.variance)
    agrees = error < 0.3 * width and abs(mean - found.mean) < width + 2 * error
    return Location(mean if agrees else found.mean, error if agrees else min(error, width), width)


def of_counts(
    loss: Loss,
    records: Records,
    most: float,
    count: float,
    stage: StagePermit,
    again: StagePermit | None = None,
) -> DescentProblem:
    """Counts of events from 0 to ``most``, with the log link; ``again`` is for an iterative mean."""
    cells = math.ceil(2 * math.log2(1 + most)) + 1
    histogram, noise, _ = stage.ask(
        records, Blocks((Cells(TargetHalfOctave(most, cells), (cells,), (1.0,)),), 1.0)
    )
    histogram[histogram < 3 * noise] = 0  # else one empty cell of large counts would decide
    largest = min(most, 2 * 2 ** (int(np.max(np.flatnonzero(histogram), initial=0)) / 2))
    share, sizes = histogram / max(histogram.sum(), 1.0), 2 ** (np.arange(cells) / 2) - 1
    mean = max(float(share @ sizes), noise / count, 1e-3)
    deviation = math.sqrt(max(float(share @ sizes**2) - mean**2, mean))
    error = min(math.sqrt(mean), mean + noise / count)
    if again is not None:
        cap = largest
        known = Location(mean / cap, error / cap, deviation / cap)
        found = iterative_mean(records, Within(0.0, cap), known, count, again)
        mean, error = max(cap * found.mean, 0.25 * cap * found.error, 1e-3), cap * found.error
    start = np.asarray(math.log(mean))
    typical = {"residual": deviation, "largest": largest, "start_error": error / mean}
    return DescentProblem(loss, Target(0.0, most), start, mean, mean**2, 0.5, 0.5 / mean, **typical)


# Iterative means. Each release clips targets around the current estimate of their mean; the better it is known, the
# smaller the clip, and the less noise the next release has. A histogram of few numbers drowns in noise instead, and a
# spread that is taken for three times what it is makes all later noise three times as large.

UNKNOWN = 12**-0.5
"""The error of a mean that may be anywhere in [0, 1], and the spread of numbers that may be."""

_MEDIAN_ERRORS = 3.0  # how far around the middle numbers count in full
_NARROWEST, _CANDIDATES = 1e-6, 200  # the spreads that are considered: from there to that of the bounds
_OF_MEDIAN = 1.25  # the error of a median over that of a mean, for normal numbers
# How far around the mean targets count in full; an error more if no spread is known.
_SPREADS, _ERRORS = 3.0, 2.0


class Within(NamedTuple):
    """Where targets are [0, 1]: from ``lower`` over ``width``."""

    lower: float
    width: float

    @classmethod
    def of(cls, bounds: Bounds) -> Within:
        return cls(bounds[0], bounds[1] - bounds[0])


class Location(NamedTuple):
    """The mean of numbers in [0, 1], the standard error of that, and the spread of the numbers."""

    mean: float
    error: float
    spread: float


def iterative_mean(
    records: Records, within: Within, known: Location, count: float, stage: StagePermit
) -> Location:
    """The mean after ``stage.steps`` more releases, each weighed by its precision.

    In every release a record adds its target, clipped to ``reach`` around a released number.
    """
    for _ in range(stage.steps):
        mean, error, spread = known
        reach = min(max(_SPREADS * spread, error) + _ERRORS * error, max(mean, 1 - mean))
        view = TargetOffset(*within, mean, reach)
        noisy, noise, _ = stage.ask(records, Blocks((Cells(view, (1,), (reach,)),), reach * ROUNDING))
        seen, doubt = float(noisy[0]) / count, noise / count
        moved = mean + seen * error**2 / (error**2 + doubt**2)
        known = Location(min(max(moved, 0.0), 1.0), error * doubt / math.hypot(error, doubt), spread)
    return known


def iterative_location(records: Records, within: Within, count: float, stage: StagePermit) -> Location:
    """Where numbers in [0, 1] are and how far they spread, by ``stage.steps`` releases.

    What is found is between their mean and their median, so its error is at least that of a median. With a for the
    distance of a record's number from a released one, at most ``reach``, it adds a or -a to one sum and a - reach / 2
    to another.
    """
    mean, error = 0.5, UNKNOWN
    spreads = np.geomspace(_NARROWEST, UNKNOWN, _CANDIDATES)
    likely = np.zeros(_CANDIDATES)
    for _ in range(stage.steps):
        reach = min(_MEDIAN_ERRORS * error, max(mean, 1 - mean))
        view, bound = TargetOffset(*within, mean, reach, far=True), reach * math.sqrt(1.25) * ROUNDING
        noisy, noise, _ = stage.ask(records, Blocks((Cells(view, (1, 1), (reach, reach / 2)),), bound))
        side, far = (float(seen) / count for seen in noisy)
        doubt = noise / count
        expected = clipped_distance(np.hypot(spreads, error), reach)
        likely -= 0.5 * ((far + reach / 2 - expected) / doubt) ** 2
        mean = min(max(mean + side * error**2 / (error**2 + doubt**2), 0.0), 1.0)
        error *= doubt / math.hypot(error, doubt)
    weights_of = np.exp(likely - likely.max())
    spread = max(math.exp(float(weights_of @ np.log(spreads) / weights_of.sum())), error)
    return Location(mean, math.hypot(error, _OF_MEDIAN * spread / math.sqrt(count)), spread)


def clipped_distance(deviation: Array, reach: float) -> Array:
    """The mean of min(\\|x\\|, reach), for normal numbers x around 0 with these standard deviations."""
    a = reach / deviation
    return np.asarray(deviation * (math.sqrt(2 / math.pi) * -np.expm1(-(a**2) / 2) + 2 * a * ndtr(-a)))
