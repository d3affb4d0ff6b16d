"""An average that one liar cannot carry off: the geometric median of what the parties say.

A party that lies about its records or its noise can send anything that an honest one might, again and again in the
same direction, and so lead a mean anywhere. The geometric median, the point with the least sum of distances to all
messages, stays among the honest ones while liars hold less than half of the weight (Pillutla, Kakade, Harchaoui 2022,
"Robust aggregation for federated learning"). Messages are mostly noise, behind which a lie could hide; so it is taken
of each party's running mean over its last rounds (Karimireddy, He, Jaggi 2021, "Learning from history").

All of it is post-processing of messages. But it looks at each message by itself, so the noise of other parties does
not hide a record any longer from those who see only models: the table of observers counts on the owner's noise alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from discreet.parties.study import Study

Floats = NDArray[np.float64]

MEMORY = 0.9
"""How much of a party's running mean stays in every round."""

_STEPS, _NEAR = 100, 1e-9


class GeometricMedian:
    """Gradients of the mean loss from noisy sums, some of them lies. It remembers one vector for each party."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._mean: dict[str, Floats] = {}
        self._rounds: dict[str, int] = {}

    def __call__(self, sums: Mapping[str, Floats]) -> Floats:
        """The gradient; parties that are missing count as zero, and keep what they said before."""
        study = self._study
        if not sums:
            return np.zeros(study.dimension)
        equal = study.training.weights == "equal"
        weights = np.array([1.0 if equal else study.parties[name] for name in sums])
        points = np.array([self._remembered(name, value) for name, value in sums.items()])
        everybody = len(study.parties) if equal else study.records
        return geometric_median(points, weights) * float(weights.sum() / everybody)

    def _remembered(self, name: str, value: Floats) -> Floats:
        """The running mean of what a party says of one record, without a bias toward its beginning."""
        fresh = value / (self._study.parties[name] * self._study.training.rate)
        mean = self._mean.get(name, np.zeros(0))
        self._mean[name] = MEMORY * mean + (1 - MEMORY) * fresh if mean.size else (1 - MEMORY) * fresh
        self._rounds[name] = self._rounds.get(name, 0) + 1
        unbiased: Floats = self._mean[name] / (1 - MEMORY ** self._rounds[name])
        return unbiased


def geometric_median(points: Floats, weights: Floats) -> Floats:
    """The point with the least weighted sum of distances to the rows of ``points``, by Weiszfeld's iteration.

    >>> geometric_median(np.array([[0.0], [1.0], [1000.0]]), np.ones(3)).round(6)
    array([1.])

    It is a mean of the rows, so only their products with one another are needed, however long they are.
    """
    centred = points - points.mean(0)
    products = centred @ centred.T
    squares, share = np.diag(products), weights / weights.sum()
    least = _NEAR * max(float(squares.max()), 1e-300) ** 0.5
    for _ in range(_STEPS):
        gaps = squares - 2 * products @ share + share @ products @ share
        pull = weights / np.maximum(np.sqrt(np.maximum(gaps, 0.0)), least)
        share = pull / pull.sum()
    return np.asarray(share @ points)
