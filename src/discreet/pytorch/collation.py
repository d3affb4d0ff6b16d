"""``collate`` must not let examples see each other: padding to the longest, cutting, packing, dropping.

Real rows are made into batches alone, in pairs and all together by the run's own reader, and the losses of each must
stay what they were. The order within a batch may change, because sums do not see it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.batches import Reader, refuse_other_number
from discreet.pytorch.checks.steady import steady_draws
from discreet.pytorch.examples import rebuilt
from discreet.pytorch.per_example import Losses

LOOKED_AT = 32  # rows, among which are the longest and the shortest to be tried
TRIED = 6
TOLERANCE = 1e-3


def refuse_mixing_collate(model: nn.Module, losses: Losses, read: Reader) -> None:
    """Raise :class:`CheckFailed` if a row's loss depends on the rows that are collated with it."""
    if read.collate is None or not read.rows:
        return
    rows = _telling(read)
    groups = [rows, *([rows[0], other] for other in rows[1:]), *([rows[1], other] for other in rows[2:4])]
    with steady_draws():
        alone = {id(row): _losses(model, losses, read, [row]) for row in rows}
        for group in groups:
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


def size_of(row: Any) -> int:
    """How much there is in a row: numbers, letters, entries."""
    if isinstance(row, Tensor):
        return row.numel()
    if isinstance(row, np.ndarray):
        return int(row.size)
    if isinstance(row, str | bytes):
        return len(row)
    if isinstance(row, Mapping):
        return sum(map(size_of, row.values()))
    if isinstance(row, list | tuple):
        return sum(map(size_of, row))
    return 1


def _losses(model: nn.Module, losses: Losses, read: Reader, rows: list[Any]) -> Tensor:
    assert read.collate is not None
    try:
        batch = read.collate(list(rows))
    except Exception as error:
        raise CheckFailed(
            "collate fails for a batch of a few records, and sampled batches may hold one only. Let it work for any "
            "number of records."
        ) from error
    refuse_other_number(batch, len(rows))
    device = next(model.parameters()).device
    values: Tensor = losses(model, rebuilt(batch, lambda tensor: tensor.to(device))).detach().double()
    return values
