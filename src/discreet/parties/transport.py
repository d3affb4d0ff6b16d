"""How messages travel. The protocol knows nothing but this: ask one party, or all of them, and wait so long.

:class:`DirectTransport` calls the parties in this process; the network's is :mod:`discreet.parties.network.nvflare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

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
