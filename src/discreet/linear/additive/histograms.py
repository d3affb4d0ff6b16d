"""Histograms of all columns by one joint release, at the edges of :mod:`~discreet.linear.additive.landmarks`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.landmarks import bin_edges, coarse, finer, settle_histogram
from discreet.linear.glm.marginals import Marginals, Released, from_release
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage
from discreet.linear.kernels.coefficients import compiled

Array = NDArray[np.float64]

_FEWEST_PIECES, _BINS_OF_A_PIECE = 3, 4
_GUIDES = 256
_ROUNDING = 1 + 1e-9  # what float sums of admitted rows can be off by


@dataclass(frozen=True, eq=False)
class Histograms:
    """The numbers of records in each bin of each numeric column, without what noise explains.

    ``noise`` was on every one of them. ``resolution`` is how many even bins of each column stand out of it.
    """

    edges: tuple[Array, ...]
    counts: tuple[Array, ...]
    noise: float
    resolution: tuple[int, ...] = ()

    def pieces(self, column: int, wanted: int) -> int:
        """As many pieces as wanted, or as few as the histogram can tell; 1 is a line."""
        pieces = min(wanted, self.resolution[column] // _BINS_OF_A_PIECE)
        return pieces if pieces >= _FEWEST_PIECES else 1


def count_histograms(
    records: Records, zeros: tuple[float, ...], count: float, stage: Stage
) -> tuple[Histograms, Marginals]:
    """Histograms, and centre and scale of every column; ``zeros`` is where the number 0 is in each.

    Guarantee: a record adds one 1 to the histogram and |x - 1/2| <= 1/2 to the sum of each numeric column, and its
    one-hot block of squared norm at most #groups. So the squared sensitivity is 5/4 #numerics + #groups. The number
    of bins follows from released numbers.
    """
    columns = records.columns
    k, reach = columns.numerics, _ROUNDING * math.sqrt(1.25 * columns.numerics + len(columns.groups))
    halved = finer(stage.noise_multiplier * reach, count)
    edges = tuple(bin_edges(zero, halved) for zero in zeros)
    starts = np.cumsum([0, *(len(found) - 1 for found in edges)])
    total = int(starts[-1])
    sums = Sums(stage, total + columns.width, reach)
    bins = Bins(edges)
    for x, _, weights in records.chunks():
        sums.add_total(bins.count(x, weights, sums.grid, total + columns.width))
        sums.add_rows(total, x[:, :k] - np.float32(0.5), weights)
        sums.add_rows(total + k, x[:, k:], weights)
    noisy = sums.release()
    counts = tuple(np.split(noisy[:total], starts[1:-1])) if k else ()
    means = noisy[total:] / count
    means[:k] += 0.5
    known = list(zip(counts, edges, strict=True))
    even = np.array([coarse(*found, sums.noise, halved) for found in known])
    added_up = sums.noise * 2 ** (halved / 2)
    marginals = from_release(columns, even, means, np.empty(0), sums.noise, count, added_up)
    released = Released(even, means[columns.categories] * count, added_up)
    clean = [settle_histogram(*found, sums.noise, count) for found in known]
    histograms = Histograms(
        edges, tuple(numbers for numbers, _ in clean), sums.noise, tuple(bins for _, bins in clean)
    )
    return histograms, marginals._replace(released=released)


class Bins:
    """In which bin every number of a row is; those beyond the edges are in the first and the last.

    A guide says of each of :data:`_GUIDES` even parts of [0, 1] with which bin it begins: few others are looked at.
    """

    def __init__(self, edges: tuple[Array, ...]) -> None:
        parts = np.arange(_GUIDES) / _GUIDES
        begins = [np.searchsorted(found, parts, side="right") - 1 for found in edges]
        lasts = [len(found) - 2 for found in edges]
        self._guides = np.array(
            [np.clip(one, 0, last) for one, last in zip(begins, lasts, strict=True)], np.int64
        ).reshape(-1, _GUIDES)
        self._edges = np.concatenate([np.empty(0), *edges])
        self._starts = np.cumsum([0, *(len(found) for found in edges)])

    def count(
        self, rows: NDArray[np.float32], weights: Array | None, grid: float, size: int
    ) -> NDArray[np.int64]:
        """The weights in every bin in whole steps of a grid, cut toward zero; ``size`` numbers, bins first."""
        counts = np.zeros(size, np.int64)
        steps = (np.ones(len(rows)) if weights is None else weights) * (1.0 / grid)
        _count(rows, self._edges, self._starts, self._guides, steps.astype(np.int64), counts)
        return counts


@compiled
def _count(
    rows: NDArray[np.float32],
    edges: Array,
    starts: NDArray[np.int64],
    guides: NDArray[np.int64],
    steps: NDArray[np.int64],
    counts: NDArray[np.int64],
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
