"""The documentation as a site: built strictly, doctests as code, nothing from elsewhere, and fit for a phone."""

import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.axe import insist_accessible
from support.browser import needs_chromium, page

ROOT = Path(__file__).parent.parent
QUOTED = re.compile(r"<blockquote>(?:(?!</blockquote>).)*?&gt;&gt;|<p>(?:&gt;)+ ", re.DOTALL)
FETCHED = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]*(?:src|href)="(https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(place)]
    subprocess.run(words, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def address(site):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def pages(site):
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def test_doctests_are_code_and_no_quotations(site):
    assert len(pages(site)) > 25
    for path in pages(site):
        assert not QUOTED.search(path.read_text()), path
    reference = "".join(path.read_text() for path in (site / "reference").rglob("*.html"))
    assert reference.count('class="gp"') > 40  # prompts, in docstrings too
    assert ":class:`" not in reference
    assert QUOTED.search("<blockquote>\n<blockquote><p>&gt;&gt;&gt; 1</p>")  # what it was


def test_nothing_is_fetched_from_elsewhere(site):
    for path in pages(site):
        assert not FETCHED.search(path.read_text()), path
    assert "https://" not in re.sub(r"/\*.*?\*/", "", (site / "assets/katex/katex.min.css").read_text())
    assert FETCHED.search('<script src="https://cdn.example/x.js">')


def test_figures_take_the_colours_of_the_page(site):
    text = (site / "figures" / "index.html").read_text()
    assert text.count('<svg role="img"') >= 11
    assert "currentColor" in text
    assert "#ffffff" not in text
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names))


def test_the_architecture_picture_is_that_of_the_layer_test():
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        from pictures import architecture
    finally:
        sys.path.pop(0)
    from test_layers import ORDER

    drawn = (ROOT / "docs/figures/architecture.svg").read_text()
    assert drawn == architecture(ORDER), "run `make pictures`"


def long_code_lines(text, most=88):
    """Lines of fenced code that a page of ordinary width would cut off."""
    blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if len(line) > most]


def test_code_fits_into_its_block():
    texts = {path.name: path.read_text() for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]}
    assert {name: lines for name, text in texts.items() if (lines := long_code_lines(text))} == {}
    assert long_code_lines("```\n" + "x" * 89 + "\n```") == ["x" * 89]  # the broken twin


def test_pages_lead_to_the_previous_and_the_next_one(site):
    text = (site / "linear" / "index.html").read_text()
    assert "md-footer__link--prev" in text
    assert "md-footer__link--next" in text


def test_the_reference_begins_with_the_estimators(site):
    for package, first in (("linear", "PrivateAdditiveClassifier"), ("pytorch", "PrivateRun")):
        text = (site / "reference" / package / "index.html").read_text()
        names = re.findall(rf'<h3 id="discreet\.{package}\.(\w+)"', text)
        assert names[0] == first
        assert len(names) > 5
    index = (ROOT / "docs" / "reference.md").read_text()
    assert index.index("discreet.linear") < index.index("discreet.events")


@needs_chromium
def test_the_copy_button_copies_code_only(address):
    with page() as shown:
        shown.goto(address + "lecture/", wait_until="load")
        code = shown.locator("pre:has(.gp) code").first
        copied = code.evaluate(
            "e => { e.setAttribute('data-md-copying', ''); const text = e.innerText;"
            " e.removeAttribute('data-md-copying'); return text }"
        )
        whole = code.inner_text()
    assert ">>>" in whole  # what it would be without the rule
    assert "import" in copied
    assert ">>>" not in copied
    assert "\nTrue" not in copied


@needs_chromium
@pytest.mark.parametrize("words", ["BatchNorm", "GridSearchCV", "early stopping", "GDPR"])
def test_search_finds_what_users_look_for(address, words):
    with page() as shown:
        shown.goto(address, wait_until="load")
        field = shown.locator("input.md-search__input")
        field.focus()
        field.press_sequentially(words)
        found = shown.locator(".md-search-result__item")
        found.first.wait_for(state="attached", timeout=60_000)
        assert found.count() >= 1


@needs_chromium
def test_on_a_phone_no_page_is_cut_off(site, address):
    with page(width=390) as shown:
        for path in pages(site):
            shown.goto(address + path.relative_to(site).as_posix(), wait_until="load")
            wide = shown.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, f"{path.relative_to(site)} is {wide} wide"


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_landing_page_in_a_browser(address, dark):
    with page(dark=dark) as shown:
        said = []
        shown.on("console", lambda message: said.append(message.text))
        shown.goto(address)
        assert shown.get_by_role("heading", level=1).is_visible()
        insist_accessible(shown)
        switch = shown.locator("form[data-md-component=palette] label:not([hidden])")
        colour = "getComputedStyle(document.body).backgroundColor"
        seen = set()
        for _ in range(3):
            switch.click()
            seen.add(shown.evaluate(colour))
        assert len(seen) == 2  # light and dark
        assert said == []


@needs_chromium
def test_mathematics_is_typeset(address):
    with page() as shown:
        shown.goto(address + "engines/")
        assert shown.locator(".katex-display").count() >= 14
        assert shown.locator(".katex-error").count() == 0
        assert shown.locator(".arithmatex:not(:has(.katex))").count() == 0
        shown.goto(address + "accountants/")
        assert shown.locator("td .katex").count() >= 15
        assert shown.locator(".katex-error").count() == 0
        shown.goto(address + "mathematics/")
        assert shown.locator("p .katex").count() >= 300  # in the sentences, too
        assert shown.locator(".katex-error").count() == 0
        assert "$" not in shown.locator("article").inner_text()
