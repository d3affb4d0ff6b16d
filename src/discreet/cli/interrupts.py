"""Ctrl-C and SIGTERM, once what was paid for is being written: they do nothing, up to the end of the process.

Before that moment either stops a command with one sentence; after it the work is done, and a process that died with
the answer on its lips would make it look undone.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
