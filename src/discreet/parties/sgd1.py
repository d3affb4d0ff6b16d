"""SGD1, one record at a time: each token goes to one party, for the gradient of one of its records.

Whose record comes next is the coordinator's secret, drawn from a key before the first token:

* ``"uniform"``: every token asks for a record drawn from all, independently;
* ``"balanced"``: every pass asks for all records once, in a fresh random order;
* ``"private"``: the coordinator draws the party only, and the party draws the record in secret.

The coordinator gives each party a key of its own at the start. From it the party knows, and can account for, which
record its k-th call concerns and how often the most used of its records has been asked for by then. So what a call
costs depends on its number alone: a party that lost its memory need not remember anything but the last number, which
its ledger keeps. The number is that of the party's turn in the schedule, whatever became of earlier turns: what was
lost is not made up for, so nobody releases more than the schedule holds.

A call brings the model; the answer is the clipped gradient of one record with noise, an estimate of the gradient of
the mean loss. (The notes scale it by n, to that of the sum.)
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation
from discreet.ledger.ledger_log import LEASES, Run
from discreet.parties.messages import Holder, Message, Refusal, Refused
from discreet.parties.party_plan import PartyPlan
from discreet.parties.sgd2 import MOST_LEASED, Session, bounded_sum
from discreet.parties.study import Study
from discreet.trusted.permits import NoisePermit

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

KEY_BYTES = 32
MOST_AHEAD = 2**20
"""A party that missed more of its calls than this in a row, on a uniform schedule, takes no further part."""

_BLOCK = 4096


def request(study: Study, party: str, call: int, theta: Floats) -> Message:
    """The token, for a party's ``call``-th call."""
    return Message(study.digest(), "token", call, party, theta)


def gradient_of(terms: PartyPlan, holder: Holder, theta: Floats, record: int) -> BoundedSum:
    """Return the clipped gradient of one record, without noise."""
    holder = getattr(holder, "one_by_one", holder)  # where there is a shorter way for one record
    return bounded_sum(terms, holder, theta, np.array([record], np.intp))


def noisy_gradient(
    terms: PartyPlan, holder: Holder, theta: Floats, record: int, permit: NoisePermit
) -> Floats:
    """Return what a party sends: the gradient of one record, clipped, with noise.

    Guarantee: costs one release of Gaussian noise for that record, and nothing for the others.
    """
    permit.check(terms.step_noise)
    return np.asarray(permit.release(gradient_of(terms, holder, theta, record)))


def derived_key(key: bytes, purpose: str) -> bytes:
    """A key for one purpose, from which nobody can tell the others."""
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=KEY_BYTES).digest()


def keyed_draws(key: bytes) -> RandomStream:
    """A stream that whoever knows the key can repeat. The key is secret, so to others it is random."""
    return RandomStream(unsafe_seed=int.from_bytes(key, "big"), threads=1)


def permutations(stream: RandomStream, size: int, passes: int) -> Indices:
    """Random orders, one after the other: those of random numbers, of which no two of 63 bits are equal."""
    return np.argsort(stream.integers(2**63, (passes, size)), axis=1, kind="stable").reshape(-1)


class _Block(NamedTuple):
    """Some calls in a row: their records, and the uses of the most used record by each; the counts after them."""

    number: int
    records: list[int]
    most: list[int]
    highest: int
    counts: Indices


class Call(NamedTuple):
    """One call of a party: the record that it concerns, and the uses of the most used record by then."""

    number: int
    record: int
    uses: int
    block: _Block


