"""Tables on which curves were far below lines: rare outcomes, many classes, few records, columns that hardly vary.

All fits are seeded, so there are no false alarms. `benchmarks/curves_safety.py` has the same on more tables.
"""

import warnings

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from discreet.linear import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
)
from discreet.linear.additive.bin_edges import bin_edges, choose_knots
from discreet.linear.additive.curves import hat_moments, held_knots
from discreet.linear.diagnosis import DeclarationWarning, undecided
from discreet.linear.glm.steps import LEAST_SLOPE, StepRule, out_of_sample_share, step_effects
from discreet.linear.linear_model import LinearModel

pytestmark = pytest.mark.filterwarnings("ignore::discreet.linear.diagnosis.DeclarationWarning")


def fitted(kind, epsilon, seed, x, y, **declared):
    return kind(epsilon, 1e-5, unsafe_seed=seed, **declared).fit(x, y)


def test_a_rare_outcome_is_not_lost():
    """2.3 % positives that three of ten columns tell: curves had an AUC of .6 where lines have .9."""
    rng = np.random.default_rng(13)
    x = rng.normal(size=(14_000, 10)).clip(-4, 4)
    score = 1.6 * x[:, 0] + 1.2 * x[:, 1] - x[:, 2] + 0.4 * x[:, 3] ** 2 - 6.3
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-score))).astype(int)
    declared = {"bounds": (-4, 4), "classes": [0, 1]}
    for seed in range(1):
        models = [
            fitted(kind, 0.5, seed, x[:10_000], y[:10_000], **declared)
            for kind in (PrivateLogisticRegression, PrivateAdditiveClassifier)
        ]
        line, curves = (roc_auc_score(y[10_000:], model.decision_function(x[10_000:])) for model in models)
        assert line > 0.85
        assert curves > line - 0.02


def flags_as_numbers(records):
    """Eight columns, of which five are flags or one-hots given as numbers, and one never changes."""
    rng = np.random.default_rng(11)
    plain = rng.uniform(0, 1, (records, 2))
    flags = rng.random(records) < 0.01
    hots = np.eye(4)[rng.choice(4, records, p=[0.6, 0.3, 0.0995, 0.0005])]
    x = np.column_stack([plain, flags, hots, np.full(records, 0.5)])
    score = 3 * plain[:, 0] + 6 * (plain[:, 1] - 0.5) ** 2 + flags + hots @ [0, 0.5, -0.5, 1.0]
    return x, np.clip((score + rng.normal(0, 0.5, records) + 2) / 8, 0, 1)


def test_flags_given_as_numbers_do_not_shift_predictions():
    """Curves had an R2 below 0, and predictions shifted by up to half of the bounds."""
    x, y = flags_as_numbers(8000)
    for epsilon in (0.5, 2.0):
        for seed in range(3):
            curves = fitted(
                PrivateAdditiveRegressor,
                epsilon,
                seed,
                x[:4000],
                y[:4000],
                bounds=(0, 1),
                target_bounds=(0, 1),
            )
            line = fitted(
                PrivateLinearRegression,
                epsilon,
                seed,
                x[:4000],
                y[:4000],
                bounds=(0, 1),
                target_bounds=(0, 1),
            )
            assert curves.score(x[4000:], y[4000:]) > line.score(x[4000:], y[4000:]) - 0.02
            assert abs(curves.predict(x[4000:]).mean() - y.mean()) < 0.02


def test_many_classes_of_whole_numbers_are_not_lost():
    """26 classes at a large epsilon: what noise explains was overestimated a hundredfold, so curves were lines."""
    rng = np.random.default_rng(15)
    y = rng.integers(26, size=9000)
    centres = rng.normal(7.5, 1.5, (26, 1, 16)) + rng.normal(0, 2.5, (26, 3, 16))
    x = np.rint(centres[y, rng.integers(3, size=len(y))] + rng.normal(0, 1.5, (len(y), 16))).clip(0, 15)
    declared = {"bounds": (0, 15), "classes": list(range(26))}
    curves = fitted(PrivateAdditiveClassifier, 8.0, 0, x[:7000], y[:7000], **declared)
    line = fitted(PrivateLogisticRegression, 8.0, 0, x[:7000], y[:7000], **declared)
    assert curves.score(x[7000:], y[7000:]) > line.score(x[7000:], y[7000:])


