"""Where the rows of a fit are kept between its passes: in memory, or in a file without a name.

A fit goes through its encoded rows fifty times. What fits into :attr:`Storage.memory` stays there; the rest is
written once to a scratch file and mapped. The file has no name from the moment it is made, nobody else may open it,
and it is gone when the process ends, however it ends; what its blocks held stays on the disk until they are used
again, as for any file (:mod:`discreet.linear.gate.block_cache`).

Nothing here has to be believed for the guarantee: it is how much memory may be used, and where the file is made.

>>> import numpy as np
>>> shelf = Storage(memory=0).shelf()
>>> pieces = shelf.keep((np.arange(3.0), None) for _ in range(2))
>>> [(piece[0].tolist(), piece[1]) for piece in pieces], pieces.on_disk
([([0.0, 1.0, 2.0], None), ([0.0, 1.0, 2.0], None)], True)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from discreet.errors import InvalidParameter, whole
from discreet.linear.gate.block_cache import BlockCache

MEMORY = 2**28
"""Bytes of encoded and transformed rows that a fit keeps in memory."""


@dataclass(frozen=True)
class Storage:
    """At most ``memory`` bytes of rows in memory, the rest in a scratch file in ``folder``.

    Without a folder it is the one for temporary files, which ``TMPDIR`` names. Where that is a part of memory
    (tmpfs), name one on a disk.
    """

    memory: int = MEMORY
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", whole("memory", self.memory, at_least=0))
        if self.folder is not None and not os.path.isdir(self.folder):
            raise InvalidParameter("memory.folder", str(self.folder), "must be a folder that exists.")

    @classmethod
    def of(cls, memory: Any) -> Storage:
        """What an estimator's ``memory`` means: None, a number of bytes, or a storage."""
        if isinstance(memory, Storage):
            return memory
        return cls() if memory is None else cls(memory)

    def shelf(self) -> BlockCache:
        """The storage of one fit."""
        return BlockCache(self.memory, self.folder)
