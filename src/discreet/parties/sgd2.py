"""SGD2, everybody at once: in each round every party sends the noisy sum of its clipped gradients.

One round, as pure functions::

    coordinator   request(study, round, theta)                    the model, to all
    party         noisy_sum(terms, holder, theta, stream, permit) clipped, added up, noise of its own
    coordinator   round_sums.gradient(study, sums)                public weights; who is missing counts as zero

A :class:`Session` decides which rounds a party answers, pays for each of them, and only then looks at the records.
Only the ledger outlives it: after a crash all that was paid for counts as released, and the next session starts
beyond. The coordinator gets each party's own sum
(:class:`~discreet.parties.round_sums.PlainSums`), or only their total
(:class:`~discreet.parties.round_sums.SecureSums`).

The noise is drawn afresh by every party in every round; noise in common, as the notes' index suggests, would cancel
in differences.

A bound on what a whole party says: its sum, cut to a public length before the noise.

>>> total = BoundedSum(np.array([3000, 4000]), clip_norm=1.0, grid=2.0**-10)
>>> cut = cut_sum(total, most=2.0)
>>> cut.value, cut.clip_norm > 1.0
(array([1228, 1638]), True)

**What is proved.** Let a sum count n steps in d coordinates, and b be the bound in steps.

1. The cut sum has norm b at most, exactly: it is scaled to a little less, and rounded toward zero.
2. To project on a ball brings no two sums further apart, so one record moves the projected sum by no more than
   before. What is computed is less than e = sqrt(d) + 2 b (d + 8) 2**-52 steps away from the projection: the first
   term for rounding to the grid, the second for float64. So one record moves the cut sum by 2 e steps more at most,
   and that much is added to the clip norm that the result states; the noise, a multiple of it, grows along.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.core.sampling import PoissonSampler
from discreet.ledger.ledger_log import LEASES, Run
from discreet.parties.messages import EVERYBODY, Holder, Message, Refusal, Refused, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.secure.secure_messages import SecureMessages
from discreet.parties.study import Study
from discreet.trusted.permits import Charger, NoisePermit

Floats = NDArray[np.float64]

MOST_LEASED = 10_000
"""The most steps that are paid for at a time: a crash may lose so many, and skipping a lease takes as long.