def test_with_few_records_curves_are_the_linear_fit():
    """The same releases with the same noise, so the same model."""
    rng = np.random.default_rng(3)
    x = rng.normal(0, 0.3, (600, 8)).clip(-20, 20)  # bounds that are far too wide: lines look again
    y = np.clip(x @ np.ones(8) / 4 + rng.normal(0, 0.2, 600), -2, 2)
    declared = {"bounds": (-20, 20), "target_bounds": (-2, 2)}
    curves = fitted(PrivateAdditiveRegressor, 2.0, 0, x, y, **declared)
    line = fitted(PrivateLinearRegression, 2.0, 0, x, y, **declared)
    assert curves.chosen_.startswith("lines: there are too few records")
    assert curves.predict(x) == pytest.approx(line.predict(x), abs=1e-5)
    assert curves.curves_["x0"].share is not None  # the report still shows where records are


def test_a_flag_has_two_knots_and_whole_numbers_have_one_each():
    edges = bin_edges(None)
    flag = np.zeros(len(edges) - 1)
    flag[0], flag[-1] = 900, 100
    assert choose_knots(flag, edges, 8, (0.0, 1.0)).tolist() == [0.0, 1.0]
    whole = np.zeros(len(edges) - 1)
    places = [int(np.searchsorted(edges, value, "right") - 1) for value in (0.0, 0.3, 0.6, 0.9)]
    whole[places] = 250
    knots = choose_knots(whole, edges, 8, (0.0, 0.95))
    middles = [(edges[place] + edges[place + 1]) / 2 for place in places[1:]]
    assert set(np.round(middles, 9)) <= set(np.round(knots, 9))
    assert len(knots) <= 8
    amounts = np.full(len(edges) - 1, 10.0)
    amounts[0] = 5000  # a spike with neighbours keeps both ends
    assert choose_knots(amounts, edges, 8, (0.0, 1.0))[:2].tolist() == [0.0, float(edges[1])]


def test_records_at_a_landmark_are_at_it():
    """Spread over the narrowest bin, half of them would count for the second knot."""
    edges = bin_edges(None)
    counts = np.full(len(edges) - 1, 10.0)
    counts[0] = 5000
    means, _ = hat_moments(counts, edges, np.array([0.0, edges[1], 0.5, 1.0]))
    assert means[0] == pytest.approx(5000 / counts.sum(), abs=1e-3)


def test_an_end_that_nobody_is_near_moves_inward():
    edges = np.arange(65) / 64
    counts = np.where(edges[:-1] < 0.25, 100.0, 0.0)
    knots = held_knots(np.array([0.0, 0.1, 0.24, 1.0]), counts, edges)
    assert knots[0] == 0.0
    assert 0.24 < knots[-1] < 0.9
    assert hat_moments(counts, edges, knots)[0][-1] >= 1e-3
    mirrored = held_knots(1 - knots[::-1], counts[::-1], edges)
    assert mirrored == pytest.approx(1 - knots[::-1])
    assert len(held_knots(np.array([0.0, 0.02, 1.0]), np.eye(64)[0], edges)) == 2


def test_steps_that_the_curvature_does_not_fit_grow_and_those_of_a_descent_do_not():
    """The broken twin: a softmax of 26 classes with the curvature .15 instead of .023 of its steps of 14.7."""
    rule = StepRule(1.0, 0.0, 14.7)
    assert np.abs(step_effects(rule, 40, 0.023)).max() < 20
    assert np.abs(step_effects(rule, 40, 0.15)).max() > 100


def test_chance_leaves_the_order_of_scores():
    slopes = np.array([0.0, 0.01, -0.02])
    assert out_of_sample_share(slopes, slopes, np.ones(3), np.ones(3), records=10.0) == LEAST_SLOPE
    assert out_of_sample_share(slopes, slopes, np.ones(3), np.ones(3), records=1e6) > 0.99


def test_a_model_that_chance_could_explain_says_so():
    limits = np.zeros(2), np.ones(2)
    assert "all scores are the same" in undecided(LinearModel(np.zeros(2), np.zeros(()), 1.0, limits))
    assert undecided(LinearModel(np.ones(2), np.zeros(()), 1.0, limits)) == ""
    assert "chance" in undecided(LinearModel(np.ones(2), np.zeros(()), 1.0, limits, borne_out=LEAST_SLOPE))


@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateAdditiveClassifier])
def test_columns_that_say_nothing_are_told_and_others_are_not(kind):
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 1, (4000, 6))
    told = []
    for score in (np.zeros(4000), 3 * x[:, 0] - 3 * x[:, 1]):
        y = (rng.random(4000) < 1 / (1 + np.exp(2 - score))).astype(int)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            model = fitted(kind, 0.5, 1, x, y, bounds=(0, 1), classes=[0, 1])
        assert np.ptp(model.decision_function(x)) > 0
        warned = any("chance" in str(one.message) for one in heard if one.category is DeclarationWarning)
        assert warned == ("chance" in model.diagnosis_.scores) == ("chance" in str(model.diagnosis_))
        told.append(warned)
    assert told == [True, False]