class Calls:
    """A party's calls: which record each concerns, and how often the most used one is asked for by then.

    >>> calls = Calls("balanced", records=3, key=bytes(32))
    >>> [calls.take(call)[1] for call in (1, 2, 3, 4)]
    [1, 1, 1, 2]

    Calls are taken in rising order, from the one ``after`` that was left off at; those left out count as used. To
    :meth:`find` one moves nothing, so a call that is found and then refused leaves everything as it was.
    """

    def __init__(self, schedule: str, records: int, key: bytes, after: int = 0) -> None:
        self._balanced, self._records, self._key = schedule == "balanced", records, key
        self._size = max(1, _BLOCK // records) * records if self._balanced else _BLOCK
        self._last = after  # the last call taken, or left out
        self._block = _Block(-1, [], [], 0, np.zeros(0 if self._balanced else records, np.int64))
        if after:
            self._block = self._block_at((after - 1) // self._size)

    def find(self, call: int) -> Call:
        """The ``call``-th call, counted from 1. What it costs to find is bounded, however far away it is.

        Raises :class:`PlanViolation` if it is over, or too far ahead: a uniform schedule has to be counted through.
        """
        if not self._last < call or (not self._balanced and call > self._last + MOST_AHEAD):
            raise PlanViolation("This call is over, or too far ahead.")
        number, place = divmod(call - 1, self._size)
        block = self._block_at(number)
        return Call(call, block.records[place], block.most[place], block)

    def move_to(self, found: Call) -> None:
        """The call is made: it and all before it are over."""
        if found.number <= self._last:
            raise PlanViolation("This call is over.")
        self._block, self._last = found.block, found.number

    def take(self, call: int) -> tuple[int, int]:
        """Find a call and make it: its record, and the uses of the most used record by then."""
        found = self.find(call)
        self.move_to(found)
        return found.record, found.uses

    def _block_at(self, number: int) -> _Block:
        """A block of calls, not before the present one."""
        block = self._block
        if block.number == number:
            return block
        if self._balanced:
            passes = self._size // self._records
            order = permutations(self._draws(number), self._records, passes)
            most = number * passes + 1 + np.arange(self._size) // self._records
            return _Block(number, order.tolist(), most.tolist(), int(most[-1]), block.counts)
        counts, highest = block.counts.copy(), block.highest
        for at in range(block.number + 1, number + 1):
            drawn = self._draws(at).integers(self._records, self._size)
            most = np.maximum.accumulate(np.maximum(_running_counts(drawn, counts), highest))
            highest = int(most[-1])
        return _Block(number, drawn.tolist(), most.tolist(), highest, counts)

    def _draws(self, number: int) -> RandomStream:
        return keyed_draws(derived_key(self._key, f"block {number}"))


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


class CallSession(Session):
    """SGD1: the coordinator's key says which record a call concerns, and a step is one more use of the most used.

    The ledger keeps the number of the call besides, up to a hundredth of all calls ahead, so that a session after a
    crash loses no more than these. Which calls it refuses follows from numbers that everybody knows, not from the
    schedule.
    """

    kind = "token"

    def __init__(
        self, terms: PartyPlan, holder: Holder, run: Run, stream: RandomStream, key: bytes | None = None
    ) -> None:
        super().__init__(terms, holder, run, stream, key)
        agreed, self._calls = terms.numbers, None
        if agreed.schedule != "private":
            assert key is not None  # the party asks for one
            self._round = self._marked = self._first = run.marked
            self._calls = Calls(agreed.schedule, agreed.records, key, after=run.marked)
            self._ahead = max(1, min(agreed.calls // LEASES, MOST_LEASED))

    def next_round(self) -> int:
        return self._round + 1 if self._calls is not None else super().next_round()

    def _release(self, round: int, theta: Floats) -> Floats:
        agreed = self._terms.numbers
        if round > agreed.rounds:
            raise Refused(Refusal.BEYOND_PLAN)
        if self._calls is None:  # the record is the party's own secret, and a step is a call
            permit = self._charge(round)
            record = int(self._stream.integers(agreed.records))
        else:
            try:
                call = self._calls.find(round)
            except PlanViolation:  # further ahead than can be counted through
                raise Refused(Refusal.BEYOND_PLAN) from None
            permit = self._charge(call.uses)
            self._mark(round)
            self._calls.move_to(call)
            record = call.record
        self._round = self._answered = round
        return noisy_gradient(self._terms, self._holder, theta, record, permit)

    def _mark(self, call: int) -> None:
        """Keep that this call is over, and some to come, before it is answered."""
        if call > self._marked:
            ahead = min(self._ahead, max(1, call - self._first))
            self._run.mark(call + ahead - 1)
            self._marked = call + ahead - 1
