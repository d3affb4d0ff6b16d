"""Questions to the parties, and what counts as an answer.

An answer is a signed message of the party that was asked, for the same study and round, of the kind, type and shape
that the question calls for, finite and no larger than an honest one can be. All else is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.errors import MalformedMessage
from discreet.parties.consent import Terms
from discreet.parties.messages import Message, Refusal, Roster
from discreet.parties.study import Study
from discreet.parties.transport import Transport

Floats = NDArray[np.float64]
Reply = Message | Refusal

_FAR = 40.0  # standard deviations: no honest noise is ever that large


class Ready(NamedTuple):
    """What a party says to a hello: its next round, and whether it has lost its memory since the study began."""

    following: int
    restarted: bool


class Asking:
    """The coordinator's side of the wire."""

    def __init__(
        self, study: Study, transport: Transport, roster: Roster, key: Ed25519PrivateKey | None
    ) -> None:
        self._study, self._transport, self._roster, self._key = study, transport, roster, key
        self._timeout = study.network.timeout
        self._bounds = {name: largest_coordinate(study, name) for name in study.names}
        self.silent: set[str] = set()  # who did not answer last time is not asked twice in one round

    def hello(self, party: str, schedule: bytes) -> Ready | Refusal | None:
        """The next round that a party will answer, or why not, or None if it is not there."""
        body = np.frombuffer(schedule, np.uint8)
        reply = self.ask(party, Message(self._study.digest(), "hello", 0, party, body))
        if isinstance(reply, Message):
            good = reply.kind == "ready" and reply.array.dtype == np.int64 and reply.array.shape == (2,)
            return Ready(int(reply.array[0]), bool(reply.array[1])) if good and reply.array[0] > 0 else None
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
        # NaN compares as False. The bound is far beyond honest answers and keeps infinities out of the model.
        return value if -bound <= value.min() and value.max() <= bound else None

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


def largest_coordinate(study: Study, party: str) -> float:
    """What no coordinate of an honest message exceeds."""
    records = study.records_of(party) if study.algorithm == "sgd2" else 1
    return study.training.clip_norm * (records + _FAR * Terms(study, party).noise.noise_multiplier)
