"""Coordinates of a descent: white ones where the second moments of rows can be seen (:func:`choose_coordinates`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.compiled_sums import SecondMoments
from discreet.linear.gate.records import Records, WhiteNorms
from discreet.linear.glm.budget_split import WHITENING, BudgetSplit, at_most_half
from discreet.linear.glm.frames import DiagonalFrame, Frame, StandardFrame, WhiteFrame
from discreet.linear.glm.marginals import TypicalSize, typical_size
from discreet.linear.glm.public_columns import public_variance
from discreet.linear.glm.triangles import symmetric
from discreet.linear.row_views.coordinates import CurveDirections, Marginals, StandardNorms, StandardRows
from discreet.trusted.spending import BudgetAllocator, StagePermit

Array = NDArray[np.float64]

WIDEST = 2048
"""Columns up to which rows are whitened: its cost grows with their square."""
LEAST_EIGENVALUE = 0.02  # above the noise; flatter directions are left flat

_SHORTEST, _LONGEST = 1.2, 4.0  # row clip in typical row norms
_TOLERATED = 0.1  # share of a typical eigenvalue that the noise may reach before rows are clipped harder


class NoisyMoments(NamedTuple):
    """Noisy second moments of rows, and the spectral norm of their noise."""

    matrix: Array
    noise: float


def choose_coordinates(
    records: Records, marginals: Marginals, count: float, spending: BudgetAllocator
) -> tuple[Frame, float]:
    """Frame for the descent, and the typical norm of a row in them."""
    columns = records.columns
    size, split = columns.width + 1, BudgetSplit.of(count, columns, spending)
    share = split.for_row_norms
    enough, wide = split.sees_second_moments(size), records.sparse or size > WIDEST
    stage = spending.stage("row-norms", share / 2 if enough and not wide else share)
    radius = _radius(records, marginals, stage)
    if records.sparse or (wide and enough):
        diagonal = DiagonalFrame.of(marginals, radius.size, records.sparse)
        return diagonal, diagonal.row_size
    if not enough:
        plain = StandardFrame(marginals, radius.size, radius.found, columns.text > columns.width / 2)
        return plain, plain.row_size
    stage = spending.stage("whitening", at_most_half(WHITENING, spending))
    white = whiten(records, marginals, radius.size, count, stage)
    stage = spending.stage("whitened-row-norms", share / 2)
    typical = typical_size(records, WhiteNorms(white.map), stage).size
    return white, min(max(typical, 1.0), 2 * math.sqrt(size))


def _radius(records: Records, marginals: Marginals, stage: StagePermit) -> TypicalSize:
    """The typical norm of the standardised features; a guess if the noise hides it."""
    typical = typical_size(records, StandardNorms(marginals), stage)
    if typical.found:
        return typical
    expected = float((public_variance(records.columns) / marginals.scale**2).sum())
    return TypicalSize(0.5 * math.sqrt(max(expected, 1e-6)), False)


def whiten(
    records: Records, marginals: Marginals, radius: float, count: float, stage: StagePermit
) -> WhiteFrame:
    """Frame in which the rows (1, standardised features) have second moments near the identity.

    ``radius`` is the typical norm of the standardised features, ``count`` the noisy number of records.
    """
    matrix, noise = second_moments(records, StandardRows(marginals), radius, count, stage)
    floor = noise + LEAST_EIGENVALUE
    eigenvalues, vectors = np.linalg.eigh(matrix)
    roots = np.sqrt(np.maximum(eigenvalues, floor))
    return WhiteFrame(marginals, vectors / roots, vectors * roots, matrix, noise)


def second_moments(
    records: Records, rows: StandardRows | CurveDirections, radius: float, count: float, stage: StagePermit
) -> NoisyMoments:
    """The mean of (1, z)' (1, z) over rows z of typical norm ``radius``, clipped as far as the noise calls for."""
    size = rows.width + 1
    typical = math.hypot(1.0, radius)
    wide = math.sqrt(_TOLERATED * stage.strength * count / math.sqrt(2 * size))
    query = SecondMoments(rows, min(max(wide, _SHORTEST * typical), _LONGEST * typical))
    noisy, noise, grid = stage.ask(records, query)
    return NoisyMoments(symmetric(noisy, size, grid) / count, noise * math.sqrt(2 * size) / count)
