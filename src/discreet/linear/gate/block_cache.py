"""The rows of a fit between its passes, in memory or in a file without a name: :class:`BlockCache`.

What does not fit into memory is written once to a scratch file and mapped. The file has no name from the moment it is
made, nobody else may open it, and it is gone when the process ends.

>>> pieces = BlockCache(0, None).keep((np.arange(3.0), None) for _ in range(2))
>>> [(piece[0].tolist(), piece[1]) for piece in pieces], pieces.on_disk
([([0.0, 1.0, 2.0], None), ([0.0, 1.0, 2.0], None)], True)
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.errors import InvalidParameter

Piece = TypeVar("Piece", bound=tuple[Any, ...])

_PAGE = max(mmap.PAGESIZE, mmap.ALLOCATIONGRANULARITY)
_LINE = 64  # bytes: where an array begins within its piece


class BlockCache:
    """Room for the rows of one fit. All arrays that are kept are counted."""

    def __init__(self, memory: int, folder: str | os.PathLike[str] | None) -> None:
        self._left, self._folder = memory, folder

    def keep(self, pieces: Iterable[Piece]) -> CachedBlocks[Piece]:
        """All pieces, to be gone through again and again. A piece is a tuple of arrays and other things."""
        in_memory: list[Piece] = []
        written: list[_Written] = []
        with tempfile.TemporaryFile(prefix="discreet-", dir=self._folder) as file:
            for piece in pieces:
                size = sum(array.nbytes for part in piece for array in _arrays(part))
                if not written and size <= self._left:
                    self._left -= size
                    in_memory.append(piece)
                else:
                    written.append(self._write(file, piece))
            if not written:
                return CachedBlocks(in_memory, None, ())
            file.flush()
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return CachedBlocks(in_memory, mapping, written)

    def _write(self, file: IO[bytes], piece: Piece) -> _Written:
        buffers: list[pickle.PickleBuffer] = []
        rest = pickle.dumps(piece, protocol=5, buffer_callback=buffers.append)
        first, places = file.tell(), []
        try:
            for buffer in buffers:
                start = file.seek(-(-file.tell() // _LINE) * _LINE)
                file.write(buffer.raw())
                places.append(slice(start, file.tell()))
            last = file.seek((file.tell() // _PAGE + 1) * _PAGE)
            file.truncate()
        except OSError as error:
            raise disk_full_message(self._folder, error) from None
        return _Written(rest, tuple(places), first, last)


def _arrays(part: Any) -> list[NDArray[Any]]:
    """What takes room of a part of a piece."""
    if issparse(part):
        return [part.data, part.indices, part.indptr]
    return [part] if isinstance(part, np.ndarray) else []


def disk_full_message(folder: Any, error: OSError) -> InvalidParameter:
    """What to say if a scratch file cannot be written."""
    requirement = f"rows could not be written there ({error.strerror}); name another folder."
    return InvalidParameter("memory.folder", str(folder or tempfile.gettempdir()), requirement)


class _Written(NamedTuple):
    """A piece without the memory of its arrays, and where in the file each of them lies."""

    rest: bytes
    places: tuple[slice, ...]
    first: int
    last: int

    def read(self, mapping: Any) -> Any:
        return pickle.loads(self.rest, buffers=[memoryview(mapping)[place] for place in self.places])


class CachedBlocks(Generic[Piece]):
    """Pieces that were kept: iterate over it as often as you like; arrays from the file are read-only."""

    def __init__(self, in_memory: list[Piece], mapping: Any, written: Iterable[_Written]) -> None:
        self._in_memory, self._mapping, self._written = in_memory, mapping, tuple(written)

    @property
    def on_disk(self) -> bool:
        """Whether some of them are in the scratch file."""
        return bool(self._written)

    def __len__(self) -> int:
        return len(self._in_memory) + len(self._written)

    def __iter__(self) -> Iterator[Piece]:
        yield from self._in_memory
        for written in self._written:
            yield written.read(self._mapping)
            self._forget(written)

    def _forget(self, written: _Written) -> None:
        """Its pages need not stay in this process; the system keeps the file in memory as long as there is room."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED, written.first, written.last - written.first)
