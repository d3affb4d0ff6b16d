"""The floating-point kernels, word by word against high precision, and the far tails by forced words."""

import math

import mpmath
import numba
import numpy as np
import pytest
from scipy import stats

from discreet.core import float_samplers
from discreet.core.compiler import compiled

RNG = np.random.default_rng  # words for the kernels; the seeds make every p-value below a constant
NO_SPARE = np.zeros(float_samplers.SPARE_WORDS, np.uint64)
KERNELS = [
    (float_samplers.normal32, np.int32, np.float32, 4e-7),
    (float_samplers.normal64, np.int64, np.float64, 1e-15),
]
ALPHA = 1e-6  # of each goodness-of-fit test, if the seed were not fixed


def random_words(size, dtype, seed):
    return RNG(seed).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, size, dtype, endpoint=True)


def box_muller(radii, angles, bits):
    """The same map of words in extended precision, without refinement."""
    v = (radii.astype(np.longdouble) + 0.5) * np.longdouble(2) ** -bits
    length = -np.where(v > 0, np.log(np.abs(v)), np.log1p(-np.abs(v)))
    inner = (angles << 2).astype(np.longdouble) + 2
    t = inner * np.longdouble(2) ** -(bits + 1) * np.longdouble(mpmath.nstr(mpmath.pi, 25))
    cosine, sine = np.cos(t) * np.where(angles < 0, -1, 1), np.sin(t)
    swap = (angles & (1 << (bits - 2))) != 0
    radius = np.sqrt(2 * length)
    return radius * np.where(swap, sine, cosine), radius * np.where(swap, cosine, sine)


@pytest.mark.parametrize(("kernel", "word", "dtype", "tolerance"), KERNELS)
@pytest.mark.parametrize("half", [1, 2, 7, 255, 256, 257, 20_000])
def test_box_muller_agrees_with_extended_precision(kernel, word, dtype, tolerance, half):
    bits = 8 * np.dtype(word).itemsize
    words = random_words(2 * half, word, seed=half)
    # Magnitudes of all sizes down to 2**-12, where spare bits are not yet needed, on both sides of zero.
    magnitudes = (2 ** RNG(half).uniform(bits - 12, bits - 1, half)).astype(word)
    words[:half] = np.where(words[:half] < 0, ~magnitudes, magnitudes)
    out = np.empty(2 * half, dtype)
    kernel(words, NO_SPARE, out, 3.0)
    first, second = box_muller(words[:half], words[half:], bits)
    error = np.hypot(out[:half] - 3 * first, out[half:] - 3 * second) / np.hypot(3 * first, 3 * second)
    assert np.max(error) < tolerance


@pytest.mark.parametrize("word", [2**20, 2**20 + 1, 2**31 - 1, -(2**31), -(2**20) - 1, -(2**20) - 2, 2**23])
def test_words_outside_the_ends_need_no_spare_bits(word):
    words = np.array([word, 12345], np.int32)
    one, other = np.empty(2, np.float32), np.empty(2, np.float32)
    float_samplers.normal32(words, NO_SPARE, one, 1.0)
    float_samplers.normal32(words, ~NO_SPARE, other, 1.0)
    assert one.tolist() == other.tolist()
    first, second = box_muller(words[:1], words[1:], 32)
    assert one == pytest.approx([float(first[0]), float(second[0])], rel=1e-6)


def squared_radius(kernel, word, dtype, spare, scale=1.0):
    """Half the squared radius of the pair made of one radius word."""
    out = np.empty(2, dtype)
    kernel(np.array([word, 77], np.dtype(f"i{np.dtype(dtype).itemsize}")), spare, out, scale)
    return float(np.sum(np.square(out.astype(np.float64))) / 2)


