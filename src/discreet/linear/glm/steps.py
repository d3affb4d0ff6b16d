"""The descent itself: clip norm, ridge and step size from the noise, then full-batch noisy steps.

The clip norm is as large as the noise allows: its noise alone may cost ``TOLERANCE`` of excess loss. The ridge
pulls toward the model without features, as strongly as the noise calls for.

In docs/engines.md: E5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.core.descent import Path, descend
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.problems import Problem
from discreet.linear.glm.records import Blocks
from discreet.linear.glm.spending import Stage
from discreet.linear.kernels.kernel import hardened_clipped_gradient
from discreet.linear.losses import Loss

Array = NDArray[np.float64]

TOLERANCE = 1e-3
_RIDGE = 0.15


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


def averaging_gain(rule: StepRule, steps: int, curvature: float) -> float:
    """The variance of the averaged path for noise of variance 1 in each gradient, near the optimum.

    The noise of step j moves iterate t by ``step_size * fade**(t - j)``; the average weighs iterate t by t, over
    the last two thirds.
    """
    fade = 1 - rule.step_size * (curvature + rule.ridge)
    weights = np.arange(1.0, steps + 1)
    weights[: steps // 3] = 0.0
    effects = [weights[j:] @ fade ** np.arange(steps - j) for j in range(steps)]
    return float(np.sum((rule.step_size * np.array(effects) / weights.sum()) ** 2))


def pulled_back(theta: Array, start: Array, unit: Array, start_error: float, variance: float) -> Array:
    """``theta`` moved toward ``start`` as far as noise of this variance explains the way.

    What the features add is shortened as a whole (James and Stein 1961). The move of the intercept, along ``unit``,
    counts by its precision beside that of ``start``. For squared losses, where too long a way costs more than too
    short a one; the sign of a score does not care.
    """
    way, square = theta - start, float(np.sum(unit**2))
    level = float(unit @ way) / square
    features = way - level * unit
    explained = way.size * variance / max(float(np.sum(features**2)), 1e-300)
    trusted = start_error**2 / max(start_error**2 + variance / square, 1e-300)
    return np.asarray(start + trusted * level * unit + max(0.0, 1 - explained) * features)


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
