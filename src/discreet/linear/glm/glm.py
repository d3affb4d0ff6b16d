"""The fit of generalised linear models without knobs: :func:`fit_glm`.

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
>>> from discreet.trusted.spending import BudgetAllocator
>>> x = np.linspace(0, 1, 4000)[:, None]
>>> fit = fit_glm(Logistic(), x, x[:, 0] > 0.3, Columns(numerics=1), BudgetAllocator(Budget(1.0, 1e-6)))
>>> bool(0.25 < -fit.intercept / fit.coefficients[0] < 0.35)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.people import People
from discreet.linear.gate.records import Records
from discreet.linear.glm.budget_split import BudgetSplit
from discreet.linear.glm.counts import ClassCounts, count_again, count_records, sees_slopes
from discreet.linear.glm.frames import StandardFrame, WhiteFrame
from discreet.linear.glm.inference import infer_effects
from discreet.linear.glm.marginals import as_text, fill_missing, measure_columns
from discreet.linear.glm.problems import Bounds, checked_bounds, describe_constant, describe_target
from discreet.linear.glm.steps import descend_noisily, recalibrate, share_of_recalibration, shrink_slopes
from discreet.linear.glm.whitening import choose_coordinates
from discreet.linear.linear_model import LinearModel
from discreet.linear.losses import Loss
from discreet.linear.residuals import checked_loss
from discreet.linear.row_views.coordinates import Marginals
from discreet.linear.storage import Storage
from discreet.trusted.spending import BudgetAllocator, Progress

_ROUGHLY = 0.5  # the weight of their number where all that counts is how classes differ


def fit_glm(
    loss: Loss,
    x: Any,
    y: Any,
    columns: Columns,
    spending: BudgetAllocator,
    weights: Any = None,
    progress: Progress | None = None,
    *,
    target_bounds: tuple[float, float] = (0.0, 1.0),
    storage: Storage | None = None,
    people: People | None = None,
    averaging: float = 1.0,
    references: Mapping[int, int] | None = None,
    counts: ClassCounts | None = None,
) -> LinearModel:
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
    loss, bounds = checked_loss(loss), checked_bounds(loss, target_bounds)
    shelf = (storage or Storage()).shelf()
    records = Records.of(loss, x, y, columns, weights, people, shelf, whole_rows=references is not None)
    return fit_records(
        records,
        spending,
        progress,
        target_bounds=bounds,
        averaging=averaging,
        references=references,
        counts=counts,
    )


def fit_records(
    records: Records,
    spending: BudgetAllocator,
    progress: Progress | None = None,
    *,
    target_bounds: Bounds = (0.0, 1.0),
    averaging: float = 1.0,
    references: Mapping[int, int] | None = None,
    counts: ClassCounts | None = None,
) -> LinearModel:
    """Fit a generalised linear model to records that answer queries, stage by stage, with all of ``spending``."""
    loss, columns, bounds = records.loss, records.columns, checked_bounds(records.loss, target_bounds)
    if progress is not None:
        spending.progress = progress
    spending.admit(records)
    if records.sparse and columns.numerics:
        records = as_text(records, spending)
    if counts is None:
        counts = count_records(records, records.columns, spending)
    count = counts.records
    if columns.width == 0 or not sees_slopes(loss, counts, records.columns, spending):
        return fit_constant(records, bounds, counts, spending)
    marginals = measure_columns(records, count, spending)
    missing = fill_missing(records, marginals, count)
    coordinates, row_size = choose_coordinates(records, marginals, count, spending)
    white = coordinates if isinstance(coordinates, WhiteFrame) else None
    problem = describe_target(records, bounds, counts, spending)
    for_the_end = share_of_recalibration(records, count, spending)
    for_inference = 0.0
    if references is not None and white is not None:
        for_inference = _share_of_inference(records, count, for_the_end, spending)
    share = spending.left - for_the_end - for_inference
    descent = descend_noisily(problem, records, coordinates, row_size, counts, averaging, share, spending)
    theta = shrink_slopes(descent, descent.theta)
    theta, borne_out = recalibrate(records, descent, theta, for_the_end, spending)
    inference = None
    if references is not None and white is not None:
        inference = infer_effects(records, problem, white, theta, count, references, spending)
    coefficients, intercept = coordinates.back(theta)
    return LinearModel(
        coefficients * problem.scale,
        np.asarray(intercept * problem.scale + problem.shift),
        _precision(records, count, spending),
        (marginals.lower, marginals.upper),
        counts,
        marginals.released,
        inference,
        missing,
        borne_out,
    )


def fit_constant(
    records: Records, bounds: Bounds, counts: ClassCounts, spending: BudgetAllocator
) -> LinearModel:
    """The best constant, where no column can be used: they have coefficients of 0."""
    if records.loss.kind == "classes":
        counts = count_again(records, counts, spending.stage("classes"), _ROUGHLY)
    problem = describe_constant(records, bounds, counts, spending)
    nothing = np.zeros(records.columns.width)
    coordinates = StandardFrame(Marginals(nothing, nothing + 1, nothing, nothing + 1), 1.0, True, False)
    coefficients, intercept = coordinates.back(coordinates.of_constant(problem.start))
    return LinearModel(
        coefficients * problem.scale,
        np.asarray(intercept * problem.scale + problem.shift),
        _precision(records, counts.records, spending),
        (nothing, nothing + 1),
        counts,
    )


def _share_of_inference(
    records: Records, count: float, for_the_end: float, spending: BudgetAllocator
) -> float:
    """The share of the budget for standard errors: at most half of what the descent would have."""
    columns = records.columns
    size = columns.width + 1 - len(columns.groups)
    split = BudgetSplit.of(count, columns, spending)
    wanted = split.for_inference(size, bounded=records.loss.lipschitz is not None)
    return min(wanted, (spending.left - for_the_end) / 2)


def _precision(records: Records, count: float, spending: BudgetAllocator) -> float:
    """One over the variance of sampling and that of noise as large as a typical row."""
    return 1 / (1 / count + (records.columns.width + 1) / (count * spending.strength) ** 2)