def exact_length(magnitude, spare_words, from_one, bits):
    """-ln u for u = 0.(magnitude)(spare words) in binary plus half a step, measured from 0 or from 1."""
    with mpmath.workprec(600):
        u = mpmath.mpf(magnitude)
        for word in spare_words:
            u, bits = u * 2**64 + int(word), bits + 64
        u = (u + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** bits
        return float(-mpmath.log1p(-u) if from_one else -mpmath.log(u))


@pytest.mark.parametrize("from_one", [False, True])
@pytest.mark.parametrize("magnitude", [0, 1, 2, 1000, 2**20 - 1])
@pytest.mark.parametrize("more", [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0])
def test_an_end_word_is_continued_by_the_spare_bits(magnitude, more, from_one):
    low = 0x9ABCDEF1
    spare = np.array([low << 32, more, 3, 0], np.uint64).repeat([1, 1, 1, float_samplers.SPARE_WORDS - 3])
    word = ~magnitude if from_one else magnitude
    read = low ^ 0xFFFFFFFF if from_one else low  # a negative word counts down
    exact = exact_length((magnitude << 32) | read, [more], from_one, 64)
    assert squared_radius(float_samplers.normal32, word, np.float32, spare) == pytest.approx(exact, rel=1e-6)
    magnitude64 = (magnitude << 32) | 5
    word = ~magnitude64 if from_one else magnitude64
    exact = exact_length(magnitude64, [low << 32], from_one, 64)
    assert squared_radius(float_samplers.normal64, word, np.float64, spare) == pytest.approx(exact, rel=1e-12)


def test_tails_go_on_beyond_every_word():
    spare = NO_SPARE.copy()
    spare[3] = 2**63
    # 64 bits of word, two spare words of zeros, and 0.1 in binary: u is about 2**-193.
    radius = math.sqrt(2 * squared_radius(float_samplers.normal32, 0, np.float32, spare))
    assert radius == pytest.approx(math.sqrt(2 * 193 * math.log(2)), rel=1e-3)
    assert radius > 16
    assert math.isfinite(squared_radius(float_samplers.normal32, 0, np.float32, NO_SPARE))


def forced(kernel, word, dtype, count=20_000, refine=True):
    """Half the squared radii given that the radius word is ``word``, with random spare bits and angles."""
    lengths, angles = np.empty(count), random_words(count, np.int32, 5)
    spare = RNG(6).integers(0, 2**64, (count, float_samplers.SPARE_WORDS // 64), np.uint64)
    for i in range(count):
        own = np.tile(spare[i], 64) if refine else NO_SPARE
        out = np.empty(2, dtype)
        kernel(np.array([word, angles[i]], f"i{np.dtype(dtype).itemsize}"), own, out, 1.0)
        lengths[i] = np.sum(np.square(out.astype(np.float64))) / 2
    return lengths


@pytest.mark.parametrize(
    ("kernel", "dtype", "bits"), [(float_samplers.normal32, "f4", 32), (float_samplers.normal64, "f8", 64)]
)
def test_far_tail_has_the_right_law(kernel, dtype, bits):
    # Given that u < 2**-bits, which is 6.7 standard deviations and more, -ln u is bits * ln 2 plus an
    # exponential variable: the memoryless tail that 32 or 64 bits alone would cut off.
    excess = forced(kernel, 0, dtype) - bits * math.log(2)
    assert stats.kstest(excess, "expon").pvalue > ALPHA
    assert math.sqrt(2 * (excess.max() + bits * math.log(2))) > 8
    cut = forced(kernel, 0, dtype, count=200, refine=False) - bits * math.log(2)
    assert stats.kstest(cut, "expon").pvalue < ALPHA  # broken twin: no spare bits


def test_smallest_radii_have_the_right_law():
    # Given that 1 - u < 2**-32, -ln u is uniform on (0, 2**-32) up to relative terms of 2**-32.
    scaled = forced(float_samplers.normal32, -1, np.float32) * 2.0**32
    assert stats.kstest(scaled, "uniform").pvalue > ALPHA


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponential_agrees_with_extended_precision_on_every_side(dtype):
    words = random_words(5000, np.int64, seed=3)
    words[:4] = [2**52, ~(2**52), 2**63 - 1, -(2**63)]
    words = words[(words >= 2**52) | (words <= ~(2**52))]
    out = np.empty(words.size, dtype)
    float_samplers.exponential(words, NO_SPARE, out, 2.0)
    v = (words.astype(np.longdouble) + 0.5) * np.longdouble(2) ** -64
    exact = -2 * np.where(v > 0, np.log(np.abs(v)), np.log1p(-np.abs(v)))
    assert np.max(np.abs(out / exact - 1)) < 4 * np.finfo(dtype).eps


def test_exponential_end_words_are_continued():
    spare = np.full(float_samplers.SPARE_WORDS, 2**63, np.uint64)
    words, out = np.array([5, ~5, 0, 2**60], np.int64), np.empty(4)
    float_samplers.exponential(words, spare, out, 1.0)
    expected = [exact_length(m, s, e, 64) for m, s, e in ((5, [2**63], 0), (5, [2**63], 1), (0, [2**63], 0))]
    assert out[:3] == pytest.approx(expected, rel=1e-14)


def test_laplace_is_the_exponential_with_the_sign_of_a_second_word():
    words = random_words(2 * 3001, np.int64, seed=9)
    lengths, signed = np.empty(3001), np.empty(3001)
    float_samplers.exponential(words[:3001], NO_SPARE, lengths, 1.5)
    float_samplers.laplace(words, NO_SPARE, signed, 1.5)
    assert np.array_equal(np.abs(signed), lengths)
    assert np.array_equal(signed < 0, words[3001:] < 0)


def test_spare_words_suffice():
    # A block has 2**15 words that may need refinement, each with probability 2**-11 and two spare words.
    assert stats.binom.logsf(float_samplers.SPARE_WORDS // 2, 2**15, 2.0**-11) / math.log(10) < -60


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch):
    njit, asked = numba.njit, []

    def without_cache(**options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr("discreet.core.compiler.njit", without_cache)
    assert compiled(lambda x: x + 1)(2) == 3
    assert [options.get("cache") for options in asked] == [True, None]
    assert all(options["nogil"] for options in asked)
