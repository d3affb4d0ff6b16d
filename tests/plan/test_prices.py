"""Prices against closed forms and published check values; bounds on the risk against simulation."""

import math

import numpy as np
import pytest

from discreet.accounting.gaussian import gaussian_epsilon
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.guarantee import Budget
from discreet.plan.prices import Convexity, best_clip_norm, price_of_clip, price_of_steps, risk_bound
from discreet.plan.recipe import Recipe
from discreet.plan.stage import Stage

REPLACE = Budget(1.0, 1e-5, "replace-one")


# n = 1000, clip norm 1, replace-one. basic = (2C/n) T sqrt(2 ln(1.25 T/delta))/epsilon; exact = (2C/n) sqrt(T)/mu*.
# advanced solves T e tanh(e/2) + e sqrt(2 T ln(2/delta)) = epsilon for the epsilon of a step (mpmath).
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "basic", "advanced", "exact"),
    [
        (1.0, 1e-5, 1, 0.00968961, 0.00968961, 0.0074612633),
        (1.0, 1e-5, 10, 0.10597605, 0.10597605, 0.0235945862),
        (1.0, 1e-5, 100, 1.14337183, 0.58836186662, 0.0746126327),
        (0.5, 1e-6, 100, 2.44254453, 1.35142528931, 0.1611523696),
        (0.9, 1e-5, 1000, 13.5696918, 2.19832807178, 0.2597257277),
    ],
)
def test_the_price_of_steps_by_three_accountings(epsilon, delta, steps, basic, advanced, exact):
    (price,) = price_of_steps(1000, Budget(epsilon, delta, "replace-one"), [steps])
    assert price[1:] == pytest.approx((basic, advanced, exact), rel=1e-7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 9.0])
def test_each_price_keeps_the_budget(epsilon):
    """The steps are one Gaussian release; textbook noise would fail at epsilon 9 for a single step."""
    for price in price_of_steps(1000, Budget(epsilon, 1e-5), [1, 2, 7, 1000], clip_norm=3.0):
        for noise in price[1:]:
            assert gaussian_epsilon(1e-5, math.sqrt(price.steps) * 0.003 / noise) <= epsilon * (1 + 1e-10)
        assert price.basic >= price.advanced >= price.exact


def test_neighbours_and_groups_scale_the_price():
    alone, group = (
        price_of_steps(1000, Budget(1.0, 1e-5, group_size=size), [10])[0].exact for size in (1, 5)
    )
    assert group == pytest.approx(5 * alone)
    assert price_of_steps(1000, REPLACE, [10])[0].exact == pytest.approx(2 * alone)


# Replace-one, vectors with E|x|^2 <= 1: best clip and bound s^2/n + c sqrt(d) s^2/(n epsilon), c = epsilon/mu*.
@pytest.mark.parametrize(
    ("budget", "dimension", "clip", "bound"),
    [
        (REPLACE, 10, 10.29351786, 0.001279729308),
        (Budget(0.5, 1e-6, "replace-one"), 100, 3.938688694, 0.008157618481),
    ],
)
def test_the_best_clip_norm(budget, dimension, clip, bound):
    best = best_clip_norm(10_000, dimension, 1.0, budget)
    assert best == pytest.approx(clip, rel=1e-8)
    (price,) = price_of_clip(10_000, dimension, 1.0, budget, [best])
    assert price.total == pytest.approx(bound, rel=1e-8)
    assert price.bias == pytest.approx(price.noise)


def test_the_error_is_u_shaped_in_the_clip_norm():
    best = best_clip_norm(10_000, 10, 2.0, REPLACE)
    totals = [price.total for price in price_of_clip(10_000, 10, 2.0, REPLACE, best * np.logspace(-1, 1, 21))]
    assert np.argmin(totals) == 10
    assert np.all(np.diff(totals[:11]) < 0)
    assert np.all(np.diff(totals[10:]) > 0)


def test_the_bound_on_a_private_mean_holds_for_the_worst_law():
    """x = 2 clip with probability 1/(4 clip^2), else 0. Mean of 4000 runs, with 6 standard errors; seeded."""
    records, clip, generator = 100, 4.0, np.random.default_rng(1)
    (price,) = price_of_clip(records, 1, 1.0, Budget(2.0, 1e-3), [clip])
    hits = generator.binomial(records, 1 / (4 * clip**2), size=4000)
    errors = (
        hits * clip / records + math.sqrt(price.noise) * generator.normal(size=4000) - 1 / (2 * clip)
    ) ** 2
    mean, slack = errors.mean(), 6 * errors.std() / math.sqrt(4000)
    assert mean - slack <= price.total
    assert mean + slack >= 0.5 * price.total
    assert (
        mean - slack > price.sampling + price.noise - price.sampling
    )  # the broken twin: a bound without the bias


