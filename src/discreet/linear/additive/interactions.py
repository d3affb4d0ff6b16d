"""Grids of pairs of columns that act together: declared, or chosen by :mod:`~discreet.linear.additive.crossings`.

:func:`counted_cells` asks where the records are in the grid of each pair: cells without records get no column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.basis import Pair, between
from discreet.linear.additive.crossings import Places
from discreet.linear.additive.histograms import Histograms
from discreet.linear.additive.landmarks import chosen_knots
from discreet.linear.glm.marginals import Marginals
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

_ROUNDING = 1 + 1e-9


def counted_cells(
    records: Records,
    pairs: list[Places],
    histograms: Histograms,
    marginals: Marginals,
    side: int,
    count: float,
    stage: Stage,
) -> tuple[Pair, ...]:
    """The grids of these pairs, without the heaviest cell and those in which hardly anybody is.

    Guarantee: the products of a pair are not negative and sum to 1, so their norm is at most 1, and the squared
    sensitivity is the number of pairs.
    """
    grids = [_grid(histograms, marginals, pair, side) for pair in pairs]
    sizes = [len(grid.kept) for grid in grids]
    starts = np.cumsum([0, *sizes])
    sums = Sums(stage, int(starts[-1]), _ROUNDING * 1.0001 * math.sqrt(len(pairs)))
    for x, _, weights in records.chunks():
        for grid, start in zip(grids, starts.tolist(), strict=False):
            for cells, shares in _entries(grid, x):
                sums.add_signed(start + cells, shares if weights is None else shares * weights)
    noisy, noise = np.split(sums.released(), starts[1:-1]), sums.noise
    found = []
    for grid, numbers in zip(grids, noisy, strict=True):
        held = numbers > max(3 * noise, 0.001 * count)
        kept = np.flatnonzero(held & (np.arange(len(numbers)) != np.argmax(numbers)))
        if len(kept):
            shares = np.where(held, np.clip(numbers / count, 0, 1), 0.0)
            found.append(Pair(grid.columns, grid.knots, kept, shares))
    return tuple(found)


def _entries(grid: Pair, x: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.intp], Array]]:
    """The four cells of each row whose products are not zero, and these products."""
    (first_column, second_column), (across, up) = grid.columns, grid.knots
    (left, share), (below, portion) = between(x[:, first_column], across), between(x[:, second_column], up)
    for side, first in ((0, 1 - share), (1, share)):
        for upper, second in ((0, 1 - portion), (1, portion)):
            yield (left + side) * len(up) + below + upper, (first * second).astype(np.float64)


def _grid(histograms: Histograms, marginals: Marginals, pair: Places, side: int) -> Pair:
    knots = tuple(
        chosen_knots(
            histograms.counts[j],
            histograms.edges[j],
            histograms.pieces(j, side - 1),
            (float(marginals.lower[j]), float(marginals.upper[j])),
        )
        for j in pair
    )
    cells = len(knots[0]) * len(knots[1])
    return Pair(pair, (knots[0], knots[1]), np.arange(cells), np.zeros(cells))
