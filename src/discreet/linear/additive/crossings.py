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

>>> np.abs(crossing_weights(0.0)[7:]).round(2).max(axis=0).tolist()
[1.11, 1.11, 1.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2

from discreet.core.clipping import clip_rows
from discreet.linear.additive.basis import Pair, between
from discreet.linear.additive.histograms import Histograms
from discreet.linear.additive.landmarks import choose_knots
from discreet.linear.glm.marginals import Marginals
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage
from discreet.linear.kernels.coefficients import compiled

Array = NDArray[np.float64]
Places = tuple[int, int]
Residuals = Callable[[NDArray[np.float32], Array], Array]

FALSE_ALARMS = 0.01
"""The chance that any pair is taken of a table in which there is nothing but curves, noise and chance."""

_SIZE, _SIDE = 3, 6  # crossings of a pair, and its cells, each way
_COUNTED, _SQUARES = 0.5, 0.25  # weights of a count and of a square beside what is summed
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
_ROUNDING = 1 + 1e-9
_REACH = _ROUNDING * math.sqrt(1 + _SQUARES**2)
_BLOCK = 2**17  # rows times pairs that are looked at at once
_WIDEST = math.sqrt(3.0)  # of a rank of variance 1
_NODES = 24
_GAUSS = np.polynomial.hermite_e.hermegauss(_NODES)


def can_find(pairs: int, signal: float) -> bool:
    """Whether a pair that explains enough would be found; ``signal`` is all records times the stage's strength."""
    if pairs < 1:
        return False
    seen = (signal / _REACH) ** 2 * _WANTED * _UNCLIPPED / (_SIZE * pairs)
    return bool(seen > chi2.isf(FALSE_ALARMS / pairs, _SIZE))


class Ranks:
    """The rank of every value of a column, from -sqrt 3 to sqrt 3, by its released histogram."""

    def __init__(self, histograms: Histograms) -> None:
        self._edges, self._ranks = histograms.edges, []
        for counts in histograms.counts:
            mass = counts + 1e-9
            middle = (np.cumsum(mass) - mass / 2) / mass.sum()
            self._ranks.append(_WIDEST * (2 * middle - 1))

    def of(self, x: NDArray[np.float32], pairs: list[Places]) -> dict[int, Array]:
        """The ranks of rows, for every column of these pairs."""
        found = {}
        for j in sorted({column for pair in pairs for column in pair}):
            edges = self._edges[j]
            bins = np.clip(np.searchsorted(edges, x[:, j], side="right") - 1, 0, len(edges) - 2)
            found[j] = self._ranks[j][bins]
        return found


def rank_correlations(
    records: Records, pairs: list[Places], ranks: Ranks, count: float, stage: Stage
) -> Array:
    """The noisy rank correlation of each pair.

    Guarantee: a record adds a third of the product of two ranks, at most 1, to the sum of each pair.
    """
    sums = Sums(stage, len(pairs), _ROUNDING * math.sqrt(len(pairs)))
    for x, _, weights in records.chunks():
        found = ranks.of(x, pairs)
        sums.add_rows(0, np.stack([found[a] * found[b] for a, b in pairs], axis=1), weights, 1 / _WIDEST**2)
    return np.clip(_WIDEST**2 * sums.release() / count, -_FARTHEST, _FARTHEST)


def crossing_weights(correlation: float) -> Array:
    """The coefficients of 1, u, v, u^2, v^2, u^3, v^3, uv, u^2 v, u v^2 in three crossings of variance 1.

    They are not correlated with one another, nor with the powers, under a Gaussian copula of this rank correlation.
    """
    nodes, weights = _GAUSS
    along = 2 * math.sin(math.pi * correlation / 6)
    first, second = np.repeat(nodes, _NODES), np.tile(nodes, _NODES)
    second = along * first + math.sqrt(1 - along**2) * second
    u, v = (_WIDEST * (2 * ndtr(z) - 1) for z in (first, second))
    roots = np.sqrt(np.outer(weights, weights).ravel() / weights.sum() ** 2)[:, None]
    powers, products = np.split(_powers_and_products(u, v), [7], axis=1)
    powers, products = powers * roots, products * roots
    explained = np.linalg.solve(powers.T @ powers, powers.T @ products)
    left = products - powers @ explained
    values, vectors = np.linalg.eigh(left.T @ left)
    turn = vectors / np.sqrt(np.maximum(values, _FLATTEST))
    return np.vstack([-explained @ turn, turn])


class Crossings:
    """Those of all pairs side by side; a typical row has norm 1."""

    def __init__(self, pairs: list[Places], correlations: Array) -> None:
        columns = sorted({column for pair in pairs for column in pair})
        self._first, self._second = np.array([[columns.index(j) for j in pair] for pair in pairs]).T
        turns = [crossing_weights(float(one)) for one in correlations]
        self.weights = np.array(turns) / math.sqrt(_SIZE * len(pairs))

    def of(self, ranks: dict[int, Array], factors: Array | None = None) -> Array:
        """Of rows with these ranks, by column, each times its factor."""
        every = np.stack([ranks[j] for j in sorted(ranks)], axis=1)
        found = np.empty((len(every), _SIZE * len(self.weights)))
        each = np.ones(len(every)) if factors is None else factors
        _cross(every, self._first, self._second, self.weights, each, found)
        return found


@compiled
def _cross(every: Array, first: Any, second: Any, weights: Array, factors: Array, out: Array) -> None:
    """Row by row, whatever the others are: see :func:`crossing_weights` for the order of the coefficients."""
    for i in range(len(every)):
        for p in range(len(first)):
            u, v, factor = every[i, first[p]], every[i, second[p]], factors[i]
            for k in range(_SIZE):
                one, u1, v1, u2, v2, u3, v3, uv, uuv, uvv = weights[p, :, k]
                found = one + u * (u1 + u * (u2 + u * u3)) + v * (v1 + v * (v2 + v * v3))
                out[i, _SIZE * p + k] = factor * (found + u * v * (uv + u * uuv + v * uvv))


@compiled
def _square_parts(rows: Array, out: Array) -> None:
    """The squared norm of every pair's part of a row."""
    for i in range(len(out)):
        for p in range(out.shape[1]):
            total = 0.0
            for k in range(_SIZE):
                total += rows[i, _SIZE * p + k] ** 2
            out[i, p] = total


def propose_pairs(
    records: Records,
    pairs: list[Places],
    correlations: Array,
    ranks: Ranks,
    residuals: Residuals,
    most: int,
    stage: Stage,
) -> list[Places]:
    """At most so many pairs, each column once; ``residuals`` tells those of rows and targets, typically 1.

    Guarantee: a record adds its residual times the crossings of all pairs, a row that is clipped to norm 1, and for
    each pair a quarter of the squared norm of its part, which sum to at most 1/4: the squared sensitivity is 17/16.
    """
    sums = Sums(stage, (_SIZE + 1) * len(pairs), _REACH)
    crossings = Crossings(pairs, correlations)
    stage.agree(crossings.weights)  # other machines may turn eigenvectors otherwise
    for x, y, weights in records.chunks():
        for start in range(0, len(x), step := max(1, _BLOCK // len(pairs))):
            own = slice(start, start + step)
            rows = crossings.of(ranks.of(x[own], pairs), residuals(x[own], y[own]))
            rows = clip_rows(rows, 1.0)  # one that is not finite adds nothing
            squares, each = np.empty((len(rows), len(pairs))), None if weights is None else weights[own]
            _square_parts(rows, squares)
            sums.add_rows(0, rows, each)
            sums.add_rows(_SIZE * len(pairs), squares, each, _SQUARES)
    rows, squares = np.split(sums.release(), [_SIZE * len(pairs)])
    variances = sums.noise**2 + np.maximum(squares / _SQUARES, 0.0)
    lengths = np.sum(rows.reshape(-1, _SIZE) ** 2, axis=1)
    return _apart([pairs[place] for place in np.argsort(-lengths / variances)], most)


def _apart(pairs: list[Places], most: int) -> list[Places]:
    """The first pairs of which none has a column of another."""
    found: list[Places] = []
    for pair in pairs:
        if len(found) < most and not any(column in other for other in found for column in pair):
            found.append(pair)
    return found


def confirm_pairs(
    records: Records, pairs: list[Places], ranks: Ranks, residuals: Residuals, linked: bool, stage: Stage
) -> list[Places]:
    """Those that noise and chance do not explain, the most telling first; ``residuals`` are clamped to [-1, 1].

    ``linked`` if they are those of two classes: then curves move them the less, the surer a class is.

    Guarantee: in each pair a record adds 1/2 to the number of one cell, its residual to one sum and a quarter of its
    square to another, so the squared sensitivity is 21/16 for each pair.
    """
    cells = _SIDE * _SIDE
    reach = _ROUNDING * math.sqrt(len(pairs) * (1 + _COUNTED**2 + _SQUARES**2))
    sums = Sums(stage, 3 * cells * len(pairs), reach)
    for x, y, weights in records.chunks():
        known = ranks.of(x, pairs)
        codes = {
            j: np.minimum((rank / _WIDEST + 1) / 2 * _SIDE, _SIDE - 1).astype(int)
            for j, rank in known.items()
        }
        left = residuals(x, y)
        left = np.clip(np.where(np.isfinite(left), left, 0.0), -1, 1)
        own = left if weights is None else left * weights
        for place, (a, b) in enumerate(pairs):
            cell = 3 * cells * place + codes[a] * _SIDE + codes[b]
            sums.add_ones(cell, weights, _COUNTED)
            sums.add_signed(cell + cells, own)
            sums.add_signed(cell + 2 * cells, _SQUARES * own * left)
    noisy = sums.release().reshape(len(pairs), 3, cells)
    told = [_telling(n / _COUNTED, r, q / _SQUARES, sums.noise, linked) for n, r, q in noisy]
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
    seen = counts > _SEEN * noise / _COUNTED
    number = np.where(seen, counts, 1.0)
    means = np.where(seen, totals / number, 0.0)
    variance = (noise**2 * (1 + (means / _COUNTED) ** 2) + np.maximum(squares, 0.0)) / number**2
    roots = np.where(seen, 1 / np.sqrt(variance), 0.0)
    rows, columns = np.divmod(np.arange(len(counts)), _SIDE)
    design = np.hstack([np.eye(_SIDE)[rows], np.eye(_SIDE)[columns]]) * roots[:, None]
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


# ---- the cells of a pair of columns ----


def count_cells(
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
    noisy, noise = np.split(sums.release(), starts[1:-1]), sums.noise
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
