"""A study by its commands, over a real network on the loopback, each in its own process: what remains at the end."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate import Certificate
from discreet.certificate.signatures import public_key_of
from discreet.cli import main
from discreet.ledger import Ledger
from discreet.parties.joint import JointCertificate
from support.small_study import free_port

pytestmark = pytest.mark.network

PATIENCE = 120.0  # seconds: machines that run tests are busy
SCHEMA = 'target = "again"\n[columns]\nage = { bounds = [0, 100] }\nagain = { flag = "yes" }\n'
ROWS = "age,again\n" + "".join(f"{age},{'yes' if age > 50 else 'no'}\n" for age in range(10, 90, 10))
COORDINATE = ("coordinate", "study.toml", "--kit", "kits/coordinator.zip", "--out", "joint")


class Command:
    """One of our commands in a process of its own, by its pid."""

    def __init__(self, folder, *words):
        line = [sys.executable, "-m", "discreet", *words]
        self.process = subprocess.Popen(
            line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.told = ""

    def until(self, words):
        """Read on until the command says this on its screen."""
        while words not in self.told:
            line = self.process.stderr.readline()
            assert line, f"ended without a word of {words!r}: {self.told}"
            self.told += line

    def ended(self):
        """The exit status and all that was said."""
        out, rest = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out + self.told + rest

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def join(folder, party, *words):
    files = ("--data", f"{party}.csv", "--kit", f"kits/{party}.zip", "--ledger", f"{party}.ledger")
    return Command(folder, "join", "study.toml", *files, "--yes", "--wait", str(PATIENCE), *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What is left of a study of two parties that has come to its end."""
    place = tmp_path_factory.mktemp("commands")
    (place / "schema.toml").write_text(SCHEMA)
    for party in "ab":
        (place / f"{party}.csv").write_text(ROWS)
    before = os.getcwd()
    os.chdir(place)
    try:
        new = ("study", "new", "demo", "--party", "a=8", "--party", "b=8", "--schema", "schema.toml")
        limits = ("--rounds", "5", "--epsilon", "3", "--delta", "1e-4")
        for words in (
            (*new, *limits, "--coordinator", f"localhost:{free_port()}"),
            ("study", "kits", "study.toml"),
        ):
            assert CliRunner().invoke(main, words).exit_code == 0
    finally:
        os.chdir(before)
    return place


@pytest.fixture(scope="module")
def screens(folder):
    sites = {"coordinator": Command(folder, *COORDINATE), "a": join(folder, "a"), "b": join(folder, "b")}
    try:
        found = {name: site.ended() for name, site in sites.items()}
    finally:
        for site in sites.values():
            site.close()
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(sites, 0), found
    return {name: text for name, (_, text) in found.items()}


def test_every_screen_shows_the_digest_of_the_same_model(folder, screens):
    joint = JointCertificate.load(folder / "joint/joint.json")
    for text in screens.values():
        assert f"Model {joint.model}" in text
    weights = {
        (folder / place / "weights.safetensors").read_bytes() for place in ("joint", "demo-a", "demo-b")
    }
    assert len(weights) == 1


def test_the_coordinators_folder_holds_a_joint_certificate(folder, screens):
    words = ("study", "verify", str(folder / "joint/joint.json"))
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 3  # whoever made it up could have made up its keys, too
    assert "nobody vouches for it" in found.output
    roster = json.loads(CliRunner().invoke(main, (*words, "--json")).output)["roster"]
    assert roster in screens["coordinator"]
    assert "no certificate" not in found.output
    assert "a, b signed for this model" in found.output
    words = (*words, "--roster", roster)
    assert CliRunner().invoke(main, words).exit_code == 0
    assert "the weights in" in found.output
    party = CliRunner().invoke(main, (*words, "--model", str(folder / "demo-a")))
    assert party.exit_code == 0
    empty = CliRunner().invoke(main, (*words, "--model", str(folder / "kits")))
    assert empty.exit_code == 1
    assert "is rejected: the model cannot be read" in empty.stderr
    assert "was made with the roster" in CliRunner().invoke(main, (*words, "--roster", "0" * 32)).stderr
    whole = json.loads(CliRunner().invoke(main, (*words, "--json")).output)["roster_digest"]
    assert CliRunner().invoke(main, (*words, "--roster", whole)).exit_code == 0
    assert CliRunner().invoke(main, (*words, "--roster", whole[:16])).exit_code == 2  # can be made to collide
    for place in ("joint", "joint/joint.json"):  # the other command is named
        other = CliRunner().invoke(main, ("verify", str(folder / place)))
        assert other.exit_code == 2
        assert f"discreet study verify {folder / 'joint/joint.json'}" in " ".join(other.stderr.split())


def test_a_joint_certificate_with_invented_keys_is_consistent_and_not_accepted(folder, screens, tmp_path):
    """The attack: everything of a real study, certificates and all, signed by keys of the attacker's own."""
    true = JointCertificate.load(folder / "joint/joint.json")
    keys = {name: Ed25519PrivateKey.generate() for name in true.roster}
    certificates = {
        name: replace(found, signatures=()).signed(keys[name]) for name, found in true.certificates.items()
    }
    roster = {name: public_key_of(key) for name, key in keys.items()}
    forged = replace(true, roster=roster, certificates=certificates).signed(keys["coordinator"])
    forged.save(tmp_path / "joint.json")
    words = ("study", "verify", str(tmp_path / "joint.json"))
    assert CliRunner().invoke(main, words).exit_code == 3
    assert CliRunner().invoke(main, (*words, "--roster", true.fingerprint)).exit_code == 1


