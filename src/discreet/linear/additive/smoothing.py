"""Coordinates for curves: what is smooth and well known is long in them, what is rough is short.

The noise of a gradient grows with the norm of the rows, so every direction that they have costs something. A curve
has many, most of which say little: bends are shortened until a row has no more dimensions than the budget can carry
(:func:`smooth_directions`). At one end that is the line.

How the hats of one column go together follows from its histogram, and how those of a grid do from its cells
(:func:`block_moments`). How columns go together does not: it has to be asked for. Second moments of all directions
would drown in noise where records are few, so only those of the longest are (:func:`visible`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.basis import Basis, Pair, hats
from discreet.linear.additive.curves import hat_covariance
from discreet.linear.additive.histograms import Histograms
from discreet.linear.glm.coordinates import Whitened
from discreet.linear.glm.marginals import Marginals
from discreet.linear.glm.whitening import LEAST_EIGENVALUE, Moments

Array = NDArray[np.float64]

_DIMENSIONS, _POWER = 0.14, 0.75  # of a row beside lines and levels: so many for this power of the signal
_SMOOTH = 30.0  # over the number of records: the least weight of roughness, because chance is rough, too
_CLEAR, _CLEAR_ENOUGH = 0.7, 5.0  # noise of the second moments up to which a direction is asked for
_POINTS = 3  # of a cell of a grid, each way, at which its hats are looked at


@dataclass(frozen=True, eq=False)
class Directions:
    """Coordinates of standardised columns, the longest first.

    ``down`` leads to them, ``back`` is its inverse transposed, ``lengths`` are the expected second moments.
    """

    down: Array
    back: Array
    lengths: Array


def smooth_directions(
    known: Array, roughness: Array, lines: Iterable[Array], count: float, signal: float, room: float
) -> Directions:
    """Directions in which known moments and weighted roughness are white together.

    The weight is the least one with which a row has no more dimensions than the signal can carry. Lines stay apart
    from bends: noise stays long in what is short, and would come into them.
    """
    floor = np.diag(np.maximum(1 - np.diag(known), LEAST_EIGENVALUE))  # as scales are: see RARE
    for line in lines:
        image = known @ line
        size = max(float(line @ image), 1e-9)
        aside = np.eye(len(known)) - np.outer(line, image) / size
        floor = aside.T @ floor @ aside + LEAST_EIGENVALUE * np.outer(image, image) / size
    floored = known + floor
    weights = [_SMOOTH / count * 2.0 ** (power / 2) for power in range(60)]
    left = [float(np.trace(np.linalg.solve(floored + weight * roughness, known))) for weight in weights]
    room = left[-1] + _DIMENSIONS * room * signal**_POWER
    place = next((place for place, size in enumerate(left) if size <= room), len(left) - 1)
    values, vectors = np.linalg.eigh(floored + weights[place] * roughness)
    down, back = vectors / np.sqrt(values), vectors * np.sqrt(values)
    lengths, turn = np.linalg.eigh(down.T @ known @ down)
    lengths, turn = np.maximum(lengths[::-1], 0.0), turn[:, ::-1]
    return Directions(down @ turn, back @ turn, lengths)


def visible(directions: Directions, signal: float, fast: bool) -> int:
    """Of how many directions the second moments are asked for; ``signal`` is that of the stage.

    Those that can be told from noise; and more if the descent is ``fast``, so that it has to know of the longest.
    """
    sizes = np.arange(1, len(directions.lengths) + 1)
    noise = 1.5 * (1 + np.cumsum(directions.lengths)) * np.sqrt(2 * (sizes + 1)) / signal
    return max(1, int((noise < (_CLEAR_ENOUGH if fast else _CLEAR)).sum()))


def white(directions: Directions, seen: Moments, marginals: Marginals) -> tuple[Whitened, Array]:
    """Coordinates in which what was seen of the second moments of (1, directions) is white, too; and the second
    moments of these coordinates."""
    values, vectors = np.linalg.eigh(seen.matrix)
    floored = np.maximum(values, seen.noise + LEAST_EIGENVALUE)
    size, width = len(values), len(directions.lengths) + 1
    turn, inverse = np.eye(width), np.eye(width)
    turn[:size, :size], inverse[:size, :size] = vectors / np.sqrt(floored), vectors * np.sqrt(floored)
    down, back = np.eye(width), np.eye(width)
    down[1:, 1:], back[1:, 1:] = directions.down, directions.back
    lengths = np.concatenate([np.clip(values / floored, 0, 1), directions.lengths[size - 1 :]])
    return Whitened(marginals, down @ turn, back @ inverse, dimensions=float(lengths.sum())), lengths


# ---- what histograms and cells tell of second moments ----


def block_moments(basis: Basis, histograms: Histograms, marginals: Marginals) -> Array:
    """The covariance of the standardised columns; that of columns which nobody counted together is taken as 0."""
    found = np.zeros((basis.columns.width,) * 2)
    for curve, start in zip(basis.curves, basis.starts, strict=False):
        place = slice(start, start + len(curve.kept))
        line = len(curve.knots) == 2  # whose scale is that of the linear model
        found[place, place] = marginals.scale[start] ** 2 if line else hat_covariance(histograms, curve)
    first = len(basis.curves)
    for size, start in zip(basis.inputs.groups, basis.starts[first:], strict=False):
        place = slice(start, start + size)
        shares = marginals.centre[place] / max(float(marginals.centre[place].sum()), 1.0)
        found[place, place] = np.diag(shares) - np.outer(shares, shares)
    taken: set[int] = set()
    for pair, start in zip(basis.pairs, basis.starts[first + len(basis.inputs.groups) :], strict=False):
        places, covariance = _grid_covariance(basis, pair, start, taken)
        found[np.ix_(places, places)] = covariance
        taken |= set(pair.columns)
    return found / np.outer(marginals.scale, marginals.scale)


def _grid_covariance(basis: Basis, pair: Pair, start: int, taken: set[int]) -> tuple[list[int], Array]:
    """The covariance of the cells of a pair, and with the curves of its columns that no other pair has taken."""
    points = [_inside(knots) for knots in pair.knots]
    values = [hats(x, knots).astype(np.float64) for (x, _), knots in zip(points, pair.knots, strict=True)]
    areas = [width @ value for value, (_, width) in zip(values, points, strict=True)]
    shares = pair.shares.reshape(*map(len, pair.knots))
    density = (values[0] / areas[0]) @ shares @ (values[1] / areas[1]).T
    weights = (density * np.outer(points[0][1], points[1][1])).ravel()
    weights /= weights.sum()
    cells = np.einsum("ai,bj->abij", *values).reshape(len(weights), -1)
    places, parts = list(range(start, start + len(pair.kept))), [cells[:, pair.kept]]
    across, up = len(points[0][0]), len(points[1][0])
    for column, x in zip(
        pair.columns, (np.repeat(points[0][0], up), np.tile(points[1][0], across)), strict=True
    ):
        if column not in taken:
            curve, first = basis.curves[column], basis.starts[column]
            parts.append(hats(x, curve.knots)[:, curve.kept].astype(np.float64))
            places += range(first, first + len(curve.kept))
    together = np.hstack(parts)
    together -= weights @ together
    return places, np.asarray((together.T * weights) @ together)


def _inside(knots: Array) -> tuple[Array, Array]:
    """Points between knots, and the width that each stands for."""
    widths = np.repeat(np.diff(knots) / _POINTS, _POINTS)
    return np.cumsum(widths) - widths / 2 + knots[0], widths
