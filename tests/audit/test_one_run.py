"""The one-run bound against a linear program, exact mechanisms and a second implementation."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog

from discreet.audit.bounds import Guesses, _is_refuted, _tails, lower_epsilon, steinke_epsilon
from discreet.audit.canaries import guess_rates, planned_guesses
from discreet.audit.claims import Claim
from discreet.audit.tradeoff_bound import TradeoffBound
from discreet.errors import InvalidParameter
from discreet.events import Gaussian, PoissonSampled


def tails(canaries, made, lines):
    return _tails(canaries, made, lines.slopes, lines.intercepts)


def largest_tail(canaries, made, least, lines):
    """The largest P(T >= least) that equation (3) allows, as a linear program over the law of T."""
    counts = np.arange(made + 1)
    rows, limits = [], []
    for i in range(made):
        right = np.where(counts >= i + 1, counts, 0) / canaries
        wrong = np.where(counts >= i, made - counts, 0) / canaries
        for slope, intercept in zip(lines.slopes, lines.intercepts, strict=True):
            rows.append(right - slope * wrong)
            limits.append(intercept)
    scale = np.abs(rows).max(axis=1)
    solution = linprog(
        -(counts >= least).astype(float),
        A_ub=np.array(rows) / scale[:, None],
        b_ub=np.array(limits) / scale,
        A_eq=np.ones((1, made + 1)),
        b_eq=[1.0],
    )
    assert solution.status == 0
    return -solution.fun


@pytest.mark.parametrize(("mu", "canaries", "made"), [(0.5, 40, 10), (1.5, 20, 20), (1.0, 200, 14)])
def test_the_recursion_solves_the_linear_program(mu, canaries, made):
    lines = TradeoffBound.gaussian(mu, 24)
    found = tails(canaries, made, lines)
    for least in range(1, made + 1, 3):
        assert found[least] == pytest.approx(largest_tail(canaries, made, least, lines), rel=2e-3, abs=1e-7)


def test_randomised_response_stays_below():
    """Each coin is answered truly with probability e^eps / (1 + e^eps): T is binomial, exactly."""
    epsilon, made = 1.0, 60
    bound = tails(made, made, TradeoffBound.at(np.array([epsilon]), np.array([0.0])))
    exact = stats.binom.sf(np.arange(made + 1) - 1, made, 1 / (1 + math.exp(-epsilon)))
    assert np.all(bound >= exact * (1 - 1e-9))
    assert np.all(bound[:55] <= 4 * exact[:55])  # the start of (3) is the only loss


def test_a_rare_event_that_tells_all_stays_below():
    """With probability delta every coin is published, otherwise nothing: (0, delta)-private."""
    delta, made = 0.02, 30
    bound = tails(200, made, TradeoffBound.at(np.array([0.0]), np.array([delta])))
    exact = delta + (1 - delta) * stats.binom.sf(np.arange(made + 1) - 1, made, 0.5)
    assert np.all(bound >= np.minimum(exact, 1.0) - 1e-9)


@pytest.mark.parametrize("runs", [1, 4])
def test_gaussian_canaries_by_simulation(runs):
    """Independent Gaussian canaries: the counts of 4000 simulated audits never reach what is called unlikely."""
    mu, canaries, made = 1.0, 100, 30
    rng = np.random.default_rng(0)
    counts = []
    for _ in range(4000 // runs):
        right = 0
        for _ in range(runs):
            used = rng.random(canaries) < 0.5
            scores = rng.normal(size=canaries) + np.where(used, mu / 2, -mu / 2)
            right += Guesses.count([(scores, used)], made).right
        counts.append(right)
    for least in range(runs * made // 2, runs * made, max(1, runs * made // 12)):
        bound = Guesses(canaries, made, least, runs).tail(TradeoffBound.gaussian(mu))
        assert np.mean(np.array(counts) >= least) <= bound + 4 * math.sqrt(bound / len(counts)) + 1e-3


def test_several_runs_are_a_convolution():
    lines = TradeoffBound.gaussian(1.0)
    one = tails(50, 8, lines)
    masses = one - np.append(one[1:], 0)
    by_hand = sum(
        masses[a] * masses[b] * masses[c]
        for a in range(9)
        for b in range(9)
        for c in range(9)
        if a + b + c >= 20
    )
    assert Guesses(50, 8, 20, runs=3).tail(lines) == pytest.approx(by_hand, abs=2e-9)


def test_the_verdict_and_the_tail_are_the_same():
    lines = TradeoffBound.gaussian(1.0)
    found = tails(100, 40, lines)
    for right in range(20, 41):
        assert (
            _is_refuted(100, 40, right, lines.slopes, lines.intercepts, found[right] * 1.001)
            or found[right] == 1
        )
        assert not _is_refuted(100, 40, right, lines.slopes, lines.intercepts, found[right] * 0.999)


def test_all_right_is_the_ceiling_and_few_guesses_have_a_low_one():
    claim = Claim.of(Gaussian(0.5), delta=1e-5)
    few, many = Guesses(20_000, 200, 190), Guesses(20_000, 4000, 3800)
    assert few.perfect() == Guesses(20_000, 200, 200)
    ceilings = [lower_epsilon(guesses.perfect(), claim, 0.95) for guesses in (few, many)]
    assert ceilings[0] < claim.epsilon < ceilings[1]


def naive_tail(made, canaries, right, epsilon, delta):
    """Theorem 5.2 of arXiv 2305.08846 with whole numbers and no library."""
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = [math.comb(made, i) * chance**i * (1 - chance) ** (made - i) for i in range(made + 1)]
    alpha = max(2 / i * sum(law[max(0, right - i) : right]) for i in range(1, canaries + 1))
    return min(1.0, sum(law[right:]) + alpha * canaries * delta)


@pytest.mark.parametrize(("made", "canaries", "right"), [(20, 20, 19), (40, 100, 33), (60, 1000, 58)])
def test_steinke_is_the_root_of_the_papers_bound(made, canaries, right):
    found = steinke_epsilon(Guesses(canaries, made, right), 1e-5, 0.95)
    assert found > 0
    assert naive_tail(made, canaries, right, found, 1e-5) == pytest.approx(0.05, rel=1e-3)
    assert steinke_epsilon(Guesses(canaries, made, made // 2), 1e-5, 0.95) == 0.0


@pytest.mark.parametrize(
    ("delta", "confidence"), [(math.nan, 0.95), (1.0, 0.95), (1e-5, math.nan), (1e-5, 1.0)]
)
def test_steinke_refuses(delta, confidence):
    with pytest.raises(InvalidParameter):
        steinke_epsilon(Guesses(100, 10, 9), delta, confidence)


def test_guess_rates_of_gaussian_noise():
    """Of the most telling share, as many are right as the normal tails say."""
    mu = 1.0
    rates = guess_rates(Claim.of(Gaussian(4.0) * 16, delta=1e-5))
    for share in (0.05, 0.2, 1.0):
        edge = np.quantile(
            np.abs(stats.norm.ppf(np.linspace(1e-6, 1 - 1e-6, 2001))[:, None] + [mu / 2]), 1 - share
        )
        right = stats.norm.sf(edge - mu / 2)
        expected = right / (right + stats.norm.sf(edge + mu / 2))
        assert rates[round(share * rates.size) - 1] == pytest.approx(expected, rel=0.02)


def test_the_plan_is_fixed_by_the_claim_and_can_contradict_it():
    for event in (Gaussian(4.0) * 16, PoissonSampled(0.2, Gaussian(1.0)) * 10):
        claim = Claim.of(event, delta=1e-5)
        made = planned_guesses(claim, 200, 4, 0.95)
        assert made == planned_guesses.__wrapped__(claim, 200, 4, 0.95)
        assert lower_epsilon(Guesses(200, made, made * 4, 4), claim, 0.95) > claim.epsilon
