"""Files and folders that appear whole or not at all, and locks that a killed process cannot leave behind.

* :func:`write_whole` and :func:`whole_file` replace a file, :func:`appears_whole` makes a new file that replaces
  nothing. Folders are in :mod:`discreet.folders`.
* Until then what is written has a name of its own beside its place, ``.NAME.0123456789abcdef.part``. Whoever writes
  it holds a lock on it, which ends with the process, so the next writer of the same name can tell what a killed one
  left behind, and removes it.

>>> canonical({"b": 1, "a": [0.1]})
'{"a":[0.1],"b":1}'
>>> parse_json('{"steps": 5, "steps": 9}', name="plan")
Traceback (most recent call last):
    ...
discreet.errors.InvalidParameter: plan='{"steps": 5, "steps": 9}': is not JSON of ours (a key occurs twice).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO, Any

from discreet.errors import InvalidParameter
from discreet.leftovers import name_errors_after, remove_leftovers

try:
    import fcntl
except ImportError:  # not on Windows: there nothing is swept away, and locks are not held
    fcntl = None  # type: ignore[assignment]
LOCKS = fcntl is not None

_PUBLIC, _SECRET = 0o666, 0o600


def write_whole(
    path: str | os.PathLike[str], content: bytes | str, *, secret: bool = False, sync: bool = True
) -> None:
    """Replace the content of a file, completely or not at all.

    ``secret``: only its owner can read it. Without ``sync`` a power cut may bring the old content back.
    """
    with whole_file(Path(path), "wb", secret=secret, sync=sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(
    path: Path, mode: str = "w", *, secret: bool = False, sync: bool = True, like: Path | None = None
) -> Iterator[IO[Any]]:
    """Open a file to write to, which appears under its own name at the end, or not at all.

    ``like`` is a file whose permissions it gets, as far as the process's umask leaves them.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    remove_leftovers(path, lock_now)
    with name_errors_after(path):
        allowed = _PUBLIC if like is None else stat.S_IMODE(like.stat().st_mode) & _PUBLIC
        part, descriptor = new_part(path, _SECRET if secret else allowed)
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with os.fdopen(descriptor, mode, **text) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            if LOCKS:  # before the lock on the part ends
                part.replace(path)
        if not LOCKS:
            part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    if sync:
        sync_folder(path.parent)


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
    sync_folder(path.parent)


@contextmanager
def hold_lock(path: Path, refusal: Exception) -> Iterator[None]:
    """Hold a lock, or raise ``refusal`` at once if another process does. It ends with the process at the latest."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _SECRET)
    try:
        if not lock_now(descriptor):
            raise refusal
        yield
    finally:
        os.close(descriptor)


def lock_now(descriptor: int) -> bool:
    """Lock a file or folder by its descriptor, and return whether nobody else holds it."""
    if not LOCKS:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def new_part(path: Path, mode: int | None) -> tuple[Path, int]:
    """Return a new part of ``path`` (a folder without ``mode``) and the descriptor through which it is locked."""
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        if mode is None:
            part.mkdir()
            descriptor = os.open(part, os.O_RDONLY) if LOCKS else -1
        else:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if lock_now(descriptor) and part.exists():
            return part, descriptor
        os.close(descriptor)  # swept away by another process before it was locked


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that new names in it are on disk."""
    if os.name == "posix":
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def canonical(data: object) -> str:
    """Return the canonical JSON text of ``data``."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(data: object) -> str:
    """Return the SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Parse a JSON object without NaN, infinities or keys that occur twice; ``name`` is for the error."""
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidParameter(name, text, f"is not JSON of ours ({error}).") from None
    if not isinstance(data, dict):
        raise InvalidParameter(name, text, "is not JSON of ours.")
    return data


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse a TOML text; ``name`` is for the error."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise InvalidParameter(name, text, f"is not TOML ({reason}).") from None


def read_text(path: str | PathLike[str], most_bytes: int = 2**26) -> str:
    """Return the text in a file, unless it is too large to be a document of ours."""
    with Path(path).open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InvalidParameter("path", str(path), "is too large to be a document of ours.")
    return content.decode("utf-8", errors="replace")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number")
