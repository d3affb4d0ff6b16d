"""Output and objective perturbation: sensitivities by brute force, privacy losses by integration."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import ndtr

from discreet import ApproximateDP, Budget, BudgetExceeded, Gaussian, InvalidParameter, Laplace
from discreet.accounting.gaussian import gaussian_delta, gaussian_mu
from discreet.core.randomness import RandomStream
from discreet.lecture.erm import METHODS, private_minimiser
from discreet.lecture.perturbation import ObjectiveNoise
from discreet.lecture.risk import EmpiricalRisk, Setting
from discreet.lecture.table import RecordTable
from discreet.ledger import FixedPlan, Ledger
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared

BUDGET = Budget(1.0, 1e-5, neighbours="replace-one")
LOSSES = [Logistic(), Huber(0.7), SmoothedHinge(0.5)]
BAD = [float("nan"), float("inf"), -1.0, True, "1"]

output_perturbation = partial(private_minimiser, method="output-perturbation")
objective_perturbation = partial(private_minimiser, method="objective-perturbation")


def seeded(seed=0):
    return RandomStream(unsafe_seed=seed, threads=1)


def risk_of(loss, X, y, regularisation, row_bound=1.0, records=None):
    table = RecordTable.of(X, y, "add-remove", records or len(X))
    setting = Setting(loss, row_bound, table.records, table.dimension, 1.0)
    return EmpiricalRisk(setting, table, regularisation), setting


def minimiser(loss, X, y, regularisation, records):
    risk, setting = risk_of(loss, X, y, regularisation, records=records)
    return risk.minimiser(np.zeros(X.shape[1]), setting.tolerance(regularisation))


class TestMinimiser:
    def nasty(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(200, 4))
        yield X, X[:, 0] > 0, "separable"
        yield np.column_stack([X[:, 0], X[:, 0], 1e-8 * X[:, 1], np.zeros(200)]), X[:, 0] > 0, "singular"
        yield np.where(rng.random((200, 4)) < 0.5, 1e300, X), rng.random(200) < 0.01, "huge"
        yield X * 1e-12, np.ones(200), "tiny and one class"
        yield X, np.where(rng.random(200) < 0.5, 1e300, -3.0), "huge targets"

    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    @pytest.mark.parametrize("regularisation", [2e-8, 1e-6, 1e-2, 10.0])
    def test_reaches_its_tolerance(self, loss, regularisation):
        for X, y, label in self.nasty():
            risk, setting = risk_of(loss, X, y, regularisation)
            tilt = 3 * np.random.default_rng(1).normal(size=4)
            tolerance = setting.tolerance(regularisation)
            theta = risk.minimiser(tilt, tolerance)
            assert np.linalg.norm(risk.gradient(theta) + tilt) <= tolerance / 2, label
            if isinstance(loss, Huber):  # whose gradient is easy to have in more digits
                rows, exact = risk.rows.astype(np.longdouble), theta.astype(np.longdouble)
                residual = np.clip(rows @ exact - risk.targets, -loss.threshold, loss.threshold)
                slope = rows.T @ residual + risk.convexity * exact + tilt
                assert float(np.sqrt(slope @ slope)) <= tolerance, label

    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    def test_agrees_with_scipy(self, loss):
        rng = np.random.default_rng(2)
        X = rng.normal(size=(300, 3)) / 3
        y = (X[:, 0] + 0.3 * rng.normal(size=300) > 0).astype(float)
        X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
        ours = minimiser(loss, X, y, 0.02, 300)
        theirs = minimize(lambda t: loss.value(X @ t, y).mean() + 0.01 * t @ t, np.zeros(3), tol=1e-12)
        np.testing.assert_allclose(ours, theirs.x, atol=1e-5)


class TestOutputPerturbation:
    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    def test_sensitivity_by_brute_force(self, loss):
        """No record moves the minimiser by more than L / (n regularisation); a lonely one almost does."""
        rng = np.random.default_rng(3)
        limit = loss.lipschitz / (40 * 0.05)
        farthest = 0.0
        for trial in range(60):
            n = trial % 30
            X, y = rng.normal(size=(n, 2)) * 2, rng.integers(0, 2, n)
            extra, target = rng.normal(size=(1, 2)) * 5, 1e9 if isinstance(loss, Huber) else trial % 2
            with_it = minimiser(loss, np.concatenate([X, extra]), np.append(y, target), 0.05, 40)
            farthest = max(farthest, np.linalg.norm(with_it - minimiser(loss, X, y, 0.05, 40)))
        assert farthest <= limit
        assert farthest > (0.99 if isinstance(loss, Huber) else 0.3) * limit

    def test_noise_of_the_check_value(self):
        """n = 1000, regularisation 0.01, L = 1: sensitivity 0.2, noise 0.7461263 at (1, 1e-5).

        6000 draws on rows of zeros: within 4.6 % of it (5 standard errors); 6 % less would be refused.
        """
        fits = [
            output_perturbation(
                Logistic(),
                np.zeros((1000, 200)),
                np.zeros(1000),
                BUDGET,
                regularisation=0.01,
                stream=seeded(k),
            )
            for k in range(30)
        ]
        assert fits[0].event.noise_multiplier == pytest.approx(2 / gaussian_mu(1.0, 1e-5))
        measured = np.std([fit.value for fit in fits])
        assert abs(measured / 0.7461263 - 1) < 0.046
        assert not abs(measured / (0.7461263 * 0.9) - 1) < 0.046

    def test_pure_budgets_get_laplace_noise(self):
        pure = Budget(1.0, 0.0, neighbours="replace-one")
        fit = output_perturbation(Logistic(), np.zeros((100, 4)), np.zeros(100), pure, regularisation=0.1)
        assert isinstance(fit.event, Laplace)
        assert fit.guarantee.delta == 0
        assert fit.guarantee.within(pure)

    def test_pure_noise_covers_the_l1_norm(self):
        """4 columns: scale = 2 sqrt(4) L / (n regularisation epsilon) = 0.4; 1200 draws, 5 standard errors."""
        pure = Budget(1.0, 0.0, neighbours="replace-one")
        draws = [
            output_perturbation(
                Logistic(), np.zeros((100, 4)), np.zeros(100), pure, regularisation=0.1, stream=seeded(k)
            ).value
            for k in range(300)
        ]
        assert abs(np.abs(draws).mean() / 0.4 - 1) < 5 / math.sqrt(1200)

    def test_group_privacy(self):
        budget = Budget(1.0, 1e-5, group_size=3)
        fit = output_perturbation(Logistic(), np.ones((50, 1)), np.ones(50), budget, records=50)
        assert fit.guarantee.within(budget)


def hockey_stick(p, q, epsilon):
    """Integral of (p - e^epsilon q)+ over a grid, for two densities given on it."""
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def masses(loss, records, sigma, convexity, grid):
    """The law of the perturbed minimiser in one dimension: b = -J'(theta) is normal, and J'' is the Jacobian."""

    def slope(theta):
        total = convexity * theta
        for x, y in records:
            total = total + x * loss.residual(x * theta, np.full_like(theta, y))
        return total

    edges = slope(grid) / sigma  # increasing; the mass of a cell is exact: Phi at its ends
    return np.where(edges[1:] < 0, ndtr(edges[1:]) - ndtr(edges[:-1]), ndtr(-edges[:-1]) - ndtr(-edges[1:]))


