"""The end of a study: the model, signed by the coordinator for one study and one roster.

A party takes no model that is not signed in this way, so nobody else can end a study or pass off another model. The
digest stands on every screen: parties that compare it know that all of them hold the same model.

>>> ending = Ending("0" * 64, "1" * 64, np.array([0.5, -1.0]))
>>> Ending.of(Message.decode(ending.message().encode())).model == ending.model
True
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from discreet.errors import MalformedMessage
from discreet.parties.messages import EVERYBODY, Message

Floats = NDArray[np.float64]
_HASH = 32  # bytes


@dataclass(frozen=True, eq=False)
class Ending:
    """What a coordinator says at the end: ``study`` and ``roster`` by their digests, and the model itself."""

    study: str
    roster: str
    theta: Floats = field(repr=False)

    @property
    def model(self) -> str:
        """The model's digest: SHA-256 of its numbers, little endian."""
        return hashlib.sha256(self._numbers()).hexdigest()

    def message(self) -> Message:
        """The message to all parties: the roster's digest, the model's, and the model."""
        body = bytes.fromhex(self.roster) + bytes.fromhex(self.model) + self._numbers()
        return Message(self.study, "end", 0, EVERYBODY, np.frombuffer(body, np.uint8))

    @classmethod
    def of(cls, message: Message) -> Ending:
        """The inverse of :meth:`message`, or :class:`MalformedMessage`. Who signed it is for others to check."""
        body = message.array.tobytes()
        head, numbers = body[: 2 * _HASH], body[2 * _HASH :]
        fits = message.kind == "end" and message.round == 0 and message.party == EVERYBODY
        if not fits or message.array.dtype != np.uint8 or len(head) < 2 * _HASH or len(numbers) % 8:
            raise MalformedMessage("not the end of a study")
        ending = cls(message.study, head[:_HASH].hex(), np.frombuffer(numbers, "<f8").astype(np.float64))
        if ending.model != head[_HASH:].hex() or not np.isfinite(ending.theta).all():
            raise MalformedMessage("the model is not the one that the digest names")
        return ending

    def _numbers(self) -> bytes:
        return self.theta.astype("<f8").tobytes()
