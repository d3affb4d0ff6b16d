"""``discreet studio``: plan in the browser, with certified numbers while a slider moves."""

from __future__ import annotations

import secrets
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from discreet.cli.ledger import open_ledger
from discreet.cli.shell import FILE, NUMBER, CommandResult, command, note
from discreet.errors import missing_extra


@command("studio", interrupted="The studio is closed.")
@click.option("--port", type=NUMBER, default=0, help="Local port; 0 chooses a free one.")
@click.option("--ledger", help="Show the budget and runs of this ledger, too.")
@click.option("--key", type=FILE, help="Key file of the ledger. Default: beside the ledger.")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
def studio(port: int, ledger: str | None, key: Path | None, browser: bool) -> CommandResult | None:
    """Serve a planning page on this machine: sliders, certified epsilon, Pareto frontiers, export.

    \b
    discreet studio --ledger ledger.sqlite
    """
    try:
        from discreet.studio.application import listener_on, serve
    except ImportError:
        raise missing_extra("The studio needs starlette and uvicorn", "studio") from None
    with ExitStack() as stack:
        shown = stack.enter_context(open_ledger(ledger, key)) if ledger is not None else None
        listener = stack.enter_context(listener_on(port))
        token = secrets.token_urlsafe(32)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        note(f"the studio is open at {address}#token={token} (Ctrl-C closes it)")
        note("who knows this address can see what the studio shows; other users of this machine do not.")
        if browser:
            webbrowser.open(stack.enter_context(_doorway(f"{address}#token={token}")))
        serve(listener, token, shown)
    return CommandResult({"address": address}, "The studio is closed.")


@contextmanager
def _doorway(address: str) -> Iterator[str]:
    """A page that only its owner can read and that leads to the address; a command line is seen by every user."""
    with TemporaryDirectory(prefix="discreet-studio-") as folder:  # its owner's alone
        page = Path(folder) / "studio.html"
        page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
        yield page.as_uri()
