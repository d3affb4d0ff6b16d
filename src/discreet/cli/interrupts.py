"""Ctrl-C, once what was paid for is being written: it does nothing, up to the end of the process.

Before that moment Ctrl-C stops a command with one sentence; after it the work is done, and a process that died with
the answer on its lips would make it look undone.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def ignore_interrupts() -> None:
    """From here on Ctrl-C does nothing. Signals are the business of the main thread alone."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def interrupts_as_before(alone: bool) -> Iterator[None]:
    """Run commands; ``alone`` in a process of their own, which then ends in peace, or within another program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if alone:
            ignore_interrupts()
        elif before is not None:  # None: not Python's, and we did not touch it
            signal.signal(signal.SIGINT, before)
