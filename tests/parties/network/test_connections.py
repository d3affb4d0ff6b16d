"""The coordinator's door: who is turned away when many knock, and what is said if it cannot be opened."""

import socket
import ssl
import threading
from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.cellnet.core_cell import _Waiter
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers.net_utils import get_ssl_context
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.endpoint import Endpoint, EndpointState
from nvflare.fuel.f3.sfm import sfm_endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from discreet.errors import CannotConnect, InvalidParameter
from discreet.parties.network import channels, connections
from discreet.parties.network.connections import (
    LockedConnectionManager,
    MutualTLSDriver,
    default_address,
    open_listener,
    use_listener,
)
from discreet.parties.network.kits import make_kits, open_kit
from discreet.parties.network.sites import CoordinatorService, PartyService, SiteProcess, write_workspace
from support.small_study import study

PATIENCE = 60.0


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    paths = make_kits(study(), tmp_path_factory.mktemp("doors") / "kits")
    return {name: open_kit(path) for name, path in paths.items()}


class Watched(MutualTLSDriver):
    """A door that notes who came in, and sends them away again."""

    def __init__(self):
        super().__init__()
        self.served = []

    def _serve(self, secure):
        self.served.append(secure.getpeercert()["subject"])
        secure.close()


def connector(kit, security="mtls"):
    params = {
        "ca_cert": str(kit.path("authority.pem")),
        "server_cert": str(kit.path("site.crt")),
        "server_key": str(kit.path("site.key")),
        "connection_security": security,
        "secure": True,
    }
    return SimpleNamespace(params=params, stopped=threading.Event())


@pytest.fixture
def opened(kits, monkeypatch):
    """A door in this process: where it is, and the driver behind it."""
    driver, listening = Watched(), connector(kits["coordinator"])
    with socket.create_server(("127.0.0.1", 0)) as door:
        monkeypatch.setattr(MutualTLSDriver, "door", door)
        thread = threading.Thread(target=driver.listen, args=(listening,), daemon=True)
        thread.start()
        yield door.getsockname(), driver
        listening.stopped.set()
        thread.join(PATIENCE)


def come_in(place, kit):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(kit.path("authority.pem"))
    context.load_cert_chain(kit.path("site.crt"), kit.path("site.key"))
    with socket.create_connection(place, timeout=PATIENCE) as plain, context.wrap_socket(plain) as secure:
        return secure.recv(1)


def test_a_caller_comes_in_past_those_who_say_nothing(opened, kits):
    place, driver = opened
    idle = [socket.create_connection(place, timeout=PATIENCE) for _ in range(100)]
    assert come_in(place, kits["hospital-a"]) == b""
    assert len(driver.served) == 1
    for caller in idle:
        caller.close()


def test_who_takes_too_long_is_turned_away(opened, monkeypatch):
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.2)
    place, driver = opened
    with socket.create_connection(place, timeout=PATIENCE) as idle:
        assert idle.recv(1) == b""  # closed by the other side
    assert driver.served == []


