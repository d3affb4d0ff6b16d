"""Views of the features of a record: bins, offsets, ranks and pairs of columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.core.clipping import clip_rows
from discreet.errors import whole
from discreet.linear.gate.checks import dense, refuse_bad_knots, refuse_other_shapes
from discreet.linear.kernels.rank_crossings import CROSSINGS, cross, square_parts
from discreet.linear.losses import Loss
from discreet.linear.residuals import residuals
from discreet.linear.row_views.curve_bases import Basis, between, gather_rows
from discreet.linear.row_views.targets import Target, in_own_cells
from discreet.trusted.plain_data import Data, conform
from discreet.trusted.queries import View

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Places = tuple[int, int]

SMALLEST, LARGEST = -32, 64
"""Powers of two that are told apart."""
POWERS = LARGEST - SMALLEST + 1

WIDEST = math.sqrt(3.0)
"""The largest rank; ranks of evenly spread values have variance 1."""
SIDE = 6
"""Cells of a pair, each way."""
COUNTED, SQUARES = 0.5, 0.25
"""Weights of a count and of a square beside what is summed."""
SHARES = 1.0001
"""The most that four rounded shares sum to."""


@dataclass(frozen=True, eq=False)
class WindowBin(View):
    """The bin of a numeric column, of ``bins`` between ``lower`` and ``upper``; none outside."""

    column: int
    lower: float
    upper: float
    bins: int

    def __call__(self, x: Any, y: Array) -> Integers:
        values = dense(x)[:, self.column].astype(np.float64)
        cells = np.floor((values - self.lower) / (self.upper - self.lower) * self.bins)
        return np.asarray(np.where((cells >= 0) & (cells < self.bins), cells, -1).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Offset(View):
    """The encoded row minus a public centre."""

    centre: Array

    def __call__(self, x: Any, y: Array) -> Array:
        refuse_other_shapes(centre=(self.centre, x.shape[1:]))
        return np.asarray(dense(x) - self.centre, np.float64)


class ColumnView(View):
    """A cell for each number of a row, whose ``columns`` all have ``cells`` cells."""

    columns: Any
    cells: Any

    def __call__(self, x: Array, y: Any) -> Integers:
        return self.entries(x, slice(None))

    def entries(self, values: Array, columns: Any) -> Integers:
        """Return the cells of numbers of these columns; -1 for NaN."""
        places = self._places(values, columns)
        return np.where(np.isnan(places), -1.0, places).astype(np.int64)

    def _places(self, values: Array, columns: Any) -> Array:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class PowerCells(ColumnView):
    """The power of two of each number: 2**(e-1) < \\|x\\| <= 2**e, below zero from the left, zero in the middle."""

    columns: int
    cells = 2 * POWERS + 1

    def _places(self, values: Array, columns: Any) -> Array:
        powers = np.clip(np.ceil(np.log2(np.abs(values))), SMALLEST, LARGEST) - SMALLEST + 1
        powers = np.where(np.abs(values) <= 2.0 ** (SMALLEST - 1), 0.0, powers)
        return np.asarray(POWERS + np.sign(values) * powers)


@dataclass(frozen=True, eq=False)
class RangeCells(ColumnView):
    """One of ``zoom`` even cells across the range of each column, or one of two beside it."""

    lower: Array
    width: Array
    zoom: int

    def __post_init__(self) -> None:
        conform(self)
        whole("zoom", self.zoom, at_least=1)
        refuse_other_shapes(lower=(self.lower, (len(self.lower),)), width=(self.width, (len(self.lower),)))

    @property
    def columns(self) -> int:
        return len(self.lower)

    @property
    def cells(self) -> int:
        return self.zoom + 2

    def _places(self, values: Array, columns: Any) -> Array:
        lower, width = self.lower[columns], self.width[columns]
        place = np.floor((values - lower) / width * self.zoom)
        at_the_end = values == lower + width  # powers of two belong to the range that ends there
        return np.asarray(np.clip(np.where(at_the_end, self.zoom - 1, place), -1, self.zoom) + 1)


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
class RankProducts(View):
    """The products of the two ranks of each pair, over the largest product."""

    ranks: Ranks
    pairs: tuple[Places, ...]

    def __call__(self, x: Any, y: Array) -> tuple[Integers, Array]:
        ranks = self.ranks.of(x, self.pairs)
        products = np.stack([ranks[a] * ranks[b] for a, b in self.pairs], axis=1)
        return in_own_cells(products * (1 / WIDEST**2))


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
        return np.asarray(residuals(self.loss, scores, self.target(x, y)) / self.unit) / self.far


@dataclass(frozen=True, eq=False)
class Crossings(View):
    """The residual times the crossings of all pairs, a row clipped to norm 1, and SQUARES times the squared norm of
    each pair's part of it.

    ``weights`` are, for each pair, the coefficients of 1, u, v, u^2, v^2, u^3, v^3, uv, u^2 v, u v^2 in its
    crossings. The squared norms of a row of norm 1 sum to at most 1, so the squared norm of the whole is at most
    1 + SQUARES^2.
    """

    ranks: Ranks
    pairs: tuple[Places, ...]
    weights: Array
    residual: Residual

    @property
    def size(self) -> int:
        """How many numbers there are for each record."""
        return (CROSSINGS + 1) * len(self.pairs)

    def __call__(self, x: Any, y: Array) -> Array:
        refuse_other_shapes(weights=(self.weights, (len(self.pairs), 10, CROSSINGS)))
        ranks = self.ranks.of(x, self.pairs)
        columns = sorted(ranks)
        first, second = np.array([[columns.index(j) for j in pair] for pair in self.pairs]).T
        rows = np.empty((len(x), CROSSINGS * len(self.pairs)))
        every = np.stack([ranks[j] for j in columns], axis=1)
        cross(every, first, second, self.weights, self.residual(x, y), rows)
        rows = clip_rows(rows, 1.0)  # one that is not finite adds nothing
        squares = np.empty((len(x), len(self.pairs)))
        square_parts(rows, squares)
        return np.hstack([rows, SQUARES * squares])


@dataclass(frozen=True, eq=False)
class PairCells(View):
    """One of SIDE x SIDE cells of each pair, by ranks, in three groups.

    COUNTED is added for a count, the residual r, clamped to [-1, 1], for a sum, and SQUARES r^2 for another.
    """

    ranks: Ranks
    pairs: tuple[Places, ...]
    residual: Residual

    def __call__(self, x: Any, y: Array) -> tuple[Integers, Array]:
        codes = {
            j: np.clip((rank / WIDEST + 1) / 2 * SIDE, 0, SIDE - 1).astype(np.int64)
            for j, rank in self.ranks.of(x, self.pairs).items()
        }
        left = self.residual(x, y)
        left = np.clip(np.where(np.isfinite(left), left, 0.0), -1, 1)
        cells = np.stack([codes[a] * SIDE + codes[b] for a, b in self.pairs], axis=1)
        amounts = np.stack([np.full(len(left), COUNTED), left, SQUARES * left * left], axis=1)
        return np.repeat(cells, 3, axis=1), np.tile(amounts, len(self.pairs))


@dataclass(frozen=True, eq=False)
class HatCells(View):
    """The products of the hats of each pair, at knots of its own: four shares that sum to 1.

    ``grids`` are the columns and the two lists of knots of each pair.
    """

    grids: tuple[tuple[Places, tuple[Array, Array]], ...]

    def __post_init__(self) -> None:
        for _, knots in self.grids:
            for side in knots:
                refuse_bad_knots(side)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many cells each pair has."""
        return tuple(len(across) * len(up) for _, (across, up) in self.grids)

    def __call__(self, x: Any, y: Array) -> tuple[Integers, Array]:
        entries = [list(_entries(columns, knots, x)) for columns, knots in self.grids]
        cells, shares = (
            np.stack([np.stack([entry[part] for entry in pair], axis=1) for pair in entries], axis=1)
            for part in (0, 1)
        )
        return cells.astype(np.int64), shares


def _entries(columns: Places, knots: tuple[Array, Array], x: Any) -> Iterator[tuple[Any, Array]]:
    """The four cells of each row whose products are not zero, and these products."""
    across, up = knots
    first, second = (dense(x)[:, column] for column in columns)
    (left, share), (below, portion) = between(first, across), between(second, up)
    for side, part in ((0, 1 - share), (1, share)):
        for upper, other in ((0, 1 - portion), (1, portion)):
            yield (left + side) * len(up) + below + upper, (part * other).astype(np.float64)
