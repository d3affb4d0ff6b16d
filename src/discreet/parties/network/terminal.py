"""Keeps an engine that prints off the terminal: what it writes there goes to its log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, TextIO


class Terminal:
    """A standard stream; what is written while ``package`` is among the callers goes to ``log`` instead."""

    def __init__(self, stream: Any, log: TextIO, package: str) -> None:
        self._stream, self._log, self._prefix = stream, log, f"{package}."

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """To the terminal or to the log."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith(self._prefix):
            frame = frame.f_back
        return int((self._stream if frame is None else self._log).write(text))


@contextmanager
def quiet(package: str, log: Path) -> Iterator[None]:
    """While this lasts, nothing that ``package`` prints reaches the terminal."""
    with (
        log.open("a", encoding="utf-8") as file,
        redirect_stdout(Terminal(sys.stdout, file, package)),
        redirect_stderr(Terminal(sys.stderr, file, package)),
    ):
        yield
