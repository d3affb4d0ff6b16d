"""The exact samplers: every branch enumerated with its probability, forced words, and the laws themselves."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from discreet.core import randomness
from discreet.core.randomness import RandomStream

ALPHA = 1e-6  # of each goodness-of-fit test, if the seed were not fixed
u64 = np.uint64


class Undecided(Exception):
    """A run asked for one choice more than its script holds."""


def enumerate_runs(run, smallest):
    """All outcomes of ``run(choose)`` with their probabilities, and the probability of what was not followed.

    ``choose(chances)`` returns the index of a branch. Branches below the probability ``smallest`` are left.
    """
    outcomes, left, scripts = {}, 0.0, [((), 1.0)]
    while scripts:
        script, weight = scripts.pop()
        remaining = iter(script)

        def choose(chances, remaining=remaining):
            for index in remaining:
                return index
            raise Undecided(chances)

        try:
            outcome = run(choose)
            outcomes[outcome] = outcomes.get(outcome, 0.0) + weight
        except Undecided as stop:
            for index, chance in enumerate(stop.args[0]):
                if weight * chance >= smallest:
                    scripts.append(((*script, index), weight * chance))
                else:
                    left += weight * chance
    return outcomes, left


def below(choose):
    return lambda words, cursor, bound: u64(choose([1 / int(bound)] * int(bound)))


def coin(choose, probability):
    def toss(words, cursor, part, whole):
        p = probability(int(part) / int(whole))
        return choose([1 - p, p]) == 1

    return toss


@pytest.mark.parametrize(("part", "whole"), [(0, 3), (1, 4), (2, 3), (3, 5), (1, 1)])
@pytest.mark.parametrize(
    ("name", "probability"),
    [("_exp_minus", lambda x: math.exp(-x)), ("_exp_minus_half_square", lambda x: math.exp(-x * x / 2))],
)
def test_coins_are_exact(monkeypatch, name, probability, part, whole):
    def run(choose):
        monkeypatch.setattr(randomness, "_below", below(choose))
        return bool(getattr(randomness, name).py_func(None, None, u64(part), u64(whole)))

    outcomes, left = enumerate_runs(run, smallest=1e-7)
    assert left < 2e-3
    exact, seen = probability(part / whole), outcomes.get(True, 0.0)
    assert seen - 1e-12 <= exact <= seen + left + 1e-12
    assert math.fsum(outcomes.values()) + left == pytest.approx(1)


SCALES = [Fraction(1), Fraction(1, 2), Fraction(3, 2), Fraction(3)]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("_laplace_attempt", lambda y: math.exp(-abs(y))),
        ("_gaussian_attempt", lambda y: math.exp(-y * y / 2)),
    ],
)
def test_laws_are_exact_given_exact_coins(monkeypatch, name, weight, scale):
    laplace = randomness._laplace_attempt.py_func
    attempt = getattr(randomness, name).py_func

    def run(choose):
        monkeypatch.setattr(randomness, "_below", below(choose))
        monkeypatch.setattr(randomness, "_exp_minus", coin(choose, lambda x: math.exp(-x)))
        monkeypatch.setattr(
            randomness, "_exp_minus_half_square", coin(choose, lambda x: math.exp(-x * x / 2))
        )
        monkeypatch.setattr(randomness, "_laplace_attempt", laplace)
        return int(attempt(None, None, u64(scale.numerator), u64(scale.denominator)))

    outcomes, left = enumerate_runs(run, smallest=1e-8)
    rejected = outcomes.pop(int(randomness._REJECTED))
    assert 0.1 < rejected < 0.75
    law = {y: weight(y / float(scale)) for y in range(-40, 41)}
    accepted, total = math.fsum(outcomes.values()), math.fsum(law.values())
    for y in range(-4, 5):
        assert outcomes.get(y, 0.0) / accepted == pytest.approx(law[y] / total, abs=4 * left)
    assert left < 2e-5


@pytest.mark.parametrize("bound", [1, 2, 3, 6, 10**9 + 7, 2**40, 2**62 + 1, 2**63])
def test_uniform_draws_pass_over_the_words_that_would_favour_some(bound):
    skipped = 2**64 % bound
    assert (2**64 - skipped) % bound == 0  # so each value has equally many of the words that are left
    words = np.array([w for w in (0, skipped - 1) if 0 <= w < skipped] + [skipped, 2**64 - 1], u64)
    out = np.empty(2, np.int64)
    made, used = randomness.integers(words, out, u64(bound))
    assert (made, used) == (2, len(words))
    assert out.tolist() == [skipped % bound, (2**64 - 1) % bound]


@pytest.mark.parametrize("kernel", [randomness.discrete_gaussian, randomness.discrete_laplace])
def test_a_draw_that_runs_out_of_words_is_repeated_from_its_beginning(kernel):
    words = np.random.default_rng(1).integers(0, 2**64, 4000, u64)
    whole = np.empty(100, np.int64)
    assert kernel(words, whole, 9, 2)[0] == 100
    pieces, begin, end = [], 0, 1
    while len(pieces) < 100:
        out = np.empty(100 - len(pieces), np.int64)
        made, used = kernel(words[begin:end], out, 9, 2)
        pieces += out[:made].tolist()
        begin, end = begin + used, end + 1
    assert pieces == whole.tolist()


def test_a_stream_wastes_no_words_between_its_parts(monkeypatch):
    # With scale 1 a block of draws takes more words than the stream fetches at first.
    monkeypatch.setattr("os.urandom", lambda count: bytes(range(count)))
    stream, expected = RandomStream(), np.empty(4096, np.int64)
    cipher = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(cipher.update(bytes(2**20)), u64)
    assert randomness.discrete_gaussian(words, expected, 1, 1)[1] > 15.5 * 4096 + 64
    assert np.array_equal(stream.discrete_gaussian(1, 4096), expected)


def test_the_largest_values_do_not_overflow():
    # Each turn of the geometric part lasts as long as an even word is followed by one that 3 does not divide.
    turns, over = randomness._MOST_TURNS, randomness.SCALE_LIMIT
    words = np.full(2 * turns + 8, 2, u64)
    words[:2] = [over - 1, over - 1]  # rest = over - 1, then the coin exp(-rest / over) shows heads
    cursor = np.zeros(2, np.int64)
    y = randomness._laplace_attempt(words, cursor, u64(over), u64(1))
    assert cursor[0] == 2 * turns + 3
    assert y == over - 1 + over * turns < 2**60
    # The acceptance step of such a draw stays below 2**60 as well: the turns beyond the scale, squared.
    far, rest = divmod(int(y) - over, over)
    assert (far, rest) == (2**20 - 2, over - 1)
    # Where the words end every coin shows tails: the Gaussian attempt is rejected instead of running on.
    assert (
        randomness._gaussian_attempt(words, np.zeros(2, np.int64), u64(over), u64(1)) == randomness._REJECTED
    )


def probabilities(weight, scale):
    """The law on all values that matter."""
    y = np.arange(-math.ceil(60 * scale), math.ceil(60 * scale) + 1)
    p = weight(y / float(scale))
    return y, p / p.sum()


def fit(draws, y, p):
    """p-value of the chi-square test with at most 40 bins of neighbouring values, equally likely if possible."""
    groups = np.minimum((np.cumsum(p) - p / 2) * 40, 39).astype(int)
    expected = np.bincount(groups, p) * draws.size
    seen = np.bincount(groups[np.clip(draws - y[0], 0, y.size - 1)], minlength=expected.size)
    return stats.chisquare(seen[expected > 0], expected[expected > 0]).pvalue


LAWS = {
    "gaussian": (RandomStream.discrete_gaussian, lambda x: np.exp(-np.square(x) / 2)),
    "laplace": (RandomStream.discrete_laplace, lambda x: np.exp(-np.abs(x))),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [Fraction(1, 3), 1, Fraction(7, 3), 5, 50], ids=str)
def test_draws_follow_the_law(law, scale):
    draw, weight = LAWS[law]
    draws = draw(RandomStream(unsafe_seed=11), scale, 200_000)
    y, p = probabilities(weight, Fraction(scale))
    assert fit(draws, y, p) > ALPHA
    assert draws.mean() / draws.std() * math.sqrt(draws.size) == pytest.approx(0, abs=5)


@pytest.mark.parametrize("law", LAWS)
def test_a_scale_two_per_cent_off_is_caught(law):
    draw, weight = LAWS[law]
    draws = draw(RandomStream(unsafe_seed=12), 49, 200_000)
    assert fit(draws, *probabilities(weight, Fraction(50))) < ALPHA


def test_dropping_unfinished_draws_would_be_caught():
    # The broken twin of repeating a draw: 12 words at a time and no second chance favour quick draws.
    words = np.random.default_rng(3).integers(0, 2**64, (40_000, 12), u64)
    kept, out = [], np.empty(1, np.int64)
    for row in words:
        if randomness.discrete_gaussian(row, out, 50, 1)[0]:
            kept.append(int(out[0]))
    assert fit(np.array(kept), *probabilities(LAWS["gaussian"][1], Fraction(50))) < ALPHA


def test_wide_draws_look_continuous():
    for sigma in (2**20, 2**39 + 12345, 2**40):
        draws = RandomStream(unsafe_seed=13).discrete_gaussian(sigma, 100_000) / sigma
        assert stats.kstest(draws, "norm").pvalue > ALPHA
        draws = RandomStream(unsafe_seed=13).discrete_laplace(sigma, 100_000) / sigma
        assert stats.kstest(draws, "laplace").pvalue > ALPHA
