"""The recipe without knobs: its parts against closed forms, and whole fits against what is known of the data."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LinearRegression, LogisticRegression

from discreet import Budget
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.linear.gate.declared_columns import Columns
from discreet.linear.gate.records import Records
from discreet.linear.glm.budget_split import BudgetSplit
from discreet.linear.glm.counts import ClassCounts, count_again
from discreet.linear.glm.frames import StandardFrame, WhiteFrame
from discreet.linear.glm.glm import fit_glm
from discreet.linear.glm.marginals import measure_marginals, moments, shrink_offsets, typical_size
from discreet.linear.glm.problems import (
    Location,
    TargetHistogram,
    Within,
    clipped_distance,
    iterative_location,
    iterative_mean,
    narrower_bounds,
    of_classes,
)
from discreet.linear.glm.steps import (
    CoefficientVariances,
    StepRule,
    clipping_bias,
    factor_of_slopes,
    out_of_sample_share,
    share_of_signal,
    shrink_classes,
    shrink_numbers,
    step_effects,
    stride,
)
from discreet.linear.kernels.rowwise import times
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared
from discreet.linear.on_demand import OnDemand
from discreet.linear.row_views.coordinates import RowNorms
from discreet.linear.storage import Storage
from discreet.trusted.spending import BudgetAllocator
from support.kept_coordinates import kept_coordinates

VAST, USUAL = Budget(1e5, 1e-6), Budget(1.0, 1e-5)
FOUR = Columns(4)
HERE = Within(0.0, 1.0)


def spending(budget=USUAL, seed=1, **options):
    return BudgetAllocator(budget, stream=RandomStream(unsafe_seed=seed, threads=1), **options)


def classified(n, d=4, seed=0, shift=0.0, loose=1.0):
    """Records on [0, 1] with logistic classes; ``loose`` bounds leave most of the range empty."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    y = rng.random(n) < 1 / (1 + np.exp(-(2 * z[:, 0] - z[:, 1] + shift)))
    return np.clip(z / (8 * loose) + 0.5, 0, 1), y.astype(float)


def accuracy(fit, x, y):
    return float(np.mean((fit.scores(x) > 0) == y))


def test_admitted_rows_keep_the_promise():
    columns = Columns(2, (3, 1), text=2, text_norm=1.5)
    rng = np.random.default_rng(0)
    wild = rng.standard_cauchy((500, 8)) * 10.0 ** rng.integers(-3, 30, (500, 8))
    wild[::7, 3] = np.nan
    rows = columns.admit(wild).astype(float)
    assert len(rows) == np.isfinite(wild).all(1).sum()
    assert rows[:, :6].min() >= 0
    assert rows[:, :6].max() <= 1
    assert (rows[:, 2:6] ** 2).sum(1).max() <= 2
    assert (rows[:, 6:] ** 2).sum(1).max() <= 1.5**2
    good = np.array([[0.25, 1, 0, 1, 0, 1, 0.9, -1.0]], np.float32)
    np.testing.assert_array_equal(columns.admit(good), good)


def test_rows_are_admitted_in_place_only_where_nobody_else_has_them():
    rng = np.random.default_rng(5)
    x = (3 * rng.random((50, 4)) - 1).astype(np.float32)
    x[7, 2] = np.nan
    expected, finite = FOUR.sift(x)
    mine = x.copy()
    kept, also = FOUR.sift(mine, in_place=True)
    np.testing.assert_array_equal(kept, expected)
    np.testing.assert_array_equal(also, finite)
    y = np.zeros(50)
    for table in (x, OnDemand(x.shape, lambda rows: x[rows]), OnDemand(x.shape, lambda rows: x[rows] + 0)):
        before = x.copy()
        found = np.concatenate([chunk.x for chunk in Records(Squared(), table, y, FOUR)._store.chunks()])
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(x, before)


def test_a_row_is_admitted_the_same_whoever_comes_along():
    """A record that breaks the promise must not change the last bit of another one."""
    columns = Columns(0, (2, 2))
    honest = np.tile(np.array([[0, 1, 1, 0]], np.float32), (5, 1))
    with_liar = columns.admit(np.vstack([honest, np.ones((1, 4), np.float32)]))
    np.testing.assert_array_equal(with_liar[:5], columns.admit(honest))


@pytest.mark.parametrize(
    "bad", [{"numerics": -1}, {"numerics": math.nan}, {"groups": (0,)}, {"text_norm": 0.0}]
)
def test_columns_that_mean_nothing(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        Columns(**({"numerics": 1, "text": 1} | bad))


@pytest.mark.parametrize("noise", [1.0, 20.0, 60.0])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.4, 0.5), (0.02, 0.06)])
def test_moments_of_a_histogram(noise, low, high):
    rng = np.random.default_rng(3)
    values = rng.uniform(low, high, 20_000)
    histogram = np.histogram(values, 64, (0, 1))[0] + noise * rng.standard_normal(64)
    found = moments(histogram, noise, 20_000.0)
    assert abs(found.mean - values.mean()) < 0.2 * values.std() + 1 / 64
    assert 0.6 * values.std() < math.sqrt(found.variance) < 1.6 * values.std() + 1 / 64
    assert found.lower <= low + 1 / 64
    assert found.upper >= high - 1 / 64


