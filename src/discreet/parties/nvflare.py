"""NVFlare as the engine between the sites of a study: this file and doors.py know it.

NVFlare's own server and clients run here as they are (mutual TLS, parties dial out, rejoin by themselves), in this
process, with one component of ours. No job is ever submitted: a request is bytes on a channel of our own, from the
coordinator to a party, and the answer is bytes.

    with connect(kit, party.answer) as line:      # a party
        while not party.wait(1.0):
            line.check()
        line.linger()
    with listen(kit) as transport:                # the coordinator
        Coordinator(study, transport, ...).run()

What NVFlare may do is settled in workspace.py, and where it listens in doors.py. Here, a party answers the
coordinator alone, never another party, takes no orders, and lets no text of an exception out.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from discreet.errors import CannotConnect, MissingDependency, NotYet
from discreet.parties.kits import Kit, Revocations
from discreet.parties.terminal import quiet
from discreet.parties.workspace import write_workspace

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_component import FLComponent
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
    from nvflare.fuel.f3.message import Message
    from nvflare.private.fed.client.client_status import ClientStatus
    from nvflare.private.fed.server.server_status import ServerStatus

    from discreet.parties.doors import default_address, open_door, use_door
except ImportError:
    raise MissingDependency('studies over a network need NVFlare: pip install "discreet[parties]".') from None

Answer = Callable[[bytes], bytes]

_CHANNEL, _SERVER = "discreet", "server"
_ASK, _HERE, _BYE = "ask", "here", "bye"  # a question; "I am ready", every second; all is said
_OPTIONS = ["secure_train=true", "org=discreet", "config_folder=config"]
_START_SECONDS = 120.0
_HERE_SECONDS = 1.0
_SWITCH_SECONDS = 5e-4  # a message passes through several threads; each would wait up to 5 ms for its turn


class _Site:
    """What our component finds when NVFlare builds it: one site per process."""

    current: _Site | None = None

    def __init__(self, answer: Answer | None) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        self.answer = answer
        self.cell: Any = None
        self.owner: Any = None  # NVFlare's client or server object
        self.ready = threading.Event()
        self.ended = threading.Event()  # NVFlare has stopped
        self.leaving = threading.Event()  # we are about to stop it
        self.dismissed = threading.Event()  # the coordinator has the party's last answer
        self.rejected = ""  # why the coordinator did not register the party
        self.heard: dict[str, float] = {}  # when each party last said that it is ready

    def say_here(self) -> None:
        """A party: tell the coordinator every second that questions will be answered."""
        while not self.leaving.is_set():
            with suppress(RuntimeError):  # the connection is being closed
                self.cell.fire_and_forget(_CHANNEL, _HERE, _SERVER, Message({}, b""), optional=True)
            self.leaving.wait(_HERE_SECONDS)

    def dismiss(self, goodbye: bytes) -> bytes:
        """A party: it may go."""
        self.dismissed.set()
        return goodbye

    def hear(self, request: Any) -> None:
        """The coordinator: note who is ready. NVFlare has checked that the sender is who it says."""
        self.heard[request.get_header(MessageHeaderKey.ORIGIN)] = time.monotonic()

    def on_line(self, party: str) -> bool:
        """The coordinator: connected, and ready to answer."""
        return bool(self.cell.is_cell_connected(party)) and party in self.heard


# ---- components: NVFlare builds them by name from local/resources.json ----


class PartyService(FLComponent):  # type: ignore[misc]
    """Answers the coordinator's questions in the party's process."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Take the channel as soon as the connection exists; drop everything else once the site is up."""
        site, engine = _Site.current, fl_ctx.get_engine()
        if site is None or site.answer is None:
            return
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            site.owner = engine.client
            site.cell = engine.client.cell.core_cell
            site.cell.register_request_cb(_CHANNEL, _ASK, _answering(site.answer))
            site.cell.register_request_cb(_CHANNEL, _BYE, _answering(site.dismiss))
        elif event_type == EventType.SYSTEM_START:
            engine.admin_agent.processors.clear()  # the server can order nothing: no deploy, no shell, no restart
            site.ready.set()
            threading.Thread(target=site.say_here, name="here", daemon=True).start()


