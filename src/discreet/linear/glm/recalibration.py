"""The last correction: intercept and slope of the finished score, two numbers that need little noise.

Clipping and ridge bias a score: its slope comes out too small, and with a rare class its intercept is off. With
s for what the features add to the score of a record, :func:`recalibrated` fits ``intercept + slope * s`` anew;
for counts :func:`mean_matched` moves the intercept until predictions and targets have the same sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from discreet.core.descent import descend
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.problems import Problem
from discreet.linear.glm.records import Block, Working
from discreet.linear.glm.spending import Spending, Stage
from discreet.linear.glm.steps import noisy_gradient
from discreet.linear.glm.typical import typical_size
from discreet.linear.kernels.kernel import row_norms
from discreet.linear.kernels.rowwise import times

Array = NDArray[np.float64]

_STEPS = 10
_FOR_THE_UNIT = 0.15  # of the share, to learn how large scores are
_CLIP_NORM = 1.2
_LARGEST_SCORE = 3.0
_UNIT = 1.5  # typical scores


class Scores:
    """Records reduced to one number, what the features add to their score, in ``unit`` and within +-3.

    They take the place of :class:`~discreet.linear.glm.records.Working` in a descent over two parameters.
    """

    constant = 1.0

    def __init__(self, working: Working, features: Array, unit: float) -> None:
        self._working, self._features, self._unit = working, features, unit
        self._kept = list(self._made()) if working.in_memory else None

    def __iter__(self) -> Iterator[Block]:
        return iter(self._kept) if self._kept is not None else self._made()

    def _made(self) -> Iterator[Block]:
        for block in self._working:
            score = scores(block, self._features, self._working.constant) / self._unit
            z = np.clip(score, -_LARGEST_SCORE, _LARGEST_SCORE)[:, None]
            yield block._replace(z=z, norms=row_norms(z, self.constant))


def recalibrated(
    problem: Problem,
    working: Working,
    theta: Array,
    start: Array,
    unit: Array,
    expected: float,
    count: float,
    share: float,
    spending: Spending,
) -> Array:
    """``theta`` with its intercept and the slope of its features learned anew, for two classes.

    ``start`` is the model without features, ``unit`` the one that gives every record the score 1, and
    ``expected`` the size of a typical score if nothing is known of it.

    Guarantee: a histogram of sensitivity 1, then steps whose gradients are clipped to 1.2.
    """
    features = theta - start
    stage = spending.stage("score-sizes", _FOR_THE_UNIT * share)
    sizes = ((abs(scores(block, features, working.constant)), block.weights) for block in working)
    typical = typical_size(sizes, stage)
    size = min(max(typical.size, expected / 8), 4 * expected) if typical.found else expected
    width = _UNIT * max(size, 1e-6)
    stage = spending.stage("recalibration", (1 - _FOR_THE_UNIT) * share, _STEPS)
    before = np.array([float(problem.start), width])
    intercept, slope = _fitted_line(problem, Scores(working, features, width), before, count, stage)
    corrected: Array = start + (intercept - before[0]) * unit + features * (max(slope, 0.0) / width)
    return corrected


def _fitted_line(problem: Problem, data: Scores, before: Array, count: float, stage: Stage) -> Array:
    """Damped Newton steps for intercept and slope, with a ridge toward what they were before."""
    chance = 1 / (1 + math.exp(-before[0]))
    curvature = 0.6 * max(chance * (1 - chance), 0.04)
    spread = np.array([1.0, max(0.5 * before[1] ** 2, 0.02)])
    ridge = (_CLIP_NORM / (stage.strength * count)) ** 2 / curvature / spread

    def newton_step(line: Array) -> Array:
        noisy = noisy_gradient(problem.loss, data, line, _CLIP_NORM, stage) / count
        return (noisy + ridge * (line - before)) / (1.5 * (curvature + ridge))

    return descend(newton_step, before, _STEPS, step_size=1.0, average="weighted-tail").result


def mean_matched(
    problem: Problem, working: Working, theta: Array, unit: Array, most: float, count: float, stage: Stage
) -> Array:
    """``theta`` with its intercept moved so that predicted and true counts have the same sum.

    ``unit`` is the model that gives every record the score 1; targets and predictions are cut at ``most``. The
    move is made smaller as far as its noise explains it.

    Guarantee: a record adds a prediction and a target of at most ``most`` each: sensitivity sqrt(2) most.
    """
    sums = Sums(stage, 2, math.sqrt(2) * most * (1 + 1e-9))
    for block in working:
        expected = np.exp(np.minimum(scores(block, theta, working.constant), math.log(most)))
        sums.add_rows(
            0, np.column_stack([np.clip(block.y, 0, most), np.minimum(expected, most)]), block.weights
        )
    least = 0.2 * math.exp(float(problem.start)) * count
    true, predicted = np.maximum(sums.released(), least)
    shift = float(np.clip(math.log(true / predicted), -1, 1))
    error = sums.noise * math.hypot(1 / true, 1 / predicted)
    return np.asarray(theta + unit * shift * max(0.0, 1 - error**2 / max(shift**2, 1e-12)))


def scores(block: Block, theta: Array, constant: float) -> Array:
    """constant * theta[0] + z @ theta[1:] of each record."""
    return np.asarray(constant * theta[0] + times(block.z, theta[1:]), np.float64)
