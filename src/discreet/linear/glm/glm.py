"""The recipe without knobs: :func:`fit_glm`.

Where a budget is small, the noise decides how well a model can be known, and most of what is usually tuned by
hand (scaling, clip norm, learning rate, regularisation) can be worked out from it. The stages, each paid from
the same budget by a share that grows where records are few:

    counts            how many records, of which class
    marginals         centre and scale of every column
    row-norms         how long the standardised rows are
    whitening         their second moments, if there are enough records to see them
    target            location and scale of a numeric target
    gradients         forty noisy full-batch steps, or 24 longer ones, on all that is left
    recalibration     intercept and slope of the finished score
    inference         one more step and its error, if it was asked for

>>> from discreet import Budget
>>> from discreet.linear.losses import Logistic
>>> from discreet.linear.glm.spending import Spending
>>> x = np.linspace(0, 1, 4000)[:, None]
>>> fit = fit_glm(Logistic(), x, x[:, 0] > 0.3, Columns(numerics=1), Spending(Budget(1.0, 1e-6)))
>>> bool(0.25 < -fit.intercept / fit.coefficients[0] < 0.35)
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.linear.gate.coordinates import Coordinates, Marginals, Released, Standardised, Whitened
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.gate.records import Records
from discreet.linear.glm.counts import Counts, count_again
from discreet.linear.glm.inference import (
    Inference,
    coordinates_of,
    infer,
    lines_of,
    scale_for,
    start_of,
    twins_in,
)
from discreet.linear.glm.looks import Looks
from discreet.linear.glm.marginals import means_of_present
from discreet.linear.glm.problems import MIDDLE, Problem
from discreet.linear.glm.spending import Progress, Spending, Wealth
from discreet.linear.glm.steps import (
    PathError,
    Seen,
    StepRule,
    clipping_bias,
    match_mean,
    moderate,
    noisy_descent,
    out_of_sample,
    pull_back,
    recalibrate,
    step_rule,
    stride,
)
from discreet.linear.losses import Loss
from discreet.linear.residuals import checked_loss
from discreet.linear.storage import Storage

Array = NDArray[np.float64]
_RARE_BY_NOISE = 0.06  # values below so many spectral norms of the second moments' noise have no line
_ROUGHLY = 0.5  # the weight of their number where all that counts is how classes differ
_FOR_FIRST_STEP = 0.25  # of the share of inference, where one Newton step is not exact
_FEWEST = 25.0  # records, each with the information of a number, that a line needs


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model in the units of the encoded columns, and what is known of how it was made.

    A record x has the score ``intercept + clip(x, lower, upper) @ coefficients``; several outputs have a column
    each. The limits are part of the model: values far outside of where records were seen are clamped to them.
    Everything here was released with noise or follows from what was: it may be published. ``missing`` is what a
    missing number of each numeric column counts as.

    ``theta``, ``iterates``, ``coordinates``, ``problem`` and ``rule`` tell how the descent went, in its own
    coordinates; ``gradient_noise`` is the noise on each number of an average gradient. ``borne_out`` is the share of
    the slopes for classes that :func:`~discreet.linear.glm.steps.out_of_sample` left.
    """

    coefficients: Array
    intercept: Array
    lower: Array
    upper: Array
    counts: Counts
    theta: Array
    iterates: Array
    coordinates: Coordinates
    problem: Problem
    rule: StepRule
    gradient_noise: float
    released: Released | None = None
    inference: Inference | None = None
    missing: Array | None = None
    borne_out: float = 1.0

    def scores(self, x: Any) -> Array:
        """The score of each encoded record, in the units of the target for regressions."""
        rows = x.toarray() if issparse(x) else np.asarray(x, np.float64)
        return np.asarray(np.clip(rows, self.lower, self.upper) @ self.coefficients + self.intercept)


def fit_glm(
    loss: Loss,
    x: Any,
    y: Any,
    columns: Columns,
    spending: Spending,
    weights: Any = None,
    progress: Progress | None = None,
    *,
    target_bounds: tuple[float, float] = (0.0, 1.0),
    storage: Storage | None = None,
    people: People | None = None,
    averaging: float = 1.0,
    references: Mapping[int, int] | None = None,
    counts: Counts | None = None,
) -> Fit:
    """Fit a generalised linear model to encoded records, with all of ``spending``.

    ``x`` is an array, a memory map or a CSR matrix whose columns are as ``columns`` says. ``y`` holds 0 and 1,
    class numbers, numbers, or counts, as ``loss`` wants them; numbers and counts are clamped to the public
    ``target_bounds``. ``weights`` are between 0 and 1. ``progress`` is told every stage and release. ``people`` says
    whose the rows are; their ``weights`` are then those of :meth:`~discreet.linear.gate.people.People.weights`, and
    ``averaging`` is how much shorter the mean gradient of a person is than that of a row. With ``references``, a
    share goes to standard errors (:mod:`~discreet.linear.glm.inference`): they are the places of declared references
    within their groups, by the number of the group. ``storage`` says where rows are kept between passes.
    ``counts`` are given where the records were counted before their columns had bounds.

    Guarantee: the fit is within the budget of ``spending``, for a record or for a person with all rows, whatever the
    records are: every stage proves its own sensitivity, and rows that break the promise of ``columns`` are moved into
    it first.
    """
    shelf = (storage or Storage()).shelf()
    loss = checked_loss(loss)
    records = Records.of(loss, x, y, columns, weights, people, shelf, whole_rows=references is not None)
    return fit_records(
        records,
        spending,
        progress,
        target_bounds=target_bounds,
        averaging=averaging,
        references=references,
        counts=counts,
    )


