"""A second look at the mean of a target, where records are few: :func:`looked_closer`.

The mean is what a model without features predicts, so nothing else is worth as much. Targets are clipped around
what is known of it; the better it is known, the closer, and the less noise the next look needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]
Targets = Callable[[], Iterable[tuple[Array, Array | None]]]

_SPREADS, _ERRORS = 3.0, 2.0  # how far around the mean targets count in full
_ROUNDING = 1 + 1e-9


class Location(NamedTuple):
    """The mean of numbers in [0, 1], the standard error of that, and the spread of the numbers."""

    mean: float
    error: float
    spread: float


def looked_closer(targets: Targets, known: Location, count: float, stage: Stage) -> Location:
    """The mean after ``stage.steps`` more looks at the targets, each weighed by its precision.

    Guarantee: a record adds its target to one sum, clipped to ``reach`` around a released number, so the
    sensitivity of every look is ``reach``.
    """
    for _ in range(stage.steps):
        mean, error, spread = known
        reach = min(_SPREADS * spread + _ERRORS * error, max(mean, 1 - mean))
        sums = Sums(stage, 1, reach * _ROUNDING)
        for values, weights in targets():
            sums.add_rows(0, np.clip(values - mean, -reach, reach)[:, None], weights)
        seen, doubt = float(sums.released()[0]) / count, sums.noise / count
        moved = mean + seen * error**2 / (error**2 + doubt**2)
        known = Location(min(max(moved, 0.0), 1.0), error * doubt / math.hypot(error, doubt), spread)
    return known
