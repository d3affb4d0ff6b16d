"""Coordinates for curves: what is smooth and well known is long in them, what is rough is short.

The noise of a gradient grows with the norm of the rows, so every direction that they have costs something. A curve
has many, most of which say little: bends are shortened until a row has no more dimensions than the budget can carry
(:func:`smooth_directions`). At one end that is the line.

How the hats of one column go together follows from its histogram, and how those of a grid do from its cells
(:func:`block_moments`). How columns go together does not: it has to be asked for. Second moments of all directions
would drown in noise where records are few, so only those of the longest are (:func:`visible`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from discreet.linear.additive.curves import bends, hat_covariance, line_of
from discreet.linear.additive.expanded_rows import hats, paired
from discreet.linear.additive.histograms import Histograms
from discreet.linear.glm.frames import CurveFrame, WhiteFrame
from discreet.linear.glm.whitening import LEAST_EIGENVALUE, NoisyMoments
from discreet.linear.row_views.coordinates import Marginals
from discreet.linear.row_views.curve_bases import Basis, Curve, Pair

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
    lines, blocks = list(lines), list(_apart(known, roughness))
    parts = [
        (known[b], _floor_moments(known[b], [line[b[1][0]] for line in lines]), roughness[b]) for b in blocks
    ]
    weights = [_SMOOTH / count * 2.0 ** (power / 2) for power in range(60)]
    left = np.zeros(len(weights))
    for moments, floored, bent in parts:
        rough, together = eigh(bent, floored)  # both are diagonal in these
        held = np.einsum("ij,ij->j", together, moments @ together)
        left += [float(np.sum(held / (1 + weight * np.maximum(rough, 0)))) for weight in weights]
    room = left[-1] + _DIMENSIONS * room * signal**_POWER
    place = next((place for place, size in enumerate(left) if size <= room), len(left) - 1)
    down, back, lengths = np.zeros_like(known), np.zeros_like(known), np.zeros(len(known))
    for block, (moments, floored, bent) in zip(blocks, parts, strict=True):
        values, vectors = np.linalg.eigh(floored + weights[place] * bent)
        within = vectors / np.sqrt(values)
        own, turn = np.linalg.eigh(within.T @ moments @ within)
        down[block], back[block] = within @ turn, (vectors * np.sqrt(values)) @ turn
        lengths[block[1][0]] = np.maximum(own, 0.0)
    order = np.argsort(-lengths, kind="stable")
    return Directions(down[:, order], back[:, order], lengths[order])


def _floor_moments(known: Array, lines: Iterable[Array]) -> Array:
    """Moments of which each column has at least 1, as scales are (see RARE), but of lines no more than they have."""
    floor = np.diag(np.maximum(1 - np.diag(known), LEAST_EIGENVALUE))
    for line in lines:
        if line.any():
            image = known @ line
            size = max(float(line @ image), 1e-9)
            aside = np.eye(len(known)) - np.outer(line, image) / size
            floor = aside.T @ floor @ aside + LEAST_EIGENVALUE * np.outer(image, image) / size
    return np.asarray(known + floor)


def _apart(known: Array, roughness: Array) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Blocks of columns that have nothing to do with one another: such as a curve, or two and their grid."""
    number, labels = connected_components(csr_array((known != 0) | (roughness != 0)), directed=False)
    for label in range(number):
        own = np.flatnonzero(labels == label)
        yield np.ix_(own, own)  # type: ignore[misc]


def visible(directions: Directions, signal: float, fast: bool) -> int:
    """Of how many directions the second moments are asked for; ``signal`` is that of the stage.

    Those that can be told from noise; and more if the descent is ``fast``, so that it has to know of the longest.
    """
    sizes = np.arange(1, len(directions.lengths) + 1)
    noise = 1.5 * (1 + np.cumsum(directions.lengths)) * np.sqrt(2 * (sizes + 1)) / signal
    return max(1, int((noise < (_CLEAR_ENOUGH if fast else _CLEAR)).sum()))


def white(directions: Directions, seen: NoisyMoments, marginals: Marginals, basis: Basis) -> CurveFrame:
    """Coordinates in which what was seen of the second moments of (1, directions) is white, too."""
    values, vectors = np.linalg.eigh(seen.matrix)
    floored = np.maximum(values, seen.noise + LEAST_EIGENVALUE)
    size, width = len(values), len(directions.lengths) + 1
    down, back = np.eye(width), np.eye(width)
    down[1:, 1:], back[1:, 1:] = directions.down, directions.back
    down[:, :size] = down[:, :size] @ (vectors / np.sqrt(floored))
    back[:, :size] = back[:, :size] @ (vectors * np.sqrt(floored))
    lengths = np.concatenate([np.clip(values / floored, 0, 1), directions.lengths[size - 1 :]])
    return CurveFrame(marginals, down, back, None, 0.0, float(lengths.sum()), basis, lengths)


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


# What is noise of a curve is taken back: shrunk_parts (post-processing of a released model).
#
# The shorter a direction is, the longer noise of a step stays in the path of the descent, so the variances of all
# errors are known. If they explain the slow bends of all curves, there are none: every curve is replaced by a line
# (:func:`are_straight`, :func:`straighten`), and the model is the linear one. If they do not, what each part of the
# model has, such as the quick bends of one curve, or the levels of one category, is compared with what noise alone
# would make of it in the long directions, and is shortened by as much (James and Stein 1961).

_BANDS = (1, 3, 7)  # the first bend of each band; before the first is the line
_SURE = 1.0  # standard deviations
_CHANCE_OF_ONE, _CHANCE_OF_ALL = 0.003, 0.1  # that straight curves are taken for bent ones, by one or by all
_PRIOR_POINTS = 257  # of a column, at which its hats are looked at
_FLAT = 1e-4  # added to moments, so that hats nobody is under do not count


