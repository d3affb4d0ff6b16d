"""Which targets count, and residuals at a score, for the losses that kernels compute: record by record.

Nothing here has to be trusted to keep records apart: :mod:`discreet.linear.residuals` compares records with
themselves alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Which = NDArray[np.bool_]

_LARGEST_EXPONENT = 700.0  # e**700 is a float64 number


def is_bit(y: Floats) -> Which:
    """Targets of two classes."""
    return np.asarray((y == 0) | (y == 1))


def is_class(y: Floats, classes: int) -> Which:
    """Targets of ``classes`` classes."""
    return np.asarray((y >= 0) & (y < classes) & (y == np.floor(y)))


def is_count(y: Floats) -> Which:
    """Targets of a model of counts."""
    return np.asarray(np.isfinite(y) & (y >= 0))


def counted(accepts: Which, values: Any) -> Floats:
    """The values, with 0 where the target does not count."""
    return np.asarray(np.where(accepts, values, 0.0))


def sigmoid(u: Floats) -> Floats:
    """1 / (1 + e^-u)."""
    small = np.exp(-np.abs(u))
    return np.asarray(np.where(u >= 0, 1.0, small) / (1.0 + small))


def exponential(u: Floats) -> Floats:
    """e^u, finite for every finite u."""
    return np.asarray(np.exp(np.minimum(u, _LARGEST_EXPONENT)))


def hinge_slope(u: Floats, y: Floats, smoothness: float) -> Floats:
    """The derivative of the smoothed hinge."""
    missing = 1.0 + smoothness - (2.0 * y - 1.0) * u
    return np.asarray((1.0 - 2.0 * y) * np.clip(missing / (2.0 * smoothness), 0.0, 1.0))


KNOWN: dict[str, tuple[Any, Any]] = {
    "logistic": (is_bit, lambda u, y, _: sigmoid(u) - y),
    "squared": (np.isfinite, lambda u, y, _: u - y),
    "huber": (np.isfinite, lambda u, y, threshold: np.clip(u - y, -threshold, threshold)),
    "poisson": (is_count, lambda u, y, _: exponential(u) - y),
    "hinge": (is_bit, hinge_slope),
}
"""By the name of the compiled residual: which targets count, and the residual with its parameter."""
