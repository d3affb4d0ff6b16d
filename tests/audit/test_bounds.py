"""Trade-off lines, exact error rates of the joint test, and the search for the lower bound."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from discreet.accounting.curve import account
from discreet.accounting.gaussian import gaussian_mu
from discreet.audit.bounds import Trials, clopper_pearson, lower_epsilon, refuted_step
from discreet.audit.claims import STEPS_PER_DOUBLING, Claim, scale_noise
from discreet.audit.tradeoff_bound import TradeoffBound
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.events import (
    ApproximateDP,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomlyAllocated,
)
from discreet.guarantee import Bounds, Guarantee
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage

ALARMS = np.array([1e-5, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 3.0, 8.0])
def test_gaussian_lines_follow_the_exact_power_from_above(mu):
    exact = stats.norm.sf(stats.norm.isf(ALARMS) - mu)
    found = TradeoffBound.gaussian(mu).most_hits(ALARMS)
    assert np.all(found >= exact)
    assert np.all(found <= exact * (1 + 1e-3))


EVENTS = [
    PoissonSampled(0.1, Gaussian(1.0)) * 50,
    Laplace(1.0) * 3,
    RandomlyAllocated(10, Gaussian(1.0)) * 2,
    Gaussian(1.0) + Laplace(2.0),
    Gaussian(1.0) + ApproximateDP(0.5, 1e-3),
    ApproximateDP(1.0, 1e-3),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.parts()[0][0].kind)
def test_certified_lines_follow_the_certified_power(event):
    curve = account(event)
    found = TradeoffBound.of(curve).most_hits(ALARMS)
    bounds = [curve.power_bounds(float(alarms)) for alarms in ALARMS]
    assert np.all(found >= [bound.lower for bound in bounds])
    rarer = ALARMS < 1e-3  # too rare for an audit; there few lines are enough
    assert np.all(rarer | (found <= np.array([bound.upper for bound in bounds]) * 1.002))


def test_least_alarms_is_the_inverse():
    lines = TradeoffBound.gaussian(1.0)
    np.testing.assert_allclose(lines.least_alarms(lines.most_hits(ALARMS)), ALARMS, rtol=1e-9)


def test_a_line_of_its_own_is_the_classic_region():
    lines = TradeoffBound.at(np.array([1.0]), np.array([0.01]))
    assert lines.most_hits(np.array([0.1]))[0] == pytest.approx(0.01 + math.e * 0.1)
    assert lines.most_hits(np.array([0.9]))[0] == pytest.approx(1 - math.exp(-1) * (1 - 0.01 - 0.9))


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (4000, 10_000), (1, 10**6)])
def test_clopper_pearson_is_scipys(successes, trials):
    two_sided = stats.binomtest(successes, trials).proportion_ci(0.90, method="exact")
    bounds = clopper_pearson(successes, trials, confidence=0.95)
    assert bounds.lower == pytest.approx(two_sided.low, rel=1e-5, abs=1e-300)
    assert bounds.upper == pytest.approx(two_sided.high, rel=1e-5)


def test_clopper_pearson_of_one_success_is_closed():
    """P(at least one of n) = 1 - (1 - p)^n."""
    assert clopper_pearson(1, 10**6, 0.95).lower == pytest.approx(
        -math.expm1(math.log(0.95) / 10**6), rel=1e-12
    )


@pytest.mark.parametrize(
    "arguments", [(-1, 10, 0.9), (11, 10, 0.9), (1, 10, math.nan), (1, 10, 1.0), (math.nan, 10, 0.9)]
)
def test_clopper_pearson_refuses(arguments):
    with pytest.raises(InvalidParameter):
        clopper_pearson(*arguments)


def refusal_rates(lines, members, others, error, test=Trials.refutes):
    """P(refuted) at points of the curve itself: the hardest honest releases. Every outcome is enumerated."""
    refuted = np.array(
        [
            [test(Trials(hits, members, alarms, others), lines, error) for alarms in range(others + 1)]
            for hits in range(members + 1)
        ]
    )
    rates = []
    for alarms in (1e-3, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98):
        hits = float(lines.most_hits(np.array([alarms]))[0])
        of_hits = stats.binom.pmf(np.arange(members + 1), members, hits)
        rates.append(of_hits @ refuted @ stats.binom.pmf(np.arange(others + 1), others, alarms))
    return np.array(rates)


@pytest.mark.parametrize(("mu", "members", "others"), [(0.5, 25, 25), (2.0, 30, 12), (0.3, 12, 40)])
def test_honest_releases_are_refuted_no_more_often_than_stated(mu, members, others):
    rates = refusal_rates(TradeoffBound.gaussian(mu, 64), members, others, error=0.05)
    assert rates.max() <= 0.05
    assert (
        rates.max() >= 0.001
    )  # few counts are coarse; many come close to the stated error: see test_audit.py


def test_the_enumeration_catches_a_test_that_accuses_too_often():
    def careless(trials, lines, error):
        """Compares the observed rates as if they were the true ones."""
        return trials.hits / trials.members > lines.most_hits(np.array([trials.alarms / trials.others]))[0]

    assert refusal_rates(TradeoffBound.gaussian(0.5, 64), 25, 25, 0.05, careless).max() > 0.3


def test_the_joint_test_beats_two_intervals():
    """Against the bound through two Clopper-Pearson intervals, whose formula for Gaussian noise is closed."""
    mu, size = 0.9, 5000
    trials = Trials(round(size * stats.norm.cdf(mu / 2)), size, round(size * stats.norm.sf(mu / 2)), size)
    low = clopper_pearson(trials.hits, size, 0.975).lower
    high = clopper_pearson(trials.alarms, size, 0.975).upper
    corner = stats.norm.isf(high) - stats.norm.isf(low)
    claim = Claim.of(Gaussian(1 / mu), delta=1e-5)
    found = 2.0 ** (-refuted_step(trials, claim, 0.05) / STEPS_PER_DOUBLING) * mu
    assert corner < found < mu
    assert (mu - found) / (mu - corner) == pytest.approx(2.33 / 3.92, rel=0.06)


def test_more_telling_counts_give_higher_bounds():
    claim = Claim.of(Gaussian(1.0), delta=1e-5)
    bounds = [
        lower_epsilon(Trials(hits, 1000, 300, 1000), claim, 0.95) for hits in (300, 500, 700, 900, 1000)
    ]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0 < bounds[1]


def test_no_trials_prove_nothing():
    claim = Claim.of(Gaussian(1.0), delta=1e-5)
    assert lower_epsilon(Trials(0, 0, 0, 100), claim, 0.95) == 0.0
    assert lower_epsilon(Trials(5, 5, 0, 0), claim, 0.95) == 0.0


def test_the_plain_claim_gives_the_classic_bound():
    """log((hits - delta) / alarms) with both rates at their bounds is a little below the joint bound."""
    claim = Claim.of(Guarantee(Bounds(3.0, 3.0), delta=1e-5))
    trials = Trials(6000, 10_000, 600, 10_000)
    low, high = clopper_pearson(6000, 10_000, 0.975).lower, clopper_pearson(600, 10_000, 0.975).upper
    classic = math.log((low - 1e-5) / high)
    found = lower_epsilon(trials, claim, 0.95)
    assert classic < found < math.log(10)
    assert found == pytest.approx(classic, rel=0.03)


@pytest.mark.parametrize("event", [*EVENTS, FixedSizeSampled(10, 100, Gaussian(1.0)) * 5])
def test_more_noise_costs_less(event):
    neighbours = "replace-one" if isinstance(event.parts()[0][0], FixedSizeSampled) else "add-remove"
    claim = Claim.of(event, delta=2e-3, neighbours=neighbours)
    assert claim.epsilon_at(400) < claim.epsilon < claim.epsilon_at(-100)


def test_a_family_is_scaled_in_all_its_parts():
    event = PoissonSampled(0.1, Laplace(2.0)) * 3 + Gaussian(1.0) + ApproximateDP(1.0, 1e-6)
    expected = PoissonSampled(0.1, Laplace(4.0)) * 3 + Gaussian(2.0) + ApproximateDP(0.5, 1e-6)
    assert scale_noise(event, 2.0) == expected
    with pytest.raises(UnsupportedEvent, match="no family"):
        scale_noise(Event(), 2.0)


def test_claims_of_every_kind_agree():
    plan = Plan((Stage("descent", "full-batch", 100, 100, 10, 1.0, 5.0),), delta=1e-5)
    claim = Claim.of(plan)
    assert claim == Claim.of(plan.curve, delta=1e-5) == Claim.of(plan.event, delta=1e-5)
    assert claim.epsilon == plan.guarantee.epsilon.upper
    reduced = Claim.of(plan.guarantee)
    assert reduced.event == ApproximateDP(claim.epsilon, 1e-5)
    assert reduced.epsilon == pytest.approx(claim.epsilon)


@pytest.mark.parametrize(
    ("claim", "options", "name"),
    [
        ("a promise", {"delta": 1e-5}, "claim"),
        (3.0, {"delta": 1e-5}, "claim"),
        (Gaussian(1.0), {}, "delta"),
        (Gaussian(1.0), {"delta": math.nan}, "delta"),
        (Gaussian(1.0), {"delta": 1e-5, "neighbours": "friends"}, "neighbours"),
        (account(Gaussian(1.0)), {"delta": 1e-5, "neighbours": "replace-one"}, "neighbours"),
        (account(Gaussian(1.0), group_size=2).guarantee(1e-5), {}, "group_size"),
    ],
)
def test_claims_that_are_none_are_refused(claim, options, name):
    with pytest.raises(InvalidParameter) as refusal:
        Claim.of(claim, **options)
    assert refusal.value.name == name


def test_the_bound_comes_back_to_the_claim():
    """Counts without chance: with ever more of them, the bound tends to the claim from below."""
    mu = gaussian_mu(4.0, 1e-5)
    claim = Claim.of(Gaussian(1 / mu), delta=1e-5)
    found = []
    for size in (10**3, 10**5, 10**7):
        hits, alarms = round(size * stats.norm.cdf(mu / 2)), round(size * stats.norm.sf(mu / 2))
        found.append(lower_epsilon(Trials(hits, size, alarms, size), claim, 0.95) / 4.0)
    assert found == sorted(found)
    assert 0.995 < found[-1] < 1


def test_a_claim_for_groups_is_held_against_groups_and_single_records():
    """Counts without chance: what is seen of a group, or of one record, leads back to the epsilon of the group."""
    mu = gaussian_mu(4.0, 1e-5)
    curve = account(Gaussian(3 / mu), group_size=3)
    size = 10**7
    for attacked in (1, 3, 6):
        claim = replace(Claim.of(curve, delta=1e-5), group=attacked)
        assert claim.epsilon == pytest.approx(4.0, rel=1e-3)
        seen = mu * attacked / 3
        hits, alarms = (round(size * tail(seen / 2)) for tail in (stats.norm.cdf, stats.norm.sf))
        trials = Trials(hits, size, alarms, size)
        assert 0.98 < lower_epsilon(trials, claim, 0.95) / 4.0 < 1
        assert lower_epsilon(trials, claim.plain(), 0.95) < 4.0
        forgetful = replace(
            claim, protects=1
        )  # the twin: the epsilon of one record, for what is promised to three
        assert lower_epsilon(trials, forgetful, 0.95) < 2.0


def test_the_lines_of_a_group_are_those_of_as_many_records():
    """(epsilon, delta) three times over, record by record; and a Gaussian whose records add up."""
    epsilon, delta = 0.4, 1e-3
    lines = TradeoffBound.of(account(ApproximateDP(epsilon, delta), group_size=3))
    step = 0.0
    for _ in range(3):  # delta of k + 1 records: e^epsilon times that of k, plus delta
        step = math.exp(epsilon) * step + delta
    assert lines.slopes[0] == pytest.approx(math.exp(3 * epsilon), rel=1e-12)
    assert lines.intercepts[0] == pytest.approx(step, rel=1e-11)
    alarms = np.array([0.01, 0.2])
    ours = TradeoffBound.of(account(Gaussian(6.0), "replace-one", group_size=3)).most_hits(alarms)
    assert ours == pytest.approx(TradeoffBound.gaussian(mu=1.0).most_hits(alarms), rel=1e-9)