def test_noise_alone_has_no_moments():
    """None of 200 histograms of noise is mistaken for a column (seeded)."""
    rng = np.random.default_rng(0)
    assert all(moments(30 * rng.standard_normal(64), 30.0, 10_000.0) is None for _ in range(200))


def test_a_spike_does_not_hide_where_the_others_are():
    """Nine in ten values are 0 and the others near 0.3: the limit leaves them where they are."""
    histogram = np.zeros(64)
    histogram[0], histogram[18:22] = 9000.0, 250.0
    found = moments(histogram, 10.0, 10_000.0)
    assert found.upper > 22 / 64


def test_shrinking_does_better_than_not():
    rng = np.random.default_rng(0)
    truth = 0.5 + 0.1 * rng.standard_normal(50)
    noisy = truth + 0.2 * rng.standard_normal((200, 50))
    pulled = np.array([shrink_offsets(row, 0.2, common=50) for row in noisy])
    assert np.mean((pulled - truth) ** 2) < 0.5 * np.mean((noisy - truth) ** 2)
    far = 100 * truth
    np.testing.assert_allclose(shrink_offsets(far, 0.2), far, rtol=1e-4)


def test_typical_size_is_found_or_denied():
    sizes, text = np.random.default_rng(0).uniform(3.0, 4.0, (1000, 1)), Columns(0, text=1, text_norm=9.0)
    records, few = (Records(Squared(), rows, np.zeros(len(rows)), text) for rows in (sizes, sizes[:3]))
    found = typical_size(records, RowNorms(), spending(Budget(8.0, 1e-5)).stage("sizes"))
    assert found.found
    assert 2.8 < found.size < 4.3
    assert not typical_size(few, RowNorms(), spending(Budget(0.1, 1e-5)).stage("sizes")).found


