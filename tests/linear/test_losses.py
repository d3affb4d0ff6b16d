"""Losses: residuals are derivatives, bounds are bounds, and bad targets do not count."""

import math

import numpy as np
import pytest

from discreet.errors import InvalidParameter
from discreet.linear.losses import Huber, Logistic, Poisson, SmoothedHinge, Softmax, Squared

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
