"""What a worker does for a fit over partitions: :func:`answer`, the integer sum of its rows that a query asks for.

An answer is a function of immutable files and of the question: it may be asked for again, elsewhere, twice. Rows are
read and encoded once, and kept until another fit asks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from discreet.errors import DiscreetError
from discreet.linear.gate.partitioned_rows import PartitionQuery
from discreet.linear.packed_questions import unpack
from discreet.linear.partition_results import PartitionReply
from discreet.linear.user_routing import Share
from discreet.linear.views import Views
from discreet.trusted.plain_data import digest_of

_TABLES = 256  # partitions of which a worker keeps rows
_PARTS = 64  # large arrays that it keeps


class Reading(NamedTuple):
    """How a partition is read: as an estimator declares, without its ledger, key and seed, with this target."""

    model: Any
    target: str | None


class PartitionTask(NamedTuple):
    """A question to a share of the table. ``reading`` may be None for a worker that has read the rows.

    ``fit`` is a name that no other fit has, nor the same one after its driver was restarted: rows are kept under it.
    """

    fit: str
    share: Share
    reading: Reading | None
    question: PartitionQuery

    @property
    def place(self) -> int:
        """The number of the partition."""
        return self.share.place

    @property
    def release(self) -> int:
        """The number of the question."""
        return self.question.release


def answer(task: PartitionTask) -> PartitionReply:
    """The sum of a partition, or a code. Never raises: an exception would carry what it was raised for.

    Guarantee: a function of the files and of the question alone, however often and wherever it is asked.
    """
    try:
        found = _answer(task)
    except BaseException:  # a traceback could hold a row
        found = "failed"
    return PartitionReply(found, task.place, task.release) if isinstance(found, str) else found


def _answer(task: PartitionTask) -> PartitionReply | str:
    try:
        if not task.share.part.unchanged(thoroughly=False):
            return "changed"
    except Exception:
        return "unreadable"
    with _door:
        partition = _partition(task)
    if partition is None:
        return "behind"
    with partition.lock:
        views = partition.views or partition.read(task)
        if isinstance(views, str):
            return views
        question, parts = task.question, partition.parts
        try:
            asked = unpack(question.asked, parts)
            keys = question.view, digest_of(asked.fills), digest_of(asked.basis)
            rows = views.rows(keys, lambda: unpack(question.view, parts), asked.fills, asked.basis)
        except KeyError:
            return "behind"
        counts = np.asarray(rows._total(asked.query, question.grid))
    bound = float(asked.query.bound)
    return PartitionReply("sum", task.place, task.release, counts, bound, question.grid, question.digest)


def _partition(task: PartitionTask) -> _Partition | None:
    """The partition of a task; None if it has not been read and the task does not say how.

    Rows of earlier fits, and the oldest of too many, are dropped.
    """
    if task.reading is not None and task.fit not in _parts:
        _partitions.clear()
        _parts.clear()
        _parts[task.fit] = {}
    parts = _parts.get(task.fit)
    if parts is None:
        return None
    parts |= task.question.parts
    if task.reading is not None and task.place not in _partitions:
        _partitions[task.place] = _Partition()
    caches: tuple[tuple[dict[Any, Any], int], ...] = ((parts, _PARTS), (_partitions, _TABLES))
    for cache, most in caches:
        while len(cache) > most:
            cache.pop(next(iter(cache)))
    partition = _partitions.get(task.place)
    if partition is not None:
        partition.parts = dict(parts)
    return partition


@dataclass(eq=False)
class _Partition:
    """The rows of one partition, once they were read, and the large arrays that questions refer to."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    views: Views | None = None
    parts: dict[bytes, Any] = field(default_factory=dict)

    def read(self, task: PartitionTask) -> Views | str:
        """Read the rows; a code if they cannot be read."""
        if task.reading is None:
            return "behind"
        try:
            if not task.share.unchanged():
                return "changed"
            model, target = task.reading
            self.views = Views(model._read(task.share.source(), target, None, None, True))
            return self.views
        except DiscreetError:
            return "refused"
        except OSError:
            return "unreadable"


_partitions: dict[int, _Partition] = {}
_parts: dict[str, dict[bytes, Any]] = {}
"""The large arrays of the current fit, by its name."""
_door = threading.Lock()