PAIRS = [  # two neighbouring tables of (x, y): with and without a record, or with one exchanged
    ("add-remove", [], [(1.0, 1.0)]),
    ("add-remove", [(1.0, 0.0)] * 3, [(1.0, 0.0)] * 3 + [(1.0, 1.0)]),
    ("add-remove", [(0.3, 1.0)], [(0.3, 1.0), (-1.0, 1.0)]),
    ("add-remove", [], [(1.0, 1e9)]),
    ("replace-one", [(1.0, 1.0)], [(1.0, 0.0)]),
    ("replace-one", [(1.0, 0.0)] * 2 + [(-1.0, 1.0)], [(1.0, 0.0)] * 2 + [(1.0, 1.0)]),
    ("replace-one", [(1.0, 1e9)], [(-1.0, 1e9)]),
    ("replace-one", [(1.0, 0.5)], [(1.0, 1e9)]),
]


def worst_ratio(loss, noise_multiplier, convexity, determinant=None):
    """The largest exact delta over the bound, over pairs, both orders and a range of epsilons."""
    sigma = noise_multiplier * loss.lipschitz
    grid = np.concatenate([[-1e12], np.linspace(-60, 60, 40_001) * sigma / convexity / 6, [1e12]])
    ratio_of = loss.curvature / convexity
    determinant = math.log1p(ratio_of) if determinant is None else determinant
    largest = 0.0
    for neighbours, first, second in PAIRS:
        bound = ObjectiveNoise(noise_multiplier, determinant, neighbours, loss.one_sided)
        if not all(loss.accepts(y) for _, y in first + second):
            continue
        p, q = (masses(loss, records, sigma, convexity, grid) for records in (first, second))
        for epsilon in (0.3, 0.6, 1.0, 2.0, 4.0):
            for one, other in ((p, q), (q, p)):
                exact = hockey_stick(one, other, epsilon)
                if exact > 1e-9:
                    largest = max(largest, exact / bound.delta(epsilon))
    return largest


