"""NVFlare as the engine between the sites of a study: this file, sites.py, connections.py and channels.py know it.

NVFlare's own server and clients run here as they are (mutual TLS, parties dial out, rejoin by themselves), in this
process, with one component of ours. No job is ever submitted: a request is bytes on a channel of our own, from the
coordinator to a party, and the answer is bytes.

    with connect(kit, party.answer) as line:      # a party
        while not party.wait(1.0):
            line.check()
        line.linger()
    with listen(kit) as transport:                # the coordinator
        Coordinator(study, transport, ...).run()

What NVFlare may do and whom a party answers is settled in sites.py, where it listens in connections.py, and which
messages it takes in channels.py.
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
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from types import FrameType
from typing import Any

from discreet.errors import CannotConnect, NotYet, missing_extra
from discreet.parties.network.kits import Kit, Revocations
from discreet.parties.network.sites import write_workspace

try:
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
    from nvflare.fuel.f3.message import Message
    from nvflare.private.fed.client.client_status import ClientStatus
    from nvflare.private.fed.server.server_status import ServerStatus

    from discreet.parties.network import channels
    from discreet.parties.network.channels import ASK, BYE, CHANNEL
    from discreet.parties.network.connections import default_address, open_listener, use_listener
    from discreet.parties.network.sites import SERVER, Answer, SiteProcess
except ImportError:
    raise missing_extra("Studies over a network need NVFlare", "parties") from None

_OPTIONS = ["secure_train=true", "org=discreet", "config_folder=config"]
_START_SECONDS = 120.0


class CoordinatorConnection:
    """A party's connection to the coordinator; NVFlare keeps and renews it by itself."""

    def __init__(self, site: SiteProcess) -> None:
        self._site = site

    @property
    def connected(self) -> bool:
        """True while the coordinator is on the line."""
        return bool(self._site.cell.is_cell_connected(SERVER))

    def check(self) -> None:
        """Raise if the connection has ended for good."""
        if self._site.revoked.is_set():
            raise CannotConnect("the coordinator has revoked this kit; ask for new ones to take part again.")
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

    def __init__(self, site: SiteProcess, refused: Callable[[], frozenset[str]] = frozenset) -> None:
        self._site = site
        self._refused = refused
        self._waited: dict[str, float] = {}  # until when an absent party is, or was, waited for

    def connected(self, party: str) -> bool:
        """True while the party is on the line, ready, and not revoked."""
        return party not in self._refused() and self._site.on_line(party)

    def ask(self, party: str, message: bytes, timeout: float) -> bytes | None:
        """One question to one party; None if no answer came in time."""
        return self._send([party], ASK, message, timeout).get(party)

    def broadcast(self, parties: Sequence[str], message: bytes, timeout: float) -> dict[str, bytes]:
        """The same question to several parties at once; who did not answer in time is absent."""
        return self._send(parties, ASK, message, timeout)

    def dismiss(self, parties: Sequence[str]) -> None:
        """Let these parties go: what they said last has arrived."""
        self._site.say(BYE, [name for name in parties if self._site.on_line(name)])

    def _send(self, parties: Sequence[str], topic: str, message: bytes, timeout: float) -> dict[str, bytes]:
        refused, end = self._refused(), time.monotonic() + timeout
        present = [name for name in parties if name not in refused and self._site.on_line(name)]
        absent = [name for name in parties if name not in refused and name not in present]
        answers = self._ask_all(present, topic, message, timeout)
        for name in absent:
            self._waited.setdefault(name, end)
        while absent and (back := self._first_back(absent)):
            absent.remove(back)
            answers |= self._ask_all([back], topic, message, max(end - time.monotonic(), 0.1))
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

    def _ask_all(self, names: list[str], topic: str, message: bytes, timeout: float) -> dict[str, bytes]:
        if not names:
            return {}
        replies = self._site.cell.broadcast_request(
            channel=CHANNEL,
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
def connect(
    kit: Kit, answer: Answer, timeout: float = _START_SECONDS, *, dimension: int | None = None
) -> Iterator[CoordinatorConnection]:
    """Run NVFlare's client in this process and let ``answer`` speak for the party.

    What may pass, such as a coordinator that is only just starting, is tried again until ``timeout``. With the
    ``dimension`` of the study, messages that are larger than any of its own are refused before they are read.
    """
    from nvflare.private.fed.app.client import client_train

    options = [*_OPTIONS, f"uid={kit.party}", "heart_beat_interval=2"]
    most = None if dimension is None else channels.most_bytes(dimension)
    end = time.monotonic() + timeout
    with ExitStack() as stack:
        while True:
            site, left = SiteProcess(answer), end - time.monotonic()
            try:
                run = _run_site(site, kit, client_train.main, "fed_client.json", options, left, most)
                stack.enter_context(run)
                break
            except NotYet:
                if time.monotonic() > end:
                    raise
                time.sleep(1.0)
        yield CoordinatorConnection(site)


@contextmanager
def listen(
    kit: Kit,
    address: str | None = None,
    timeout: float = _START_SECONDS,
    *,
    dimension: int | None = None,
) -> Iterator[NVFlareTransport]:
    """Run NVFlare's server in this process and lend the way to the parties.

    ``address`` is where to listen ("0.0.0.0:8443") if that differs from the address the parties know. It is the only
    one that is listened on, and what is wrong with it is said before anything is started. ``dimension`` is that of
    the study, as for :func:`connect`.
    """
    most = None if dimension is None else channels.most_bytes(dimension)
    place, site = address or default_address(kit.host, kit.port), SiteProcess(None)
    with (
        open_listener(place) as door,
        _run_site(site, kit, _server_main(), "fed_server.json", _OPTIONS, timeout, most, door),
    ):
        yield NVFlareTransport(site, Revocations(kit.source.parent, site.shut_out))


def _server_main() -> Callable[[Namespace], None]:
    from nvflare.private.fed.app.server import server_train

    return server_train.main  # type: ignore[no-any-return]


@contextmanager
def _run_site(
    site: SiteProcess,
    kit: Kit,
    main: Callable[[Namespace], None],
    config: str,
    options: list[str],
    timeout: float,
    most_bytes: int | None,
    door: socket.socket | None = None,
) -> Iterator[None]:
    """NVFlare's main program in a thread of its own, from its start to its end."""
    if SiteProcess.current is not None:
        raise RuntimeError("a process can be one site only")
    workspace = write_workspace(kit, kit.port if door is None else door.getsockname()[1])
    use_listener(door)
    channels.use_channels(channels.COORDINATOR if kit.is_coordinator else channels.PARTY, most_bytes)
    os.environ["NVFLARE_SECURE_LOGGING"] = "1"
    os.environ.pop("FL_LOG_LEVEL", None)
    SiteProcess.current = site
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

    with suppress_output("nvflare"), _listen_for_rejection(site):
        threading.Thread(target=run, name="nvflare", daemon=True).start()
        try:
            _await(site, kit, timeout)
            os.chdir(before)
            yield
        finally:
            os.chdir(before)
            _stop(site, SERVER if kit.is_coordinator else kit.party)
            SiteProcess.current = None


@contextmanager
def _listen_for_rejection(site: SiteProcess) -> Iterator[None]:
    """NVFlare says why a site was not registered in its log only."""
    words = "registration rejected: "

    class RejectionHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith(words):
                site.rejected = text.removeprefix(words)

    handler, log = RejectionHandler(), logging.getLogger("nvflare.private.fed.authenticator.Authenticator")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _await(site: SiteProcess, kit: Kit, timeout: float) -> None:
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


def _stop(site: SiteProcess, name: str) -> None:
    """Say goodbye to the other sites and end NVFlare's threads."""
    site.leaving.set()
    cell = CoreCell.ALL_CELLS.pop(name, None)
    if cell is not None:
        cell.stop()
    if site.owner is not None:
        site.owner.status = ServerStatus.SHUTDOWN if site.answer is None else ClientStatus.STOPPED
    site.ended.wait(3.0)


class Terminal:
    """A standard stream that drops what is written while ``package`` is among the callers.

    It would be tracebacks, with the texts of exceptions. What the package has to say is in its log.
    """

    def __init__(self, stream: Any, package: str) -> None:
        self._stream, self._prefix = stream, f"{package}."

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """To the terminal, or nowhere."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith(self._prefix):
            frame = frame.f_back
        return int(self._stream.write(text)) if frame is None else len(text)


@contextmanager
def suppress_output(package: str) -> Iterator[None]:
    """While this lasts, nothing that ``package`` prints reaches the terminal, and no exception of a thread does."""
    before = threading.excepthook
    threading.excepthook = _name_only
    try:
        with (
            redirect_stdout(Terminal(sys.stdout, package)),
            redirect_stderr(Terminal(sys.stderr, package)),
        ):
            yield
    finally:
        threading.excepthook = before


def _name_only(found: threading.ExceptHookArgs) -> None:
    """Log that a thread has ended by an exception; its text might hold something of a record."""
    logging.getLogger("discreet").info("a thread ended by %s", found.exc_type.__name__)
