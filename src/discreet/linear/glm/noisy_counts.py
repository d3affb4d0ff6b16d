"""How many records there are, of which class: the first release of every fit.

>>> counts = Counts(np.array([30.0, 10.0]), other=2.0, noise=1.0)
>>> counts.records, counts.priors.round(3).tolist()
(40.0, [0.75, 0.25])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Noisy numbers of records: of each class, and with a target that nobody declared.

    Regressions have one class. ``noise`` is the standard deviation of each class's number, ``noise_of_other`` that of
    the other one, which is counted only once.
    """

    classes: Array
    other: float
    noise: float
    noise_of_other: float = math.inf

    @property
    def records(self) -> float:
        """How many records count; never below half of its own noise, so that it can be divided by."""
        least = 0.5 * self.noise * math.sqrt(len(self.classes))
        return max(float(self.classes.sum()), least, 2.0)

    @property
    def priors(self) -> Array:
        """The share of each class, kept away from 0 by what the noise could hide."""
        classes = len(self.classes)
        least = 1.0 / (self.records / self.noise + 2.0) / classes
        shares = np.clip(self.classes / self.records, least, 1.0 - least)
        return np.asarray(shares / shares.sum())

    def with_second_look(self, classes: Array, noise: float) -> Counts:
        """Both looks at the same classes, weighed by their precision."""
        first, second = self.noise**-2, noise**-2
        both = (self.classes * first + classes * second) / (first + second)
        return replace(self, classes=both, noise=(first + second) ** -0.5)


def class_of(y: Array, classes: int) -> NDArray[np.int64]:
    """The class of each accepted target; all regression targets are of one class."""
    return np.zeros(len(y), np.int64) if classes == 1 else y.astype(np.int64)


def count_classes(records: Records, classes: int, stage: Stage) -> Counts:
    """The noisy numbers of records of each class, and of those with an undeclared target.

    Guarantee: a record adds at most 1 to one number, so the sensitivity is 1.
    """
    sums = Sums(stage, classes + 1, clip_norm=1.0)
    for _, y, weights in records.everybody():
        accepted = records.loss.accepts(y)
        cells = np.full(len(y), classes)
        cells[accepted] = class_of(y[accepted], classes)
        sums.add_ones(cells, weights)
    noisy = sums.released()
    return Counts(noisy[:-1], float(noisy[-1]), sums.noise, sums.noise)


def compare_classes(records: Records, counts: Counts, stage: Stage) -> Counts:
    """The counts after a second look at how the classes differ, not at how many records there are.

    Guarantee: with K classes a record adds 1 - 1/K to its class and -1/K to the others: a vector of squared norm
    1 - 1/K.
    """
    classes = len(counts.classes)
    sums = Sums(stage, classes, math.sqrt(1 - 1 / classes) * (1 + 1e-9))
    for _, y, weights in records.chunks():
        sums.add_rows(0, np.eye(classes)[class_of(y, classes)] - 1 / classes, weights)
    seen = sums.released()
    both = counts.with_second_look(counts.classes.mean() + seen - seen.mean(), sums.noise)
    return replace(both, classes=both.classes - both.classes.mean() + counts.classes.mean())