class CoordinatorService(FLComponent):  # type: ignore[misc]
    """Hands the server's connection to the coordinator."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Note the connection when the server is up."""
        site = _Site.current
        if site is not None and event_type == EventType.SYSTEM_START:
            site.owner = fl_ctx.get_engine().server
            site.cell = site.owner.cell.core_cell
            site.cell.register_request_cb(_CHANNEL, _HERE, site.hear)
            site.cell.set_cell_disconnected_cb(lambda agent: site.heard.pop(agent.endpoint.name, None))
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
    return origin == _SERVER and getattr(endpoint, "name", None) == _SERVER


# ---- the two ends ----


class Line:
    """A party's connection to the coordinator; NVFlare keeps and renews it by itself."""

    def __init__(self, site: _Site) -> None:
        self._site = site

    @property
    def connected(self) -> bool:
        """True while the coordinator is on the line."""
        return bool(self._site.cell.is_cell_connected(_SERVER))

    def check(self) -> None:
        """Raise if the connection has ended for good."""
        if self._site.ended.is_set():
            raise CannotConnect("the connection has ended: the coordinator does not admit this kit any more.")

    def linger(self, seconds: float = 10.0) -> None:
        """Stay until the coordinator has heard the last answer, or is gone."""
        end = time.monotonic() + seconds
        while self.connected and not self._site.dismissed.wait(0.05) and time.monotonic() < end:
            pass


class NVFlareTransport:
    """The coordinator's way to the parties (see transport.Transport).

    A party that drops off is waited for once, as long as the question may take; from then on it is absent at once,
    until it is back and says that it is ready.
    """

    def __init__(self, site: _Site, refused: Callable[[], frozenset[str]] = frozenset) -> None:
        self._site = site
        self._refused = refused
        self._waited: dict[str, float] = {}  # until when an absent party is, or was, waited for

    def connected(self, party: str) -> bool:
        """True while the party is on the line, ready, and not revoked."""
        return party not in self._refused() and self._site.on_line(party)

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        """One question to one party; None if no answer came in time."""
        return self._send([party], _ASK, message, timeout).get(party)

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        """The same question to several parties at once; who did not answer in time is absent."""
        return self._send(parties, _ASK, message, timeout)

    def dismiss(self, parties: Sequence[str]) -> None:
        """Let these parties go: what they said last has arrived."""
        present = [name for name in parties if self._site.on_line(name)]
        if present:
            with suppress(RuntimeError):
                self._site.cell.fire_and_forget(_CHANNEL, _BYE, present, Message({}, b"bye"), optional=True)

    def _send(self, parties: Sequence[str], topic: str, message: bytes, timeout: float) -> dict[str, bytes]:
        refused, end = self._refused(), time.monotonic() + timeout
        present = [name for name in parties if name not in refused and self._site.on_line(name)]
        absent = [name for name in parties if name not in refused and name not in present]
        answers = self._asked(present, topic, message, timeout)
        for name in absent:
            self._waited.setdefault(name, end)
        while absent and (back := self._first_back(absent)):
            absent.remove(back)
            answers |= self._asked([back], topic, message, max(end - time.monotonic(), 0.1))
        return answers

    def _first_back(self, absent: list[str]) -> str | None:
        """The first of them to come back in the time that they are waited for."""
        while True:
            for name in absent:
                if self._site.on_line(name):
                    return name
            if time.monotonic() >= max(self._waited[name] for name in absent):
                return None
            time.sleep(0.02)

    def _asked(self, names: list[str], topic: str, message: bytes, timeout: float) -> dict[str, bytes]:
        if not names:
            return {}
        replies = self._site.cell.broadcast_request(
            channel=_CHANNEL,
            topic=topic,
            targets=names,
            request=Message({}, message),
            timeout=timeout,
            optional=True,
        )
        for name in names:
            if _return_code(replies.get(name)) == ReturnCode.OK:
                self._waited.pop(name, None)
            else:  # not asked again before it says that it is ready, as it does every second
                self._site.heard.pop(name, None)
                if _return_code(replies.get(name)) == ReturnCode.TIMEOUT:
                    self._waited[name] = time.monotonic()
        return {name: bytes(reply.payload) for name, reply in replies.items() if _is_answer(reply)}


def _return_code(reply: Any) -> Any:
    return None if reply is None else reply.get_header(MessageHeaderKey.RETURN_CODE)


def _is_answer(reply: Any) -> bool:
    return _return_code(reply) == ReturnCode.OK and isinstance(reply.payload, bytes | bytearray | memoryview)


