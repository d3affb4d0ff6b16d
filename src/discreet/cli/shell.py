"""Parts shared by all commands: ``--json``, number parsing, progress, and errors of one sentence.

A command is a function that returns an :class:`CommandResult`; it prints nothing itself. ::

    @command("double", renamed={"x": "--number"})
    @click.option("--number", type=NUMBER, required=True, help="What to double.")
    def double(number: float) -> Answer:
        \"\"\"Twice a number.\"\"\"
        x = real("x", number, above=0)
        return Answer({"double": 2 * x}, f"{2 * x:g}")

Whatever the library refuses reaches the user with the parameter as typed: ``noise_multiplier=nan`` becomes
``--noise-multiplier=nan``; ``renamed`` says which option stands for a parameter that has another name here. What
was read from a file is never quoted, only the file is named (:mod:`discreet.cli.refusals`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.refusals import (
    INTERRUPTED,
    TERMINATED,
    WRONG,
    CommandRefusal,
    of_usage,
    refusal,
    typed_name,
)
from discreet.errors import without_passwords

if TYPE_CHECKING:
    from rich.progress import Progress
import signal
import threading

from discreet.errors import InvalidParameter

_AS_JSON = "discreet.cli.as_json"


@dataclass(frozen=True)
class CommandResult:
    """Result of a command: ``data`` for ``--json``, with stable keys, and ``text`` for the terminal."""

    data: Mapping[str, Any]
    text: str
    status: int = 0


class Command(click.Command):
    """A command with ``--json``, whose errors are sentences. ``interrupted`` is what to say after Ctrl-C."""

    def __init__(
        self, *args: Any, renamed: Mapping[str, str] | None = None, interrupted: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.renamed = dict(renamed or {})
        self.interrupted = interrupted or "Nothing was written."
        self.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON.")
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and print its answer."""
        as_json = ctx.meta[_AS_JSON] = ctx.params.pop("as_json", False)
        try:
            answer = super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Terminated:
            raise CommandRefusal(
                "interrupted", f"Stopped by SIGTERM. {self.interrupted}", TERMINATED
            ) from None
        except KeyboardInterrupt:
            raise CommandRefusal(
                "interrupted", f"Stopped by Ctrl-C. {self.interrupted}", INTERRUPTED
            ) from None
        except Exception as error:
            raise refusal(error, ctx) from error
        if isinstance(answer, CommandResult):
            click.echo(without_passwords(as_text(answer.data) if as_json else answer.text))
            if answer.status:
                ctx.exit(answer.status)
        return answer


class CommandGroup(click.Group):
    """Group of commands that reports every error in one place."""

    command_class = Command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, print what went wrong in one sentence, and leave with the right status."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            with interrupts_as_before(alone=args is None):
                status = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            problem = CommandRefusal(
                "interrupted", "Stopped before the end. Nothing was written.", INTERRUPTED
            )
        except CommandRefusal as error:
            problem = error
        except click.exceptions.NoArgsIsHelpError as error:  # ``discreet`` alone is a question
            click.echo(error.format_message())
            sys.exit(0)
        except click.UsageError as error:
            problem = of_usage(error)
        except ModuleNotFoundError as error:  # of a command that cannot even be loaded
            problem = refusal(error, click.Context(self))
        else:
            if not standalone_mode:
                return status
            sys.exit(status if isinstance(status, int) else 0)
        tell_refusal(problem, "--json" in words)
        sys.exit(problem.status)


def command(name: str, **settings: Any) -> Callable[[Callable[..., CommandResult | None]], Command]:
    """The decorator of a command; ``settings`` are those of :class:`Command`."""
    return click.command(name, cls=Command, **settings)


def group(name: str, **settings: Any) -> Callable[[Callable[..., None]], CommandGroup]:
    """The decorator of a family; its ``.command`` makes a :class:`Command`."""
    return click.group(name, cls=CommandGroup, **settings)


