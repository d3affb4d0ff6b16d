"""What a fit looks at before it descends: counts, columns, coordinates, the target. Each look is paid for, and the
rest of the fit follows from what it showed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from discreet.errors import InvalidParameter, real
from discreet.linear.gate.clipped_gradients import RowNorms, StandardNorms, WhiteNorms
from discreet.linear.gate.coordinates import Coordinates, Diagonal, Marginals, Standardised
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records
from discreet.linear.glm import problems
from discreet.linear.glm.counts import Counts, count_again, count_classes
from discreet.linear.glm.marginals import (
    Typical,
    measure_marginals,
    pool_rows,
    public_marginals,
    typical_size,
    zoom_marginals,
)
from discreet.linear.glm.problems import Look, Problem
from discreet.linear.glm.spending import COUNTS, RECOUNT, WHITENING, Progress, Spending, Stage, Wealth
from discreet.linear.glm.whitening import WIDEST, whiten
from discreet.linear.losses import Loss
from discreet.linear.residuals import checked_loss

_LOOKS, _CLOSER, _NEARLY_ALL = 3, 5, 0.9  # looks at a mean, where features say more and where they do not
_RECOUNTS, _WEIGHT = 4, 0.7  # at most; of the number of records beside that of its class
_LARGEST = 0.6  # share of what is left, for where a number is and how far it spreads
_DOUBT = 0.5  # standard deviations of the number of records that may be noise
_ZOOMS = 8  # into the bounds of a target: each makes them a tenth or less, so they may be 1e8 times too wide
_ROW_NORM, _LONGER = 0.02, 2.0  # the share of learning it; typical norms that a sparse row may have


class Looks:
    """The looks of one fit, in their order."""

    widest: float = WIDEST
    counts: Counts | None = None
    """Those of :func:`count_first`, where bounds had to be learnt in between."""

    def __init__(
        self,
        loss: Loss,
        columns: Columns,
        spending: Spending,
        progress: Progress | None,
        bounds: tuple[float, float],
        averaging: float = 1.0,
        references: Mapping[int, int] | None = None,
    ) -> None:
        self.averaging, self.references = averaging, references
        self.loss, self.columns, self.spending = checked_loss(loss), columns, spending
        self.bounds = _checked_bounds(loss, bounds)
        if progress is not None:
            self.spending.progress = progress

    # ---- the stages ----

    def at_most_half(self, share: float) -> float:
        """The share, or half of what is left, if learning bounds has taken much."""
        return min(share, self.spending.left / 2)

    def wealth(self, counts: Counts) -> Wealth:
        return Wealth(counts.records, self.spending.strength, self.columns.reach)

    def count_records(self, records: Records) -> Counts:
        """The records of each class; where they are few, again until there are surely enough for slopes.

        Where there are not, nothing is lost by looking: all that is left is for the classes anyway. These are always
        looked at twice; a mean has looks of its own, so numbers are counted once more at most.
        """
        if self.counts is not None:
            return self.counts
        counts = count_classes(records, self.loss.class_count, self.spending.stage("counts", COUNTS))
        classes = self.loss.kind == "classes"
        looks, weight, doubt = (_RECOUNTS, _WEIGHT, _DOUBT) if classes else (1, 1.0, 1.0)
        for look in range(2, 2 + looks):
            fewer = doubt * counts.noise_of_records
            enough = (look > 2 or not classes) and self.sees_slopes(counts, fewer)
            if enough or self.wealth(counts).sees_histograms:
                break
            stage = self.spending.stage(f"counts-{look}", self.at_most_half(RECOUNT))
            counts = count_again(records, counts, stage, weight)
        return counts

    def sees_slopes(self, counts: Counts, fewer: float = 0.0) -> bool:
        """Whether features can tell the target better than its mean or its frequent class, even if ``fewer`` records
        are there than counted."""
        wealth = Wealth(counts.records - fewer, self.spending.strength, self.columns.reach)
        if self.loss.kind == "classes":
            return wealth.compares_classes(counts.balance)
        return wealth.sees_slopes(self.columns.width + 1)

    def as_text(self, records: Records) -> Records:
        """Sparse numbers as rows of a norm that is learnt: most are 0, so rows are far shorter than they might be."""
        stage = self.spending.stage("row-norm", self.at_most_half(_ROW_NORM))
        typical = typical_size(records, RowNorms(), stage)
        if typical.found:
            records = records.as_text(min(_LONGER * typical.size, self.columns.reach))
            self.columns = records.columns
        return records

    def marginals(self, records: Records, counts: Counts, wealth: Wealth) -> Marginals:
        if not wealth.sees_histograms:
            return self.centre(records, counts, wealth)
        stage = self.spending.stage("marginals", self.at_most_half(wealth.for_marginals))
        found = measure_marginals(records, counts.records, stage)
        return self.zoomed(records, found, counts, wealth)

    def zoomed(self, records: Records, found: Marginals, counts: Counts, wealth: Wealth) -> Marginals:
        """Marginals after closer looks at columns that fill a small part of their bounds."""
        if records.sparse:  # zeros are not moved, and most are zeros
            return found

        def closer(name: str, part: float) -> Stage:
            return self.spending.stage(name, self.at_most_half(part * wealth.for_marginals))

        return zoom_marginals(records, found, counts.records, closer)

    def centre(self, records: Records, counts: Counts, wealth: Wealth) -> Marginals:
        """What can be known of the columns where records are few: their centre, or nothing if they are sparse."""
        if records.sparse:
            return public_marginals(records.columns)
        stage = self.spending.stage("marginals", self.at_most_half(wealth.for_centre))
        return pool_rows(records, counts.records, stage)

    def reshape(self, records: Records, marginals: Marginals, counts: Counts) -> tuple[Records, Marginals]:
        """The records in other columns, if the marginals call for it; here they stay as they are."""
        return records, marginals

    def coordinates(
        self, records: Records, marginals: Marginals, counts: Counts, wealth: Wealth
    ) -> tuple[Coordinates, float]:
        """Coordinates for the descent, and the typical norm of a row in them."""
        size = self.columns.width + 1
        share = wealth.for_row_norms
        enough, wide = wealth.sees_second_moments(size), records.sparse or size > self.widest
        stage = self.spending.stage("row-norms", share / 2 if enough and not wide else share)
        radius = self.radius(records, marginals, stage)
        if records.sparse or (wide and enough):
            diagonal = Diagonal.of(marginals, radius.size, records.sparse)
            return diagonal, diagonal.row_size
        if not enough:
            mostly_text = self.columns.text > self.columns.width / 2
            plain = Standardised(marginals, radius.size, radius.found, mostly_text)
            return plain, plain.row_size
        stage = self.spending.stage("whitening", self.at_most_half(WHITENING))
        white = whiten(records, marginals, radius.size, counts.records, stage)
        stage = self.spending.stage("whitened-row-norms", share / 2)
        typical = typical_size(records, WhiteNorms(white), stage).size
        return white, min(max(typical, 1.0), 2 * math.sqrt(size))

    def radius(self, records: Records, marginals: Marginals, stage: Any) -> Typical:
        """The typical norm of the standardised features; a guess if the noise hides it."""
        typical = typical_size(records, StandardNorms(marginals), stage)
        if typical.found:
            return typical
        expected = float((self.columns.public_variance() / marginals.scale**2).sum())
        return Typical(0.5 * math.sqrt(max(expected, 1e-6)), False)

    def problem(self, records: Records, counts: Counts, wealth: Wealth) -> Problem:
        if self.loss.kind == "classes":
            return problems.of_classes(self.loss, counts)
        if self.loss.fits_mean and not wealth.sees_target:
            return self.problem_of_some_numbers(records, self.bounds, counts, wealth)
        stage = self.spending.stage("target", self.at_most_half(wealth.for_target))
        if self.loss.kind == "counts":
            known = (self.bounds[1], counts.records, stage, self.for_the_mean(wealth))
            return problems.of_counts(self.loss, records, *known)
        look = self.look_at_number(records, counts, wealth, stage)
        if self.loss.fits_mean and not wealth.resolves_target:
            return self.problem_of_some_numbers(records, look.bounds, counts, wealth)
        return problems.of_numbers(self.loss, records, look, counts.records, self.for_the_mean(wealth))

    def problem_of_some_numbers(
        self, records: Records, bounds: tuple[float, float], counts: Counts, wealth: Wealth
    ) -> Problem:
        """The same where a histogram hides how far numbers spread, or shows nothing."""
        share = min(wealth.for_target + wealth.for_mean, _LARGEST * self.spending.left)
        stage = self.spending.stage("target-mean", share, _CLOSER)
        return problems.of_some_numbers(self.loss, records, bounds, counts.records, stage)

    def problem_of_constant(self, records: Records, counts: Counts, wealth: Wealth) -> Problem:
        """The same where no column is used: then a mean of few numbers may cost all that is left."""
        if self.loss.kind != "numbers" or self.sees_slopes(counts):
            return self.problem(records, counts, wealth)
        stage = self.spending.stage("target-mean", steps=_CLOSER)
        return problems.of_few_numbers(self.loss, records, self.bounds, counts.records, stage)

    def look_at_number(self, records: Records, counts: Counts, wealth: Wealth, stage: Stage) -> Look:
        """A number within its bounds; where they are far too wide, within narrower ones."""
        look = problems.look_at_targets(records, self.bounds, stage)
        for zoom in range(1, _ZOOMS + 1):
            bounds = problems.narrower_bounds(look, counts.records)
            if bounds is None:
                break
            stage = self.spending.stage(f"target-zoom-{zoom}", self.at_most_half(wealth.for_target))
            look = problems.look_at_targets(records, bounds, stage)
        return look

    def for_the_mean(self, wealth: Wealth) -> Stage | None:
        """More looks at the mean: none if there are many records, with nearly all that is left if very few."""
        share = min(wealth.for_mean, self.spending.left / 3)
        if not wealth.sees_slopes(self.columns.width + 1):
            share = _NEARLY_ALL * self.spending.left
        return self.spending.stage("target-mean", share, _LOOKS) if share else None


class FirstCounts(NamedTuple):
    """How many records there are, and whether they are enough to ask their columns anything."""

    counts: Counts
    enough: bool


def count_first(records: Records, columns: Columns, spending: Spending) -> FirstCounts:
    """The counts of a fit whose columns have no bounds yet: where records are too few, they need none.

    ``records`` have targets and no features; of ``columns``, those of the fit, only their number is used.
    """
    looks = Looks(records.loss, columns, spending, None, (0.0, 1.0))
    counts = looks.count_records(records)
    return FirstCounts(counts, looks.sees_slopes(counts))


def _checked_bounds(loss: Loss, bounds: tuple[float, float]) -> tuple[float, float]:
    lower = real("target_bounds[0]", bounds[0], at_least=-1e100, at_most=1e100)
    upper = real("target_bounds[1]", bounds[1], above=lower, at_most=1e100)
    if loss.kind == "counts" and lower != 0:
        raise InvalidParameter("target_bounds", bounds, "must begin at 0 for counts.")
    return lower, upper
