"""The exponential mechanism: its law against integration, its privacy against Gaussians, its draws against both."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize

from discreet import Budget, Gaussian, InvalidParameter
from discreet.accounting.gaussian import gaussian_delta
from discreet.core.randomness import RandomStream
from discreet.lecture.erm import private_minimiser
from discreet.lecture.exponential import Gibbs, exponential_choice
from discreet.lecture.risk import EmpiricalRisk, Setting
from discreet.lecture.table import RecordTable
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Squared

BUDGET = Budget(1.0, 1e-5, neighbours="replace-one")
LOSSES = [Logistic(), Huber(0.7), SmoothedHinge(0.5)]
BAD = [float("nan"), float("inf"), -1.0, True, "1"]

exponential_sampling = partial(private_minimiser, method="exponential")


def seeded(seed=0):
    return RandomStream(unsafe_seed=seed, threads=1)


def law_of(loss, X, y, regularisation, temperature, tolerance=1e-9):
    table = RecordTable.of(X, y, "add-remove", len(X))
    setting = Setting(loss, 1.0, len(X), table.dimension, 1.0)
    return Gibbs(EmpiricalRisk(setting, table, regularisation), temperature, tolerance)


def exact_cdf(loss, X, y, regularisation, temperature, points):
    """By integration of exp(-sum / temperature) on a fine grid, in one dimension."""
    grid = np.linspace(-40, 40, 40_001)
    values = loss.value(X @ grid[None], y[:, None]).sum(0) + len(X) * regularisation * grid**2 / 2
    density = np.exp(-(values - values.min()) / temperature)
    return np.interp(points, grid, np.cumsum(density) / density.sum())


def distance(points, cdf):
    """Kolmogorov-Smirnov."""
    return np.abs(cdf - (np.arange(len(points)) + 0.5) / len(points)).max()


class TestTheLaw:
    X = np.array([[1.0], [0.6], [-0.3], [1.0], [0.9]])
    y = np.array([1.0, 0.0, 1.0, 1.0, 1.0])

    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    @pytest.mark.parametrize("tolerance", [1e-9, 1.0])
    def test_is_the_gibbs_law(self, loss, tolerance):
        """Also when the tangent is taken far from the minimiser, where a large tolerance leaves it.

        800 draws; a right sampler exceeds 1.95 / sqrt(800) once in 1000 seeds. Twice the temperature is refused.
        """
        law = law_of(loss, self.X, self.y, 0.1, temperature=0.5, tolerance=tolerance)
        stream = seeded(3)
        points = np.sort([law.draw(1e-9, stream)[0] for _ in range(800)])
        limit = 1.95 / math.sqrt(800)
        assert distance(points, exact_cdf(loss, self.X, self.y, 0.1, 0.5, points)) < limit
        assert distance(points, exact_cdf(loss, self.X, self.y, 0.1, 1.0, points)) > limit

    def test_draws_are_kept_as_often_as_promised(self):
        rng = np.random.default_rng(4)
        X, y = rng.normal(size=(300, 4)), rng.integers(0, 2, 300)
        law = law_of(Logistic(), X, y, 0.01, temperature=3.0)
        spread = math.sqrt(3.0 / (300 * 0.01))
        chances = np.exp(-law._gaps(law._center + spread * rng.normal(size=(8000, 4))) / 3.0)
        kept, error = chances.mean(), chances.std() / math.sqrt(8000)
        assert law.acceptance() <= kept + 5 * error
        assert law.acceptance() >= (1 + 0.25 / (4 * 0.01)) ** -2  # the public worst case
        assert kept < 1.5 * law.acceptance()  # and the bound is not far

    def test_expected_risk_is_within_dimension_over_k(self):
        """E F - min F <= d / k; 300 draws, plus 5 standard errors."""
        rng = np.random.default_rng(5)
        X = rng.normal(size=(200, 3)) / 2
        y = (X[:, 0] > 0).astype(float)
        law, stream = law_of(Logistic(), X, y, 0.05, temperature=2.0), seeded(6)

        def risk(theta):
            rows = law.risk.rows
            return Logistic().value(rows @ theta, y).sum() + 200 * 0.05 * theta @ theta / 2

        excess = (
            np.array([risk(law.draw(1e-9, stream)) for _ in range(300)]) - minimize(risk, np.zeros(3)).fun
        )
        assert 0.1 * 3 * 2.0 < excess.mean() <= 3 * 2.0 + 5 * excess.std() / math.sqrt(300)


PAIRS = [
    ([], [(1.0, 1.0)]),
    ([(1.0, 0.0)] * 3, [(1.0, 0.0)] * 3 + [(1.0, 1.0)]),
    ([(0.5, 1.0)], [(0.5, 1.0), (-1.0, 1.0)]),
    ([], [(1.0, 1e3)]),
]


class TestPrivacy:
    def largest_ratio(self, loss, temperature, convexity, strength):
        """Exact hockey-stick between neighbouring Gibbs laws over that of two normals, by integration."""
        grid, largest = np.linspace(-60, 60, 60_001) * math.sqrt(temperature / convexity), 0.0
        for pair in PAIRS:
            if not all(loss.accepts(y) for table in pair for _, y in table):
                continue
            laws = []
            for table in pair:
                values = convexity * grid**2 / 2
                for x, y in table:
                    values = values + loss.value(x * grid, np.full_like(grid, y))
                density = np.exp(-(values - values.min()) / temperature)
                laws.append(density / density.sum())
            for p, q in (laws, laws[::-1]):
                for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0):
                    exact = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
                    if exact > 1e-9:
                        largest = max(largest, exact / gaussian_delta(epsilon, strength))
        return largest

    @pytest.mark.parametrize("loss", LOSSES, ids=repr)
    @pytest.mark.parametrize(("temperature", "convexity"), [(1.0, 1.0), (3.0, 0.5), (2.0, 20.0)])
    def test_is_as_private_as_a_gaussian(self, loss, temperature, convexity):
        """Gopi, Lee, Liu: strength = (slope / temperature) / sqrt(convexity / temperature)."""
        strength = loss.lipschitz / math.sqrt(temperature * convexity)
        assert self.largest_ratio(loss, temperature, convexity, strength) <= 1 + 1e-4

    def test_and_no_more_private(self):
        """The far target of a Huber loss shifts a normal law by exactly that much; less is refused."""
        strength = 0.7 / math.sqrt(2.0 * 20.0)
        assert self.largest_ratio(Huber(0.7), 2.0, 20.0, strength) > 0.99
        assert self.largest_ratio(Huber(0.7), 2.0, 20.0, 0.97 * strength) > 1

    def test_the_release_has_the_strength_it_is_charged_for(self):
        """temperature * convexity = (L * noise multiplier)^2, here from a law whose draws show it.

        With rows of zeros the law is normal of variance temperature / convexity = (L z / (n regularisation))^2;
        200 draws of 4 columns, 5 standard errors.
        """
        X, y = np.zeros((50, 4)), np.zeros(50)
        fits = [
            exponential_sampling(Logistic(), X, y, BUDGET, regularisation=0.2, stream=seeded(k))
            for k in range(200)
        ]
        assert isinstance(fits[0].event, Gaussian)
        spread = fits[0].event.noise_multiplier / (50 * 0.2)
        assert abs(np.std([fit.value for fit in fits]) / spread - 1) < 5 / math.sqrt(2 * 800)
        assert fits[0].guarantee.within(BUDGET)

    def test_huge_values_do_not_stop_the_draws(self):
        X = np.array([[1e300, 1.0], [1.0, math.nan], [1.0, 2.0]])
        for loss, y in ((Huber(1.0), [1e300, 0.0, -1e300]), (Logistic(), [1.0, 0.0, 5.0])):
            fit = exponential_sampling(loss, X, np.array(y), Budget(1.0, 1e-5), records=3, stream=seeded())
            assert np.isfinite(fit.value).all()

    def test_too_little_regularisation(self):
        with pytest.raises(InvalidParameter, match="regularisation"):
            exponential_sampling(Logistic(), np.ones((5, 1)), np.ones(5), BUDGET, regularisation=1e-9)

    def test_needs_a_delta(self):
        with pytest.raises(InvalidParameter, match="delta"):
            exponential_sampling(Logistic(), np.ones((5, 1)), np.ones(5), Budget(1.0, 0.0, "replace-one"))


def shares(loss, X, y, candidates, rate, bound):
    totals = np.array([np.clip(loss.value(X @ point, y), 0, bound).sum() for point in candidates])
    weights = np.exp(-rate * (totals - totals.min()))
    return weights / weights.sum()


class TestChoice:
    CANDIDATES = np.array([[-2.0], [-0.5], [0.0], [0.5], [2.0]])

    @pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
    def test_follows_the_exponential_law(self, neighbours):
        """800 draws over 5 candidates: chi-square with 4 degrees below 23.5 (false alarm 1e-4)."""
        X, y = np.array([[1.0], [0.5], [-1.0]]), np.array([1.0, 0.0, 0.0])
        budget, stream = Budget(1.5, 0.0, neighbours), seeded(7)
        records = 3 if neighbours == "add-remove" else None
        found = np.zeros(5)
        for _ in range(800):
            choice = exponential_choice(
                Logistic(), X, y, self.CANDIDATES, budget, loss_bound=1.2, records=records, stream=stream
            )
            found[choice.index] += 1
            assert choice.value == self.CANDIDATES[choice.index]
        units = 2 if neighbours == "replace-one" else 1

        def surprise(rate):
            expected = 800 * shares(Logistic(), X, y, self.CANDIDATES, rate, 1.2)
            return ((found - expected) ** 2 / expected).sum()

        assert surprise(1.5 / 1.2 / units) < 23.5
        assert surprise(1.5 / 1.2 / (3 - units)) > 23.5
        assert choice.guarantee.within(budget)
        assert choice.guarantee.delta == 0

    @pytest.mark.parametrize("loss", [Logistic(), Squared(), Poisson()], ids=repr)
    def test_is_private_by_brute_force(self, loss):
        """Largest log ratio of probabilities over random neighbours: within epsilon, and not with twice the rate."""
        rng, epsilon, bound = np.random.default_rng(8), 0.8, 0.9
        largest = {1: 0.0, 2: 0.0}
        for _ in range(300):
            X, y = rng.normal(size=(4, 1)) * 3, rng.integers(0, 2, 4).astype(float)
            for units, other in ((1, slice(0, 3)), (2, slice(1, 4))):
                one = shares(loss, X[:4] if units == 1 else X[:3], y[:4] if units == 1 else y[:3],
                             self.CANDIDATES, epsilon / bound / units, bound)  # fmt: skip
                two = shares(loss, X[other], y[other], self.CANDIDATES, epsilon / bound / units, bound)
                largest[units] = max(largest[units], np.abs(np.log(one / two)).max())
        assert 0.5 * epsilon < largest[1] <= epsilon
        assert 0.4 * epsilon < largest[2] <= epsilon

    def test_bad_records_count_as_nothing(self):
        X = np.array([[math.nan], [math.inf], [1e300], [1.0]])
        choice = exponential_choice(
            Squared(), X, np.array([1.0, 1.0, 1e300, math.nan]), self.CANDIDATES, Budget(1.0, 0.0),
            loss_bound=1.0, records=4,
        )  # fmt: skip
        assert 0 <= choice.index < 5

    @pytest.mark.parametrize("value", [*BAD, 0.0, None])
    def test_bad_input(self, value):
        X, y = np.ones((3, 1)), np.ones(3)
        with pytest.raises(InvalidParameter, match="loss_bound"):
            exponential_choice(Logistic(), X, y, self.CANDIDATES, BUDGET, loss_bound=value)
        with pytest.raises(InvalidParameter, match="budget"):
            exponential_choice(Logistic(), X, y, self.CANDIDATES, value, loss_bound=1.0)
        for candidates in ([], [[math.nan]], [[1.0, 2.0]], [1.0]):
            with pytest.raises(InvalidParameter, match="candidates"):
                exponential_choice(Logistic(), X, y, candidates, BUDGET, loss_bound=1.0)
        with pytest.raises(InvalidParameter, match="loss"):
            exponential_choice(value, X, y, self.CANDIDATES, BUDGET, loss_bound=1.0)