def wants_json() -> bool:
    """True in a command that was called with ``--json``."""
    return bool(click.get_current_context().meta.get(_AS_JSON))


def tell_refusal(problem: CommandRefusal, as_json: bool) -> None:
    """Print a refusal on standard error."""
    error = {"code": problem.code, "message": problem.message}
    click.echo(
        as_text({"error": error}) if as_json else f"error[{problem.code}]: {problem.message}", err=True
    )


def note(text: str) -> None:
    """A remark on standard error, beside the answer; with ``--json`` a line of JSON with the time."""
    text = without_passwords(text)
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_AS_JSON):
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        text = json.dumps({"time": now, "note": text})
    else:
        text = f"note: {text}"
    click.echo(text, err=True)


class _Number(click.ParamType):  # type: ignore[type-arg]
    """Parse a number; the library checks its range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An int if it is written as one, else a float."""
        if not isinstance(value, str):
            return value
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        name = typed_name(param) if param else "value"
        raise CommandRefusal("invalid-parameter", f"{name}={value}: must be a number, such as 1e-6.", WRONG)


class _NumberList(click.ParamType):  # type: ignore[type-arg]
    """Several numbers, with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A list of ints and floats."""
        if not isinstance(value, str):
            return value
        return [NUMBER.convert(part, param, ctx) for part in value.split(",")]


NUMBER, NUMBERS = _Number(), _NumberList()
FILE = click.Path(path_type=Path)
"""A file or folder. Whether it is there is found out where it is opened."""


def as_text(data: Mapping[str, Any]) -> str:
    """JSON for programs. It has no word for what is infinite, which is the text "infinite"; NaN is null."""
    return json.dumps(_plain(data), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first aligned to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip()
        for first, *rest in lines
    )


class Tenths:
    """Progress in logs: one line per tenth of the work, where no terminal shows a bar."""

    def __init__(self, total: int) -> None:
        self._total, self._told = max(total, 1), 0

    def at(self, done: int, words: str) -> None:
        """Say it, if another tenth is done."""
        tenth = 10 * done // self._total
        if tenth > self._told:
            self._told = tenth
            note(words)


@contextmanager
def progress(*columns: str) -> Iterator[Progress]:
    """A progress bar with the time that is left, on standard error; invisible where that is not a terminal.

    It may show planned values and epsilon, and nothing that was counted in private records.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    name, part = TextColumn("{task.description}"), TextColumn("{task.percentage:>3.0f}%")
    more = map(TextColumn, columns)
    shown = sys.stderr.isatty()
    console = Console(stderr=True)
    with Progress(
        name, BarColumn(), part, TimeRemainingColumn(), *more, console=console, disable=not shown
    ) as bar:
        yield bar


CERTIFICATE, MODEL, REPORT = "certificate.json", "model.json", "report.html"
"""What people look for in the folder of a model."""


def refuse_existing(
    option: str, path: Path, overwrite: bool, remedy: str = "choose another name, or add --overwrite."
) -> None:
    """Refuse to overwrite a file without permission."""
    if not overwrite and path.exists():
        raise InvalidParameter(option, str(path), f"exists; {remedy}")


# Ctrl-C and SIGTERM, once what was paid for is being written: they do nothing, up to the end of the process.
#
# Before that moment either stops a command with one sentence; after it the work is done, and a process that died with
# the answer on its lips would make it look undone.


class Terminated(KeyboardInterrupt):
    """SIGTERM: somebody else, such as a service manager, wants the command to stop."""


def ignore_interrupts() -> None:
    """From here on Ctrl-C does nothing. Signals are the business of the main thread alone."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def interrupts_as_before(alone: bool) -> Iterator[None]:
    """Run commands; ``alone`` in a process of their own, which then ends in peace, or within another program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if alone:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if alone:
            ignore_interrupts()
        else:
            for number, handler in before.items():
                if handler is not None:  # None: not Python's, and we did not touch it
                    signal.signal(number, handler)


def _terminate(number: int, frame: object) -> None:
    raise Terminated


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