def test_averaging_gain_against_simulation():
    rule, steps, curvature = StepRule(1.0, 0.05, 0.4), 30, 0.5
    rng, weights = np.random.default_rng(0), np.arange(steps + 1.0)
    weights[: steps // 3 + 1] = 0
    ends = []
    for _ in range(4000):
        theta = [0.0]
        for _ in range(steps):
            theta.append(
                theta[-1] - rule.step_size * ((curvature + rule.ridge) * theta[-1] + rng.standard_normal())
            )
        ends.append(weights @ theta / weights.sum())
    # a variance of 4000 normal draws is off by 2.2 %; seeded
    assert np.sum(step_effects(rule, steps, curvature) ** 2) == pytest.approx(np.var(ends), rel=0.07)


def test_fewer_and_longer_steps_are_as_near_to_the_optimum():
    """The reason of stride(): what the start leaves is no more, and noise is nearly the same, at every curvature."""
    for curvature in np.geomspace(0.005, 0.25, 30):
        errors = []
        for steps, size in ((40, 3.0), (24, 5.0)):
            effects = step_effects(StepRule(1.0, 0.0, size), steps, curvature)
            weights = np.arange(1.0, steps + 1)
            weights[: steps // 3] = 0.0
            left = weights @ (1 - size * curvature) ** np.arange(1, steps + 1) / weights.sum()
            errors.append((abs(left), math.sqrt(steps * np.sum(effects**2))))
        assert errors[1][0] <= errors[0][0] + 1e-6
        assert errors[1][1] == pytest.approx(errors[0][1], rel=0.05)


def test_only_large_tables_and_losses_that_bend_little_take_long_steps():
    counts = ClassCounts(np.array([6e5, 4e5]), 0.0, 1.0)
    logistic = of_classes(Logistic(), counts)
    assert stride(logistic, 1e6, 21) == 5 / 3
    assert stride(logistic, 1e5, 21) == 1
    assert stride(of_classes(SmoothedHinge(0.3), counts), 1e6, 21) == 1
    three = ClassCounts(np.array([3e5, 3e5, 4e5]), 0.0, 1.0)
    assert stride(of_classes(Softmax(3), three), 1e6, 21) == 1


def test_pulled_back_to_the_start_by_pure_noise():
    noise = np.random.default_rng(0).normal(size=400)
    unit, start = np.eye(400)[0], np.zeros(400)
    seen = CoefficientVariances(
        variance=1.0, chance=0.0, reached=1.0, size=1e-2
    )  # scores of variance 1 have slopes of 10
    assert np.linalg.norm(shrink_numbers(noise, start, unit, 1.0, seen)[1:]) < 0.3 * np.linalg.norm(noise)
    signal = 10 + noise
    np.testing.assert_allclose(shrink_numbers(signal, start, unit, 1e3, seen), signal, rtol=0.02)
    less = seen._replace(variance=3.0)
    assert shrink_numbers(signal, start, unit, 1.0, less)[0] == pytest.approx(
        signal[0] / 4
    )  # by its precision
    assert shrink_numbers(signal, start, unit, 0.0, seen)[0] == 0  # the start is known exactly


@pytest.mark.parametrize("reached", [0.4, 1.0])
def test_slopes_are_what_they_are_on_average_given_what_was_found_of_them(reached):
    """Slopes drawn as is assumed: no multiple of the result is nearer to them, and James and Stein are farther off.

    4000 draws: the best multiple is off by less than .02 in all of 50 seeds.
    """
    rng, free, errors, between = np.random.default_rng(0), 6, [], [0.0, 0.0]
    seen = CoefficientVariances(variance=0.03, chance=0.05, reached=reached, size=2.0)
    for deviation in rng.uniform(0, 1, 4000):
        slopes = deviation / math.sqrt(seen.size) * rng.normal(size=free)
        noise = math.sqrt(seen.variance + seen.chance * max(1 - deviation**2, 0.1))
        found = reached * slopes + noise * rng.normal(size=free)
        square = float(found @ found)
        ours = factor_of_slopes(square, free, seen) * found
        stein = max(0.0, 1 - (free - 2) * (seen.variance + seen.chance) / square) * found / reached
        errors.append([np.sum((ours - slopes) ** 2), np.sum((stein - slopes) ** 2)])
        between[0] += float(ours @ slopes)
        between[1] += float(ours @ ours)
    assert between[0] / between[1] == pytest.approx(1, abs=0.04)
    assert np.mean(errors, axis=0)[0] < np.mean(errors, axis=0)[1]


def test_noise_that_hides_everything_cannot_cost_more_than_the_signal_might_be():
    """What noise of any size adds to scores, in variances of the target; James and Stein would add a share of it."""
    rng = np.random.default_rng(0)
    for variance in (0.1, 1.0, 10.0, 1000.0):
        seen, cost = CoefficientVariances(variance, 0.0, 1.0, 1.0), []
        for noise in math.sqrt(variance) * rng.normal(size=(300, 10)):
            cost.append(float(np.mean((factor_of_slopes(float(noise @ noise), 10, seen) * noise) ** 2)))
        assert np.mean(cost) < 0.1


def test_distances_are_clipped_as_an_integral_says():
    x = np.linspace(-60, 60, 2_000_001)
    for deviation, reach in ((1.0, 0.1), (2.0, 3.0), (0.5, 40.0)):
        density = np.exp(-0.5 * (x / deviation) ** 2) / deviation / math.sqrt(2 * math.pi)
        integral = float(np.sum(np.minimum(abs(x), reach) * density) * (x[1] - x[0]))
        found = clipped_distance(np.array([deviation]), reach)[0]
        assert found == pytest.approx(integral, rel=1e-6)


def targets_only(values):
    """Records that have nothing but a target."""
    return Records(Squared(), np.zeros((len(values), 1)), values, Columns(1))


@pytest.mark.parametrize("spread", [0.1, 0.01])
def test_few_numbers_are_located_and_their_spread_with_them(spread):
    """20 draws of 130 numbers at epsilon 1 with a third of the budget, where bins show nothing."""
    rng, found = np.random.default_rng(0), []
    for seed in range(20):
        values = np.clip(rng.normal(0.3, spread, 130), 0, 1)
        spent = BudgetAllocator(Budget(1.0, 1e-5), stream=RandomStream(unsafe_seed=seed))
        located = iterative_location(targets_only(values), HERE, 130.0, spent.stage("mean", 0.35, 5))
        found.append(
            [(located.mean - values.mean()) / spread, located.spread / spread, located.error / spread]
        )
    means, spreads, errors = np.array(found).T
    assert np.sqrt(np.mean(means**2)) < 0.5
    assert 0.6 < np.median(spreads) < 1.6
    assert np.sqrt(np.mean(means**2)) < 2 * np.sqrt(np.mean(errors**2))


def few_targets(records=400, centre=0.2, spread=0.05):
    values = np.clip(np.random.default_rng(0).normal(centre, spread, records), 0, 1)
    return values, targets_only(values)


def test_iterative_means_have_less_noise_than_one_release():
    """Root mean squared error over 200 draws, against one look at the whole range with the same budget."""
    values, targets = few_targets()
    errors, once = [], 0.0
    for seed in range(200):
        spent = BudgetAllocator(Budget(0.5, 1e-5), stream=RandomStream(unsafe_seed=seed))
        known = Location(mean=0.5, error=0.3, spread=0.05)
        found = iterative_mean(targets, HERE, known, len(values), spent.stage("mean", 0.5, 3))
        errors.append(found.mean - values.mean())
        once = spent.stage("once", 0.5).noise_multiplier * 0.5 / len(values)
    assert np.sqrt(np.mean(np.square(errors))) < 0.8 * once
    assert np.std(errors) == pytest.approx(found.error, rel=0.3)  # and it knows how well


def test_looks_come_closer_to_a_mean_of_which_nothing_is_known():
    """Against a look at the whole range and at the public middle, which would be the mean; 200 draws, seeded."""
    values, targets = few_targets(100)
    errors, once = [], 0.0
    for seed in range(200):
        spent = BudgetAllocator(Budget(0.5, 1e-5), stream=RandomStream(unsafe_seed=seed))
        found = iterative_mean(
            targets, HERE, Location(0.5, 12**-0.5, 0.0), len(values), spent.stage("mean", 0.5, 5)
        )
        errors.append(found.mean - values.mean())
        once = spent.stage("once", 0.5).noise_multiplier * 0.5 / len(values)
    assert np.sqrt(np.mean(np.square(errors))) < 0.6 * once < 0.6 * abs(0.5 - values.mean())


class Watched(BudgetAllocator):
    """Keeps the last sum before its noise."""

    def _add_noise(self, total, event):
        self.last = total
        return super()._add_noise(total, event)


def watched():
    return Watched(Budget(0.5, 1e-5), stream=RandomStream(unsafe_seed=0), arithmetic="float")


def test_one_record_moves_a_look_at_the_mean_by_the_reach_at_most():
    values, _ = few_targets(50)

    def last(values):
        spent = watched()
        iterative_mean(targets_only(values), HERE, Location(0.3, 0.1, 0.05), 50.0, spent.stage("mean", 0.5))
        return spent.last

    before = last(values)
    moves = [abs(last(np.append(values, v)).value - before.value)[0] for v in (0.0, 0.3, 1.0)]
    assert 0.5 * before.clip_norm < max(moves) <= before.clip_norm
    assert abs(last(np.append(values, [1.0, 1.0])).value - before.value)[0] > before.clip_norm  # two records


@pytest.mark.parametrize("loss", [Logistic(), Softmax(5)])
def test_comparing_classes_costs_what_is_paid_and_counts_records_again(loss):
    x, y = classified(300)
    before = ClassCounts(np.full(2 if loss == Logistic() else 5, 60.0), 0.0, 20.0, 20.0, 40.0)
    spent = watched()
    count_again(Records(loss, x[:1], y[:1], FOUR), before, spent.stage("classes", 0.2), 0.7)
    assert 0.999 * spent.last.clip_norm < np.linalg.norm(spent.last.value) <= spent.last.clip_norm
    after = count_again(Records(loss, x, y, FOUR), before, spent.stage("again", 0.5), 0.7)
    assert abs(after.classes.sum() - 300) < 5 * after.noise_of_records + 1e-9 < 5 * before.noise_of_records
    true = np.bincount(y.astype(int), minlength=len(after.classes))
    assert np.ptp(after.classes - true) < 6 * after.noise + 0.2 * np.ptp(true)
    assert after.noise < before.noise
    assert (after.other, after.noise_of_other) == (0.0, 20.0)  # undeclared targets are not looked at again


def test_where_records_are_few_the_frequent_class_is_asked_for_first():
    """One look with many records, more with few, and all of the budget where nothing else can be known."""

    def stages(records, epsilon, positive):
        told = {}
        rng = np.random.default_rng(3)
        x, y = rng.random((records, 4)), (rng.random(records) < positive).astype(float)
        spending = BudgetAllocator(Budget(epsilon, 1e-5), stream=RandomStream(unsafe_seed=1))
        fit = fit_glm(
            Logistic(), x, y, FOUR, spending, progress=lambda name, done, steps: told.setdefault(name)
        )
        return list(told), fit

    many, _ = stages(3000, 1.0, 0.5)
    assert not any(name in many for name in ("counts-2", "classes"))
    few, _ = stages(100, 1.0, 0.5)
    assert few[:2] == ["counts", "counts-2"]
    assert "gradients" in few
    fewest, constant = stages(30, 0.2, 0.9)
    assert fewest == ["counts", *(f"counts-{look}" for look in range(2, 6)), "classes"]
    assert "gradients" not in fewest
    assert not constant.coefficients.any()


def test_targets_far_inside_of_their_bounds_are_found():
    rng = np.random.default_rng(5)
    x = rng.random((3000, 4))
    y = 100 + 30 * x[:, 0] + rng.normal(size=3000)
    known = {"target_bounds": (0.0, 3e10)}
    fit = fit_glm(
        Squared(), x, y, FOUR, BudgetAllocator(Budget(1.0, 1e-5), stream=RandomStream(unsafe_seed=2)), **known
    )
    assert np.mean((fit.scores(x) - y) ** 2) < 0.3 * y.var()


def test_features_are_asked_where_classes_can_be_compared():
    few, some, many = (BudgetSplit(records, 0.25, 1.0) for records in (40, 100, 4000))
    assert not few.compares_classes(balance=1.0)
    assert some.compares_classes(balance=1.0)
    assert not some.compares_classes(balance=0.4)  # unequal classes vary less
    assert many.compares_classes(balance=0.001)  # a correction comes last
    assert not BudgetSplit(-3.0, 0.25, 1.0).compares_classes(balance=1.0)


def test_counts_are_never_zero():
    counts = ClassCounts(np.array([-5.0, -7.0]), 0.0, noise=4.0)
    assert counts.records > 0
    assert counts.priors.min() > 0
    both = ClassCounts(np.array([10.0, 0.0]), 0.0, 1.0).with_second_look(np.array([40.0, 0.0]), 2.0)
    np.testing.assert_allclose(both.classes, [16.0, 0.0])  # weights 1 and 1/4
    rough = ClassCounts(np.array([30.0, 10.0]), 0.0, 1.0, noise_of_records=2.0)
    seen = rough.with_second_look(np.array([15.0, 5.0]), 1.0, noise_of_records=1.0)
    np.testing.assert_allclose([seen.classes.sum(), np.ptp(seen.classes)], [24.0, 15.0])  # 1/4 and 1; 1 and 1
    assert seen.noise_of_records == pytest.approx(0.8**0.5)
    assert both.noise == pytest.approx(1 / math.sqrt(1.25))


def test_products_of_rows_depend_on_their_row_only():
    rng = np.random.default_rng(0)
    rows, matrix = rng.normal(size=(133, 37)).astype(np.float32), rng.normal(size=(37, 29))
    whole = times(rows, matrix)
    np.testing.assert_allclose(whole, rows.astype(float) @ matrix, atol=1e-4)
    for start in (0, 1, 64, 131):
        np.testing.assert_array_equal(times(rows[start:], matrix), whole[start:])


def test_marginals_with_a_vast_budget_are_those_of_the_data():
    rng = np.random.default_rng(0)
    x = np.hstack(
        [rng.beta(2, 5, (5000, 2)), np.eye(3)[rng.integers(3, size=5000)], rng.normal(size=(5000, 4)) / 4]
    )
    columns = Columns(2, (3,), text=4, text_norm=3.0)
    records = Records(Squared(), x, np.zeros(5000), columns)
    found = measure_marginals(records, 5000.0, spending(VAST, arithmetic="float").stage("marginals"))
    np.testing.assert_allclose(found.centre, x.mean(0), atol=0.01)
    np.testing.assert_allclose(found.scale[:5], x.std(0)[:5], rtol=0.05)
    np.testing.assert_allclose(found.scale[5:], x.std(0)[5:], rtol=0.05)


def test_with_a_vast_budget_least_squares_is_least_squares():
    rng = np.random.default_rng(0)
    x = (
        rng.uniform(0, 1, (4000, 4))
        @ np.array([[1, 0, 0, 0], [0.4, 0.6, 0, 0], [0, 0, 1, 0], [0, 0.5, 0, 0.5]]).T
    )
    y = 40 + 10 * (x @ [1.0, -2.0, 0.5, 0.0]) + rng.normal(size=4000)
    fit = fit_glm(Squared(), x, y, FOUR, spending(VAST, arithmetic="float"), target_bounds=(0.0, 100.0))
    exact = LinearRegression().fit(x, y)
    np.testing.assert_allclose(fit.coefficients, exact.coef_, atol=0.15)
    np.testing.assert_allclose(fit.intercept, exact.intercept_, atol=0.15)
    robust = fit_glm(Huber(3.0), x, y, FOUR, spending(VAST, arithmetic="float"), target_bounds=(0.0, 100.0))
    np.testing.assert_allclose(robust.coefficients, exact.coef_, atol=0.3)


def test_with_a_vast_budget_logistic_regression_is_logistic_regression(monkeypatch):
    x, y = classified(6000)
    coordinates = kept_coordinates(monkeypatch)
    fit = fit_glm(Logistic(), x, y, FOUR, spending(VAST, arithmetic="float"))
    exact = LogisticRegression(C=1e6, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(fit.coefficients, exact.coef_[0], atol=0.06 * np.linalg.norm(exact.coef_))
    assert [type(one) for one in coordinates] == [WhiteFrame]


@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge(0.5), Softmax(2)])
@pytest.mark.parametrize("loose", [1.0, 10.0])
def test_classes_are_learned_also_with_loose_bounds(loss, loose):
    x, y = classified(4000, loose=loose)
    test, labels = classified(2000, seed=9, loose=loose)
    fit = fit_glm(loss, x, y, FOUR, spending())
    scores = fit.scores(test)
    guesses = scores.argmax(1) if scores.ndim == 2 else scores > 0
    assert np.mean(guesses == labels) > 0.78  # the best possible is about 0.82


def test_counts_of_events_are_learned():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (6000, 4))
    y = rng.poisson(np.exp(1 + 2 * x[:, 0] - x[:, 1]))
    fit = fit_glm(Poisson(), x, y, FOUR, spending(Budget(3.0, 1e-5)), target_bounds=(0.0, 200.0))
    np.testing.assert_allclose(fit.coefficients, [2, -1, 0, 0], atol=0.35)
    assert np.exp(fit.scores(x)).mean() == pytest.approx(y.mean(), rel=0.05)


