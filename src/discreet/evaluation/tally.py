"""A :class:`Tally`: all that an evaluation counts, as one vector, and the scores that follow from it.

Each record falls into cells of its task, within its group; what it adds to the cells of all blocks together has norm
1 at most, whatever it says. So one noisy sum of such vectors is all that an evaluation releases, and several sums, of
several parties, add up to one of all their records.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter
from discreet.evaluation.scoring import Counts, Scoring, Shared
from discreet.evaluation.tasks import Cells, Measured, Task

Array = NDArray[np.float64]

MOST_CELLS = 2**22


@dataclass(frozen=True)
class Grouping:
    """A column by which scores are told, and its declared values; all others make one more group."""

    name: str
    declared: tuple[Any, ...]

    @property
    def size(self) -> int:
        """The groups, that of all other values included."""
        return len(self.declared) + 1


@dataclass(frozen=True)
class Scored:
    """What the counts say: of all records, of each group, and what looks wrong."""

    overall: Measured
    groups: Mapping[str, Mapping[Any, Measured]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """The cells of a task, for every combination of groups."""

    task: Task
    groups: tuple[Grouping, ...] = ()

    def __post_init__(self) -> None:
        if self.size > MOST_CELLS:
            names = [one.name for one in self.groups]
            raise InvalidParameter("by", names, "makes too many groups; ask for fewer.")

    @property
    def combinations(self) -> int:
        """How many groups there are in all."""
        return math.prod(one.size for one in self.groups)

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return self.combinations * sum(block.size for block in self.task.blocks)

    @property
    def lengths(self) -> Array:
        """How much a record may add to each block, if all of it shall have the l2 norm 1."""
        return np.sqrt([block.share for block in self.task.blocks])

    def digest(self, steps: Sequence[int]) -> str:
        """Of all that is public of a sum: those whose sums are added up must agree in it."""
        known = (self.task.blocks, [(one.name, one.declared) for one in self.groups], list(steps))
        return hashlib.sha256(repr(known).encode()).hexdigest()

    # ---- counting ----

    def cells_of(self, truth: Array, said: Array) -> list[Shared]:
        """The cells of all records: those that cannot be scored are in the last cell of the first block only."""
        good = np.isfinite(truth) & np.isfinite(said).all(1)
        placed = []
        for number, (block, part) in enumerate(
            zip(self.task.blocks, self.task.cells(truth[good], said[good]), strict=True)
        ):
            cells = np.full((len(truth), part.cells.shape[1]), block.size - 1, np.int64)
            shares = np.zeros(cells.shape)
            if number == 0:
                shares[:, 0] = 1.0
            cells[good], shares[good] = part
            placed.append(Shared(cells, shares))
        return placed

    def combination(self, places: Sequence[Cells], rows: int) -> Cells:
        """The number of each record's group among all combinations, from its place in each grouping."""
        found = np.zeros(rows, np.int64)
        for one, place in zip(self.groups, places, strict=True):
            found = found * one.size + place
        return found

    def total(
        self, placed: Sequence[Shared], group: Cells, steps: Sequence[int], weights: Array | None = None
    ) -> Cells:
        """The sum over all records, in whole numbers: a record adds at most ``steps`` to each block.

        Guarantee: so it does, by the l1 norm, whatever it says; and a person's rows together no more, if their
        weights add up to 1.
        """
        blocks = zip(self.task.blocks, placed, steps, strict=True)
        parts = [
            spread(where, group, self.combinations, block.size, most, weights)
            for block, where, most in blocks
        ]
        return np.concatenate(parts)

    # ---- scoring ----

    def score(self, noisy: Array, noise: float, lengths: Array, scoring: Scoring) -> Scored:
        """The scores, from the noisy sum of vectors with these ``lengths``, each number with this much noise."""
        shape = tuple(one.size for one in self.groups)
        sizes = [self.combinations * block.size for block in self.task.blocks]
        parts = np.split(noisy, np.cumsum(sizes)[:-1])
        tables = [
            Counts((part / length).reshape(*shape, block.size), noise / length)
            for part, block, length in zip(parts, self.task.blocks, lengths, strict=True)
        ]
        overall, unscored = self._measure(tables, scoring)
        groups = {
            one.name: dict(self._by(tables, scoring, place, one)) for place, one in enumerate(self.groups)
        }
        return Scored(overall, groups, tuple(_notes(overall, unscored)))

    def _measure(self, tables: list[Counts], scoring: Scoring) -> tuple[Measured, Counts]:
        """The scores of all groups together, and how many records could not be scored."""
        summed = []
        for table in tables:
            flat = table.cells.reshape(-1, table.cells.shape[-1])
            summed.append(Counts(flat.sum(0), table.noise * math.sqrt(len(flat))))
        unscored = summed[0].of(slice(-1, None))
        summed[0] = summed[0].of(slice(-1))
        return self.task.measure(summed, scoring), unscored

    def _by(
        self, tables: list[Counts], scoring: Scoring, axis: int, groups: Grouping
    ) -> Iterator[tuple[Any, Measured]]:
        """Each group, and None for that of all other values, unless noise alone could explain its records."""
        for place, value in enumerate((*groups.declared, None)):
            part = [Counts(np.take(table.cells, place, axis), table.noise) for table in tables]
            measured = self._measure(part, scoring)[0]
            if place < len(groups.declared) or measured["records"].value > 4 * measured["records"].noise:
                yield value, measured


