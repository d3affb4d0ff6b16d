"""The coordinates in which the descent works, and the way back to the encoded columns.

Gradient descent is fast where the curvature is the same in all directions, and its noise is harmless where all
directions matter alike. :class:`Whitened` coordinates have both; :class:`Standardised` ones are for few records,
where the second moments would drown in noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk
from scipy.sparse import issparse

from discreet.core.clipping import clip_rows
from discreet.linear.glm.marginals import Marginals
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.sparse_rows import clip_and_divide
from discreet.linear.glm.spending import Stage
from discreet.linear.kernels.centred import Centre, centred_norms
from discreet.linear.kernels.kernel import readable, row_norms
from discreet.linear.kernels.rowwise import find_standard_norms, put_ones_before, standardise_rows, times
from discreet.linear.kernels.tiles import Tiles
from discreet.linear.kernels.white_tiles import whiten_into_tiles
from discreet.linear.kernels.whole_products import add_products, pairs_for, totals_for

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]

_LEAST_SEEN = 0.1  # of a second moment that the noise hides
_SMALLEST = 1e-9  # a row shorter than this has no direction
_LEAST_CURVATURE, _CURVATURE = 4.0, 0.02  # of wide tables: the second is a share of all eigenvalues
WIDEST = 2048
"""Columns up to which rows are whitened: its cost grows with their square."""


@dataclass(frozen=True, eq=False)
class Standardised:
    """((x - centre) / scale) / radius, each row clipped to a norm of 2; the constant is 0.3.

    If no typical radius was found, rows are brought to norm 1 instead.
    """

    marginals: Marginals
    radius: float
    radius_found: bool
    mostly_text: bool
    constant: ClassVar[float] = 0.3
    row_limit: ClassVar[float] = 2.0
    row_size: ClassVar[float] = (1 + 0.3**2) ** 0.5

    @property
    def width(self) -> int:
        """The number of columns beside the constant."""
        return len(self.marginals.centre)

    @property
    def curvature(self) -> float:
        """A guess at the largest eigenvalue of the second moments."""
        return 0.1 if self.mostly_text else 0.25

    @property
    def spread(self) -> Array:
        """A guess at the second moment of each number of a row."""
        return np.full(self.width + 1, self.row_size**2 / (self.width + 1))

    def apply(self, x: Any) -> Any:
        """The rows in these coordinates."""
        z = standardise(x, self.marginals) / np.float32(self.radius)
        norms = np.maximum(row_norms(z, 0.0), _SMALLEST)
        limit = self.row_limit / norms if self.radius_found else 1 / norms
        z *= np.minimum(1.0 if self.radius_found else self.row_limit, limit)[:, None].astype(np.float32)
        return z

    def of_constant(self, value: Array) -> Array:
        """The parameters of a model that gives every record ``value``."""
        theta = np.zeros((self.width + 1, *value.shape))
        theta[0] = value / self.constant
        return theta

    def back(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of the encoded columns and intercept."""
        return _unstandardise(self.constant * theta[0], theta[1:] / self.radius, self.marginals)