def test_few_records_are_treated_with_public_scales(monkeypatch):
    x, y = classified(500)
    coordinates = kept_coordinates(monkeypatch)
    fit_glm(Logistic(), x, y, FOUR, spending(Budget(0.1, 1e-5)))
    assert [type(one) for one in coordinates] == [StandardFrame]
    np.testing.assert_array_equal(coordinates[0].marginals.scale, np.full(4, math.sqrt(1 / 12)))


def test_rare_positives_are_ranked_and_not_worse_than_never():
    x, y = classified(20_000, shift=-6.5)
    test, labels = classified(20_000, seed=9, shift=-6.5)
    assert 0.005 < y.mean() < 0.02
    fit = fit_glm(Logistic(), x, y, FOUR, spending())
    scores = fit.scores(test)
    above = scores[labels == 1][:, None] > scores[labels == 0][None, :2000]
    assert above.mean() > 0.85
    assert accuracy(fit, test, labels) > 1 - labels.mean() - 0.002


def test_nothing_to_learn_from():
    columns, empty = Columns(2, (3,), text=2), np.zeros((0, 7))
    rows = {
        "no record": (empty, np.zeros(0)),
        "one record": (np.ones((1, 7)), np.ones(1)),
        "all NaN": (np.full((50, 7), np.nan), np.ones(50)),
        "no label": (np.ones((50, 7)), np.full(50, np.nan)),
        "one class": (np.ones((50, 7)), np.zeros(50)),
        "huge": (np.full((50, 7), 1e300), np.ones(50)),
    }
    losses = (Logistic(), Softmax(3), Squared(), Huber(1.0), Poisson(), SmoothedHinge())
    for x, y in rows.values():
        for loss in losses:
            for arithmetic in ("float", "hardened"):
                fit = fit_glm(loss, x, y, columns, spending(arithmetic=arithmetic))
                assert np.isfinite(fit.coefficients).all()
                assert np.isfinite(fit.intercept).all()


