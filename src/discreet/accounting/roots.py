"""Roots of functions of one variable: proposals, each of which is checked by whoever asked for it."""

from __future__ import annotations

import math
from collections.abc import Callable


def root_of(increasing: Callable[[float], tuple[float, float]], x: float) -> float:
    """The positive zero of an increasing function (value, slope): Newton's method inside a bracket."""
    lower, upper = 0.0, math.inf
    for _ in range(200):
        value, slope = increasing(x)
        lower, upper = (lower, x) if value > 0 else (x, upper)
        step = value / slope if slope > 0 else math.inf
        if abs(step) <= 1e-11 * x:  # the error of the next point is about the square of this step
            return x - step
        inside = lower < x - step < upper
        x = x - step if inside else 0.5 * (lower + min(upper, 4 * x))
    return x
