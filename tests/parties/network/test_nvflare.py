"""The engine between sites, over a real network on the loopback: who gets through, who stays out, what is said."""

import json
import logging
import logging.config
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path

import msgpack
import pytest
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from discreet.parties.network import sites
from discreet.parties.network.connections import MOST_CALLERS
from discreet.parties.network.kits import make_kits, open_kit, read_kit, revoke
from discreet.parties.network.nvflare import suppress_output
from discreet.parties.network.sites import write_workspace
from support.small_study import free_port, study

SUPPORT = Path(__file__).parents[2] / "support"
pytestmark = pytest.mark.network

PATIENCE = 60.0  # seconds: machines that run tests are busy


class Site:
    """A process of ours, by its pid."""

    def __init__(self, kit, timeout=PATIENCE):
        command = [sys.executable, str(SUPPORT / "echo_site.py"), str(kit), str(timeout)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self):
        line = self.process.stdout.readline()
        assert line, "the site ended without a word"
        return json.loads(line)

    def do(self, word, **details):
        self.process.stdin.write(json.dumps({"do": word, **details}) + "\n")
        self.process.stdin.flush()
        return self.read()

    def kill(self):
        self.process.kill()
        self.close()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.stdout.close()
        self.process.wait(10)


def until(test, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if test():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A coordinator and two parties that answer with what they were asked; a third kit lies ready."""
    text = study(free_port()).to_dict()
    text["parties"] = {"hospital-a": 10, "hospital-b": 10, "hospital-c": 10}
    here = type(study()).from_dict(text)
    paths = make_kits(here, tmp_path_factory.mktemp("network") / "kits")
    sites = {name: Site(paths[name]) for name in ("coordinator", "hospital-a", "hospital-b")}
    assert all(site.read() == {"up": True} for site in sites.values())
    both = ["hospital-a", "hospital-b"]
    assert until(lambda: sites["coordinator"].do("connected", parties=both) == both)
    yield here, paths, sites
    for site in sites.values():
        site.close()


def ask(network, parties, **details):
    return network[2]["coordinator"].do("broadcast", parties=parties, **{"timeout": PATIENCE, **details})


def port_of(network):
    return int(network[0].network.coordinator.rpartition(":")[2])


def test_only_the_channels_of_the_study_are_registered_and_no_other_is_answered(network):
    """The attack: by `_net_manager` any party read another's pid, memory and timings, or filled its memory."""
    members = network[2]
    registered = {name: members[name].do("registered") for name in members}
    ours = ["discreet:ask", "discreet:bye", "discreet:out"]
    server = ["discreet:here", "task:challenge", "task:heart_beat", "task:register"]
    assert registered == {"coordinator": server, "hospital-a": ours, "hospital-b": ours}
    for site in ("server", "hospital-a"):
        for channel in (["_net_manager", "process_info"], ["_net_manager", "echo"], ["admin", "sys_info"]):
            answer = members["hospital-b"].do("request", site=site, channel=channel, content="x")
            assert answer == ["timeout", False]


def test_the_coordinator_listens_on_one_port_and_a_party_on_none(network):
    sites = network[2]
    assert sites["coordinator"].do("listening") == [f"0100007F:{port_of(network):04X}"]
    for name in ("hospital-a", "hospital-b"):
        assert sites[name].do("listening") == []


def hello_of_the_server():
    """The frame with which a site introduces itself to NVFlare, under the coordinator's name."""
    payload = msgpack.packb({HandshakeKeys.ENDPOINT_NAME: "server", HandshakeKeys.TIMESTAMP: 0.0})
    frame = bytearray(PREFIX_LEN)
    Prefix(PREFIX_LEN + len(payload), 0, Types.HELLO, 0, 0, 0, 1, 1).to_buffer(frame, 0)
    return bytes(frame) + payload


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_welcome_nowhere(network):
    """The attack: on a party's inner door he was the server, and could end the study with a model of his own."""
    sites = network[2]
    doors = [address for site in sites.values() for address in site.do("listening")]
    ports = [str(int(address.rpartition(":")[2], 16)) for address in doors]
    script = (SUPPORT / "foreign_user.py").read_text()  # he may not be allowed to read our files
    command = ["/usr/bin/env", "python3", "-c", script, hello_of_the_server().hex(), *ports]
    try:
        knocked = subprocess.run(
            command,
            user=65534,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd="/",
            env={"PATH": os.defpath},
        )
    except PermissionError:
        pytest.skip("another user cannot run Python here")
    assert knocked.returncode == 0, knocked.stderr
    assert knocked.stdout.splitlines() == ["turned away"]  # there is one door, the coordinator's
    assert ask(network, ["hospital-a", "hospital-b"], text="hello") == ["hospital-a", "hospital-b"]


def test_questions_reach_the_parties_and_answers_come_back(network):
    both = ["hospital-a", "hospital-b"]
    assert ask(network, both, text="hello") == both
    assert ask(network, ["hospital-b"], text="hello") == ["hospital-b"]
    assert ask(network, both, size=30_000_000) == both


def test_who_is_absent_is_waited_for_once(network):
    begun = time.monotonic()
    assert ask(network, ["hospital-a", "hospital-c"], text="hello", timeout=6.0) == ["hospital-a"]
    assert time.monotonic() - begun >= 6.0
    begun = time.monotonic()
    for _ in range(3):
        assert ask(network, ["hospital-a", "hospital-c"], text="hello") == ["hospital-a"]
    assert time.monotonic() - begun < PATIENCE  # not waited for again, not even once


def test_the_text_of_an_error_stays_in_the_party_and_in_no_log(network):
    assert ask(network, ["hospital-a", "hospital-b"], text="fail") == []
    assert ask(network, ["hospital-a"], text="still here") == ["hospital-a"]
    folder = network[1]["coordinator"].parent
    logs = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".log", ".txt", ".json")]
    assert len(logs) > 6
    assert not [path for path in logs if b"secret-4711" in path.read_bytes()]


