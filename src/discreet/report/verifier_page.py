"""The verifier as one static page: it recomputes certificates in a browser, without installation or network.

The scripts in ``report/verifier`` share no code with the Python package, the accountant included. A report may embed
them; it then recomputes its own certificate when it is opened.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from functools import lru_cache
from importlib.resources import files

from discreet import __version__, events
from discreet.plan.explanation import NOT_COVERED

_KINDS = sorted(
    each.kind for each in vars(events).values() if isinstance(each, type) and hasattr(each, "kind")
)
_FOR_CONSOLES = "window.discreet = { verdictOn, epsilonOf, readEvent, partsOf, parseJson, canonical };"
_SCRIPTS = ("json.js", "accountant.js", "certificate.js", "page.js")


@lru_cache(maxsize=1)
def verifier_script() -> str:
    """The scripts in one scope, with the constants that they share with the package."""
    folder = files("discreet.report") / "verifier"
    constants = f"const NOT_COVERED = {json.dumps(NOT_COVERED)}, KINDS = {json.dumps(_KINDS)};"
    parts = [constants, *((folder / name).read_text("utf-8") for name in _SCRIPTS)]
    return "\n".join(["(() => {", '"use strict";', *parts, _FOR_CONSOLES, "})();"])


@lru_cache(maxsize=1)
def script_hash() -> str:
    """SHA-256 of the script in base64, by which a page's content security policy allows this script alone."""
    return b64encode(hashlib.sha256(verifier_script().encode()).digest()).decode()


def verifier_page() -> str:
    """Return the HTML of the page; write it to a file, and open or distribute it."""
    template = (files("discreet.report") / "verifier" / "verify.html").read_text("utf-8")
    values = {"hash": script_hash(), "version": __version__, "script": verifier_script()}
    for name, value in values.items():
        template = template.replace("{{ " + name + " }}", value)
    return template
