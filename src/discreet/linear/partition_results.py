"""Collects one integer sum per partition and rejects inconsistent replies: :class:`PartitionSums`.

>>> like = BoundedSum(np.zeros(1, np.int64), 1.0, grid=2.0**-10)
>>> sums = PartitionSums(release=0, places=2, like=like, most=(5, 5))
>>> for place, count in [(1, 7), (0, 5), (1, 7)]:  # the second partition answers twice
...     sums.add(PartitionReply("sum", place, 0, np.array([count]), 1.0, 2.0**-10))
>>> sums.total().tolist()
[12]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.noise import BoundedSum
from discreet.errors import DiscreetError, PlanViolation

Counts = NDArray[np.int64]

_FATAL = {
    "changed": "its file changed since the fit began; the fit stops.",
    "unreadable": "its file cannot be read there.",
    "refused": "its columns are not those of the first file, by name or type.",
    "failed": "the worker failed; its own log has no word of the records either.",
}
"""Codes after which asking again would not help."""


class PartitionReply(NamedTuple):
    """A worker's reply: an integer sum (``code`` is ``"sum"``), or a code that reveals nothing about its rows.

    ``public`` is the digest of the public inputs that the worker used.
    """

    code: str
    place: int
    release: int
    counts: Counts | None = None
    clip_norm: float = 0.0
    grid: float | None = None
    public: str = ""


def reply(share: Any, compute: Callable[[], PartitionReply]) -> PartitionReply:
    """Return the reply that ``compute`` makes for a share of the table, or a code if a file changed or it raised.

    Guarantee: never raises, because an exception could carry a record.
    """
    try:
        found = compute() if share.unchanged() else None
        if found is not None and share.unchanged():
            return found
        code = "changed"
    except OSError:
        code = "unreadable"
    except DiscreetError:
        code = "refused"
    except BaseException:
        code = "failed"
    return PartitionReply(code, share.place, 0)


class PartitionResults(ABC):
    """The replies of all partitions to one question.

    Guarantee: duplicate replies are counted once; conflicting replies abort the fit.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._known: dict[int, Counts] = {}

    @property
    def missing(self) -> list[int]:
        """Partitions that have not replied."""
        return [place for place in range(self._places) if place not in self._known]

    def add(self, answer: PartitionReply) -> None:
        """Record a reply, if it holds numbers; raise if it is inconsistent."""
        if answer.code in _FATAL:
            raise PlanViolation(f"Partition {answer.place}: {_FATAL[answer.code]}")
        if answer.code != "sum":
            return
        counts = answer.counts
        if (
            answer.place not in range(self._places)
            or type(counts) is not np.ndarray
            or counts.dtype != np.int64
        ):
            raise PlanViolation("A sum is not one of a partition of this fit; the fit stops.")
        self._validate_reply(answer, counts)
        if not np.array_equal(self._known.setdefault(answer.place, counts), counts):
            raise PlanViolation(f"Partition {answer.place} gave two different sums; the fit stops.")

    @abstractmethod
    def _validate_reply(self, answer: PartitionReply, counts: Counts) -> None:
        """Raise if no partition could have replied so."""

    def answers(self) -> list[Counts]:
        """Return the replies in the order of the partitions; raise if one is missing."""
        if self.missing:
            raise PlanViolation(f"Partitions {self.missing[:5]} gave no sum: nothing is released.")
        return [self._known[place] for place in range(self._places)]


class PartitionSums(PartitionResults):
    """The sums of all partitions for one query.

    ``like`` is an empty sum with the sensitivity and grid of the query; ``most`` bounds the rows of each partition.

    Guarantee: each partition counts exactly once; without a reply of every partition there is no total. A reply from
    other public inputs, or larger than its rows can add up to, aborts the fit.
    """

    def __init__(
        self, release: int, places: int, like: BoundedSum, most: Sequence[int], public: str = ""
    ) -> None:
        super().__init__(places)
        self._release, self._like, self._most, self._public = release, like, most, public

    def _validate_reply(self, answer: PartitionReply, counts: Counts) -> None:
        like, place = self._like, answer.place
        theirs = (answer.release, answer.clip_norm, answer.grid, answer.public)
        if theirs != (self._release, like.clip_norm, like.grid, self._public):
            raise PlanViolation(
                f"Partition {place} worked with other public numbers than the driver: all machines need the same "
                "versions of the packages, and processors of the same kind."
            )
        assert like.grid is not None
        most = self._most[place] * (like.clip_norm / like.grid) * (1 + 1e-9)
        if counts.shape != like.value.shape or not np.linalg.norm(counts.astype(np.float64)) <= most:
            raise PlanViolation(f"Partition {place} gave more than its rows can add up to; the fit stops.")

    def total(self) -> Counts:
        """Return the sum over all partitions."""
        total: Counts = np.sum(self.answers(), axis=0, dtype=np.int64)
        return total
