"""Routing of users with rows in several files: all rows of a user are added up by one partition (:class:`UserRoute`).

Before the first release each file reports whose rows it has, by keyed hashes of ids. A user who is in one file only
is added up there. One who is in several is added up by the partition ``hash % files``, which reads these rows in all
files, in the order of the table; the other partitions leave them out. So a user's sum equals that of a single table
bit for bit, and its proofs hold here (docs/mathematics.md: U4).

Hashes only say where rows are added up; users are told apart by their ids. Two ids with one hash are two users of one
partition, so the proof needs no property of the hash.

>>> files = [np.array([[3, 5], [2, 1]]), np.array([[4, 5], [1, 6]])]  # hashes, and numbers of rows; 5 is in both
>>> [(route.split.tolist(), route.files, route.rows) for route in route_users(files, Ids("person", b"key"))]
[([5], (0,), 2), ([5], (0, 1), 8)]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.core.columns import list_cells
from discreet.core.grouping import MISSING_USER, canonical_user_id
from discreet.errors import PlanViolation
from discreet.linear.cells import Read
from discreet.linear.partition_results import PartitionReply, PartitionResults, reply
from discreet.linear.row_source import Source, Table
from discreet.linear.tables import ManySources

Codes = NDArray[np.int64]

_ANYBODY = (
    1  # the hash of ids that are neither strings nor numbers: one partition for all of them is always right
)


class Ids(NamedTuple):
    """The column of user ids, and the secret key of their hashes, which every driver draws anew."""

    column: str
    key: bytes

    def id_hashes(self, cells: Any) -> Codes:
        """Return a hash for each cell of an Arrow array; -1 for missing ids.

        Guarantee: cells that are the same person by :func:`~discreet.core.grouping.canonical_user_id` have the same
        hash, in all files, whatever their types.
        """
        encoded = cells.dictionary_encode()
        each = [self._id_hash(cell) for cell in list_cells(encoded.dictionary)]
        known = np.array([*each, MISSING_USER], np.int64)
        found: Codes = known[
            encoded.indices.cast("int64").fill_null(len(each)).to_numpy(zero_copy_only=False)
        ]
        return found

    def _id_hash(self, cell: Any) -> int:
        person = canonical_user_id(cell)
        if person is None:
            return MISSING_USER
        if isinstance(person, Number):
            person = f"{hash(person)} a number"  # equal numbers of all kinds have equal hashes
        if not isinstance(person, str):
            return _ANYBODY
        text = person.encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, key=self.key, digest_size=8).digest()) >> 1


class UserRoute(NamedTuple):
    """The users that one partition adds up: whose rows it reads in other files, and whose it leaves to others.

    ``split`` are the sorted hashes of users with rows in several files, as far as they concern this partition;
    ``files`` are those with rows for it, and ``rows`` is how many they are at most.
    """

    ids: Ids
    place: int
    places: int
    split: Codes
    files: tuple[int, ...]
    rows: int
    parts: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"UserRoute({self.place} of {self.places})"  # the description of a task must not reveal users

    def source(self) -> Source:
        """The rows that this partition adds up, in the order of the table."""
        files = zip(self.files, self.parts, strict=True)
        return ManySources(
            self.parts[0].path, [_RoutedSource(part.source(), self, file) for file, part in files]
        )

    def holds(self, id_hashes: Codes, file: int) -> NDArray[np.bool_]:
        """Return a mask of the rows of a file that this partition adds up."""
        at = np.searchsorted(self.split, id_hashes)
        split = np.append(self.split, MISSING_USER - 1)[at] == id_hashes
        moved = split & (id_hashes % self.places == self.place)
        found: NDArray[np.bool_] = moved | ~split if file == self.place else moved
        return found


class Share(NamedTuple):
    """The rows that a partition adds up: its own part, a file or a frame, or those of its users in all parts."""

    place: int
    part: Any
    route: UserRoute | None = None

    @property
    def rows(self) -> int:
        """An upper bound on the number of rows."""
        return self.part.rows if self.route is None else self.route.rows

    def source(self) -> Source:
        """The source of the rows."""
        return self.part.source() if self.route is None else self.route.source()

    def unchanged(self) -> bool:
        """True if no file that it reads has changed."""
        return all(part.unchanged() for part in ((self.part,) if self.route is None else self.route.parts))


class _RoutedSource(Source):
    """The rows of a file that one partition adds up."""

    def __init__(self, source: Any, route: UserRoute, file: int) -> None:
        self._source, self._route, self._file = source, route, file
        self.path, self.names, self.schema = source.path, source.names, source.schema

    def batches(self, names: list[str]) -> Iterator[Any]:
        ids = self._route.ids
        for batch in self._source.batches(list(dict.fromkeys((*names, ids.column)))):
            cells = self._source.table(batch, {}, [ids.column]).kept[ids.column]
            yield batch.filter(self._route.holds(ids.id_hashes(cells), self._file))

    def table(self, batch: Any, readers: Mapping[str, Read], keep: Sequence[str]) -> Table:
        return self._source.table(batch, readers, keep)  # type: ignore[no-any-return]

    def progress(self) -> float:
        return float(self._source.progress())


def route_users(files: Sequence[Codes], ids: Ids, parts: Sequence[Any] = ()) -> list[UserRoute]:
    """Return the route of each partition, from the hashes in each file and their numbers of rows.

    Guarantee: one partition adds up all rows with the same hash. Rows without an id stay in their file, where they
    add nothing.
    """
    places = len(files)
    id_hashes, often = np.unique(np.concatenate([file[0] for file in files]), return_counts=True)
    split = id_hashes[often > 1]
    rows, holds = np.zeros(places, np.int64), np.eye(places, dtype=bool)
    for file, (people, count) in enumerate(files):
        routes = np.where(np.isin(people, split), people % places, file)
        rows += np.bincount(routes, count, places).astype(np.int64)
        holds[routes, file] = True
    found = []
    for place in range(places):
        own = np.isin(split, files[place][0]) | (split % places == place)
        where = tuple(np.flatnonzero(holds[place]).tolist())
        read = tuple(parts[file] for file in where) if parts else ()
        found.append(UserRoute(ids, place, places, split[own], where, int(rows[place]), read))
    return found


class UserCountTask(NamedTuple):
    """Asks a worker for the users of a file."""

    share: Share
    ids: Ids


def count_users(task: UserCountTask) -> PartitionReply:
    """Return the sorted hashes of a file and the number of rows of each, or a code. Never raises."""

    def people() -> PartitionReply:
        column, found = task.ids.column, [np.empty(0, np.int64)]
        for chunk in task.share.source().chunks({}, [column]):
            if len(chunk):
                found.append(task.ids.id_hashes(chunk.kept[column]))
        id_hashes = np.concatenate(found)
        counted = np.unique(id_hashes[id_hashes != MISSING_USER], return_counts=True)
        return PartitionReply("sum", task.share.place, 0, np.array(counted, np.int64))

    return reply(task.share, people)


class UserCounts(PartitionResults):
    """The users of each file; ``most`` bounds the rows of each file."""

    def __init__(self, most: Sequence[int]) -> None:
        super().__init__(len(most))
        self._most = most

    def _validate_reply(self, answer: PartitionReply, counts: Codes) -> None:
        fits = counts.ndim == 2 and len(counts) == 2
        if not (fits and (np.diff(counts[0]) > 0).all() and (counts >= 0).all()):
            raise PlanViolation(f"Partition {answer.place} gave no list of people; the fit stops.")
        if counts[1].sum() > self._most[answer.place]:
            raise PlanViolation(f"Partition {answer.place} has fewer rows than it says; the fit stops.")
