"""Blocks about pairs of numeric columns: ranks, crossings, cells and products of hats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.clipping import clip_rows
from discreet.linear.gate.adding import Array, Integers, add_cells, add_rows, add_signed
from discreet.linear.gate.basis import Basis, between
from discreet.linear.gate.clipped_gradients import Target
from discreet.linear.gate.curve_rows import gather_rows
from discreet.linear.gate.data import dense, refuse_bad_knots, refuse_other_shapes
from discreet.linear.gate.record_store import Chunk
from discreet.linear.kernels.rank_crossings import CROSSINGS, cross, square_parts
from discreet.linear.kernels.rowwise import add_cut_ones
from discreet.linear.losses import Loss
from discreet.linear.residuals import residuals
from discreet.trusted.plain_data import Data

Places = tuple[int, int]

WIDEST = math.sqrt(3.0)
"""The largest rank; ranks of evenly spread values have variance 1."""
SIDE = 6
"""Cells of a pair, each way."""
COUNTED, SQUARES = 0.5, 0.25
"""Weights of a count and of a square beside what is summed."""

_BLOCK = 2**17  # rows times pairs that are looked at at once
_SHARES = Fraction(10001, 10000)  # what four rounded shares may sum to


@dataclass(frozen=True, eq=False)
class Ranks(Data):
    """The rank of every value of a column, from -sqrt 3 to sqrt 3: that of its bin between public edges."""

    edges: tuple[Array, ...]
    ranks: tuple[Array, ...]

    def of(self, x: NDArray[Any], pairs: tuple[Places, ...]) -> dict[int, Array]:
        """The ranks of rows, for every column of these pairs."""
        found = {}
        for j in sorted({column for pair in pairs for column in pair}):
            edges = self.edges[j]
            bins = np.clip(np.searchsorted(edges, dense(x)[:, j], side="right") - 1, 0, len(edges) - 2)
            refuse_other_shapes(ranks=(self.ranks[j], (len(edges) - 1,)))
            found[j] = np.clip(np.nan_to_num(self.ranks[j]), -WIDEST, WIDEST)[bins]
        return found


@dataclass(frozen=True, eq=False)
class RankProducts(Data):
    """The products of the two ranks of each pair."""

    ranks: Ranks
    pairs: tuple[Places, ...]

    def __call__(self, chunk: Chunk) -> Array:
        found = self.ranks.of(chunk.x, self.pairs)
        return np.stack([found[a] * found[b] for a, b in self.pairs], axis=1)


@dataclass(frozen=True, eq=False)
class Residual(Data):
    """The residual at the score of an additive model, over its typical size ``unit`` and over ``far``."""

    basis: Basis
    coefficients: Array
    intercept: Array
    loss: Loss
    target: Target
    unit: float
    far: float = 1.0

    def __call__(self, x: Any, y: Array) -> Array:
        scores = gather_rows(x, self.basis, self.coefficients[:, None], self.intercept)[:, 0]
        return np.asarray(residuals(self.loss, scores, self.target(y)) / self.unit) / self.far


@dataclass(frozen=True, eq=False)
class Crossings(Data):
    """Each record adds its residual times the crossings of all pairs, a row clipped to norm 1, and SQUARES times the
    squared norm of each pair's part of it.

    ``weights`` are, for each pair, the coefficients of 1, u, v, u^2, v^2, u^3, v^3, uv, u^2 v, u v^2 in its
    crossings. The squared norms of a row of norm 1 sum to at most 1, so the square of what a record adds is at most 1
    + SQUARES^2.
    """

    ranks: Ranks
    pairs: tuple[Places, ...]
    weights: Array
    residual: Residual

    @property
    def size(self) -> int:
        return (CROSSINGS + 1) * len(self.pairs)

    @property
    def square(self) -> Fraction:
        return (1 + Fraction(SQUARES) ** 2) * (1 + Fraction(9, 10**10)) ** 2

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        refuse_other_shapes(weights=(self.weights, (len(self.pairs), 10, CROSSINGS)))
        cut = CROSSINGS * len(self.pairs)
        x, y, weights = dense(chunk.x), chunk.y, chunk.weights
        step = max(1, _BLOCK // len(self.pairs))
        for start in range(0, max(1, len(x)), step):  # checks must not depend on whether there are rows
            own = slice(start, start + step)
            each = None if weights is None else weights[own]
            rows = clip_rows(self._rows(x[own], y[own]), 1.0)  # one that is not finite adds nothing
            squares = np.empty((len(rows), len(self.pairs)))
            square_parts(rows, squares)
            add_rows(counts[:cut], rows, each, grid)
            add_rows(counts[cut:], squares, each, grid, SQUARES)

    def _rows(self, x: Any, y: Array) -> Array:
        ranks = self.ranks.of(x, self.pairs)
        columns = sorted(ranks)
        first, second = np.array([[columns.index(j) for j in pair] for pair in self.pairs]).T
        found = np.empty((len(x), CROSSINGS * len(self.pairs)))
        every = np.stack([ranks[j] for j in columns], axis=1)
        cross(every, first, second, self.weights, self.residual(x, y), found)
        return found


@dataclass(frozen=True, eq=False)
class PairCells(Data):
    """In one of SIDE x SIDE cells of each pair, by ranks, each record adds COUNTED to a count, its residual r,
    clamped to [-1, 1], to a sum and SQUARES r^2 to another."""

    ranks: Ranks
    pairs: tuple[Places, ...]
    residual: Residual

    @property
    def size(self) -> int:
        return 3 * SIDE**2 * len(self.pairs)

    @property
    def square(self) -> Fraction:
        return len(self.pairs) * (1 + Fraction(COUNTED) ** 2 + Fraction(SQUARES) ** 2)

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        x, y, weights, _ = chunk
        codes = {
            j: np.clip((rank / WIDEST + 1) / 2 * SIDE, 0, SIDE - 1).astype(int)
            for j, rank in self.ranks.of(x, self.pairs).items()
        }
        left = self.residual(x, y)
        left = np.clip(np.where(np.isfinite(left), left, 0.0), -1, 1)
        own = left if weights is None else left * weights
        for (a, b), planes in zip(self.pairs, counts.reshape(len(self.pairs), 3, SIDE**2), strict=True):
            cells = codes[a] * SIDE + codes[b]
            add_cells(planes[0], cells, weights, grid, COUNTED)
            add_cut_ones(cells, own / grid, planes[1])
            add_cut_ones(cells, SQUARES * own * left / grid, planes[2])


@dataclass(frozen=True, eq=False)
class HatCells(Data):
    """Each record adds the products of the hats of each pair, at knots of its own: four shares that sum to 1.

    ``grids`` are the columns and the two lists of knots of each pair.
    """

    grids: tuple[tuple[Places, tuple[Array, Array]], ...]

    def __post_init__(self) -> None:
        for _, knots in self.grids:
            for side in knots:
                refuse_bad_knots(side)

    @property
    def sizes(self) -> list[int]:
        """How many cells each pair has."""
        return [len(across) * len(up) for _, (across, up) in self.grids]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def square(self) -> Fraction:
        return len(self.grids) * _SHARES**2

    def add(self, counts: Integers, chunk: Chunk, grid: float) -> None:
        parts = np.split(counts, np.cumsum(self.sizes)[:-1])
        for (columns, knots), own in zip(self.grids, parts, strict=True):
            for cells, shares in _entries(columns, knots, chunk.x):
                add_signed(own, cells, shares, chunk.weights, grid)


def _entries(columns: Places, knots: tuple[Array, Array], x: Any) -> Iterator[tuple[Any, Array]]:
    """The four cells of each row whose products are not zero, and these products."""
    across, up = knots
    first, second = (dense(x)[:, column] for column in columns)
    (left, share), (below, portion) = between(first, across), between(second, up)
    for side, part in ((0, 1 - share), (1, share)):
        for upper, other in ((0, 1 - portion), (1, portion)):
            yield (left + side) * len(up) + below + upper, (part * other).astype(np.float64)
