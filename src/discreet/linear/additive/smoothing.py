"""Coordinates for curves: what is smooth and well known is long in them, what is rough is short.

The noise of a gradient grows with the norm of the rows, so every direction that they have costs something. A curve
has many, most of which say little: bends are shortened until a row has no more directions than the budget can carry
(:func:`smoothed`). At one end that is the line.

Second moments of all hats would drown in noise where records are few. Then only those of the lines and levels are
asked for, and the rest is filled in from the histograms, bends of different columns counting as uncorrelated
(:class:`Outline`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.basis import Basis
from discreet.linear.additive.curves import hat_covariance
from discreet.linear.additive.histograms import Histograms
from discreet.linear.glm.coordinates import Whitened
from discreet.linear.glm.marginals import Marginals
from discreet.linear.glm.whitening import LEAST_EIGENVALUE, Moments

Array = NDArray[np.float64]

_DIMENSIONS, _MORE = 0.8, 0.1  # of a row, for each root of the signal: at least, and beside lines and levels


@dataclass(frozen=True, eq=False)
class Outline:
    """Fewer columns that tell most of the standardised ones: ``down`` leads to them, ``up`` back.

    ``rest`` are the second moments of what the way back leaves out.
    """

    down: Array
    up: Array
    rest: Array

    @property
    def width(self) -> int:
        """How many columns the outline has."""
        return int(self.down.shape[1])

    @classmethod
    def whole(cls, width: int) -> Outline:
        """All columns, as they are."""
        return cls(np.eye(width), np.eye(width), np.zeros((width, width)))

    def moments(self, seen: Moments) -> tuple[Array, Array]:
        """Second moments of (1, all columns) from noisy ones of (1, the outline); and not below their noise."""
        up = np.zeros((len(self.up) + 1, self.width + 1))
        up[0, 0], up[1:, 1:] = 1.0, self.up
        filled = up @ _at_least(0.0, seen.matrix) @ up.T
        filled[1:, 1:] += self.rest
        return filled, _at_least(seen.noise + LEAST_EIGENVALUE, filled)


def _at_least(floor: float, matrix: Array) -> Array:
    """The matrix with its eigenvalues raised to the floor."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


def outline_of(basis: Basis, histograms: Histograms, marginals: Marginals) -> Outline:
    """The line of each curve, standardised, and the levels of categories. Post-processing."""
    width, lines = basis.columns.width, len(basis.curves)
    first = basis.starts[lines]
    levels = sum(basis.inputs.groups)
    down, rest = np.zeros((width, lines + levels)), np.zeros((width, width))
    up = np.zeros((width, lines + levels))
    for j, (curve, start) in enumerate(zip(basis.curves, basis.starts, strict=False)):
        part = slice(start, start + len(curve.kept))
        scale = marginals.scale[part]
        hats = hat_covariance(histograms, curve) / np.outer(scale, scale)
        dropped = np.delete(curve.knots, curve.kept)[0]
        line = (curve.knots[curve.kept] - dropped) * scale
        line /= np.sqrt(max(float(line @ hats @ line), 1e-9))
        along = hats @ line
        down[part, j], up[part, j] = line, along
        rest[part, part] = hats - np.outer(along, along)
    same = np.arange(levels)
    down[first + same, lines + same] = up[first + same, lines + same] = 1.0
    others = np.arange(first + levels, width)
    rest[others, others] = 1.0
    return Outline(down, up, rest)


def smoothed(marginals: Marginals, moments: tuple[Array, Array], roughness: Array, signal: float) -> Whitened:
    """Coordinates in which moments and weighted roughness are white together.

    The weight is the least one with which a row has no more dimensions than the signal can carry.
    """
    found, floored = moments
    weights = (0.0, *(2.0**power for power in range(-20, 11)))
    left = [float(np.trace(np.linalg.solve(floored + weight * roughness, found))) for weight in weights]
    room = max(_DIMENSIONS * math.sqrt(signal), left[-1] + _MORE * math.sqrt(signal))
    place = next(place for place, size in enumerate(left) if size <= room)
    eigenvalues, vectors = np.linalg.eigh(floored + weights[place] * roughness)
    roots = np.sqrt(eigenvalues)
    return Whitened(marginals, vectors / roots, vectors * roots, dimensions=left[place])
