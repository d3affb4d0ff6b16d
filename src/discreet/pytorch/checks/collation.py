"""The check of a collation before training: does it let examples see each other?

Real rows are made into batches alone, in pairs and all together by the run's own reader, and their losses must not
change. The order within a batch may change, because sums do not depend on it. While a run trains, records of its
batches are compared as well: see :meth:`discreet.pytorch.batches.Reader.drawn`.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import CheckFailed
from discreet.pytorch.batches import Reader, own_copy, refuse_other_number, refuse_other_numbers, size_of
from discreet.pytorch.checks.deterministic_rng import deterministic_draws
from discreet.pytorch.checks.withheld import origin
from discreet.pytorch.per_example import Losses, rebuild
from discreet.pytorch.refusals import COLLATE_FAILS

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
    refuse_other_number(batch, len(rows))
    return batch


def _losses(model: nn.Module, losses: Losses, read: Reader, rows: list[Any]) -> Tensor:
    batch = _batch_of(read, rows)
    device = next(model.parameters()).device
    values: Tensor = losses(model, rebuild(batch, lambda tensor: tensor.to(device))).detach().double()
    return values
