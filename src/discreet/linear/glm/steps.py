"""The descent itself: clip norm, ridge and step size from the noise, then full-batch noisy steps.

The clip norm is as large as the noise allows: its noise alone may cost ``TOLERANCE`` of excess loss. The ridge
pulls toward the model without features, as strongly as the noise calls for.

In docs/engines.md: E5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet.core.descent import Path, descend
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.problems import Problem
from discreet.linear.glm.records import Block, Blocks, Working
from discreet.linear.glm.scales import typical_size
from discreet.linear.glm.spending import Spending, Stage
from discreet.linear.kernels.kernel import hardened_clipped_gradient, row_norms
from discreet.linear.kernels.rowwise import times
from discreet.linear.losses import Loss

Array = NDArray[np.float64]

TOLERANCE = 1e-3
_RIDGE = 0.15
_FASTEST = 0.4  # steps over curvature, for many classes


@dataclass(frozen=True)
class StepRule:
    """The numbers of the descent."""

    clip_norm: float
    ridge: float
    step_size: float


def step_rule(
    problem: Problem, stage: Stage, count: float, size: int, row_size: float, curvature: float
) -> StepRule:
    """The step rule for rows of ``size`` numbers (the constant included), of typical norm ``row_size``.

    ``count`` is the noisy number of records, ``curvature`` the largest eigenvalue of the second moments.
    """
    signal = stage.strength * count
    free = size * problem.free_outputs
    typical = row_size * problem.residual
    clip_norm = signal * math.sqrt(problem.tolerance * TOLERANCE / free)
    clip_norm = min(max(clip_norm, problem.least * typical), problem.most * typical)
    ridge = _RIDGE * (clip_norm / signal) ** 2 * free / (problem.curvature * problem.prior)
    rate = problem.rate / curvature
    if problem.free_outputs > 1:  # many classes bend the loss less: longer steps, if the noise allows them
        rate = max(rate, min(rate * signal / free, _FASTEST / (problem.bend * curvature)))
    return StepRule(clip_norm, ridge, rate / (1 + rate * ridge))


def noisy_descent(
    problem: Problem, working: Blocks, start: Array, rule: StepRule, count: float, stage: Stage
) -> Path:
    """``stage.steps`` full-batch steps from ``start``; the average of the last two thirds is what counts.

    Guarantee: every step releases the sum of gradients that are clipped to ``rule.clip_norm`` each.
    """
    centred = problem.loss.outputs > 1  # adding the same to all scores of a softmax changes nothing

    def gradient(theta: Array) -> Array:
        noisy = noisy_gradient(problem.loss, working, theta, rule.clip_norm, stage) / count
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


def averaging_gain(rule: StepRule, steps: int, curvature: float) -> float:
    """The variance of the averaged path for noise of variance 1 in each gradient, near the optimum."""
    return float(np.sum(step_effects(rule, steps, curvature) ** 2))


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


def noisy_gradient(loss: Loss, working: Blocks, theta: Array, clip_norm: float, stage: Stage) -> Array:
    """The sum of clipped gradients at ``theta``, with noise.

    Guarantee: the sensitivity is ``clip_norm``, for a record or for a person; see
    :func:`~discreet.linear.kernels.kernel.hardened_clipped_gradient`.
    """
    sums = Sums(stage, theta.size, clip_norm)
    for z, y, weights, norms, people in working:
        known = (loss, z, y, theta, working.constant, norms, clip_norm)
        sums.add_total(hardened_clipped_gradient(*known, sums.grid, weights, people))
    return sums.released().reshape(theta.shape)


# ---- the last correction ----
#
# Clipping and ridge bias a score: its slope comes out too small, and with a rare class its intercept is off.
# With s for what the features add to the score of a record, `recalibrated` fits ``intercept + slope * s``
# anew; for counts `mean_matched` moves the intercept until predictions and targets have the same sum.


_STEPS = 10
_FOR_THE_UNIT = 0.15  # of the share, to learn how large scores are
_CLIP_NORM = 1.2
_LARGEST_SCORE = 3.0
_UNIT = 1.5  # typical scores
# Counts are cut so many deviations above their mean, or where noise is 2.5 % of their sum. Chosen on splits of the
# RAND records other than those that are quoted.
_FAR, _EXACT = 5.0, 0.025
_LARGEST_SHIFT = math.e - 1


class Scores:
    """Records reduced to one number, what the features add to their score, in ``unit`` and within +-3.

    They take the place of :class:`~discreet.linear.glm.records.Working` in a descent over two parameters.
    """

    constant = 1.0

    def __init__(self, working: Working, features: Array, unit: float) -> None:
        self._working, self._features, self._unit = working, features, unit
        self._kept = working.shelf.kept(self._made())

    def __iter__(self) -> Iterator[Block]:
        return iter(self._kept)

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

    ``unit`` is the model that gives every record the score 1. What is summed is how much the targets are above the
    predictions, both cut at a number of at most ``most``: few counts are as large, and noise grows with it. The move
    is made smaller as far as its noise explains it.

    Guarantee: a record adds the difference of two numbers between 0 and the cut, which is the sensitivity.
    """
    mean = math.exp(float(problem.start))
    cut = min(most, max(mean + _FAR * problem.residual, _EXACT * mean * count * stage.strength))
    sums = Sums(stage, 1, cut * (1 + 1e-9))
    for block in working:
        expected = np.exp(np.minimum(scores(block, theta, working.constant), math.log(cut)))
        sums.add_rows(0, (np.clip(block.y, 0, cut) - expected)[:, None], block.weights)
    missing = float(sums.released()[0]) / (mean * count)
    shift = -math.log1p(-min(max(missing, -_LARGEST_SHIFT), 1 - math.exp(-1)))
    error = sums.noise / (mean * count)
    return np.asarray(theta + unit * shift * max(0.0, 1 - error**2 / max(shift**2, 1e-12)))


def scores(block: Block, theta: Array, constant: float) -> Array:
    """constant * theta[0] + z @ theta[1:] of each record."""
    return np.asarray(constant * theta[0] + times(block.z, theta[1:]), np.float64)
