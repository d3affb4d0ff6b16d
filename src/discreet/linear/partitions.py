"""A fit over rows that lie elsewhere, partition by partition: each is asked for its sum, and the noise is added once.

The driver runs the ordinary fit on no rows. Before each release every partition is asked what it would add: a worker
runs the same fit on its own rows, is told all values that were released so far, which are public, and answers with
the sum that it would release next, in whole numbers. So an answer is a function of an immutable partition and the
public log: it may be asked for again, elsewhere, twice. Budget, ledger, noise and keys are the driver's alone.

>>> tally = Tally(release=0, places=2, like=BoundedSum(np.zeros(1, np.int64), 1.0, grid=2.0**-10), most=(5, 5))
>>> for place, count in [(1, 7), (0, 5), (1, 7)]:  # the second partition answers twice
...     tally.add(Answer("sum", place, 0, np.array([count]), 1.0, 2.0**-10))
>>> tally.total().tolist()
[12]
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.errors import AlreadyRunning, DiscreetError, InvalidParameter, PlanViolation
from discreet.files import hold_lock, whole_file, write_whole
from discreet.linear.sources import files_of
from discreet.linear.tables import table_in

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_FORMAT = "discreet public log 1"
_STATES = 256  # fits of partitions that a worker keeps waiting


# ---- partitions ----


class Part(NamedTuple):
    """A Parquet file, and how it is told that it changed."""

    path: str
    size: int
    changed: int
    rows: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, path: str) -> Part:
        from discreet.linear.parquet import pyarrow

        about = os.stat(path)
        if not path.lower().endswith((".parquet", ".pq")):
            requirement = "must be a Parquet file: it tells how many rows there are, and which columns."
            raise InvalidParameter("partition", path, requirement)
        try:
            inside = pyarrow().parquet.read_metadata(path)
        except Exception:  # pyarrow's messages might quote what is in the file
            raise InvalidParameter("partition", path, "is not a Parquet file.") from None
        groups = tuple(inside.row_group(place).total_byte_size for place in range(inside.num_row_groups))
        return cls(path, about.st_size, about.st_mtime_ns, int(inside.num_rows), groups)


class Partitions:
    """The Parquet files that a pattern names, one partition each: read where a worker is, and never moved.

    All machines must see the files under the same names. A file that changes while a fit goes on stops it.
    """

    def __init__(self, pattern: str | os.PathLike[str]) -> None:
        self.pattern = os.fspath(pattern)
        self.parts = tuple(Part.of(os.path.abspath(path)) for path in files_of(self.pattern))

    def __len__(self) -> int:
        return len(self.parts)

    def digest(self) -> str:
        """SHA-256 of what is known of the files."""
        return hashlib.sha256(json.dumps(self.parts).encode()).hexdigest()


# ---- answers ----


class Answer(NamedTuple):
    """What a partition says: ``code`` is ``"sum"``, or why there is none. Nothing of a record beside the sum."""

    code: str
    place: int
    release: int
    counts: Counts | None = None
    clip_norm: float = 0.0
    grid: float | None = None
    public: str = ""


class Tally:
    """Exactly one sum for each partition. ``like`` is the driver's own, empty sum; ``most`` are rows, at most.

    Guarantee: what was answered twice counts once, and two answers that differ stop the fit; without an answer of
    every partition there is no total.
    """

    def __init__(
        self, release: int, places: int, like: BoundedSum, most: Sequence[int], public: str = ""
    ) -> None:
        self._release, self._places, self._like, self._most = release, places, like, most
        self._public = public
        self._sums: dict[int, Counts] = {}

    @property
    def missing(self) -> list[int]:
        """The partitions that have not answered."""
        return [place for place in range(self._places) if place not in self._sums]

    def add(self, answer: Answer) -> None:
        """Note an answer, if it is a sum."""
        if answer.code in _FATAL:
            raise PlanViolation(f"Partition {answer.place}: {_FATAL[answer.code]}")
        if answer.code != "sum":
            return
        counts = self._believable(answer)
        known = self._sums.setdefault(answer.place, counts)
        if not np.array_equal(known, counts):
            raise PlanViolation(f"Partition {answer.place} gave two different sums; the fit stops.")

    def _believable(self, answer: Answer) -> Counts:
        counts, like = answer.counts, self._like
        if (answer.release, answer.clip_norm, answer.grid) != (self._release, like.clip_norm, like.grid) or (
            answer.public != self._public
        ):
            raise PlanViolation(
                f"Partition {answer.place} worked with other public numbers than the driver: all machines need the "
                "same versions of the packages, and processors of the same kind."
            )
        if answer.place not in range(self._places) or not isinstance(counts, np.ndarray):
            raise PlanViolation("An answer is not one of a partition of this fit; the fit stops.")
        if counts.dtype != np.int64 or counts.shape != like.value.shape:
            raise PlanViolation(f"Partition {answer.place} gave a sum of another kind; the fit stops.")
        assert like.grid is not None
        largest = self._most[answer.place] * (like.clip_norm / like.grid) * (1 + 1e-9)
        if not float(np.linalg.norm(counts.astype(np.float64))) <= largest:
            raise PlanViolation(
                f"Partition {answer.place} gave more than its rows can add up to; the fit stops."
            )
        return counts

    def total(self) -> Counts:
        """The sum over all partitions."""
        if self.missing:
            raise PlanViolation(f"Partitions {self.missing[:5]} gave no sum: nothing is released.")
        total: Counts = np.sum([self._sums[place] for place in range(self._places)], axis=0, dtype=np.int64)
        return total


_FATAL = {
    "changed": "its file changed since the fit began; the fit stops.",
    "unreadable": "its file cannot be read there.",
    "refused": "its columns are not those of the first file, by name or type.",
    "failed": "the worker failed; its own log has no word of the records either.",
}
"""Codes after which asking again would not help."""


# ---- the driver ----


class PublicLog:
    """The values released so far, in order. With a ``folder`` each is on disk before anybody sees it.

    A value that was drawn and not written was seen by nobody: it is drawn anew. One process at a time goes on with a
    folder: two would draw the same release twice.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, run: str, about: str) -> None:
        self.values: list[Array] = []
        self.run, self._folder = run, None if folder is None else Path(folder)
        if self._folder is None:
            return
        head = self._folder / "log.json"
        if head.exists():
            self._take_over(head, about)
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(head, json.dumps({"format": _FORMAT, "run": run, "fit": about}) + "\n")

    def _take_over(self, head: Path, about: str) -> None:
        told = json.loads(head.read_text())
        if told.get("format") != _FORMAT or told.get("fit") != about:
            requirement = "is the log of another fit, or of other files: name a new folder."
            raise InvalidParameter("log", str(head.parent), requirement)
        self.run = told["run"]
        while (path := self._path(len(self.values))).exists():
            self.values.append(np.asarray(np.load(path, allow_pickle=False), np.float64))

    def append(self, value: Array) -> None:
        """Write a value down."""
        if self._folder is not None:
            with whole_file(self._path(len(self.values)), "wb") as file:
                np.save(file, value, allow_pickle=False)
        self.values.append(value)

    def lock(self) -> AbstractContextManager[None]:
        """To be held while a fit goes on."""
        if self._folder is None:
            return nullcontext()
        sentence = f"Another process goes on with the log {self._folder}; wait for it or stop it."
        return hold_lock(self._folder / ".lock", AlreadyRunning(sentence))

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"release-{number:05d}.npy"