def test_constant_duplicate_and_too_many_columns():
    x, y = classified(3000)
    doubled = np.hstack([x, x[:, :1], np.full((3000, 2), 0.3), np.zeros((3000, 1))])
    fit = fit_glm(Logistic(), doubled, y, Columns(8), spending())
    assert accuracy(fit, doubled, y) > 0.78
    wide = np.random.default_rng(0).random((100, 300))
    fit = fit_glm(Logistic(), wide, y[:100], Columns(300), spending())
    assert np.isfinite(fit.coefficients).all()


def test_the_public_limits_are_never_left():
    x, y = classified(4000, loose=10.0)
    fit = fit_glm(Logistic(), x, y, FOUR, spending())
    lower, upper = fit.limits
    assert (lower >= 0).all()
    assert (upper <= 1).all()
    assert (upper - lower < 0.5).all()  # bounds ten times too wide were tightened
    far = fit.scores(np.full((1, 4), 1e9))
    np.testing.assert_allclose(far, fit.scores(np.ones((1, 4))))


def same(one, other, tolerance=2e-3):
    scale = np.abs(one.coefficients).max()
    np.testing.assert_allclose(one.coefficients, other.coefficients, atol=tolerance * scale)


@pytest.mark.parametrize("columns", [FOUR, Columns(0, text=4, text_norm=2.0)], ids=["numerics", "text"])
def test_memory_maps_sparse_rows_and_small_memory_change_nothing(tmp_path, monkeypatch, columns):
    x, y = classified(1500)
    expected = fit_glm(Logistic(), x, y, columns, spending())
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=x.shape)
    mapped[:] = x
    same(fit_glm(Logistic(), mapped, y, columns, spending()), expected)
    same(fit_glm(Logistic(), csr_array(x), y, columns, spending()), expected)
    monkeypatch.setattr("discreet.linear.gate.records._CHUNK", 4 * 100)  # 15 chunks in a scratch file
    same(fit_glm(Logistic(), x, y, columns, spending(), storage=Storage(0)), expected)


