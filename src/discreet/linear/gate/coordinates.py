"""The coordinates in which a descent works, and the way back to the encoded columns.

Gradient descent is fast where the curvature is the same in all directions, and its noise is harmless where all
directions matter alike. :class:`Whitened` coordinates have both; :class:`Standardised` ones are for few records,
where the second moments would drown in noise. All of them are public: they follow from released numbers, and each
maps every row by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from discreet.errors import PlanViolation
from discreet.linear.gate.basis import Basis
from discreet.linear.gate.curve_rows import gather_rows
from discreet.linear.gate.data import dense, refuse_other_shapes
from discreet.linear.gate.sparse_rows import clip_and_divide
from discreet.linear.kernels.centred import Centre, centred_norms
from discreet.linear.kernels.kernel import readable, row_norms
from discreet.linear.kernels.row_tiles import Tiles
from discreet.linear.kernels.rowwise import find_standard_norms, standardise_rows, times
from discreet.linear.kernels.white_tiles import whiten_into_tiles
from discreet.trusted.plain_data import Data

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]

_LEAST_SEEN = 0.1  # of a second moment that the noise hides
_SMALLEST = 1e-9  # a row shorter than this has no direction
_LEAST_CURVATURE, _CURVATURE = 4.0, 0.02  # of wide tables: the second is a share of all eigenvalues
_SHORTEST = 1e-4  # second moment of a coordinate of curves, so that it can be divided by


class Released(NamedTuple):
    """Noisy numbers of records: in the bins of each numeric column, and with each category; the noise of each."""

    bins: Array
    categories: Array
    noise: float


class Marginals(NamedTuple):
    """Centre and scale (standard deviation) of every encoded column, and the limits it is clamped to.

    ``released`` is what they follow from, where every column was looked at.
    """

    centre: Array
    scale: Array
    lower: Array
    upper: Array
    released: Released | None = None


@dataclass(frozen=True, eq=False)
class Standardised(Data):
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

    def content(self) -> tuple[Any, ...]:
        """What moves rows."""
        return (*self.marginals[:4], self.radius, self.radius_found)

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
        z = standardise(dense(x), self.marginals) / np.float32(self.radius)
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
class Diagonal(Data):
    """(x - centre) / scale, for wide tables: the scales are such that a typical row has the norm sqrt(width).

    Sparse rows are not centred here: the sums of their gradients are, by ``centre``, which is what it would take.
    """

    marginals: Marginals
    centre: Centre | None
    constant: ClassVar[float] = 1.0

    def content(self) -> tuple[Any, ...]:
        """What moves rows."""
        return (*self.marginals[:4], self.centre)

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
class Whitened(Data):
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
    tiled: ClassVar[bool] = True

    def content(self) -> tuple[Any, ...]:
        """What moves rows."""
        return (*self.marginals[:4], self.rotation)

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
        self._refuse_other_width(dense(x).shape[1])
        return times(standardise(x, self.marginals), self.rotation[1:], plus=self.rotation[0])

    def tile(self, x: Matrix) -> tuple[Tiles, Array]:
        """The same in tiles, which round them, and bounds of their norms."""
        self._refuse_other_width(dense(x).shape[1])
        return whiten_into_tiles(readable(x), _in_float32(self.marginals, x.shape[1]), self.rotation)

    def _refuse_other_width(self, width: int) -> None:
        refuse_other_shapes(rotation=(self.rotation, (width + 1, width + 1)))

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
        _in_float32(marginals, x.shape[1])
        return clip_and_divide(x, marginals.lower, marginals.upper, marginals.scale)
    z = np.empty(x.shape, np.float32)
    standardise_rows(readable(x), *_in_float32(marginals, x.shape[1]), z)
    return z


def _in_float32(marginals: Marginals, width: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Limits, centre and scale of ``width`` columns, in the order and the type of the kernels."""
    for values in marginals[:4]:
        refuse_other_shapes(marginals=(values, (width,)))
    centre, scale, lower, upper = (values.astype(np.float32) for values in marginals[:4])
    return lower, upper, centre, scale


def standard_norms(x: Any, marginals: Marginals) -> Array:
    """The norm of (x - centre) / scale of each row, dense or sparse."""
    if not issparse(x):
        norms = np.empty(len(x))
        find_standard_norms(readable(x), *_in_float32(marginals, x.shape[1]), norms)
        return norms
    return centred_norms(standardise(x, marginals), 0.0, Centre.near(marginals.centre / marginals.scale))


def _unstandardise(constant: Array, slopes: Array, marginals: Marginals) -> tuple[Array, Array]:
    coefficients = (slopes.T / marginals.scale).T
    return coefficients, np.asarray(constant - marginals.centre @ coefficients)


@dataclass(frozen=True, eq=False)
class SmoothCurves(Whitened):
    """Coordinates of curves, for rows before they are curves.

    ``lengths`` are the second moments of the coordinates: 1 for lines, near 0 for quick bends.
    """

    basis: Basis | None = None
    lengths: Array = field(default_factory=lambda: np.empty(0))
    tiled: ClassVar[bool] = False

    def content(self) -> tuple[Any, ...]:
        """What moves rows."""
        return (*super().content(), self.basis)

    @property
    def spread(self) -> Array:
        """The second moment of each number of a row, preceded by that of the constant, which is 0.

        A coordinate that was shortened holds little of a row, so it must not count as a whole parameter.
        """
        return np.concatenate([[0.0], np.clip(self.lengths, _SHORTEST, 1.0)])

    def apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The rows in these coordinates."""
        if self.basis is None:
            raise PlanViolation("Coordinates of curves need a basis.")
        self._refuse_other_width(self.basis.columns.width)
        slopes = self.rotation[1:] / self.marginals.scale[:, None]
        return gather_rows(x, self.basis, slopes, self.rotation[0] - self.marginals.centre @ slopes)
