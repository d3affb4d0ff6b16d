"""Files and folders that appear whole or not at all, and locks that a killed process cannot leave behind.

* :func:`write_whole` and :func:`whole_file` replace a file, :func:`whole_folder` makes a new folder, and
  :func:`appears_whole` makes a new file that replaces nothing.
* Until then what is written has a name of its own beside its place, ``.NAME.0123456789abcdef.part``. Whoever writes
  it holds a lock on it, which ends with the process, so the next writer of the same name can tell what a killed one
  left behind, and removes it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on Windows: there nothing is swept away, and locks are not held
    fcntl = None  # type: ignore[assignment]
_LOCKS = fcntl is not None

_PUBLIC, _SECRET = 0o666, 0o600


# ---- whole files and folders ----


def write_whole(
    path: str | os.PathLike[str], content: bytes | str, *, secret: bool = False, sync: bool = True
) -> None:
    """The file has its new content or its old one.

    ``secret``: only its owner can read it. Without ``sync`` a power cut may bring the old content back.
    """
    with whole_file(Path(path), "wb", secret=secret, sync=sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path, mode: str = "w", *, secret: bool = False, sync: bool = True) -> Iterator[IO[Any]]:
    """A file to write to. Under its own name it appears at the end, or not at all."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    _sweep(path)
    with _named_after(path):
        part, descriptor = _new_part(path, _SECRET if secret else _PUBLIC)
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with os.fdopen(descriptor, mode, **text) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            if _LOCKS:  # before the lock on the part ends
                part.replace(path)
        if not _LOCKS:
            part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    if sync:
        _settle(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into. Under its own name it appears at the end, or not at all."""
    with _named_after(path):
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        part, descriptor = _new_part(path, None)
    try:
        yield part
        part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if _LOCKS:
            os.close(descriptor)
    _settle(path.parent)


def insist_writable(path: Path) -> None:
    """Raise, before anything is paid for, if a folder could not appear at ``path``. Nothing is left behind."""
    with suppress(_Enough), whole_folder(path):
        raise _Enough


class _Enough(Exception):
    """Nothing is to be kept."""


@contextmanager
def appears_whole(path: Path) -> Iterator[Path]:
    """Lend a name for a temporary file beside ``path``; afterwards it takes the name ``path``, all at once.

    Raises :class:`FileExistsError`, and changes nothing, if ``path`` is taken by then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield temporary
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _settle(path.parent)


# ---- locks ----


@contextmanager
def held(path: Path, refusal: Exception) -> Iterator[None]:
    """Hold a lock, or raise ``refusal`` at once if another process does. It ends with the process at the latest."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _SECRET)
    try:
        if not _lock(descriptor):
            raise refusal
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """True if nobody else holds this file or folder; then we do."""
    if not _LOCKS:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# ---- what is not whole yet ----


def _new_part(path: Path, mode: int | None) -> tuple[Path, int]:
    """A new part of ``path`` (a folder without ``mode``) and the descriptor through which it is locked."""
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        if mode is None:
            part.mkdir()
            descriptor = os.open(part, os.O_RDONLY) if _LOCKS else -1
        else:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if _lock(descriptor) and part.exists():
            return part, descriptor
        os.close(descriptor)  # swept away by another process before it was locked


def _sweep(path: Path) -> None:
    """Remove the parts of ``path`` that nobody writes any more."""
    if not _LOCKS:
        return
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError):
        for part in [entry for entry in os.scandir(path.parent) if ours.fullmatch(entry.name)]:
            _remove_if_left(Path(part))


def _remove_if_left(part: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if _lock(descriptor):
                shutil.rmtree(part) if part.is_dir() else part.unlink()
        finally:
            os.close(descriptor)


@contextmanager
def _named_after(path: Path) -> Iterator[None]:
    """Errors name the file that was asked for, not its part."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _settle(folder: Path) -> None:
    """New names in a folder are on disk, too."""
    if os.name == "posix":
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