def test_weights():
    x, y = classified(1500)
    expected = fit_glm(Logistic(), x[:1000], y[:1000], FOUR, spending())
    weights = np.repeat([1.0, 0.0], [1000, 500])
    same(fit_glm(Logistic(), x, y, FOUR, spending(), weights=weights), expected)
    half = fit_glm(Logistic(), x, y, FOUR, spending(), weights=np.full(1500, 0.5))
    assert 600 < half.counts.records < 900


@pytest.mark.parametrize("loss", [Logistic(), Softmax(2)])
def test_hardened_arithmetic_gives_the_same_model(loss):
    x, y = classified(2000)
    plain = fit_glm(loss, x, y, FOUR, spending(Budget(8.0, 1e-5)))
    hardened = fit_glm(loss, x, y, FOUR, spending(Budget(8.0, 1e-5), arithmetic="hardened"))
    angle = np.sum(plain.coefficients * hardened.coefficients)
    angle /= np.linalg.norm(plain.coefficients) * np.linalg.norm(hardened.coefficients)
    assert angle > 0.99  # other draws of the noise


def test_replace_one_neighbours():
    x, y = classified(4000)
    fit = fit_glm(Logistic(), x, y, FOUR, spending(Budget(1.0, 1e-5, "replace-one")))
    assert accuracy(fit, x, y) > 0.78