def test_a_party_cannot_ask_another_one_not_even_as_the_coordinator(network):
    assert network[2]["hospital-b"].do("intrude", party="hospital-a") == [False, False]
    assert ask(network, ["hospital-a"], text="hello") == ["hospital-a"]


def test_a_killed_party_is_missed_and_comes_back_past_a_crowd_that_says_nothing(network):
    _, paths, sites = network
    sites["hospital-b"].kill()
    assert until(
        lambda: ask(network, ["hospital-a", "hospital-b"], text="who", timeout=5.0) == ["hospital-a"]
    )
    with ExitStack() as stack:  # the attack: one caller who said nothing shut out everybody
        for _ in range(MOST_CALLERS + 44):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(network)), timeout=PATIENCE))
        sites["hospital-b"] = Site(paths["hospital-b"])
        assert sites["hospital-b"].read() == {"up": True}
        assert until(
            lambda: ask(network, ["hospital-a", "hospital-b"], text="who") == ["hospital-a", "hospital-b"]
        )


def test_a_party_stays_until_the_coordinator_lets_it_go(network):
    sites = network[2]
    assert not sites["hospital-a"].do("linger", seconds=0.1)
    sites["coordinator"].do("dismiss", parties=["hospital-a"])
    assert sites["hospital-a"].do("linger", seconds=PATIENCE)


def test_a_revoked_party_is_dropped_while_it_is_connected_and_told_why(network):
    _, paths, sites = network
    assert sites["hospital-b"].do("check") is None
    revoke(paths["coordinator"].parent, "hospital-b")
    assert ask(network, ["hospital-a", "hospital-b"], text="who") == ["hospital-a"]
    assert until(lambda: "has revoked this kit" in (sites["hospital-b"].do("check") or ""))
    assert sites["hospital-a"].do("check") is None


def test_strangers_borrowed_names_and_revoked_kits_are_not_admitted(network, tmp_path):
    here, paths, sites = network
    strange = make_kits(here, tmp_path / "strange")[
        "hospital-c"
    ]  # right study, right name, another authority
    borrowed = tmp_path / "borrowed.zip"  # the certificate of hospital-b under another name
    with zipfile.ZipFile(borrowed, "w") as archive:
        for name, data in read_kit(paths["hospital-b"]).items():
            text = data.replace(b'"hospital-b"', b'"hospital-c"') if name == "kit.json" else data
            archive.writestr(name, text)
    sites["hospital-b"].kill()
    intruders = [Site(kit, timeout=12.0) for kit in (strange, borrowed, paths["hospital-b"])]
    found = [(intruder.read()["refused"], intruder.kill())[0] for intruder in intruders]
    for words, name in zip(found, ("hospital-c", "hospital-c", "hospital-b"), strict=True):
        assert f"did not admit {name}" in words
    assert "was revoked" in found[2]
    assert sites["coordinator"].do("connected", parties=["hospital-b", "hospital-c"]) == []


def test_no_site_accepts_jobs_orders_code_or_log_readers(tmp_path):
    paths = make_kits(study(), tmp_path / "kits")
    for name in ("coordinator", "hospital-a"):
        root = write_workspace(open_kit(paths[name]))
        resources = json.loads((root / "local/resources.json").read_text())
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert len(resources["class_allow_list"]) == len(resources["components"]) == 1
        assert resources["class_allow_list"][0].startswith("discreet.parties.network.sites.")
        assert resources["allow_log_streaming"] is False
        rights = json.loads((root / "local/authorization.json").read_text())["permissions"]
        assert {right for role in rights.values() for right in role.values()} == {"none"}
        logging = json.loads((root / "local/log_config.json").read_text())
        assert list(logging["handlers"]) == ["file"]
        assert "DEBUG" not in json.dumps(logging)
        startup = next((root / "startup").glob("fed_*.json")).read_text()
        assert '"mtls"' in startup
        assert '"tcp"' in startup
        outside = [text for text in (json.dumps(resources), startup) if "/tmp/nvflare" in text]
        assert outside == []


def test_what_the_engine_prints_reaches_nobody_and_what_we_print_the_terminal(capsys):
    """It printed tracebacks with the texts of exceptions, which then lay in nvflare.log."""
    engine = {"__name__": "engine.inner"}
    exec("import sys\ndef loud():\n    print('theirs')\n    print('theirs too', file=sys.stderr)", engine)
    with suppress_output("engine"):
        print("ours")
        engine["loud"]()
        failing = threading.Thread(target=int, args=("secret-4711",))
        failing.start()
        failing.join()
    assert capsys.readouterr() == ("ours\n", "")


def test_no_line_of_the_log_holds_a_traceback(tmp_path):
    config = sites._logging(tmp_path / "nvflare.log")
    formatter = logging.config.DictConfigurator(config).configure_formatter(config["formatters"]["plain"])
    try:
        raise ValueError("secret-4711")
    except ValueError:
        words = (
            "nvflare",
            logging.ERROR,
            __file__,
            1,
            "failed: %s\nTraceback",
            ("ValueError",),
            sys.exc_info(),
        )
        record = logging.LogRecord(*words)
    line = formatter.format(record)
    assert line.endswith("ERROR nvflare failed: ValueError")
    assert "Traceback" not in line
    assert "secret-4711" not in line
    plain = logging.Formatter(sites._LINE).format(record)  # the broken twin
    assert "secret-4711" in plain
