"""Kits: what is in them, what opening one refuses, and what the knock at the coordinator's door explains."""

import json
import shutil
import socket
import ssl
import stat
import threading
import zipfile
from contextlib import contextmanager
from datetime import timedelta

import pytest

from discreet.certificate import new_signing_key
from discreet.certificate.signatures import public_key_of, read_signing_key
from discreet.errors import CannotConnect, InvalidParameter, NotYet
from discreet.parties.network import connections, kits
from discreet.parties.network.connections import probe_coordinator
from discreet.parties.network.kits import make_kits, open_kit, read_kit, revoke, revoked_parties
from discreet.parties.study import Study
from support.small_study import TOML, free_port, study


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all") / "kits"
    here = study(free_port())
    return here, make_kits(here, folder)


def test_one_kit_for_each_site_and_no_key_of_the_authority_anywhere(made):
    here, paths = made
    assert sorted(paths) == ["coordinator", "hospital-a", "hospital-b"]
    assert sorted(path.name for path in paths["coordinator"].parent.iterdir() if path.is_file()) == [
        "coordinator.zip",
        "hospital-a.zip",
        "hospital-b.zip",
    ]
    contents = {name: read_kit(path) for name, path in paths.items()}
    rosters = {content["roster.json"] for content in contents.values()}
    assert len(rosters) == 1
    assert len({content["site.key"] for content in contents.values()}) == 3
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths.values())
    roster = json.loads(rosters.pop())
    assert roster["study"] == here.digest()
    assert sorted(roster["keys"]) == ["coordinator", "hospital-a", "hospital-b"]


def test_an_opened_kit_signs_with_the_key_that_the_roster_lists(made, tmp_path):
    here, paths = made
    kit = open_kit(paths["hospital-a"], tmp_path / "open")
    kit.check(here)
    assert public_key_of(kit.signing_key()) == kit.roster["hospital-a"]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in kit.folder.iterdir()}
    assert modes["site.key"] == modes["signing.key"] == 0o600
    assert stat.S_IMODE(kit.folder.stat().st_mode) == 0o700
    assert open_kit(paths["hospital-b"], tmp_path / "b").fingerprint == kit.fingerprint


def test_a_party_may_keep_its_private_key(tmp_path):
    own = new_signing_key(tmp_path / "own.key")
    paths = make_kits(study(), tmp_path / "kits", keys={"hospital-a": public_key_of(own)})
    assert "signing.key" not in read_kit(paths["hospital-a"])
    assert "the key that you made yourself" in read_kit(paths["hospital-a"])["README.txt"].decode()
    kit = open_kit(paths["hospital-a"])
    with pytest.raises(CannotConnect, match="keeps its own signing key"):
        kit.signing_key()
    assert public_key_of(kit.signing_key(tmp_path / "own.key")) == kit.roster["hospital-a"]
    new_signing_key(tmp_path / "other.key")
    with pytest.raises(CannotConnect, match="not the one that the study's roster lists"):
        kit.signing_key(tmp_path / "other.key")
    assert read_signing_key(tmp_path / "own.key")


SECURE = """
[aggregation]
kind = "secure"
"""


def test_with_secure_sums_every_party_makes_its_own_key(tmp_path):
    """Who knows the keys of all parties but one could play them, and read the sums of that one."""
    secure = Study.from_toml(TOML.format(port=8443, rounds=5) + SECURE)
    own = {name: new_signing_key(tmp_path / f"{name}.key") for name in secure.names}
    public = {name: public_key_of(key) for name, key in own.items()}
    with pytest.raises(InvalidParameter, match=r"discreet study key`; missing are hospital-a, hospital-b"):
        make_kits(secure, tmp_path / "none")
    with pytest.raises(InvalidParameter, match="missing are hospital-b"):
        make_kits(secure, tmp_path / "one", keys={"hospital-a": public["hospital-a"]})
    assert not (tmp_path / "one").exists()
    paths = make_kits(secure, tmp_path / "kits", keys=public)
    kit = open_kit(paths["hospital-a"])
    kit.check(secure)
    open_kit(paths["coordinator"]).check(secure)
    assert public_key_of(kit.signing_key(tmp_path / "hospital-a.key")) == public["hospital-a"]
    kit.path("signing.key").write_bytes((tmp_path / "hospital-a.key").read_bytes())
    with pytest.raises(CannotConnect, match="brings a signing key"):
        kit.check(secure)


def test_a_kit_says_what_its_maker_could_do(made):
    here, paths = made
    text = read_kit(paths["hospital-a"])["README.txt"].decode()
    assert "could answer in your name" in text
    assert "nothing of your records" in text
    assert here.digest() in text
    assert "in your name" not in read_kit(paths["coordinator"])["README.txt"].decode()