@dataclass(frozen=True, eq=False)
class Diagonal:
    """(x - centre) / scale, for wide tables: the scales are such that a typical row has the norm sqrt(width).

    Sparse rows are not centred here: the sums of their gradients are, by ``centre``, which is what it would take.
    """

    marginals: Marginals
    centre: Centre | None
    constant: ClassVar[float] = 1.0

    @classmethod
    def of(cls, marginals: Marginals, radius: float, sparse: bool) -> Diagonal:
        scale = marginals.scale * (radius / math.sqrt(len(marginals.scale)))
        if not sparse:
            return cls(marginals._replace(scale=scale), None)
        middle = Centre.near(marginals.centre / scale)
        lower, upper = np.minimum(marginals.lower, 0.0), np.maximum(marginals.upper, 0.0)
        return cls(Marginals(middle.values * scale, scale, lower, upper, marginals.released), middle)

    @property
    def width(self) -> int:
        """The number of columns beside the constant."""
        return len(self.marginals.centre)

    @property
    def row_size(self) -> float:
        """The norm of a typical row."""
        return math.sqrt(self.width + 1)

    @property
    def curvature(self) -> float:
        """A guess at the largest eigenvalue of the second moments, whose mean is 1."""
        return max(_LEAST_CURVATURE, _CURVATURE * self.width)

    @property
    def spread(self) -> Array:
        """The second moment of each number of a row."""
        return np.ones(self.width + 1)

    def apply(self, x: Any) -> Any:
        """The rows in these coordinates, sparse ones not centred."""
        return standardise(x, self.marginals)

    def of_constant(self, value: Array) -> Array:
        """The parameters of a model that gives every record ``value``."""
        theta = np.zeros((self.width + 1, *value.shape))
        theta[0] = value
        return theta

    def back(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of the encoded columns and intercept."""
        return _unstandardise(theta[0], theta[1:], self.marginals)


@dataclass(frozen=True, eq=False)
class Whitened:
    """(1, (x - centre) / scale) times ``rotation``; the constant is part of the rows.

    ``moments`` are the noisy second moments of (1, (x - centre) / scale), None if they are not known, and ``noise``
    is the spectral norm of their noise. ``dimensions`` are those that a row has, if rough directions were shortened;
    else None.
    """

    marginals: Marginals
    rotation: Array
    inverse: Array
    moments: Array | None = None
    noise: float = 0.0
    dimensions: float | None = None
    constant: ClassVar[float] = 0.0
    curvature: ClassVar[float] = 1.0

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.rotation)

    @property
    def spread(self) -> Array:
        """The second moment of each number of a row, the constant's first, which is 0; 1 where it was not asked for.

        Directions seem to be long because noise made them so: what it may have added is taken off.
        """
        if self.moments is None:
            return np.concatenate([[0.0], np.ones(self.width)])
        surely = self.moments - self.noise * np.eye(len(self.moments))
        seen = np.sum(self.rotation * (surely @ self.rotation), axis=0)
        return np.concatenate([[0.0], np.clip(seen, _LEAST_SEEN, 1.0)])

    def apply(self, x: Matrix) -> Matrix:
        """The rows in these coordinates."""
        return times(standardise(x, self.marginals), self.rotation[1:], plus=self.rotation[0])

    def tile(self, x: Matrix) -> tuple[Tiles, Array]:
        """The same in tiles, which round them, and bounds of their norms."""
        return whiten_into_tiles(readable(x), _in_float32(self.marginals), self.rotation)

    def of_constant(self, value: Array) -> Array:
        """The parameters of a model that gives every record ``value``."""
        theta = np.zeros((self.width + 1, *value.shape))
        theta[1:] = np.multiply.outer(self.inverse[0], value)
        return theta

    def back(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of the encoded columns and intercept."""
        straight = self.rotation @ theta[1:]
        return _unstandardise(straight[0], straight[1:], self.marginals)


Coordinates = Standardised | Diagonal | Whitened


def standardise(x: Any, marginals: Marginals) -> Any:
    """(x - centre) / scale, with x clamped to the limits first; sparse rows are clamped and divided only."""
    if issparse(x):
        return clip_and_divide(x, marginals.lower, marginals.upper, marginals.scale)
    z = np.empty(x.shape, np.float32)
    standardise_rows(readable(x), *_in_float32(marginals), z)
    return z


def _in_float32(marginals: Marginals) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Limits, centre and scale, in the order and the type of the kernels."""
    centre, scale, lower, upper = (values.astype(np.float32) for values in marginals[:4])
    return lower, upper, centre, scale


def standard_norms(x: Any, marginals: Marginals) -> Array:
    """The norm of (x - centre) / scale of each row, dense or sparse."""
    if not issparse(x):
        norms = np.empty(len(x))
        find_standard_norms(readable(x), *_in_float32(marginals), norms)
        return norms
    return centred_norms(standardise(x, marginals), 0.0, Centre.near(marginals.centre / marginals.scale))


def _unstandardise(constant: Array, slopes: Array, marginals: Marginals) -> tuple[Array, Array]:
    coefficients = (slopes.T / marginals.scale).T
    return coefficients, np.asarray(constant - marginals.centre @ coefficients)


# ---- second moments of the standardised rows, privately, and the rotation that makes them equal: whitened ----

LEAST_EIGENVALUE = 0.02  # above the noise; flatter directions are left flat
_SHORTEST, _LONGEST = 1.2, 4.0  # row clip in typical row norms
_TOLERATED = 0.1  # share of a typical eigenvalue that the noise may reach before rows are clipped harder
_BLOCK = 2**17  # numbers that are multiplied at once: they stay in the cache


class Moments(NamedTuple):
    """Noisy second moments of rows, and the spectral norm of their noise."""

    matrix: Array
    noise: float


def whiten(records: Records, marginals: Marginals, radius: float, count: float, stage: Stage) -> Whitened:
    """Coordinates in which the rows (1, standardised features) have second moments near the identity.

    ``radius`` is the typical norm of the standardised features, ``count`` the noisy number of records.
    """
    pieces = (piece for x, _, weights in records.chunks() for piece in _small_pieces(x, weights))
    rows = ((standardise(x, marginals), weights) for x, weights in pieces)
    matrix, noise = second_moments(rows, len(marginals.centre), radius, count, stage)
    floor = noise + LEAST_EIGENVALUE
    eigenvalues, vectors = np.linalg.eigh(matrix)
    roots = np.sqrt(np.maximum(eigenvalues, floor))
    return Whitened(marginals, vectors / roots, vectors * roots, matrix, noise)


def _small_pieces(x: Matrix, weights: Array | None) -> Iterator[tuple[Matrix, Array | None]]:
    """The same rows, so few at a time that what is made of them stays in the cache."""
    block = max(1, _BLOCK // (x.shape[1] + 1))
    for start in range(0, len(x), block):
        own = slice(start, start + block)
        yield x[own], None if weights is None else weights[own]


def second_moments(
    chunks: Iterable[tuple[NDArray[np.float32], Array | None]],
    width: int,
    radius: float,
    count: float,
    stage: Stage,
) -> Moments:
    """The mean of (1, z)' (1, z) over chunks of rows z of typical norm ``radius``, with weights or None.

    Guarantee: rows w = (1, z) are clipped to R, and what is released is the upper triangle of the sum of w w', its
    off-diagonal entries times a number just below sqrt(2): a vector of norm |w|^2 <= R^2 at most for each record,
    which is the sensitivity.
    """
    size = width + 1
    typical = math.hypot(1.0, radius)
    wide = math.sqrt(_TOLERATED * stage.strength * count / math.sqrt(2 * size))
    limit = min(max(wide, _SHORTEST * typical), _LONGEST * typical)
    sums = Sums(stage, size * (size + 1) // 2, limit**2)
    lattice, total = Lattice.of(sums.grid), totals_for(size)
    clip = limit - lattice.rounding(size)
    rows = np.empty((max(1, _BLOCK // size), size), np.float32)
    for z, weights in chunks:
        for start in range(0, len(z), len(rows)):
            own = slice(start, start + len(rows))
            part = rows[: len(z[own])]
            put_ones_before(readable(z[own]), part)
            clip_rows(part, clip, out=part)
            lattice.add_products(part, None if weights is None else weights[own], total)
    sums.add_total(lattice.pack(total, size))
    matrix = lattice.unpack(sums.release(), size) / count
    return Moments(matrix, sums.noise * math.sqrt(2 * size) / count)


@dataclass(frozen=True)
class Lattice:
    """Whole numbers for second moments (docs/engines.md: E15).

    Rows are rounded to multiples of ``step``, so a product is a multiple of ``step**2``. That many units of the
    sum's grid make one such product on the diagonal, and ``beside`` of them off it: about sqrt(2) times as many, and
    not more.
    """

    step: float
    diagonal: int
    beside: int

    @classmethod
    def of(cls, grid: float) -> Lattice:
        exponent = math.frexp(grid)[1] - 1
        bits = 7 if (exponent + 7) % 2 == 0 else 8  # the step's square must be a square
        return cls(math.ldexp(1.0, (exponent + bits) // 2), 2**bits, math.isqrt(2 * 4**bits))

    def rounding(self, size: int) -> float:
        """What rounding may add to the norm of a row of so many numbers."""
        return 0.5 * math.sqrt(size) * self.step * (1 + 1e-6)

    def products(self, rows: NDArray[np.float32 | np.float64], weights: Array | None) -> NDArray[np.int64]:
        """The sum of w w' over the rows, its upper triangle in units of the grid; see :meth:`add_products`."""
        total = totals_for(rows.shape[1])
        self.add_products(rows, weights, total)
        return self.pack(total, rows.shape[1])

    def add_products(
        self, rows: NDArray[np.float32 | np.float64], weights: Array | None, total: NDArray[np.int64]
    ) -> None:
        """Add w w' over the rows to ``total``, which is :func:`totals_for` their columns, in squares of the step.

        Guarantee: all sums on the way are whole numbers that their type holds, in whatever order they are taken, so
        each row adds what it would add alone. A weight below 1 shortens the row by its root, and what it leaves is
        cut toward zero: rows whose weights sum to at most 1 add no more than one row could, however many they are.
        """
        size = rows.shape[1]
        block = max(1, _BLOCK // size)
        pairs = pairs_for(min(block, len(rows)), size)
        roots = np.empty(0) if weights is None else np.sqrt(weights)
        for start in range(0, len(rows), block):
            own = slice(start, start + block)
            part = readable(rows[own])
            if not add_products(part, roots[own], 1 / self.step, pairs, total):
                steps = self._steps(part, roots[own])
                total[:size, :size] += dsyrk(1.0, steps.T).astype(np.int64)

    def _steps(self, rows: NDArray[Any], roots: Array) -> Array:
        """The rows in whole steps, too large for the sums of small numbers, as float64."""
        wide = rows.astype(np.float64)
        nearest = np.rint(wide / self.step)
        if not len(roots):
            return nearest
        return np.where(roots[:, None] == 1, nearest, np.trunc(wide * roots[:, None] / self.step))

    def pack(self, total: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """What :meth:`add_products` gave, its upper triangle as a vector in units of the grid."""
        upper = np.triu_indices(size)
        return np.asarray(total[upper] * np.where(upper[0] == upper[1], self.diagonal, self.beside))

    def unpack(self, triangle: Array, size: int) -> Array:
        """The symmetric matrix of which :meth:`products` made a vector."""
        upper = np.triu_indices(size)
        matrix = np.zeros((size, size))
        matrix[upper] = np.where(upper[0] == upper[1], 0.5, self.diagonal / self.beside) * triangle
        return matrix + matrix.T
