"""Questions to the parties, and what counts as an answer.

An answer is a signed message of the party that was asked, for the same study and round, of the kind, type and shape
that the question calls for, finite and no larger than an honest one can be. All else is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.errors import MalformedMessage
from discreet.parties.messages import Message, Refusal, Roster
from discreet.parties.secure.noise_shares import OVERSIZED
from discreet.parties.study import Study

# ---- how messages travel. The protocol knows nothing but this ----
#
# `DirectTransport` calls the parties in this process; the network's is `nvflare`.


Answer = Callable[[bytes], bytes]


@runtime_checkable
class Transport(Protocol):
    """Whoever does not answer in time is None, or absent. Nothing is retried here, and no error is raised."""

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        """The answer of one party."""

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        """The answers of several parties to the same message."""


class DirectTransport:
    """Parties in this process, called one after the other: no wire, no threads, nothing random."""

    def __init__(self, parties: Mapping[str, Answer]) -> None:
        self._parties = dict(parties)

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        answer = self._parties.get(party)
        return None if answer is None else answer(message)

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        return {party: self._parties[party](message) for party in parties if party in self._parties}


Floats = NDArray[np.float64]
Reply = Message | Refusal


class Asking:
    """The coordinator's side of the wire."""

    def __init__(
        self, study: Study, transport: Transport, roster: Roster, key: Ed25519PrivateKey | None
    ) -> None:
        self._study, self._transport, self._roster, self._key = study, transport, roster, key
        self._timeout = study.network.timeout
        self._bounds = {name: longest_message(study, name) for name in study.names}
        self.silent: set[str] = set()  # who did not answer last time is not asked twice in one round

    def hello(self, party: str, schedule: bytes) -> int | Refusal | None:
        """The next round that a party will answer, or why not, or None if it is not there."""
        body = np.frombuffer(schedule, np.uint8)
        reply = self.ask(party, Message(self._study.digest(), "hello", 0, party, body))
        if isinstance(reply, Message):
            good = reply.kind == "ready" and reply.array.dtype == np.int64 and reply.array.shape == (1,)
            return int(reply.array[0]) if good and reply.array[0] > 0 else None
        return reply

    def ask(self, party: str, request: Message) -> Reply | None:
        """The reply of one party."""
        frame = request.encode(self._key, self._roster)
        reply = self._transport.ask(party, frame, self._timeout)
        if reply is None and party not in self.silent:
            reply = self._transport.ask(party, frame, self._timeout)  # the answer is the same, or never was
        self._note(party, reply is not None)
        return None if reply is None else self._read(party, reply, request.round)

    def ask_all(self, parties: Iterable[str], request: Message) -> dict[str, Reply]:
        """The replies of all who gave one."""
        names, frame = list(parties), request.encode(self._key, self._roster)
        frames = self._transport.broadcast(names, frame, self._timeout)
        again = [name for name in names if name not in frames and name not in self.silent]
        if again:
            frames |= self._transport.broadcast(again, frame, self._timeout)
        for name in names:
            self._note(name, name in frames)
        found = {name: self._read(name, frames[name], request.round) for name in names if name in frames}
        return {name: reply for name, reply in found.items() if reply is not None}

    def noisy(self, party: str, reply: Reply | None) -> Floats | None:
        """What a party released, or None if the reply is something else."""
        if not isinstance(reply, Message) or reply.kind != "noisy":
            return None
        value, bound = reply.array, self._bounds[party]
        if value.dtype != np.float64 or value.shape != (self._study.dimension,):
            return None
        with np.errstate(all="ignore"):
            length = float(value @ value) ** 0.5
        return value if length <= bound else None  # NaN compares as False

    def _note(self, party: str, answered: bool) -> None:
        if answered:
            self.silent.discard(party)
        else:
            self.silent.add(party)

    def _read(self, party: str, frame: object, round: int) -> Reply | None:
        try:
            reply = Message.decode(frame)
        except MalformedMessage:
            return None
        fits = reply.study == self._study.digest() and reply.party == party and reply.round == round
        if not fits or not self._roster.vouches(reply, party):
            return None
        if reply.kind != "refused":
            return reply
        code = reply.array
        known = code.dtype == np.uint8 and code.shape == (1,) and code[0] in Refusal._value2member_map_
        return Refusal(int(code[0])) if known else None


def longest_message(study: Study, party: str) -> float:
    """The length that no honest message exceeds: that of the party's sum, and the longest noise.

    Noise of standard deviation s in d coordinates, or discrete noise of that scale, is longer than
    s (sqrt(d) + sqrt(2 t)) with a chance of exp(-t) at most (Hsu, Kakade, Zhang 2012).
    """
    records = float(study.records_of(party) if study.algorithm == "sgd2" else 1)
    if study.training.party_bound is not None:
        records = min(records, study.training.party_bound)
    deviations = math.sqrt(study.dimension) + math.sqrt(-2 * math.log(OVERSIZED))
    return study.training.clip_norm * (records + study.noise_multiplier * deviations) * (1 + 1e-3)
