"""From a data set to batches: the plan's sampler says who, this file fetches them.

A data set is one of

* a tensor, or a tuple or dict of tensors (or numpy arrays) with one row per record: the fastest;
* anything with ``len`` and ``[index]``: a ``torch.utils.data.Dataset``, a list of examples, a Hugging Face one.

A ``DataLoader`` shuffles, and no theorem used here covers that: a run takes it apart, see
:func:`discreet.pytorch.loaders.unwrap_loader`.

>>> read = reader((torch.arange(6.0), torch.tensor([0, 1, 0, 1, 0, 1])))
>>> read.rows, read([1, 4])
(6, (tensor([1., 4.]), tensor([1, 0])))
>>> read([]) is None
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from discreet.core.sampling import Indices
from discreet.errors import CheckFailed, InvalidParameter, PlanViolation, whole
from discreet.pytorch.checks.collation import CollationWatch, own_copy
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.generators import Draws as Noticing
from discreet.pytorch.checks.single_examples import Collated
from discreet.pytorch.checks.spot_check import Pieces, divide, is_due
from discreet.pytorch.checks.withheld import origin, withhold
from discreet.pytorch.loaders import refuse_unreadable
from discreet.pytorch.per_example import number_of_examples, rebuild, select
from discreet.pytorch.refusals import (
    ALL_STEPS_TAKEN,
    BATCH_NOT_USED,
    CLOSED_BATCH,
    COLLATE_FAILS,
    FOREIGN_BATCH,
    OTHER_NUMBER,
)

Collate = Callable[[list[Any]], Any]
Draws = Callable[[], AbstractContextManager[Any]]
"""What decides where the draws of data sets and collations come from."""


class Batch:
    """A step's turn, to be passed to :meth:`~discreet.pytorch.run.PrivateRun.step` as it is.

    The examples stay inside the run: they are private, and so is their number. Augmentation belongs into
    ``losses``.
    """

    def __init__(self, step: int) -> None:
        self._step = step

    @property
    def step(self) -> int:
        """The number of the step, from 1."""
        return self._step

    def __repr__(self) -> str:
        return f"Batch(step={self._step})"

    def __iter__(self) -> Iterator[Any]:
        raise PlanViolation(CLOSED_BATCH)

    def __getitem__(self, _place: Any) -> Any:
        iter(self)


@dataclass(frozen=True)
class Drawn:
    """The examples of a step.

    Batches that ``collate`` has made are ``collated``, come with their ``pieces`` in the steps in which sums are
    compared, and with ``singles``, some records alone.
    """

    batch: Any
    collated: bool = False
    pieces: Pieces | None = None
    singles: Collated | None = None


class BatchRegistry:
    """Keeps the examples of each batch as long as the batch itself, and hands them out in the order drawn."""

    def __init__(self, taken: int = 0) -> None:
        self._drawn: WeakKeyDictionary[Batch, Any] = WeakKeyDictionary()
        self._last = taken

    def batch_of(self, drawn: tuple[int, Any]) -> Batch:
        """Return a batch that carries the number of its step, and nothing else of what was drawn."""
        batch = Batch(drawn[0])
        self._drawn[batch] = drawn
        self._last = drawn[0]
        return batch

    def refuse_again(self, taken: int, planned: int) -> None:
        """Refuse to draw anew: after the last step, or in place of a batch not used yet."""
        if taken >= planned:
            raise PlanViolation(ALL_STEPS_TAKEN)
        if self._last > taken:
            raise PlanViolation(BATCH_NOT_USED)

    def drawn_for(self, batch: object, due: int) -> Drawn:
        """Return the examples of a batch, and some of its records alone, if it is the one that is due."""
        if not isinstance(batch, Batch) or batch not in self._drawn:
            raise PlanViolation(FOREIGN_BATCH)
        step, examples = self._drawn[batch]
        if step != due:
            raise PlanViolation(
                f"Step {due} is due and the batch is for step {step}: every batch is used once, in the order drawn."
            )
        return examples if isinstance(examples, Drawn) else Drawn(examples)


class Reader:
    """Fetches records by their row numbers; nothing drawn gives None.

    ``fetch`` gives a batch, or the list of its records if there is a ``collate`` to make a batch of them.
    """

    def __init__(
        self, rows: int, fetch: Callable[[Sequence[int] | Indices], Any], collate: Collate | None = None
    ) -> None:
        self.rows, self.collate = rows, collate
        self._fetch = fetch
        self._steps = 0  # batches so far that are compared
        self._watch = CollationWatch()

    def __call__(self, indices: Sequence[int] | Indices) -> Any:
        if not len(indices):
            return None
        if self.collate is None:
            return self._fetch(indices)
        return self._collated(self._records(indices))

    def drawn(self, indices: Sequence[int] | Indices, *, compared: bool = True) -> Drawn:
        """Return the batch of a step, with its pieces if it is compared and ``collate`` makes batches of records."""
        if not len(indices) or self.collate is None or self.collate is default_collate:
            return Drawn(self(indices))
        records = self._records(indices)
        if not compared:
            return Drawn(self._collated(records), collated=True)
        self._steps += 1
        singles = self._watch.singles(self._steps, records, self._collated)
        pieces = self._pieces(records) if is_due(self._steps) else None
        batch = self._collated(records)
        self._watch.refuse_other_numbers(singles, batch)
        return Drawn(batch, True, pieces, singles)

    def _pieces(self, records: list[Any]) -> Pieces:
        alone, halves = divide(self._steps, len(records))

        def batch_of(places: Iterable[int]) -> Any:
            return self._collated([own_copy(records[place]) for place in places])

        def pieces() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            return tuple(batch_of([place]) for place in alone), tuple(map(batch_of, halves))

        try:
            with Noticing() as draws:
                found = Pieces(*pieces())
            if draws.happened:
                with deterministic_draws():
                    found = Pieces(*pieces(), batch_of(range(len(records))))
        except CheckFailed:
            raise
        except Exception as error:  # whose message may quote the record
            raise CheckFailed(f"{COLLATE_FAILS} {origin(error, 'collate')}") from None
        return found

    def _records(self, indices: Sequence[int] | Indices) -> list[Any]:
        records = list(self._fetch(indices))
        self._watch.refuse_odd_records(records)
        return records

    def _collated(self, records: list[Any]) -> Any:
        assert self.collate is not None
        count = len(records)
        batch = self.collate(records)
        if number_of_examples(batch) != count:
            raise CheckFailed(OTHER_NUMBER)
        return batch

    def examples(self, indices: Sequence[int]) -> list[Any]:
        """The records as the data set holds them, not yet made into a batch."""
        return list(self._fetch(indices))

    def content(self, index: int) -> Any:
        """All that there is of a record, as a batch of its own."""
        return self([index])

    def part(self, rows: range) -> Reader:
        """A reader of some of the rows, numbered from 0."""
        if len(rows) == self.rows:
            return self
        fetch = self._fetch
        return Reader(len(rows), lambda indices: fetch([rows[int(i)] for i in indices]), self.collate)

    def each(
        self,
        drawn: Iterable[Indices],
        workers: int = 0,
        draws: Draws = nullcontext,
        *,
        compared: bool = True,
    ) -> Iterator[Drawn]:
        """Yield the drawn batches in order; ``workers`` processes read ahead, within ``draws``.

        Unless ``compared``, batches come without pieces.
        """
        if whole("workers", workers, at_least=0) == 0:
            return (self.drawn(indices, compared=compared) for indices in drawn)
        rows = _Rows(self, draws, compared)
        return iter(DataLoader(rows, batch_size=None, sampler=drawn, num_workers=workers, collate_fn=_same))


class _Rows(Dataset[Any]):
    """A data set in which an index is a whole batch, for the worker processes of a DataLoader."""

    def __init__(self, read: Reader, draws: Draws, compared: bool) -> None:
        self._read, self._draws, self._compared = read, draws, compared

    @withhold("the data set or collate")  # here, because torch passes on messages of other processes as texts
    def __getitem__(self, indices: Any) -> Any:
        with self._draws():
            return self._read.drawn(indices, compared=self._compared)


def _same(batch: Any) -> Any:
    return batch


def reader(dataset: Any, collate: Collate | None = None) -> Reader:
    """The reader of a data set. ``collate`` makes a batch of a list of examples, as in a DataLoader."""
    if isinstance(dataset, TensorDataset):
        dataset = tuple(dataset.tensors)
    if isinstance(dataset, torch.Tensor | np.ndarray | tuple | dict):
        return _columns(dataset)
    refuse_unreadable(dataset)
    return Reader(len(dataset), _fetcher(dataset), default_collate if collate is None else collate)


def _columns(columns: Any) -> Reader:
    tensors = rebuild(as_tensors(columns), torch.Tensor.detach)
    return Reader(
        number_of_examples(tensors),
        lambda indices: select(tensors, torch.from_numpy(np.array(indices, dtype=np.int64))),
    )


def as_tensors(columns: Any) -> Any:
    """Arrays as tensors. What holds several values and is neither is refused: every batch would see it whole."""
    if isinstance(columns, dict):
        return {name: as_tensors(column) for name, column in columns.items()}
    if type(columns) in (tuple, list) and any(map(_may_hold_columns, columns)):
        return type(columns)(as_tensors(column) for column in columns)
    if isinstance(columns, np.ndarray) and columns.dtype.kind in "fciub":
        return torch.from_numpy(columns)
    if hasattr(columns, "__len__") and not isinstance(columns, torch.Tensor | str | bytes):
        shown = f"{type(columns).__name__} beside tensors"
        remedy = (
            "must be tensors or arrays of numbers: torch.tensor(...), .to_numpy(); or give a list of records."
        )
        raise InvalidParameter("dataset", shown, remedy)
    return columns


def _may_hold_columns(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | dict | tuple | list)


def _fetcher(dataset: Any) -> Callable[[Sequence[int] | Indices], Any]:
    def fetch(indices: Sequence[int] | Indices) -> Any:
        numbers = [int(index) for index in indices]
        if hasattr(dataset, "__getitems__"):  # torch's own convention for reading many at once
            return dataset.__getitems__(numbers)
        return [dataset[number] for number in numbers]

    return fetch
