"""What runs inside NVFlare at a site: one component of ours, and what it knows.

A party answers the coordinator alone, never another party, takes no orders, and lets no text of an exception out.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.message import Message

Answer = Callable[[bytes], bytes]

CHANNEL, SERVER = "discreet", "server"
ASK, HERE = "ask", "here"  # a question; "I am ready", every second
BYE, OUT = "bye", "out"  # all is said, the party may go; its kit was revoked
_HERE_SECONDS = 1.0
_SWITCH_SECONDS = 5e-4  # a message passes through several threads; each would wait up to 5 ms for its turn


class Site:
    """What our component finds when NVFlare builds it: one site per process."""

    current: Site | None = None

    def __init__(self, answer: Answer | None) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        self.answer = answer
        self.cell: Any = None
        self.owner: Any = None  # NVFlare's client or server object
        self.ready = threading.Event()
        self.ended = threading.Event()  # NVFlare has stopped
        self.leaving = threading.Event()  # we are about to stop it
        self.dismissed = threading.Event()  # the coordinator has the party's last answer
        self.revoked = threading.Event()  # the coordinator does not want this party any more
        self.rejected = ""  # why the coordinator did not register the party
        self.heard: dict[str, float] = {}  # when each party last said that it is ready

    def say_here(self) -> None:
        """A party: tell the coordinator every second that questions will be answered."""
        while not self.leaving.is_set():
            with suppress(RuntimeError):  # the connection is being closed
                self.cell.fire_and_forget(CHANNEL, HERE, SERVER, Message({}, b""), optional=True)
            self.leaving.wait(_HERE_SECONDS)

    def dismiss(self, goodbye: bytes) -> bytes:
        """A party: it may go."""
        self.dismissed.set()
        return goodbye

    def leave(self, goodbye: bytes) -> bytes:
        """A party: it is not wanted any more."""
        self.revoked.set()
        return goodbye

    def hear(self, request: Any) -> None:
        """The coordinator: note who is ready. NVFlare has checked that the sender is who it says."""
        self.heard[request.get_header(MessageHeaderKey.ORIGIN)] = time.monotonic()

    def say(self, topic: str, parties: Sequence[str]) -> None:
        """The coordinator: a word that needs no answer."""
        if not parties:  # which NVFlare would take for everybody
            return
        with suppress(RuntimeError):  # the connection is being closed
            self.cell.fire_and_forget(CHANNEL, topic, list(parties), Message({}, b"."), optional=True)

    def shut_out(self, party: str) -> None:
        """The coordinator: tell a party that its kit was revoked, and hear it no more."""
        if self.cell.is_cell_connected(party):
            self.say(OUT, [party])
        self.owner.client_manager.disable_client(party)

    def miss(self, other: str) -> None:
        """A connection has ended, and with it the wait for an answer by it.

        At a party NVFlare would else wait half a minute for the answer to its heartbeat, and not be known to a
        coordinator that was restarted before it.
        """
        self.heard.pop(other, None)
        for waiter in list(self.cell.waiters.values()):
            if other in waiter.targets and not waiter.reply_time.get(other):
                lost = Message({MessageHeaderKey.RETURN_CODE: ReturnCode.COMM_ERROR}, b"")
                waiter.received_replies[other], waiter.reply_time[other] = lost, time.time()
                if all(map(waiter.reply_time.get, waiter.targets)):
                    waiter.set()

    def on_line(self, party: str) -> bool:
        """The coordinator: connected, and ready to answer."""
        return bool(self.cell.is_cell_connected(party)) and party in self.heard


# ---- components: NVFlare builds them by name from local/resources.json ----


class PartyService(FLComponent):  # type: ignore[misc]
    """Answers the coordinator's questions in the party's process."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Take the channel as soon as the connection exists; drop everything else once the site is up."""
        site, engine = Site.current, fl_ctx.get_engine()
        if site is None or site.answer is None:
            return
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            site.owner = engine.client
            site.cell = engine.client.cell.core_cell
            site.cell.register_request_cb(CHANNEL, ASK, _answering(site.answer))
            site.cell.register_request_cb(CHANNEL, BYE, _answering(site.dismiss))
            site.cell.register_request_cb(CHANNEL, OUT, _answering(site.leave))
            site.cell.set_cell_disconnected_cb(lambda agent: site.miss(agent.endpoint.name))
        elif event_type == EventType.SYSTEM_START:
            engine.admin_agent.processors.clear()  # the server can order nothing: no deploy, no shell, no restart
            site.ready.set()
            threading.Thread(target=site.say_here, name="here", daemon=True).start()


class CoordinatorService(FLComponent):  # type: ignore[misc]
    """Hands the server's connection to the coordinator."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Note the connection when the server is up."""
        site = Site.current
        if site is not None and event_type == EventType.SYSTEM_START:
            site.owner = fl_ctx.get_engine().server
            site.cell = site.owner.cell.core_cell
            site.cell.register_request_cb(CHANNEL, HERE, site.hear)
            site.cell.set_cell_disconnected_cb(lambda agent: site.miss(agent.endpoint.name))
            site.ready.set()


def _answering(answer: Answer) -> Callable[[Any], Any]:
    """NVFlare's view of a party: a reply for the coordinator, a bare code for anybody else, no text ever."""

    def reply(request: Any) -> Any:
        if not _from_coordinator(request):
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.UNAUTHENTICATED}, b"")
        if not isinstance(request.payload, bytes | bytearray | memoryview):
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_REQUEST}, b"")
        try:
            content = answer(bytes(request.payload))
        except BaseException:
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.PROCESS_EXCEPTION}, b"")
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, content)

    return reply


def _from_coordinator(request: Any) -> bool:
    """Written by the server *and* received on the server's own connection (the server relays parties' messages)."""
    endpoint = request.get_prop(MessagePropKey.ENDPOINT)
    origin = request.get_header(MessageHeaderKey.ORIGIN)
    return origin == SERVER and getattr(endpoint, "name", None) == SERVER
