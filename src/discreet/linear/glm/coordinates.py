"""The coordinates in which the descent works, and the way back to the encoded columns.

Gradient descent is fast where the curvature is the same in all directions, and its noise is harmless where all
directions matter alike. :class:`Whitened` coordinates have both; :class:`Standardised` ones are for few records,
where the second moments would drown in noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from discreet.linear.glm.marginals import Marginals
from discreet.linear.kernels.columnwise import standardise_rows
from discreet.linear.kernels.kernel import readable, row_norms
from discreet.linear.kernels.rowwise import times

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]

_LEAST_SEEN = 0.1  # of a second moment that the noise hides
_SMALLEST = 1e-9  # a row shorter than this has no direction


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

    def apply(self, x: Matrix) -> Matrix:
        """The rows in these coordinates."""
        z = standardised(x, self.marginals) / np.float32(self.radius)
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
        return _unstandardised(self.constant * theta[0], theta[1:] / self.radius, self.marginals)


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
        """The second moment of each number of a row, the constant's first; 1 where it was not asked for."""
        if self.moments is None:
            return np.ones(self.width + 1)
        seen = np.sum(self.rotation * (self.moments @ self.rotation), axis=0)
        return np.concatenate([[1.0], np.clip(seen, _LEAST_SEEN, 1.0)])

    def apply(self, x: Matrix) -> Matrix:
        """The rows in these coordinates."""
        z = times(standardised(x, self.marginals), self.rotation[1:])
        z += self.rotation[0].astype(np.float32)
        return z

    def of_constant(self, value: Array) -> Array:
        """The parameters of a model that gives every record ``value``."""
        theta = np.zeros((self.width + 1, *value.shape))
        theta[1:] = np.multiply.outer(self.inverse[0], value)
        return theta

    def back(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients of the encoded columns and intercept."""
        straight = self.rotation @ theta[1:]
        return _unstandardised(straight[0], straight[1:], self.marginals)


def standardised(x: Matrix, marginals: Marginals) -> Matrix:
    """(x - centre) / scale, with x clamped to the limits first."""
    centre, scale, lower, upper = (values.astype(np.float32) for values in marginals[:4])
    z = np.empty(x.shape, np.float32)
    standardise_rows(readable(x), lower, upper, centre, scale, z)
    return z


def _unstandardised(constant: Array, slopes: Array, marginals: Marginals) -> tuple[Array, Array]:
    coefficients = (slopes.T / marginals.scale).T
    return coefficients, np.asarray(constant - marginals.centre @ coefficients)
