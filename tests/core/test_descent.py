"""Descent as the lectures write it: the loop, the routes to bounded gradients, and the noise."""

import math

import numpy as np
import pytest

from discreet import (
    Budget,
    BudgetExceeded,
    Gaussian,
    InvalidParameter,
    Laplace,
    PlanViolation,
    PoissonSampled,
)
from discreet.accounting.curve import account
from discreet.core.descent import OntoBall, OntoBox, Path, decreasing, descend
from discreet.core.randomness import RandomStream
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.gradient_sum import BoundedData, Clip, Declared, GradientSum
from discreet.lecture.lecture_noise import exact_noise
from discreet.lecture.table import RecordTable
from discreet.ledger import GaussianFilter, Ledger
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared
from discreet.plan.recipe import Recipe

BUDGET = Budget(1.0, 1e-5, neighbours="replace-one")
LOSSES = [Logistic(), Squared(), Huber(0.7), Poisson(), SmoothedHinge(0.4)]
BAD = [float("nan"), float("inf"), -1.0, True, "1", None]


def table_of(X, y):
    return RecordTable.of(X, y, "replace-one")


def seeded(seed=0):
    return RandomStream(unsafe_seed=seed, threads=1)


class TestTheLoop:
    def test_is_the_lectures_algorithm(self):
        """theta_t = project(theta_{t-1} - step * g_t(theta_{t-1})): the noise is inside the step."""
        rng = np.random.default_rng(0)
        noise, matrix = rng.normal(size=(20, 3)), np.diag([1.0, 2.0, 3.0])
        seen = []

        def gradient(theta):
            seen.append(theta.copy())
            return matrix @ theta - 1 + noise[len(seen) - 1]

        path = descend(gradient, np.zeros(3), steps=20, step_size=0.1, project=OntoBox(-0.2, 0.3))
        theta = np.zeros(3)
        for t in range(20):
            np.testing.assert_array_equal(seen[t], theta)
            theta = np.clip(theta - 0.1 * (matrix @ theta - 1 + noise[t]), -0.2, 0.3)
            np.testing.assert_array_equal(path.iterates[t + 1], theta)
        assert path.steps == 20

    def test_averages_by_hand(self):
        path = Path(np.arange(7.0)[:, None] ** 2)  # 0 1 4 9 16 25 36
        assert path.last == 36
        assert path.average("mean") == pytest.approx((0 + 1 + 4 + 9 + 16 + 25) / 6)
        assert path.average("released") == pytest.approx((1 + 4 + 9 + 16 + 25 + 36) / 6)
        assert path.average("tail") == pytest.approx((16 + 25 + 36) / 3)
        assert path.average("weighted") == pytest.approx((0 + 2 + 12 + 36 + 80 + 150) / 21)
        assert path.average("weighted-tail") == pytest.approx((27 + 64 + 125 + 216) / 18)

    @pytest.mark.parametrize("kind", ["last", "mean", "released", "tail", "weighted", "weighted-tail"])
    def test_averages_of_one_step_and_of_matrices(self, kind):
        path = descend(np.ones_like, np.zeros((2, 3)), steps=1, step_size=1.0, average=kind)
        assert path.result.shape == (2, 3)
        assert path.result[0, 0] == (0.0 if kind in ("mean", "weighted") else -1.0)

    def test_schedules(self):
        path = descend(np.ones_like, np.zeros(1), steps=3, step_size=decreasing(6.0, power=1))
        assert path.iterates.ravel().tolist() == [0, -6, -9, -11]

    @pytest.mark.parametrize("onto", [OntoBall(1.5), OntoBall(0.5, center=1.0), OntoBox(-1, 0.5)])
    def test_projections_find_the_nearest_point(self, onto):
        rng = np.random.default_rng(2)
        cloud = [onto(point) for point in rng.normal(size=(400, 3)) * 3]
        for point in rng.normal(size=(50, 3)) * 3:
            nearest = onto(point)
            np.testing.assert_allclose(onto(nearest), nearest, rtol=1e-11)
            distance = np.linalg.norm(point - nearest)
            assert all(distance <= np.linalg.norm(point - other) * (1 + 1e-9) for other in cloud)
        inside = np.full(3, 0.9 if isinstance(onto, OntoBall) and onto.center else 0.4)
        np.testing.assert_array_equal(onto(inside), inside)

    @pytest.mark.parametrize("value", [*BAD, 0.0])
    def test_bad_numbers(self, value):
        for call in (
            lambda: descend(np.ones_like, np.zeros(1), 2, value),
            lambda: descend(np.ones_like, np.zeros(1), 2, lambda t: value),
            lambda: descend(np.ones_like, np.zeros(1), value, 1.0),
            lambda: OntoBall(value),
        ):
            with pytest.raises(InvalidParameter):
                call()
        with pytest.raises(InvalidParameter):
            OntoBox(0.0, value)

    def test_bad_shapes(self):
        with pytest.raises(InvalidParameter, match="gradient"):
            descend(lambda theta: np.ones(2), np.zeros(3), 1, 1.0)
        with pytest.raises(InvalidParameter, match="start"):
            descend(np.ones_like, np.array([math.nan]), 1, 1.0)
        with pytest.raises(InvalidParameter, match="average"):
            descend(np.ones_like, np.zeros(3), 1, 1.0, average="best")

    def test_noise_without_measure_stays_finite(self):
        path = descend(lambda theta: 1e300 * np.ones(2), np.zeros(2), 5, 1e9)
        assert np.isfinite(path.iterates).all()


