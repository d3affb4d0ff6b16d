"""Files and folders that appear when all of them is written, and are never overwritten by accident."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from discreet.errors import InvalidParameter

WEIGHTS, MODEL = "weights.safetensors", "model.json"
CERTIFICATE, REPORT = "certificate.json", "report.html"
"""The files of a fitted model."""


def refuse_existing(
    option: str, path: Path, overwrite: bool, remedy: str = "choose another name, or add --overwrite."
) -> None:
    """Raise if a file would be lost that nobody said could be."""
    if not overwrite and path.exists():
        raise InvalidParameter(option, str(path), f"exists; {remedy}")


@contextmanager
def whole_file(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write to. Under its own name it appears at the end, or not at all."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        try:
            file = part.open(mode, **text)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        with file:
            yield file
        part.replace(path)
    finally:
        _gone(part)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into. Under its own name it appears at the end, or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        yield part
        part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _gone(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # there never was one
        return