class Gathering:
    """The driver's side of a fit. ``ask(release, values, tally)`` lets the tally have all answers."""

    def __init__(
        self, parts: Sequence[Part], log: PublicLog, ask: Callable[[int, list[Array], Tally], None]
    ) -> None:
        self._parts, self._log, self._ask = parts, log, ask
        self._made = 0

    @property
    def run(self) -> str:
        """The name of this fit in its ledger."""
        return self._log.run

    @property
    def rows(self) -> int:
        """How many rows all partitions have."""
        return sum(part.rows for part in self._parts)

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
        tally = Tally(number, len(self._parts), total, [part.rows for part in self._parts], public)
        self._ask(number, list(self._log.values), tally)
        pay(False)
        value = draw(BoundedSum(total.value + tally.total(), total.clip_norm, total.norm, grid=total.grid))
        self._log.append(value)
        return value


# ---- a worker ----


class Task(NamedTuple):
    """What a worker is asked: the sum that ``part`` adds to a release. ``values`` are those from ``since`` on."""

    fit: str
    release: int
    place: int
    part: Part
    model: Any
    target: str | None
    since: int
    values: tuple[Array, ...]


class _Stopped(BaseException):
    """The fit is over."""


class _Waiting:
    """A fit of one partition, which waits at its next release for the value. It draws no noise, and pays nothing."""

    run, rows = None, 0

    def __init__(self, task: Task) -> None:
        self.seen, self.lock = 0, threading.Lock()
        self._task = task
        self._sums: queue.Queue[Any] = queue.Queue()
        self._values: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._fit, daemon=True).start()
        self._last = self._sums.get()

    def _fit(self) -> None:
        try:
            self._task.model._fit(self._task.part.path, self._task.target, None, None, None, elsewhere=self)
        except _Stopped:
            return
        except DiscreetError:
            self._sums.put("refused")
        except OSError:
            self._sums.put("unreadable")
        except BaseException:  # a traceback could hold a row
            self._sums.put("failed")

    def release(self, total: BoundedSum, public: str, draw: Any, pay: Any) -> Array:
        self._sums.put((np.array(total.value), total.clip_norm, total.grid, public))
        value = self._values.get()
        if value is None:
            raise _Stopped
        return np.asarray(value, np.float64)

    def sum_after(self, values: Iterable[Array]) -> Any:
        """What this partition would release next, after these values; a code if it failed."""
        for value in values:
            if isinstance(self._last, str):
                break
            self._values.put(value)
            self.seen += 1
            self._last = self._sums.get()
        return self._last

    def stop(self) -> None:
        self._values.put(None)