def test_a_partys_folder_is_verified_down_to_the_digest_on_every_screen(folder, screens):
    joint = JointCertificate.load(folder / "joint/joint.json")
    words = ("verify", str(folder / "demo-a"), "--signed-by", joint.roster["a"])
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0
    assert f"are the model {joint.model[:16]}, recomputed" in found.output
    by_ledger = (*words[:2], "--ledger", str(folder / "a.ledger"))  # which has the certificate on record
    assert CliRunner().invoke(main, by_ledger).exit_code == 0


def test_a_party_certifies_from_its_own_ledger(folder, screens, tmp_path):
    out = tmp_path / "certificate.json"
    words = ("ledger", "certify", str(folder / "a.ledger"), "--study", str(folder / "study.toml"))
    signing = ("--signing-key", str(folder / "kits/a/signing.key"), "--out", str(out))
    assert CliRunner().invoke(main, (*words, "--party", "a", *signing)).exit_code == 0
    joint = JointCertificate.load(folder / "joint/joint.json")
    with Ledger.open(folder / "a.ledger") as ledger:
        assert Certificate.load(out).verify(ledger, signed_by=joint.roster["a"])
    assert Certificate.load(out).guarantee == joint.certificates["a"].guarantee
    nothing = CliRunner().invoke(main, (*words, "--party", "b", "--out", str(out)))
    assert "nothing to certify" in nothing.stderr


def test_who_was_away_gets_the_model_later_and_is_not_charged_again(folder, screens):
    """And a coordinator that is stopped by a service manager says what it means."""
    with Ledger.open(folder / "b.ledger") as ledger:
        before = ledger.statement().spent()
    server = Command(folder, *COORDINATE, "--serve", "--wait", str(10 * PATIENCE))
    late = join(folder, "b", "--out", "late")
    try:
        status, text = late.ended()
        assert status == 0, text
        assert JointCertificate.load(folder / "joint/joint.json").model in text
        with Ledger.open(folder / "b.ledger") as ledger:
            assert ledger.statement().spent() == before
        names = ("weights.safetensors", "demo-b/weights.safetensors")
        assert (folder / "late" / names[0]).read_bytes() == (folder / names[1]).read_bytes()
        assert (folder / "late/certificate.json").exists()
        server.until("b has the model")
        server.process.send_signal(signal.SIGTERM)
        status, text = server.ended()
    finally:
        late.close()
        server.close()
    assert status == 143
    assert "Stopped by SIGTERM. Nothing is lost" in text
    assert JointCertificate.load(folder / "joint/joint.json").missing == ()


def test_a_port_in_use_is_said_before_anybody_is_waited_for(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        found = CliRunner().invoke(main, (*COORDINATE[:4], "--out", "other", "--listen", place))
    assert found.exit_code == 1
    assert f"{place} cannot be listened on: the port is in use" in found.stderr
    assert "listening on" not in found.stderr
    wrong = CliRunner().invoke(main, (*COORDINATE[:4], "--out", "other", "--listen", "127.0.0.1:99999"))
    assert wrong.exit_code == 2
    assert "--listen=127.0.0.1:99999" in wrong.stderr
    early = CliRunner().invoke(main, (*COORDINATE[:4], "--out", "other", "--listen", "192.0.2.1:8443"))
    assert "does not have that address" in early.stderr


def test_an_unfinished_study_has_no_model_to_hand_out(folder, monkeypatch):
    monkeypatch.chdir(folder)
    early = CliRunner().invoke(main, (*COORDINATE[:4], "--out", "other", "--serve"))
    assert early.exit_code == 1
    assert "has not come to its end; start without --serve" in early.stderr


@pytest.mark.slow
def test_the_parties_evaluate_their_model_together(folder, screens):
    """A study like any other, of one round: the same commands, each party charged, the same scores everywhere."""
    words = ("study", "evaluate", str(folder / "joint"), "--epsilon", "8", "--out", str(folder / "test.toml"))
    for line in (words, ("study", "kits", str(folder / "test.toml"), "--out", str(folder / "test-kits"))):
        done = CliRunner().invoke(main, line)
        assert done.exit_code == 0, done.output
    sites = [
        Command(folder, "coordinate", "test.toml", "--kit", "test-kits/coordinator.zip", "--out", "scores")
    ]
    for party in "ab":
        files = (
            "--data",
            f"{party}.csv",
            "--kit",
            f"test-kits/{party}.zip",
            "--ledger",
            f"{party}-test.ledger",
        )
        sites.append(Command(folder, "join", "test.toml", *files, "--yes", "--wait", str(PATIENCE)))
    try:
        found = [site.ended() for site in sites]
    finally:
        for site in sites:
            site.close()
    assert [status for status, _ in found] == [0, 0, 0], found
    texts = {(folder / place / "evaluation.json").read_text() for place in ("scores", *_EVALUATED)}
    assert len(texts) == 1
    joint = JointCertificate.load(folder / "scores/joint.json")
    for _, text in found:
        assert "accuracy" in text
        assert f"Evaluation {joint.model}" in text
    verified = ("study", "verify", str(folder / "scores/joint.json"), "--roster", joint.fingerprint)
    done = CliRunner().invoke(main, verified)
    assert done.exit_code == 0
    assert "follow from the histogram" in done.output
    ledger = ("verify", str(folder / _EVALUATED[0]), "--ledger", str(folder / "a-test.ledger"))
    assert CliRunner().invoke(main, ledger).exit_code == 0


_EVALUATED = ("demo-evaluation-a", "demo-evaluation-b")
