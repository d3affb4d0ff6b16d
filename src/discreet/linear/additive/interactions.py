"""Which pairs of columns act together? Chosen privately, from what curves alone leave of the target.

Two releases, the second about what the first proposes.

*Crossings.* Cells of two columns hide an effect that runs across a narrow band of records, as that of longitude and
latitude does. So every pair is asked for its crossings: with u and v for the ranks of the two values, by the released
histograms, the products uv, u^2 v and u v^2 without what cubic curves could say of them, and of variance 1 each, if u
and v go together as a Gaussian copula of the pair's noisy rank correlation. The pairs whose crossings go with the
residuals most are proposed, each column once.

*Cells.* Records do not follow a copula, and what a short descent has not learned of two curves looks like a crossing
then. So records are counted, and residuals summed, in 6 by 6 cells of the few pairs that were proposed; what any
two curves could say of the cells is taken out, however records are spread. A pair is taken if noise and chance do not
explain the rest: where nothing but curves is to be found, with a chance of at most :data:`FALSE_ALARMS` for all pairs
together, and if it explains enough.

>>> np.abs(crossing_weights(0.0)[7:]).round(1).max(axis=0).tolist()
[1.1, 1.1, 1.0]
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2

from discreet.linear.additive.bin_edges import choose_knots
from discreet.linear.additive.histograms import Histograms
from discreet.linear.gate.records import Records
from discreet.linear.kernels.rank_crossings import CROSSINGS
from discreet.linear.row_views.column_views import (
    COUNTED,
    SHARES,
    SIDE,
    SQUARES,
    WIDEST,
    Crossings,
    HatCells,
    PairCells,
    Places,
    RankProducts,
    Ranks,
    Residual,
)
from discreet.linear.row_views.coordinates import Marginals
from discreet.linear.row_views.curve_bases import Pair
from discreet.trusted.queries import ROUNDING, Blocks, Cells, Rows
from discreet.trusted.spending import StagePermit

Array = NDArray[np.float64]

FALSE_ALARMS = 0.01
"""The chance that any pair is taken of a table in which there is nothing but curves, noise and chance."""

_FARTHEST = 0.97  # correlation from which on two columns are taken for the same
_FLATTEST = 1e-3  # variance of a crossing below which it is not stretched
_SEEN = 3.0  # standard deviations of noise from which on records are believed to be in a cell
_SUREST = 0.01  # p (1 - p) of a cell of two classes, at least
_WORTH = 0.01  # of what the curves leave: a pair that explains less is not worth its columns
_WORTH_OF_CLASSES = (
    0.02  # the same, and more than very steep curves that are not learned yet leave behind a link
)
_UNLEARNED = 4.0  # of what two curves explain of cells of sure classes: as much may look like a pair
_WANTED = 0.05  # of it: a pair that explains as much should be proposed, or none is looked for
_UNCLIPPED = 0.5  # of a squared sum of rows, after each of them was clipped
_REACH = ROUNDING * math.sqrt(1 + SQUARES**2)
_NODES = 24
_GAUSS = np.polynomial.hermite_e.hermegauss(_NODES)


def can_find(pairs: int, signal: float) -> bool:
    """Whether a pair that explains enough would be found; ``signal`` is all records times the stage's strength."""
    if pairs < 1:
        return False
    seen = (signal / _REACH) ** 2 * _WANTED * _UNCLIPPED / (CROSSINGS * pairs)
    return bool(seen > chi2.isf(FALSE_ALARMS / pairs, CROSSINGS))


def ranks_of(histograms: Histograms) -> Ranks:
    """The rank of every value of a column, by its released histogram."""
    found = []
    for counts in histograms.counts:
        mass = counts + 1e-9
        middle = (np.cumsum(mass) - mass / 2) / mass.sum()
        found.append(WIDEST * (2 * middle - 1))
    return Ranks(histograms.edges, tuple(found))


