"""Where all randomness comes from: :class:`RandomStream`, keyed by the operating system.

Every draw takes a fresh 256-bit key from ``os.urandom`` and expands it with AES-256 in counter mode. Between
draws a stream keeps nothing that decides the next one, so no fork, second thread, restored snapshot or seeded
global generator can make it repeat itself. Few draws are made of the words of ``os.urandom`` as they are.

>>> stream = RandomStream()
>>> stream.normal((2, 3)).shape, stream.trusted
((2, 3), True)

Tests need draws that repeat. A seeded stream gives them and says that it is not to be trusted; whoever
releases something made with it has to pass that on.

>>> test = RandomStream(unsafe_seed=7)
>>> test.integers(6, 4).tolist() == RandomStream(unsafe_seed=7).integers(6, 4).tolist(), test.trusted
(True, False)

A long draw is made in blocks, each with its own range of the counter, by several threads. The result does not
depend on their number, and the memory beyond the result is one block for each thread.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache, partial
from math import prod
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import DTypeLike

from discreet.core import float_samplers
from discreet.core.compiler import compiled
from discreet.core.float_samplers import Array, i64, u64
from discreet.errors import InvalidParameter, one_of, real, whole

Bytes = bytes
NoiseDistribution = Literal["normal", "laplace"]
Shape = int | tuple[int, ...]
Take = Callable[[slice, Array], None]

_BLOCK_BYTES = 2**18  # of random words: they and the draws made of them fit the second-level cache
_DISCRETE_BLOCK = 2**12  # draws; each costs about a hundred times a floating-point one
_BLOCKS_WORTH_A_THREAD = 16  # a new thread and its buffers cost about 0.2 ms, 16 blocks at least 1.5 ms
_ZEROS = memoryview(bytes(2**20))
_FEW, _FEW_DISCRETE = 1024, 64  # draws that are made of the operating system's own words


class _Keystream:
    """The words of one key, from any block on: AES-256-CTR, where each block owns 2**40 counter values.

    The two buffers are reused: fresh memory for every block would cost more than the draws.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._buffer = self._scratch = np.empty(0, np.uint8)

    def seek(self, block: int) -> None:
        self._cipher.reset_nonce((block << 40).to_bytes(16, "big"))

    def words(self, count: int, dtype: DTypeLike) -> Array:
        """The next words, until the next call."""
        size = count * np.dtype(dtype).itemsize
        if self._buffer.size < size + 15:  # the cipher asks for room for one more of its blocks
            self._buffer = np.empty(size + 15, np.uint8)
        self._cipher.update_into(_ZEROS[:size], self._buffer.data)
        return self._buffer[:size].view(dtype)

    def scratch(self, count: int, dtype: DTypeLike) -> Array:
        """Room for draws, until the next call."""
        size = count * np.dtype(dtype).itemsize
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        return self._scratch[:size].view(dtype)


class _SystemWords:
    """The same from the operating system itself: for few words that is quicker than to set up a cipher."""

    def seek(self, block: int) -> None:
        """Nothing to seek: no word is ever given out twice."""

    def words(self, count: int, dtype: DTypeLike) -> Array:
        """Fresh words, which belong to the caller."""
        return np.frombuffer(bytearray(os.urandom(count * np.dtype(dtype).itemsize)), dtype)

    def scratch(self, count: int, dtype: DTypeLike) -> Array:
        """Room for draws."""
        return np.empty(count, dtype)


_Words = _Keystream | _SystemWords


class _Recipe(NamedTuple):
    """How draws of one distribution and type are made of words."""

    kernel: Callable[[Array, Array, Array, float], None]
    word: np.dtype[Any]
    words_each: int

    def fill(self, out: Array, scale: float, keystream: _Words) -> None:
        odd = out.size % 2  # normal draws come in pairs
        even = keystream.scratch(out.size + 1, out.dtype) if odd else out
        split = even.size * self.words_each * self.word.itemsize
        block = keystream.words(split + 8 * float_samplers.SPARE_WORDS, np.uint8)
        self.kernel(block[:split].view(self.word), block[split:].view(np.uint64), even, scale)
        if odd:
            out[:] = even[:-1]

    @property
    def block(self) -> int:
        """Draws made of one block of words."""
        return _BLOCK_BYTES // (self.word.itemsize * self.words_each)


_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_LONG = np.dtype(np.int64)
_RECIPES = {
    ("normal", _SINGLE): _Recipe(float_samplers.normal32, np.dtype(np.int32), 1),
    ("normal", _DOUBLE): _Recipe(float_samplers.normal64, _LONG, 1),
    ("laplace", _SINGLE): _Recipe(float_samplers.laplace, _LONG, 2),
    ("laplace", _DOUBLE): _Recipe(float_samplers.laplace, _LONG, 2),
}


