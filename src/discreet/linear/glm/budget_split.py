"""How a budget is divided among the stages of a fit: :class:`BudgetSplit`.

Shares are fractions of the budget. A stage that everything later relies on gets more where records are few.

>>> rich, poor = BudgetSplit(30_000, strength=0.25, reach=3.0), BudgetSplit(300, strength=0.25, reach=3.0)
>>> rich.for_marginals, round(poor.for_marginals, 3)
(0.08, 0.192)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from discreet.linear.gate.declared_columns import Columns
from discreet.trusted.spending import BudgetAllocator

COUNTS, RECOUNT, WHITENING = 0.03, 0.10, 0.20
"""The shares that are always the same."""

_MARGINALS, _ROW_NORMS = (0.08, 0.30), (0.02, 0.04)  # the usual share, and the largest
_TARGET, _RECALIBRATION = (0.02, 0.15), (0.04, 0.15)
_MEAN = 0.20
_FEWEST_SEEN = 24.0  # records over noise, below which a mean takes all of the budget
_FEWEST_BINNED, _FINELY_BINNED = 100.0, 500.0  # the same for a target's histogram, and for one of fine bins
_INFERENCE = (0.15, 0.35)  # the least and the largest share
_FEWEST_COMPARED = 12.0  # the same for equal classes, of which the most frequent one is all that can be known
_FEWEST_CORRECTED = 40.0  # the same for a correction of the finished score
_CENTRE = 2 / 3  # of the share of marginals, where only their centre is asked for
_FEW_PER_COLUMN, _FEW = 60.0, 300.0  # below these the shares grow
_STEPS, _FEW_STEPS = 40, 6


@dataclass(frozen=True)
class BudgetSplit:
    """What can be seen with a noisy number of records, the strength of the budget and the reach of a row."""

    records: float
    strength: float
    reach: float

    @classmethod
    def of(cls, records: float, columns: Columns, spending: BudgetAllocator) -> BudgetSplit:
        """The split of a fit of so many records with these columns."""
        return cls(records, spending.strength, columns.reach)

    @property
    def overall(self) -> float:
        """Records over the noise of counting them with the whole budget."""
        return self.records * self.strength

    @property
    def per_column(self) -> float:
        """The same for a sum over all columns."""
        return self.overall / max(self.reach, 1.0)

    @property
    def sees_histograms(self) -> bool:
        """Whether each column can be looked at on its own."""
        return self.per_column >= 25

    def sees_second_moments(self, size: int) -> bool:
        """Whether the second moments of rows of ``size`` numbers stand out of their noise."""
        return self.overall * math.sqrt(WHITENING) > 2 * size

    @property
    def steps(self) -> int:
        """How many gradients the descent should divide its share into."""
        return _STEPS if self.per_column >= 20 else _FEW_STEPS

    @property
    def for_marginals(self) -> float:
        return _grow(_MARGINALS, _FEW_PER_COLUMN / self.per_column)

    @property
    def for_centre(self) -> float:
        """The same where only the centre is asked for."""
        return _CENTRE * self.for_marginals

    @property
    def for_row_norms(self) -> float:
        return _grow(_ROW_NORMS, _FEW_PER_COLUMN / self.per_column)

    @property
    def for_target(self) -> float:
        return _grow(_TARGET, _FEW / self.overall)

    @property
    def sees_target(self) -> bool:
        """Whether a number can be looked at by a histogram."""
        return self.overall >= _FEWEST_BINNED

    @property
    def resolves_target(self) -> bool:
        """Whether that shows how far it spreads: coarse bins make it seem wider."""
        return self.overall >= _FINELY_BINNED

    def fewest(self, size: int, balance: float | None = None) -> float:
        """The value of ``overall`` from which on features are asked: of a number, or of classes of this balance."""
        if balance is None:
            return max(size, _FEWEST_SEEN)
        return min(_FEWEST_COMPARED / max(balance, 1e-9), _FEWEST_CORRECTED)

    def sees_slopes(self, size: int) -> bool:
        """Whether a number can be told better by ``size`` coefficients than by its mean."""
        return self.overall > self.fewest(size)

    def compares_classes(self, balance: float) -> bool:
        """Whether classes can be told better by features than by which of them is frequent.

        Unequal classes tell as much less of the features as they vary less. Where a correction of the score comes
        last, features are always asked: it takes back what they spoil.
        """
        return self.overall > self.fewest(0, balance)

    @property
    def for_mean(self) -> float:
        """For more looks at the mean of a number or a count; 0 where the first one is good enough."""
        return min(_MEAN, 0.02 * _FEW / self.overall) if self.overall < _FEW else 0.0

    @property
    def for_recalibration(self) -> float:
        """0 where even two numbers would drown in noise."""
        return _grow(_RECALIBRATION, _FEW / self.overall) if self.overall > _FEWEST_CORRECTED else 0.0

    def for_inference(self, size: int, bounded: bool) -> float:
        """So much that noise adds a quarter to the variance of sampling for ``size`` coefficients, within limits.

        ``bounded`` losses have residuals of at most 1; others are clamped, which costs more.
        """
        least, most = _INFERENCE
        noise = (20.0 if bounded else 90.0) * size / (self.strength**2 * self.records)
        return min(most, max(least, 4 * noise))


def _grow(usual_and_largest: tuple[float, float], scarcity: float) -> float:
    """From the usual share to the largest one, in proportion to the scarcity."""
    usual, largest = usual_and_largest
    return min(largest, usual * max(1.0, scarcity))


def at_most_half(share: float, spending: BudgetAllocator) -> float:
    """The share, or half of what is left, if earlier stages have taken much."""
    return min(share, spending.left / 2)
