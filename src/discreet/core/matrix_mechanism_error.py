"""Predicted error of weights under correlated noise: it chooses bands and learning rates, and proves nothing."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from discreet.core.matrix_mechanism import coefficients, length_of_column

MOMENTUM = 0.9
_MOST_STEPS = 768  # of the training for which bands are compared


def _inverse(bands: int, steps: int) -> NDArray[np.float64]:
    """The first column of the inverse of C."""
    column, found = coefficients(bands), np.zeros(steps)
    found[0] = 1.0
    for t in range(1, steps):
        reach = min(t, bands - 1)
        found[t] = -np.dot(column[1 : reach + 1], found[t - reach : t][::-1])
    return found


@lru_cache(maxsize=64)
def gain_of_noise(bands: int) -> float:
    """By how much the noise on a single sum has a larger standard deviation than the event says, in the long run."""
    return float(length_of_column(bands) * np.linalg.norm(_inverse(bands, 4 * bands + _MOST_STEPS)))


@lru_cache(maxsize=64)
def error_of_iterates(bands: int, steps: int) -> float:
    """The root mean square of what noise of standard deviation one on each mixed sum does to the weights.

    Over all steps of descent with momentum 0.9 and a learning rate that falls to zero in a cosine. Long trainings are
    represented by one of 768 steps.
    """
    count = min(steps, _MOST_STEPS)
    drift = _inverse(bands, count)  # of the noise by a unit of Z, and then of the velocity, steps later
    for t in range(1, count):
        drift[t] += MOMENTUM * drift[t - 1]
    rates = 0.5 * (1 + np.cos(np.pi * np.arange(count) / count))
    later = np.arange(count)[:, None] - np.arange(count)
    moves = np.where(later >= 0, drift[np.maximum(later, 0)], 0.0) * rates[:, None]
    squares = np.square(np.cumsum(moves, axis=0)).sum(1)
    return float(math.sqrt(squares.mean()) * length_of_column(bands))