def test_records_with_undeclared_labels_are_counted_apart():
    x, y = classified(3000)
    y[:600] = 7
    fit = fit_glm(Logistic(), x, y, FOUR, spending(Budget(4.0, 1e-5)))
    assert fit.counts.other == pytest.approx(600, abs=6 * fit.counts.noise)
    assert fit.counts.records == pytest.approx(2400, abs=9 * fit.counts.noise)


def test_all_of_the_budget_is_spent_and_no_more():
    x, y = classified(1000)
    for loss in (Logistic(), Squared(), Poisson(), Softmax(2)):
        spent = spending()
        stages: list[tuple[str, int, int]] = []
        spent.progress = lambda *told, stages=stages: stages.append(told)
        fit_glm(loss, x, y, FOUR, spent)
        assert spent.left < 1e-9
        assert stages[:2] == [("counts", 0, 1), ("counts", 1, 1)]
        assert ("gradients", 0, 40) in stages
        assert ("gradients", 40, 40) in stages
        assert spent.ledger.guarantee().within(spent.budget)


def test_tables_that_do_not_fit_their_declaration():
    x, y = classified(10)
    with pytest.raises(InvalidParameter, match=r"X\.shape"):
        fit_glm(Logistic(), x, y, Columns(5), spending())
    with pytest.raises(InvalidParameter, match="y="):
        fit_glm(Logistic(), x, y[:9], FOUR, spending())
    with pytest.raises(InvalidParameter, match="weights="):
        fit_glm(Logistic(), x, y, FOUR, spending(), weights=["a"] * 10)
    with pytest.raises(InvalidParameter, match="target_bounds"):
        fit_glm(Poisson(), x, y, FOUR, spending(), target_bounds=(-1.0, 5.0))
    with pytest.raises(InvalidParameter, match="target_bounds"):
        fit_glm(Squared(), x, y, FOUR, spending(), target_bounds=(0.0, math.nan))


def test_slopes_of_pure_noise_are_not_believed_and_clear_ones_are():
    """200 draws: the believed share of noise is small on average, and that of a signal of five deviations is not."""
    rng = np.random.default_rng(0)
    noise = [share_of_signal(rng.normal(size=20) ** 2, np.ones(20), 1, 1.0).mean() for _ in range(200)]
    signal = [share_of_signal((rng.normal(size=20) + 5) ** 2, np.ones(20), 1, 0.1).mean() for _ in range(200)]
    assert np.mean(noise) < 0.15 < 0.9 < np.mean(signal)
    assert share_of_signal(np.full(3, 25.0), np.array([1e-9, 1.0, 1e9]), 1, 0.1).tolist() == pytest.approx(
        [1, 0.96, 0], abs=0.02
    )


def test_moderation_keeps_the_sign_unless_classes_are_clearly_unequal():
    rng = np.random.default_rng(0)
    unit, variances, spread = np.eye(6)[0], np.full(6, 4.0), np.full(6, 0.2)
    theta = np.array([0.3, *rng.normal(scale=2.0, size=5)])
    start = np.array([0.2, 0, 0, 0, 0, 0])
    modest = shrink_classes(theta, start, unit, 1.0, variances, spread, 0.0)
    assert np.linalg.norm(modest[1:]) < 0.5 * np.linalg.norm(theta[1:])
    assert abs(modest[0]) < 0.3 * abs(theta[0])  # shortened with the slopes
    start[0] = 3.0
    clear = shrink_classes(np.array([3.1, *theta[1:]]), start, unit, 0.1, variances, spread, 0.0)
    assert clear[0] == pytest.approx(3.0, rel=0.05)  # who is sure of the classes keeps the intercept