class TestObjectiveNoise:
    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    @pytest.mark.parametrize(("noise_multiplier", "convexity"), [(1.0, 0.5), (3.0, 2.0), (6.0, 30.0)])
    def test_bounds_the_exact_privacy_loss(self, loss, noise_multiplier, convexity):
        assert worst_ratio(loss, noise_multiplier, convexity) <= 1

    def test_is_not_far_from_it(self):
        assert worst_ratio(Huber(0.7), 2.0, 500.0) > 0.4  # the far target: a shift by exactly one unit
        assert worst_ratio(Logistic(), 1.0, 50.0) > 0.2

    def test_needs_its_determinant(self):
        """The broken twin: without the ratio of determinants the bound is wrong."""
        assert max(worst_ratio(loss, 6.0, 0.2, determinant=0.0) for loss in LOSSES) > 1

    def test_exchanged_records_may_pull_along_two_directions(self):
        """Corners p, p, q, q with p^2 + q^2 = (2 s)^2 are worst at q = 0, under the condition only."""
        for strength in (0.05, 0.3, 1.0, 3.0):
            epsilon = strength * math.sqrt(1 + strength**2 / 4)
            squares = np.linspace(1e-6, 0.5, 60) * strength**2

            def corners(epsilon, squares=squares, strength=strength):
                return [
                    gaussian_delta(epsilon, math.sqrt(v))
                    + gaussian_delta(epsilon, math.sqrt(strength**2 - v))
                    for v in squares
                ]

            assert max(corners(epsilon)) <= gaussian_delta(epsilon, strength) * (1 + 1e-9)
            assert max(corners(0.1 * epsilon)) > gaussian_delta(0.1 * epsilon, strength)

    def test_two_directions_by_simulation(self):
        """Rows at a right angle, slopes free to choose their worst: 4 10^5 draws, bound + 5 standard errors."""
        rng, noise = np.random.default_rng(4), ObjectiveNoise(3.0, 0.2, "replace-one", one_sided=False)
        b = rng.normal(size=(400_000, 2)) * 3.0
        for epsilon in (0.5, 1.0, 2.0):
            corners = [np.array([i, j]) for i in (-1, 1) for j in (-1, 1)]
            losses = np.max([(g @ g / 2 + b @ g) / 9 for g in corners], axis=0) + 0.2
            share = np.maximum(-np.expm1(epsilon - losses), 0)
            assert share.mean() <= noise.delta(epsilon) + 5 * share.std() / math.sqrt(len(b))

    @pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
    @pytest.mark.parametrize("one_sided", [True, False])
    @pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-6), (1.0, 0.01)])
    def test_the_least_noise_within_a_budget(self, neighbours, one_sided, epsilon, delta):
        noise = ObjectiveNoise.within(Budget(epsilon, delta, neighbours), 0.05 * epsilon, one_sided)
        assert noise.delta(epsilon) <= delta
        less = ObjectiveNoise(noise.noise_multiplier * 0.999, noise.determinant, neighbours, one_sided)
        assert less.delta(epsilon) > delta

    def test_one_sided_losses_need_less(self):
        budget = Budget(1.0, 1e-5)
        ours = ObjectiveNoise.within(budget, 0.01, one_sided=True).noise_multiplier
        known = ObjectiveNoise.within(budget, 0.01, one_sided=False).noise_multiplier
        assert 1.02 < known / ours < 1.06

    def test_no_room_for_the_determinant(self):
        with pytest.raises(InvalidParameter, match="regularisation"):
            ObjectiveNoise.within(BUDGET, math.e - 1, one_sided=True)
        assert ObjectiveNoise(1e6, 1.0, "add-remove", True).delta(1.0) == 1.0


