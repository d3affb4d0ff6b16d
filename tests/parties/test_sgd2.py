"""SGD2: without noise it is training on one machine; with noise, the noise is exactly the planned one."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.events import Gaussian, PoissonSampled
from discreet.parties import Coordinator, Party, round_sums, sgd2
from discreet.parties.messages import DirectTransport, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Aggregation, Privacy
from support.parties_bank import (
    DIMENSION,
    KEYS,
    ROSTER,
    SIZES,
    Silent,
    clipped_gradients,
    holders,
    ledger_of,
    single_machine,
    study,
    tables,
    zero_holders,
)

FALSE_ALARM = 1e-6
"""Of each statistical test here. The streams are seeded, so it is the chance of an unlucky seed."""


def coordinator_of(plan, rows, streams):
    roster = Roster(ROSTER) if plan.aggregation.kind == "secure" else Roster.without_wire()
    parties = {
        n: Party(n, plan, rows[n], ledger_of(plan, n), KEYS[n], roster, stream=streams[n]) for n in SIZES
    }
    return Coordinator(plan, DirectTransport({n: party.answer for n, party in parties.items()}), roster)


def run(plan, rows, streams):
    return coordinator_of(plan, rows, streams).run()


def silent():
    return {name: Silent() for name in SIZES}


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"optimizer": "momentum", "learning_rate": 0.1},
        {"optimizer": "adam", "learning_rate": 0.05},
        {"radius": 0.4},
        {"weights": "equal"},
        {"weights": "equal", "optimizer": "adam", "radius": 0.3},
    ],
)
def test_without_noise_it_is_training_on_one_machine(training):
    plan, rows = study(**training), tables()
    parts = {name: (lambda theta, rows=rows[name]: clipped_gradients(theta, *rows)) for name in SIZES}

    def gradient(theta, t):
        if plan.training.weights == "equal":
            return np.mean([part(theta).mean(0) for part in parts.values()], 0)
        return np.concatenate([part(theta) for part in parts.values()]).mean(0)

    result = run(plan, holders(), silent())
    theta, average = single_machine(plan, gradient, 20)
    assert np.linalg.norm(theta) > 0.1
    assert np.abs(result.theta - theta).max() < 1e-8
    assert np.abs(result.average - average).max() < 1e-8
    assert (result.updates, result.missed) == (20, {})


def test_the_split_into_parties_changes_nothing():
    together = {"ann": 98, "bob": 1, "cem": 1}
    rows = tables()
    X, y = (np.concatenate([rows[name][side] for name in SIZES]) for side in (0, 1))
    cuts = {"ann": slice(0, 98), "bob": slice(98, 99), "cem": slice(99, 100)}
    from discreet.linear.linear_holder import LinearHolder
    from discreet.linear.losses import Logistic

    regrouped = {name: LinearHolder(Logistic(), X[cut], y[cut], clip_norm=1.0) for name, cut in cuts.items()}
    first = run(study(), holders(), silent()).theta
    second = run(study(sizes=together), regrouped, silent()).theta
    assert np.abs(first - second).max() < 1e-10


def test_secure_sums_without_noise_are_training_on_one_machine_up_to_the_grid():
    plan, rows = study(aggregation=Aggregation("secure", dropouts=1)), tables()
    everything = [np.concatenate(side) for side in zip(*rows.values(), strict=True)]
    theta, _ = single_machine(plan, lambda theta, t: clipped_gradients(theta, *everything).mean(0), 20)
    assert np.abs(run(plan, holders(), silent()).theta - theta).max() < 1e-8


def noise_of_a_study(plan, streams):
    """The gradients that the coordinator sees when all records are zero: noise alone, in planned deviations."""
    seen, coordinator = [], coordinator_of(plan, zero_holders(), streams)
    update = coordinator._descent.update
    coordinator._descent.update = lambda now, g: (seen.append(g), update(now, g))[1]
    coordinator.run()
    planned = plan.noise_multiplier * np.sqrt(len(SIZES) / plan.shares) / (plan.records * plan.training.rate)
    return np.concatenate(seen) / planned


def suspicious(noise):
    """Two-sided chi-square test of variance 1, and the mean, at half the false-alarm rate each."""
    square = stats.chi2.cdf(np.sum(noise**2), noise.size)
    mean = stats.norm.cdf(noise.mean() * np.sqrt(noise.size))
    return min(square, 1 - square, mean, 1 - mean) < FALSE_ALARM / 4


def seeded(seed):
    return {name: RandomStream(unsafe_seed=seed + place) for place, name in enumerate(SIZES)}


PLAIN = study(rounds=400)


@cache
def plain_noise():
    return noise_of_a_study(PLAIN, seeded(10))


@pytest.mark.parametrize(
    "plan",
    [
        PLAIN,
        study(rounds=200, rate=0.3, privacy=Privacy(1.0, 1e-3, "add-remove")),
        study(rounds=150, aggregation=Aggregation("secure", dropouts=1)),
        study(rounds=150, aggregation=Aggregation("secure")),
    ],
    ids=["plain", "sampled", "secure, one may drop out", "secure"],
)
def test_the_noise_of_the_aggregate_is_exactly_the_planned_one(plan):
    noise = plain_noise() if plan is PLAIN else noise_of_a_study(plan, seeded(10))
    assert noise.size >= 600
    assert not suspicious(noise)


def test_noise_in_common_would_be_caught():
    """The notes write the noise without a party's index; taken literally its variance is m times too large."""
    same = {name: RandomStream(unsafe_seed=3) for name in SIZES}
    assert suspicious(noise_of_a_study(study(rounds=100), same))


