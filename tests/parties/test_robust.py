"""One liar of three: with a mean it turns the model around, with the geometric median it hardly matters."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Logistic
from discreet.parties import Coordinator, Study, observers
from discreet.parties.certifying import not_covered
from discreet.parties.messages import DirectTransport, Message, Roster, longest_message
from discreet.parties.optimizers import GeometricMedian, geometric_median
from discreet.parties.study import Aggregation, Privacy, Training
from support.parties_bank import study, unsigned_party

SIZES = {"ann": 1500, "bob": 1230, "liar": 770}  # 22 % of the records
WIDTH = 12


@cache
def tables():
    rng = np.random.default_rng(7)
    slope = rng.normal(size=WIDTH)
    slope *= 2 / np.linalg.norm(slope)

    def draw(count):
        X = rng.normal(size=(count, WIDTH))
        return X / WIDTH**0.5, (X @ slope + rng.logistic(size=count) > 0).astype(float)

    return slope, {name: draw(count) for name, count in SIZES.items()}, draw(10_000)


def plan_of(robust):
    model = {"kind": "logistic", "dimension": WIDTH + 1}
    training = Training(1.0, rounds=60, learning_rate=4.0)
    privacy, aggregation = Privacy(1.0, 1e-6), Aggregation(robust=robust)
    return Study("poison", "sgd2", SIZES, privacy, training, model, aggregation)


def lie(kind, plan, theta, honest):
    """What the liar sends: as long as an honest message can be, or what flatters the opposite model."""
    slope = np.concatenate([[0.0], tables()[0]])
    longest = longest_message(plan, "liar") * 0.999
    if kind == "push":
        return slope / np.linalg.norm(slope) * longest
    if kind == "reverse":
        X, y = tables()[1]["ann"]
        Z = np.hstack([np.ones((len(X), 1)), X])
        gradient = Z.T @ (1 / (1 + np.exp(-Z @ theta)) - y)
        return -gradient / np.linalg.norm(gradient) * longest
    if kind == "hidden":  # no longer than honest noise
        return slope / np.linalg.norm(slope) * plan.noise_multiplier * WIDTH**0.5
    return honest


def score(robust, kind):
    plan, (_, rows, test) = plan_of(robust), tables()
    parties = {}
    for place, name in enumerate(plan.names):
        holder = LinearHolder(Logistic(), *rows[name], clip_norm=1.0)
        stream = RandomStream(unsafe_seed=place)
        parties[name] = unsigned_party(plan, name, holder=holder, stream=stream)

    def lying(frame):
        request, reply = Message.decode(frame), Message.decode(parties["liar"].answer(frame))
        if reply.kind == "noisy":
            reply = replace(reply, array=lie(kind, plan, request.array, reply.array))
        return reply.encode()

    answers = {name: party.answer for name, party in parties.items()} | {"liar": lying}
    result = Coordinator(plan, DirectTransport(answers), Roster.without_wire()).run()
    assert result.missed == {}  # nobody was refused: every lie looked like a message
    return roc_auc_score(test[1], test[0] @ result.theta[1:])


def test_a_mean_is_turned_around_by_one_liar():
    assert score("none", "honest") > 0.75
    assert score("none", "push") < 0.3


@pytest.mark.parametrize("kind", ["push", "reverse", "hidden"])
def test_a_median_loses_little_to_one_liar(kind):
    honest = score("none", "honest")
    assert score("geometric-median", kind) > honest - 0.05


def test_a_median_costs_nothing_among_honest_parties():
    assert score("geometric-median", "honest") > score("none", "honest") - 0.02


def test_the_geometric_median_is_where_the_distances_are_least():
    rng = np.random.default_rng(1)
    for size, width in ((3, 2), (5, 3), (7, 4)):
        points, weights = rng.normal(size=(size, width)), rng.uniform(0.5, 1.5, size)

        def cost(z, points=points, weights=weights):
            return weights @ np.linalg.norm(points - z, axis=1)

        found = geometric_median(points, weights)
        starts = (minimize(cost, start, method="Nelder-Mead").fun for start in (found, points.mean(0)))
        assert cost(found) <= min(starts) * (1 + 1e-4)


def test_the_geometric_median_withstands_almost_half():
    points = np.vstack([np.random.default_rng(2).normal(size=(6, 3)), np.full((5, 3), 1e4)])
    assert np.linalg.norm(geometric_median(points, np.ones(11))) < 20
    same = np.ones((4, 3))
    assert np.allclose(geometric_median(same, np.ones(4)), 1.0)


def test_missing_parties_count_as_zero():
    median = GeometricMedian(study(sizes={"ann": 30, "bob": 30, "cem": 40}, aggregation=ROBUST))
    value = np.ones(4)
    assert np.allclose(median({"ann": 30 * value, "bob": 30 * value}), 0.6)
    assert np.allclose(median({}), 0.0)


ROBUST = Aggregation(robust="geometric-median")


def test_it_is_said_what_liars_can_do():
    plain, robust = plan_of("none"), plan_of("geometric-median")
    assert any("turn the model into its opposite" in text for text in not_covered(plain))
    assert any("half of the weight" in text for text in not_covered(robust))
    table = observers(robust)
    own = table["coordinator"].guarantee.epsilon.upper
    for name in ("final model", "another party"):  # nobody hides in a sum that is not taken
        assert table[name].guarantee.epsilon.upper == pytest.approx(own)
        assert (
            observers(replace(plain, aggregation=Aggregation(dropouts=0)))[name].guarantee.epsilon.upper < own
        )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sizes": {"ann": 30, "bob": 30}}, "three parties"),
        ({"sizes": {"ann": 30, "bob": 30, "cem": 60}}, "half of the records"),
        ({"aggregation": replace(ROBUST, kind="secure")}, "plain sums"),
        ({"algorithm": "sgd1"}, "sgd2"),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings, sentence):
    with pytest.raises(InvalidParameter, match=sentence):
        study(**({"sizes": {"ann": 30, "bob": 30, "cem": 40}, "aggregation": ROBUST} | settings))
    study(sizes={"ann": 30, "bob": 30, "cem": 60}, aggregation=ROBUST, weights="equal")
