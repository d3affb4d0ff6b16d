"""A real browser for the tests that look at pages, where Chromium is installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]


def needs_chromium(test):
    """Marks a test that looks at a page."""
    absent = pytest.mark.skipif(
        CHROMIUM is None, reason="needs Chromium: install it, or let `make test` do so"
    )
    return pytest.mark.browser(absent(test))


@contextmanager
def page(*, dark: bool = False, width: int = 1100, height: int = 900) -> Iterator[Page]:
    """A page that fails on errors of its scripts."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        shown = browser.new_page(
            color_scheme="dark" if dark else "light", viewport={"width": width, "height": height}
        )
        errors: list[str] = []
        shown.on("pageerror", lambda error: errors.append(str(error)))
        yield shown
        browser.close()
        assert errors == []