def fit_records(
    records: Records,
    spending: Spending,
    progress: Progress | None = None,
    *,
    target_bounds: tuple[float, float] = (0.0, 1.0),
    averaging: float = 1.0,
    references: Mapping[int, int] | None = None,
    counts: Counts | None = None,
) -> Fit:
    """Fit a generalised linear model to records of this process or of partitions, as :func:`fit_glm` does."""
    spending.admit(records)
    recipe = Recipe(records.loss, records.columns, spending, progress, target_bounds, averaging, references)
    recipe.counts = counts
    return recipe.fit(records)


class Recipe(Looks):
    """One fit, stage by stage. Additive models are a subclass."""

    def fit(self, records: Records) -> Fit:
        if records.sparse and self.columns.numerics:
            records = self.as_text(records)
        counts = self.count_records(records)
        wealth = self.wealth(counts)
        if self.columns.width == 0 or not self.sees_slopes(counts):
            return self.without_features(records, counts, wealth)
        marginals = self.marginals(records, counts, wealth)
        missing = (
            None if records.sparse else means_of_present(marginals, self.columns.numerics, counts.records)
        )
        if missing is not None:
            records.fill_missing(missing)
        records, marginals = self.reshape(records, marginals, counts)
        wealth = self.wealth(counts)
        coordinates, row_size = self.coordinates(records, marginals, counts, wealth)
        problem = self.problem(records, counts, wealth)
        for_the_end = self.share_for_the_end(wealth)
        for_inference = 0.0
        if self.infers(coordinates):
            size = self.columns.width + 1 - len(self.columns.groups)
            wanted = wealth.for_inference(size, bounded=self.loss.lipschitz is not None)
            for_inference = min(wanted, (self.spending.left - for_the_end) / 2)
        white = isinstance(coordinates, Whitened)
        longer = stride(problem, counts.records, self.columns.width + 1) if white else 1.0
        steps = round(wealth.steps / longer)
        stage = self.spending.stage("gradients", self.spending.left - for_the_end - for_inference, steps)
        size = self.size_of(coordinates)
        typical = row_size * self.averaging
        rule = step_rule(problem, stage, counts.records, size, typical, coordinates.curvature, longer)
        start = coordinates.of_constant(problem.start)
        path = noisy_descent(problem, records, coordinates, start, rule, counts.records, stage)
        theta, noise = path.result, stage.noise_multiplier * rule.clip_norm / counts.records
        error = PathError(rule, steps, noise)
        theta = self.settle(theta, start, error, coordinates, problem, counts)
        theta = self.moderate(theta, start, error, coordinates, problem, row_size, counts)
        borne_out = 1.0
        if for_the_end:
            theta = self.correct(problem, records, coordinates, theta, start, counts, for_the_end)
            if self.loss.kind == "classes":
                known = (error, coordinates, problem, row_size, counts.records)
                way = theta - start
                borne_out = self.out_of_sample(path.result - start, way, *known)
                theta = start + borne_out * way
        coefficients, intercept = coordinates.back(theta)
        inference = None
        if self.infers(coordinates):
            inference = self.infer_lines(records, problem, coordinates, theta, counts)
        return Fit(
            coefficients * problem.scale,
            intercept * problem.scale + problem.shift,
            marginals.lower,
            marginals.upper,
            counts,
            theta,
            path.iterates,
            coordinates,
            problem,
            rule,
            noise,
            marginals.released,
            inference,
            missing,
            borne_out,
        )

    def moderate(
        self,
        theta: Array,
        start: Array,
        error: PathError,
        coordinates: Coordinates,
        problem: Problem,
        row_size: float,
        counts: Counts,
    ) -> Array:
        """What the descent found, less what its noise explains and, of numbers and counts, the chance of sampling."""
        unit = coordinates.of_constant(np.ones(()))
        if self.loss.kind == "classes":
            limit = math.inf if self.loss.outputs > 1 else error.rule.clip_norm / row_size
            bias = clipping_bias(float(np.max(problem.start)), limit)
            variances = error.by_noise(counts.surely * problem.bend * coordinates.spread)
            spread = coordinates.spread * row_size**2 / coordinates.spread.sum()
            return moderate(theta, start, unit, problem.start_error, variances, spread, bias)
        square = row_size**2 / self.size_of(coordinates)
        curvature = problem.curvature * square
        variance = float(error.by_noise(counts.surely * curvature))
        chance = float(error.by_chance(curvature, problem.residual**2 * square / counts.records))
        reached = curvature * math.sqrt(float(error.by_chance(curvature, 1.0)))
        seen = Seen(variance, chance, reached, row_size**2)
        return pull_back(theta, start, unit, problem.start_error, seen)

    def size_of(self, coordinates: Coordinates) -> int:
        """The numbers of a row, the constant included, as far as they count."""
        if isinstance(coordinates, Whitened) and coordinates.dimensions is not None:
            return math.ceil(coordinates.dimensions)
        return self.columns.width + 1

    def out_of_sample(
        self,
        before: Array,
        after: Array,
        error: PathError,
        coordinates: Coordinates,
        problem: Problem,
        row_size: float,
        count: float,
    ) -> float:
        """The share of what features tell of classes that other records will bear out, after a correction."""
        unit, curvatures = coordinates.of_constant(np.ones(())), problem.bend * coordinates.spread
        level = np.outer(unit, unit) / float(unit @ unit)
        reached = curvatures * np.sqrt(error.by_chance(curvatures, 1.0))
        reached[0] = 0.0  # of the constant
        spread = coordinates.spread * row_size**2 / coordinates.spread.sum()
        informed = problem.bend / MIDDLE * count
        return out_of_sample(before - level @ before, after - level @ after, reached, spread, informed)

    def without_features(self, records: Records, counts: Counts, wealth: Wealth) -> Fit:
        """The best constant, where no column can be used: they have coefficients of 0."""
        if self.loss.kind == "classes":
            counts = count_again(records, counts, self.spending.stage("classes"), _ROUGHLY)
        problem = self.problem_of_constant(records, counts, wealth)
        nothing = np.zeros(self.columns.width)
        none = Marginals(nothing, nothing + 1, nothing, nothing + 1)
        coordinates = Standardised(none, 1.0, True, False)
        start = coordinates.of_constant(problem.start)
        coefficients, intercept = coordinates.back(start)
        intercept = intercept * problem.scale + problem.shift
        known = (counts, start, start[None], coordinates, problem, StepRule(1.0, 0.0, 0.0), math.inf)
        return Fit(coefficients * problem.scale, intercept, none.lower, none.upper, *known)

    def settle(
        self,
        theta: Array,
        start: Array,
        error: PathError,
        coordinates: Coordinates,
        problem: Problem,
        counts: Counts,
    ) -> Array:
        """The result of the descent, of which this error may explain a part; here it stays as it is."""
        return theta

    def share_for_the_end(self, wealth: Wealth) -> float:
        """The share of the last correction; 0 where there is none."""
        none = self.loss.kind == "numbers" or self.loss.outputs > 1
        share = 0.0 if none else wealth.for_recalibration
        return min(share, self.spending.left / 3)

    def correct(
        self,
        problem: Problem,
        records: Records,
        coordinates: Coordinates,
        theta: Array,
        start: Array,
        counts: Counts,
        share: float,
    ) -> Array:
        if self.loss.kind == "counts":
            stage = self.spending.stage("recalibration", share)
            return match_mean(problem, records, coordinates, theta, counts.records, stage)
        factor = 1.0 if isinstance(coordinates, Whitened) else 0.5
        expected = factor * float(np.linalg.norm(theta - start))
        return recalibrate(
            problem, records, coordinates, theta, start, expected, counts.records, share, self.spending
        )

    # ---- which effects are real ----

    def infers(self, coordinates: Coordinates) -> TypeGuard[Whitened]:
        """Whether a step for inference is asked for, and the second moments that it needs were seen."""
        return self.references is not None and isinstance(coordinates, Whitened)

    def infer_lines(
        self, records: Records, problem: Problem, white: Whitened, theta: Array, counts: Counts
    ) -> Inference:
        """All that is left, for one more step from ``theta`` and for its error."""
        coefficients, intercept = white.back(theta)
        shares = white.marginals.centre
        informed = min(1.0, 4 * problem.curvature) / 4 if self.loss.kind == "classes" else 1.0
        rare = max(_RARE_BY_NOISE * white.noise, _FEWEST / (informed * counts.records))
        lines = lines_of(self.columns, shares, self.references or {}, rare)
        own = coordinates_of(lines, white, self.columns)
        start = start_of(lines, own, coefficients, float(intercept), shares)
        scale = scale_for(problem, own.width, self.typical_residual(problem, white, theta))
        if self.loss.kind != "numbers":
            # A Newton step is exact for squares only: where the model is far from the best one, a first step comes
            # closer, so that the error of the last one is small beside what noise and sampling leave open.
            stage = self.spending.stage("inference-start", _FOR_FIRST_STEP * self.spending.left)
            start = infer(problem, records, lines, own, start, scale, stage).theta
        stage = self.spending.stage("inference")
        found = infer(problem, records, lines, own, start, scale, stage)
        return found.without(twins_in(lines, white))

    def typical_residual(self, problem: Problem, white: Whitened, theta: Array) -> float:
        """For numbers of variance 1, what the features leave of it."""
        if self.loss.kind != "numbers":
            return problem.residual
        constant = white.inverse[0]
        slopes = theta[1:] - constant * (constant @ theta[1:]) / (constant @ constant)
        return math.sqrt(max(1 - float(slopes @ slopes), 0.1))
