"""The stream: the laws of its draws, and that nothing makes it repeat itself."""

import copy
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import InvalidParameter
from support.conformance import THRESHOLD, suspicion

# Laws. The streams are seeded: trusted randomness would make a good test fail now and then.


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 8_000_000), (np.float64, 2_000_000)])
def test_normal_draws_are_normal(dtype, size):
    draws = RandomStream(unsafe_seed=1).normal(size, dtype)
    assert draws.dtype == dtype
    assert suspicion(draws) > THRESHOLD


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("noise times 0.98", lambda z: 0.98 * z),
        ("noise times 1.02", lambda z: 1.02 * z),
        ("tails cut", lambda z: z[np.abs(z) < 4.0]),
        ("heavier tails", lambda z: z * np.where(np.arange(z.size) % 50, 1.0, 1.4)),
        ("every draw twice", lambda z: np.repeat(z, 2)),
        ("one key for two draws", lambda z: np.concatenate([z, z])),
        ("biased", lambda z: z + 0.01),
    ],
)
def test_broken_noise_is_caught(name, broken):
    draws = RandomStream(unsafe_seed=2).normal(500_000, np.float32)
    assert suspicion(draws) > THRESHOLD
    assert suspicion(broken(draws)) < THRESHOLD, name


def laplace_suspicion(sample):
    """The smallest p-value of: mean, mean magnitude, Kolmogorov–Smirnov."""
    scores = [np.mean(sample) * (sample.size / 2) ** 0.5, (np.mean(np.abs(sample)) - 1) * sample.size**0.5]
    return min(*(2 * stats.norm.sf(np.abs(scores))), stats.kstest(sample, "laplace", method="asymp").pvalue)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_laplace_draws_follow_their_law(dtype):
    draws = RandomStream(unsafe_seed=3).laplace(200_000, dtype)
    assert draws.dtype == dtype
    assert laplace_suspicion(draws.astype(np.float64)) > THRESHOLD
    assert laplace_suspicion(0.98 * draws.astype(np.float64)) < THRESHOLD


def test_uniform_has_53_bits():
    draws = RandomStream(unsafe_seed=4).uniform(100_000)
    scaled = draws * 2.0**53
    assert np.all((draws >= 0) & (draws < 1) & (scaled == np.floor(scaled)))
    assert np.mean(scaled % 2) == pytest.approx(0.5, abs=0.01)
    assert stats.kstest(draws, "uniform").pvalue > THRESHOLD


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 1000])
def test_integers_are_uniform(bound):
    draws = RandomStream(unsafe_seed=5).integers(bound, 100_000)
    counts = np.bincount(draws, minlength=bound)
    assert counts.size == bound
    assert bound == 1 or stats.chisquare(counts).pvalue > THRESHOLD


def test_integers_reach_both_ends_of_int64():
    draws = RandomStream(unsafe_seed=5).integers(2**63, 10_000)
    assert 0 <= draws.min() < 2**52
    assert draws.max() > 2**63 - 2**52


def test_blocks_are_scaled():
    out = np.empty(300_001, np.float32)
    RandomStream(unsafe_seed=6).each_block("normal", out.size, 2.5, out.dtype, out.__setitem__)
    assert np.allclose(out, 2.5 * RandomStream(unsafe_seed=6).normal(out.size, np.float32), rtol=1e-6)


@pytest.mark.parametrize("shape", [(), 0, 1, 2, 3, (0, 4), (3, 5, 7), (1, 1)])
def test_shapes(shape):
    stream, expected = RandomStream(), np.empty(shape).shape
    for draw in (stream.uniform, stream.normal, stream.laplace):
        assert draw(shape).shape == expected
    assert stream.normal(shape, np.float32).shape == expected
    assert stream.integers(5, shape).shape == expected
    assert stream.discrete_gaussian(3, shape).dtype == np.int64
    assert len(stream.bytes(17)) == 17


# Keys.


