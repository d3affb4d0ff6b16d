"""How uncertain are the coefficients? :func:`standard_errors`, from what a fit has released anyway.

Near the optimum, noisy descent is a linear recursion driven by noise of a public size. In whitened coordinates the
second moments are about 1, so both parts of the error are known without looking at the records again:

* the noise: each step's noise fades by the factor 1 - step size * curvature from step to step, and the average of
  the last two thirds of the path adds up what is left;
* the sample: residual variance / records for least squares, 1 / (records * curvature) for logistic regression.

The curvature is 1 for least squares. For logistic regression it is that of normally distributed scores with the
model's own mean and variance.

Valid as large-sample approximations where the coordinates were whitened and every second moment was well above its
noise (many records for the budget, no nearly dependent columns), no column is so skewed that it is cut on one side,
and the ridge is small against the curvature; else there is no answer. They are post-processing and cost nothing. They
are not a privacy guarantee, and their coverage is measured in the tests, not proved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.coordinates import Whitened
from discreet.linear.glm.glm import Fit

Array = NDArray[np.float64]

_NEGLIGIBLE = 0.1  # ridge over curvature
_CLEARLY_SEEN = 3.0  # smallest second moment over the spectral norm of its noise


def standard_errors(fit: Fit) -> Array | None:
    """The standard error of each encoded coefficient, or None where the approximation is not valid."""
    loss, coordinates = fit.problem.loss, fit.coordinates
    if not isinstance(coordinates, Whitened) or loss.likelihood is None:
        return None
    if not coordinates.resolution > _CLEARLY_SEEN or _skewed(fit):
        return None
    theta, constant = fit.theta[1:], coordinates.inverse[0]
    slopes = theta - constant * (constant @ theta) / (constant @ constant)
    hessian = np.eye(len(theta)) if loss.likelihood == "normal" else logistic_hessian(theta, slopes, constant)
    curvatures, directions = np.linalg.eigh(hessian)
    if not fit.rule.ridge < _NEGLIGIBLE * curvatures[0]:
        return None
    unexplained = max(1 - float(slopes @ slopes), 0.02) if loss.likelihood == "normal" else 1.0
    variances = unexplained / (fit.counts.records * curvatures)
    variances = variances + [fit.gradient_noise**2 * noise_gain(fit, curvature) for curvature in curvatures]
    back = (coordinates.rotation[1:].T / coordinates.marginals.scale).T @ directions
    return np.asarray(np.sqrt((back**2) @ variances) * fit.problem.scale)


def _skewed(fit: Fit) -> bool:
    """Whether a column was cut on one side of its public range only: then many values are cut there.

    Its coefficient is that of the cut column. A cut on both sides, three deviations out, moves next to nothing.
    """
    inside, below = fit.lower > 0, (fit.lower >= 0) & (fit.upper < 1)
    return bool((inside != below).any())


def noise_gain(fit: Fit, curvature: float) -> float:
    """The variance of the averaged path for noise of variance 1 in each gradient.

    Step j moves the iterate t by step_size * fade**(t - j); the average weighs iterate t by t, from the first
    third on.
    """
    steps = len(fit.iterates) - 1
    fade = 1 - fit.rule.step_size * (curvature + fit.rule.ridge)
    weights = np.arange(1.0, steps + 1)
    weights[: steps // 3] = 0.0
    gain, carried = 0.0, 0.0
    for weight in weights[::-1] / weights.sum():
        carried = weight + fade * carried
        gain += carried**2
    return gain * fit.rule.step_size**2


def logistic_hessian(theta: Array, slopes: Array, constant: Array) -> Array:
    """The expected p (1 - p) z z' for normal z, in the coordinates of the descent."""
    length, size = float(np.linalg.norm(slopes)), float(np.linalg.norm(constant))
    ahead = slopes / length if length > 0 else np.zeros_like(slopes)
    places, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()
    scores = float(constant @ theta) / size**2 + length * places
    slope = weights / (4 * np.cosh(np.clip(scores, -60, 60) / 2) ** 2)
    flat, tilt, along = float(slope.sum()), float(slope @ places), float(slope @ places**2)
    level = constant / size
    mixed = np.outer(level, ahead) / size
    hessian = flat * np.eye(len(theta)) + (along - flat) * np.outer(ahead, ahead) + tilt * (mixed + mixed.T)
    return np.asarray(hessian + flat * (size**-2 - 1) * np.outer(level, level))
