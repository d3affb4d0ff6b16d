"""The clipped gradient of rows in tiles, for losses of one score with slopes of at most 1: :func:`tiled_gradient`.

>>> from discreet.linear.kernels.row_tiles import tiles_of
>>> from discreet.linear.losses import Logistic
>>> tiles, norms = tiles_of(np.array([[3.0, 4.0], [0.25, 0.5]], np.float32))
>>> found = tiled_gradient(Logistic(), tiles, np.array([1, 0]), np.zeros(3), norms, 1.0, grid=2.0**-30)
>>> (found * 2.0**-30).round(2)
array([ 0.  , -0.47, -0.55])
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvalidParameter
from discreet.linear.kernels.coefficients import (
    RecordArrays,
    Spare,
    Step,
    bare,
    clip_residuals,
    fill_block,
    spare_for,
)
from discreet.linear.kernels.kernel import clip_margin, limit_range, loss_code, readable
from discreet.linear.kernels.row_tiles import (
    LANES,
    LARGEST,
    STEP,
    TILE,
    Tiles,
    add_tile,
    score_tile,
    steps_of,
)
from discreet.linear.kernels.rowwise import in_threads
from discreet.linear.losses import Loss

Array = NDArray[Any]
Floats = NDArray[np.float64]

_FINEST = (
    2.0**-13
)  # steps of a residual of at most 1: with 15 bits of a number, 4 products are within 32 bits
_TASK = 2**12  # tiles


def takes(loss: Loss) -> bool:
    """Whether the loss is one that is known here."""
    one = loss.outputs == 1 and loss.machine_code is not None
    return one and loss.lipschitz is not None and loss.lipschitz <= 1


def tiled_gradient(
    loss: Loss,
    tiles: Tiles,
    y: NDArray[Any],
    theta: Floats,
    norms: Floats,
    clip_norm: float,
    grid: float,
    weights: NDArray[Any] | None = None,
) -> NDArray[np.int64]:
    """The sum over the rows of the clipped gradients, in whole steps of ``grid``, a power of 2.

    As :func:`~discreet.linear.kernels.kernel.hardened_clipped_gradient` with a constant of 0; ``norms`` are those of
    :func:`~discreet.linear.kernels.row_tiles.tiles_of`.

    Guarantee (docs/engines.md: E21): a row q of whole steps adds k q; the integer k is its residual, clipped and
    rounded: adding or removing a row changes the result by a vector of norm at most ``clip_norm / grid``, which
    depends on that row only.
    """
    if math.frexp(grid)[0] != 0.5 or not takes(loss):
        raise InvalidParameter(
            "grid", grid, "must be a power of 2, for a loss of one score and slopes within 1."
        )
    fine = max(_FINEST, grid / STEP)
    clip = clip_norm * (1 - clip_margin(np.dtype(np.float32)))
    code, least = loss_code(loss), limit_range(np.dtype(np.float32))[0]
    step = Step(code, steps_of(theta[1:]), np.zeros(1, np.float32), 0.0, clip, least, 1.0)
    own = np.empty(0, np.float32) if weights is None else _column(weights)
    data = RecordArrays(readable(tiles), _column(y), own, readable(norms))
    tasks = -(-len(tiles) // _TASK)
    parts = np.zeros((tasks, len(theta)), np.int64)

    def work(task: int) -> None:
        first, last = len(tiles) * task // tasks, len(tiles) * (task + 1) // tasks
        _add_tiles(step, data, _room(), first, last, fine, _sums_for(tiles), parts[task])

    in_threads(tasks, work)
    return np.asarray(parts.sum(0) * round(fine * STEP / grid))


def _column(values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return readable(np.asarray(values).astype(np.float32, copy=False))


class _TileWorkspace(NamedTuple):
    """What is known of the rows of a tile; ``steps`` are their residuals, rounded."""

    targets: Array
    limits: Array
    weights: Array
    residuals: Array
    steps: Array
    spare: Spare


def _room() -> _TileWorkspace:
    known = np.zeros((2, TILE), np.float32)
    residuals, steps = np.zeros((1, TILE), np.float32), np.zeros(TILE, np.int16)
    return _TileWorkspace(
        known[0], known[1], np.ones(TILE, np.float32), residuals, steps, spare_for(np.float32)
    )


def _sums_for(tiles: Tiles) -> NDArray[np.int32]:
    return np.zeros((tiles.shape[1], LANES), np.int32)


@bare
def _add_tiles(
    step: Step,
    data: RecordArrays,
    room: _TileWorkspace,
    first: int,
    last: int,
    fine: float,
    sums: Array,
    counts: Array,
) -> None:
    """Add the gradients of tiles ``first <= t < last`` to ``counts``; ``sums`` holds zeros, before and after."""
    gap, per_unit, none = np.float32(fine), np.float32(1.0 / fine), np.float32(0)
    used, most = np.int64(0), np.int64(2**31 - 1)
    for t in range(first, last):
        start = t * TILE
        count = min(TILE, data.targets.size - start)
        fill_block(step, data, start, count, room.targets, room.limits, room.weights)
        for r in range(TILE):
            room.limits[r] = max(room.limits[r] - gap, none)
        score_tile(data.matrix, t, step.weights, step.offsets[0], room.residuals)
        clip_residuals(step.loss, room.residuals, room.targets, room.limits, room.weights, room.spare)
        for r in range(TILE):
            room.steps[r] = np.int16(np.rint(room.residuals[0, r] * per_unit))
        bound = _bound(data.norms, start, count, per_unit)
        if used + bound > most:
            _carry(sums, counts)
            used = np.int64(0)
        used += bound
        add_tile(data.matrix, t, room.steps, sums)
    _carry(sums, counts)


@bare
def _bound(norms: Array, start: int, count: int, per_unit: Any) -> Any:
    """What the rows of a tile may add to one of the sums: four products, of numbers no larger than the norms."""
    largest = np.int64(0)  # of floats that are not negative, read as integers
    for r in range(count):
        largest = max(largest, np.float64(norms[np.uint64(start) + np.uint64(r)]).view(np.int64))
    norm = np.int64(largest).view(np.float64) / STEP + 1.0
    number = np.int64(norm) if norm < LARGEST else np.int64(LARGEST)
    return np.int64(TILE // LANES) * np.int64(per_unit) * number


@bare
def _carry(sums: Array, counts: Array) -> None:
    for j in range(sums.shape[0]):
        total = np.int64(0)
        for lane in range(LANES):
            total += np.int64(sums[j, lane])
            sums[j, lane] = 0
        counts[j + 1] += total
