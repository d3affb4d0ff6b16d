"""Accessibility by axe-core: contrast, labels, names, structure. ``make axe`` brings it, where npm is."""

from pathlib import Path

import pytest

AXE = Path(__file__).parent.parent.parent / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"


def insist_accessible(shown):
    """Fail if axe-core finds anything; skip the rest of the test where it is not installed."""
    if not AXE.exists():
        pytest.skip("needs axe-core: `make axe` installs it with npm")
    shown.evaluate(AXE.read_text())  # not a script element: the page's own policy forbids those
    found = shown.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations)"
    )
    assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found] == []