def test_the_bias_of_clipping_is_where_clipped_residuals_balance():
    """Against a search on the grid; without a clip there is none."""
    assert clipping_bias(1.4, 1.0) == 0
    share = 1 / (1 + np.exp(-1.4))
    scores = np.linspace(0, 8, 400_001)
    chance = 1 / (1 + np.exp(-scores))
    pull = share * np.minimum(1 - chance, 0.3) - (1 - share) * np.minimum(chance, 0.3)
    balanced = scores[np.argmin(abs(pull))]
    assert clipping_bias(1.4, 0.3) == clipping_bias(-1.4, 0.3) == pytest.approx(balanced - 1.4, abs=1e-3)
    assert clipping_bias(2000.0, 0.3) >= 0


def test_what_others_bear_out_is_the_slope_of_their_targets():
    """Least squares on white columns, 40 tables: the mean share against the slope on records that were not seen."""
    rng, shares, slopes = np.random.default_rng(0), [], []
    weights = np.array([0.25, *np.zeros(19)])
    for _ in range(40):
        x, fresh = rng.normal(size=(2, 200, 20))
        found = np.linalg.lstsq(x, x @ weights + rng.normal(size=200), rcond=None)[0]
        shares.append(out_of_sample_share(found, found, np.ones(20), np.ones(20), 200))
        score = fresh @ found
        slopes.append(score @ (fresh @ weights) / (score @ score))
    assert np.mean(shares) == pytest.approx(np.mean(slopes), abs=0.05)
    assert 0.2 < np.mean(shares) < 0.6
    assert (
        out_of_sample_share(found, found / 10, np.ones(20), np.ones(20), 2e6) > 0.99
    )  # with many records nothing is lost
    assert out_of_sample_share(found, found, np.ones(20), np.ones(20), 1e-9) == 0.1  # a ranking stays


def test_where_there_is_nothing_to_learn_probabilities_stay_near_one_half():
    """20 seeded fits of 30 columns without a signal: the last correction must not fit the records' own chance."""
    losses = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, y = np.clip(rng.normal(size=(1500, 30)) / 8 + 0.5, 0, 1), rng.integers(0, 2, 1500)
        fit = fit_glm(Logistic(), x[:500], y[:500], Columns(30), spending(Budget(3.0, 1e-5), seed))
        scores = fit.scores(x[500:])
        losses.append(np.mean(np.logaddexp(0, scores) - y[500:] * scores))
    assert np.mean(losses) < math.log(2) + 0.025


def test_numbers_of_few_records_are_told_by_their_mean():
    """With 20 columns and 60 records at epsilon 1, no slope can be seen: the budget goes to the mean."""
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 20)), np.clip(0.3 + 0.05 * rng.normal(size=60), 0, 1)
    fits = [fit_glm(Squared(), x, y, Columns(20), spending(USUAL, seed)) for seed in range(20)]
    assert sum(not fit.coefficients.any() for fit in fits) >= 15
    assert np.mean([abs(fit.intercept - 0.3) for fit in fits if not fit.coefficients.any()]) < 0.1


def test_a_count_that_may_be_too_large_is_not_relied_on():
    assert ClassCounts(np.array([1000.0]), 0.0, 10.0, noise_of_records=10.0).surely == pytest.approx(0.99)
    assert ClassCounts(np.array([5.0]), 0.0, 10.0, noise_of_records=10.0).surely == 0


def test_bounds_of_a_target_that_are_far_too_wide_are_narrowed_and_others_are_not():
    rng = np.random.default_rng(0)
    x = rng.random((3000, 4))
    y = 100 + 30 * (x[:, 0] - x[:, 1]) + 5 * rng.normal(size=3000)
    fits = {
        wide: fit_glm(Squared(), x, y, FOUR, spending(seed=2), target_bounds=(100 - wide, 100 + wide))
        for wide in (50.0, 1e4)
    }
    left = {wide: np.var(y - fit.scores(x)) / np.var(y) for wide, fit in fits.items()}
    assert left[50.0] < 0.3  # 0.16 is noise
    assert left[1e4] < left[50.0] + 0.05
    histogram = np.zeros(66)
    histogram[[3, 60]] = 1500.0
    assert (
        narrower_bounds(TargetHistogram((0.0, 64.0), histogram, 1.0), 3000.0) is None
    )  # both ends hold records
    assert narrower_bounds(TargetHistogram((0.0, 64.0), np.zeros(66), 1.0), 3000.0) is None
    histogram[60] = 0.0
    assert narrower_bounds(TargetHistogram((0.0, 64.0), histogram, 1.0), 1500.0) == (1.0, 6.0)
