"""``discreet studio``: plan in the browser, with certified numbers while a slider moves."""

from __future__ import annotations

import webbrowser
from contextlib import ExitStack
from pathlib import Path

import click

from discreet.cli.ledger import opened
from discreet.cli.shell import FILE, NUMBER, Answer, command, note
from discreet.errors import MissingDependency


@command("studio", interrupted="The studio is closed.")
@click.option("--port", type=NUMBER, default=0, help="Port on this machine; 0 takes a free one.")
@click.option("--ledger", help="Show this ledger's budget and runs too.")
@click.option("--key", type=FILE, help="The ledger's key file, if it is not beside it.")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
def studio(port: int, ledger: str | None, key: Path | None, browser: bool) -> Answer | None:
    """A page to plan with, for this machine only: sliders, certified epsilon, frontiers, export.

    \b
    discreet studio --ledger ledger.sqlite
    """
    try:
        from discreet.studio.serving import listener_on, serve
    except ImportError:
        raise MissingDependency(
            "The studio needs starlette and uvicorn: pip install 'discreet[studio]'."
        ) from None
    with ExitStack() as stack:
        shown = stack.enter_context(opened(ledger, key)) if ledger is not None else None
        listener = stack.enter_context(listener_on(port))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        note(f"the studio is open at {address} (Ctrl-C closes it)")
        if browser:
            webbrowser.open(address)
        serve(listener, shown)
    return Answer({"address": address}, "The studio is closed.")
