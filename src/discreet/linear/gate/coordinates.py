"""The coordinates of a descent: how rows are mapped before their gradients are added up.

All coordinates are public: they follow from released numbers, and each maps every row by itself. How they are chosen,
and the way back to the encoded columns, is up to the strategy (``linear/glm/frames.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

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

_SMALLEST = 1e-9  # a row shorter than this has no direction
_LONGEST = 2.0  # row of standardised coordinates


class ReleasedCounts(NamedTuple):
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
    released: ReleasedCounts | None = None


@dataclass(frozen=True, eq=False)
class _OfColumns(Data):
    """Coordinates made of the marginals of the columns."""

    marginals: Marginals

    def content(self) -> tuple[Any, ...]:
        """What moves rows."""
        return (*self.marginals[:4], *super().content()[1:])

    @property
    def width(self) -> int:
        """The number of columns beside the constant."""
        return len(self.marginals.centre)


@dataclass(frozen=True, eq=False)
class Standardised(_OfColumns):
    """((x - centre) / scale) / radius, each row clipped to a norm of 2; the constant is 0.3.

    If no typical radius was found, rows are brought to norm 1 instead.
    """

    radius: float
    radius_found: bool
    constant: ClassVar[float] = 0.3

    def apply(self, x: Any) -> Any:
        """The rows in these coordinates."""
        z = standardise(dense(x), self.marginals) / np.float32(self.radius)
        norms = np.maximum(row_norms(z, 0.0), _SMALLEST)
        limit = _LONGEST / norms if self.radius_found else 1 / norms
        z *= np.minimum(1.0 if self.radius_found else _LONGEST, limit)[:, None].astype(np.float32)
        return z


@dataclass(frozen=True, eq=False)
class Diagonal(_OfColumns):
    """(x - centre) / scale, for wide tables.

    Sparse rows are not centred here: the sums of their gradients are, by ``centre``, which is what it would take.
    """

    centre: Centre | None
    constant: ClassVar[float] = 1.0

    @classmethod
    def of(cls, marginals: Marginals, sparse: bool) -> Diagonal:
        """The coordinates of dense rows, or of sparse ones, whose centre is rounded so that sums can take it off."""
        if not sparse:
            return cls(marginals, None)
        middle = Centre.near(marginals.centre / marginals.scale)
        return cls(marginals._replace(centre=middle.values * marginals.scale), middle)

    def apply(self, x: Any) -> Any:
        """The rows in these coordinates, sparse ones not centred."""
        return standardise(x, self.marginals)


@dataclass(frozen=True, eq=False)
class Whitened(_OfColumns):
    """(1, (x - centre) / scale) times ``rotation``; the constant is part of the rows."""

    rotation: Array
    constant: ClassVar[float] = 0.0
    tiled: ClassVar[bool] = True

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.rotation)

    def apply(self, x: Matrix) -> Matrix:
        """The rows in these coordinates."""
        self._refuse_other_width(dense(x).shape[1])
        return times(standardise(x, self.marginals), self.rotation[1:], plus=self.rotation[0])

    def tile(self, x: Matrix) -> tuple[Tiles, Array]:
        """The rows in tiles, which round them, and bounds of their norms."""
        self._refuse_other_width(dense(x).shape[1])
        return whiten_into_tiles(readable(x), _in_float32(self.marginals, x.shape[1]), self.rotation)

    def _refuse_other_width(self, width: int) -> None:
        refuse_other_shapes(rotation=(self.rotation, (width + 1, width + 1)))


@dataclass(frozen=True, eq=False)
class SmoothCurves(Whitened):
    """White coordinates of curves, for rows before they are curves."""

    basis: Basis
    tiled: ClassVar[bool] = False

    def apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The rows in these coordinates."""
        self._refuse_other_width(self.basis.columns.width)
        slopes = self.rotation[1:] / self.marginals.scale[:, None]
        return gather_rows(x, self.basis, slopes, self.rotation[0] - self.marginals.centre @ slopes)


Coordinates = Standardised | Diagonal | Whitened | SmoothCurves


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
