"""What a strategy knows of the coordinates in which a descent works, and the way back to the encoded columns.

Gradient descent is fast where the curvature is the same in all directions, and its noise is harmless where all
directions matter alike. :class:`WhiteFrame` has both; a :class:`StandardFrame` is for few records, where the second
moments would drown in noise. Each has a ``map``, the coordinates of which queries are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from discreet.errors import PlanViolation
from discreet.linear.row_views.coordinates import Diagonal, Marginals, SmoothCurves, Standardised, Whitened
from discreet.linear.row_views.curve_bases import Basis

Array = NDArray[np.float64]

_LEAST_SEEN = 0.1  # of a second moment that the noise hides
_LEAST_CURVATURE, _CURVATURE = 4.0, 0.02  # of wide tables: the second is a share of all eigenvalues
_SHORTEST = 1e-4  # second moment of a coordinate of curves, so that it can be divided by


@dataclass(frozen=True, eq=False)
class StandardFrame:
    """Standardised rows of a typical norm of 1, with a constant of 0.3."""

    marginals: Marginals
    radius: float
    radius_found: bool
    mostly_text: bool
    row_size: ClassVar[float] = (1 + 0.3**2) ** 0.5

    @cached_property
    def map(self) -> Standardised:
        """The coordinates, for queries."""
        return Standardised(self.marginals, self.radius, self.radius_found)

    @property
    def width(self) -> int:
        """The number of columns beside the constant."""
        return self.map.width

    @property
    def curvature(self) -> float:
        """A guess at the largest eigenvalue of the second moments."""
        return 0.1 if self.mostly_text else 0.25

    @property
    def spread(self) -> Array:
        """A guess at the second moment of each number of a row."""
        return np.full(self.width + 1, self.row_size**2 / (self.width + 1))

    def of_constant(self, value: Array) -> Array:
        """The parameters of a model that gives every record ``value``."""
        theta = np.zeros((self.width + 1, *value.shape))
        theta[0] = value / self.map.constant
        return theta

    def back(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of the encoded columns and intercept."""
        return _unstandardise(self.map.constant * theta[0], theta[1:] / self.radius, self.marginals)


@dataclass(frozen=True, eq=False)
class DiagonalFrame:
    """Standardised rows for wide tables: the scales are such that a typical row has the norm sqrt(width)."""

    map: Diagonal

    @classmethod
    def of(cls, marginals: Marginals, radius: float, sparse: bool) -> DiagonalFrame:
        """The coordinates of rows whose standardised features have the typical norm ``radius``."""
        known = marginals._replace(scale=marginals.scale * (radius / math.sqrt(len(marginals.scale))))
        if sparse:  # zeros stay zeros
            lower, upper = np.minimum(marginals.lower, 0.0), np.maximum(marginals.upper, 0.0)
            known = known._replace(lower=lower, upper=upper)
        return cls(Diagonal.of(known, sparse))

    @property
    def width(self) -> int:
        """The number of columns beside the constant."""
        return self.map.width

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

    def of_constant(self, value: Array) -> Array:
        """The parameters of a model that gives every record ``value``."""
        theta = np.zeros((self.width + 1, *value.shape))
        theta[0] = value
        return theta

    def back(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of the encoded columns and intercept."""
        return _unstandardise(theta[0], theta[1:], self.map.marginals)


@dataclass(frozen=True, eq=False)
class WhiteFrame:
    """Rows of second moments near the identity, with the constant as part of them.

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
    curvature: ClassVar[float] = 1.0

    @cached_property
    def map(self) -> Whitened:
        """The coordinates, for queries."""
        return Whitened(self.marginals, self.rotation)

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

    def of_constant(self, value: Array) -> Array:
        """The parameters of a model that gives every record ``value``."""
        theta = np.zeros((self.width + 1, *value.shape))
        theta[1:] = np.multiply.outer(self.inverse[0], value)
        return theta

    def back(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of the encoded columns and intercept."""
        straight = self.rotation @ theta[1:]
        return _unstandardise(straight[0], straight[1:], self.marginals)


@dataclass(frozen=True, eq=False)
class CurveFrame(WhiteFrame):
    """White coordinates of curves. ``lengths`` are their second moments: 1 for lines, near 0 for quick bends."""

    basis: Basis | None = None
    lengths: Array = field(default_factory=lambda: np.empty(0))

    @cached_property
    def map(self) -> SmoothCurves:
        """The coordinates, for queries."""
        if self.basis is None:
            raise PlanViolation("Coordinates of curves need a basis.")
        return SmoothCurves(self.marginals, self.rotation, self.basis)

    @property
    def spread(self) -> Array:
        """The second moment of each number of a row, preceded by that of the constant, which is 0.

        A coordinate that was shortened holds little of a row, so it must not count as a whole parameter.
        """
        return np.concatenate([[0.0], np.clip(self.lengths, _SHORTEST, 1.0)])


Frame = StandardFrame | DiagonalFrame | WhiteFrame


def _unstandardise(constant: Array, slopes: Array, marginals: Marginals) -> tuple[Array, Array]:
    coefficients = (slopes.T / marginals.scale).T
    return coefficients, np.asarray(constant - marginals.centre @ coefficients)