_waiting: dict[tuple[str, int], _Waiting] = {}
_door = threading.Lock()


def contribution(task: Task) -> Answer:
    """The sum of a partition, or a code. Never raises: an exception would carry what it was raised for.

    Guarantee: a function of the partition and of the public values alone, however often and wherever it is asked.
    """
    try:
        return _contribution(task)
    except BaseException:
        return Answer("failed", task.place, task.release)


def _contribution(task: Task) -> Answer:
    def code(word: str) -> Answer:
        return Answer(word, task.place, task.release)

    try:
        if Part.of(task.part.path) != task.part:
            return code("changed")
    except Exception:
        return code("unreadable")
    with _door:
        state = _waiting.get((task.fit, task.place))
        if state is None or state.seen > task.release:
            if task.since:
                return code("behind")
            state = _begun(task)
    with state.lock:
        if state.seen < task.since:
            return code("behind")
        found = state.sum_after(task.values[state.seen - task.since :])
    if isinstance(found, str):
        return code(found)
    return Answer("sum", task.place, task.release, *found)


def _begun(task: Task) -> _Waiting:
    """A new fit of a partition; the ones of earlier fits, and the oldest of too many, are let go."""
    for key in [key for key in _waiting if key[0] != task.fit] + list(_waiting)[
        : len(_waiting) - _STATES + 1
    ]:
        if key in _waiting:
            _waiting.pop(key).stop()
    state = _waiting[task.fit, task.place] = _Waiting(task)
    return state


def first_file(partitions: Partitions) -> Any:
    """The first partition as a source: its columns are those of all."""
    return table_in(Path(partitions.parts[0].path))
