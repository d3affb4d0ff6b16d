"""What runs inside NVFlare at a site: one component of ours, and what it knows.

A party answers the coordinator alone, never another party, takes no orders, and lets no text of an exception out.

What NVFlare may do is in its folder of settings, written by the site itself from the installed library. A kit brings
certificates, never settings, so no coordinator can loosen them. There is no job layer (no scheduler, launcher or
store of jobs), nobody has a right, one class of ours may be built, no code is accepted, no log leaves, and NVFlare
writes to one file beside the kit instead of the terminal.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.message import Message

from discreet.parties.network.channels import ASK, BYE, CHANNEL, HERE, OUT
from discreet.parties.network.kits import Kit, revoked_parties

Answer = Callable[[bytes], bytes]

SERVER = "server"
_HERE_SECONDS = 1.0
_SWITCH_SECONDS = 5e-4  # a message passes through several threads; each would wait up to 5 ms for its turn


class SiteProcess:
    """What our component finds when NVFlare builds it: one site per process."""

    current: SiteProcess | None = None

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


class PartyService(FLComponent):  # type: ignore[misc]
    """Answers the coordinator's questions in the party's process."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Take the channel as soon as the connection exists; drop everything else once the site is up."""
        site, engine = SiteProcess.current, fl_ctx.get_engine()
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
        site = SiteProcess.current
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


PARTY_COMPONENT = "discreet.parties.network.sites.PartyService"
COORDINATOR_COMPONENT = "discreet.parties.network.sites.CoordinatorService"


def write_workspace(kit: Kit, port: int | None = None) -> Path:
    """NVFlare's folder for this site, made afresh from the kit's certificates and our own settings.

    ``port`` is the one that a coordinator listens on, if it is not the one that parties know.
    """
    root = kit.folder / "nvflare"
    shutil.rmtree(root, ignore_errors=True)
    for part in ("startup", "local"):
        (root / part).mkdir(parents=True, mode=0o700)
    side = "server" if kit.is_coordinator else "client"
    for member, name in (
        ("authority.pem", "rootCA.pem"),
        ("site.crt", f"{side}.crt"),
        ("site.key", f"{side}.key"),
    ):
        shutil.copy2(kit.path(member), root / "startup" / name)
    startup = _server_startup(kit, port or kit.port) if kit.is_coordinator else _client_startup(kit)
    _write(root / "startup" / f"fed_{side}.json", startup)
    _write(
        root / "local" / "resources.json",
        _server_resources(root) if kit.is_coordinator else _client_resources(),
    )
    _write(root / "local" / "authorization.json", _AUTHORIZATION)
    _write(root / "local" / "log_config.json", _logging(kit.folder / "nvflare.log"))
    if kit.is_coordinator:
        names = sorted(revoked_parties(kit.source.parent))
        _write(root / "disabled_clients.json", {"disabled_clients": names})
    return root


def _write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1))


def _tls(side: str) -> dict[str, str]:
    return {
        "ssl_private_key": f"{side}.key",
        "ssl_cert": f"{side}.crt",
        "ssl_root_cert": "rootCA.pem",
        "connection_security": "mtls",
    }


def _service(host: str, port: int) -> dict[str, str]:
    return {"target": f"{host}:{port}", "scheme": "tcp"}


def _server_startup(kit: Kit, port: int) -> dict[str, Any]:
    """Administrators would come by the same port; with another one NVFlare would open a second door for them."""
    service = {"name": kit.study, "service": _service("localhost", port), "admin_server": "localhost"}
    return {
        "format_version": 2,
        "servers": [service | {"admin_port": port, "identity": kit.host} | _tls("server")],
    }


def _client_startup(kit: Kit) -> dict[str, Any]:
    server = {"name": kit.study, "service": _service(kit.host, kit.port), "identity": kit.host}
    client = _tls("client") | {"fqsn": kit.party, "is_leaf": True}
    return {"format_version": 2, "servers": [server], "client": client}


def _component(path: str) -> dict[str, Any]:
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [path],
        "allow_log_streaming": False,
        "components": [{"id": "discreet", "path": path, "args": {}}],
    }


def _client_resources() -> dict[str, Any]:
    client = {"retry_timeout": 30, "client_register_interval": 0.2, "maint_msg_timeout": 10.0}
    return _component(PARTY_COMPONENT) | {"client": client}


def _server_resources(root: Path) -> dict[str, Any]:
    storage = {
        "path": "nvflare.app_common.storages.filesystem_storage.FilesystemStorage",
        "args": {"root_dir": str(root / "snapshot"), "uri_root": "/"},
    }
    persistor = {
        "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {"uri_root": "/", "storage": storage},
    }
    server = {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": 600}
    return _component(COORDINATOR_COMPONENT) | {"servers": [server], "snapshot_persistor": persistor}


_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"
_RIGHTS = (
    "submit_job",
    "clone_job",
    "manage_job",
    "download_job",
    "view",
    "operate",
    "shell_commands",
    "byoc",
)
_AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {
        role: dict.fromkeys(_RIGHTS, "none") for role in ("project_admin", "org_admin", "lead", "member")
    },
}


class OneLine(logging.Formatter):
    """Log lines without tracebacks: the first line of a message, and nothing of an exception that came with it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; the record itself stays as it is, for other handlers."""
        plain = logging.makeLogRecord(record.__dict__)
        plain.msg, plain.args = record.getMessage().partition("\n")[0], ()
        plain.exc_info = plain.exc_text = plain.stack_info = None
        return super().format(plain)


def _logging(file: Path) -> dict[str, Any]:
    """Everything into one file beside the kit, nothing on the terminal, never DEBUG (it would print payloads)."""
    handler = {
        "class": "logging.handlers.RotatingFileHandler",
        "level": "INFO",
        "formatter": "plain",
        "filename": str(file),
        "maxBytes": 5 << 20,
        "backupCount": 1,
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"()": f"{__name__}.OneLine", "fmt": _LINE}},
        "handlers": {"file": handler},
        "loggers": {"root": {"level": "INFO", "handlers": ["file"]}},
    }