def test_bytes_are_aes_256_in_counter_mode(monkeypatch):
    key, size = bytes(range(32)), 2**18
    monkeypatch.setattr(os, "urandom", lambda count: key)
    ours = RandomStream().bytes(size + 100)
    for block, part in ((0, ours[:size]), (1, ours[size:])):  # each block has its own range of the counter
        counter = Cipher(algorithms.AES(key), modes.CTR((block << 40).to_bytes(16, "big"))).encryptor()
        assert part == counter.update(bytes(len(part)))


def test_every_draw_has_its_own_key():
    seen = []
    stream = RandomStream()
    fresh = stream._fresh_key
    stream._fresh_key = lambda: seen.append(fresh()) or seen[-1]
    for _ in range(50):
        stream.normal(3000)
        stream.discrete_gaussian(4, 300)
    assert len(set(seen)) == len(seen) == 100
    assert {len(key) for key in seen} == {32}


def test_few_draws_are_made_of_fresh_words_of_the_system(monkeypatch):
    asked, urandom = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(urandom(count)) or asked[-1])
    stream = RandomStream()
    first, second = stream.normal(256), stream.normal(256)
    stream.discrete_gaussian(4, 2)
    assert len(asked) >= 3
    assert min(map(len, asked)) > 32  # the words themselves, not keys
    assert not np.intersect1d(first, second).size
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(256)) * (count // 256 + 1))
    monkeypatch.setattr(os, "urandom", lambda count, whole=os.urandom: whole(count)[:count])
    assert np.array_equal(stream.normal(9), stream.normal(9))  # nothing but these words decides


def test_seeds_repeat_and_are_not_trusted():
    one, two, other = (RandomStream(unsafe_seed=seed) for seed in (9, 9, 10))
    first = one.normal(100)
    assert np.array_equal(first, two.normal(100))
    assert not np.array_equal(first, other.normal(100))
    assert not np.array_equal(first, one.normal(100))
    assert (one.trusted, RandomStream().trusted, system_stream().trusted) == (False, True, True)
    assert repr(one) == "RandomStream(unsafe_seed=9)"


def test_global_seeds_change_nothing():
    draws = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        draws.append(RandomStream().normal(10).tolist())
    assert draws[0] != draws[1]


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_number_of_threads_does_not_change_the_draws(monkeypatch, threads):
    monkeypatch.setattr("discreet.core.randomness._BLOCKS_WORTH_A_THREAD", 1)
    size = 5 * 2**16 + 12_345
    one, more = RandomStream(threads=1, unsafe_seed=3), RandomStream(threads=threads, unsafe_seed=3)
    assert np.array_equal(one.normal(size, np.float32), more.normal(size, np.float32))
    assert np.array_equal(one.laplace(size), more.laplace(size))
    assert np.array_equal(
        one.discrete_gaussian(Fraction(9, 2), 50_000), more.discrete_gaussian(Fraction(9, 2), 50_000)
    )
    assert one.bytes(size) == more.bytes(size)


def test_memory_is_bounded():
    stream = RandomStream(threads=2)
    stream.normal(10, np.float32)
    tracemalloc.start()
    stream.each_block("normal", 4_000_000, 1.0, np.float32, lambda where, draws: None)
    assert tracemalloc.get_traced_memory()[1] < 2**21  # the draws alone would take 2**24 bytes
    tracemalloc.stop()


def test_each_block_passes_every_draw_once(monkeypatch):
    monkeypatch.setattr("discreet.core.randomness._BLOCKS_WORTH_A_THREAD", 1)
    out = np.zeros(200_001, np.float32)

    def take(where, draws):
        out[where] += draws

    RandomStream(unsafe_seed=4).each_block("normal", out.size, 1.0, np.float32, take)
    assert np.array_equal(out, RandomStream(unsafe_seed=4).normal(out.size, np.float32))


# Repetition. Two equal 128-bit blocks among 1e6 random ones have probability 1.5e-27; their first 64 bits,
# which are compared, 2.7e-8: the false-alarm rate of each of the next tests.

BLOCKS = 125_000


def repeats(chunks):
    halves = np.concatenate([np.frombuffer(chunk, np.uint64)[::2] for chunk in chunks])
    return halves.size - np.unique(halves).size


def test_threads_do_not_repeat():
    stream, chunks = RandomStream(), []

    def draw():
        for _ in range(5):
            chunks.append(stream.bytes(16 * BLOCKS // 5))

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(len, chunks)) == 16 * 1_000_000
    assert repeats(chunks) == 0


FORKS = """
import os, sys
from discreet.core.randomness import RandomStream

def write(stream, size):
    sys.stdout.buffer.write(stream.bytes(size))
    sys.stdout.buffer.flush()

for stream, size in ((RandomStream(), {size}), (RandomStream(unsafe_seed=1), {twin})):
    write(stream, size)                 # in use before the fork
    for _ in range(2):
        if os.fork() == 0:
            write(stream, size)
            os._exit(0)
        os.wait()
    write(stream, size)
"""


def test_forks_and_new_processes_do_not_repeat():
    size, twin = 16 * BLOCKS, 16 * 100
    script = FORKS.format(size=size, twin=twin)  # a new interpreter, as spawn makes one, which then forks
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=100)
    assert len(run.stdout) == 4 * (size + twin)
    assert repeats([run.stdout[: 4 * size], RandomStream().bytes(4 * size)]) == 0
    # Broken twin: a seeded stream is a state, and a fork copies it. Both children repeat what comes next.
    assert repeats([run.stdout[4 * size :]]) == 200


def test_a_reused_key_is_caught(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    assert repeats([RandomStream().bytes(1600), RandomStream().bytes(1600)]) == 100


@pytest.mark.parametrize("stream", [RandomStream(), RandomStream(unsafe_seed=1)])
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy, lambda s: copy.deepcopy([s])])
def test_streams_refuse_to_be_duplicated(stream, duplicate):
    with pytest.raises(TypeError, match=r"cannot be pickled or copied.*Make a new RandomStream\(\)"):
        duplicate(stream)


