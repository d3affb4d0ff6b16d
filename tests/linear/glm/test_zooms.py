"""Closer looks: columns that fill a small part of their bounds, and ranges that leave out what lies apart."""

import math

import numpy as np
import pytest

from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.private_table import RawColumns
from discreet.linear.gate.records import Records
from discreet.linear.glm.counts import ClassCounts
from discreet.linear.glm.frames import WhiteFrame
from discreet.linear.glm.glm import fit_glm
from discreet.linear.glm.marginals import (
    ColumnWindow,
    count_within,
    measure_marginals,
    narrow_part,
    zoom_marginals,
)
from discreet.linear.glm.ranges import learned_ranges
from discreet.linear.losses import Logistic
from discreet.linear.row_views.coordinates import Marginals
from discreet.trusted.spending import BudgetAllocator

USUAL = Budget(1.0, 1e-5)


def spending(budget=USUAL, seed=1):
    return BudgetAllocator(budget, stream=RandomStream(unsafe_seed=seed, threads=1))


def table(width, records=4000):
    """Three columns: one fills a part of its bounds, one is 0 but for a few, one fills them."""
    rng = np.random.default_rng(0)
    spike = np.where(rng.random(records) < 0.01, rng.random(records), 0.0)
    x = np.column_stack([0.3 + width * rng.normal(size=records), spike, rng.random(records)])
    return x, (x[:, 0] > 0.3).astype(float)


@pytest.mark.parametrize("ends", [(0, 1), (1, 2), (0, 64), (-1, 0), (-2, -1)])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.7, 0.95])
def test_a_column_of_two_numbers_has_both_of_them_in_its_range(ends, share):
    """1 is the end of the range from 0 to 1: counted beyond it, the column was not found, or cut to its zeros."""
    values = np.where(np.random.default_rng(3).random((20_000, 2)) < share, *ends[::-1]).astype(float)
    found = learned_ranges(RawColumns(values), spending(seed=5), 0.08, records=20_000.0)
    assert found.found.all()
    for lower, upper in found.ranges:
        assert lower <= ends[0]
        assert ends[1] <= upper


def test_a_narrow_column_is_found_and_others_stay_as_they_were():
    x, y = table(1e-4)
    spent = spending(Budget(4.0, 1e-5))
    records = Records(Logistic(), x, y, Columns(3))
    before = measure_marginals(records, 4000.0, spent.stage("marginals", 0.2))
    after = zoom_marginals(records, before, 4000.0, spent)
    assert after.centre[0] == pytest.approx(0.3, abs=5e-5)
    assert 0.7e-4 < after.scale[0] < 1.5e-4 < 0.1 * before.scale[0]
    assert after.lower[0] < 0.3 - 2e-4 < 0.3 + 2e-4 < after.upper[0]
    for name in ("centre", "scale", "lower", "upper"):
        np.testing.assert_array_equal(getattr(after, name)[1:], getattr(before, name)[1:])
    assert spent.left > 1 - 0.2 - 0.11  # two looks at one column, and one at that which has one value


def test_bounds_a_thousand_times_too_wide_cost_little():
    x, y = table(1e-4)
    fit = fit_glm(Logistic(), x[:, :1], y, Columns(1), spending())
    assert np.mean((fit.scores(x[:, :1]) > 0) == y) > 0.95


def test_what_is_wide_or_hidden_or_partly_elsewhere_is_not_narrow():
    histogram = np.zeros(64)
    assert narrow_part(histogram, 5.0, 1000.0) is None
    histogram[20:22] = 500.0
    assert narrow_part(histogram, 5.0, 1000.0) == ColumnWindow(19 / 64, 23 / 64)
    assert narrow_part(histogram, 5.0, 1200.0) is None  # a sixth of the records is elsewhere
    histogram[30] = 100.0
    assert narrow_part(histogram, 5.0, 1100.0) is None
    assert ColumnWindow(0.5, 0.75).part(0.5, 1.0) == ColumnWindow(0.625, 0.75)


@pytest.mark.parametrize("row", [[0.3, 0.0, 0.5], [0.9, 1.0, 1.0], [0.2, 0.0, 0.0]])
def test_one_record_moves_a_closer_look_as_far_as_is_paid_for(row):
    """Two records are caught: they move it by more."""
    x, y = table(1e-4, 50)
    windows = {0: ColumnWindow(0.25, 0.35), 2: ColumnWindow(0.0, 1.0)}

    def total(more):
        seen = []

        class Watched(BudgetAllocator):
            def _add_noise(self, total, event):
                seen.append(total)
                return super()._add_noise(total, event)

        spent = Watched(Budget(1.0, 1e-5), stream=RandomStream(unsafe_seed=0))
        rows = np.vstack([x, *[[row]] * more])
        records = Records(Logistic(), rows, np.append(y, [1.0] * more), Columns(3))
        count_within(records, windows, spent.stage("zoom", 0.5))
        return seen[0]

    none, one, two = map(total, range(3))
    moves = [np.linalg.norm((some.value - none.value) * none.grid) / none.clip_norm for some in (one, two)]
    assert moves[0] <= 1
    if row[0] == 0.3:
        assert moves[0] > 0.99
        assert moves[1] > 1


def test_few_numbers_that_lie_apart_are_left_out_by_mass_and_tails_are_not():
    rng = np.random.default_rng(0)
    usual = rng.normal(100, 25, 20_000)
    coded = np.where(rng.random(20_000) < 0.02, 9999.0, usual)
    often = np.where(rng.random(20_000) < 0.2, 9999.0, usual)
    tailed = np.exp(rng.normal(4, 1.5, 20_000))

    def upper(values, by_mass):
        return learned_ranges(RawColumns(values[:, None]), spending(), 0.1, by_mass=by_mass).ranges[0][1]

    assert upper(coded, by_mass=True) < 1000 < 9999 <= upper(coded, by_mass=False)
    assert upper(often, by_mass=True) >= 9999
    assert upper(tailed, by_mass=True) == upper(tailed, by_mass=False)


def test_shares_of_classes_allow_for_a_number_of_records_that_is_badly_known():
    """Against simulation: numbers of records and shares drawn evenly, their noisy counts; 4 standard errors."""
    rng = np.random.default_rng(0)
    errors, naive, told = [], [], []
    for _ in range(2000):
        records, share = rng.uniform(200, 1000), rng.random()
        difference = records * (2 * share - 1) + 60 * rng.normal()
        total = max(records + 200 * rng.normal(), 50.0)
        classes = np.array([total - difference, total + difference]) / 2
        counts = ClassCounts(classes, 0.0, noise=60 / math.sqrt(2), noise_of_records=200.0)
        errors.append(counts.priors[1] - share)
        told.append(counts.share_error)
        naive.append(np.clip(classes[1] / total, 0.01, 0.99) - share)
    assert np.std(errors) < 0.95 * np.std(naive)
    assert np.std(errors) == pytest.approx(math.sqrt(np.mean(np.square(told))), rel=0.2)
    exact = ClassCounts(np.array([3000.0, 1000.0]), 0.0, 1.0)
    assert exact.priors[0] == pytest.approx(0.75, abs=1e-5)


def test_directions_that_noise_made_are_not_thought_to_be_long():
    two = Marginals(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1))
    white = WhiteFrame(two, np.eye(2), np.eye(2), np.diag([1.0, 0.5]), noise=0.45)
    np.testing.assert_allclose(white.spread, [0.0, 0.55, 0.1])  # the constant is part of the rows
    np.testing.assert_allclose(WhiteFrame(two, np.eye(2), np.eye(2)).spread, [0.0, 1.0, 1.0])