@pytest.mark.parametrize("days", [0, -1, float("nan"), True, "30", 4000])
def test_valid_days_are_whole_and_few(days, tmp_path):
    with pytest.raises(InvalidParameter, match="valid_days"):
        make_kits(study(), tmp_path / "kits", valid_days=days)


def test_kits_are_never_overwritten_and_keys_must_be_keys(made, tmp_path):
    here, paths = made
    with pytest.raises(InvalidParameter, match="never overwritten"):
        make_kits(here, paths["coordinator"].parent)
    with pytest.raises(InvalidParameter, match="hexadecimal"):
        make_kits(here, tmp_path / "x", keys={"hospital-a": "00"})
    with pytest.raises(InvalidParameter, match="no parties"):
        make_kits(here, tmp_path / "y", keys={"hospital-z": "00" * 32})


def test_names_that_mean_something_to_the_network_are_refused(tmp_path):
    taken = Study.from_toml(TOML.format(port=1, rounds=1).replace("hospital-a", "server"))
    with pytest.raises(InvalidParameter, match="means something else"):
        make_kits(taken, tmp_path / "kits")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "sub/site.key", "extra.txt", "local/resources.json"]
)
def test_an_archive_with_anything_else_is_refused_and_writes_nothing(made, tmp_path, name):
    _, paths = made
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        for member, data in read_kit(paths["hospital-a"]).items():
            archive.writestr(member, data)
        archive.writestr(name, b"x")
    with pytest.raises(InvalidParameter, match="no part of a kit"):
        open_kit(tmp_path / "evil.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["evil.zip"]


def test_what_is_no_kit_is_refused(made, tmp_path):
    _, paths = made
    (tmp_path / "text.zip").write_text("hello")
    with zipfile.ZipFile(tmp_path / "half.zip", "w") as archive:
        archive.writestr("kit.json", b"{}")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kit.json", bytes(1 << 24))
    with zipfile.ZipFile(tmp_path / "mixed.zip", "w") as archive:
        for member, data in read_kit(paths["hospital-a"]).items():
            archive.writestr(
                member, data.replace(b'"study":"', b'"study":"f') if member == "kit.json" else data
            )
    for name in ("text", "half", "bomb", "mixed", "absent"):
        with pytest.raises(InvalidParameter, match="kit"):
            open_kit(tmp_path / f"{name}.zip")


def test_another_study_and_an_expired_kit_are_explained(made, tmp_path):
    here, paths = made
    kit = open_kit(paths["hospital-a"], tmp_path / "a")
    with pytest.raises(CannotConnect, match="belongs to another study"):
        kit.check(study(rounds=6))
    kit.check(here, now=kit.expires - timedelta(seconds=1))
    with pytest.raises(CannotConnect, match="expired on"):
        kit.check(here, now=kit.expires)
    with pytest.raises(CannotConnect, match="set the clock"):
        kit.check(here, now=kit.begins - timedelta(seconds=1))


def test_revoking_is_noted_beside_the_coordinators_kit(made, tmp_path):
    folder = shutil.copytree(made[1]["coordinator"].parent, tmp_path / "kits")
    assert revoked_parties(folder) == frozenset()
    revoke(folder, "hospital-b")
    revoke(folder, "hospital-a")
    assert revoked_parties(folder) == {"hospital-a", "hospital-b"}
    for name in ("hospital-z", "coordinator"):
        with pytest.raises(InvalidParameter, match="party"):
            revoke(folder, name)


@contextmanager
def door(kit, authority, port):
    """A TLS server with the certificate of ``kit`` that wants one of ``authority``; answers nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.path("site.crt"), kit.path("site.key"))
    context.load_verify_locations(authority.path("authority.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve():
            try:
                plain, _ = server.accept()
                with plain, context.wrap_socket(plain, server_side=True) as secure:
                    secure.recv(1)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(10)


def test_every_way_in_which_the_door_stays_shut_has_its_sentence(tmp_path):
    port = free_port()
    ours, others = (make_kits(study(port), tmp_path / name) for name in ("ours", "others"))
    party, server = open_kit(ours["hospital-a"]), open_kit(ours["coordinator"])
    stranger, strange_server = open_kit(others["hospital-a"]), open_kit(others["coordinator"])

    with pytest.raises(CannotConnect, match="nothing listens"):
        probe_coordinator(party)
    with door(server, server, port):
        probe_coordinator(party)
    with door(strange_server, server, port), pytest.raises(CannotConnect, match="another authority"):
        probe_coordinator(party)
    with door(open_kit(ours["hospital-b"]), server, port), pytest.raises(CannotConnect, match="'hospital-b'"):
        probe_coordinator(party)  # a party that plays the coordinator
    knows_ours = type(stranger)(**{**stranger.__dict__, "folder": tmp_path / "mixed"})
    knows_ours.folder.mkdir()
    for member in ("site.crt", "site.key"):
        knows_ours.path(member).write_bytes(stranger.path(member).read_bytes())
    knows_ours.path("authority.pem").write_bytes(server.path("authority.pem").read_bytes())
    with door(server, server, port), pytest.raises(CannotConnect, match="does not know the authority"):
        probe_coordinator(knows_ours)


def test_a_server_that_does_not_speak_tls_and_an_unknown_host_are_explained(made, tmp_path, monkeypatch):
    party = open_kit(made[1]["hospital-a"], tmp_path / "open")
    with socket.create_server(("127.0.0.1", party.port)) as server:

        def greet():
            plain, _ = server.accept()
            with plain:
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
                plain.recv(4096)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        with pytest.raises(CannotConnect, match="does not speak TLS"):
            probe_coordinator(party)
        thread.join(10)

    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(connections.socket, "create_connection", unknown)
    with pytest.raises(CannotConnect, match="no computer is known"):
        probe_coordinator(party)


def test_a_forwarder_with_nobody_behind_it_is_waited_for(made, tmp_path):
    """It takes the call and hangs up, in the middle of the handshake; in 0.1.0 the party gave up."""
    party = open_kit(made[1]["hospital-a"], tmp_path / "open")
    with socket.create_server(("127.0.0.1", party.port)) as forwarder:

        def hang_up():
            plain, _ = forwarder.accept()
            with plain:
                plain.recv(4096)  # all of the greeting, so that the end is an orderly one

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        with pytest.raises(NotYet, match="closed the connection"):
            probe_coordinator(party)
        thread.join(10)


@pytest.mark.parametrize("address", ["localhost", "localhost:0", "localhost:99999", "a b:1", ":8443", "x:y"])
def test_addresses_are_host_and_port(address):
    with pytest.raises(InvalidParameter, match="coordinator"):
        kits.split_address(address)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "has not started"),
        (ConnectionResetError(104, "Connection reset"), "starting or ending"),
        (TimeoutError("timed out"), "firewall"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (socket.gaierror(-3, "Temporary failure in name resolution"), "no computer is known"),
    ],
)
def test_what_may_pass_by_itself_is_worth_trying_again(made, tmp_path, monkeypatch, trouble, words):
    party = open_kit(made[1]["hospital-a"], tmp_path / "open")

    def refuse(*args, **kwargs):
        raise trouble

    monkeypatch.setattr(connections.socket, "create_connection", refuse)
    with pytest.raises(NotYet, match=words):
        probe_coordinator(party)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("certificate is not yet valid", "set the clock"),
        ("certificate has expired", "clock is wrong"),
        ("unable to get local issuer certificate", "another authority"),
    ],
)
def test_certificates_that_cannot_be_verified_are_explained(trouble, words):
    error = ssl.SSLCertVerificationError(1, trouble)
    error.verify_message = trouble
    assert words in connections._verification(error, "b.example.org:8443")


@pytest.mark.parametrize(
    ("reason", "words"),
    [("SSLV3_ALERT_BAD_CERTIFICATE", "clocks"), ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "clocks")],
)
def test_refusals_that_may_come_from_clocks_say_so(made, tmp_path, reason, words):
    error = ssl.SSLError(1, reason)
    error.reason = reason
    kit = open_kit(made[1]["hospital-a"], tmp_path / "open")
    assert words in connections._refusal(error, "b.example.org:8443", kit)


def test_a_roster_is_shown_with_128_bits(made, tmp_path):
    kit = open_kit(made[1]["hospital-a"], tmp_path / "open")
    digits = kit.fingerprint.replace(" ", "")
    assert len(digits) == 32
    assert kit.digest.startswith(digits)
    assert [len(group) for group in kit.fingerprint.split()] == [4] * 8


def with_roster(path, place, change):
    """A kit whose roster was changed."""
    with zipfile.ZipFile(place, "w") as archive:
        for member, data in read_kit(path).items():
            if member == "roster.json":
                roster = json.loads(data)
                change(roster["keys"])
                data = json.dumps(roster).encode()
            archive.writestr(member, data)
    return open_kit(place)


def test_a_roster_with_names_that_are_no_party_is_refused(made, tmp_path):
    """Names that nobody reads were free digits for whoever looked for two rosters that agree."""
    here, paths = made
    more = with_roster(paths["hospital-a"], tmp_path / "more.zip", lambda keys: keys.update({"x": "0" * 64}))
    with pytest.raises(CannotConnect, match="'x', which is no party"):
        more.check(here)
    fewer = with_roster(paths["hospital-a"], tmp_path / "fewer.zip", lambda keys: keys.pop("hospital-b"))
    with pytest.raises(CannotConnect, match="does not list hospital-b"):
        fewer.check(here)
    with_roster(paths["hospital-a"], tmp_path / "same.zip", lambda keys: None).check(here)