@contextmanager
def connect(kit: Kit, answer: Answer, timeout: float = _START_SECONDS) -> Iterator[Line]:
    """Run NVFlare's client in this process and let ``answer`` speak for the party.

    What may pass, such as a coordinator that is only just starting, is tried again until ``timeout``.
    """
    from nvflare.private.fed.app.client import client_train

    options = [*_OPTIONS, f"uid={kit.party}", "heart_beat_interval=2"]
    end = time.monotonic() + timeout
    with ExitStack() as stack:
        while True:
            site, left = _Site(answer), end - time.monotonic()
            try:
                stack.enter_context(_running(site, kit, client_train.main, "fed_client.json", options, left))
                break
            except NotYet:
                if time.monotonic() > end:
                    raise
                time.sleep(1.0)
        yield Line(site)


@contextmanager
def listen(
    kit: Kit, address: str | None = None, timeout: float = _START_SECONDS
) -> Iterator[NVFlareTransport]:
    """Run NVFlare's server in this process and lend the way to the parties.

    ``address`` is where to listen ("0.0.0.0:8443") if that differs from the address the parties know. It is the only
    one that is listened on, and what is wrong with it is said before anything is started.
    """
    place, site = address or default_address(kit.host, kit.port), _Site(None)
    with (
        open_door(place) as door,
        _running(site, kit, _server_main(), "fed_server.json", _OPTIONS, timeout, door),
    ):
        clients = site.owner.client_manager
        yield NVFlareTransport(site, Revocations(kit.source.parent, clients.disable_client))


def _server_main() -> Callable[[Namespace], None]:
    from nvflare.private.fed.app.server import server_train

    return server_train.main  # type: ignore[no-any-return]


@contextmanager
def _running(
    site: _Site,
    kit: Kit,
    main: Callable[[Namespace], None],
    config: str,
    options: list[str],
    timeout: float,
    door: socket.socket | None = None,
) -> Iterator[None]:
    """NVFlare's main program in a thread of its own, from its start to its end."""
    if _Site.current is not None:
        raise RuntimeError("a process can be one site only")
    workspace = write_workspace(kit, kit.port if door is None else door.getsockname()[1])
    use_door(door)
    os.environ["NVFLARE_SECURE_LOGGING"] = "1"
    os.environ.pop("FL_LOG_LEVEL", None)
    _Site.current = site
    before = os.getcwd()
    arguments = Namespace(
        workspace=str(workspace), set=options, local_rank=0, fed_client=config, fed_server=config
    )

    def run() -> None:
        try:
            main(arguments)
        except BaseException:
            logging.getLogger("discreet").info("NVFlare ended")
        finally:
            site.ended.set()

    with quiet("nvflare", kit.folder / "nvflare.log"), _listening_for_rejection(site):
        threading.Thread(target=run, name="nvflare", daemon=True).start()
        try:
            _await(site, kit, timeout)
            os.chdir(before)
            yield
        finally:
            os.chdir(before)
            _stop(site, _SERVER if kit.is_coordinator else kit.party)
            _Site.current = None


@contextmanager
def _listening_for_rejection(site: _Site) -> Iterator[None]:
    """NVFlare says why a site was not registered in its log only."""
    words = "registration rejected: "

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith(words):
                site.rejected = text.removeprefix(words)

    ear, log = Ear(), logging.getLogger("nvflare.private.fed.authenticator.Authenticator")
    log.addHandler(ear)
    try:
        yield
    finally:
        log.removeHandler(ear)


def _await(site: _Site, kit: Kit, timeout: float) -> None:
    end, log = time.monotonic() + timeout, kit.folder / "nvflare.log"
    while not site.ready.wait(0.05):
        if site.ended.is_set() or time.monotonic() > end:
            if kit.is_coordinator:
                raise CannotConnect(f"the coordinator could not be started; {log} says more.")
            if "disabled" in site.rejected:
                raise CannotConnect(
                    f"the coordinator did not admit {kit.party}: {kit.source.name} was revoked; ask for new kits."
                )
            if site.rejected:
                raise CannotConnect(f"the coordinator did not admit {kit.party}; {log} says more.")
            raise NotYet(
                f"the coordinator did not admit {kit.party} in time: it may be slow, or not ready yet. Join again; "
                f"{log} says more."
            )


def _stop(site: _Site, name: str) -> None:
    """Say goodbye to the other sites and end NVFlare's threads."""
    site.leaving.set()
    cell = CoreCell.ALL_CELLS.pop(name, None)
    if cell is not None:
        cell.stop()
    if site.owner is not None:
        site.owner.status = ServerStatus.SHUTDOWN if site.answer is None else ClientStatus.STOPPED
    site.ended.wait(3.0)