class TestGradients:
    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    def test_a_gradient_is_a_number_times_the_row(self, loss):
        """Finite differences of the value; and the gradient is parallel to the row (acceptance row 25)."""
        rng = np.random.default_rng(3)
        for target in (0.0, 1.0):
            row, theta = rng.normal(size=4), rng.normal(size=4) * 0.3
            total = GradientSum(loss, table_of(row[None], [target]), Clip(100.0))
            found = total.at(theta).value
            shifts = np.eye(4) * 1e-6
            numeric = [
                (loss.value(row @ (theta + h), target) - loss.value(row @ (theta - h), target)) / 2e-6
                for h in shifts
            ]
            np.testing.assert_allclose(found, numeric, atol=1e-6)
            np.testing.assert_allclose(found * row[0], row * found[0], atol=1e-6)

    def test_softmax_has_a_column_for_each_class(self):
        rng = np.random.default_rng(4)
        X, y, theta = rng.normal(size=(30, 2)), rng.integers(0, 3, 30), rng.normal(size=(2, 3))
        total = GradientSum(Softmax(3), table_of(X, y), Clip(100.0))
        assert total.shape == (2, 3)
        expected = X.T @ Softmax(3).residual(X @ theta, y)
        np.testing.assert_allclose(total.at(theta).value, expected, atol=30 * 100.0 * 2.0**-29)

    @pytest.mark.parametrize(
        ("route", "project"),
        [
            (Clip(0.3), None),
            (Declared(0.3), None),  # a promise that does not hold
            (BoundedData(0.8, target=2.0), OntoBall(1.5)),
        ],
        ids=["clip", "declared", "bounded data"],
    )
    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    def test_no_record_exceeds_its_bound(self, route, project, loss):
        rng = np.random.default_rng(5)
        X = np.concatenate([rng.normal(size=(20, 3)) * 10, np.full((1, 3), 1e300), np.full((1, 3), math.nan)])
        y = np.concatenate([rng.normal(size=15) * 100, np.ones(3), np.zeros(4)])
        theta = rng.normal(size=3)
        theta = theta if project is None else project(theta)
        alone = []
        for row, target in zip(X, y, strict=True):
            total = GradientSum(loss, table_of(row[None], [target]), route, project)
            alone.append(total.at(theta).value)
            assert np.linalg.norm(alone[-1]) <= total.clip_norm
        everybody = GradientSum(loss, table_of(X, y), route, project)
        np.testing.assert_allclose(everybody.at(theta).value, np.sum(alone, axis=0), rtol=1e-9, atol=1e-12)

    def test_bounded_data_cut_nothing_else(self):
        """Within the bounds the sum is that of the plain gradients, and the bound is attained."""
        project, route = OntoBall(2.0), BoundedData(row=1.0, target=3.0)
        rows, targets, theta = np.array([[0.6, 0.8], [1.0, 0.0]]), [-3.0, 1.0], np.array([1.2, 1.6])
        total = GradientSum(Squared(), table_of(rows, targets), route, project)
        assert total.clip_norm == pytest.approx(1.0 * (1.0 * 2.0 + 3.0), rel=1e-9)
        np.testing.assert_allclose(total.at(theta).value, rows.T @ (rows @ theta - targets), rtol=2e-6)
        first = GradientSum(Squared(), table_of(rows[:1], targets[:1]), route, project)
        assert np.linalg.norm(first.at(theta).value) == pytest.approx(total.clip_norm, rel=2e-6)
        counts = GradientSum(Poisson(), table_of(rows, [0, 1]), route, project)
        assert counts.clip_norm == pytest.approx(math.exp(2.0), rel=1e-9)
        assert GradientSum(Logistic(), table_of(rows, [0, 1]), BoundedData(2.0)).clip_norm == pytest.approx(
            2.0
        )

    def test_a_steep_loss_needs_bounded_parameters(self):
        table = table_of([[1.0]], [1.0])
        for route, project, word in (
            (BoundedData(1.0), OntoBall(1.0), "target"),
            (BoundedData(1.0, target=1.0), None, "project"),
            (BoundedData(1.0, target=1.0), OntoBox(-1, 1), "project"),
            (BoundedData(1.0, target=1.0), OntoBall(1.0, center=3.0), "project"),
        ):
            with pytest.raises(InvalidParameter, match=word):
                GradientSum(Squared(), table, route, project)
        with pytest.raises(InvalidParameter, match="row"):
            GradientSum(Poisson(), table, BoundedData(100.0, target=1.0), OntoBall(100.0))

    @pytest.mark.parametrize("value", BAD)
    def test_bad_bounds(self, value):
        for make in (Clip, Declared, BoundedData):
            with pytest.raises(InvalidParameter):
                make(value)
        if value is not None:
            with pytest.raises(InvalidParameter):
                BoundedData(1.0, value)

    def test_wrong_kinds(self):
        table = table_of([[1.0]], [1.0])
        with pytest.raises(InvalidParameter, match="loss"):
            GradientSum("logistic", table, Clip(1.0))
        with pytest.raises(InvalidParameter, match="route"):
            GradientSum(Logistic(), table, 1.0)
        with pytest.raises(InvalidParameter, match="norm"):
            GradientSum(Logistic(), table_of([[1.0, 2.0]], [1.0]), Clip(1.0)).at(np.zeros(2), norm="l1")


