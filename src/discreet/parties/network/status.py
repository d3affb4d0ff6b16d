"""A read-only page of a running study: how far it is and who is missing, for people, programs and Prometheus.

    with StatusPage(study, port=9100, token=status_token("model/status.token")) as page:
        page.tell(Progress(update=3, updates=100, missing=()))
        page.url                                       # http://127.0.0.1:9100/?token=...

It listens on this machine only, answers whoever knows the token, and takes no orders. All that it shows is known to
the coordinator anyway: planned numbers, and who answered.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from discreet.errors import CannotConnect, InvalidParameter, whole
from discreet.files import write_whole
from discreet.parties.coordinator import Progress
from discreet.parties.study import Study

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_STYLE = """:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:44rem;margin:2rem auto;
padding:0 1rem}progress{width:100%;height:1.2rem}table{border-collapse:collapse;width:100%}th,td{text-align:left;
padding:.3rem .6rem;border-bottom:1px solid #8886}code{overflow-wrap:anywhere}"""


def status_token(path: str | Path) -> str:
    """The token in a file that only its owner can read; made when it is not there, kept over restarts."""
    path = Path(path)
    if not path.exists():
        write_whole(path, secrets.token_urlsafe(24) + "\n", secret=True)
    found = path.read_text().strip()
    if len(found) < 16:
        raise InvalidParameter("token", str(path), "holds no token; remove the file, and a new one is made.")
    return found


class StatusPage:
    """Serves ``/`` for people, ``/status.json`` and ``/metrics``; the token is in ``?token=`` or a Bearer header."""

    def __init__(
        self, study: Study, port: int, token: str, connected: Callable[[str], bool] | None = None
    ) -> None:
        self._study, self._token = study, token
        self._connected = connected or (lambda party: True)
        self._lock = threading.Lock()
        self._update, self._changed, self._state = 0, time.time(), "waiting for the parties"
        self._stage = ""
        self._missed, self._refused = dict.fromkeys(study.names, 0), dict[str, str]()
        number = whole("status", port, at_least=0, at_most=65_535)
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", number), self._handler())
        except OSError as error:
            reason = error.strerror or "the port cannot be opened"
            raise CannotConnect(
                f"Port {number} for the page of the study: {reason}. Name another one."
            ) from None
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where people look, the token included."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/?token={self._token}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="status page", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def tell(self, progress: Progress) -> None:
        """An update is done."""
        with self._lock:
            self._update, self._changed, self._state = progress.update, time.time(), "running"
            self._refused, self._stage = dict(progress.refused), progress.stage
            for name in progress.missing:
                self._missed[name] += 1

    def finish(self) -> None:
        """The model is final."""
        with self._lock:
            self._state, self._changed = "finished", time.time()

    def status(self) -> dict[str, Any]:
        """What the page shows, as plain data."""
        with self._lock:
            parties = {
                name: {
                    "connected": bool(self._connected(name)),
                    "missed": self._missed[name],
                    "refuses": self._refused.get(name, ""),
                }
                for name in self._study.names
            }
            return {
                "study": self._study.name,
                "digest": self._study.digest(),
                "state": self._state,
                "update": self._update,
                "updates": self._study.updates,
                "stage": self._stage,
                "changed": self._changed,
                "parties": parties,
            }

    def _is_known(self, query: str, header: str | None) -> bool:
        given = parse_qs(query).get("token", [""])[0] or (header or "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        page = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a caller who says nothing does not stay

            def do_GET(self) -> None:
                place = urlsplit(self.path)
                if not page._is_known(place.query, self.headers.get("Authorization")):
                    self._answer(403, "text/plain", "The token is missing or wrong.\n")
                elif place.path in _PAGES:
                    kind, text = _PAGES[place.path]
                    self._answer(200, kind, text(page.status()))
                else:
                    self._answer(404, "text/plain", "There is no such page.\n")

            def _answer(self, code: int, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(code)
                for name, value in _HEADERS.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the address of a request holds the token."""

        return Handler


def _html(status: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(_now(party))}</td><td>{party['missed']}</td></tr>"
        for name, party in status["parties"].items()
    )
    done = f"{status['update']} of {status['updates']} updates"
    if status["stage"]:
        done = f"{status['update']} questions of {status['updates']} at most; stage {escape(status['stage'])}"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(status["changed"]))
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<meta http-equiv=refresh content=5><title>{escape(status['study'])}: {status['state']}</title>"
        f"<style>{_STYLE}</style></head><body><main><h1>{escape(status['study'])}</h1>"
        f"<p>{status['state'].capitalize()}, {done}. Last change {when}.</p>"
        f"<progress aria-label='Updates' value={status['update']} max={status['updates']}>{done}</progress>"
        "<table><thead><tr><th scope=col>Party</th><th scope=col>Now</th><th scope=col>Missed updates</th></tr>"
        "</thead>"
        f"<tbody>{rows}</tbody></table><p>Study <code>{status['digest']}</code></p></main></body></html>\n"
    )


def _now(party: dict[str, Any]) -> str:
    where = "connected" if party["connected"] else "away"
    return f"{where}; refuses: {party['refuses']}" if party["refuses"] else where


def _metrics(status: dict[str, Any]) -> str:
    """Prometheus' text format."""
    study = _label(status["study"])
    numbers = {
        "discreet_study_updates": ("counter", "Updates so far.", status["update"]),
        "discreet_study_updates_planned": ("gauge", "Updates of the whole plan.", status["updates"]),
        "discreet_study_finished": (
            "gauge",
            "1 once the model is final.",
            int(status["state"] == "finished"),
        ),
        "discreet_study_changed_seconds": (
            "gauge",
            "When something happened last.",
            f"{status['changed']:.3f}",
        ),
    }
    lines = []
    for name, (kind, help_text, value) in numbers.items():
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name}{{study={study}}} {value}"]
    for name, kind, field, help_text in (
        ("discreet_party_connected", "gauge", "connected", "1 while the party is on the line."),
        ("discreet_party_missed_updates", "counter", "missed", "Updates without this party."),
    ):
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        lines += [
            f"{name}{{study={study},party={_label(party)}}} {int(facts[field])}"
            for party, facts in status["parties"].items()
        ]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


_PAGES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "/": ("text/html", _html),
    "/status.json": ("application/json", lambda status: json.dumps(status) + "\n"),
    "/metrics": ("text/plain; version=0.0.4", _metrics),
}