class Ballots(NamedTuple):
    """Where each record falls in a tally, and what it weighs; private."""

    tally: Tally
    placed: list[Shared]
    group: Cells
    weights: Array | None = None

    def total(self, steps: Sequence[int]) -> Cells:
        """:meth:`Tally.total` of them."""
        return self.tally.total(self.placed, self.group, steps, self.weights)


def spread(
    where: Shared, group: Cells, groups: int, size: int, steps: int, weights: Array | None = None
) -> Cells:
    """Whole numbers, at most ``steps`` in all from each record, in its cells.

    Each is cut toward zero. What shares and weights are above 1 together by their rounding is less than one step in
    ``steps``, which is below 2^48; so a sum of whole numbers cannot be above ``steps`` by it.
    """
    total = np.zeros(groups * size, np.int64)
    for cells, shares in zip(where.cells.T, where.shares.T, strict=True):
        amounts = (shares if weights is None else shares * weights) * steps
        np.add.at(total, group * size + cells, amounts.astype(np.int64))
    return total


def person_weights(ids: Sequence[bytes | None]) -> Array:
    """1 over the number of a person's rows, for each row; 0 for rows of nobody."""
    many: dict[bytes, int] = {}
    for one in ids:
        if one is not None:
            many[one] = many.get(one, 0) + 1
    return np.array([0.0 if one is None else 1.0 / many[one] for one in ids], np.float64)


def _notes(overall: Measured, unscored: Counts) -> Iterator[str]:
    """What released numbers say of the table, in sentences."""
    records = overall["records"]
    if records.value < 4 * records.noise:
        yield (
            f"about {max(records.value, 0):.0f} records could be scored, which noise alone could explain: does the "
            "table hold records with labels as declared, and is the budget enough for them?"
        )
    elif "R2" in overall.scores and not overall["R2"].resolved:
        yield (
            "noise hides how far the targets are spread, so R2 is not resolved: declare target bounds that are not "
            "much wider than most targets, or allow a larger epsilon."
        )
    share = unscored.total / max(unscored.total + records.value, 1.0)
    if unscored.total > 6 * unscored.noise and share > 0.01:
        yield (
            f"about {min(share, 1):.0%} of the records could not be scored: their label is none of those declared, "
            "or the model failed at them or did not answer with probabilities; try it on a made-up record."
        )
