"""Second moments of the standardised rows, privately, and the rotation that makes them equal: :func:`whitened`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from discreet.clipping import clip_rows
from discreet.linear.recipe.coordinates import Whitened, standardised
from discreet.linear.recipe.marginals import Marginals
from discreet.linear.recipe.records import Records
from discreet.linear.recipe.spending import Stage
from discreet.linear.recipe.sums import Sums

Array = NDArray[np.float64]

_LEAST_EIGENVALUE = 0.02  # above the noise; flatter directions are left flat
_SHORTEST, _LONGEST = 1.2, 4.0  # row clip in typical row norms
_TOLERATED = 0.1  # share of a typical eigenvalue that the noise may reach before rows are clipped harder
_HARDENED_BLOCK = 2**20


def whitened(records: Records, marginals: Marginals, radius: float, count: float, stage: Stage) -> Whitened:
    """Coordinates in which the rows (1, standardised features) have second moments near the identity.

    ``radius`` is the typical norm of the standardised features, ``count`` the noisy number of records.

    Guarantee: rows w are clipped to R, and what is released is the upper triangle of the sum of w w', its
    off-diagonal entries times sqrt(2): a vector of norm |w|^2 <= R^2 for each record, which is the sensitivity.
    """
    size = len(marginals.centre) + 1
    typical = math.hypot(1.0, radius)
    wide = math.sqrt(_TOLERATED * stage.strength * count / math.sqrt(2 * size))
    limit = min(max(wide, _SHORTEST * typical), _LONGEST * typical)
    sums = Sums(stage, size * (size + 1) // 2, limit**2)
    for x, _, weights in records.chunks():
        rows = np.ones((len(x), size), np.float32)
        rows[:, 1:] = standardised(x, marginals)
        _add_products(sums, clip_rows(rows, limit), weights, stage.arithmetic)
    matrix = _unpacked(sums.released(), size) / count
    floor = (
        sums.noise * math.sqrt(2 * size) / count + _LEAST_EIGENVALUE
    )  # spectral norm of the noise, and some
    eigenvalues, vectors = np.linalg.eigh(matrix)
    roots = np.sqrt(np.maximum(eigenvalues, floor))
    return Whitened(marginals, vectors / roots, vectors * roots, float(eigenvalues[0] / floor))


def _add_products(sums: Sums, rows: NDArray[np.float32], weights: Array | None, arithmetic: str) -> None:
    upper = np.triu_indices(rows.shape[1])
    double = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    if arithmetic == "float":
        weighted = rows if weights is None else rows * weights[:, None].astype(np.float32)
        sums.add_total(np.asarray((weighted.T @ rows)[upper] * double, np.float64))
        return
    step = max(1, _HARDENED_BLOCK // len(double))
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.float64) * (1 - 1e-12)  # products are rounded
        chosen = None if weights is None else weights[start : start + step]
        sums.add_rows(0, part[:, upper[0]] * part[:, upper[1]] * double, chosen)


def _unpacked(triangle: Array, size: int) -> Array:
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = triangle
    matrix = matrix + matrix.T
    matrix[~np.eye(size, dtype=bool)] /= math.sqrt(2)
    matrix[np.eye(size, dtype=bool)] /= 2
    return matrix
