"""What a worker does for a fit over partitions: :func:`contribution`, the sum that its rows add to the next release.

A worker runs the same fit as the driver on its own rows, is told all values that were released so far, which are
public, and answers with the sum that it would release next, in whole numbers. So an answer is a function of immutable
files and the public log: it may be asked for again, elsewhere, twice.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.errors import DiscreetError
from discreet.ledger import GaussianFilter
from discreet.linear.homes import Share
from discreet.linear.roll_call import Answer

Array = NDArray[np.float64]

_STATES = 256  # fits of partitions that a worker keeps waiting


class Task(NamedTuple):
    """What a worker is asked: what a share of the table adds to a release. ``values`` are those from ``since`` on.

    ``model`` and the share's home are needed to begin; a worker that has begun is told the new values only. ``rule``
    is that of the driver's ledger: noise and grids depend on the part of delta that it holds back.
    """

    fit: str
    release: int
    share: Share
    model: Any
    target: str | None
    since: int
    values: tuple[Array, ...]
    rule: GaussianFilter | None = None

    @property
    def place(self) -> int:
        """The number of the partition."""
        return self.share.place


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
        self._last: Any = None
        threading.Thread(target=self._fit, daemon=True).start()

    def _fit(self) -> None:
        task = self._task
        try:
            if not task.share.is_as_it_was():
                self._sums.put("changed")
                return
            task.model._fit(task.share.source(), task.target, None, None, None, elsewhere=self)
        except _Stopped:
            return
        except DiscreetError:
            self._sums.put("refused")
        except OSError:
            self._sums.put("unreadable")
        except BaseException:  # a traceback could hold a row
            self._sums.put("failed")

    def shared_rule(self, rule: GaussianFilter) -> GaussianFilter:
        """The rule of the driver's ledger."""
        return rule if self._task.rule is None else self._task.rule

    def release(self, total: BoundedSum, public: str, draw: Any, pay: Any) -> Array:
        self._sums.put((np.array(total.value), total.clip_norm, total.grid, public))
        value = self._values.get()
        if value is None:
            raise _Stopped
        return np.asarray(value, np.float64)

    def sum_after(self, values: Iterable[Array]) -> Any:
        """What this partition would release next, after these values; a code if it failed."""
        if self._last is None:
            self._last = self._sums.get()
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

    Guarantee: a function of the files and of the public values alone, however often and wherever it is asked.
    """
    try:
        return _contribution(task)
    except BaseException:
        return Answer("failed", task.place, task.release)


def _contribution(task: Task) -> Answer:
    def code(word: str) -> Answer:
        return Answer(word, task.place, task.release)

    try:
        if not task.share.part.is_as_it_was(thoroughly=False):
            return code("changed")
    except Exception:
        return code("unreadable")
    with _door:
        state = _waiting.get((task.fit, task.place))
        if state is None or state.seen > task.release:
            if task.since:
                return code("behind")
            state = _begin(task)
    with state.lock:
        if state.seen < task.since:
            return code("behind")
        found = state.sum_after(task.values[state.seen - task.since :])
    if isinstance(found, str):
        return code(found)
    return Answer("sum", task.place, task.release, *found)


def _begin(task: Task) -> _Waiting:
    """A new fit of a partition; the ones of earlier fits, and the oldest of too many, are let go."""
    for key in [key for key in _waiting if key[0] != task.fit] + list(_waiting)[
        : len(_waiting) - _STATES + 1
    ]:
        if key in _waiting:
            _waiting.pop(key).stop()
    state = _waiting[task.fit, task.place] = _Waiting(task)
    return state
