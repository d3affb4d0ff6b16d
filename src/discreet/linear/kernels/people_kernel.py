"""One pass over the rows of a dense matrix that belong to people: the mean gradient of each person, clipped, summed.

Rows of a person follow one another. Their residuals are taken in blocks, as for single rows, with limits that clip
nothing; the weighted gradients of a person are added up in float64, and their sum is clipped and cut to whole steps
of the grid, once for each person (docs/engines.md: E17).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.linear.kernels.coefficients import Data, Step, compiled
from discreet.linear.kernels.dense_kernel import Room, clip_block

Array = NDArray[Any]

_UNIT = 2.0**-52  # twice the rounding error of float64
_LOST = 2.0**-510  # more than the root of a square too small for float64


@compiled
def add_people(
    step: Step,
    data: Data,
    people: Array,
    room: Room,
    first: int,
    last: int,
    clip_norm: float,
    grid: float,
    own: Array,
    counts: Array,
) -> None:
    """Add the clipped gradients of the people in rows ``first <= i < last`` to ``counts``, in whole grid steps.

    Both ``counts`` and ``own``, which holds float64 zeros, have the shape (outputs, d + 1), their first column for
    the constant. ``step.clip`` is infinite.

    Guarantee: what is added for a person depends on the person's own rows, bit for bit, and has norm at most
    ``clip_norm / grid``.
    """
    size, current = room.rows.shape[0], people[first]
    for start in range(first, last, size):
        count = min(size, last - start)
        clip_block(step, data, room, start, count)
        for r in range(count):
            if people[start + r] != current:
                _add_person(own, clip_norm, grid, counts)
                current = people[start + r]
            for k in range(own.shape[0]):
                residual = np.float64(room.residuals[k, r])
                if residual != 0.0:  # so that rows that are not finite are not looked at
                    own[k, 0] += residual * step.constant
                    for j in range(data.matrix.shape[1]):
                        own[k, j + 1] += residual * np.float64(data.matrix[start + r, j])
    _add_person(own, clip_norm, grid, counts)


@compiled
def _add_person(own: Array, clip_norm: float, grid: float, counts: Array) -> None:
    """Add what a person's rows gave, clipped and cut toward zero, and make room for the next one."""
    squares = 0.0
    for k in range(own.shape[0]):
        for j in range(own.shape[1]):
            squares += own[k, j] * own[k, j]
    norm = math.sqrt(squares) * (1.0 + (own.size + 16) * _UNIT) + math.sqrt(own.size) * _LOST
    steps = 1.0 / grid if norm <= clip_norm else clip_norm / norm * (1.0 - 4.0 * _UNIT) / grid
    for k in range(own.shape[0]):
        for j in range(own.shape[1]):
            if norm < math.inf:  # not for NaN, either
                counts[k, j] += np.int64(own[k, j] * steps)
            own[k, j] = 0.0