def bend_parts(basis: Basis, histograms: Histograms, coordinates: WhiteFrame) -> dict[int, list[Array]]:
    """For each bent column, from slow bends to quick ones, orthonormal bases of them in the coordinates of the
    descent."""
    rotation, scale, found = coordinates.rotation[1:], coordinates.marginals.scale, {}
    for curve, start in zip(basis.curves, basis.starts, strict=False):
        place = slice(start, start + len(curve.kept))
        bands = _bands(curve, histograms)
        if bands:
            found[curve.column] = [_orthonormal((band / scale[place]) @ rotation[place]) for band in bands]
    return found


def level_parts(basis: Basis, coordinates: WhiteFrame) -> list[Array]:
    """The same for the levels of each category of more than two, and for grids."""
    rotation, scale = coordinates.rotation[1:], coordinates.marginals.scale
    first, found = len(basis.curves), []
    for size, start in zip(basis.columns.groups[first:], basis.starts[first:], strict=False):
        if size > 2:
            place = slice(start, start + size)
            found.append(_orthonormal(rotation[place] / scale[place, None]))
    return found


def are_straight(theta: Array, start: Array, curves: list[list[Array]], variances: Array) -> bool:
    """Whether errors of these variances explain the slow bends of all curves, and of each of them."""
    if not curves:
        return False
    way = (theta - start)[1:]
    outputs = 1 if way.ndim == 1 else way.shape[1] - 1
    slow = [bands[0] for bands in curves]
    told = np.array([_in_errors(part, way, variances) for part in slow])
    sizes = np.array([len(part) * outputs for part in slow])
    each = float(chi2.sf(told, sizes).min()) * len(slow)
    return each > _CHANCE_OF_ONE and float(chi2.sf(told.sum(), sizes.sum())) > _CHANCE_OF_ALL


def are_near(
    theta: Array, lines: Array, curves: list[list[Array]], variances: Array, farthest: float
) -> bool:
    """Whether errors explain the whole way from the curves to ``lines``, beside what columns have in common."""
    way = (lines - theta)[1:]
    outputs = 1 if way.ndim == 1 else way.shape[1] - 1
    size = outputs * sum(len(band) for bands in curves for band in bands)
    return float(np.sum(way.T**2 / variances)) < farthest * size


def straighten(theta: Array, start: Array, basis: Basis, known: Marginals, coordinates: WhiteFrame) -> Array:
    """``theta`` with every curve replaced by the line that is nearest to it, where ``known`` has the records.

    Not those of columns that act together: what they add is in their grid, too.
    """
    slopes = coordinates.rotation @ (theta - start)[1:]
    for curve, first in zip(basis.curves, basis.starts, strict=False):
        place = slice(first, first + len(curve.kept))
        if len(curve.knots) > 2 and curve.column not in paired(basis):
            centre, width = float(known.centre[curve.column]), float(known.scale[curve.column])
            onto = _onto_line(curve, coordinates.marginals.scale[place], centre, width)
            slopes[1:][place] = onto @ slopes[1:][place]
    moved = np.array(start)
    moved[1:] += coordinates.inverse.T @ slopes
    return moved


def _onto_line(curve: Curve, scale: Array, centre: float, width: float) -> Array:
    """The projection of standardised coefficients onto those of a line, for records around a centre."""
    points = np.linspace(curve.knots[0], curve.knots[-1], _PRIOR_POINTS)
    weights = np.exp(-(((points - centre) / width) ** 2) / 2) + 1e-6
    values = hats(points, curve.knots)[:, curve.kept] / scale
    values = values - weights @ values / weights.sum()
    line = line_of(curve, scale)
    along = values @ line
    return np.asarray(np.outer(line, (weights * along) @ values) / (weights @ along**2))


def _in_errors(part: Array, way: Array, variances: Array) -> float:
    """The squared length of a part of the way, in its errors."""
    own = part @ way
    return float(np.sum(own * np.linalg.solve((part * variances) @ part.T, own)))


def shrunk_parts(theta: Array, start: Array, parts: list[Array], variance: float) -> Array:
    """``theta`` with every part shortened toward ``start`` as far as noise of this variance explains it."""
    way = (theta - start)[1:]
    outputs = 1 if way.ndim == 1 else way.shape[1] - 1
    for part in parts:
        own = part @ way
        size = len(part) * outputs
        noise = variance * (size + _SURE * math.sqrt(2 * size))  # what noise alone hardly ever exceeds
        explained = noise / max(float(np.sum(own**2)), 1e-300)
        way = way - part.T @ (min(explained, 1.0) * own)
    moved = np.array(start)
    moved[1:] += way
    return moved


def _bands(curve: Curve, histograms: Histograms) -> list[Array]:
    """What the bends of a curve are, from slow to quick ones, in bands: functionals of its coefficients."""
    bent = bends(curve.knots)[:, curve.kept]
    if not len(bent):
        return []
    moments = hat_covariance(histograms, curve)
    moments = moments + _FLAT * np.eye(len(moments))
    _, vectors = eigh(bent.T @ bent, moments)  # orthonormal under the moments, the line first
    functionals = vectors.T @ moments
    ends = [*(first for first in _BANDS if first < len(functionals)), len(functionals)]
    return [functionals[a:b] for a, b in pairwise(ends)]


def _orthonormal(rows: Array) -> Array:
    """An orthonormal basis of what the rows span."""
    _, sizes, turned = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(turned[sizes > 1e-6 * max(float(sizes[0]), 1e-12)])
