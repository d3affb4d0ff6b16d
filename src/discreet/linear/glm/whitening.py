"""Second moments of the standardised rows, privately, and the rotation that makes them equal: :func:`whitened`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from discreet.core.clipping import clip_rows
from discreet.linear.glm.coordinates import Whitened, standardised
from discreet.linear.glm.marginals import Marginals
from discreet.linear.glm.noisy_sums import Sums
from discreet.linear.glm.records import Records
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

LEAST_EIGENVALUE = 0.02  # above the noise; flatter directions are left flat
_SHORTEST, _LONGEST = 1.2, 4.0  # row clip in typical row norms
_TOLERATED = 0.1  # share of a typical eigenvalue that the noise may reach before rows are clipped harder
_BLOCK = 2**18  # numbers that are multiplied at once


class Moments(NamedTuple):
    """Noisy second moments of rows, and the spectral norm of their noise."""

    matrix: Array
    noise: float


def whitened(records: Records, marginals: Marginals, radius: float, count: float, stage: Stage) -> Whitened:
    """Coordinates in which the rows (1, standardised features) have second moments near the identity.

    ``radius`` is the typical norm of the standardised features, ``count`` the noisy number of records.
    """
    rows = ((standardised(x, marginals), weights) for x, _, weights in records.chunks())
    matrix, noise = second_moments(rows, len(marginals.centre), radius, count, stage)
    floor = noise + LEAST_EIGENVALUE
    eigenvalues, vectors = np.linalg.eigh(matrix)
    roots = np.sqrt(np.maximum(eigenvalues, floor))
    return Whitened(marginals, vectors / roots, vectors * roots, matrix, noise)


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
    lattice = Lattice.of(sums.grid)
    clip = limit - lattice.rounding(size)
    for z, weights in chunks:
        rows = np.ones((len(z), size), np.float32)
        rows[:, 1:] = z
        sums.add_total(lattice.products(clip_rows(rows, clip), weights))
    matrix = lattice.unpacked(sums.released(), size) / count
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
        """The sum of w w' over the rows, its upper triangle in units of the grid.

        Guarantee: all sums on the way are whole numbers that float64 holds, in whatever order they are taken, so each
        row adds what it would add alone. A weight below 1 shortens the row by its root, and what it leaves is cut
        toward zero: rows whose weights sum to at most 1 add no more than one row could, however many they are.
        """
        size = rows.shape[1]
        total = np.zeros((size, size), np.int64)
        for start in range(0, len(rows), block := max(1, _BLOCK // size)):
            part = rows[start : start + block].astype(np.float64)
            steps = np.rint(part / self.step)
            if weights is not None:
                own = weights[start : start + block, None]
                steps = np.where(own == 1, steps, np.trunc(part * np.sqrt(own) / self.step))
            total += dsyrk(1.0, steps.T).astype(np.int64)
        upper = np.triu_indices(size)
        return np.asarray(total[upper] * np.where(upper[0] == upper[1], self.diagonal, self.beside))

    def unpacked(self, triangle: Array, size: int) -> Array:
        """The symmetric matrix of which :meth:`products` made a vector."""
        upper = np.triu_indices(size)
        matrix = np.zeros((size, size))
        matrix[upper] = np.where(upper[0] == upper[1], 0.5, self.diagonal / self.beside) * triangle
        return matrix + matrix.T
