"""``discreet studio``: plan in the browser, with certified numbers while a slider moves."""

from __future__ import annotations

import socket
import webbrowser
from pathlib import Path

import click

from discreet.cli.shell import FILE, NUMBER, Answer, command, note
from discreet.errors import InvalidParameter, MissingDependency, whole
from discreet.ledger import Ledger


@command("studio", interrupted="The studio is closed.")
@click.option("--port", type=NUMBER, default=0, help="Port on this machine; 0 takes a free one.")
@click.option("--ledger", type=FILE, help="Show this ledger's budget and runs too.")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
def studio(port: int, ledger: Path | None, browser: bool) -> Answer | None:
    """A page to plan with, for this machine only: sliders, certified epsilon, frontiers, export.

    \b
    discreet studio --ledger ledger.sqlite
    """
    try:
        import uvicorn

        from discreet.studio.application import application
    except ImportError:
        raise MissingDependency(
            "The studio needs starlette and uvicorn: pip install 'discreet[studio]'."
        ) from None
    port = whole("port", port, at_least=0, at_most=65535)
    opened = Ledger.open(ledger) if ledger is not None else None
    listener = _listener(port)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    note(f"the studio is open at {address} (Ctrl-C closes it)")
    if browser:
        webbrowser.open(address)
    server = uvicorn.Server(uvicorn.Config(application(opened), log_level="error", access_log=False))
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if opened is not None:
            opened.close()
    return Answer({"address": address}, "The studio is closed.")


def _listener(port: int) -> socket.socket:
    """A socket on loopback, or a sentence why not."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # from now on a browser may come; it waits until the server is up
    except OSError:
        listener.close()
        raise InvalidParameter(
            "port", port, "is in use or not allowed; leave it out to take a free one."
        ) from None
    return listener
