"""The page of a running study: what it shows, to whom, and that it takes no orders."""

import json
import socket
import stat
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from discreet.errors import CannotConnect, InvalidParameter
from discreet.parties import Progress
from discreet.parties.network.status import StatusPage, status_token
from discreet.parties.study import Study

STUDY = Study.from_dict(
    {
        "study": {"name": "readmission", "algorithm": "sgd2"},
        "parties": {"hospital-a": 100, "hospital-b": 200},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "training": {"rounds": 10, "clip_norm": 1.0},
        "model": {"kind": "logistic", "dimension": 3},
    }
)
TOKEN = "a-token-of-enough-letters"


def ask(page, path, method="GET", **headers):
    place = urlsplit(page.url)
    line = HTTPConnection(place.hostname, place.port, timeout=30)
    line.request(method, path, headers=headers)
    reply = line.getresponse()
    return reply.status, reply.read().decode(), reply.headers


@pytest.fixture
def page():
    with StatusPage(STUDY, 0, TOKEN, connected=lambda party: party == "hospital-a") as page:
        yield page


def test_progress_is_shown_to_people_and_programs(page):
    page.tell(Progress(3, 10, ("hospital-b",)))
    page.tell(Progress(4, 10, ("hospital-b",)))
    status, text, headers = ask(page, f"/?token={TOKEN}")
    assert status == 200
    assert "4 of 10 updates" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    found = json.loads(ask(page, "/status.json", Authorization=f"Bearer {TOKEN}")[1])
    assert (found["update"], found["updates"], found["state"]) == (4, 10, "running")
    assert found["parties"]["hospital-b"] == {"connected": False, "missed": 2, "refuses": ""}
    metrics = ask(page, f"/metrics?token={TOKEN}")[1]
    assert 'discreet_study_updates{study="readmission"} 4' in metrics
    assert 'discreet_party_missed_updates{study="readmission",party="hospital-b"} 2' in metrics
    assert 'discreet_party_connected{study="readmission",party="hospital-a"} 1' in metrics
    page.tell(Progress(5, 10, ("hospital-b",), {"hospital-b": "it stopped."}))
    assert "away; refuses: it stopped." in ask(page, f"/?token={TOKEN}")[1]
    found = json.loads(ask(page, "/status.json", Authorization=f"Bearer {TOKEN}")[1])
    assert found["parties"]["hospital-b"] == {"connected": False, "missed": 3, "refuses": "it stopped."}
    page.finish()
    assert 'discreet_study_finished{study="readmission"} 1' in ask(page, f"/metrics?token={TOKEN}")[1]


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/status.json", "/?token=wrong", f"/?token={TOKEN}x", "/nothing"]
)
def test_nobody_without_the_token_learns_anything(page, path):
    status, text, _ = ask(page, path)
    assert status == 403
    assert "readmission" not in text


def test_it_takes_no_orders_and_knows_no_other_page(page):
    assert ask(page, f"/etc/passwd?token={TOKEN}")[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert ask(page, f"/?token={TOKEN}", method)[0] == 501


def test_it_listens_on_this_machine_only(page):
    assert urlsplit(page.url).hostname == "127.0.0.1"


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotConnect, match=f"Port {port}"):
            StatusPage(STUDY, port, TOKEN)
    for port in (-1, 65_536, float("nan"), "x"):
        with pytest.raises(InvalidParameter, match="status"):
            StatusPage(STUDY, port, TOKEN)


def test_the_token_is_kept_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "status.token"
    token = status_token(path)
    assert status_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("")
    with pytest.raises(InvalidParameter, match="remove the file"):
        status_token(path)
