"""Losses: residuals are derivatives, bounds are bounds, and bad targets do not count."""

import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from discreet.errors import InvalidParameter, PlanViolation
from discreet.linear import PrivateLinearRegression, residuals
from discreet.linear.kernels.kernel import hardened_clipped_gradient, row_norms
from discreet.linear.losses import Huber, Logistic, Loss, Poisson, SmoothedHinge, Softmax, Squared
from discreet.linear.residuals import checked_loss

SCORES = np.linspace(-6, 6, 241)
ONE_SCORE = [
    (Logistic(), (0, 1)),
    (Squared(), (-1.5, 0, 2.25)),
    (Huber(0.7), (-1.5, 0, 2.25)),
    (Poisson(), (0, 1, 7)),
    (SmoothedHinge(0.3), (0, 1)),
]


def grid(targets):
    return (part.ravel() for part in np.meshgrid(SCORES, np.asarray(targets, float)))


@pytest.mark.parametrize(("loss", "targets"), ONE_SCORE)
def test_the_residual_is_the_derivative_of_the_value(loss, targets):
    (u, y), h = grid(targets), 1e-5
    slopes = (loss.value(u + h, y) - loss.value(u - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.residual(u, y), slopes, atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize(("loss", "targets"), ONE_SCORE)
def test_bounds_hold_and_are_reached(loss, targets):
    u, y = grid(targets)
    residual = loss.residual(u, y).reshape(len(targets), -1)
    if loss.lipschitz is not None:
        assert 0.95 * loss.lipschitz < np.abs(residual).max() <= loss.lipschitz
    steps = np.diff(residual, axis=1) / np.diff(SCORES)
    assert (steps >= -1e-12).all()  # convex
    if loss.curvature is not None:
        assert 0.9 * loss.curvature < steps.max() <= loss.curvature * (1 + 1e-9)


def test_softmax_against_its_own_value_and_against_logistic():
    rng, loss, h = np.random.default_rng(0), Softmax(4), 1e-6
    u, y = rng.normal(size=(50, 4)) * 3, rng.integers(0, 4, 50)
    slopes = np.stack([(loss.value(u + h * e, y) - loss.value(u - h * e, y)) / (2 * h) for e in np.eye(4)], 1)
    np.testing.assert_allclose(loss.residual(u, y), slopes, atol=1e-8)
    assert (np.linalg.norm(loss.residual(100 * u, y), axis=1) <= loss.lipschitz).all()
    two = np.stack([np.zeros(50), u[:, 0]], 1)
    np.testing.assert_allclose(Softmax(2).residual(two, y % 2)[:, 1], Logistic().residual(u[:, 0], y % 2))
    np.testing.assert_allclose(Softmax(2).value(two, y % 2), Logistic().value(u[:, 0], y % 2))


def test_the_curvature_of_softmax_is_the_largest_eigenvalue():
    p = Softmax(2).mean(np.zeros((1, 2)))[0]
    assert np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max() == pytest.approx(Softmax(2).curvature)


@pytest.mark.parametrize(
    ("loss", "bad"),
    [
        (Logistic(), [math.nan, 2, 0.5, -1]),
        (SmoothedHinge(), [math.nan, 2, 0.5, math.inf]),
        (Squared(), [math.nan, math.inf]),
        (Huber(1.0), [math.nan, -math.inf]),
        (Poisson(), [math.nan, -1, math.inf]),
    ],
)
def test_targets_that_nobody_declared_do_not_count(loss, bad):
    with np.errstate(invalid="ignore"):
        assert not loss.accepts(bad).any()
        assert not loss.value(np.ones(len(bad)), bad).any()
        assert not loss.residual(np.ones(len(bad)), bad).any()


def test_classes_that_nobody_declared_do_not_count():
    bad, u = [math.nan, -1, 3, 0.5, math.inf], np.ones((5, 3))
    assert not Softmax(3).residual(u, bad).any()
    assert not Softmax(3).value(u, bad).any()


@pytest.mark.parametrize("loss", [Logistic(), Poisson(), SmoothedHinge(), Squared(), Huber(2.0)])
def test_far_scores_stay_finite(loss):
    far = np.array([-1e4, 1e4])
    for y in (0.0, 1.0):
        assert np.isfinite(loss.value(far, np.full(2, y))).all()
        assert np.isfinite(loss.residual(far, np.full(2, y))).all()


@pytest.mark.parametrize("make", [Huber, SmoothedHinge, Softmax])
@pytest.mark.parametrize("value", [math.nan, -1, 0, "1", math.inf, True])
def test_parameters_are_checked(make, value):
    with pytest.raises(InvalidParameter):
        make(value)


@dataclass(frozen=True)
class Quantile(Loss):
    """Written from outside: the pinball loss, its corner rounded over ``width``."""

    level: float = 0.9
    width: float = 0.5
    kind = "numbers"
    lipschitz = 1.0

    def accepts(self, y):
        return np.isfinite(y)

    def residual(self, u, y):
        return np.clip((u - y) / self.width + 1 - self.level, -self.level, 1 - self.level)

    def value(self, u, y):
        slope = self.residual(u, y)
        return slope * (u - y) - self.width * (slope + self.level - 1) ** 2 / 2

    def mean(self, u):
        return u


@dataclass(frozen=True)
class Foreign(Logistic):
    """The logistic loss without its machine code: the same sums by another way."""

    machine_code = None


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_loss_without_machine_code_gives_the_same_sum(form, dtype):
    rng = np.random.default_rng(0)
    Z, y, theta = form(rng.normal(size=(200, 5)).astype(dtype)), rng.integers(0, 3, 200), rng.normal(size=6)
    found = [
        hardened_clipped_gradient(loss, Z, y, theta, 0.3, row_norms(Z, 0.3), 0.7, 2.0**-30) * 2.0**-30
        for loss in (Logistic(), Foreign())
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4 if dtype == np.float32 else 1e-6)


def test_the_residual_of_a_loss_of_others_is_checked_like_our_own():
    (u, y), h = grid((-1.5, 0, 2.25)), 1e-5
    for loss in (Quantile(), Quantile().in_units(3.0, 2.0)):
        slopes = (loss.value(u + h, y) - loss.value(u - h, y)) / (2 * h)
        np.testing.assert_allclose(loss.residual(u, y), slopes, atol=2e-5)


@pytest.mark.parametrize("level", [0.1, 0.9])
def test_a_loss_of_others_is_the_one_that_is_fitted(level):
    """In 0.1.0 it was replaced by least squares, without a word: half of the targets were below the prediction."""
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 10, (20_000, 2))
    y = x @ [1.0, -0.5] + rng.normal(0, 2, len(x))
    settings = {"epsilon": 2.0, "bounds": (0, 10), "target_bounds": (-20, 20), "unsafe_seed": 0}
    model = PrivateLinearRegression(loss=Quantile(level), **settings).fit(x, y)
    assert abs(np.mean(y < model.predict(x)) - level) < 0.03
    np.testing.assert_allclose(model.coef_, [1.0, -0.5], atol=0.15)
    squared = PrivateLinearRegression(**settings).fit(x, y)
    assert abs(np.mean(y < squared.predict(x)) - 0.5) < 0.03


def test_what_is_not_known_is_refused():
    x, y = np.random.default_rng(0).random((50, 2)), np.arange(50) % 2

    class Mixing(Quantile):
        def residual(self, u, y):
            return super().residual(u - np.mean(u), y)

    class Kindless(Quantile):
        kind = "shapes"

    class Unfinished(Loss):
        kind = "numbers"

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()
    for loss, match in (
        (Mixing(), "its own residual"),
        (Kindless(), "a loss of numbers"),
        (Logistic(), "a loss of numbers"),
        (object(), "loss="),
        ("absolute", "loss="),
    ):
        with pytest.raises(InvalidParameter, match=match):
            PrivateLinearRegression(loss=loss, bounds=(0, 1), target_bounds=(0, 1)).fit(x, y)
    norms = row_norms(x, 1.0)
    for loss, match in ((Kindless(), "a kind"), (object(), "must be a Loss")):
        with pytest.raises(InvalidParameter, match=match):
            hardened_clipped_gradient(loss, x, y, np.zeros(3), 1.0, norms, 1.0, 2.0**-30)


def test_nobody_but_the_losses_asks_for_the_type_of_one():
    """Each place that does is one where a new loss would be taken for another."""
    folder = Path(__file__).parents[2] / "src" / "discreet"
    named = re.compile(r"\b(Logistic|Softmax|Squared|Huber|Poisson|SmoothedHinge)\b")
    for file in folder.rglob("*.py"):
        if file.name == "losses.py":
            continue
        for line in file.read_text().splitlines():
            if "isinstance(" in line or line.strip().startswith("case "):
                assert not named.search(line), (file.name, line)


class OfAUser(Squared):
    """A squared loss without compiled code, of which twins mix records or quote them."""

    machine_code = None
    kind = "numbers"

    def __init__(self, residual=None):
        self._own = residual

    def residual(self, u, y):
        return np.asarray(u - y) if self._own is None else self._own(u, y)


def test_a_loss_of_a_user_is_compared_on_the_records_at_hand():
    u, y = np.linspace(-1, 1, 50), np.linspace(0, 3, 50)
    assert np.array_equal(residuals.residuals(checked_loss(OfAUser()), u, y), u - y)
    late = OfAUser(lambda u, y: u - (y.mean() if len(u) >= 6 else y))  # honest for the made-up records
    with pytest.raises(PlanViolation, match="does not depend on other records"):
        residuals.residuals(checked_loss(late), u, y)
    with pytest.raises(PlanViolation, match="one number for each record"):
        residuals.residuals(OfAUser(lambda u, y: np.zeros(3)), u, y)


def test_a_loss_of_a_user_quotes_no_record():
    def talkative(u, y):
        if (y > 100).any():
            warnings.warn(f"target {y.max()}", stacklevel=1)
            raise ValueError(f"target {y.max()} too big")
        return u - y

    u, y = np.zeros(9), np.arange(9.0)
    y[3] = 12345.0
    with warnings.catch_warnings(record=True) as heard, pytest.raises(PlanViolation) as refused:
        residuals.residuals(checked_loss(OfAUser(talkative)), u, y)
    assert not heard
    assert "12345" not in repr(refused.value)
    assert refused.value.__cause__ is None