def test_a_seventh_less_noise_would_be_caught():
    assert suspicious(6 / 7 * plain_noise())


def test_secure_sums_need_less_noise_by_the_root_of_the_parties():
    plain, secure = study(rounds=150), study(rounds=150, aggregation=Aggregation("secure"))
    ratio = plain.noise_multiplier * np.sqrt(3) / secure.noise_multiplier
    assert abs(ratio - np.sqrt(3)) < 1e-3


def test_sampling_is_drawn_by_the_party_and_accounted_for():
    plan = study(rate=0.25, privacy=Privacy(1.0, 1e-3, "add-remove"))
    event = PartyPlan(plan, "cem").event
    assert event == PoissonSampled(0.25, Gaussian(plan.noise_multiplier)) * 20
    sizes = [
        len(sgd2.draw_records(PartyPlan(plan, "cem"), 50, RandomStream(unsafe_seed=s))) for s in range(400)
    ]
    assert abs(np.mean(sizes) - 12.5) < 5 * np.sqrt(50 * 0.25 * 0.75 / 400)
    assert len(set(sizes)) > 8


def test_a_sum_that_is_clipped_otherwise_is_refused():
    plan, zeros = study(), np.zeros(DIMENSION, np.int64)
    for total in (
        BoundedSum(zeros, 2.0, grid=plan.grid),
        BoundedSum(np.zeros(DIMENSION + 1, np.int64), 1.0, grid=plan.grid),
        BoundedSum(zeros, 1.0, "l1", grid=plan.grid),
        BoundedSum(zeros, 1.0, grid=plan.grid * 2),
        BoundedSum(np.zeros(DIMENSION), 1.0),
        np.zeros(DIMENSION),
    ):
        holder = SimpleNamespace(hardened_sum=lambda theta, records, grid, total=total: total)
        with pytest.raises(ValueError, match="clipped"):
            sgd2.bounded_sum(PartyPlan(plan, "ann"), holder, np.zeros(DIMENSION), None)


def test_missing_parties_count_as_zero_under_the_same_divisor():
    plan, value = study(), np.ones(DIMENSION)
    assert np.allclose(round_sums.gradient(plan, {"ann": value}), value / 100)
    assert np.allclose(round_sums.gradient(plan, {"ann": value, "cem": value}), 2 * value / 100)
    equal = study(weights="equal")
    assert np.allclose(round_sums.gradient(equal, {"ann": value}), value / (3 * 30))
    assert np.array_equal(round_sums.gradient(plan, {}), np.zeros(DIMENSION))
