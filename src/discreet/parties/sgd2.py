"""SGD2, everybody at once: in each round every party sends the noisy sum of its clipped gradients.

One round, as pure functions::

    coordinator   request(study, round, theta)                    the model, to all
    party         noisy_sum(terms, holder, theta, stream, permit) clipped, added up, noise of its own
    coordinator   round_sums.gradient(study, sums)                public weights; who is missing counts as zero

A session pays for a round before the party looks at its records. The coordinator gets each party's own sum
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
from fractions import Fraction
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.core.sampling import PoissonSampler
from discreet.errors import PlanViolation
from discreet.ledger.ledger_log import Run
from discreet.parties.messages import EVERYBODY, Holder, Message, Refusal, Roster
from discreet.parties.party_plan import NoisySession, PartyPlan, PartySession, Refused
from discreet.parties.secure.secure_sum import SecureParty
from discreet.parties.study import Study
from discreet.trusted.permits import NoisePermit

Floats = NDArray[np.float64]


def request(study: Study, round: int, theta: Floats) -> Message:
    """The question of one round."""
    return Message(study.digest(), "sum", round, EVERYBODY, theta)


def draw_records(study: Study, party: str, rows: int, stream: RandomStream) -> NDArray[Any] | None:
    """Whose turn it is among the party's rows: None for all, or by an independent coin for each; secret."""
    rate = study.training.rate
    if rate == 1:
        return None
    sampler = PoissonSampler(study.records_of(party), rate)
    return next(iter(sampler.batches(1, stream, rows=rows)))


def noisy_sum(
    terms: PartyPlan, holder: Holder, theta: Floats, stream: RandomStream, permit: NoisePermit
) -> Floats:
    """Return what a party sends; the records are drawn from ``stream``.

    Guarantee: costs one step of ``terms.event``.
    """
    permit.check(terms.step_noise)
    records = draw_records(terms.study, terms.party, holder.records, stream)
    total = bounded_sum(terms.study, holder, theta, records)
    return np.asarray(permit.release(total))


def noisy_counts(
    terms: PartyPlan, holder: Holder, theta: Floats, stream: RandomStream, permit: NoisePermit
) -> NDArray[np.int64]:
    """Return what a party adds to a secure sum, in steps of the study's grid.

    Guarantee: none by itself, for it holds a share of the noise only; a secure sum of at least ``study.shares`` such
    counts costs one step of ``terms.event``.
    """
    permit.check(terms.step_noise)
    records = draw_records(terms.study, terms.party, holder.records, stream)
    total = bounded_sum(terms.study, holder, theta, records)
    return permit.add_noise_share(total)


def bounded_sum(study: Study, holder: Holder, theta: Floats, records: NDArray[np.intp] | None) -> BoundedSum:
    """What the holder adds up, in the study's arithmetic, if it was clipped as agreed.

    The check is a matter of types and shapes, which are public.
    """
    if study.privacy.arithmetic == "float":
        total, grid = holder.clipped_sum(theta, records), None
    else:
        total, grid = holder.hardened_sum(theta, records, study.grid), study.grid
    fits = isinstance(total, BoundedSum) and total.norm == "l2" and total.value.shape == (study.dimension,)
    if not fits or total.clip_norm != study.training.clip_norm or total.grid != grid:
        raise ValueError("the holder's sum is not clipped as the study says")
    bound = study.training.party_bound
    return total if bound is None else cut_sum(total, bound)


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


class RoundSession(NoisySession):
    """SGD2: a step of the ledger is a round."""

    kind = "sum"

    def _release(self, round: int, theta: Floats) -> Floats:
        permit = self._charge(round)
        self._round = self._answered = round
        return noisy_sum(self._terms, self._holder, theta, self._stream, permit)


class SecureSession(PartySession):
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
        self._secure = SecureParty(terms.party, terms.group(roster), signing_key, stream)
        self._joined = False

    def reply(self, request: Message) -> Message:
        """Keys, masks or shares, whatever the coordinator is at."""
        steps = {"advertise": self._advertise, "join": self._join, "mask": self._mask, "unmask": self._unmask}
        if request.kind not in steps:
            raise Refused(Refusal.OTHER_STUDY)
        try:
            content = steps[request.kind](request)
        except PlanViolation:  # of the secure sum: too few parties, another key, a second set of survivors
            raise Refused(Refusal.OTHER_REQUEST) from None
        body = np.frombuffer(content, np.uint8)
        return Message(self._study.digest(), "sealed", request.round, self._terms.party, body)

    def _advertise(self, request: Message) -> bytes:
        self._joined = False
        return self._secure.advertise()

    def _join(self, request: Message) -> bytes:
        self._secure.join(request.array.tobytes())
        self._joined = True
        return b""

    def _mask(self, request: Message) -> bytes:
        theta = self._model(request)
        if not self._joined:
            raise Refused(Refusal.NOT_BEGUN)
        self._refuse_past(request.round)
        permit = self._charge(request.round)
        self._round = self._answered = request.round
        counts = noisy_counts(self._terms, self._holder, theta, self._stream, permit)
        return self._secure.mask(request.round, counts)

    def _unmask(self, request: Message) -> bytes:
        return self._secure.unmask(request.round, request.array.tobytes())
