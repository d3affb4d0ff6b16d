"""How much of a noisy result to believe: never more confident than the budget allows. Post-processing, no data.

The noise of every number that a descent returns is known. What it explains is taken back: for numbers and counts by
:func:`pulled_back`, for classes by :func:`moderated`, which also minds that a class is chosen by the sign of a score.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FLATTEST, _STEEPEST, _SIZES = (
    0.02,
    2.5,
    40,
)  # of the deviations that features may give to scores
_MOVED = 0.5  # of the deviation of scores: as far may slopes move an intercept
_CLEAR = 3.0  # squared standard errors that an intercept needs to be believed where the slopes are not


def pulled_back(theta: Array, start: Array, unit: Array, start_error: float, variance: float) -> Array:
    """``theta`` moved toward ``start`` as far as noise of this variance explains the way.

    What the features add is shortened as a whole (James and Stein 1961). The move of the intercept, along ``unit``,
    counts by its precision beside that of ``start``. For numbers and counts.
    """
    way, square = theta - start, float(np.sum(unit**2))
    level = float(unit @ way) / square
    features = way - level * unit
    explained = way.size * variance / max(float(np.sum(features**2)), 1e-300)
    trusted = start_error**2 / max(start_error**2 + variance / square, 1e-300)
    return np.asarray(start + trusted * level * unit + max(0.0, 1 - explained) * features)


def moderated(
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
    kept = slopes * believed(np.sum(slopes**2, axis=1) / free, variances, free, float(spread.sum()))[:, None]
    share = math.sqrt(float(np.sum(kept**2)) / max(float(np.sum(slopes**2)), 1e-300))
    doubt = float(unit**2 @ variances) / square**2 + bias**2
    free_to_move = start_error**2 + _MOVED**2 * float(spread @ kept**2 @ np.ones(way.shape[1])) / free
    trusted = free_to_move / max(free_to_move + doubt, 1e-300)
    intercept = unit @ start.reshape(way.shape) / square + trusted * level
    unequal = float(np.sum(intercept**2)) / max(free * trusted * doubt, 1e-300)
    intercept *= share + (1 - share) * max(0.0, 1 - _CLEAR / max(unequal, 1e-300))
    return np.asarray((np.multiply.outer(unit, intercept) + kept).reshape(theta.shape))


def believed(squares: Array, variances: Array, free: int, size: float) -> Array:
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
