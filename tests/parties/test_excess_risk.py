"""Excess-risk bounds: the check values, and a run that must stay below them."""

import math

import numpy as np
import pytest

from discreet.errors import InvalidParameter
from discreet.parties.arrangement import Arrangement
from discreet.parties.excess_risk import (
    average_excess,
    is_vacuous,
    last_excess,
    predict_excess,
    second_moment,
    strongly_convex_last_excess,
    strongly_convex_weighted_excess,
)
from discreet.parties.notes import convex_step_size, sgd1_noise_std, weighted_step_size

# records, epsilon, delta, dimension, diameter; convex and strongly convex (0.1) bound of SGD1
SGD1 = [
    (10, 0.5, 1e-4, 5, 1, 3317.5533, 6009599.6),
    (100, 0.5, 1e-7, 10, 2, 28985.917, 7252799.3),
    (100, 0.9, 1e-7, 10, 1, 8051.6653, 2238530.3),
    (1000, 0.9, 1e-10, 10, 1, 16477.438, 683468.52),
]


@pytest.mark.parametrize(("n", "epsilon", "delta", "dimension", "diameter", "convex", "strong"), SGD1)
def test_sgd1(n, epsilon, delta, dimension, diameter, convex, strong):
    noise = sgd1_noise_std(n, 1.0, epsilon, delta)
    square = second_moment(n, 1.0, dimension, noise)
    assert last_excess(diameter, square, n**2) == pytest.approx(convex, rel=1e-7)
    assert strongly_convex_last_excess(0.1, n, square, n**2) == pytest.approx(strong, rel=1e-7)
    assert is_vacuous(convex, n, 1.0, diameter)
    found = predict_excess(Arrangement("sgd1", {"a": n}, noise / n), 1.0, dimension, diameter, 0.1)
    assert found.last * n == pytest.approx(convex, rel=1e-7)
    assert found.strongly_convex_last * n == pytest.approx(strong, rel=1e-7)
    assert found.vacuous


def test_sgd2():
    square = second_moment(1000, 1.0, 5, 60.0, messages=10)
    assert strongly_convex_weighted_excess(0.1, 1000, square, 100) == pytest.approx(233.6633663)
    assert strongly_convex_last_excess(0.1, 1000, square, 100) == pytest.approx(11243.97139)
    parties = {f"p{i}": 100 for i in range(10)}
    plain = predict_excess(Arrangement("sgd2", parties, 60.0, rounds=100), 1.0, 5, 1.0, 0.1)
    assert plain.strongly_convex_average * 1000 == pytest.approx(233.6633663)
    assert not plain.vacuous
    assert is_vacuous(plain.strongly_convex_last * 1000, 1000, 1.0, 1.0)


def test_secure_sums_have_the_noise_of_one_message():
    parties = {f"p{i}": 100 for i in range(10)}
    secure = predict_excess(Arrangement("sgd2", parties, 60.0, rounds=100, aggregation="secure"), 2.0, 5, 1.0)
    square = second_moment(1000, 2.0, 5, 120.0)
    assert secure.last * 1000 == pytest.approx(last_excess(1.0, square, 100))
    assert secure.strongly_convex_last is None


def test_average_iterate():
    square = second_moment(10, 1.0, 2, 3.0)
    best = 2.0 / math.sqrt(square * 50)
    assert average_excess(2.0, square, 50, best) == pytest.approx(2.0 * math.sqrt(square / 50))
    assert average_excess(2.0, square, 50, 2 * best) > average_excess(2.0, square, 50, best)


def test_runs_stay_below_the_bounds():
    """SGD2 on n quadratics 0.1/2 |theta - x_i|^2 in the unit ball: the mean excess over 200 seeded runs."""
    draw = np.random.default_rng(7)
    n, dimension, parties, rounds, convexity, noise = 200, 3, 4, 60, 0.1, 5.0
    points = draw.uniform(-0.4, 0.4, (n, dimension))
    best = points.mean(0)
    lipschitz = convexity * 2.0  # two points of the ball are at most 2 apart
    square = second_moment(n, lipschitz, dimension, noise, parties)
    rules = {
        "last": lambda t: convex_step_size(2.0, square, t),
        "weighted": lambda t: weighted_step_size(convexity, n, t),
    }
    excess = {}
    for name, step_size in rules.items():
        theta, total, weight = np.zeros((200, dimension)), np.zeros((200, dimension)), 0
        for t in range(1, rounds + 1):
            total, weight = total + t * theta, weight + t
            gradient = n * convexity * (theta - best) + draw.normal(
                0, noise * math.sqrt(parties), theta.shape
            )
            theta = theta - step_size(t) * gradient
            theta /= np.maximum(1.0, np.linalg.norm(theta, axis=1, keepdims=True))
        shown = theta if name == "last" else total / weight
        excess[name] = float(n * convexity / 2 * ((shown - best) ** 2).sum(1).mean())
    assert excess["last"] <= last_excess(2.0, square, rounds)
    bound = strongly_convex_weighted_excess(convexity, n, square, rounds)
    assert bound / 50 < excess["weighted"] <= bound


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: second_moment(10, bad, 2, 1.0),
        lambda bad: second_moment(10, 1.0, 2, bad),
        lambda bad: second_moment(bad, 1.0, 2, 1.0),
        lambda bad: last_excess(bad, 1.0, 2),
        lambda bad: last_excess(1.0, bad, 2),
        lambda bad: average_excess(bad, 1.0, 2, 1.0),
        lambda bad: strongly_convex_last_excess(bad, 10, 1.0, 5),
        lambda bad: strongly_convex_weighted_excess(0.1, 10, 1.0, bad),
        lambda bad: is_vacuous(bad, 10, 1.0, 1.0),
        lambda bad: predict_excess(Arrangement("sgd2", {"a": 5}, 1.0, rounds=3), bad, 2, 1.0),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, True, "1"])
def test_nonsense_is_refused(call, bad):
    with pytest.raises(InvalidParameter):
        call(bad)


def test_what_has_no_bound_is_refused():
    with pytest.raises(InvalidParameter, match="open"):
        predict_excess(Arrangement("sgd2", {"a": 5}, rounds=3), 1.0, 2, 1.0)
    with pytest.raises(InvalidParameter, match="rate=1"):
        predict_excess(Arrangement("sgd2", {"a": 5}, 1.0, rounds=3, rate=0.5), 1.0, 2, 1.0)
