"""Folders that appear whole or not at all. Nothing here has to be believed for the guarantee."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from discreet.files import LOCKS, lock_now, new_part, sync_folder
from discreet.leftovers import name_errors_after, remove_leftovers


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into. Under its own name it appears at the end, or not at all."""
    with name_errors_after(path):
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path, lock_now)
        part, descriptor = new_part(path, None)
    try:
        yield part
        part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if LOCKS:
            os.close(descriptor)
    sync_folder(path.parent)


def insist_writable(path: Path) -> None:
    """Raise, before anything is paid for, if a folder could not appear at ``path``. Nothing is left behind."""
    with suppress(_Enough), whole_folder(path):
        raise _Enough


class _Enough(Exception):
    """Nothing is to be kept."""
