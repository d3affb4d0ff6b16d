"""The messages of a secure sum as a party answers them: :class:`SecureMessages`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from discreet.core.randomness import RandomStream
from discreet.errors import PlanViolation
from discreet.parties.messages import Message, Refusal, Refused
from discreet.parties.secure.secure_group import SecureGroup
from discreet.parties.secure.secure_sum import SecureParty


class SecureMessages:
    """Answers "advertise", "join", "mask" and "unmask".

    ``counts`` gives the vector of a request, with its share of the noise, or raises :class:`Refused`; it is called
    once for each masked vector. ``reveals`` is called with a round and its survivors before masks are revealed, and
    raises unless they may be.

    Guarantee: vectors leave under the masks of :class:`~discreet.parties.secure.secure_sum.SecureParty`. Each
    advertisement begins a session with keys of its own, in which a round is unmasked for one set of survivors.
    """

    def __init__(
        self,
        party: str,
        group: SecureGroup,
        signing_key: Ed25519PrivateKey,
        stream: RandomStream,
        counts: Callable[[Message], NDArray[np.int64]],
        reveals: Callable[[int, tuple[str, ...]], None] = lambda round, survivors: None,
    ) -> None:
        self._party, self._group, self._signing_key, self._stream = party, group, signing_key, stream
        self._counts, self._reveals = counts, reveals
        self._secure: SecureParty | None = None

    def reply(self, request: Message) -> Message:
        """The reply to one message, or :class:`Refused`."""
        steps = {"advertise": self._advertise, "join": self._join, "mask": self._mask, "unmask": self._unmask}
        if request.kind not in steps:
            raise Refused(Refusal.OTHER_STUDY)
        try:
            content = steps[request.kind](request)
        except PlanViolation:  # of the secure sum: too few parties, another key, a second set of survivors
            raise Refused(Refusal.OTHER_REQUEST) from None
        body = np.frombuffer(content, np.uint8)
        return Message(self._group.study, "sealed", request.round, self._party, body)

    def _advertise(self, request: Message) -> bytes:
        self._secure = SecureParty(self._party, self._group, self._signing_key, self._stream)
        return self._secure.advertise()

    def _join(self, request: Message) -> bytes:
        self._present().join(request.array.tobytes())
        return b""

    def _mask(self, request: Message) -> bytes:
        secure = self._present()
        if not secure.joined:
            raise Refused(Refusal.NOT_BEGUN)
        return secure.mask(request.round, self._counts(request))

    def _unmask(self, request: Message) -> bytes:
        reveals = partial(self._reveals, request.round)
        return self._present().unmask(request.round, request.array.tobytes(), reveals)

    def _present(self) -> SecureParty:
        if self._secure is None:
            raise Refused(Refusal.NOT_BEGUN)
        return self._secure
