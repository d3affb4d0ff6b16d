"""A place for Numba's compiled functions where the usual ones cannot be written.

Numba keeps compiled functions beside their sources or in the user's cache folder, and refuses to import a function
that it can keep nowhere. A service without a writable home has neither. Then a private temporary folder is made for
this process and its children, and removed at the end. ``NUMBA_CACHE_DIR`` names a lasting one.
"""

from __future__ import annotations

import os
import sys

_NAME = "NUMBA_CACHE_DIR"


def ensure_numba_cache() -> None:
    """Set ``NUMBA_CACHE_DIR`` to a temporary folder, if Numba could write nowhere else."""
    if os.environ.get(_NAME) or any(map(_writable, _usual_places())):
        return
    import atexit
    import tempfile

    try:
        folder = tempfile.mkdtemp(
            prefix="discreet-numba-"
        )  # for this user alone: what lies there is executed
    except OSError:
        return  # Numba says what is missing, when it is needed
    os.environ[_NAME] = folder
    if "numba" in sys.modules:  # which has read its settings
        sys.modules["numba"].config.CACHE_DIR = folder
    atexit.register(_remove, folder, os.getpid())


def _usual_places() -> tuple[str, ...]:
    """Where Numba looks for a folder: beside our sources, and in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(os.path.dirname(__file__), "core", "__pycache__"), os.path.join(cache, "numba")


def _writable(folder: str) -> bool:
    """Whether files can be made in a folder, or the folder itself in the nearest one that exists."""
    if not os.path.isabs(folder):  # a user without a home
        return False
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _remove(folder: str, process: int) -> None:
    import shutil

    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
