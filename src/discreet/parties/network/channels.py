"""Which messages a site takes: those of the study and of registration; all others are dropped unread.

NVFlare registers some 35 channels at every site. Among them are `_net_manager`, which tells any party the process id,
the memory and the timings of any other site and starts stress tests on request, and the channels of jobs, streams and
administrators. A study uses seven. Here only those can be registered, from the first moment on, whatever NVFlare asks
for. A message for another channel, for another site (the server would pass it on) or in reply to nothing is dropped
before its content is decoded.
"""

from __future__ import annotations

from typing import Any

from nvflare.fuel.f3.cellnet import core_cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.registry import Registry
from nvflare.fuel.f3.drivers import socket_conn

CHANNEL = "discreet"
ASK, HERE = "ask", "here"  # a question; "I am ready", every second
BYE, OUT = "bye", "out"  # all is said, the party may go; its kit was revoked

PARTY = frozenset((CHANNEL, topic) for topic in (ASK, BYE, OUT))
"""What a party answers: questions of the study, and the two words with which it is let go."""

COORDINATOR = frozenset(
    {
        (CHANNEL, HERE),
        (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
        (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
        (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT),
    }
)
"""What a coordinator answers: the registration of parties, their heartbeats, and that they are ready."""

_MOST_BYTES = socket_conn.MAX_FRAME_SIZE


class Channels(Registry):  # type: ignore[misc]
    """NVFlare's list of callbacks, in which only the channels of this site can be entered."""

    allowed: frozenset[tuple[str, str]] = frozenset()

    def set(self, channel: str, topic: str, items: Any) -> None:
        """Enter a callback; one for another channel is left out."""
        if (channel, topic) in self.allowed:
            super().set(channel, topic, items)


def use_channels(allowed: frozenset[tuple[str, str]], most_bytes: int | None = None) -> None:
    """From here on NVFlare in this process has these channels, and takes no message with more than ``most_bytes``."""
    Channels.allowed = allowed
    core_cell.Registry = Channels
    socket_conn.MAX_FRAME_SIZE = min(_MOST_BYTES, most_bytes or _MOST_BYTES)


def most_bytes(dimension: int) -> int:
    """No message of a study with so many parameters is as large as this: a sum has 8 bytes for each of them."""
    return (1 << 24) + 128 * dimension


class Sieve:
    """A receiver of messages that hands on only those that the cell behind it takes."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def process_message(self, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        """Hand the message on, or drop it."""
        if self.takes(message.headers):
            self._cell.process_message(endpoint, connection, app_id, message)

    def takes(self, headers: Any) -> bool:
        """True for a request on a channel of ours, and for the reply to a request that still waits for one."""
        if (
            not isinstance(headers, dict)
            or headers.get(MessageHeaderKey.DESTINATION) != self._cell.my_info.fqcn
        ):
            return False
        if headers.get(MessageHeaderKey.MSG_TYPE) == MessageType.REQ:
            words = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
            return all(isinstance(word, str) for word in words) and words in Channels.allowed
        replied = headers.get(MessageHeaderKey.REQ_ID)
        numbers = replied if isinstance(replied, list) else [replied]
        return any(isinstance(number, str) and number in self._cell.waiters for number in numbers)