class TestObjectivePerturbation:
    def test_solves_the_tilted_problem(self):
        """In one dimension with one record the release is a known function of the noise: compare the laws.

        500 draws; Kolmogorov-Smirnov below 1.95 / sqrt(500), which a right sampler exceeds once in 1000 seeds.
        """
        X, y, budget = np.ones((1, 1)), np.ones(1), Budget(4.0, 0.1, "replace-one")
        draws = [
            objective_perturbation(Logistic(), X, y, budget, regularisation=2.0, stream=seeded(k)).value[0]
            for k in range(500)
        ]
        noise = ObjectiveNoise.within(budget, 0.25 / 2.0, one_sided=True).noise_multiplier
        points = np.sort(draws)
        law = ndtr((2.0 * points + Logistic().residual(points, np.ones(500))) / noise)
        distance = np.abs(law - (np.arange(500) + 0.5) / 500).max()
        assert distance < 1.95 / math.sqrt(500)
        shifted = ndtr((2.0 * points + Logistic().residual(points, np.ones(500))) / (1.4 * noise))
        assert np.abs(shifted - (np.arange(500) + 0.5) / 500).max() > 1.95 / math.sqrt(500)

    def test_says_what_it_costs(self):
        fit = objective_perturbation(Logistic(), np.ones((50, 1)), np.ones(50), BUDGET)
        assert fit.event == ApproximateDP(1.0 - 1e-10, 1e-5)
        assert fit.guarantee.within(BUDGET)
        assert fit.settings["regularisation"] > 0

    def test_single_records_only(self):
        with pytest.raises(InvalidParameter, match="group_size"):
            objective_perturbation(
                Logistic(), np.ones((5, 1)), np.ones(5), Budget(1.0, 1e-5, group_size=2), records=5
            )

    def test_too_little_regularisation(self):
        with pytest.raises(InvalidParameter, match="regularisation"):
            objective_perturbation(Logistic(), np.ones((5, 1)), np.ones(5), BUDGET, regularisation=1e-6)

    def test_needs_a_delta(self):
        with pytest.raises(InvalidParameter, match="delta"):
            objective_perturbation(Logistic(), np.ones((5, 1)), np.ones(5), Budget(1.0, 0.0, "replace-one"))