def test_if_too_many_wait_the_oldest_has_to_go(opened, kits, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CALLERS", 5)
    place, _ = opened
    idle = [socket.create_connection(place, timeout=PATIENCE) for _ in range(7)]
    assert idle[0].recv(1) == b""
    assert come_in(place, kits["hospital-b"]) == b""
    for caller in idle:
        caller.close()


def test_the_oldest_is_one_of_the_address_with_the_most():
    callers = [SimpleNamespace(getpeername=lambda home=home: (home, 1)) for home in "abbab"]
    assert connections._oldest_of_the_most(callers) is callers[1]


def test_a_caller_without_a_certificate_does_not_come_in(opened, kits):
    place, driver = opened
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(kits["hospital-a"].path("authority.pem"))
    with socket.create_connection(place, timeout=PATIENCE) as plain:
        secure = context.wrap_socket(plain)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            secure.recv(1)
        secure.close()
    assert driver.served == []


@pytest.mark.parametrize("security", ["clear", "tls", None])
def test_a_door_without_certificates_on_both_sides_stays_shut(kits, monkeypatch, security):
    with socket.create_server(("127.0.0.1", 0)) as door:
        monkeypatch.setattr(MutualTLSDriver, "door", door)
        inner = connector(kits["coordinator"], security)
        inner.stopped.set()  # so that it returns instead of waiting
        MutualTLSDriver().listen(inner)
        assert door.gettimeout() is None  # nobody looked at it


def test_a_party_has_no_door_and_nvflare_no_other_way(monkeypatch):
    monkeypatch.setattr(MutualTLSDriver, "door", None)
    monkeypatch.setattr(communicator, "driver_loaded", False)
    monkeypatch.setattr(communicator.driver_mgr, "drivers", {"grpc": object})
    use_listener(None)
    assert communicator.driver_loaded
    assert communicator.driver_mgr.drivers == {"tcp": MutualTLSDriver, "stcp": MutualTLSDriver}
    assert MutualTLSDriver.door is None
    assert MutualTLSDriver.get_urls("tcp", {}) == ("tcp://nowhere:0", "tcp://nowhere:0")


def test_administrators_come_by_the_same_port(kits):
    """With another one NVFlare opened a second door, on all addresses."""
    text = (write_workspace(kits["coordinator"], 9999) / "startup/fed_server.json").read_text()
    assert '"admin_port": 9999' in text
    assert '"target": "localhost:9999"' in text


def test_a_coordinator_on_the_loopback_stays_there():
    assert default_address("localhost", 8443) == "127.0.0.1:8443"
    assert default_address("b.example.org", 8443) == "0.0.0.0:8443"


def test_what_is_wrong_with_an_address_is_said_in_one_sentence():
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(CannotConnect, match="the port is in use"):
        open_listener(f"127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(CannotConnect, match="does not have that address"):
        open_listener("192.0.2.1:8443")
    with pytest.raises(InvalidParameter, match="host:port"):
        open_listener("localhost:99999")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "administrator"),
        (socket.gaierror(-2, "Name or service not known"), "no computer has the name"),
        (OSError(97, "Address family not supported"), "cannot be listened on"),
    ],
)
def test_rarer_troubles_have_sentences_too(error, words, monkeypatch):
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(connections.socket, "create_server", refuse)
    with pytest.raises(CannotConnect, match=words):
        open_listener("localhost:80")


class Told:
    """What NVFlare tells of the sites that are connected."""

    def __init__(self):
        self.ready, self.said = set(), []

    def state_change(self, endpoint):
        self.said.append(endpoint.state)
        (self.ready.add if endpoint.state == EndpointState.READY else self.ready.discard)(endpoint.name)


def managed(kind):
    """A list of connections of this kind, who is told of changes, and a way for a party to come in."""
    manager, told = kind(Endpoint("server")), Told()
    manager.add_endpoint_monitor(told)

    def come():
        wire = SimpleNamespace(
            name=f"CN{len(manager.sfm_conns) + len(told.said)}",
            connector=SimpleNamespace(mode=Mode.PASSIVE, params={}),
            get_conn_properties=dict,
            register_frame_receiver=lambda receiver: None,
            close=lambda: None,
        )
        manager.handle_new_connection(wire)
        return wire, manager.sfm_conns[wire.name]

    def hello(connection):
        manager.update_endpoint(connection, {"endpoint_name": "party"})

    return manager, told, come, hello


def evicted_in_the_gap(kind, monkeypatch):
    """The party comes anew; the thread of its old connection wakes up after the eviction, before the new entry."""
    manager, told, come, hello = managed(kind)
    old, first = come()
    hello(first)
    goes = threading.Thread(target=manager.close_connection, args=(old,))

    def meanwhile(text, *rest):
        if "evicted" in text:
            goes.start()
            goes.join(0.2)  # with the lock it cannot end here

    monkeypatch.setattr(sfm_endpoint.log, "info", meanwhile)
    hello(come()[1])
    goes.join(PATIENCE)
    return manager, told


def test_who_comes_again_while_its_old_connection_goes_is_there(monkeypatch):
    manager, told = evicted_in_the_gap(LockedConnectionManager, monkeypatch)
    assert told.ready == {"party"}
    assert manager.sfm_endpoints["party"].endpoint.state == EndpointState.READY
    ready, gone = EndpointState.READY, EndpointState.DISCONNECTED
    assert told.said == [ready, gone, ready]  # whoever waits for an answer by the old one is told


