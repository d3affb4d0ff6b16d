"""How many records there are, and of which class: :func:`count_records` makes the first releases of every fit.

>>> counts = ClassCounts(np.array([3000.0, 1000.0]), other=2.0, noise=1.0)
>>> counts.records, counts.priors.round(3).tolist()
(4000.0, [0.75, 0.25])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records
from discreet.linear.glm.budget_split import COUNTS, RECOUNT, BudgetSplit, at_most_half
from discreet.linear.losses import Loss
from discreet.linear.row_views.targets import ClassOf, ClassRows
from discreet.trusted.queries import ROUNDING, Blocks, Cells, Rows
from discreet.trusted.spending import BudgetAllocator, StagePermit

Array = NDArray[np.float64]

_DEVIATIONS, _TOTALS = 3.5, 71  # of the number of records that are considered, and how many numbers
_RECOUNTS, _WEIGHT = 4, 0.7  # at most; of the number of records beside that of its class
_DOUBT = 0.5  # standard deviations of the number of records that may be noise


@dataclass(frozen=True, eq=False)
class ClassCounts:
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
        return max(float(self.classes.sum()), self._fewest)

    @property
    def surely(self) -> float:
        """The share of :attr:`records` that is there if noise added a standard deviation: gradients are as much less
        steep than they seem."""
        return max(0.0, 1 - self.noise_of_records / self.records)

    @property
    def priors(self) -> Array:
        """The share of each class: equal as far as noise explains the rest, and away from 0 by what it hides."""
        return self._shares[0]

    @property
    def share_error(self) -> float:
        """The standard error of a share in :attr:`priors`."""
        return self._shares[1]

    @cached_property
    def _shares(self) -> tuple[Array, float]:
        """Shares and their error: the mean over the numbers of records that noise leaves possible.

        With so many records each share is pulled toward an equal one (:meth:`_trust`). A number at which a class
        would have fewer than none is as likely as noise makes that.
        """
        classes, unequal = len(self.classes), self.classes - self.classes.mean()
        totals = self.records + self.noise_of_records * np.linspace(-_DEVIATIONS, _DEVIATIONS, _TOTALS)
        totals = np.maximum(totals, self._fewest) if self.noise_of_records > 0 else totals[:1]
        likely = np.sum(log_ndtr((totals[:, None] / classes + unequal) / self.noise), axis=1)
        if self.noise_of_records > 0:
            likely -= 0.5 * ((totals - float(self.classes.sum())) / self.noise_of_records) ** 2
        weights = np.exp(likely - likely.max())
        weights /= weights.sum()
        trust = np.array([self._trust(total) for total in totals])
        least = 1.0 / (totals / self.noise + 2.0) / classes
        shares = np.clip(
            1 / classes + np.outer(trust / totals, unequal), least[:, None], 1.0 - least[:, None]
        )
        shares /= shares.sum(axis=1, keepdims=True)
        mean = weights @ shares
        spread = float(np.max(weights @ (shares - mean) ** 2))
        return np.asarray(mean), math.sqrt(float(weights @ (trust * (self.noise / totals) ** 2)) + spread)

    @property
    def balance(self) -> float:
        """1 for two equal classes, small if all but one are rare: the variance of a class over its largest."""
        return min(1.0, 2 * (1 - float(self.priors @ self.priors)))

    @property
    def _fewest(self) -> float:
        return max(0.5 * self.noise * math.sqrt(len(self.classes)), 2.0)

    def _trust(self, records: float) -> float:
        """The best weight of a noisy share beside equal ones, if all divisions among the classes are as likely."""
        classes, doubt = len(self.classes), (self.noise / records) ** 2
        unequal = (self.classes - self.classes.mean()) / records
        expected = (1 - 1 / classes) / classes / (classes + 1)
        if classes > 3:  # many of them show how unequal they are
            expected = min(expected, max(float(unequal @ unequal) / (classes - 1) - doubt, 0.0))
        return expected / (expected + doubt)

    def with_second_look(
        self, classes: Array, noise: float, noise_of_records: float | None = None
    ) -> ClassCounts:
        """Both looks at the same classes, weighed by their precision: how they differ, and how many records they are.

        ``noise_of_records`` is that of the sum of ``classes``, if not that of as many numbers with ``noise`` each.
        """
        root = math.sqrt(len(classes))
        unequal, error = _weighted_mean(self.classes, self.noise, classes, noise)
        known = self.noise_of_records or self.noise * root
        again = noise * root if noise_of_records is None else noise_of_records
        total, doubt = _weighted_mean(self.classes.sum(), known, classes.sum(), again)
        both = unequal - unequal.mean() + total / len(classes)
        return replace(self, classes=both, noise=error, noise_of_records=doubt)


def _weighted_mean(first: Array, error: float, second: Array, other: float) -> tuple[Array, float]:
    """The mean of two noisy numbers, each with the weight of its precision, and the error of that."""
    precision = error**-2 + other**-2
    return np.asarray((first * error**-2 + second * other**-2) / precision), precision**-0.5


def count_classes(records: Records, classes: int, stage: StagePermit) -> ClassCounts:
    """The noisy numbers of records of each class, and of those with an undeclared target."""
    query = Blocks((Cells(ClassOf(records.loss), (classes + 1,), (1.0,)),), bound=1.0, everybody=True)
    noisy, noise, _ = stage.ask(records, query)
    return ClassCounts(noisy[:-1], float(noisy[-1]), noise, noise, noise * math.sqrt(classes))


def count_again(records: Records, counts: ClassCounts, stage: StagePermit, weight: float) -> ClassCounts:
    """The counts after another look: at how the classes differ and, by ``weight``, at how many records there are.

    With K classes a record adds 1 - 1/K to its class, -1/K to the others and ``weight`` to a count of all.
    """
    classes = len(counts.classes)
    added = np.column_stack([np.eye(classes) - 1 / classes, np.full(classes, weight)])
    bound = math.sqrt(1 - 1 / classes + weight**2) * ROUNDING
    rows = Rows(ClassRows(records.loss, added), added.shape[1], bound / math.sqrt(ROUNDING))
    released, noise, _ = stage.ask(records, Blocks((rows,), bound))
    seen, total = released[:-1] - released[:-1].mean(), released[-1] / weight
    return counts.with_second_look(seen + total / classes, noise, noise / weight)


def count_records(records: Records, columns: Columns, spending: BudgetAllocator) -> ClassCounts:
    """The records of each class; where they are few, again until there are surely enough for slopes.

    Where there are not, nothing is lost by counting again: all that is left is for the classes anyway. These are
    always counted twice; a mean has releases of its own, so numbers are counted once more at most. ``columns`` are
    those of the fit, which the records may not have yet.
    """
    loss = records.loss
    counts = count_classes(records, loss.class_count, spending.stage("counts", COUNTS))
    classes = loss.kind == "classes"
    most, weight, doubt = (_RECOUNTS, _WEIGHT, _DOUBT) if classes else (1, 1.0, 1.0)
    for number in range(2, 2 + most):
        fewer = doubt * counts.noise_of_records
        enough = (number > 2 or not classes) and sees_slopes(loss, counts, columns, spending, fewer)
        if enough or BudgetSplit.of(counts.records, columns, spending).sees_histograms:
            break
        stage = spending.stage(f"counts-{number}", at_most_half(RECOUNT, spending))
        counts = count_again(records, counts, stage, weight)
    return counts


def sees_slopes(
    loss: Loss, counts: ClassCounts, columns: Columns, spending: BudgetAllocator, fewer: float = 0.0
) -> bool:
    """Whether features can tell the target better than its mean or its frequent class.

    ``fewer`` is by how many records the count may be too high.
    """
    split = BudgetSplit.of(counts.records - fewer, columns, spending)
    if loss.kind == "classes":
        return split.compares_classes(counts.balance)
    return split.sees_slopes(columns.width + 1)


class FirstCounts(NamedTuple):
    """How many records there are, and whether they are enough to ask their columns anything."""

    counts: ClassCounts
    enough: bool


def count_first(records: Records, columns: Columns, spending: BudgetAllocator) -> FirstCounts:
    """Count the records of a fit whose columns have no bounds yet: where they are too few, they need none.

    ``records`` have targets and no features; of ``columns``, those of the fit, only their number is used.
    """
    counts = count_records(records, columns, spending)
    return FirstCounts(counts, sees_slopes(records.loss, counts, columns, spending))
