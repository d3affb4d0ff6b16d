"""Examples for the privacy type-check: made up of the columns of a batch, and changed one way or another.

>>> tried = made_up({"x": torch.ones(9, 2), "label": torch.tensor([0, 1, 0] * 3)}, count=4)
>>> tried["x"][:, 0]
tensor([0.6000, 0.7333, 0.8667, 1.0000])
>>> {-100, -1} <= {int(other["label"][-1]) for other in with_others_changed(tried)}
True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from discreet.pytorch.examples import number_of_examples, rebuilt, tensors_of

EXAMPLES = 4
"""So few are enough where gradients or single losses are compared."""


def made_up(batch: Any, count: int) -> Any:
    """Examples whose columns come from different records at random, scaled so that no two are alike."""

    def column(tensor: Tensor) -> Tensor:
        rows = tensor.detach()[torch.randint(len(tensor), (count,), device=tensor.device)]
        return _scaled(rows) if rows.is_floating_point() else rows

    return rebuilt(batch, column)


def with_others_changed(examples: Any) -> Iterator[Any]:
    """Batches that agree with ``examples`` in the first example only.

    Columns get values that these records may not have, because the weight of a rare class shows only if the
    class occurs, and the care for huge numbers and NaN only if they do.
    """
    yield rebuilt(examples, _others_changed)
    for place, column in enumerate(tensors_of(examples)):
        for value in (*_whole_numbers(column), *_extremes(column)):
            yield _with_column_set(examples, place, value)


def all_changed(examples: Any) -> Any:
    """Other examples of the same shape."""
    return rebuilt(
        examples, lambda column: _changed_except(column, torch.zeros(len(column), dtype=torch.bool))
    )


def with_half_changed(examples: Any) -> Iterator[tuple[Tensor, Any]]:
    """A random half of the examples, and a batch that agrees with ``examples`` there only; then the other half."""
    order = torch.randperm(number_of_examples(examples))
    for kept in order.tensor_split(2):
        stays = torch.zeros(len(order), dtype=torch.bool)
        stays[kept] = True
        yield kept, rebuilt(examples, partial(_changed_except, stays=stays))


def _scaled(rows: Tensor) -> Tensor:
    """Rows shrunk by different factors, which keeps them within whatever range they have."""
    factors = torch.linspace(0.6, 1.0, len(rows), dtype=rows.dtype, device=rows.device)
    return rows.nan_to_num(0.0, 0.0, 0.0) * factors.view(-1, *[1] * (rows.ndim - 1))


def _others_changed(column: Tensor) -> Tensor:
    return _changed_except(column, torch.arange(len(column)) == 0)


def _changed_except(column: Tensor, stays: Tensor) -> Tensor:
    """Numbers become smaller, and whole numbers those of the example before."""
    if column.is_floating_point():
        other = column / 2
    else:
        before = column.roll(1, 0)
        other = before.flip(-1) if column.ndim > 1 else before
    shape = (-1, *[1] * (column.ndim - 1))
    return torch.where(stays.to(column.device).view(shape), column, other)


def _with_column_set(examples: Any, place: int, value: float) -> Any:
    places = itertools.count()

    def change(column: Tensor) -> Tensor:
        if next(places) != place:
            return column
        changed = column.clone()
        changed[1:] = value
        return changed

    return rebuilt(examples, change)


def _whole_numbers(column: Tensor) -> list[int]:
    """Values to try in a column of classes or words. Beyond those that occur only where an error is harmless."""
    if column.is_floating_point() or column.dtype == torch.bool or not column.numel():
        return []
    low, high = int(column.min()), int(column.max())
    inside = [low + (high - low) * part // 4 for part in range(5)]
    outside = [-100, -1, *(range(16) if column.ndim == 1 else ()), high + 1]
    return sorted({*inside, *(outside if column.device.type == "cpu" else ())})


def _extremes(column: Tensor) -> list[float]:
    """Numbers that few records have and that losses may treat in a way of its own."""
    if not column.is_floating_point() or column.device.type != "cpu":
        return []
    return [math.nan, 1e6, -1e6] if column.dtype.itemsize >= 4 else [math.nan]
