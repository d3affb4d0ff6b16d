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
from discreet.linear.gate.partitioned_rows import PartitionQuery, QueryContext
from discreet.linear.gate.private_table import PrivateTable
from discreet.linear.packed_questions import unpack
from discreet.linear.partition_results import PartitionReply
from discreet.linear.user_routing import Share
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
    kept = _kept_rows(task)
    if kept is None:
        return "behind"
    with kept.lock:
        if kept.table is None:
            code = kept.read(task)
            if code is not None:
                return code
        question = task.question
        try:
            asked = unpack(question.asked, kept.parts)
            rows = kept.rows(question.view, asked)
        except KeyError:
            return "behind"
        counts = np.asarray(rows._total(asked.query, question.grid))
    bound = float(asked.query.bound)
    return PartitionReply("sum", task.place, task.release, counts, bound, question.grid, question.digest)


def _kept_rows(task: PartitionTask) -> _Kept | None:
    """What is kept of a partition; None if it has not been read and the task does not say how.

    Rows of earlier fits, and the oldest of too many, are let go.
    """
    with _door:
        if task.reading is not None and task.fit not in _parts:
            _kept.clear()
            _parts.clear()
            _parts[task.fit] = {}
        parts = _parts.get(task.fit)
        if parts is None:
            return None
        parts |= task.question.parts
        while len(parts) > _PARTS:
            parts.pop(next(iter(parts)))
        key = task.fit, task.place
        if key not in _kept and task.reading is not None:
            while len(_kept) >= _TABLES:
                _kept.pop(next(iter(_kept)))
            _kept[key] = _Kept()
        found = _kept.get(key)
        if found is not None:
            found.parts = dict(parts)
        return found


@dataclass(eq=False)
class _Kept:
    """The rows of one partition: as they were read, and in the views that were asked of last."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    table: PrivateTable | None = None
    made: dict[str, tuple[bytes, Any]] = field(default_factory=dict)
    parts: dict[bytes, Any] = field(default_factory=dict)

    def read(self, task: PartitionTask) -> str | None:
        """Read the rows; a code if they cannot be read."""
        if task.reading is None:
            return "behind"
        try:
            if not task.share.unchanged():
                return "changed"
            model, target = task.reading
            self.table = model._read(task.share.source(), target, None, None, True)
        except DiscreetError:
            return "refused"
        except OSError:
            return "unreadable"
        return None

    def rows(self, view: bytes, asked: QueryContext) -> Any:
        """The rows that a query is asked of."""
        assert self.table is not None
        table, key = self.table, view
        rows = self._make("view", key, lambda: table.rows(unpack(view, self.parts)))
        if asked.fills is not None:
            values, before = asked.fills, rows
            key += digest_of(values)
            rows = self._make("filled", key, lambda: before.filled(values))
        if asked.basis is not None:
            basis, plain = asked.basis, rows
            rows = self._make("curves", key + digest_of(basis), lambda: plain.in_curves(basis))
        return rows

    def _make(self, name: str, key: bytes, make: Any) -> Any:
        """What ``make`` gives, kept under a name until it is asked for with another key."""
        found = self.made.get(name)
        if found is None or found[0] != key:
            self.made.pop(name, None)
            found = self.made[name] = key, make()
        return found[1]


_kept: dict[tuple[str, int], _Kept] = {}
_parts: dict[str, dict[bytes, Any]] = {}
_door = threading.Lock()
