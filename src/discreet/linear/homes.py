"""Rows of one person in several files: who is added up where (:class:`Home`), so that everybody is in one place.

Before the first release each file says whose rows it has, by tickets: keyed hashes of ids. A person who is in one
file only stays there. One who is in several has the home ``ticket % files``: that partition reads these rows in all
files, in the order of the table, and the others leave them out. So a person's sum is the one of a single table, to
the bit, and what is proved of that table holds here (docs/mathematics.md: U4).

Tickets only say where rows go; people are told apart by their ids, wherever these are. So two ids with one ticket are
two people at one home, and the proof asks nothing of the hash.

>>> files = [np.array([[3, 5], [2, 1]]), np.array([[4, 5], [1, 6]])]  # tickets, and how many rows; 5 is in both
>>> [(home.split.tolist(), home.files, home.rows) for home in homes_of(files, Ids("person", b"key"))]
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
from discreet.core.grouping import NOBODY, person_of
from discreet.errors import PlanViolation
from discreet.linear.roll_call import Answer, Roll, reply
from discreet.linear.tables import ManySources, Read, Source, Table

Codes = NDArray[np.int64]

_ANYBODY = 1  # the ticket of ids that are neither texts nor numbers: to have one home is always right


class Ids(NamedTuple):
    """The column that says whose a row is, and the key of the tickets: secret, and another one for every driver."""

    column: str
    key: bytes

    def tickets(self, cells: Any) -> Codes:
        """A ticket for each cell of an Arrow array; -1 for nobody's.

        Guarantee: cells that are the same person by :func:`~discreet.core.grouping.person_of` have the same ticket,
        in all files, whatever their types.
        """
        encoded = cells.dictionary_encode()
        each = [self._ticket(cell) for cell in list_cells(encoded.dictionary)]
        known = np.array([*each, NOBODY], np.int64)
        found: Codes = known[
            encoded.indices.cast("int64").fill_null(len(each)).to_numpy(zero_copy_only=False)
        ]
        return found

    def _ticket(self, cell: Any) -> int:
        person = person_of(cell)
        if person is None:
            return NOBODY
        if isinstance(person, Number):
            person = f"{hash(person)} a number"  # equal numbers of all kinds have equal hashes
        if not isinstance(person, str):
            return _ANYBODY
        text = person.encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, key=self.key, digest_size=8).digest()) >> 1


class Home(NamedTuple):
    """What a partition needs to know of the people it adds up: whose rows it fetches from, or leaves to, others.

    ``split`` are the tickets, in order, of those with rows in several files who are in its own file or at home here;
    ``files`` are all that hold rows for it, and ``rows`` how many they are at most.
    """

    ids: Ids
    place: int
    places: int
    split: Codes
    files: tuple[int, ...]
    rows: int
    parts: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"Home({self.place} of {self.places})"  # what is told of a task must not tell of people

    def source(self) -> Source:
        """The rows of all who are at home here, in the order of the table."""
        files = zip(self.files, self.parts, strict=True)
        return ManySources(self.parts[0].path, [_AtHome(part.source(), self, file) for file, part in files])

    def holds(self, tickets: Codes, file: int) -> NDArray[np.bool_]:
        """Which rows of a file are added up here, by their tickets."""
        at = np.searchsorted(self.split, tickets)
        split = np.append(self.split, NOBODY - 1)[at] == tickets
        moved = split & (tickets % self.places == self.place)
        found: NDArray[np.bool_] = moved | ~split if file == self.place else moved
        return found


class Share(NamedTuple):
    """What a partition adds up: itself (``part``, of a file or a frame), or all that its home says."""

    place: int
    part: Any
    home: Home | None = None

    @property
    def rows(self) -> int:
        """How many rows there are, at most."""
        return self.part.rows if self.home is None else self.home.rows

    def source(self) -> Source:
        """The rows, to be read."""
        return self.part.source() if self.home is None else self.home.source()

    def is_as_it_was(self) -> bool:
        """Whether no file changed that it reads."""
        return all(part.is_as_it_was() for part in ((self.part,) if self.home is None else self.home.parts))


class _AtHome(Source):
    """The rows of a file that one partition adds up."""

    def __init__(self, source: Any, home: Home, file: int) -> None:
        self._source, self._home, self._file = source, home, file
        self.path, self.names, self.schema = source.path, source.names, source.schema

    def _chunks(self, readers: Mapping[str, Read], keep: Sequence[str]) -> Iterator[Table]:
        ids = self._home.ids
        for chunk in self._source._chunks(readers, (*keep, ids.column)):
            here = self._home.holds(ids.tickets(chunk.kept[ids.column]), self._file)
            columns = {name: chunk[name][here] for name in readers}
            yield Table(columns, int(here.sum()), {name: chunk.kept[name].filter(here) for name in keep})

    def progress(self) -> float:
        return float(self._source.progress())


def homes_of(files: Sequence[Codes], ids: Ids, parts: Sequence[Any] = ()) -> list[Home]:
    """The home of everybody, from the tickets in each file and how many rows they have there.

    Guarantee: all rows with the same ticket are at one home; rows of nobody stay in their file, where they count for
    nothing.
    """
    places = len(files)
    tickets, often = np.unique(np.concatenate([file[0] for file in files]), return_counts=True)
    split = tickets[often > 1]
    rows, holds = np.zeros(places, np.int64), np.eye(places, dtype=bool)
    for file, (people, count) in enumerate(files):
        homes = np.where(np.isin(people, split), people % places, file)
        rows += np.bincount(homes, count, places).astype(np.int64)
        holds[homes, file] = True
    found = []
    for place in range(places):
        own = np.isin(split, files[place][0]) | (split % places == place)
        where = tuple(np.flatnonzero(holds[place]).tolist())
        read = tuple(parts[file] for file in where) if parts else ()
        found.append(Home(ids, place, places, split[own], where, int(rows[place]), read))
    return found


# ---- asking the files ----


class Census(NamedTuple):
    """What a worker is asked: whose rows a file has."""

    share: Share
    ids: Ids


def people_in(task: Census) -> Answer:
    """The tickets of a file, in order, and how many rows each has; or a code. Never raises."""

    def people() -> Answer:
        column, found = task.ids.column, [np.empty(0, np.int64)]
        for chunk in task.share.source().chunks({}, [column]):
            if len(chunk):
                found.append(task.ids.tickets(chunk.kept[column]))
        tickets = np.concatenate(found)
        counted = np.unique(tickets[tickets != NOBODY], return_counts=True)
        return Answer("sum", task.share.place, 0, np.array(counted, np.int64))

    return reply(task.share, people)


class Register(Roll):
    """What each file says of whose rows it has; ``most`` are the rows of the files."""

    def __init__(self, most: Sequence[int]) -> None:
        super().__init__(len(most))
        self._most = most

    def _refuse_lies(self, answer: Answer, counts: Codes) -> None:
        fits = counts.ndim == 2 and len(counts) == 2
        if not (fits and (np.diff(counts[0]) > 0).all() and (counts >= 0).all()):
            raise PlanViolation(f"Partition {answer.place} gave no list of people; the fit stops.")
        if counts[1].sum() > self._most[answer.place]:
            raise PlanViolation(f"Partition {answer.place} has fewer rows than it says; the fit stops.")
