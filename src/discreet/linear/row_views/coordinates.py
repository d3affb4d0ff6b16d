"""The coordinates of a descent: how rows are mapped before their gradients are added up.

All coordinates are public: they follow from released numbers, and each maps every row by itself. How they are chosen,
and the way back to the encoded columns, is up to the strategy (``linear/glm/frames.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from discreet.linear.gate.checks import dense, refuse_other_shapes
from discreet.linear.gate.records import RowMap
from discreet.linear.kernels.centred import Centre, centred_norms
from discreet.linear.kernels.csr_entries import scale_entries
from discreet.linear.kernels.kernel import readable, row_norms
from discreet.linear.kernels.rowwise import find_half_octaves, find_standard_norms, standardise_rows, times
from discreet.linear.row_views.curve_bases import Basis, gather_rows
from discreet.trusted.queries import View

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]

_SMALLEST = 1e-9  # a row shorter than this has no direction
_LONGEST = 2.0  # row of standardised coordinates


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
class _OfColumns(RowMap):
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

    def __call__(self, x: Any, y: Any) -> Any:
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

    def __call__(self, x: Any, y: Any) -> Any:
        return standardise(dense(x), self.marginals)

    def entries(self, data: Matrix, indices: Any) -> Matrix:
        """Return clip(x, lower, upper) / scale of stored numbers; the limits must be on either side of zero."""
        return _scaled_entries(data, indices, self.marginals, self.width)


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

    def __call__(self, x: Any, y: Any) -> Matrix:
        self._refuse_other_width(dense(x).shape[1])
        return times(standardise(x, self.marginals), self.rotation[1:], plus=self.rotation[0])

    def tiling(self, width: int) -> tuple[tuple[Matrix, Matrix, Matrix, Matrix], Array]:
        """Return limits, centre and scale of each column, and the rotation, for rows in tiles."""
        return _in_float32(self.marginals, width), self.rotation

    def _refuse_other_width(self, width: int) -> None:
        refuse_other_shapes(rotation=(self.rotation, (width + 1, width + 1)))


@dataclass(frozen=True, eq=False)
class SmoothCurves(Whitened):
    """White coordinates of curves, for rows before they are curves."""

    basis: Basis
    tiled: ClassVar[bool] = False

    def __call__(self, x: Any, y: Any) -> Matrix:
        self._refuse_other_width(self.basis.columns.width)
        slopes = self.rotation[1:] / self.marginals.scale[:, None]
        return gather_rows(x, self.basis, slopes, self.rotation[0] - self.marginals.centre @ slopes)


Coordinates = Standardised | Diagonal | Whitened | SmoothCurves


@dataclass(frozen=True, eq=False)
class Merged(View):
    """Encoded rows times a public matrix, in white coordinates."""

    merge: Array
    white: Whitened

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.white.width

    def __call__(self, x: Any, y: Any) -> Matrix:
        return self.white(times(dense(x), self.merge), y)


@dataclass(frozen=True, eq=False)
class StandardRows(View):
    """The rows (x - centre) / scale, with x clamped to its limits first."""

    marginals: Marginals

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.marginals.centre)

    def __call__(self, x: Any, y: Any) -> Any:
        return standardise(dense(x), self.marginals)

    def content(self) -> tuple[Any, ...]:
        """Return the numbers that move rows."""
        return self.marginals[:4]


@dataclass(frozen=True, eq=False)
class CurveDirections(View):
    """The rows of a basis times a public matrix, plus a constant."""

    basis: Basis
    matrix: Array
    constant: Array

    @property
    def width(self) -> int:
        """The number of columns."""
        return int(self.matrix.shape[1])

    def __call__(self, x: Any, y: Any) -> Matrix:
        return gather_rows(x, self.basis, self.matrix, self.constant)


LOWEST, HIGHEST = -28, 28
"""Half octaves: from 2**-14 to 2**14."""


@dataclass(frozen=True, eq=False)
class RowNorms(View):
    """The norm of each encoded row."""

    def __call__(self, x: Any, y: Any) -> Array:
        return row_norms(x, 0.0)


@dataclass(frozen=True, eq=False)
class StandardNorms(View):
    """The norm of (x - centre) / scale of each row."""

    marginals: Marginals

    def __call__(self, x: Any, y: Any) -> Array:
        return standard_norms(x, self.marginals)

    def content(self) -> tuple[Any, ...]:
        """Return the numbers that move rows."""
        return self.marginals[:4]


@dataclass(frozen=True, eq=False)
class HalfOctaves(View):
    """The half octave of a size: that of each row by another view, or the first number of each row itself."""

    sizes: RowNorms | StandardNorms | None = None
    cells = HIGHEST - LOWEST + 1

    def __call__(self, x: Any, y: Any) -> NDArray[np.int64]:
        values = x[:, 0] if self.sizes is None else self.sizes(x, y)
        half_octaves = np.empty(len(values), np.int64)
        find_half_octaves(readable(values), LOWEST, HIGHEST, half_octaves)
        return half_octaves - LOWEST


def standardise(x: Any, marginals: Marginals) -> Any:
    """Return (x - centre) / scale, with x clamped to the limits first."""
    z = np.empty(x.shape, np.float32)
    standardise_rows(readable(x), *_in_float32(marginals, x.shape[1]), z)
    return z


def _in_float32(marginals: Marginals, width: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return limits, centre and scale of ``width`` columns, in the order and the type of the kernels."""
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
    data = _scaled_entries(x.data, x.indices, marginals, x.shape[1])
    z = csr_array((data, x.indices, x.indptr), shape=x.shape)
    return centred_norms(z, 0.0, Centre.near(marginals.centre / marginals.scale))


def _scaled_entries(data: Matrix, indices: Any, marginals: Marginals, width: int) -> Matrix:
    lower, upper, _, scale = _in_float32(marginals, width)
    out = np.empty(len(data), np.float32)
    scale_entries(readable(data), readable(indices), lower, upper, scale, out)
    return out