# Full batch, replace-one, clip norm 1, T = (n epsilon)^2 steps of exact noise (Song et al. 2021, corrected constant).
@pytest.mark.parametrize(
    ("records", "epsilon", "delta", "rank", "distance", "bound", "step_size"),
    [
        (1000, 1.0, 1e-5, 10, 1.0, 0.0236157679, 4.2344589521e-5),
        (1000, 0.5, 1e-6, 50, 2.0, 0.2279389665, 7.0194228934e-5),
        (10_000, 1.0, 1e-6, 100, 5.0, 0.0422497476, 5.9171951132e-6),
    ],
)
def test_the_rank_bound(records, epsilon, delta, rank, distance, bound, step_size):
    recipe = Recipe(records=records, steps=(records * epsilon) ** 2, sampling="full-batch")
    stage = recipe.calibrate(Budget(epsilon, delta, "replace-one")).stage()
    found = risk_bound(stage, Convexity(distance, rank))
    assert found.excess_risk == pytest.approx(bound, rel=2e-4)
    assert found.step_size == pytest.approx(step_size, rel=2e-4)
    assert "gradients within the clip norm" in found.assumptions


def test_the_strongly_convex_bound():
    """2 G^2 / (strong (T + 1)) with G^2 = 1 + 5 * 10 * 0.06^2 (Lacoste-Julien, Schmidt, Bach 2012)."""
    stage = Stage("descent", "full-batch", 1000, 1000, 100, 1.0, 60 * math.sqrt(10))
    found = risk_bound(stage, Convexity(1e9, 5, strong=0.1))
    assert found.excess_risk == pytest.approx(0.2336633663, rel=1e-9)
    assert "strongly convex (0.1)" in found.assumptions
    near = risk_bound(stage, Convexity(1e-3, 5, strong=0.1))
    assert near == risk_bound(stage, Convexity(1e-3, 5))  # a good start is worth more


def logistic_problem(records=300, dimension=12, rank=3, seed=4):
    """Rows of length 1 in a subspace: every gradient of the logistic loss is within the clip norm 1."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(records, rank)) @ generator.normal(size=(rank, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.where(generator.random(records) < 1 / (1 + np.exp(-3 * rows[:, 0])), 1.0, -1.0)
    return rows, labels


def noisy_descent(rows, labels, stage, step_size, generator):
    """Averaged noisy gradient descent on Poisson batches; returns the average of the iterates before each step."""
    weights, total = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for _ in range(stage.steps):
        total += weights
        batch = generator.random(len(rows)) < stage.rate
        margin = labels[batch] * (rows[batch] @ weights)
        gradient = -(labels[batch] / (1 + np.exp(margin))) @ rows[batch]
        noise = stage.noise_std_of_sum * generator.normal(size=len(weights))
        weights = weights - step_size * (gradient + noise) / stage.divisor
    return total / stage.steps


@pytest.mark.parametrize(("sampling", "batch_size"), [("full-batch", 300), ("poisson", 30)])
def test_simulated_risk_stays_below_the_bound(sampling, batch_size):
    rows, labels = logistic_problem()

    def loss(weights):
        return np.mean(np.log1p(np.exp(-labels * (rows @ weights))))

    best = np.zeros(rows.shape[1])
    for _ in range(3000):
        best = best + 4 * (labels / (1 + np.exp(labels * (rows @ best)))) @ rows / len(rows)
    stage = Stage("descent", sampling, 300, batch_size, 150, 1.0, 30.0 if batch_size == 300 else 5.0)
    bound = risk_bound(stage, Convexity(distance=float(np.linalg.norm(best)), dimension=3))
    risks = [
        loss(noisy_descent(rows, labels, stage, bound.step_size, np.random.default_rng(seed))) - loss(best)
        for seed in range(8)
    ]
    assert 0 <= np.mean(risks) <= bound.excess_risk
    noiseless = stage.clip_norm * np.linalg.norm(best) / math.sqrt(stage.steps)
    assert bound.excess_risk > noiseless  # noise and batches are paid for


def test_a_bound_that_is_not_known_is_refused():
    stage = Stage("descent", "random-allocation", 1000, 100, 100, 1.0, 2.0)
    with pytest.raises(UnsupportedEvent, match="use sampling='poisson'"):
        risk_bound(stage, Convexity(1.0, 10))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, True, "1"])
def test_nonsense_is_refused_by_name(value):
    stage = Stage("descent", "full-batch", 1000, 1000, 100, 1.0, 2.0)
    for name in ("distance", "dimension", "strong"):
        with pytest.raises(InvalidParameter, match=f"{name}="):
            risk_bound(stage, Convexity(**{"distance": 1.0, "dimension": 10, "strong": 0.1} | {name: value}))
    with pytest.raises(InvalidParameter, match="records="):
        price_of_steps(value, REPLACE, [1])
    with pytest.raises(InvalidParameter, match="steps="):
        price_of_steps(1000, REPLACE, [value])
    with pytest.raises(InvalidParameter, match="clip_norm="):
        price_of_steps(1000, REPLACE, [1], clip_norm=value)
    with pytest.raises(InvalidParameter, match="budget="):
        price_of_steps(1000, value, [1])
    with pytest.raises(InvalidParameter, match="second_moment="):
        best_clip_norm(1000, 10, value, REPLACE)
    with pytest.raises(InvalidParameter, match="clip_norms="):
        price_of_clip(1000, 10, 1.0, REPLACE, [value])
