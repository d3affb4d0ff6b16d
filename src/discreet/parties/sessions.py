"""What a party does from the first hello to the end of its process, for each kind of study.

A session decides which rounds it answers, pays for each of them, and only then looks at the records. Only the ledger
outlives it: after a crash all that was paid for counts as released, and the session after it starts beyond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation
from discreet.ledger.journal import LEASES, Run
from discreet.parties import sgd1, sgd2
from discreet.parties.messages import Holder, Message, Refusal, Roster
from discreet.parties.secure.secure_sum import SecureParty
from discreet.parties.terms import Terms

Floats = NDArray[np.float64]

MOST_LEASED = 10_000
"""So many steps are paid for at a time at most: what a crash may lose, and what it takes to skip a lease.

A session begins with leases of one step, which double: who is killed again and again loses no more than he had done.
"""


class Refused(Exception):
    """A request that is refused, and why; never leaves the party but as its number."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.name)
        self.reason = reason


class Session(ABC):
    """What a party remembers while it runs. Only the ledger outlives it."""

    kind: str

    def __init__(
        self,
        terms: Terms,
        holder: Holder,
        run: Run,
        stream: RandomStream,
        key: bytes | None = None,
    ) -> None:
        self.key = key
        self._terms, self._study, self._holder = terms, terms.study, holder
        self._run, self._stream = run, stream
        self._lost = self._paid = run.reserved  # what earlier attempts paid for may have been released
        self._round = 0  # the last one that is over
        self._answered = 0  # the last one answered by this session
        self._lease = max(1, min(terms.steps // LEASES, MOST_LEASED))

    def next_round(self) -> int:
        """The first round that will be answered."""
        return max(self._round, self._lost) + 1

    @abstractmethod
    def reply(self, request: Message) -> Message:
        """The answer to a request, or :class:`Refused`."""

    def _model(self, request: Message) -> Floats:
        theta = request.array
        if request.kind != self.kind:
            raise Refused(Refusal.OTHER_STUDY)
        if (
            theta.dtype != np.float64
            or theta.shape != (self._study.dimension,)
            or not np.isfinite(theta).all()
        ):
            raise Refused(Refusal.MALFORMED)
        return theta

    def _refuse_past(self, round: int) -> None:
        if round == self._answered:
            raise Refused(Refusal.OTHER_REQUEST)  # the same request would have got the answer that is kept
        if round < self.next_round():
            raise Refused(Refusal.PAST_ROUND)

    def _charge(self, step: int) -> None:
        """Pay for all steps up to this one; steps that are left out are spent, too, all at once."""
        if step > self._terms.steps:
            raise Refused(Refusal.BEYOND_PLAN)
        if step > self._paid + 1:
            missing = step - self._run.reserved
            if missing > 0:
                self._run.reserve(missing)
            self._paid = step
        while self._paid < step:
            since_start = max(
                1, self._paid - self._lost
            )  # leases double from one: see LEASES and MOST_LEASED
            self._paid = max(self._paid, self._run.next_step(lease=min(self._lease, since_start)))


class NoisySession(Session):
    """Each party's noisy sum leaves as it is."""

    def reply(self, request: Message) -> Message:
        """The answer to the next round: charged, then computed, then noised."""
        theta = self._model(request)
        self._refuse_past(request.round)
        released = self._released(request.round, theta)
        return Message(self._study.digest(), "noisy", request.round, self._terms.party, released)

    @abstractmethod
    def _released(self, round: int, theta: Floats) -> Floats:
        """What leaves for this round, after its step is paid for."""


class RoundSession(NoisySession):
    """SGD2: a step of the ledger is a round."""

    kind = "sum"

    def _released(self, round: int, theta: Floats) -> Floats:
        self._charge(round)
        self._round = self._answered = round
        return sgd2.noisy_sum(self._terms, self._holder, theta, self._stream)


class CallSession(NoisySession):
    """SGD1: the coordinator's key says which record a call concerns, and a step is one more use of the most used.

    The ledger keeps the number of the call besides, up to a hundredth of all calls ahead, so that a session after a
    crash loses no more than these. Which calls it refuses follows from numbers that everybody knows, not from the
    schedule.
    """

    kind = "token"

    def __init__(
        self,
        terms: Terms,
        holder: Holder,
        run: Run,
        stream: RandomStream,
        key: bytes | None = None,
    ) -> None:
        super().__init__(terms, holder, run, stream, key)
        records, schedule = terms.study.records_of(terms.party), terms.study.training.schedule
        self._records = records
        self._calls = None
        if schedule != "private":
            assert key is not None  # the party asks for one
            self._round = self._marked = self._first = run.marked
            self._calls = sgd1.Calls(schedule, records, key, after=run.marked)
            calls = terms.study.arrangement.calls(terms.party)
            self._ahead = max(1, min(calls // LEASES, MOST_LEASED))

    def next_round(self) -> int:
        return self._round + 1 if self._calls is not None else super().next_round()

    def _released(self, round: int, theta: Floats) -> Floats:
        if round > self._study.updates:
            raise Refused(Refusal.BEYOND_PLAN)
        if self._calls is None:  # the record is the party's own secret, and a step is a call
            self._charge(round)
            record = int(self._stream.integers(self._records))
        else:
            call = self._found(round)
            self._charge(call.uses)
            self._mark(round)
            self._calls.move_to(call)
            record = call.record
        self._round = self._answered = round
        return sgd1.noisy_gradient(self._terms, self._holder, theta, record, self._stream)

    def _mark(self, call: int) -> None:
        """Keep that this call is over, and some to come, before it is answered."""
        if call > self._marked:
            ahead = min(self._ahead, max(1, call - self._first))
            self._run.mark(call + ahead - 1)
            self._marked = call + ahead - 1

    def _found(self, round: int) -> sgd1.Call:
        assert self._calls is not None
        try:
            return self._calls.find(round)
        except PlanViolation:  # further ahead than can be counted through
            raise Refused(Refusal.BEYOND_PLAN) from None


class SecureSession(Session):
    """SGD2 with secure sums: the noisy sum leaves under masks, and one more message helps to unmask the total."""

    kind = "mask"

    def __init__(
        self,
        terms: Terms,
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
        self._charge(request.round)
        self._round = self._answered = request.round
        counts = sgd2.noisy_counts(self._terms, self._holder, theta, self._stream)
        return self._secure.masked(request.round, counts)

    def _unmask(self, request: Message) -> bytes:
        return self._secure.unmask(request.round, request.array.tobytes())
