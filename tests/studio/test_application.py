"""The studio over HTTP: answers for this machine's own page, refusals for everybody else, and a real browser."""

import math
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
from discreet.guarantee import upper_text
from discreet.ledger import FixedPlan, GaussianFilter, Ledger
from discreet.studio.application import application
from support.axe import insist_accessible
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
    [
        ("{", 400),
        ("[" * 9000, 400),
        ('{"records":' + "[" * 200 + "]" * 200 + "}", 200),
        ("[1]", 200),
        ('{"records": NaN}', 200),
        ("x" * 20_000, 413),
        ('{"records": 1e400}', 200),
    ],
)
def test_garbage_is_refused_in_a_sentence(client, body, status):
    answer = client.post("/api/price", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["error"].endswith(".")


def test_a_form_of_another_site_cannot_ask(client):
    assert client.post("/api/price", content="{}", headers={"content-type": "text/plain"}).status_code == 415


def test_a_refusal_names_the_parameter(client):
    answer = client.post("/api/price", json=WISH | {"batch_size": 70_000})
    assert set(answer.json()) == {
        "error"
    }  # with status 200: a refusal is an answer, no failure for a browser to log
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
        expected = f"ε ≤ {float(upper_text(upper)):g}"
        expect(shown.locator("#epsilon")).to_have_text(expected)
        assert expected != before
        shown.wait_for_selector(f"body[data-drawn='{shown.evaluate('latest')}']")
        shown.get_by_role("button", name="Copy plan.json").click()
        shown.wait_for_selector("#exported:not([hidden])")
        plan = dp.Plan.from_json(shown.locator("#exported").inner_text())
        assert plan.noise_multiplier == noise
        shown.get_by_role("button", name="Keep for comparison").click()
        shown.get_by_label("I set epsilon").check()
        shown.wait_for_selector("#card-kept:not([hidden])")
        expect(shown.locator("#epsilon")).to_have_text("ε ≤ 1")
        expect(shown.locator("#exported")).to_be_hidden()  # it was of another plan
        assert shown.locator("#kept-epsilon").inner_text() == expected
        shown.wait_for_selector(f"body[data-drawn='{shown.evaluate('latest')}']")
        for chart in ("attack", "steps", "frontier"):  # you are here, and the kept one
            assert shown.locator(f"#chart-{chart}").get_attribute("data-marks") == "2"
        noise = float(shown.locator("#value-noise_multiplier").input_value())
        place = float(shown.locator("#slider-noise_multiplier").input_value())
        assert place == pytest.approx(math.log(noise / 0.3) / math.log(100 / 0.3) * 600, abs=1)  # it follows


@needs_chromium
def test_of_a_refused_plan_nothing_stays(address):
    with page() as shown:
        shown.goto(address)
        shown.wait_for_selector("body[data-drawn='1']")
        shown.locator("#value-batch_size").fill("700000")
        shown.locator("#value-batch_size").press("Tab")
        shown.wait_for_selector("#problem:not([hidden])")
        assert "batch_size=700000" in shown.locator("#problem").inner_text()
        assert shown.locator("#epsilon").inner_text() == "–"
        assert shown.locator("#bounds").inner_text() == ""
        assert shown.locator("#numbers dt").count() == 0
        expect(shown.locator("#charts")).to_be_hidden()
        shown.get_by_role("button", name="Copy as Python").click()
        expect(shown.locator("#copied")).to_have_text("There is no plan on the screen to copy.")
        shown.locator("#value-batch_size").fill("700")
        shown.locator("#value-batch_size").press("Tab")
        expect(shown.locator("#charts")).to_be_visible()
        expect(shown.locator("#problem")).to_be_hidden()


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_tab_is_accessible_and_the_console_stays_empty(address, dark):
    with page(dark=dark) as shown:
        said = []
        shown.on("console", lambda message: said.append(message.text))
        shown.goto(address)
        shown.wait_for_selector("body[data-drawn='1']")
        shown.locator("#chart-steps .u-over").hover()
        assert "epsilon" in shown.locator("#chart-steps .tooltip").inner_text()
        shown.get_by_role("tab", name="A training run").focus()
        shown.keyboard.press("ArrowRight")
        shown.wait_for_selector("body[data-tablecharts]")
        assert "%" in shown.locator("#tables-words").inner_text()
        shown.keyboard.press("ArrowRight")
        shown.wait_for_selector("body[data-observers]")
        assert shown.locator("#observers tbody tr").count() >= 8
        assert said == []
        for name in ("A training run", "A model of a table", "Several parties"):
            shown.get_by_role("tab", name=name).click()
            expect(shown.locator(".computing")).to_have_count(0)  # while it computes, old numbers are dim
            insist_accessible(shown)


@needs_chromium
def test_on_a_phone_nothing_is_cut_off(address):
    with page(width=375) as shown:
        shown.goto(address)
        shown.wait_for_selector("body[data-drawn='1']")
        for name, ready in (("run", "drawn"), ("tables", "tablecharts"), ("parties", "observers")):
            shown.locator(f"#tab-{name}").click()
            shown.wait_for_selector(f"body[data-{ready}]")
            assert shown.evaluate("document.documentElement.scrollWidth") <= 375
            cut = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
            assert shown.evaluate(cut) == 0  # the last columns of a table that scrolls are not seen


def test_sigterm_ends_it_though_a_browser_is_connected():
    words = [sys.executable, "-m", "discreet", "studio", "--no-browser"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        port = int(re.search(r":(\d+)/", process.stderr.readline())[1])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as open_connection:
            open_connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            open_connection.recv(100)
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode in (143, -15)


def test_the_ledger_says_what_is_left_and_what_fits():
    rule = GaussianFilter(dp.Budget(1.0, 1e-5))
    half = dp.Gaussian(math.sqrt(2 / float(rule.limits()[0])) * 1.000001)
    full_batch = {"records": 100, "batch_size": 100, "epochs": 1, "delta": 1e-5, "sampling": "full-batch"}
    with Ledger.in_memory(rule) as ledger:
        client = TestClient(application(ledger, token="t"), base_url="http://localhost", headers=KNOWN)
        ledger.run(half, half.digest(), name="fit-1", data="visits").reserve(1)
        shown = client.get("/api/ledger").json()["ledger"]
        assert shown["spent"] == pytest.approx(0.5, abs=1e-5)
        ((data, releases),) = (row.values() for row in shown["data"])
        assert (len(data), releases) == (12, 1)  # of the name's digest
        for noise, fits in ((half.noise_multiplier, True), (half.noise_multiplier / 1.1, False)):
            answer = client.post("/api/fits", json=full_batch | {"noise_multiplier": noise}).json()
            assert answer["fits"] is fits
        sampled = client.post("/api/fits", json=WISH).json()
        assert sampled["fits"] is False
        assert "Gaussian" in sampled["why"]


def test_the_other_tabs_answer_or_say_why_not(client):
    table = {"records": 455, "columns": 30, "best": 0.975, "delta": 1e-5}
    answer = client.post("/api/tables", json=table).json()
    assert answer["low"] == sorted(answer["low"])  # more epsilon is never worse
    assert all(low <= high <= 0.975 for low, high in zip(answer["low"], answer["high"], strict=True))
    assert all(row == sorted(row) for row in answer["grid"])  # more records neither
    study = {"parties": 3, "records": 1000, "rounds": 200, "epsilon": 1.0, "delta": 1e-6}
    rows = {
        row["observer"]: row["epsilon"] for row in client.post("/api/parties", json=study).json()["observers"]
    }
    assert rows["coordinator"] == "ε ≤ 1"
    for path, bad in (
        ("tables", table | {"best": 0.4}),
        ("tables", {}),
        ("parties", study | {"parties": 1}),
        ("parties", []),
    ):
        assert client.post(f"/api/{path}", json=bad).json()["error"].endswith(".")
