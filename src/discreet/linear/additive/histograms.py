"""Histograms of all columns by one joint release, at the edges of :mod:`~discreet.linear.additive.landmarks`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.landmarks import bin_edges, coarse, finer, settled
from discreet.linear.glm.marginals import Marginals, Released, from_release
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage
from discreet.linear.kernels.coefficients import compiled

Array = NDArray[np.float64]

_FEWEST_PIECES, _BINS_OF_A_PIECE = 3, 4
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


def counted(
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
    for x, _, weights in records.chunks():
        for j, found in enumerate(edges):
            cells = np.empty(len(x), np.int64)
            find_bins(x, j, found, int(starts[j]), cells)
            sums.add_ones(cells, weights)
        sums.add_rows(total, x[:, :k] - np.float32(0.5), weights)
        sums.add_rows(total + k, x[:, k:], weights)
    noisy = sums.released()
    counts = tuple(np.split(noisy[:total], starts[1:-1])) if k else ()
    means = noisy[total:] / count
    means[:k] += 0.5
    known = list(zip(counts, edges, strict=True))
    even = np.array([coarse(*found, sums.noise, halved) for found in known])
    added_up = sums.noise * 2 ** (halved / 2)
    marginals = from_release(columns, even, means, np.empty(0), sums.noise, count, added_up)
    released = Released(even, means[columns.categories] * count, added_up)
    clean = [settled(*found, sums.noise, count) for found in known]
    histograms = Histograms(
        edges, tuple(numbers for numbers, _ in clean), sums.noise, tuple(bins for _, bins in clean)
    )
    return histograms, marginals._replace(released=released)


@compiled
def find_bins(
    rows: NDArray[np.float32], column: int, edges: Array, first: int, cells: NDArray[np.int64]
) -> None:
    """``first`` and the bin between edges of each number of a column; those beyond are in the first and the last."""
    for i in range(len(rows)):
        value, low, high = np.float64(rows[i, column]), 0, edges.size - 1
        while high - low > 1:
            middle = (low + high) // 2
            if edges[middle] <= value:
                low = middle
            else:
                high = middle
        cells[i] = first + low
