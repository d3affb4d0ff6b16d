"""The studio over HTTP: answers for this machine's own page, refusals for everybody else, and a real browser."""

import re
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlparse

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

import discreet as dp
from discreet.cli.studio import _doorway
from discreet.guarantee import rounded_up
from discreet.ledger import FixedPlan, Ledger
from discreet.studio.application import application
from support.browser import needs_chromium, page

KNOWN = {"X-Discreet-Token": "t"}
WISH = {"records": 60_000, "batch_size": 600, "epochs": 10, "delta": 1e-6, "noise_multiplier": 1.2}


@pytest.fixture
def client():
    return TestClient(application(token="t"), base_url="http://127.0.0.1:8000", headers=KNOWN)


def test_a_wish_is_priced(client):
    answer = client.post("/api/price", json=WISH)
    assert answer.status_code == 200
    exact = dp.account(dp.PoissonSampled(0.01, dp.Gaussian(1.2)) * 1000).epsilon(1e-6)
    assert answer.json()["epsilon"]["upper"] == exact


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "0.0.0.0:8000", ""]
)
def test_foreign_hosts_are_refused(client, host):
    assert client.get("/", headers={"host": host}).status_code == 403
    assert client.get("/", headers={"host": "localhost:8000"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_foreign_origins_are_refused(client, headers):
    assert client.post("/api/price", json=WISH, headers=headers).status_code == 403
    assert client.get("/api/ledger", headers=headers).status_code == 403
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert client.post("/api/price", json=WISH, headers=own).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [("{", 400), ("[1]", 422), ('{"records": NaN}', 422), ("x" * 20_000, 413), ('{"records": 1e400}', 422)],
)
def test_garbage_is_refused_in_a_sentence(client, body, status):
    answer = client.post("/api/price", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["error"].endswith(".")


def test_a_form_of_another_site_cannot_ask(client):
    assert client.post("/api/price", content="{}", headers={"content-type": "text/plain"}).status_code == 415


def test_a_refusal_names_the_parameter(client):
    answer = client.post("/api/price", json=WISH | {"batch_size": 70_000})
    assert answer.status_code == 422
    assert "batch_size=70000" in answer.json()["error"]


def test_files_outside_of_the_page_stay_inside(client):
    for path in ("/static/../planning.py", "/static/%2e%2e/planning.py", "/static//etc/passwd"):
        assert client.get(path).status_code == 404


def test_the_ledger_is_shown():
    event = dp.Gaussian(20.0) * 10
    with Ledger.in_memory(FixedPlan(event, dp.Budget(1.0, 1e-5))) as ledger:
        ledger.run(event, event.digest(), name="fit-1").reserve(4)
        client = TestClient(application(ledger, token="t"), base_url="http://localhost")
        shown = client.get("/api/ledger", headers=KNOWN).json()["ledger"]
    assert shown["runs"] == [{"name": "fit-1", "plan": event.digest()[:12], "taken": 4, "planned": 10}]
    assert shown["epsilon"] == 1.0


@pytest.mark.parametrize("token", [None, "", "T", "tt", "t\xe9"])
def test_who_does_not_know_the_token_learns_nothing(token):
    """Another user of the machine read the ledger's runs from 0.1.0."""
    event = dp.Gaussian(20.0) * 10
    headers = {} if token is None else {"X-Discreet-Token": token.encode("latin-1")}
    with Ledger.in_memory(FixedPlan(event, dp.Budget(1.0, 1e-5))) as ledger:
        ledger.run(event, event.digest(), name="fit-1").reserve(4)
        client = TestClient(application(ledger, token="t"), base_url="http://localhost")
        for answer in (
            client.get("/api/ledger", headers=headers),
            client.post("/api/price", json=WISH, headers=headers),
        ):
            assert answer.status_code == 401
            assert "fit-1" not in answer.text
        assert client.get("/").status_code == 200  # an empty page
        assert client.get("/api/ledger", params={"token": "t"}).status_code == 401


def test_each_studio_has_a_token_of_its_own(address):
    """It is not sent to any server, being behind the #, nor shown on the command line of a browser."""
    token = address.partition("#token=")[2]
    assert len(token) >= 43
    port = address.rsplit(":", 1)[1].partition("/")[0]
    for header, status in (("", 401), (token[:-1], 401), (token, 200)):
        connection = HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", "/api/ledger", headers={"X-Discreet-Token": header})
        assert connection.getresponse().status == status
        connection.close()


def test_the_browser_is_shown_a_page_of_its_owner_alone():
    with _doorway("http://127.0.0.1:1/#token=secret") as uri:
        assert "secret" not in uri
        page = Path(urlparse(uri).path)
        assert page.parent.stat().st_mode & 0o077 == 0
        assert "http://127.0.0.1:1/#token=secret" in page.read_text()
    assert not page.parent.exists()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The real command, on a free port."""
    words = [sys.executable, "-m", "discreet", "studio", "--no-browser"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        yield re.search(r"http://\S+", process.stderr.readline())[0]
        process.terminate()
        process.communicate()


def test_it_listens_on_loopback_only(address):
    port = int(address.rsplit(":", 1)[1].partition("/")[0])
    names = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}
    for name in names - {"127.0.0.1"}:
        with pytest.raises(OSError), socket.create_connection((name, port), timeout=2):  # noqa: PT011
            pass
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_port_in_use_is_refused(address):
    port = address.rsplit(":", 1)[1].partition("/")[0]
    words = [sys.executable, "-m", "discreet", "studio", "--no-browser", "--port", port]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error[invalid-parameter]: --port={port}: is in use")


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_slider_moves_the_number_and_the_export_follows(address, dark):
    with page(dark=dark) as shown:
        shown.goto(address)
        shown.wait_for_selector("body[data-drawn='1']")
        before = shown.locator("#epsilon").inner_text()
        slider = shown.locator("#slider-noise_multiplier")
        box = slider.bounding_box()
        shown.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
        shown.mouse.down()
        shown.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2, steps=8)
        shown.mouse.up()
        noise = float(shown.locator("#value-noise_multiplier").input_value())
        assert noise > 2
        upper = dp.account(dp.PoissonSampled(0.01, dp.Gaussian(noise)) * 1000).epsilon(1e-6)
        expected = f"ε ≤ {float(rounded_up(upper)):g}"
        expect(shown.locator("#epsilon")).to_have_text(expected)
        assert expected != before
        shown.get_by_role("button", name="Copy plan.json").click()
        shown.wait_for_selector("#exported:not([hidden])")
        plan = dp.Plan.from_json(shown.locator("#exported").inner_text())
        assert plan.noise_multiplier == noise
        shown.get_by_role("button", name="Keep for comparison").click()
        shown.get_by_label("I set epsilon").check()
        shown.wait_for_selector("#card-kept:not([hidden])")
        expect(shown.locator("#epsilon")).to_have_text("ε ≤ 1")
        assert shown.locator("#kept-epsilon").inner_text() == expected
        shown.locator("#value-batch_size").fill("700000")
        shown.locator("#value-batch_size").press("Tab")
        shown.wait_for_selector("#problem:not([hidden])")
        assert "batch_size=700000" in shown.locator("#problem").inner_text()


@needs_chromium
def test_on_a_phone_nothing_is_cut_off(address):
    with page(width=390) as shown:
        shown.goto(address)
        shown.wait_for_selector("body[data-drawn='1']")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
