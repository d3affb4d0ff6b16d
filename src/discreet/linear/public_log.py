"""A fit whose rows lie elsewhere, for its driver: :class:`Gathering`, and the :class:`PublicLog` of its values.

The driver runs the ordinary fit on no rows. Before each release every partition is asked what it would add
(:mod:`discreet.linear.contributions`). Budget, ledger, noise and keys are the driver's alone.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.errors import AlreadyRunning, InvalidParameter
from discreet.files import hold_lock, whole_file, write_whole
from discreet.ledger import GaussianFilter
from discreet.linear.roll_call import Tally

Array = NDArray[np.float64]
Ask = Callable[[int, list[Array], Tally, GaussianFilter | None], None]

_FORMAT = "discreet public log 2"


class PublicLog:
    """The values released so far, in order. With a ``folder`` each is on disk before anybody sees it.

    A value that was drawn and not written was seen by nobody: it is drawn anew. One process at a time goes on with a
    folder, and reads it while it holds its :meth:`lock`: two would draw the same release twice. Which fit it is, and
    of which rows, is kept under a key that only its owner can read: a digest of rows would tell one of them to who
    knows the others.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, run: str, about: str) -> None:
        self.values: list[Array] = []
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
        if told.get("format") != _FORMAT or not key.exists() or told.get("fit") != self._tag(key):
            requirement = "is the log of another fit, or of other files: name a new folder."
            raise InvalidParameter("log", str(head.parent), requirement)
        self.run = told["run"]
        while (path := self._path(len(self.values))).exists():
            self.values.append(np.asarray(np.load(path, allow_pickle=False), np.float64))

    def _tag(self, key: Path) -> str:
        return hmac.digest(bytes.fromhex(key.read_text()), self._about.encode(), "sha256").hex()

    def keep_rule(self, rule: GaussianFilter) -> None:
        """Raise unless the values were released under a ledger with this rule; of a new log, note the rule.

        Noise depends on the part of delta that a ledger holds back: another ledger would be charged for other noise
        than the log's. Logs of versions before 0.2 note no rule, and their ledgers hold nothing back.
        """
        if self._folder is None:
            return
        path, ours = self._folder / "rule.json", rule.to_dict()
        if not self.values:
            write_whole(path, json.dumps(ours) + "\n")
        elif json.loads(path.read_text()) != ours if path.exists() else rule.spare:
            requirement = "was begun under a ledger with another rule: use that ledger, or name a new folder."
            raise InvalidParameter("log", str(self._folder), requirement)

    def append(self, value: Array) -> None:
        """Write a value down."""
        if self._folder is not None:
            with whole_file(self._path(len(self.values)), "wb") as file:
                np.save(file, value, allow_pickle=False)
        self.values.append(value)

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"release-{number:05d}.npy"


class Gathering:
    """The driver's side of a fit. ``rows`` are those of each partition, at most.

    ``ask(release, values, tally, rule)`` lets the tally have all answers; ``rule`` is that of the driver's ledger.
    """

    def __init__(self, rows: Sequence[int], log: PublicLog, ask: Ask) -> None:
        self._rows, self._log, self._ask = rows, log, ask
        self._made = 0
        self._rule: GaussianFilter | None = None

    @property
    def run(self) -> str:
        """The name of this fit in its ledger."""
        return self._log.run

    @property
    def rows(self) -> int:
        """How many rows all partitions have."""
        return sum(self._rows)

    def shared_rule(self, rule: GaussianFilter) -> GaussianFilter:
        """The rule of the driver's ledger, which is sent to all workers."""
        self._log.keep_rule(rule)
        self._rule = rule
        return rule

    def release(
        self, total: BoundedSum, public: str, draw: Callable[[BoundedSum], Array], pay: Callable[[bool], None]
    ) -> Array:
        """The next value: from the log if it is there, else drawn for the sum over all partitions.

        Guarantee: paid for before it is drawn.
        """
        number, self._made = self._made, self._made + 1
        if number < len(self._log.values):
            pay(True)
            return self._log.values[number]
        if total.grid is None:
            raise InvalidParameter("arithmetic", "float", "sums of several machines are hardened ones.")
        tally = Tally(number, len(self._rows), total, self._rows, public)
        self._ask(number, list(self._log.values), tally, self._rule)
        pay(False)
        value = draw(BoundedSum(total.value + tally.total(), total.clip_norm, total.norm, grid=total.grid))
        self._log.append(value)
        return value
