"""People as the unit of a run: :class:`PerPerson`, a data set whose examples are people with some of their rows.

The plan draws people. A drawn person brings up to ``rows`` rows, whose losses are averaged into one loss before the
backward pass; so the gradient that is clipped is that of the mean over the person's rows, and the engine needs to
know nothing new: an example with several views. Whoever has fewer rows is filled up with copies that weigh nothing.

>>> dataset = (torch.arange(5.0), torch.zeros(5))
>>> people = PerPerson(dataset, ids=["ann", "bob", "ann", "ann", None], rows=2)
>>> len(people)
2
>>> (values, _), weights = people.read([1])
>>> values.tolist(), weights.tolist()
([[1.0, 1.0]], [[1.0, 0.0]])

Guarantee: all rows of a person together change a clipped sum by at most the clip norm, whatever their number, since
they are one example. Which rows are taken is drawn afresh for each person and each batch, from randomness that nobody
knows: so it says nothing of who else is there. A row without an id counts for nothing, since it might be anybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discreet.core.columns import column_to_array
from discreet.core.grouping import group_rows, id_codes
from discreet.core.sampling import Indices
from discreet.errors import InvalidParameter, PlanViolation, whole
from discreet.plan.plan import Plan
from discreet.pytorch.batches import Reader, reader
from discreet.pytorch.per_example import Losses, checked_losses, rebuild
from discreet.pytorch.refusals import PLAN_FOR_PEOPLE, PLAN_FOR_RECORDS

ROWS = 8


class PerPerson:
    """A data set of people, for ``run.batches`` of a plan whose budget says ``unit="person"``.

    ``dataset`` is any data set whose examples are stacked as they are; ``ids`` says whose each row is. ``rows`` is
    how many rows a person brings to a batch at most; of somebody with more, so many are drawn anew each time.
    """

    def __init__(self, dataset: Any, ids: Any, rows: int = ROWS) -> None:
        if isinstance(dataset, PerPerson):
            raise InvalidParameter("dataset", "PerPerson", "must be the data set itself, row by row.")
        self.rows = whole("rows", rows, at_least=1, remedy="Usual are 4 to 16.")
        self._records = reader(dataset)
        cells = column_to_array(ids if hasattr(ids, "dtype") or hasattr(ids, "to_numpy") else list(ids))
        if cells.shape != (self._records.rows,):
            raise InvalidParameter("ids", "other rows", "must hold an id for each row of the data set.")
        self._order, self._starts = group_rows(id_codes(cells))
        self._counts = np.diff(np.append(self._starts, len(self._order)))

    def __len__(self) -> int:
        """The number of people: private, unless it was declared."""
        return len(self._starts)

    def reader(self) -> Reader:
        """Fetches people by their numbers."""
        return _PeopleReader(self)

    def all_of(self, person: int) -> Any:
        """All rows of a person."""
        start = self._starts[person]
        return self._records(self._order[start : start + self._counts[person]])

    def read(self, people: Sequence[int] | Indices) -> tuple[Any, Tensor]:
        """The rows of these people, (person, row, ...), and the weight of each row, which sum to 1 for a person."""
        who = np.asarray(people, np.int64)
        places = _draw_places(self._counts[who], self.rows)
        rows = self._order[self._starts[who, None] + places]
        counts = np.minimum(self._counts[who], self.rows)[:, None]
        weights = (np.arange(self.rows) < counts) / counts

        def by_person(column: Tensor) -> Tensor:
            return column.reshape(*rows.shape, *column.shape[1:])

        batch = rebuild(self._records(rows.reshape(-1)), by_person)
        return batch, torch.from_numpy(weights.astype(np.float32))


class _PeopleReader(Reader):
    """Reads people, of whom some rows are drawn each time."""

    def __init__(self, people: PerPerson) -> None:
        super().__init__(len(people), people.read)
        self._people = people

    def content(self, index: int) -> Any:
        """All rows of a person."""
        return self._people.all_of(index)


def _draw_places(counts: NDArray[np.intp], rows: int) -> NDArray[np.int64]:
    """For each person, ``rows`` different places among so many, by Floyd's algorithm.

    Where there are no more than that: all of them, and again from the first on.

    The generator is new in every call and seeded by the system: one whose numbers are known, or shared by processes,
    would give others other rows when somebody leaves.
    """
    random, places = np.random.default_rng(), np.zeros((len(counts), rows), np.int64)
    for place in range(rows):
        last = counts - rows + place
        found = (random.random(len(counts)) * (last + 1)).astype(np.int64)
        twice = (places[:, :place] == found[:, None]).any(axis=1)
        places[:, place] = np.where(counts > rows, np.where(twice, last, found), place % counts)
    return places


class PersonLosses:
    """One loss for each person: the weighted mean of ``losses`` over the rows that the person brings."""

    def __init__(self, losses: Losses) -> None:
        self.losses = losses

    def __call__(self, model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
        rows, weights = batch
        flat = rebuild(rows, lambda tensor: tensor.flatten(0, 1))
        values = checked_losses(self.losses, model, flat, weights.numel())
        return (values.view(weights.shape) * weights).sum(1)


def losses_for(plan: Plan, losses: Losses) -> Losses:
    """The losses of the examples that a plan draws: of records as they are, or of people."""
    return PersonLosses(losses) if plan.unit == "person" else losses


def reader_for(plan: Plan, dataset: Any, collate: Any) -> Reader:
    """The reader of a data set, if its examples are what the plan protects."""
    people = isinstance(dataset, PerPerson)
    if people and plan.unit != "person":
        raise PlanViolation(PLAN_FOR_RECORDS)
    if not people and plan.unit == "person":
        raise PlanViolation(PLAN_FOR_PEOPLE)
    if not people:
        return reader(dataset, collate)
    if collate is not None:
        raise InvalidParameter("collate", collate, "is not for people: examples are stacked as they are.")
    found: Reader = dataset.reader()
    return found