class TestPrivateDescent:
    def test_the_noise_is_that_of_the_calibrator(self):
        """Rows of zeros have no gradient, so the path shows the noise alone (acceptance row 2).

        6000 draws: the deviation is within 5 of its standard errors (4.6 %) with a false alarm in 10^6; the same
        check refuses the noise of add-remove neighbours.
        """
        X, steps = np.zeros((1000, 600)), 10
        fit = private_descent(
            Logistic(), X, np.zeros(1000), BUDGET, steps=steps, step_size=0.5, stream=seeded()
        )
        assert fit.noise_std == pytest.approx(exact_noise(BUDGET, 1.0, 1000, steps), rel=3e-4)
        assert fit.noise_std == pytest.approx(0.0235945862, rel=3e-4)
        measured = np.diff(fit.path.iterates, axis=0).std() / 0.5

        def agrees(noise_std):
            return abs(measured / noise_std - 1) < 0.046

        assert agrees(fit.noise_std)
        assert not agrees(exact_noise(Budget(1.0, 1e-5), 1.0, 1000, steps))

    def test_returns_the_average_of_the_lecture(self):
        """Mean of theta_0, ..., theta_{T-1} (acceptance row 26), and any other point of the same path."""
        rng = np.random.default_rng(7)
        X, y = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)

        def fit(average):
            return private_descent(
                Logistic(), X, y, BUDGET, steps=7, step_size=1.0, average=average, stream=seeded(1)
            )

        mean, last = fit("mean"), fit("last")
        np.testing.assert_array_equal(mean.path.iterates, last.path.iterates)
        np.testing.assert_allclose(mean.value, mean.path.iterates[:7].mean(0), rtol=1e-12)
        np.testing.assert_array_equal(last.value, last.path.iterates[7])
        assert not np.allclose(mean.value, mean.path.iterates[1:].mean(0))
        assert mean.guarantee == last.guarantee
        assert mean.guarantee.within(BUDGET)
        assert not mean.trusted

    def test_without_noise_it_is_gradient_descent(self):
        """A budget beyond all use: the path is that of plain descent on the mean loss."""
        rng = np.random.default_rng(8)
        X, y = rng.normal(size=(500, 3)), rng.integers(0, 2, 500)
        plan = Recipe(500, steps=20, sampling="full-batch", clip_norm=5.0).with_noise(
            1e-3, 1e-5, "replace-one"
        )
        fit = private_descent(Logistic(), X, y, plan, step_size=0.7, stream=seeded())
        theta = np.zeros(3)
        for t in range(20):
            np.testing.assert_allclose(fit.path.iterates[t], theta, atol=1e-3)
            theta = theta - 0.7 * X.T @ (1 / (1 + np.exp(-X @ theta)) - y) / 500

    def test_every_route_learns(self):
        rng = np.random.default_rng(9)
        X = rng.normal(size=(20_000, 2))
        y = X @ [0.5, -0.3] + 0.1 * rng.normal(size=20_000)
        for route, project in (
            (Clip(1.0), None),
            (Declared(4.0), None),
            (BoundedData(3.0, target=2.0), OntoBall(1.0)),
        ):
            fit = private_descent(
                Squared(), X, y, BUDGET, steps=40, step_size=0.5, route=route, project=project,
                average="tail", stream=seeded(2),
            )  # fmt: skip
            np.testing.assert_allclose(fit.value, [0.5, -0.3], atol=0.03)
            assert fit.guarantee.within(BUDGET)

    def test_projected(self):
        X = np.ones((100, 2))
        fit = private_descent(
            Logistic(),
            X,
            np.ones(100),
            BUDGET,
            steps=50,
            step_size=5.0,
            project=OntoBall(0.4),
            stream=seeded(),
        )
        assert (np.linalg.norm(fit.path.iterates, axis=1) <= 0.4).all()

    def test_stochastic_by_poisson_sampling(self):
        rng = np.random.default_rng(10)
        X = rng.normal(size=(4000, 2))
        y, budget = X[:, 0] > 0, Budget(1.0, 1e-5)
        fit = private_descent(
            Logistic(), X, y, budget, steps=200, step_size=1.0, batch_size=100, records=4000,
            average="tail", stream=seeded(3),
        )  # fmt: skip
        ((event, count),) = fit.event.parts()
        assert isinstance(event, PoissonSampled)
        assert (event.rate, count) == (0.025, 200)
        assert fit.noise_std == pytest.approx(event.of.noise_multiplier / 100)
        assert account(fit.event).epsilon(1e-5) <= 1.0
        assert np.mean((X @ fit.value > 0) == y) > 0.95

    def test_batches_may_be_empty(self):
        fit = private_descent(
            Logistic(), np.zeros((0, 2)), np.zeros(0), Budget(1.0, 1e-5), steps=20, step_size=0.1,
            batch_size=1, records=1000, stream=seeded(),
        )  # fmt: skip
        assert np.isfinite(fit.path.iterates).all()

    def test_carries_out_a_plan(self):
        plan = Recipe(2000, batch_size=200, steps=30, clip_norm=0.5).calibrate(Budget(2.0, 1e-5))
        X, y = np.ones((1990, 1)), np.ones(1990)  # the number of rows is private and may differ
        fit = private_descent(Logistic(), X, y, plan, step_size=0.1, stream=seeded())
        assert fit.event == plan.event
        assert fit.clip_norm == 0.5
        assert fit.path.steps == 30
        with pytest.raises(PlanViolation, match="route"):
            private_descent(Logistic(), X, y, plan, step_size=0.1, route=Clip(0.6))
        with pytest.raises(InvalidParameter, match="steps"):
            private_descent(Logistic(), X, y, plan, step_size=0.1, steps=30)

    def test_bad_records_count_as_zero(self):
        rng = np.random.default_rng(11)
        X, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60).astype(float)
        spoiled, zeroed = X.copy(), X.copy()
        spoiled[:4] = [[math.nan, 0], [0, math.inf], [-math.inf, math.nan], [math.nan, math.nan]]
        zeroed[:4] = 0
        labels = y.copy()
        labels[4], labels[5], zeroed[4], zeroed[5] = math.nan, 7.0, 0.0, 0.0

        def path(X, y):
            return private_descent(
                Logistic(), X, y, Budget(1.0, 1e-3, "replace-one"), steps=4, step_size=1.0, stream=seeded(5)
            ).path.iterates

        np.testing.assert_allclose(path(spoiled, labels), path(zeroed, y), rtol=1e-9)
        assert np.isfinite(path(np.full((60, 2), 1e300), y)).all()

    def test_is_charged_before_it_is_released(self):
        ledger = Ledger.in_memory(GaussianFilter(BUDGET))
        X, y = np.ones((50, 1)), np.ones(50)

        def fit():
            return private_descent(
                Logistic(), X, y, Budget(0.6, 1e-5, "replace-one"), steps=5, step_size=0.1, ledger=ledger
            )

        assert ledger.spent() is None
        first = fit()
        assert ledger.spent() == first.event
        fit()
        with pytest.raises(BudgetExceeded):
            fit()

    @pytest.mark.parametrize("value", BAD)
    def test_bad_input(self, value):
        X, y = np.ones((5, 1)), np.ones(5)
        good = {"steps": 2, "step_size": 0.1}
        for change in ({"steps": value}, {"step_size": value}, {"noise": value}, {"average": value}):
            with pytest.raises(InvalidParameter):
                private_descent(Logistic(), X, y, BUDGET, **(good | change))
        with pytest.raises(InvalidParameter):
            private_descent(Logistic(), X, y, value, **good)
        with pytest.raises(InvalidParameter):
            private_descent(Logistic(), X, y, Budget(1.0, 1e-5), records=value, **good)

    def test_bad_tables(self):
        good = {"steps": 2, "step_size": 0.1}
        for X, y, word in (
            (np.ones(5), np.ones(5), "X.ndim"),
            (np.ones((5, 0)), np.ones(5), "column"),
            (np.ones((5, 1)), np.ones(4), "one target"),
            (np.ones((5, 1)), np.ones((5, 1)), "y.ndim"),
            ([["a"]], [1.0], "X.dtype"),
            ([[1.0], [1.0, 2.0]], [1.0, 1.0], "X"),
            (np.ones((0, 1)), np.ones(0), "no rows"),
        ):
            with pytest.raises(InvalidParameter, match=word):
                private_descent(Logistic(), X, y, BUDGET, **good)
        with pytest.raises(InvalidParameter, match="is not the number of rows"):
            private_descent(Logistic(), np.ones((5, 1)), np.ones(5), BUDGET, records=6, **good)