def rank_correlations(
    records: Records, pairs: list[Places], ranks: Ranks, count: float, stage: StagePermit
) -> Array:
    """The noisy rank correlation of each pair: each record adds a third of the product of two ranks."""
    products = Cells(RankProducts(ranks, tuple(pairs)), (1,) * len(pairs), (1.0,) * len(pairs))
    noisy = stage.ask(records, Blocks((products,), ROUNDING * math.sqrt(len(pairs)))).value
    return np.clip(WIDEST**2 * noisy / count, -_FARTHEST, _FARTHEST)


def crossing_weights(correlation: float) -> Array:
    """The coefficients of 1, u, v, u^2, v^2, u^3, v^3, uv, u^2 v, u v^2 in three crossings of variance 1.

    They are not correlated with one another, nor with the powers, under a Gaussian copula of this rank correlation.
    """
    nodes, weights = _GAUSS
    along = 2 * math.sin(math.pi * correlation / 6)
    first, second = np.repeat(nodes, _NODES), np.tile(nodes, _NODES)
    second = along * first + math.sqrt(1 - along**2) * second
    u, v = (WIDEST * (2 * ndtr(z) - 1) for z in (first, second))
    roots = np.sqrt(np.outer(weights, weights).ravel() / weights.sum() ** 2)[:, None]
    powers, products = np.split(_powers_and_products(u, v), [7], axis=1)
    powers, products = powers * roots, products * roots
    explained = np.linalg.solve(powers.T @ powers, powers.T @ products)
    left = products - powers @ explained
    values, vectors = np.linalg.eigh(left.T @ left)
    turn = vectors / np.sqrt(np.maximum(values, _FLATTEST))
    return np.vstack([-explained @ turn, turn])


def propose_pairs(
    records: Records,
    pairs: list[Places],
    correlations: Array,
    ranks: Ranks,
    residual: Residual,
    most: int,
    stage: StagePermit,
) -> list[Places]:
    """At most so many pairs, each column once, whose crossings go with the residuals most; these are typically 1."""
    turns = [crossing_weights(float(one)) for one in correlations]
    weights = np.array(turns) / math.sqrt(CROSSINGS * len(pairs))  # so that a typical row has norm 1
    view = Crossings(ranks, tuple(pairs), weights, residual)
    query = Blocks((Rows(view, view.size, _REACH / math.sqrt(ROUNDING)),), _REACH)
    noisy, noise, _ = stage.ask(records, query)
    rows, squares = np.split(noisy, [CROSSINGS * len(pairs)])
    variances = noise**2 + np.maximum(squares / SQUARES, 0.0)
    lengths = np.sum(rows.reshape(-1, CROSSINGS) ** 2, axis=1)
    return _apart([pairs[place] for place in np.argsort(-lengths / variances)], most)


def _apart(pairs: list[Places], most: int) -> list[Places]:
    """The first pairs of which none has a column of another."""
    found: list[Places] = []
    for pair in pairs:
        if len(found) < most and not any(column in other for other in found for column in pair):
            found.append(pair)
    return found


def confirm_pairs(
    records: Records, pairs: list[Places], ranks: Ranks, residual: Residual, linked: bool, stage: StagePermit
) -> list[Places]:
    """Those that noise and chance do not explain, the most telling first; residuals are clamped to [-1, 1].

    ``linked`` if they are those of two classes: then curves move them the less, the surer a class is.
    """
    reach = ROUNDING * math.sqrt(len(pairs) * (1 + COUNTED**2 + SQUARES**2))
    view = PairCells(ranks, tuple(pairs), residual)
    cells = Cells(view, (SIDE**2,) * 3 * len(pairs), (COUNTED, 1.0, SQUARES) * len(pairs))
    query = Blocks((cells,), reach)
    noisy, noise, _ = stage.ask(records, query)
    parts = noisy.reshape(len(pairs), 3, SIDE**2)
    told = [_telling(n / COUNTED, r, q / SQUARES, noise, linked) for n, r, q in parts]
    limit = FALSE_ALARMS / len(pairs)
    clear = [(worth, pair) for (chance, worth), pair in zip(told, pairs, strict=True) if chance < limit]
    least = _WORTH_OF_CLASSES if linked else _WORTH
    return [pair for worth, pair in sorted(clear, reverse=True) if worth > least]


