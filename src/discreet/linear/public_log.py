"""The values that a fit has released, on disk: :class:`PublicLog`, with which an interrupted fit can be resumed.

A resumed fit runs again from the beginning. A release that the log holds is looked up by its number, and returned if
its stage and its query are those of the log; no row is read for it.

>>> log = PublicLog(None, "fit-1", "which fit it is")
>>> log.find("counts", b"digest of a query") is None
True
>>> log.append("counts", b"digest of a query", np.array([3.0]))
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import AlreadyRunning, InvalidParameter, PlanViolation
from discreet.files import hold_lock, whole_file, write_whole
from discreet.ledger import GaussianFilter

Array = NDArray[np.float64]

_FORMAT = "discreet public log 3"


class ReleaseEntry(NamedTuple):
    """A released value, the stage that released it, and the digest of its query."""

    stage: str
    query: str
    value: Array


class PublicLog:
    """The values released so far, in order. With a ``folder`` each is on disk before anybody sees it.

    A value that was drawn and not written was seen by nobody: it is drawn anew. One process at a time goes on with a
    folder, and reads it while it holds its :meth:`lock`: two would draw the same release twice. Which fit it is, and
    of which rows, is kept under a key that only its owner can read: a digest of rows would tell one of them to who
    knows the others.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, run: str, about: str) -> None:
        self.entries: list[ReleaseEntry] = []
        self._asked = 0
        self.run, self._folder, self._about = run, None if folder is None else Path(folder), about

    @contextmanager
    def lock(self) -> Iterator[None]:
        """To be held while a fit goes on; what is in the folder is read here."""
        if self._folder is None:
            yield
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        sentence = f"Another process goes on with the log {self._folder}; wait for it or stop it."
        with hold_lock(self._folder / ".lock", AlreadyRunning(sentence)):
            self._begin(self._folder / "log.json", self._folder / "key")
            yield

    def _begin(self, head: Path, key: Path) -> None:
        """Take over what is there, or write down which fit this is."""
        if not head.exists():
            write_whole(key, os.urandom(32).hex(), secret=True)
            write_whole(head, json.dumps({"format": _FORMAT, "run": self.run, "fit": self._tag(key)}) + "\n")
            return
        told = json.loads(head.read_text())
        if told.get("format") != _FORMAT:
            requirement = (
                "was written by another version of discreet: finish it with that one, or name a new folder."
            )
            raise InvalidParameter("log", str(head.parent), requirement)
        if not key.exists() or told.get("fit") != self._tag(key):
            requirement = "is the log of another fit, or of other files: name a new folder."
            raise InvalidParameter("log", str(head.parent), requirement)
        self.run = told["run"]
        while (path := self._path(len(self.entries))).exists():
            with np.load(path, allow_pickle=False) as found:
                value = np.asarray(found["value"], np.float64)
                self.entries.append(ReleaseEntry(str(found["stage"]), str(found["query"]), value))

    def _tag(self, key: Path) -> str:
        return hmac.digest(bytes.fromhex(key.read_text()), self._about.encode(), "sha256").hex()

    def keep_rule(self, rule: GaussianFilter) -> None:
        """Raise unless the values were released under a ledger with this rule; of a new log, note the rule.

        Noise depends on the part of delta that a ledger holds back: another ledger would be charged for other noise
        than the log's.
        """
        if self._folder is None:
            return
        path, ours = self._folder / "rule.json", rule.to_dict()
        if not self.entries:
            write_whole(path, json.dumps(ours) + "\n")
        elif not path.exists() or json.loads(path.read_text()) != ours:
            requirement = "was begun under a ledger with another rule: use that ledger, or name a new folder."
            raise InvalidParameter("log", str(self._folder), requirement)

    def find(self, stage: str, query: bytes) -> Array | None:
        """The value of the next release, if the log holds it; None if it is to be drawn."""
        number = self._asked
        if number == len(self.entries):
            return None
        known = self.entries[number]
        if (known.stage, known.query) != (stage, query.hex()):
            raise PlanViolation(
                f"Release {number} of the log is the answer to another query than this fit asks in the stage "
                f"{stage!r}. Resume it with the same versions of the packages, on a processor of the same kind."
            )
        self._asked += 1
        return known.value

    def append(self, stage: str, query: bytes, value: Array) -> None:
        """Write the value of a release down that the log did not hold."""
        entry = ReleaseEntry(stage, query.hex(), value)
        if self._folder is not None:
            with whole_file(self._path(len(self.entries)), "wb") as file:
                np.savez(file, stage=stage, query=entry.query, value=value)
        self.entries.append(entry)
        self._asked += 1

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"release-{number:05d}.npz"
