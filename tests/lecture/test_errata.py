"""Errata and claims of the notes that the lecture page states: each with a computation that shows it."""

import math

import numpy as np
import pytest

import discreet as dp
from discreet.audit import OneStep, audit
from discreet.core import clip_rows
from discreet.lecture import Span
from discreet.lecture.composition import strong_composition
from discreet.lecture.gradient_sum import Clip, GradientSum
from discreet.lecture.sgd_notes import sgd1_claimed_round
from discreet.lecture.table import RecordTable
from discreet.linear.losses import Huber, Logistic, Poisson, Squared

RECORDS, NOISE = 100, 0.08
LAST_TARGETS = (-50.0, 50.0)
CLAIM = dp.account(dp.Gaussian(RECORDS * NOISE), neighbours="replace-one")


def clip_as_printed(x, beta):
    """Lecture 4's min{x / |x|, beta x}, read coordinate by coordinate: the only reading that is defined."""
    return np.minimum(x / np.linalg.norm(x), beta * x)


def test_clipping_as_printed_bounds_nothing():
    far = np.array([-3.0, -4.0])
    assert np.linalg.norm(clip_as_printed(far, 1.0)) == pytest.approx(5.0)
    assert np.linalg.norm(clip_as_printed(1000 * far, 1.0)) == pytest.approx(5000.0)
    for x in (far, -far, 1000 * far, 0.1 * far, 0 * far):
        (clipped,) = clip_rows(x[None], 1.0)
        np.testing.assert_allclose(clipped, x * min(1.0, 1.0 / max(np.linalg.norm(x), 1e-300)))
        assert np.linalg.norm(clipped) <= 1 + 1e-15


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_clipped_to_zero(bad):
    assert clip_rows(np.array([[bad, 1.0]]), 1.0).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(("records", "delta"), [(100, 1e-7), (1000, 1e-10)])
def test_the_delta_of_equation_6_exceeds_the_claimed_delta(records, delta):
    step = sgd1_claimed_round(0.9, delta, records)
    composed = 2 * step.epsilon / records, step.delta / records, records**2
    assert strong_composition(*composed, extra_delta=delta ** (1 / 3)).delta > 1000 * delta
    assert strong_composition(*composed, extra_delta=delta / 2).delta < delta


def profile(p, q, epsilon):
    """The hockey-stick divergence of two finite distributions: the delta that epsilon needs."""
    return np.maximum(p - math.exp(epsilon) * q, 0).sum()


def test_post_processing_loses_no_privacy():
    """For random mechanisms with 8 outcomes and random maps of them to 5, at every epsilon."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        p, q = rng.dirichlet(np.full(8, 0.4), 2)
        channel = rng.dirichlet(np.full(5, 0.4), 8)
        for epsilon in (0.0, 0.3, 1.0, 2.5):
            assert profile(p @ channel, q @ channel, epsilon) <= profile(p, q, epsilon) + 1e-15


def test_a_map_that_reads_the_data_again_is_not_post_processing():
    """The broken twin: the two data sets use two maps, and the proof of post-processing fails."""
    p = q = np.array([0.5, 0.5])
    one, other = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    assert profile(p @ one, q @ other, 1.0) > profile(p, q, 1.0)


@pytest.mark.parametrize(
    "loss", [Logistic(), Squared(), Huber(0.7), Poisson()], ids=lambda one: type(one).__name__
)
def test_claim_1_4_a_gradient_is_a_multiple_of_its_row(loss):
    """The gradient by central differences against the derivative in the score, times the row."""
    rng = np.random.default_rng(2)
    row, theta, target, step = rng.normal(size=4), rng.normal(size=4) / 2, np.array([1.0]), 1e-6

    def value(point):
        return float(loss.value(np.array([row @ point]), target)[0])

    gradient = [(value(theta + step * e) - value(theta - step * e)) / (2 * step) for e in np.eye(4)]
    slope = float(loss.residual(np.array([row @ theta]), target)[0])
    np.testing.assert_allclose(gradient, slope * row, atol=1e-7)


def test_claim_4_4_the_projector_keeps_the_components_in_the_span():
    rng = np.random.default_rng(3)
    directions = np.linalg.qr(rng.normal(size=(6, 6)))[0].T
    rows = rng.normal(size=(20, 2)) @ directions[:2]  # the second moment has two eigenvalues that are not 0
    components = rng.normal(size=6)
    projected = Span.of(rows).projector @ (components @ directions)
    np.testing.assert_allclose(directions @ projected, [*components[:2], 0, 0, 0, 0], atol=1e-12)


def algorithm_1(targets, clip_norm, rng, steps=2):
    """Algorithm 1 for the squared loss of rows (1): the average of the iterates, with noise on the mean gradient."""
    theta, iterates = 0.0, []
    for _ in range(steps):
        iterates.append(theta)
        gradients = np.clip(2 * (theta - targets), -clip_norm, clip_norm)
        theta -= gradients.mean() + NOISE * rng.normal()
    return np.mean(iterates)


def audited(clip_norm):
    rng = np.random.default_rng(4)

    def release(world, draws):
        targets = np.append(np.zeros(RECORDS - 1), LAST_TARGETS[world])
        return [algorithm_1(targets, clip_norm, rng) for _ in range(draws)]

    return audit(release, CLAIM, OneStep(draws=4_000), delta=1e-5)


def test_exercise_2_1_an_audit_contradicts_algorithm_1_without_clipping():
    assert audited(math.inf).contradicts(CLAIM.guarantee(1e-5))


def test_exercise_2_1_the_clipped_algorithm_withstands_the_same_audit():
    result = audited(1.0)
    assert not result.contradicts(CLAIM.guarantee(1e-5))
    assert result.tightness > 0.5  # the audit would see a leak


def test_exercise_2_1_the_library_bounds_the_last_target():
    """Between the two tables the clipped sum of gradients moves by at most 2 C, whatever the target is."""

    def clipped_sum(target):
        targets = np.append(np.zeros(RECORDS - 1), target)
        table = RecordTable.of(np.ones((RECORDS, 1)), targets, "replace-one")
        return float(GradientSum(Squared(), table, Clip(1.0)).at(np.zeros(1)).value[0])

    assert clipped_sum(-1e6) - clipped_sum(1e6) == pytest.approx(2.0)
