"""Checks of a collation before and during training: the batches that it makes must not mix records.

Before training, real rows are made into batches alone, in pairs and all together by the run's own reader, and their
losses must not change. The order within a batch may change, because sums do not depend on it. While a run trains,
:class:`CollationWatch` looks at the records of its batches.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.generators import Draws
from discreet.pytorch.checks.single_examples import FIRST_STEPS, Collated, chosen_places
from discreet.pytorch.checks.withheld import origin
from discreet.pytorch.per_example import Losses, number_of_examples, rebuild
from discreet.pytorch.refusals import COLLATE_FAILS, COLLATED_NUMBERS, ODD_RECORDS, OTHER_NUMBER

if TYPE_CHECKING:
    from discreet.pytorch.batches import Reader

LOOKED_AT = 32
"""Rows that are read; the longest and the shortest of them are tried."""
TRIED = 6
TOLERANCE = 1e-3


def refuse_mixing_collate(model: nn.Module, losses: Losses, read: Reader) -> None:
    """Raise :class:`CheckFailed` if a row's loss depends on the rows that are collated with it."""
    if read.collate is None or not read.rows:
        return
    rows = _telling(read)
    groups = [rows, *([rows[0], other] for other in rows[1:]), *([rows[1], other] for other in rows[2:4])]
    with deterministic_draws():
        alone = {id(row): _losses(model, losses, read, [row]) for row in rows}
        for group in groups:
            refuse_other_numbers(_batch_of(read, group[:1]), _batch_of(read, group))
            together = _losses(model, losses, read, group).sort().values
            apart = torch.cat([alone[id(row)] for row in group]).sort().values
            if not torch.allclose(together, apart, rtol=TOLERANCE, atol=1e-5, equal_nan=True):
                raise CheckFailed(
                    "The loss of a record depends on the records with which collate puts it into a batch, for "
                    "instance because the mean goes over positions that were added to make it as long as the "
                    "longest. Let collate treat each record by itself, and mask in losses what was added."
                )


def _telling(read: Reader) -> list[Any]:
    """The longest row, the shortest, and some others."""
    numbers = secrets.SystemRandom().sample(range(read.rows), min(read.rows, LOOKED_AT))
    rows = sorted(read.examples(numbers), key=size_of)
    others = rows[1:-1][:: max(1, len(rows) // TRIED)]
    return [rows[-1], rows[0], *others] if len(rows) > 1 else rows * 2


def _batch_of(read: Reader, rows: list[Any]) -> Any:
    assert read.collate is not None
    try:
        batch = read.collate([own_copy(row) for row in rows])
    except Exception as error:
        raise CheckFailed(f"{COLLATE_FAILS} {origin(error, 'collate')}") from None
    if number_of_examples(batch) != len(rows):
        raise CheckFailed(OTHER_NUMBER)
    return batch


def _losses(model: nn.Module, losses: Losses, read: Reader, rows: list[Any]) -> Tensor:
    batch = _batch_of(read, rows)
    device = next(model.parameters()).device
    values: Tensor = losses(model, rebuild(batch, lambda tensor: tensor.to(device))).detach().double()
    return values


class CollationWatch:
    """Looks at the records of each step and at what ``collate`` makes of a few of them alone.

    The guarantee does not rest on it: sums are compared with those of pieces that were collated by themselves.
    """

    def __init__(self) -> None:
        self._uneven = 0  # batches so far in which records of different sizes met

    def refuse_odd_records(self, records: Sequence[Any]) -> None:
        """Raise unless all records have the same names and types."""
        refuse_odd_records(records)

    def singles(self, step: int, records: list[Any], collate: Callable[[list[Any]], Any]) -> Collated | None:
        """Return some records alone, chosen by the operating system's randomness; None if ``collate`` draws.

        Where records of different sizes meet for one of the first times, the shortest and the longest are among them.
        """
        sizes = [size_of(record) for record in records]
        self._uneven += min(sizes) != max(sizes)
        uneven = min(sizes) != max(sizes) and self._uneven <= FIRST_STEPS
        places = chosen_places(step, len(records))
        if uneven:
            places = tuple(dict.fromkeys((sizes.index(min(sizes)), sizes.index(max(sizes)), *places)))
        try:
            with Draws() as draws:
                alone = tuple(collate([own_copy(records[place])]) for place in places)
        except CheckFailed:
            raise
        except Exception as error:  # whose message may quote the record
            raise CheckFailed(f"{COLLATE_FAILS} {origin(error, 'collate')}") from None
        return None if draws.happened else Collated(places, alone, uneven)

    def refuse_other_numbers(self, singles: Collated | None, batch: Any) -> None:
        """Raise if plain numbers of a batch are other ones where a record is collated alone."""
        for one in () if singles is None else singles.alone:
            refuse_other_numbers(one, batch)


def refuse_odd_records(records: Sequence[Any]) -> None:
    """Raise unless all records have the same names and types.

    Where they have not, a collation often takes the first one for all: an integer among fractions rounds them, a
    record without a mask takes it from everybody. Then one record decides about others, which no clip norm bounds.
    """
    kinds = {kind_of(record) for record in records}
    if len(kinds) > 1:
        raise CheckFailed(ODD_RECORDS)


def kind_of(value: Any) -> Hashable:
    """Names and types of a record, whatever the lengths of its lists."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value), value.dtype
    if isinstance(value, Mapping):
        return type(value), frozenset((name, kind_of(cell)) for name, cell in value.items())
    if isinstance(value, tuple):
        return type(value), tuple(map(kind_of, value))
    if isinstance(value, list):
        return list, frozenset(map(kind_of, value))
    return type(value).__qualname__


def refuse_other_numbers(alone: Any, batch: Any) -> None:
    """Refuse plain numbers in a batch that are other ones where a record is collated alone.

    A number that counts or measures the records of a batch is one that every example can see.
    """
    if numbers_in(alone, 1) != numbers_in(batch, number_of_examples(batch)):
        raise CheckFailed(COLLATED_NUMBERS)


def numbers_in(batch: Any, count: int) -> list[str]:
    """The plain numbers of a batch with their places; a list that holds one for each of ``count`` examples is none.

    >>> numbers_in({"x": torch.zeros(2), "scale": 0.5, "lengths": [3, 4]}, 2)
    ["['scale'] = 0.5"]
    """
    if isinstance(batch, Mapping):
        pairs: Iterable[tuple[Any, Any]] = batch.items()
    elif isinstance(batch, list | tuple):
        each = len(batch) == count and all(_is_number(value) for value in batch)
        pairs = () if each else enumerate(batch)
    else:
        return [f" = {batch!r}"] if _is_number(batch) else []
    return [f"[{key!r}]{rest}" for key, value in pairs for rest in numbers_in(value, count)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex | np.generic) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    )


def own_copy(record: Any) -> Any:
    """A record of which ``collate`` may take away or lengthen entries without changing the one of the data set."""
    return copy.copy(record) if isinstance(record, Mapping | list) else record


def size_of(row: Any) -> int:
    """Return the size of a row: numbers, letters, entries."""
    if isinstance(row, torch.Tensor | np.ndarray):
        return math.prod(row.shape)
    if isinstance(row, str | bytes):
        return len(row)
    parts = row.values() if isinstance(row, Mapping) else row if isinstance(row, list | tuple) else None
    return 1 if parts is None else sum(map(size_of, parts))