@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    def problem(self, n=2000, d=3):
        rng = np.random.default_rng(5)
        X = rng.normal(size=(n, d))
        X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
        return X, (rng.random(n) < 1 / (1 + np.exp(-3 * X[:, 0]))).astype(float)

    @pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
    def test_excess_risk_is_as_predicted(self, method, neighbours):
        """Mean of 6 seeded fits below the bound, as the bound is on the expectation; and it is worth something."""
        X, y = self.problem()
        best = minimize(lambda t: Logistic().value(X @ t, y).mean(), np.zeros(3))
        budget, records = Budget(1.0, 1e-5, neighbours), len(X) if neighbours == "add-remove" else None
        fits = [
            private_minimiser(
                Logistic(), X, y, budget, method=method, norm_guess=float(np.linalg.norm(best.x)),
                records=records, stream=seeded(k),
            )
            for k in range(6)
        ]  # fmt: skip
        excess = np.mean([Logistic().value(X @ fit.value, y).mean() - best.fun for fit in fits])
        assert 0 <= excess <= fits[0].predicted_excess
        assert excess < 0.5 * (math.log(2) - best.fun)
        assert fits[0].guarantee.within(budget)
        assert not fits[0].trusted

    def test_bad_records_count_as_zero(self, method):
        X, y = self.problem(n=300)
        spoiled, zeroed, labels = X.copy(), X.copy(), y.copy()
        spoiled[0], spoiled[1], zeroed[:2] = math.nan, math.inf, 0.0
        labels[2], zeroed[2] = 9.0, 0.0

        def fit(X, y):
            return private_minimiser(Logistic(), X, y, BUDGET, method=method, stream=seeded(1)).value

        np.testing.assert_allclose(fit(spoiled, labels), fit(zeroed, y), rtol=1e-6, atol=1e-9)
        assert np.isfinite(fit(np.full((300, 3), 1e300), y)).all()

    def test_is_charged(self, method):
        X, y = self.problem(n=300)
        event = private_minimiser(Logistic(), X, y, BUDGET, method=method).event
        ledger = Ledger.in_memory(FixedPlan(event, BUDGET))
        private_minimiser(Logistic(), X, y, BUDGET, method=method, ledger=ledger)
        assert ledger.spent().parts() == event.parts()
        with pytest.raises(BudgetExceeded):
            private_minimiser(Logistic(), X, y, BUDGET, method=method, ledger=ledger)

    @pytest.mark.parametrize("loss", [Squared(), Poisson(), Softmax(3), "logistic"], ids=str)
    def test_losses_without_a_theorem_are_refused(self, method, loss):
        with pytest.raises(InvalidParameter, match="loss"):
            private_minimiser(loss, np.ones((5, 1)), np.ones(5), BUDGET, method=method)

    @pytest.mark.parametrize("value", BAD)
    def test_bad_numbers(self, method, value):
        for name in ("regularisation", "row_bound", "norm_guess"):
            with pytest.raises(InvalidParameter, match=name):
                private_minimiser(
                    Logistic(), np.ones((5, 1)), np.ones(5), BUDGET, method=method, **{name: value}
                )
        with pytest.raises(InvalidParameter, match="budget"):
            private_minimiser(Logistic(), np.ones((5, 1)), np.ones(5), value, method=method)
        with pytest.raises(InvalidParameter, match="delta"):
            private_minimiser(
                Logistic(), np.ones((5, 1)), np.ones(5), Budget(1.0, 0.3, "replace-one"), method=method
            )


@pytest.mark.parametrize("method", ["output-perturbation", "objective-perturbation"])
def test_regularisation_below_all_digits_is_refused(method):
    with pytest.raises(InvalidParameter, match="regularisation"):
        private_minimiser(
            Logistic(), np.ones((5, 1)), np.ones(5), BUDGET, method=method, regularisation=1e-13
        )


def test_unknown_methods_are_refused():
    with pytest.raises(InvalidParameter, match="method"):
        private_minimiser(Logistic(), np.ones((5, 1)), np.ones(5), BUDGET, method="newton")
    with pytest.raises(InvalidParameter, match="descent"):
        private_minimiser(
            Logistic(), np.ones((5, 1)), np.ones(5), BUDGET, method="descent", regularisation=1.0
        )


def test_output_noise_is_a_gaussian_event():
    fit = output_perturbation(Logistic(), np.ones((50, 1)), np.ones(50), BUDGET)
    assert isinstance(fit.event, Gaussian)
