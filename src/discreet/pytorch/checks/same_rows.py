"""Comparison of data sets: of all processes, and of all calls of ``batches`` of one run."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from discreet.pytorch.batches import Reader, as_tensors
from discreet.pytorch.checks.collation import kind_of
from discreet.pytorch.checks.seeded_generators import seeded
from discreet.pytorch.distributed import Processes
from discreet.pytorch.per_example import tensors_of

_COMPARED = 8
_READ = 3
"""Times that each row is read, as some data sets draw from generators of their own."""


def refuse_other_rows(processes: Processes, read: Reader) -> None:
    """Raise in every process if a few rows, chosen at random, are not the same ones everywhere.

    A data set that each process has shuffled or split by itself has some records in several parts, where they
    count several times, and others in none. Rows that are read differently each time cannot be compared.
    """
    if processes.size == 1 or not read.rows:
        return
    numbers = [processes.let_first_decide(lambda: secrets.randbelow(read.rows)) for _ in range(_COMPARED)]
    digests = [{_digest(read, number) for _ in range(_READ)} for number in numbers]
    if not processes.most([max(map(len, digests)) > 1])[0]:
        processes.refuse_difference({"the rows of the data set": str(digests)})


def _digest(read: Reader, number: int) -> str:
    """Of what a row holds, as it is read after one and the same seed."""
    state = hashlib.sha256()
    with seeded():
        for tensor in tensors_of(read.content(number)):
            state.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def same_records(one: Any, other: Any) -> bool:
    """Return whether it is the same data set, or one with the same columns."""
    if one is other:
        return True
    one, other = (tuple(each.tensors) if isinstance(each, TensorDataset) else each for each in (one, other))
    if not isinstance(one, torch.Tensor | np.ndarray | tuple | dict) or kind_of(one) != kind_of(other):
        return False
    columns = zip(tensors_of(as_tensors(one)), tensors_of(as_tensors(other)), strict=True)
    return all(a.device == b.device and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in columns)