def test_without_the_order_it_would_be_struck_off(monkeypatch):
    """The broken twin: NVFlare's own list. The party is connected, and nobody can ask it anything."""
    manager, told = evicted_in_the_gap(ConnManager, monkeypatch)
    assert manager.sfm_endpoints["party"].connections
    assert told.ready == set()


def test_a_site_uses_the_orderly_list(monkeypatch):
    monkeypatch.setattr(MutualTLSDriver, "door", None)
    use_listener(None)
    assert communicator.ConnManager is LockedConnectionManager


def test_a_party_dials_again_after_a_second_however_often_it_was_cut_off(kits, monkeypatch):
    """NVFlare would wait longer each time, up to ten seconds."""
    dialled, waited = [], []
    line = connector(kits["hospital-a"])
    line.params |= {"host": "localhost", "port": 1, "client_cert": line.params["server_cert"]}
    line.params["client_key"] = line.params["server_key"]

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 7:
            line.stopped.set()

    line.stopped = SimpleNamespace(is_set=lambda: len(waited) == 7, wait=wait, set=lambda: None)

    def refused(place, timeout):
        dialled.append(place)
        raise ConnectionRefusedError

    monkeypatch.setattr(connections.socket, "create_connection", refused)
    MutualTLSDriver().connect(line)
    assert dialled == [("localhost", 1)] * 7
    assert waited == [1.0] * 7


def test_nobody_waits_for_an_answer_by_a_connection_that_has_ended():
    site = SiteProcess(None)
    waiters = [_Waiter(["a", "b"]), _Waiter(["a"]), _Waiter(["b"])]
    waiters[0].reply_time["b"] = 1.0
    site.cell, site.heard = SimpleNamespace(waiters=dict(enumerate(waiters))), {"a": 0.0, "b": 0.0}
    site.miss("a")
    assert [waiter.is_set() for waiter in waiters] == [True, True, False]
    assert waiters[0].received_replies["a"].get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.COMM_ERROR
    assert set(site.heard) == {"b"}


@pytest.mark.parametrize("service", [PartyService, CoordinatorService])
def test_both_sides_notice_that_a_connection_has_ended(service, monkeypatch):
    """A party whose heartbeat was under way would wait half a minute before a new coordinator knows it."""
    site, callbacks = SiteProcess(None if service is CoordinatorService else bytes), []
    cell = SimpleNamespace(
        register_request_cb=lambda *words: None, set_cell_disconnected_cb=callbacks.append, waiters={}
    )
    owner = SimpleNamespace(cell=SimpleNamespace(core_cell=cell))
    engine = SimpleNamespace(client=owner, server=owner)
    monkeypatch.setattr(SiteProcess, "current", site)
    event = EventType.SYSTEM_START if site.answer is None else EventType.SYSTEM_BOOTSTRAP
    service().handle_event(event, SimpleNamespace(get_engine=lambda: engine))
    waiter = _Waiter(["server"])
    cell.waiters["heartbeat"] = waiter
    (gone,) = callbacks
    gone(SimpleNamespace(endpoint=SimpleNamespace(name="server")))
    assert waiter.is_set()


