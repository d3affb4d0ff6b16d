"""What the descent has to know of each kind of target: :class:`Problem`.

Where the target is a class, all of it follows from the class counts. A number or a count has to be looked at:
its location and scale are one more release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.block_sums import (
    ROUNDING,
    Blocks,
    Cells,
    TargetBin,
    TargetHalfOctave,
    TargetMoments,
    TargetOffset,
    Values,
)
from discreet.linear.gate.clipped_gradients import Target
from discreet.linear.gate.records import Records
from discreet.linear.glm.closer_looks import UNKNOWN, Location, Within, locate_numbers
from discreet.linear.glm.counts import Counts
from discreet.linear.glm.marginals import moments, resolve_bins
from discreet.linear.glm.spending import Stage
from discreet.linear.losses import Loss

Array = NDArray[np.float64]

MIDDLE = 0.6
"""The second derivative in the middle of a descent, over that at its start, for classes."""

_BINS = 64
_BEYOND, _NARROW = (
    2,
    0.25,
)  # hulls of what is clear that are left on either side; of the bounds, to be worth a look
_FASTEST = 1.5  # below 2, where a descent on a loss of curvature 1 would grow
_ANYWHERE = 1e6  # the error of a start that says nothing of the best score


@dataclass(frozen=True, eq=False)
class Problem:
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


def of_classes(loss: Loss, counts: Counts) -> Problem:
    """Two or more classes; the priors are known from the counts."""
    priors = counts.priors
    score, curvature, rate = loss.start(priors)
    error = counts.share_error * float(np.mean(1 / (priors * (1 - priors))))  # of the log odds
    known = {"start_error": error, "bend": MIDDLE * loss.bend(priors)}
    return Problem(
        loss, Target(), np.asarray(score), curvature, 2 * curvature * counts.balance, 4.0, rate, **known
    )


class Look(NamedTuple):
    """What was released of targets within bounds: 64 bins and two sums, and the noise on each."""

    bounds: tuple[float, float]
    noisy: Array
    noise: float


def look_at_targets(records: Records, bounds: tuple[float, float], stage: Stage) -> Look:
    """A look at a number within bounds that are public or were released."""
    lower, width = bounds[0], bounds[1] - bounds[0]
    parts = (Cells(TargetBin(lower, width, _BINS), _BINS), Values(TargetMoments(lower, width), (0.5, 0.5)))
    noisy, noise, _ = stage.ask(records, Blocks(parts, ROUNDING * math.sqrt(1.5)))
    return Look(bounds, noisy, noise)


def narrower_bounds(look: Look, count: float) -> tuple[float, float] | None:
    """Bounds around all that stands out of the noise, with as much again and more on either side. Post-processing.

    None if most records do not stand out, or if that is not much narrower.
    """
    found, (lower, upper) = resolve_bins(look.noisy[:_BINS], look.noise, count), look.bounds
    if found is None:
        return None
    bins, first, last = len(found.counts), int(found.clear[0]), int(found.clear[-1]) + 1
    beyond, width = _BEYOND * (last - first), (upper - lower) / bins
    first, last = max(first - beyond, 0), min(last + beyond, bins)
    narrow = lower + first * width, lower + last * width
    return narrow if last - first <= _NARROW * bins and narrow[0] < narrow[1] else None


def of_numbers(
    loss: Loss, records: Records, look: Look, count: float, closer: Stage | None = None
) -> Problem:
    """A number within bounds, brought to mean 0 and variance 1; ``closer`` is for more looks at the mean."""
    found = _location_and_scale(look.noisy, look.noise, count)
    if closer is not None:
        found = look_closer(records, Within.of(look.bounds), found, count, closer)
    return _problem_of_number(loss, look.bounds, found)


def of_some_numbers(
    loss: Loss, records: Records, bounds: tuple[float, float], count: float, stage: Stage
) -> Problem:
    """A number within bounds, where records are too few for a histogram of it."""
    return _problem_of_number(loss, bounds, locate_numbers(records, Within.of(bounds), count, stage))


def of_few_numbers(
    loss: Loss, records: Records, bounds: tuple[float, float], count: float, stage: Stage
) -> Problem:
    """A number of which nothing but the mean can be known, by looks that come closer and closer to it."""
    found = look_closer(records, Within.of(bounds), Location(0.5, UNKNOWN, 0.0), count, stage)
    return _problem_of_number(loss, bounds, found._replace(spread=UNKNOWN))


def _problem_of_number(loss: Loss, bounds: tuple[float, float], found: Location) -> Problem:
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
    return Problem(working, target, np.zeros(()), curvature, curvature, 0.6, rate, **limits)


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
    loss: Loss, records: Records, most: float, count: float, stage: Stage, closer: Stage | None = None
) -> Problem:
    """Counts of events from 0 to ``most``, with the log link; ``closer`` is for more looks at the mean."""
    cells = math.ceil(2 * math.log2(1 + most)) + 1
    histogram, noise, _ = stage.ask(records, Blocks((Cells(TargetHalfOctave(most, cells), cells),), 1.0))
    histogram[histogram < 3 * noise] = 0  # else one empty cell of large counts would decide
    largest = min(most, 2 * 2 ** (int(np.max(np.flatnonzero(histogram), initial=0)) / 2))
    share, sizes = histogram / max(histogram.sum(), 1.0), 2 ** (np.arange(cells) / 2) - 1
    mean = max(float(share @ sizes), noise / count, 1e-3)
    deviation = math.sqrt(max(float(share @ sizes**2) - mean**2, mean))
    error = min(math.sqrt(mean), mean + noise / count)
    if closer is not None:
        cap = largest
        found = look_closer(
            records, Within(0.0, cap), Location(mean / cap, error / cap, deviation / cap), count, closer
        )
        mean, error = max(cap * found.mean, 0.25 * cap * found.error, 1e-3), cap * found.error

    start = np.asarray(math.log(mean))
    known = {"residual": deviation, "largest": largest, "start_error": error / mean}
    return Problem(loss, Target(0.0, most), start, mean, mean**2, 0.5, 0.5 / mean, **known)


# ---- a second look at the mean of a target, where records are few: look_closer ----
#
# The mean is what a model without features predicts, so nothing else is worth as much. Targets are clipped
# around what is known of it; the better it is known, the closer, and the less noise the next look needs.


# How far around the mean targets count in full; an error more if no spread is known.
_SPREADS, _ERRORS = 3.0, 2.0


def look_closer(records: Records, within: Within, known: Location, count: float, stage: Stage) -> Location:
    """The mean after ``stage.steps`` more looks at the targets, each weighed by its precision.

    In every look a record adds its target, clipped to ``reach`` around a released number.
    """
    for _ in range(stage.steps):
        mean, error, spread = known
        reach = min(max(_SPREADS * spread, error) + _ERRORS * error, max(mean, 1 - mean))
        view = TargetOffset(*within, mean, reach)
        noisy, noise, _ = stage.ask(records, Blocks((Values(view, (reach,)),), reach * ROUNDING))
        seen, doubt = float(noisy[0]) / count, noise / count
        moved = mean + seen * error**2 / (error**2 + doubt**2)
        known = Location(min(max(moved, 0.0), 1.0), error * doubt / math.hypot(error, doubt), spread)
    return known
