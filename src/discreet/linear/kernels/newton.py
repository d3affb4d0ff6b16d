"""What each row adds to a weighted Newton step: :func:`weigh_rows`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import LOGISTIC, POISSON, SQUARED, compiled

__all__ = ["LOGISTIC", "POISSON", "SQUARED", "weigh_rows"]

Array = NDArray[Any]


@compiled
def weigh_rows(
    z: Array,
    y: Array,
    theta: Array,
    code: int,
    slope: float,
    curvature: float,
    square: float,
    clamp: float,
    room: float,
    factors: Array,
) -> None:
    """For each row z: ``slope w r``, and the roots of ``curvature w v`` and of ``square w^2 r^2``, into ``factors``.

    The weight w is ``room`` over the largest norm that (slope r z, curvature v z z', square r^2 z z') can have for
    this z, whatever the target is; ``room`` if that is below 1. Residuals are clamped to +-clamp, where the curvature
    is 0; those of two classes are within 1 anyway.

    Guarantee: the three, with the weight, have norm at most ``room`` together, but for roundings of float64; all
    factors of a row that is not finite are 0. Every row's factors depend on that row alone, bit for bit.
    """
    for i in range(z.shape[0]):
        score, length = 0.0, 0.0
        for j in range(z.shape[1]):
            score += np.float64(z[i, j]) * theta[j]
            length += np.float64(z[i, j]) * np.float64(z[i, j])
        if code == LOGISTIC:
            mean = 1.0 / (1.0 + math.exp(-score))
            bend, most = mean * (1.0 - mean), max(mean, 1.0 - mean)
        elif code == SQUARED:
            mean, bend, most = score, 1.0, clamp
        else:
            mean = math.exp(min(score, 100.0))
            bend, most = mean, clamp
        steep, bent, squared = slope * most, curvature * bend, square * most * most
        norm = math.sqrt(steep * steep * length + (bent * bent + squared * squared) * length * length)
        residual = y[i] - mean
        if not (norm < 1e100 and abs(residual) < 1e100):
            continue
        if abs(residual) > most:
            residual = math.copysign(most, residual)
            bend = 0.0
        weight = room / max(1.0, norm)
        factors[0, i] = slope * weight * residual
        factors[1, i] = math.sqrt(curvature * weight * bend)
        factors[2, i] = math.sqrt(square) * weight * abs(residual)