def _telling(
    counts: Array, totals: Array, squares: Array, noise: float, linked: bool = False
) -> tuple[float, float]:
    """How likely chance and noise leave so much beside two curves, and its share of the squares. Post-processing.

    Cells whose number is not clearly above its noise do not count. With a link, p (1 - p) is not the same all over a
    cell: it changes with a score by 1 - 2p times itself. So what curves have not learned is weighed otherwise in
    every cell and looks like a pair, the more the surer classes are; a share of what curves explain is taken off.
    """
    seen = counts > _SEEN * noise / COUNTED
    number = np.where(seen, counts, 1.0)
    means = np.where(seen, totals / number, 0.0)
    variance = (noise**2 * (1 + (means / COUNTED) ** 2) + np.maximum(squares, 0.0)) / number**2
    roots = np.where(seen, 1 / np.sqrt(variance), 0.0)
    rows, columns = np.divmod(np.arange(len(counts)), SIDE)
    design = np.hstack([np.eye(SIDE)[rows], np.eye(SIDE)[columns]]) * roots[:, None]
    if linked:  # p (1 - p) is the mean square of a residual, and what a score moves it by
        design *= np.maximum(np.where(seen, squares / number, 0.0), _SUREST)[:, None]
    fitted, _, rank, _ = np.linalg.lstsq(design, means * roots, rcond=1e-9)
    freedom = int(seen.sum()) - int(rank)
    if freedom < 1:
        return 1.0, 0.0
    explained = design @ fitted
    left = means * roots - explained
    weights = np.where(seen, number * variance, 0.0)
    excess = float(weights @ (left**2 - freedom / seen.sum()))
    total = max(float(squares[seen].sum()), noise)
    if linked:
        sure = max(1 - 4 * total / float(number[seen].sum()), 0.0)
        excess -= _UNLEARNED * sure * float(weights @ explained**2)
    return float(chi2.sf(left @ left, freedom)), excess / total


def _powers_and_products(u: Array, v: Array) -> Array:
    return np.stack([np.ones(len(u)), u, v, u**2, v**2, u**3, v**3, u * v, u**2 * v, u * v**2], axis=1)


def count_cells(
    records: Records,
    pairs: list[Places],
    histograms: Histograms,
    marginals: Marginals,
    side: int,
    count: float,
    stage: StagePermit,
) -> tuple[Pair, ...]:
    """The grids of these pairs, without the heaviest cell and those in which hardly anybody is."""
    grids = [_grid(histograms, marginals, pair, side) for pair in pairs]
    view = HatCells(tuple((grid.columns, grid.knots) for grid in grids))
    cells = Cells(view, view.sizes, (SHARES,) * len(pairs))
    query = Blocks((cells,), ROUNDING * SHARES * math.sqrt(len(pairs)))
    noisy, noise, _ = stage.ask(records, query)
    found = []
    for grid, numbers in zip(grids, np.split(noisy, np.cumsum(view.sizes)[:-1]), strict=True):
        held = numbers > max(3 * noise, 0.001 * count)
        kept = np.flatnonzero(held & (np.arange(len(numbers)) != np.argmax(numbers)))
        if len(kept):
            shares = np.where(held, np.clip(numbers / count, 0, 1), 0.0)
            found.append(Pair(grid.columns, grid.knots, kept, shares))
    return tuple(found)


def _grid(histograms: Histograms, marginals: Marginals, pair: Places, side: int) -> Pair:
    knots = tuple(
        choose_knots(
            histograms.counts[j],
            histograms.edges[j],
            histograms.pieces(j, side - 1),
            (float(marginals.lower[j]), float(marginals.upper[j])),
        )
        for j in pair
    )
    cells = len(knots[0]) * len(knots[1])
    return Pair(pair, (knots[0], knots[1]), np.arange(cells), np.zeros(cells))
