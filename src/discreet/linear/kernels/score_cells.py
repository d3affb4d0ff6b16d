"""Records reduced to a class and a score on a fine grid, and counted: all that a line through scores has to know.

The last correction of two classes takes ten gradients of two numbers. Records in the same cell have the same
gradient, so it is computed once and multiplied by their number: the table is gone through once, not ten times.

>>> cells = ScoreCells.count([(np.array([0.5, 0.5, -9.0]), np.array([1, 1, 0]))], unit=1.0)
>>> cells.scores.tolist(), cells.classes.tolist(), cells.records.tolist()
([-3.0, 0.5], [0.0, 1.0], [1, 2])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.kernel import readable
from discreet.linear.kernels.rowwise import count_scores
from discreet.linear.losses import Loss
from discreet.linear.residuals import residuals

Array = NDArray[np.float64]

LARGEST_SCORE = 3
"""Units: scores beyond are moved to it."""

_FINE = 2**10  # cells of a unit: what rounding moves a score by is far below what noise does
_SLACK = 2.0**-40  # more than the roundings of a limit and a product in float64


def round_scores(scores: NDArray[np.floating], unit: float) -> Array:
    """The scores of their cells, in ``unit``, for records that have to be told apart."""
    most = LARGEST_SCORE * _FINE
    return np.rint(np.clip(np.asarray(scores, np.float64) * (_FINE / unit), -most, most)) / _FINE


@dataclass(frozen=True, eq=False)
class ScoreCells:
    """Cells that hold records: the score and the class of each, and how many records."""

    scores: Array
    classes: Array
    records: NDArray[np.int64]

    @classmethod
    def count(
        cls, pairs: Iterable[tuple[NDArray[np.floating], NDArray[np.number]]], unit: float
    ) -> ScoreCells:
        """Those of all scores, in ``unit``, and classes 0 and 1; a score that is not a number does not count."""
        middle = LARGEST_SCORE * _FINE
        counts = np.zeros((2 * middle + 1, 2), np.int64)
        for scores, classes in pairs:
            count_scores(readable(scores), readable(classes), _FINE / unit, counts)
        places, classes = np.nonzero(counts)
        return cls((places - middle) / _FINE, classes.astype(np.float64), counts[places, classes])

    def gradient(self, loss: Loss, line: Array, clip_norm: float, grid: float) -> NDArray[np.int64]:
        """The sum over the records of the clipped gradients of (intercept, slope), in whole steps of ``grid``.

        Guarantee: a record is in one cell and adds that cell's gradient, whatever the others are: a vector of norm at
        most ``clip_norm / grid``. Its residual is limited by the norm of (1, score), and both numbers are cut toward
        zero.
        """
        with np.errstate(all="ignore"):
            slopes = np.nan_to_num(residuals(loss, line[0] + line[1] * self.scores, self.classes))
        limits = clip_norm * (1 - _SLACK) / np.hypot(1.0, self.scores)
        slopes = np.clip(slopes, -limits, limits)
        steps = np.trunc(np.stack([slopes, slopes * self.scores]) / grid).astype(np.int64)
        return np.asarray(steps @ self.records)
