"""A whole study in one process, as a user runs it."""

from dataclasses import replace

import numpy as np
import pytest

from discreet.core.noise import hardened_sum
from discreet.errors import InvalidParameter
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Squared
from discreet.parties import Study, rehearse
from discreet.parties.study import Aggregation, Privacy, Training
from support.parties_bank import DIMENSION, SIZES, clipped_gradients, holders, study, tables

PLANS = {
    "sgd2": study(),
    "sgd1": study("sgd1"),
    "secure": study(aggregation=Aggregation("secure", dropouts=1)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_study(name):
    plan = PLANS[name]
    result = rehearse(plan, holders())
    assert result.theta.shape == result.average.shape == (DIMENSION,)
    assert result.updates == plan.updates
    assert list(result.certificates) == list(SIZES)
    for certificate in result.certificates.values():
        certificate.verify()
        assert certificate.trusted
        assert certificate.arithmetic.kind == "hardened"
        assert certificate.guarantee.delta <= plan.privacy.delta
    table = result.observers
    assert table.arrangement == replace(plan.arrangement, dropouts=table.arrangement.dropouts)
    assert (
        table.arrangement.dropouts == {"sgd2": 0, "sgd1": 2, "secure": 1}[name]
    )  # who was missing, or planned
    strongest = max(row.guarantee.epsilon.upper for row in table if row.name == "everybody else")
    assert result.certificates["ann"].guarantee.epsilon.upper <= strongest * (1 + 1e-9)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_seed_repeats_everything_and_says_so(plan):
    first, second, third = (rehearse(plan, holders(), unsafe_seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.theta, second.theta)
    assert not np.array_equal(first.theta, third.theta)
    assert not first.certificates["ann"].trusted
    assert not np.array_equal(rehearse(plan, holders()).theta, first.theta)


def test_it_learns():
    """With a generous budget the joint model tells most of the 400 records apart."""
    sizes = {"ann": 150, "bob": 50, "cem": 200}
    rows = tables(sizes)
    X, y = (np.concatenate([rows[name][side] for name in sizes]) for side in (0, 1))
    for algorithm, settings in (("sgd2", {"rounds": 40}), ("sgd1", {"tokens": 800, "learning_rate": 0.05})):
        plan = study(algorithm, sizes=sizes, privacy=(8.0, 1e-4), radius=10.0, **settings)
        theta = rehearse(plan, holders(sizes), unsafe_seed=0).theta
        assert np.mean((X @ theta[1:] + theta[0] > 0) == y) > 0.75


def test_holders_must_be_those_of_the_study():
    with pytest.raises(InvalidParameter, match="holders"):
        rehearse(study(), {"ann": holders()["ann"]})


def test_progress_is_shown(capsys):
    rehearse(study(rounds=3), holders(), progress=True)
    assert "tiny" in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ["sgd1", "sgd2"])
@pytest.mark.parametrize("steps", ["constant", "notes-convex", "notes-strongly-convex"])
def test_the_measured_excess_risk_stays_below_the_predicted_one(algorithm, steps):
    """Ridge regression on public records, for which the best model in the ball is known; averaged over 3 runs."""
    rng, sizes, radius, ridge = np.random.default_rng(0), {"ann": 200, "bob": 100}, 1.0, 0.5
    rows = {n: (r := rng.uniform(-0.5, 0.5, (c, 2)), r @ [0.6, -0.4]) for n, c in sizes.items()}
    X, y = (np.concatenate([rows[name][side] for name in sizes]) for side in (0, 1))
    Z = np.hstack([np.ones((len(X), 1)), X])

    class Ridge:
        """Squared loss plus a ridge on every record, of Lipschitz constant below 4 in the ball."""

        def __init__(self, X, y):
            self.Z, self.y = np.hstack([np.ones((len(X), 1)), X]), y
            self.dimension, self.records = 3, len(X)

        def clipped_sum(self, theta, records):
            raise NotImplementedError

        def hardened_sum(self, theta, records, grid):
            Z, y = (self.Z, self.y) if records is None else (self.Z[records], self.y[records])
            gradients = (Z @ theta - y)[:, None] * Z + ridge * theta
            assert np.linalg.norm(gradients, axis=1).max() <= 4.0
            return hardened_sum(gradients, 4.0, grid)

    def risk(theta):
        return np.mean((Z @ theta - y) ** 2) / 2 + ridge * theta @ theta / 2

    best = risk(np.linalg.solve(Z.T @ Z / len(Z) + ridge * np.eye(3), Z.T @ y / len(Z)))
    own = {"rounds": 40} if algorithm == "sgd2" else {"tokens": 300}
    training = Training(4.0, radius=radius, steps=steps, strong_convexity=ridge, learning_rate=0.02, **own)
    model = {"kind": "ridge", "dimension": 3}
    plan = Study("ridge", algorithm, sizes, Privacy(20.0, 1e-4), training, model)
    data = {name: Ridge(*rows[name]) for name in sizes}
    runs = [
        rehearse(plan, data, unsafe_seed=seed, excess_risk=lambda theta: risk(theta) - best)
        for seed in range(3)
    ]
    measured = np.mean([run.measured_excess_risk for run in runs])
    assert 0 <= measured <= runs[0].predicted_excess_risk
    if (algorithm, steps) in (("sgd2", "notes-strongly-convex"), ("sgd2", "constant")):
        assert runs[0].recommended is runs[0].average


def test_no_theory_no_prediction():
    assert rehearse(study(rounds=2), holders()).predicted_excess_risk is None
    assert rehearse(study(rounds=2, optimizer="adam", radius=1.0), holders()).predicted_excess_risk is None
    assert rehearse(study(rounds=2), holders()).measured_excess_risk is None


def test_any_object_with_sums_can_be_a_holder():
    """Squared loss in place of the bank's logistic one; the gradient of the study is its mean."""
    rows = tables()
    data = {n: LinearHolder(Squared(), *rows[n], clip_norm=1.0) for n in SIZES}
    assert rehearse(study(), data).updates == 20
    X, y = rows["ann"]
    assert clipped_gradients(np.zeros(DIMENSION), X, y).shape == (30, DIMENSION)