def dialled(party, server, monkeypatch):
    """Whether the party's lasting connection goes to a server with the certificate of this kit."""
    driver, line = Watched(), connector(party)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.path("site.crt"), server.path("site.key"))
    monkeypatch.setattr(connections, "_AGAIN_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        line.params |= {"host": party.host, "port": listening.getsockname()[1]}
        line.params |= {"client_cert": line.params["server_cert"], "client_key": line.params["server_key"]}

        def welcome():
            caller, _ = listening.accept()
            try:
                with context.wrap_socket(caller, server_side=True) as secure:
                    secure.recv(1)
            except OSError:
                pass
            line.stopped.set()
            listening.close()  # whoever dials again is not kept waiting

        thread = threading.Thread(target=welcome, daemon=True)
        thread.start()
        driver.connect(line)
        thread.join(PATIENCE)
    return bool(driver.served)


def test_a_party_dials_the_coordinator_of_its_own_kits_and_nobody_else(kits, tmp_path, monkeypatch):
    strange = open_kit(make_kits(study(), tmp_path / "strange")["coordinator"])
    assert dialled(kits["hospital-a"], kits["coordinator"], monkeypatch)
    assert not dialled(
        kits["hospital-a"], kits["hospital-b"], monkeypatch
    )  # a party that plays the coordinator
    assert not dialled(kits["hospital-a"], strange, monkeypatch)


def test_the_authorities_of_the_system_are_not_asked(kits, tmp_path, monkeypatch):
    """In 0.1.0 a certificate for the coordinator's name from any of them was as good as the kit's."""
    strange = open_kit(make_kits(study(), tmp_path / "strange")["coordinator"])
    monkeypatch.setenv("SSL_CERT_FILE", str(strange.path("authority.pem")))
    assert not dialled(kits["hospital-a"], strange, monkeypatch)

    def of_nvflare(authority, certificate, key):
        params = {"ca_cert": authority, "client_cert": certificate, "client_key": key, "secure": True}
        return get_ssl_context(params, ssl_server=False)

    monkeypatch.setattr(connections, "study_tls", of_nvflare)  # the broken twin
    assert dialled(kits["hospital-a"], strange, monkeypatch)


def test_no_party_has_the_name_of_the_coordinators_host(tmp_path):
    named = study().to_dict()
    named["parties"] = {"localhost": 10, "hospital-b": 10}
    with pytest.raises(InvalidParameter, match="means something else on a network"):
        make_kits(type(study()).from_dict(named), tmp_path / "kits")


def cell(waiting=()):
    return SimpleNamespace(my_info=SimpleNamespace(fqcn="server"), waiters=dict.fromkeys(waiting))


def headers(kind="req", channel="discreet", topic="here", to="server", **more):
    found = {"msg_type": kind, "channel": channel, "topic": topic, "destination": to} | more
    return {f"cn__{name}": value for name, value in found.items()}


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        (headers(), True),
        (headers(channel="task", topic="register"), True),
        (headers(channel="_net_manager", topic="process_info"), False),
        (headers(channel="task", topic="*"), False),
        (headers(topic=["here"]), False),
        (headers(to="hospital-b"), False),  # nothing is passed on
        (headers("reply", req_id="1"), True),
        (headers("reply", req_id=["0", "1"]), True),
        (headers("return", req_id="1"), True),
        (headers("reply", req_id="2"), False),  # nobody waits for it
        (headers("reply", req_id=[["1"]]), False),
        (headers("reply"), False),
        (None, False),
    ],
)
def test_messages_that_are_not_of_the_study_are_dropped_before_they_are_decoded(message, taken, monkeypatch):
    monkeypatch.setattr(channels.Channels, "allowed", channels.COORDINATOR)
    assert channels.Sieve(cell("1")).takes(message) == taken


def test_a_sieve_stands_before_every_receiver():
    manager, received = LockedConnectionManager(Endpoint("server")), []
    receiver = cell()
    receiver.process_message = lambda *words: received.append(words)
    manager.register_message_receiver(1, receiver)
    manager.receivers[1].process_message(
        None, None, 1, SimpleNamespace(headers=headers(channel="hci_channel"))
    )
    assert received == []


def test_frames_larger_than_any_of_the_study_are_not_read(monkeypatch):
    for name in ("core_cell.Registry", "socket_conn.MAX_FRAME_SIZE"):
        module, word = name.split(".")
        monkeypatch.setattr(getattr(channels, module), word, getattr(getattr(channels, module), word))
    monkeypatch.setattr(channels.Channels, "allowed", frozenset())
    channels.use_channels(channels.PARTY, channels.most_bytes(10))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = bytearray(PREFIX_LEN)
        Prefix((1 << 24) + 2000, 0, Types.DATA, 0, 0, 0, 1, 1).to_buffer(frame, 0)
        theirs.sendall(frame)
        line = SimpleNamespace(params={}, driver=None, handle="h")
        with pytest.raises(CommError, match="exceeds limit"):
            SocketConnection(ours, line).read_frame()
