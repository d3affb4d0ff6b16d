"""Coordinates in which the second moments of the rows are equal, from a private release of them: :func:`whiten`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.coordinates import Marginals, Whitened
from discreet.linear.gate.records import Records
from discreet.linear.gate.second_moments import CurveDirections, SecondMoments, StandardRows
from discreet.linear.glm.spending import Stage

Array = NDArray[np.float64]

WIDEST = 2048
"""Columns up to which rows are whitened: its cost grows with their square."""
LEAST_EIGENVALUE = 0.02  # above the noise; flatter directions are left flat

_SHORTEST, _LONGEST = 1.2, 4.0  # row clip in typical row norms
_TOLERATED = 0.1  # share of a typical eigenvalue that the noise may reach before rows are clipped harder


class Moments(NamedTuple):
    """Noisy second moments of rows, and the spectral norm of their noise."""

    matrix: Array
    noise: float


def whiten(records: Records, marginals: Marginals, radius: float, count: float, stage: Stage) -> Whitened:
    """Coordinates in which the rows (1, standardised features) have second moments near the identity.

    ``radius`` is the typical norm of the standardised features, ``count`` the noisy number of records.
    """
    matrix, noise = second_moments(records, StandardRows(marginals), radius, count, stage)
    floor = noise + LEAST_EIGENVALUE
    eigenvalues, vectors = np.linalg.eigh(matrix)
    roots = np.sqrt(np.maximum(eigenvalues, floor))
    return Whitened(marginals, vectors / roots, vectors * roots, matrix, noise)


def second_moments(
    records: Records, rows: StandardRows | CurveDirections, radius: float, count: float, stage: Stage
) -> Moments:
    """The mean of (1, z)' (1, z) over rows z of typical norm ``radius``, clipped as far as the noise calls for."""
    size = rows.width + 1
    typical = math.hypot(1.0, radius)
    wide = math.sqrt(_TOLERATED * stage.strength * count / math.sqrt(2 * size))
    query = SecondMoments(rows, min(max(wide, _SHORTEST * typical), _LONGEST * typical))
    noisy, noise, grid = stage.ask(records, query)
    return Moments(query.matrix(noisy, grid) / count, noise * math.sqrt(2 * size) / count)
