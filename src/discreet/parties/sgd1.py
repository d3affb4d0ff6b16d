"""SGD1, one record at a time: each token goes to one party, for the gradient of one of its records.

Whose record comes next is the coordinator's secret, drawn from a key before the first token:

* ``"uniform"``: every token asks for a record drawn from all, independently;
* ``"balanced"``: every pass asks for all records once, in a fresh random order;
* ``"private"``: the coordinator draws the party only, and the party draws the record in secret.

The coordinator gives each party a key of its own at the start. From it the party knows, and can account for, which
record its k-th call concerns and how often the most used of its records has been asked for by then. So what a call
costs depends on its number alone: a party that lost its memory need not remember anything else.

A call brings the model; the answer is the clipped gradient of one record with noise, an estimate of the gradient of
the mean loss. (The notes scale it by n, to that of the sum.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from discreet.noise import add_noise
from discreet.parties.consent import Terms
from discreet.parties.holding import Holder
from discreet.parties.messages import Message
from discreet.parties.sgd2 import checked
from discreet.parties.study import Study
from discreet.randomness import RandomStream

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

KEY_BYTES = 32
_BLOCK = 4096


def request(study: Study, party: str, call: int, theta: Floats) -> Message:
    """The token, for a party's ``call``-th call."""
    return Message(study.digest(), "token", call, party, theta)


def noisy_gradient(terms: Terms, holder: Holder, theta: Floats, record: int, stream: RandomStream) -> Floats:
    """What a party sends: the gradient of one record, clipped, with noise.

    Guarantee: costs one ``terms.noise`` event for that record, and nothing for the others.
    """
    total = checked(holder.clipped_sum(theta, np.array([record], np.intp)), terms.study)
    return np.asarray(add_noise(total, terms.noise, stream))


def derived_key(key: bytes, purpose: str) -> bytes:
    """A key for one purpose, from which nobody can tell the others."""
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=KEY_BYTES).digest()


def _draws(key: bytes) -> RandomStream:
    """A stream that whoever knows the key can repeat. The key is secret, so to others it is random."""
    return RandomStream(unsafe_seed=int.from_bytes(key, "big"), threads=1)


def order(study: Study, key: bytes) -> Iterator[str]:
    """Who gets the token, from the first on without end."""
    names, sizes = study.names, np.array([study.parties[name] for name in study.names])
    stream, ends = _draws(derived_key(key, "order")), np.cumsum(sizes)
    while True:
        if study.training.schedule == "balanced":
            tickets = _permutations(stream, int(ends[-1]))
        else:
            tickets = stream.integers(int(ends[-1]), _BLOCK)
        yield from (names[place] for place in np.searchsorted(ends, tickets, side="right").tolist())


def _permutations(stream: RandomStream, size: int) -> Indices:
    """Random orders, one or more after the other: those of random numbers, of which no two of 63 bits are equal."""
    passes = max(1, _BLOCK // size)
    return np.argsort(stream.integers(2**63, (passes, size)), axis=1, kind="stable").reshape(-1)


class Calls:
    """A party's calls: which record each concerns, and how often the most used one is asked for by then.

    >>> calls = Calls("balanced", records=3, key=bytes(32))
    >>> [calls.take(call)[1] for call in (1, 2, 3, 4)]
    [1, 1, 1, 2]

    Calls are taken in rising order; those left out count as used.
    """

    def __init__(self, schedule: str, records: int, key: bytes) -> None:
        self._balanced, self._records = schedule == "balanced", records
        self._stream = _draws(key)
        self._block: list[int] = []
        self._most: list[int] = []
        self._before = 0  # calls before the block
        self._counts = np.zeros(0 if self._balanced else records, np.int64)

    def take(self, call: int) -> tuple[int, int]:
        """The record of the ``call``-th call, counted from 1, and the uses of the most used record by then."""
        while call > self._before + len(self._block):
            self._next_block()
        place = call - self._before - 1
        return self._block[place], self._most[place]

    def first_call_with(self, uses: int) -> int:
        """The first call by which some record is asked for the ``uses``-th time."""
        while not self._most or self._most[-1] < uses:
            self._next_block()
        return self._before + int(np.searchsorted(self._most, uses)) + 1

    def _next_block(self) -> None:
        self._before += len(self._block)
        if self._balanced:
            block = _permutations(self._stream, self._records)
            most = (self._before + np.arange(len(block))) // self._records + 1
        else:
            block = self._stream.integers(self._records, _BLOCK)
            before = self._most[-1] if self._most else 0
            most = np.maximum.accumulate(np.maximum(_running_counts(block, self._counts), before))
        self._block, self._most = block.tolist(), most.tolist()


def _running_counts(block: Indices, counts: Indices) -> Indices:
    """How often each record of the block was asked for by then; ``counts`` goes along."""
    by_record = np.argsort(block, kind="stable")
    sorted_block = block[by_record]
    starts = np.flatnonzero(np.append(True, sorted_block[1:] != sorted_block[:-1]))
    lengths = np.diff(np.append(starts, len(block)))
    rank = np.arange(len(block)) - np.repeat(starts, lengths) + 1
    running = np.empty(len(block), np.int64)
    running[by_record] = counts[sorted_block] + rank
    counts[sorted_block[starts]] += lengths
    return running