def _recipe(distribution: str, dtype: DTypeLike) -> _Recipe:
    one_of("law", distribution, ("normal", "laplace"))
    recipe = _RECIPES.get((distribution, np.dtype(dtype)))
    if recipe is None:
        raise InvalidParameter("dtype", np.dtype(dtype).name, "must be float32 or float64.")
    return recipe


class RandomStream:
    """Cryptographic randomness for noise and sampling, safe to share between threads and across forks.

    ``unsafe_seed`` is for tests: the draws repeat, and :attr:`trusted` is False. ``threads`` is how many
    may work on one long draw. A stream cannot be pickled or copied; make a new one where it is needed.

    Guarantee: for whoever cannot read this process's memory or break AES-256, the draws of a trusted stream
    are independent of each other and of everything else. Integers have exactly the stated distribution, and
    floating-point numbers have it up to the rounding of their type, tails included.
    """

    def __init__(self, *, threads: int | None = None, unsafe_seed: int | None = None) -> None:
        default = min(4, os.cpu_count() or 1)
        self._threads = default if threads is None else whole("threads", threads, at_least=1, at_most=256)
        self._seed = None if unsafe_seed is None else whole("unsafe_seed", unsafe_seed, at_least=0)
        self._seeded_draws = itertools.count()

    @property
    def trusted(self) -> bool:
        """False when a seed decides the draws: then nothing made of them is private."""
        return self._seed is None

    def __repr__(self) -> str:
        return "RandomStream()" if self.trusted else f"RandomStream(unsafe_seed={self._seed})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "A RandomStream cannot be pickled or copied, because a copy could repeat noise. "
            "Make a new RandomStream() where it is needed."
        )

    def uniform(self, shape: Shape = ()) -> Array:
        """Uniform multiples of 2**-53 in [0, 1)."""
        words = np.frombuffer(self.bytes(8 * _size(shape)), np.uint64).reshape(shape)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53)

    def normal(self, shape: Shape = (), dtype: DTypeLike = np.float64) -> Array:
        """Standard normal draws, as float64 or float32."""
        return self._array("normal", shape, dtype)

    def laplace(self, shape: Shape = (), dtype: DTypeLike = np.float64) -> Array:
        """Laplace draws of scale 1, as float64 or float32."""
        return self._array("laplace", shape, dtype)

    def _array(self, distribution: NoiseDistribution, shape: Shape, dtype: DTypeLike) -> Array:
        out = np.empty(_size(shape), dtype)
        self.each_block(distribution, out.size, 1.0, dtype, out.__setitem__)
        return out.reshape(shape)

    def each_block(
        self, distribution: NoiseDistribution, size: int, scale: float, dtype: DTypeLike, take: Take
    ) -> None:
        """Make ``size`` draws times ``scale`` and pass them on block by block.

        ``take(where, draws)`` is called once for each block, from several threads; ``where`` is the slice of
        the whole that the block stands for, and ``draws`` is valid during the call. So noise can be added to
        a long array without a second one of its length.
        """
        scale, recipe = real("scale", scale, at_least=0), _recipe(distribution, dtype)

        def work(where: slice, keystream: _Words) -> None:
            out = keystream.scratch(where.stop - where.start, dtype)
            recipe.fill(out, scale, keystream)
            take(where, out)

        self._in_blocks(size, recipe.block, work)

    def bytes(self, count: int) -> Bytes:
        """Random bytes."""
        out = np.empty(_size(count), np.uint8)

        def work(where: slice, keystream: _Words) -> None:
            out[where] = keystream.words(where.stop - where.start, np.uint8)

        self._in_blocks(out.size, _BLOCK_BYTES, work)
        return out.tobytes()

    def integers(self, bound: int, shape: Shape = ()) -> Array:
        """Uniform draws from 0, ..., bound - 1."""
        bound = whole("bound", bound, at_least=1, at_most=2**63)
        return self._whole_numbers(shape, 1.0, integers, np.uint64(bound))

    def discrete_laplace(self, scale: int | Fraction, shape: Shape = ()) -> Array:
        """Integers y with probability proportional to exp(-abs(y) / scale)."""
        return self._whole_numbers(shape, 8.6, discrete_laplace, *_fraction("scale", scale))

    def discrete_gaussian(self, sigma: int | Fraction, shape: Shape = ()) -> Array:
        """Integers y with probability proportional to exp(-(y / sigma)**2 / 2)."""
        return self._whole_numbers(shape, 15.5, discrete_gaussian, *_fraction("sigma", sigma))

    def _whole_numbers(
        self, shape: Shape, words_each: float, kernel: Callable[..., Any], *arguments: Any
    ) -> Array:
        """Run a kernel that takes as many words as it comes to; a draw that runs out of them is repeated."""
        out = np.empty(_size(shape), np.int64)

        def work(where: slice, keystream: _Words) -> None:
            part, words = out[where], np.empty(0, np.uint64)
            while part.size:
                fresh = keystream.words(int(part.size * words_each) + 64, np.uint64)
                words = np.concatenate((words, fresh))
                made, used = kernel(words, part, *arguments)
                part, words = part[made:], words[used:]

        self._in_blocks(out.size, _DISCRETE_BLOCK, work, _FEW_DISCRETE)
        return out.reshape(shape)

    def _in_blocks(
        self, size: int, per_block: int, work: Callable[[slice, _Words], None], few: int = _FEW
    ) -> None:
        """Call ``work`` once for each block, with the keystream at the beginning of the block's own range."""
        if self._seed is None and size <= few:
            if size:
                work(slice(0, size), _SystemWords())
            return
        key, blocks = self._fresh_key(), -(-size // per_block)

        def run(first: int, last: int) -> None:
            keystream = _Keystream(key)
            for block in range(first, last):
                if block:  # a new keystream is at the first block already
                    keystream.seek(block)
                work(slice(block * per_block, min(size, (block + 1) * per_block)), keystream)

        threads = max(1, min(self._threads, blocks // _BLOCKS_WORTH_A_THREAD))
        if threads == 1:
            run(0, blocks)
            return
        cuts = [blocks * i // threads for i in range(threads + 1)]
        # The threads live for one draw: a pool that is kept would be without its threads after a fork.
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(run, cuts[:-1], cuts[1:]):
                pass

    def _fresh_key(self) -> Bytes:
        if self._seed is None:
            return os.urandom(32)
        text = f"discreet, unsafe seed {self._seed}, draw {next(self._seeded_draws)}"
        return hashlib.sha256(text.encode()).digest()


@cache
def system_stream() -> RandomStream:
    """The stream that is used when none is given."""
    return RandomStream()


def _size(shape: Shape) -> int:
    sides = shape if isinstance(shape, tuple) else (shape,)
    return prod(whole("shape", side, at_least=0) for side in sides)


def _fraction(name: str, value: int | Fraction) -> tuple[int, int]:
    limit = SCALE_LIMIT
    exact = value if isinstance(value, Fraction) else Fraction(whole(name, value, at_least=1, at_most=limit))
    if not (0 < exact.numerator <= limit and exact.denominator <= limit):
        raise InvalidParameter(name, value, "must be a fraction above 0 with parts of at most 2**40.")
    return exact.numerator, exact.denominator


# Random words in, random integers out, by exact rejection.
#
# A rejection sampler takes as many words as it comes to. Each kernel fills ``out`` from ``words`` (uint64) and
# returns (draws made, words used): when the words run out inside a draw it stops and reports where that draw
# began; the caller repeats the draw from there with more words appended. (To drop the unfinished draw instead
# would favour the draws that finish quickly.)
#
# :func:`discrete_laplace` and :func:`discrete_gaussian` follow Canonne, Kamath, Steinke, *The discrete
# Gaussian for differential privacy* (2020), here CKS. A scale is a fraction ``over / under`` of integers
# up to ``SCALE_LIMIT``. Every chance is a product of chances that a uniform number below ``over`` is less
# than another, so no intermediate value exceeds 2**60; see :func:`_laplace_attempt`.
#
# The time that a draw takes depends on its value: whoever can time this process draw by draw is not kept out.

SCALE_LIMIT = 2**40
"""Largest numerator and denominator of the scale of a discrete draw."""

_MOST_TURNS = 2**20 - 1  # of a geometric draw; reached with probability exp(-2**20)
_REJECTED = np.int64(-(2**63))
_UNIFORM, _LAPLACE, _GAUSSIAN = 0, 1, 2


@compiled
def _next(words: Array, cursor: Array) -> Any:
    """The next word. Past the end it is all ones, which makes every loop below stop at once."""
    position = cursor[0]
    cursor[0] = position + 1
    return words[position] if position < words.size else u64(2**64 - 1)


@compiled
def _below(words: Array, cursor: Array, bound: Any) -> Any:
    """Uniform on 0, ..., bound - 1, exactly: words below 2**64 mod bound are passed over."""
    word = _next(words, cursor)
    while word < bound and word < (u64(0) - bound) % bound:
        word = _next(words, cursor)
    return word % bound


@compiled
def _is_finished(words: Array, cursor: Array) -> Any:
    """True when the words sufficed for the draw just made; then the next draw begins at ``cursor[1]``."""
    if cursor[0] > words.size:
        return False
    cursor[1] = cursor[0]
    return True


@compiled
def _exp_minus(words: Array, cursor: Array, part: Any, whole: Any) -> Any:
    """True with probability exp(-part/whole), for 0 <= part <= whole.

    Trial k succeeds with probability part/whole/k; the first failure comes at an odd k with probability
    1 - x + x**2/2 - ... = exp(-x) (CKS, Algorithm 1). The two factors are tried one by one, so that
    whole * k is never formed.
    """
    k = u64(1)
    while (k == u64(1) or _below(words, cursor, k) == u64(0)) and (
        part == whole or _below(words, cursor, whole) < part
    ):
        k += u64(1)
    return (k & u64(1)) == u64(1)


@compiled
def _exp_minus_half_square(words: Array, cursor: Array, part: Any, whole: Any) -> Any:
    """True with probability exp(-(part/whole)**2 / 2), for 0 <= part <= whole, in the same way."""
    k = u64(1)
    while (
        _below(words, cursor, k + k) == u64(0)
        and _below(words, cursor, whole) < part
        and _below(words, cursor, whole) < part
    ):
        k += u64(1)
    return (k & u64(1)) == u64(1)


@compiled
def _laplace_attempt(words: Array, cursor: Array, over: Any, under: Any) -> Any:
    """y with probability proportional to exp(-abs(y) * under / over), or a rejection (CKS, Algorithm 2).

    With ``over`` up to 2**40 and fewer than 2**20 turns, rest + over * turns < over * (turns + 1) <= 2**60,
    and :func:`_gaussian_attempt` forms nothing larger. Stopping at 2**20 turns moves a probability of
    exp(-2**20).
    """
    rest = _below(words, cursor, over)
    if not _exp_minus(words, cursor, rest, over):
        return _REJECTED
    turns = u64(0)
    while turns < u64(_MOST_TURNS) and _exp_minus(words, cursor, u64(1), u64(1)):
        turns += u64(1)
    y = i64((rest + over * turns) // under)
    if _below(words, cursor, u64(2)) == u64(0):
        return y
    return -y if y > i64(0) else _REJECTED  # zero must not count twice


@compiled
def _gaussian_attempt(words: Array, cursor: Array, over: Any, under: Any) -> Any:
    """y with probability proportional to exp(-(y * under / over)**2 / 2), or a rejection.

    A Laplace draw of the same scale is kept with probability exp(-d**2 / 2), where d is the distance of
    abs(y) * under / over from 1 (CKS, Algorithm 3). Written as d = turns + rest / over, that is exp(-1/2) to
    the power turns**2, times exp(-rest / over) to the power turns, times exp(-(rest / over)**2 / 2): no large
    square is ever formed.
    """
    y = _laplace_attempt(words, cursor, over, under)
    if y == _REJECTED:
        return y
    size = u64(y if y > i64(0) else -y) * under
    distance = size - over if size > over else over - size
    turns = distance // over
    rest = distance - turns * over
    for _ in range(turns * turns):
        if not _exp_minus_half_square(words, cursor, u64(1), u64(1)):
            return _REJECTED
    for _ in range(turns):
        if not _exp_minus(words, cursor, rest, over):
            return _REJECTED
    return y if _exp_minus_half_square(words, cursor, rest, over) else _REJECTED


@compiled
def _fill(distribution: int, words: Array, out: Array, over: int, under: int = 1) -> Any:
    """Fill ``out`` with draws of one of the distributions below; return how many were made, and of how many words."""
    cursor, made = np.zeros(2, np.int64), 0
    while made < out.size:
        if distribution == _UNIFORM:
            y = i64(_below(words, cursor, u64(over)))
        elif distribution == _LAPLACE:
            y = _laplace_attempt(words, cursor, u64(over), u64(under))
        else:
            y = _gaussian_attempt(words, cursor, u64(over), u64(under))
        if not _is_finished(words, cursor):
            break
        if y != _REJECTED:
            out[made] = y
            made += 1
    return made, cursor[1]


integers = partial(_fill, _UNIFORM)  # uniform on 0, ..., over - 1
discrete_laplace = partial(_fill, _LAPLACE)  # probability proportional to exp(-abs(y) * under / over)
discrete_gaussian = partial(_fill, _GAUSSIAN)  # probability proportional to exp(-(y * under / over)**2 / 2)