# Refusals.

NAN = float("nan")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda s: RandomStream(threads=0), "threads"),
        (lambda s: RandomStream(threads=NAN), "threads"),
        (lambda s: RandomStream(unsafe_seed=-1), "unsafe_seed"),
        (lambda s: RandomStream(unsafe_seed=NAN), "unsafe_seed"),
        (lambda s: RandomStream(unsafe_seed="1"), "unsafe_seed"),
        (lambda s: RandomStream(unsafe_seed=True), "unsafe_seed"),
        (lambda s: s.normal(-1), "shape"),
        (lambda s: s.normal((2, NAN)), "shape"),
        (lambda s: s.normal(2, np.float16), "dtype"),
        (lambda s: s.normal(2, np.int64), "dtype"),
        (lambda s: s.each_block("normal", 3, 1.0, np.float16, print), "dtype"),
        (lambda s: s.each_block("normal", 3, NAN, np.float64, print), "scale"),
        (lambda s: s.each_block("laplace", 3, -1.0, np.float64, print), "scale"),
        (lambda s: s.each_block("cauchy", 3, 1.0, np.float32, print), "law"),
        (lambda s: s.bytes(-1), "shape"),
        (lambda s: s.integers(0), "bound"),
        (lambda s: s.integers(NAN), "bound"),
        (lambda s: s.integers(2**63 + 1), "bound"),
        (lambda s: s.discrete_gaussian(0), "sigma"),
        (lambda s: s.discrete_gaussian(NAN), "sigma"),
        (lambda s: s.discrete_gaussian(1.5), "sigma"),
        (lambda s: s.discrete_gaussian(2**40 + 1), "sigma"),
        (lambda s: s.discrete_gaussian(Fraction(0)), "sigma"),
        (lambda s: s.discrete_gaussian(Fraction(-1, 2)), "sigma"),
        (lambda s: s.discrete_laplace(Fraction(1, 2**41)), "scale"),
    ],
)
def test_refusals(call, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        call(RandomStream())
