"""How many records there are, of which class: the first release of every fit.

>>> counts = Counts(np.array([3000.0, 1000.0]), other=2.0, noise=1.0)
>>> counts.records, counts.priors.round(3).tolist()
(4000.0, [0.75, 0.25])
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
    the other one, which is counted only once, ``noise_of_records`` that of the sum of all classes.
    """

    classes: Array
    other: float
    noise: float
    noise_of_other: float = math.inf
    noise_of_records: float = 0.0

    @property
    def records(self) -> float:
        """How many records count; never below half of its own noise, so that it can be divided by."""
        least = 0.5 * self.noise * math.sqrt(len(self.classes))
        return max(float(self.classes.sum()), least, 2.0)

    @property
    def priors(self) -> Array:
        """The share of each class: equal as far as noise explains the rest, and away from 0 by what it hides."""
        classes = len(self.classes)
        least = 1.0 / (self._careful / self.noise + 2.0) / classes
        shares = np.clip(1 / classes + self._trust * self._unequal, least, 1.0 - least)
        return np.asarray(shares / shares.sum())

    @property
    def share_error(self) -> float:
        """The standard error of a share in :attr:`priors`."""
        return math.sqrt(self._trust) * self.noise / self._careful

    @property
    def _careful(self) -> float:
        """The number of records, if anything too large: a share must not grow because they were counted badly."""
        return math.hypot(self.records, self.noise_of_records)

    @property
    def _unequal(self) -> Array:
        """How far each share seems to be from an equal one."""
        return np.asarray((self.classes - self.classes.mean()) / self._careful)

    @property
    def _trust(self) -> float:
        """The best weight of a noisy share beside equal ones, if all divisions among the classes are as likely."""
        classes, doubt = len(self.classes), (self.noise / self._careful) ** 2
        expected = (1 - 1 / classes) / classes / (classes + 1)
        if classes > 3:  # many of them show how unequal they are
            expected = min(expected, max(float(self._unequal @ self._unequal) / (classes - 1) - doubt, 0.0))
        return expected / (expected + doubt)

    def with_second_look(self, classes: Array, noise: float) -> Counts:
        """Both looks at the same classes, weighed by their precision."""
        first, second = self.noise**-2, noise**-2
        both = (self.classes * first + classes * second) / (first + second)
        total = (first + second) ** -0.5 * math.sqrt(len(both))
        return replace(self, classes=both, noise=(first + second) ** -0.5, noise_of_records=total)


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
    return Counts(noisy[:-1], float(noisy[-1]), sums.noise, sums.noise, sums.noise * math.sqrt(classes))


def counted(rows: int, weights: Array | None, stage: Stage) -> float:
    """A noisy number of records, never below its own noise.

    Guarantee: a record adds at most 1, so the sensitivity is 1.
    """
    sums = Sums(stage, 1, clip_norm=1.0)
    sums.add_ones(np.zeros(rows, np.int64), weights)
    return max(float(sums.released()[0]), sums.noise)


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
    classes_now = both.classes - both.classes.mean() + counts.classes.mean()
    return replace(both, classes=classes_now, noise_of_records=counts.noise_of_records)
