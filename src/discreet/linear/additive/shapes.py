"""Curves that must rise or fall: :func:`shaped`. Post-processing of a released model, so it costs nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.additive_model import AdditiveModel
from discreet.linear.additive.basis import Curve
from discreet.linear.additive.curve_recipe import Declared
from discreet.linear.additive.curves import hat_moments

Array = NDArray[np.float64]


def shaped(model: AdditiveModel, declared: Declared) -> AdditiveModel:
    """The model with the curves that were declared to rise or fall moved to the nearest ones that do.

    Near is meant for the records: knots weigh by how many of them are around.
    """
    coefficients, intercept = model.coefficients.copy(), model.intercept.copy()
    for curve, start in zip(model.basis.curves, model.basis.starts, strict=False):
        shape = declared.shapes[curve.column]
        if shape not in ("increasing", "decreasing"):
            continue
        part = slice(start, start + len(curve.kept))
        sign = 1.0 if shape == "increasing" else -1.0
        values = np.zeros(len(curve.knots))
        values[curve.kept] = sign * coefficients[part]
        moved = sign * rising(values, _weights(model, curve))
        base = float(np.delete(moved, curve.kept)[0])
        coefficients[part] = moved[curve.kept] - base
        intercept = intercept + base
    return replace(model, coefficients=coefficients, intercept=intercept)


def rising(values: Array, weights: Array) -> Array:
    """The nearest values that do not fall, by pooling neighbours that do (Ayer et al. 1955).

    >>> rising(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            mean = (before[0] * before[1] + pool[0] * pool[1]) / total
            pool = (mean, total, before[2] + pool[2])
        pools.append(pool)
    return np.concatenate([np.full(length, value) for value, _, length in pools])


def _weights(model: AdditiveModel, curve: Curve) -> Array:
    if model.histograms is None:
        return np.ones(len(curve.knots))
    known = model.histograms
    means, _ = hat_moments(known.counts[curve.column], known.edges[curve.column], curve.knots)
    return means + 1e-6