Lease sizes double from one after each start, so a party that is killed repeatedly never loses more than it completed.
"""


def request(study: Study, round: int, theta: Floats) -> Message:
    """The question of one round."""
    return Message(study.digest(), "sum", round, EVERYBODY, theta)


def draw_records(terms: PartyPlan, rows: int, stream: RandomStream) -> NDArray[Any] | None:
    """The rows of a round: None for all, or by an independent coin for each; secret."""
    rate = terms.numbers.rate
    if rate == 1:
        return None
    sampler = PoissonSampler(terms.numbers.records, rate)
    return next(iter(sampler.batches(1, stream, rows=rows)))


def noisy_sum(
    terms: PartyPlan, holder: Holder, theta: Floats, stream: RandomStream, permit: NoisePermit
) -> Floats:
    """Return what a party sends; the records are drawn from ``stream``.

    Guarantee: costs one step of ``terms.event``.
    """
    permit.check(terms.step_noise)
    total = bounded_sum(terms, holder, theta, draw_records(terms, holder.records, stream))
    return np.asarray(permit.release(total))


def noisy_counts(
    terms: PartyPlan, holder: Holder, theta: Floats, stream: RandomStream, permit: NoisePermit
) -> NDArray[np.int64]:
    """Return what a party adds to a secure sum, in steps of the study's grid.

    Guarantee: none by itself, for it holds a share of the noise only; a secure sum of at least
    ``terms.numbers.shares`` such counts costs one step of ``terms.event``.
    """
    permit.check(terms.step_noise)
    total = bounded_sum(terms, holder, theta, draw_records(terms, holder.records, stream))
    return permit.add_noise_share(total)


def bounded_sum(
    terms: PartyPlan, holder: Holder, theta: Floats, records: NDArray[np.intp] | None
) -> BoundedSum:
    """The sum of the holder in the study's arithmetic, if it was clipped as agreed.

    The check is a matter of types and shapes, which are public.
    """
    agreed, grid = terms.numbers, terms.grid
    total = holder.clipped_sum(theta, records) if grid is None else holder.hardened_sum(theta, records, grid)
    fits = isinstance(total, BoundedSum) and total.norm == "l2" and total.value.shape == (agreed.dimension,)
    if not fits or total.clip_norm != agreed.clip_norm or total.grid != grid:
        raise ValueError("the holder's sum is not clipped as the study says")
    return total if agreed.party_bound is None else cut_sum(total, agreed.party_bound)


_UNIT = 2.0**-52


def cut_sum(total: BoundedSum, most: float) -> BoundedSum:
    """The sum of a party, which counts in grid steps, cut to a length of ``most`` clip norms.

    Guarantee: its norm is at most ``most * total.clip_norm``, and one record moves it by the result's clip norm
    at most.
    """
    assert total.grid is not None  # integers: the proof is for them
    bound = math.floor(Fraction(most) * Fraction(total.clip_norm) / Fraction(total.grid))
    counts = np.asarray(total.value).astype(np.float64)
    error = (counts.size + 8) * _UNIT
    limit, length = bound * (1 - error), math.sqrt(counts @ counts)
    cut = total.value if length <= limit else (counts * (limit / length)).astype(np.int64)
    slack = 2 * (math.sqrt(counts.size) + 2 * bound * error) * (1 + 1e-9)
    return BoundedSum(cut, math.nextafter(total.clip_norm + slack * total.grid, math.inf), grid=total.grid)


class Session(ABC):
    """The rounds of a party of SGD1 or SGD2. Only the ledger outlives it."""

    kind: str

    def __init__(
        self, terms: PartyPlan, holder: Holder, run: Run, stream: RandomStream, key: bytes | None = None
    ) -> None:
        self.key = key
        self._terms, self._holder = terms, holder
        self._run, self._stream = run, stream
        self._charger = Charger(run, stream)
        self._round = 0  # the last one that is over
        self._answered = 0  # the last one answered by this session
        self._lease = max(1, min(terms.steps // LEASES, MOST_LEASED))

    def next_round(self) -> int:
        """The first round that will be answered."""
        return max(self._round, self._charger.before) + 1

    def reply(self, request: Message) -> Message:
        """The answer to the next round: charged, then computed, then noised; or :class:`Refused`."""
        released = self._release(request.round, self._model(request))
        return Message(self._terms.study.digest(), "noisy", request.round, self._terms.party, released)

    @abstractmethod
    def _release(self, round: int, theta: Floats) -> Floats:
        """What leaves for this round, after its step is paid for."""

    def _model(self, request: Message) -> Floats:
        """The model of a request for a round that is not over."""
        theta = request.array
        if request.kind != self.kind:
            raise Refused(Refusal.OTHER_STUDY)
        right = theta.dtype == np.float64 and theta.shape == (self._terms.numbers.dimension,)
        if not right or not np.isfinite(theta).all():
            raise Refused(Refusal.MALFORMED)
        if request.round == self._answered:
            raise Refused(Refusal.OTHER_REQUEST)  # the same request would have got the answer that is kept
        if request.round < self.next_round():
            raise Refused(Refusal.PAST_ROUND)
        return theta

    def _charge(self, step: int) -> NoisePermit:
        """Pay for all steps up to this one, and return the permit for the noise of one answer."""
        if step > self._terms.steps:
            raise Refused(Refusal.BEYOND_PLAN)
        return self._charger.up_to(step, self._terms.step_noise, self._terms.numbers.clip_norm, self._lease)


class RoundSession(Session):
    """SGD2: a step of the ledger is a round."""

    kind = "sum"

    def _release(self, round: int, theta: Floats) -> Floats:
        permit = self._charge(round)
        self._round = self._answered = round
        return noisy_sum(self._terms, self._holder, theta, self._stream, permit)


class SecureSession(RoundSession):
    """SGD2 with secure sums: the noisy sum leaves under masks, and one more message helps to unmask the total."""

    kind = "mask"

    def __init__(
        self,
        terms: PartyPlan,
        holder: Holder,
        run: Run,
        stream: RandomStream,
        signing_key: Ed25519PrivateKey,
        roster: Roster,
    ) -> None:
        super().__init__(terms, holder, run, stream)
        group = terms.group(roster)
        self._messages = SecureMessages(terms.party, group, signing_key, stream, self._counts)

    def reply(self, request: Message) -> Message:
        """Keys, masks or shares, whatever the coordinator asks for."""
        return self._messages.reply(request)

    def _counts(self, request: Message) -> NDArray[np.int64]:
        theta = self._model(request)
        permit = self._charge(request.round)
        self._round = self._answered = request.round
        return noisy_counts(self._terms, self._holder, theta, self._stream, permit)
