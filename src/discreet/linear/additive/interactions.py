"""Pairs of columns whose effects do not just add up: chosen privately, or declared.

:func:`chosen_pairs` counts records and sums their targets in 4 by 4 cells of every pair, all in one noisy release.
A pair is taken if its cells are too far off the best sum of two curves for noise and chance to explain it. The choice
is post-processing. :func:`counted_cells` then asks where the records are in the finer grid of the pairs that were
taken, so that cells without records get no column.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from discreet.linear.additive.basis import Pair, products
from discreet.linear.additive.histograms import Histograms
from discreet.linear.additive.landmarks import chosen_knots
from discreet.linear.glm.marginals import Marginals
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage
from discreet.linear.losses import Loss

Array = NDArray[np.float64]
Places = tuple[int, int]

FALSE_ALARMS = 0.01
"""The chance that any pair is taken of a table in which there is nothing but noise."""

_SIDE = 4  # cells of a pair, each way
_WORTH = 0.005  # of the variance of the target: a pair that explains less is not worth its columns
_COUNTED_WITH = 0.5  # weight of a count beside a target in [-1, 1]
_ROUNDING = 1 + 1e-9


def candidates(columns: list[int]) -> list[Places]:
    """All pairs of these columns."""
    return list(combinations(columns, 2))


def noise_of_cells(pairs: int, stage_strength: float) -> float:
    """The noise on the number of records in a cell, if so many pairs are asked for."""
    return math.sqrt(pairs * (1 + _COUNTED_WITH**2)) / _COUNTED_WITH / stage_strength


def chosen_pairs(
    records: Records,
    pairs: list[Places],
    histograms: Histograms,
    bounds: tuple[float, float],
    most: int,
    stage: Stage,
) -> list[Places]:
    """At most so many pairs, the most telling first.

    Guarantee: in each pair a record adds 1/2 to the number of one cell and a target in [-1, 1] to its sum, so the
    squared sensitivity is 5/4 for each pair.
    """
    cells = _SIDE * _SIDE
    sums = Sums(stage, 2 * cells * len(pairs), _ROUNDING * math.sqrt(len(pairs) * (1 + _COUNTED_WITH**2)))
    cuts = [_quarters(histograms, j) for j in range(len(histograms.edges))]
    for x, y, weights in records.chunks():
        codes = [np.searchsorted(cut, x[:, j], side="right") for j, cut in enumerate(cuts)]
        target = _between(records.loss, y, bounds)
        own = target if weights is None else target * weights
        for place, (a, b) in enumerate(pairs):
            cell = 2 * cells * place + codes[a] * _SIDE + codes[b]
            sums.add_ones(cell, weights, _COUNTED_WITH)
            sums.add_signed(cell + cells, own)
    noisy = sums.released().reshape(len(pairs), 2, cells)
    limit = float(chi2.isf(FALSE_ALARMS / len(pairs), (_SIDE - 1) ** 2))
    noise = sums.noise
    told = [_telling(counts / _COUNTED_WITH, totals, noise) for counts, totals in noisy]
    clear = [(worth, pair) for (test, worth), pair in zip(told, pairs, strict=True) if test > limit]
    return [pair for worth, pair in sorted(clear, reverse=True) if worth > _WORTH][:most]


def _telling(counts: Array, totals: Array, noise: float) -> tuple[float, float]:
    """A chi-square of what two curves leave unsaid, and its share of the target's variance. Post-processing.

    Cells whose number is not clearly above its noise do not count.
    """
    seen = counts > 4 * noise / _COUNTED_WITH
    if seen.sum() <= 2 * _SIDE:
        return 0.0, 0.0
    number = np.where(seen, counts, 1.0)
    means = np.clip(np.where(seen, totals / number, 0.0), -1, 1)
    chance = number * np.maximum(1 - means**2, 0.05)  # at most so much variance has a target in [-1, 1]
    variance = (noise**2 * (1 + (means / _COUNTED_WITH) ** 2) + chance) / number**2
    weights = np.where(seen, 1 / variance, 0.0)
    rows, columns = np.divmod(np.arange(len(counts)), _SIDE)
    design = np.hstack([np.eye(_SIDE)[rows], np.eye(_SIDE)[columns]])
    roots = np.sqrt(weights)
    fitted, *_ = np.linalg.lstsq(design * roots[:, None], means * roots, rcond=None)
    left = means - design @ fitted
    freedom = max(int(seen.sum()) - 2 * _SIDE + 1, 1)
    test = float(weights @ left**2) * (_SIDE - 1) ** 2 / freedom
    excess = float(np.where(seen, number * (left**2 - variance), 0.0).sum())
    spread = float(np.where(seen, number * (1 - means**2), 0.0).sum())
    return test, excess / max(spread, 1.0)


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
            sums.add_rows(start, products(grid, x), weights)
    noisy, noise = np.split(sums.released(), starts[1:-1]), sums.noise
    found = []
    for grid, numbers in zip(grids, noisy, strict=True):
        held = numbers > max(3 * noise, 0.001 * count)
        kept = np.flatnonzero(held & (np.arange(len(numbers)) != np.argmax(numbers)))
        if len(kept):
            shares = np.where(held, np.clip(numbers / count, 0, 1), 0.0)
            found.append(Pair(grid.columns, grid.knots, kept, shares))
    return tuple(found)


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


def _quarters(histograms: Histograms, column: int) -> Array:
    """Three cuts between four parts of a column with about as many records."""
    counts, edges = histograms.counts[column], histograms.edges[column]
    mass = counts + 1e-9
    shares = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
    return np.interp(np.arange(1, _SIDE) / _SIDE, shares, edges)


def _between(loss: Loss, y: Array, bounds: tuple[float, float]) -> Any:
    """The target as a number in [-1, 1]."""
    if loss.kind == "classes":
        return 2.0 * y - 1
    if loss.kind == "counts":
        return 2 * np.log1p(np.clip(y, 0, bounds[1])) / math.log1p(bounds[1]) - 1
    return np.clip(2 * (y - bounds[0]) / (bounds[1] - bounds[0]) - 1, -1, 1)
