"""Counts of numbers between increasing edges, for several columns in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import compiled

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_GUIDES = 256


class Edges(NamedTuple):
    """All edges, where those of each column start, and with which bin each even part of [0, 1] begins."""

    edges: Array
    starts: Integers
    guides: Integers

    @classmethod
    def of(cls, edges: Sequence[Array]) -> Edges:
        parts = np.arange(_GUIDES) / _GUIDES
        begins = [np.searchsorted(found, parts, side="right") - 1 for found in edges]
        lasts = [len(found) - 2 for found in edges]
        guides = np.array(
            [np.clip(one, 0, last) for one, last in zip(begins, lasts, strict=True)], np.int64
        ).reshape(-1, _GUIDES)
        starts = np.cumsum([0, *(len(found) for found in edges)])
        return cls(np.concatenate([np.empty(0), *edges]), starts, guides)


def count_between(rows: NDArray[np.float32], edges: Edges, steps: Integers, counts: Integers) -> None:
    """Add its steps to the bin of each of its first numbers, for each row; the outer bins have no end."""
    _count(rows, *edges, steps, counts)


@compiled
def _count(
    rows: NDArray[np.float32],
    edges: Array,
    starts: Integers,
    guides: Integers,
    steps: Integers,
    counts: Integers,
) -> None:
    """Row after row; column j has one edge more than bins, so its bins begin j places before its edges."""
    for i in range(len(rows)):
        for j in range(guides.shape[0]):
            value, first = np.float64(rows[i, j]), starts[j]
            place = min(max(int(value * _GUIDES), 0), _GUIDES - 1)
            found, last = guides[j, place], starts[j + 1] - first - 2
            while found < last and edges[first + found + 1] <= value:
                found += 1
            counts[first - j + found] += steps[i]
