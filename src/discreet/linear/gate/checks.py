"""Checks of arrays that queries hold, in front of kernels that do not check them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse

from discreet.errors import PlanViolation


def refuse_other_shapes(**arrays: tuple[Any, tuple[int, ...]]) -> None:
    """Refuse arrays that are not numbers of the given shapes: kernels do not check the places that they read."""
    for name, (value, shape) in arrays.items():
        if type(value) is not np.ndarray or value.dtype.kind not in "fi" or value.shape != shape:
            found = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise PlanViolation(f"The array {name} of a query must have shape {shape}. Got {found}.")


def refuse_bad_knots(knots: Any) -> None:
    """Refuse knots that are not finite and increasing, at least two of them."""
    refuse_other_shapes(knots=(knots, np.shape(knots)))
    increasing = knots.ndim == 1 and len(knots) >= 2 and bool((knots[:-1] < knots[1:]).all())
    if not (increasing and np.isfinite(knots).all()):
        raise PlanViolation("Knots must be at least two finite, increasing numbers.")


def dense(x: Any) -> Any:
    """The rows, if they are not sparse."""
    if issparse(x):
        raise PlanViolation("Sparse rows do not answer this query.")
    return x
