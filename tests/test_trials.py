"""The laws of the number of trials against scipy's, and what their randomness costs against brute force."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gammaln

from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter
from discreet.selection import NegativeBinomialTrials, PoissonTrials, geometric_trials, logarithmic_trials

TRUNCATED = NegativeBinomialTrials(stop=0.2, shape=-0.4)


def probabilities(trials, most=3000):
    """P(K = 0), ..., P(K = most) from gamma functions; the library uses ratios."""
    k = np.arange(most + 1)
    if isinstance(trials, PoissonTrials):
        return stats.poisson.pmf(k, trials.mean)
    if trials.shape == 0:
        return stats.logser.pmf(k, 1 - trials.stop)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.exp(gammaln(k + trials.shape) - gammaln(k + 1) + k * math.log(1 - trials.stop))
    weights[0] = 0
    return weights / weights.sum()


LAWS = [
    geometric_trials(10),
    logarithmic_trials(10),
    NegativeBinomialTrials(0.3, 2.5),
    TRUNCATED,
    PoissonTrials(4.0),
]


class FixedBits:
    """A stream that gives the bits it is told."""

    def __init__(self, uniform):
        self.bits = int(uniform * 2**53) << 203

    def bytes(self, count):
        return self.bits.to_bytes(count, "big")


@pytest.mark.parametrize("trials", LAWS)
def test_a_draw_inverts_the_distribution_function(trials):
    cumulative = np.cumsum(probabilities(trials))
    uniforms = np.linspace(0.0005, 0.9995, 1000)
    expected = np.searchsorted(cumulative, uniforms)
    assert [trials.draw(FixedBits(u)) for u in uniforms] == expected.tolist()


@pytest.mark.parametrize("trials", LAWS)
def test_the_mean_is_that_of_the_law_and_rounded_up(trials):
    mean = float(np.arange(3001) @ probabilities(trials))
    assert trials.mean == pytest.approx(mean, rel=1e-9)
    assert geometric_trials(10).mean >= 10
    assert logarithmic_trials(7.5).mean == pytest.approx(7.5, rel=1e-9)
    assert 1 - trials.chance_of_any == pytest.approx(probabilities(trials)[0], abs=1e-15)


@pytest.mark.parametrize("trials", LAWS)
def test_draws_come_from_the_stream(trials):
    """Mean of 400 seeded draws within 5 standard errors: an unlucky seed has probability below 1e-6."""
    stream = RandomStream(unsafe_seed=3)
    draws = [trials.draw(stream) for _ in range(400)]
    k, p = np.arange(3001), probabilities(trials)
    error = math.sqrt((p @ k**2 - (p @ k) ** 2) / 400)
    assert abs(np.mean(draws) - p @ k) < 5 * error
    assert len(set(draws)) > 3


class AllOnes:
    """The largest uniform number there is."""

    def bytes(self, count):
        return b"\xff" * count


def test_the_rarest_draw_ends():
    assert geometric_trials(2).draw(AllOnes()) == 257  # 1 - 2^-257 is reached by 257 tosses of a coin
    assert all(50 < trials.draw(AllOnes()) < 10_000 for trials in LAWS)


class Discrete:
    """The exact privacy curve of two distributions on a few outcomes, both ways."""

    def __init__(self, p, q):
        self.p, self.q = np.asarray(p), np.asarray(q)

    def delta(self, epsilon):
        return max(one_way(self.p, self.q, epsilon), one_way(self.q, self.p, epsilon))

    def epsilon(self, delta):
        low, high = 0.0, 40.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high

    estimate = epsilon

    def advantage(self):
        return self.delta(0.0)


def one_way(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def best_of(trials, p):
    """The law of the best of K draws when the outcomes are given from worst to best, summed over K."""
    chances = probabilities(trials, 400)
    below = np.concatenate([[0.0], np.minimum(np.cumsum(p), 1.0)])
    reached = np.array([chances @ x ** np.arange(401) for x in below])
    return np.diff(reached)


SMALL = [
    geometric_trials(3),
    logarithmic_trials(8),
    NegativeBinomialTrials(0.3, 2.5),
    TRUNCATED,
    PoissonTrials(2.0),
]


def masses(draw, size):
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size))) ** 3
    return weights / weights.sum()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_theorem_holds_on_small_mechanisms(data):
    """E[K] delta(epsilon - s) is never below the exact delta of the best of K."""
    size = data.draw(st.integers(2, 5))
    p, q = masses(data.draw, size), masses(data.draw, size)
    trials, trial = data.draw(st.sampled_from(SMALL)), Discrete(p, q)
    extra = trials.extra_epsilon(trial)
    selected = Discrete(best_of(trials, p), best_of(trials, q))
    for beyond in (0.0, 0.1, 0.5, 1.0, 2.0):
        assert selected.delta(extra + beyond) <= trials.mean * trial.delta(beyond) + 1e-12


def test_a_smaller_extra_epsilon_would_be_wrong():
    """The broken twin, half of the extra epsilon, is caught on a mechanism with three outcomes."""
    p, q = np.array([0.4955, 0.0045, 0.5]), np.array([0.3, 0.0005, 0.6995])
    caught = 0
    for trials in SMALL:
        trial, extra = Discrete(p, q), trials.extra_epsilon(Discrete(p, q))
        selected = Discrete(best_of(trials, p), best_of(trials, q))
        caught += any(
            selected.delta(extra / 2 + beyond) > trials.mean * trial.delta(beyond) + 1e-9
            for beyond in np.linspace(0, 2.2, 45)
        )
        assert selected.delta(extra + 2.19) <= trials.mean * trial.delta(2.19) + 1e-12
    assert caught >= 3


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, True, "ten", 1e9])
def test_nonsense_is_refused_by_name(value):
    for make in (geometric_trials, logarithmic_trials, PoissonTrials):
        with pytest.raises(InvalidParameter, match="mean="):
            make(value)
    with pytest.raises(InvalidParameter, match="stop="):
        NegativeBinomialTrials(value)


@pytest.mark.parametrize("shape", [math.nan, math.inf, -1.0, True, "one", 1e9])
def test_shapes_without_a_law_are_refused(shape):
    with pytest.raises(InvalidParameter, match="shape="):
        NegativeBinomialTrials(0.5, shape)
