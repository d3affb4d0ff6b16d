"""Symmetric matrices from their released upper triangles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.linear.gate.compiled_sums import NewtonStep
from discreet.linear.kernels.moment_lattice import MomentLattice

Array = NDArray[np.float64]


class Derivatives(NamedTuple):
    """The sums g, H and J of a :class:`~discreet.linear.gate.compiled_sums.NewtonStep`, with noise."""

    g: Array
    h: Array
    j: Array


def symmetric(triangle: Array, size: int, grid: float) -> Array:
    """The matrix of ``size`` columns whose triangle was released, with the entries off the diagonal enlarged."""
    lattice, upper = MomentLattice.of(grid), np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[upper] = np.where(upper[0] == upper[1], 0.5, lattice.diagonal / lattice.beside) * triangle
    return matrix + matrix.T


def derivatives(query: NewtonStep, noisy: Array, grid: float) -> Derivatives:
    """What a Newton step has released, in the units of the problem."""
    size, scale = len(query.theta), query.scale
    triangle = size * (size + 1) // 2
    return Derivatives(
        noisy[:size] / scale.slope,
        symmetric(noisy[size : size + triangle], size, grid) / scale.curvature,
        symmetric(noisy[size + triangle :], size, grid) / scale.square,
    )
