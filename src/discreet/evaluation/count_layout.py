"""A :class:`CountLayout`: all that an evaluation counts, as one vector, and the scores that follow from it.

Each record falls into cells of its task, within its group; what it adds to the cells of all blocks together has norm
1 at most, whatever it says. So one noisy sum of such vectors is all that an evaluation releases, and several sums, of
several parties, add up to one of all their records.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter
from discreet.evaluation.outcomes import Outcome
from discreet.evaluation.scoring import NoisyCounts, Scoring
from discreet.evaluation.tasks import Measured, Task
from discreet.trusted.queries import Blocks, Cells, Norm

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
class CountLayout:
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

    def limits(self, norm: Norm) -> Array:
        """How much a record may add to each block, if all of it shall have norm 1 at most."""
        length = np.linalg.norm(self.lengths, 2 if norm == "l2" else 1)
        return np.asarray(self.lengths / length * (1 - 1e-12))

    def query(self, norm: Norm) -> Blocks:
        """Return the sum over all records: each adds its limit to the cells of each block, within its group."""
        groups = tuple(one.size for one in self.groups)
        blocks = []
        for number, (view, limit) in enumerate(zip(self.task.views, self.limits(norm).tolist(), strict=True)):
            outcome = Outcome(view, groups, unscored=number == 0)
            blocks.append(Cells(outcome, (outcome.size,), (limit,), unit=limit))
        return Blocks(tuple(blocks), norm=norm)

    def digest(self, query: Blocks) -> str:
        """Of all that is public of a sum: those whose sums are added up must agree in it."""
        known = (self.task.blocks, [(one.name, one.declared) for one in self.groups], query.digest)
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def score(self, noisy: Array, noise: float, lengths: Array, scoring: Scoring) -> Scored:
        """The scores, from the noisy sum of vectors with these ``lengths``, each number with this much noise."""
        shape = tuple(one.size for one in self.groups)
        sizes = [self.combinations * block.size for block in self.task.blocks]
        parts = np.split(noisy, np.cumsum(sizes)[:-1])
        tables = [
            NoisyCounts((part / length).reshape(*shape, block.size), noise / length)
            for part, block, length in zip(parts, self.task.blocks, lengths, strict=True)
        ]
        overall, unscored = self._measure(tables, scoring)
        groups = {
            one.name: dict(self._by(tables, scoring, place, one)) for place, one in enumerate(self.groups)
        }
        return Scored(overall, groups, tuple(_notes(overall, unscored)))

    def _measure(self, tables: list[NoisyCounts], scoring: Scoring) -> tuple[Measured, NoisyCounts]:
        """The scores of all groups together, and how many records could not be scored."""
        summed = []
        for table in tables:
            flat = table.cells.reshape(-1, table.cells.shape[-1])
            summed.append(NoisyCounts(flat.sum(0), table.noise * math.sqrt(len(flat))))
        unscored = summed[0].of(slice(-1, None))
        summed[0] = summed[0].of(slice(-1))
        return self.task.measure(summed, scoring), unscored

    def _by(
        self, tables: list[NoisyCounts], scoring: Scoring, axis: int, groups: Grouping
    ) -> Iterator[tuple[Any, Measured]]:
        """Each group, and None for that of all other values, unless noise alone could explain its records."""
        for place, value in enumerate((*groups.declared, None)):
            part = [NoisyCounts(np.take(table.cells, place, axis), table.noise) for table in tables]
            measured = self._measure(part, scoring)[0]
            if place < len(groups.declared) or measured["records"].value > 4 * measured["records"].noise:
                yield value, measured


def _notes(overall: Measured, unscored: NoisyCounts) -> Iterator[str]:
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
