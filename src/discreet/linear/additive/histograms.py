"""Histograms of all columns by one joint release, at the edges of :mod:`~discreet.linear.additive.bin_edges`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.bin_edges import bin_edges, coarse, finer, settle_histogram
from discreet.linear.gate.column_blocks import Bins, ColumnSums
from discreet.linear.gate.records import Records
from discreet.linear.glm.marginals import BINS, from_release
from discreet.linear.row_views.coordinates import Marginals, Released
from discreet.trusted.queries import ROUNDING, Blocks
from discreet.trusted.spending import StagePermit

Array = NDArray[np.float64]

FEWEST_PIECES = 3
"""Pieces below which a curve is a line."""

_BINS_OF_A_PIECE = 4


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
        return pieces if pieces >= FEWEST_PIECES else 1


def as_histograms(released: Released, count: float) -> Histograms:
    """The histograms of a linear fit, which has 64 even bins for each column. Post-processing."""
    edges = np.arange(BINS + 1) / BINS
    clean = [settle_histogram(bins, edges, released.noise, count) for bins in released.bins]
    counts, resolution = tuple(bins for bins, _ in clean), tuple(found for _, found in clean)
    return Histograms((edges,) * len(counts), counts, released.noise, resolution)


def count_histograms(
    records: Records, zeros: tuple[float, ...], count: float, stage: StagePermit
) -> tuple[Histograms, Marginals]:
    """Histograms, and centre and scale of every column; ``zeros`` is where the number 0 is in each.

    The number of bins follows from released numbers.
    """
    columns = records.columns
    k, reach = columns.numerics, ROUNDING * math.sqrt(1.25 * columns.numerics + len(columns.groups))
    halved = finer(stage.noise_multiplier * reach, count)
    edges = tuple(bin_edges(zero, halved) for zero in zeros)
    starts = np.cumsum([0, *(len(found) - 1 for found in edges)])
    total = int(starts[-1])
    noisy, noise, _ = stage.ask(records, Blocks((Bins(edges), ColumnSums(columns)), reach))
    counts = tuple(np.split(noisy[:total], starts[1:-1])) if k else ()
    means = noisy[total:] / count
    means[:k] += 0.5
    known = list(zip(counts, edges, strict=True))
    even = np.array([coarse(*found, noise, halved) for found in known])
    added_up = noise * 2 ** (halved / 2)
    marginals = from_release(columns, even, means, np.empty(0), noise, count, added_up)
    released = Released(even, means[columns.categories] * count, added_up)
    clean = [settle_histogram(*found, noise, count) for found in known]
    histograms = Histograms(
        edges, tuple(numbers for numbers, _ in clean), noise, tuple(bins for _, bins in clean)
    )
    return histograms, marginals._replace(released=released)