class TestLaplace:
    """Acceptance row 11: the scalar case with Laplace noise, noise inside the step."""

    PURE = Budget(2.0, 0.0, neighbours="replace-one")

    def fit(self, X, y, budget=PURE, seed=0, **changes):
        options = {"steps": 8, "step_size": 0.25, "noise": "laplace", "stream": seeded(seed)}
        return private_descent(Logistic(), X, y, budget, **(options | changes))

    def test_is_pure_and_adds_up(self):
        fit = self.fit(np.ones((100, 1)), np.ones(100))
        assert fit.event == Laplace(fit.event.parts()[0][0].scale) * 8
        assert fit.event.parts()[0][0].scale == pytest.approx(2 * 8 / 2.0)  # 2 T / epsilon clip norms
        assert fit.guarantee.delta == 0
        assert fit.guarantee.epsilon.upper == pytest.approx(2.0)
        assert fit.guarantee.within(self.PURE)

    def test_noise_is_laplace_inside_the_step(self):
        """3000 draws on rows of zeros. Mean absolute value b and deviation sqrt(2) b, within 5 standard errors."""
        fit = self.fit(np.zeros((10, 1)), np.zeros(10), steps=3000)
        moves = np.diff(fit.path.iterates.ravel()) / 0.25
        scale = fit.event.parts()[0][0].scale / 10
        assert abs(np.abs(moves).mean() / scale - 1) < 5 / math.sqrt(3000)
        assert abs(moves.std() / (math.sqrt(2) * scale) - 1) < 5 * math.sqrt(5 / 4 / 3000)
        assert fit.noise_std == pytest.approx(math.sqrt(2) * scale)

    def test_delta_buys_less_noise(self):
        pure = self.fit(np.ones((100, 1)), np.ones(100), steps=50)
        loose = self.fit(np.ones((100, 1)), np.ones(100), Budget(2.0, 1e-3, "replace-one"), steps=50)
        assert loose.noise_std < 0.8 * pure.noise_std
        assert loose.guarantee.within(Budget(2.0, 1e-3, "replace-one"))

    def test_is_for_one_coefficient_and_full_batches(self):
        with pytest.raises(InvalidParameter, match="one coefficient"):
            self.fit(np.ones((10, 2)), np.ones(10))
        with pytest.raises(InvalidParameter, match="full batches"):
            self.fit(np.ones((10, 1)), np.ones(10), batch_size=5)

    def test_gaussian_refuses_a_pure_budget(self):
        with pytest.raises(InvalidParameter, match="delta"):
            self.fit(np.ones((10, 1)), np.ones(10), noise="gaussian")


def test_events_are_gaussian_for_full_batches():
    fit = private_descent(Logistic(), np.ones((9, 1)), np.ones(9), BUDGET, steps=3, step_size=1.0)
    ((event, count),) = fit.event.parts()
    assert isinstance(event, Gaussian)
    assert count == 3
    assert fit.trusted
