"""The doors of a site: the coordinator has one, a party has none, whatever NVFlare would open by itself.

NVFlare listens on the loopback, without asking who comes, for the processes of jobs; on this machine any user could
come in there, call himself the server and speak to the party. There are no jobs here, so nobody listens. NVFlare
also shakes hands on the thread that accepts, so one caller who says nothing would shut out everybody. Here each
caller has a thread and a time limit, and if too many wait at once, the oldest of the busiest address has to go.

When a party comes back before its old connection is gone, NVFlare closes the old one, and may then take the party for
gone although it has just come: here comings and goings are taken one at a time. And NVFlare waits longer after every
loss before it dials again, up to ten seconds; here it is a second, always.

The socket is opened before NVFlare starts, on the very address that was asked for, so that what is wrong with it is
known at once.

A party knocks at the coordinator's door before it joins, so that what is wrong is said in one sentence: NVFlare
itself waits in silence when a port is closed or a certificate is refused. What may pass by itself is a
:class:`~discreet.errors.NotYet`; anything else would be the same tomorrow.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from cryptography import x509
from cryptography.x509.oid import NameOID
from nvflare.apis.fl_constant import ConnectionSecurity
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.endpoint import Endpoint, EndpointState
from nvflare.fuel.f3.sfm.conn_manager import ConnManager

from discreet.errors import CannotConnect, NobodyThere, NotYet
from discreet.parties.network.channels import Sieve
from discreet.parties.network.kits import Kit, split_address

HANDSHAKE_SECONDS = 20.0
"""So long may a caller take to show its certificate."""
MOST_CALLERS = 256
"""So many callers may be about it at once."""
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 1.0
_LOOPBACK = ("localhost", "127.0.0.1")


def open_listener(address: str) -> socket.socket:
    """Listen on exactly this ``host:port``, or say in one sentence why that cannot be."""
    host, port = split_address(address)
    try:
        return socket.create_server((host, port), backlog=MOST_CALLERS)
    except socket.gaierror:
        raise CannotConnect(f"{address} cannot be listened on: no computer has the name {host!r}.") from None
    except PermissionError:
        raise CannotConnect(
            f"{address} cannot be listened on: ports below 1024 belong to the administrator; choose a higher one."
        ) from None
    except OSError as error:
        raise CannotConnect(f"{address} cannot be listened on: {_reason(error)}.") from None


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use, perhaps by another coordinator"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this computer does not have that address; name one of its own, or 0.0.0.0 for all of them"
    return os.strerror(error.errno) if error.errno else "the network says no"


def default_address(host: str, port: int) -> str:
    """Where a coordinator listens unless told otherwise: on the loopback if parties know it so, else everywhere."""
    return f"127.0.0.1:{port}" if host in _LOOPBACK else f"0.0.0.0:{port}"


def use_listener(door: socket.socket | None) -> None:
    """From here on NVFlare in this process has this way in, or none at all, and knows no other transport."""
    MutualTLSDriver.door = door
    communicator.driver_mgr.drivers = dict.fromkeys(MutualTLSDriver.supported_transports(), MutualTLSDriver)
    communicator.driver_loaded = True
    communicator.ConnManager = LockedConnectionManager


class LockedConnectionManager(ConnManager):  # type: ignore[misc]
    """NVFlare's list of who is connected, in which nobody comes while somebody goes.

    Guarantee: whoever has a connection is listed as ready, and who comes by a new one is known to have been gone.
    Without the lock a close between the eviction of a party's old connection and the entry of its new one finds none,
    and strikes the party off for as long as the new one lasts. And NVFlare says nothing of an eviction: who asked by
    the old connection would wait for an answer that nobody gives.
    """

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self._order = threading.RLock()

    def update_endpoint(self, sfm_conn: Any, data: dict[str, Any]) -> None:
        """A site has said who it is; its certificate is checked before anything changes."""
        with self._order:
            before = {name: found.connections[:] for name, found in self.sfm_endpoints.items()}
            super().update_endpoint(sfm_conn, data)
            endpoint = sfm_conn.sfm_endpoint.endpoint
            if before.get(endpoint.name):
                gone = Endpoint(endpoint.name)
                gone.state = EndpointState.DISCONNECTED
                self.notify_monitors(gone)
                self.notify_monitors(endpoint)

    def register_message_receiver(self, app_id: int, receiver: Any) -> None:
        """Put a sieve before the receiver: see channels.py."""
        super().register_message_receiver(app_id, Sieve(receiver))

    def close_connection(self, connection: Any) -> None:
        """A connection has ended."""
        with self._order:
            super().close_connection(connection)


class MutualTLSDriver(TcpDriver):  # type: ignore[misc]
    """NVFlare's way to the network: TLS with a certificate on both sides, or nothing."""

    door: ClassVar[socket.socket | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._callers: dict[ssl.SSLSocket, float] = {}  # who is shaking hands, and until when they may
        self._lock = threading.Lock()

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """Where NVFlare believes to listen for its jobs."""
        return f"{scheme}://nowhere:0", f"{scheme}://nowhere:0"

    def listen(self, connector: Any) -> None:
        """Open the door to callers with certificates. Any other door stays shut, and this waits for the end."""
        self.connector = connector
        mutual = connector.params.get(DriverParams.CONNECTION_SECURITY.value) == ConnectionSecurity.MTLS
        if self.door is None or not mutual:
            connector.stopped.wait()
            return
        context = study_tls(*_credentials(connector.params, "server"), server=True)
        self.door.settimeout(_LOOK_SECONDS)
        while not connector.stopped.is_set():
            self._dismiss()
            try:
                caller, _ = self.door.accept()
                secure = context.wrap_socket(caller, server_side=True, do_handshake_on_connect=False)
            except TimeoutError:
                continue
            except OSError:  # the caller is gone, or there are no more sockets at the moment
                connector.stopped.wait(0.05)
                continue
            with self._lock:
                self._callers[secure] = time.monotonic() + HANDSHAKE_SECONDS
            threading.Thread(target=self._admit, args=(secure,), name="caller", daemon=True).start()

    def connect(self, connector: Any) -> None:
        """Dial the coordinator, again and again; shaking hands has a time limit here, too."""
        self.connector = connector
        place = connector.params[DriverParams.HOST.value], int(connector.params[DriverParams.PORT.value])
        context = study_tls(*_credentials(connector.params, "client"))
        while not connector.stopped.is_set():
            with (
                suppress(OSError),
                socket.create_connection(place, timeout=HANDSHAKE_SECONDS) as plain,
                context.wrap_socket(plain) as secure,
            ):
                if _common_name(secure) == place[0]:  # a party's certificate is of this authority, too
                    self._serve(secure)
            connector.stopped.wait(_AGAIN_SECONDS)

    def shutdown(self) -> None:
        """End all connections; the door is closed by whoever opened it."""
        self.close_all()

    def _admit(self, secure: ssl.SSLSocket) -> None:
        try:
            secure.settimeout(HANDSHAKE_SECONDS)
            secure.do_handshake()
        except (OSError, ValueError):
            secure.close()
            return
        finally:
            with self._lock:
                self._callers.pop(secure, None)
        self._serve(secure)

    def _serve(self, secure: ssl.SSLSocket) -> None:
        secure.settimeout(None)
        with secure:
            connection = SocketConnection(secure, self.connector, True)
            self.add_connection(connection)
            connection.read_loop()
            self.close_connection(connection)

    def _dismiss(self) -> None:
        """Turn away who is too slow, and if too many wait, the oldest from the address with the most."""
        with self._lock:
            now = time.monotonic()
            gone = [caller for caller, end in self._callers.items() if end <= now]
            waiting = [caller for caller in self._callers if caller not in gone]
            if len(waiting) >= MOST_CALLERS:
                gone.append(_oldest_of_the_most(waiting))
            for caller in gone:
                del self._callers[caller]
        for caller in gone:
            with suppress(OSError):
                socket.socket.shutdown(caller, socket.SHUT_RDWR)  # its thread wakes up and closes it


def study_tls(
    authority: str | Path, certificate: str | Path, key: str | Path, *, server: bool = False
) -> ssl.SSLContext:
    """TLS with certificates on both sides, of the kits' own authority and no other.

    Authorities of the system are not asked: whoever could get a certificate from one of them could play the
    coordinator. Names are compared by whoever dials, with the certificate's common name: hosts may be IP addresses.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    return context


def _credentials(params: dict[str, Any], side: str) -> tuple[str, str, str]:
    """The files of the authority, the certificate and the key, as NVFlare hands them over."""
    return params[DriverParams.CA_CERT.value], params[f"{side}_cert"], params[f"{side}_key"]


def _common_name(secure: ssl.SSLSocket) -> str:
    der = secure.getpeercert(binary_form=True) or b""
    names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else "nobody"


def _oldest_of_the_most(callers: list[ssl.SSLSocket]) -> ssl.SSLSocket:
    homes = [_home(caller) for caller in callers]
    busiest, _ = Counter(homes).most_common(1)[0]
    return callers[homes.index(busiest)]


def _home(caller: ssl.SSLSocket) -> str:
    try:
        return str(caller.getpeername()[0])
    except OSError:
        return ""


def probe_coordinator(kit: Kit, timeout: float = 5.0) -> None:
    """Shake hands with the coordinator once, and say in one sentence what is wrong. Sends nothing of the study."""
    where = f"{kit.host}:{kit.port}"
    context = study_tls(*map(kit.path, ("authority.pem", "site.crt", "site.key")))
    try:
        with (
            socket.create_connection((kit.host, kit.port), timeout=timeout) as plain,
            context.wrap_socket(plain) as secure,
        ):
            _check_name(secure, kit)
            _listen_for_refusal(secure)
    except socket.gaierror:
        raise NotYet(f"no computer is known by the name {kit.host!r}; ask the coordinator.") from None
    except ConnectionRefusedError:
        raise NobodyThere(f"nothing listens on {where}: the coordinator has not started yet.") from None
    except TimeoutError:
        raise NotYet(f"{where} does not answer: a firewall may be closed, or the address wrong.") from None
    except ssl.SSLCertVerificationError as error:
        raise CannotConnect(_verification(error, where)) from None
    except (
        ConnectionError,
        ssl.SSLEOFError,
        ssl.SSLZeroReturnError,
    ):  # so does a forwarder with nobody behind it
        raise NotYet(f"{where} closed the connection: the coordinator is starting or ending.") from None
    except ssl.SSLError as error:
        raise CannotConnect(_refusal(error, where, kit)) from None
    except OSError as error:
        raise NotYet(f"{where} cannot be reached ({error.strerror or 'network problem'}).") from None


def _check_name(secure: ssl.SSLSocket, kit: Kit) -> None:
    found = _common_name(secure)
    if found != kit.host:
        raise CannotConnect(
            f"{kit.host}:{kit.port} shows the certificate of {found!r}, not of the study's coordinator."
        )


def _listen_for_refusal(secure: ssl.SSLSocket) -> None:
    """Under TLS 1.3 a server refuses a client's certificate only after the handshake: wait for it a moment."""
    secure.settimeout(0.4)
    try:
        if secure.recv(1) == b"":
            raise ConnectionResetError
    except TimeoutError:
        return


def _verification(error: ssl.SSLCertVerificationError, where: str) -> str:
    if "expired" in error.verify_message:
        return (
            f"the certificate of {where} has expired; the coordinator must make new kits, unless this computer's "
            f"clock is wrong: it says {datetime.now():%d %B %Y, %H:%M}."
        )
    if "not yet valid" in error.verify_message:
        return (
            f"the certificate of {where} is not valid yet by this computer's clock, which says "
            f"{datetime.now():%d %B %Y, %H:%M}; set the clock."
        )
    return f"{where} belongs to another authority than this kit: one of the two comes from other kits."


def _refusal(error: ssl.SSLError, where: str, kit: Kit) -> str:
    reason = (error.reason or "").lower()
    if "unknown_ca" in reason or "unknown ca" in reason:
        return f"the coordinator at {where} does not know the authority that made {kit.source.name}."
    if "expired" in reason:
        return (
            f"the coordinator at {where} says that {kit.source.name} has expired; ask for new kits, unless one of "
            "the two clocks is wrong."
        )
    if "bad_certificate" in reason or "bad certificate" in reason:
        return (
            f"the coordinator at {where} does not accept {kit.source.name}: by its clock the kit may not be valid "
            "yet; compare the clocks."
        )
    if "wrong_version" in reason or "record" in reason:
        return f"{where} does not speak TLS: it is not the study's coordinator."
    return f"the coordinator at {where} refused {kit.source.name} ({reason.replace('_', ' ') or 'TLS'})."
