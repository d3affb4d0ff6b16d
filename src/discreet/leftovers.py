"""Housekeeping around files that are not whole yet. A file that appears whole does not rest on it.

If a part is removed while it is written, it cannot take its final name, so the write fails and changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows: there nothing can be told from what is being written
    fcntl = None  # type: ignore[assignment]


def remove_leftovers(path: Path, lock: Callable[[int], bool]) -> None:
    """Remove the parts of ``path`` that nobody writes any more: those that ``lock`` can lock by descriptor."""
    if fcntl is None:
        return
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError):
        for part in [entry for entry in os.scandir(path.parent) if ours.fullmatch(entry.name)]:
            _remove_if_left(Path(part), lock)


def _remove_if_left(part: Path, lock: Callable[[int], bool]) -> None:
    with suppress(OSError):
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if lock(descriptor):
                shutil.rmtree(part) if part.is_dir() else part.unlink()
        finally:
            os.close(descriptor)


@contextmanager
def name_errors_after(path: Path) -> Iterator[None]:
    """Name the file that was asked for in errors, not its part."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
