"""Error messages of one sentence (``error[invalid-parameter]: --rate=7: must be ...``), without a traceback.

Codes are the library's error classes in lower case (``budget-exceeded``, ``certificate-rejected``, ...), and
``usage``, ``file``, ``memory``, ``interrupted``, ``unexpected``. They stay the same; the sentences may improve.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from discreet.errors import (
    DiscreetError,
    InvalidParameter,
    UnsupportedEvent,
    cut,
    missing_extra,
    without_passwords,
)

_ERRNO = re.compile(r"\[Errno \d+\] ([^:()]+)(: '[^']*')?")  # what Python adds to the system's words
_ASSIGNED = re.compile(r"\w+\((?:[^()]|\([^()]*\))*\)|(?<![\w-])(?P<name>\w+)=")  # calls stay as they are

REFUSED, WRONG, UNVOUCHED, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143
"""The exit statuses: the library refused, the parameters make no sense, a certificate that is consistent although
nobody vouches for it, Ctrl-C, SIGTERM."""


_EXTRAS = dict.fromkeys(("numba", "sklearn", "safetensors"), "tables") | {
    "torch": "torch",
    "nvflare": "parties",
}
"""What brings a package that is not there."""


class CommandRefusal(click.ClickException):
    """One sentence, its code and the exit status."""

    def __init__(self, code: str, message: str, status: int = REFUSED) -> None:
        super().__init__(without_passwords(" ".join(message.split())))
        self.code, self.status = code, status


def refusal(error: Exception, ctx: click.Context) -> CommandRefusal:
    """Convert an exception to the message that the command line shows.

    Guarantee: of an error that is not the library's it says the kind only, for a message might quote a record.
    """
    if isinstance(error, InvalidParameter):
        return CommandRefusal("invalid-parameter", _as_typed(error, ctx), WRONG)
    if isinstance(error, DiscreetError):
        status = WRONG if isinstance(error, UnsupportedEvent) else REFUSED
        return CommandRefusal(_kebab(type(error).__name__), _with_options(str(error), ctx), status)
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get(str(error.name).partition(".")[0])):
        return CommandRefusal("missing-dependency", str(missing_extra(f"This needs {error.name}", extra)))
    if isinstance(error, OSError):
        place = f"{error.filename}: " if isinstance(error.filename, str | os.PathLike) else ""
        return CommandRefusal("file", f"{place}{error.strerror or type(error).__name__}.")
    if isinstance(error, MemoryError):
        return CommandRefusal("memory", "There is not enough memory for this.")
    if os.environ.get("DISCREET_DEBUG"):
        raise error
    return CommandRefusal(
        "unexpected",
        f"{type(error).__name__} in {ctx.command_path}, which is a mistake of ours: please report it. Its message "
        "is not shown, because it might quote a record; DISCREET_DEBUG=1 shows it to you.",
    )


def of_usage(error: click.UsageError) -> CommandRefusal:
    """Convert a usage error of click."""
    where = error.ctx.command_path if error.ctx else "discreet"
    return CommandRefusal("usage", f"{error.format_message()} See {where} --help.", WRONG)


def typed_name(parameter: click.Parameter) -> str:
    """A parameter as one types it: ``--noise-multiplier``, ``TABLE``."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return str(parameter.metavar or parameter.name).upper()


def _as_typed(error: InvalidParameter, ctx: click.Context) -> str:
    """The error with the parameter named, and its value shown, as they were typed."""
    renamed = getattr(ctx.command, "renamed", {})
    name, value = renamed.get(error.name, error.name), error.value
    for parameter in ctx.command.params:
        if name in (parameter.name, typed_name(parameter)):
            name = typed_name(parameter)
            if not isinstance(value, int | float):  # perhaps the content of a file: only name the file
                value = ctx.params.get(str(parameter.name))
    flag = value is None or isinstance(value, bool) or value == ()
    shown = name if flag else f"{name}={_cut(value)}"
    return f"{shown}: {_with_options(error.requirement, ctx)}"


def _with_options(sentence: str, ctx: click.Context) -> str:
    """A remedy in the words of the command line: ``neighbours='replace-one'`` becomes ``--neighbours=...``."""
    sentence = _ERRNO.sub(r"\1", sentence)
    options = {str(p.name): typed_name(p) for p in ctx.command.params if isinstance(p, click.Option)}
    return _ASSIGNED.sub(lambda found: _as_option(found, options), sentence)


def _as_option(found: re.Match[str], options: dict[str, str]) -> str:
    option = options.get(found.group("name") or "")
    return f"{option}=" if option else found.group()


def _cut(value: object) -> str:
    text = without_passwords(str(value) if isinstance(value, Path | str) else repr(value))  # before it is cut
    return cut(text)


def _kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
