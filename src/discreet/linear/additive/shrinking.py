"""What is noise of a curve is taken back: :func:`shrunk_parts`. Post-processing of a released model.

The shorter a direction is, the longer noise of a step stays in the path of the descent, so the variances of all
errors are known. If they explain the slow bends of all curves, there are none: every curve is replaced by a line
(:func:`are_straight`, :func:`straightened`), and the model is the linear one. If they do not, what each part of the
model has, such as the quick bends of one curve, or the levels of one category, is compared with what noise alone
would make of it in the long directions, and is shortened by as much (James and Stein 1961).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.stats import chi2

from discreet.linear.additive.basis import Basis, Curve, hats
from discreet.linear.additive.curves import bends, hat_covariance, line_of
from discreet.linear.additive.histograms import Histograms
from discreet.linear.glm.coordinates import Whitened
from discreet.linear.glm.marginals import Marginals

Array = NDArray[np.float64]

_BANDS = (1, 3, 7)  # the first bend of each band; before the first is the line
_SURE = 1.0  # standard deviations
_CHANCE_OF_ONE, _CHANCE_OF_ALL = 0.003, 0.1  # that straight curves are taken for bent ones, by one or by all
_POINTS = 257  # of a column, at which its hats are looked at
_FLAT = 1e-4  # added to moments, so that hats nobody is under do not count


def bend_parts(basis: Basis, histograms: Histograms, coordinates: Whitened) -> dict[int, list[Array]]:
    """For each bent column, from slow bends to quick ones, orthonormal bases of them in the coordinates of the
    descent."""
    rotation, scale, found = coordinates.rotation[1:], coordinates.marginals.scale, {}
    for curve, start in zip(basis.curves, basis.starts, strict=False):
        place = slice(start, start + len(curve.kept))
        bands = _bands(curve, histograms)
        if bands:
            found[curve.column] = [_orthonormal((band / scale[place]) @ rotation[place]) for band in bands]
    return found


def level_parts(basis: Basis, coordinates: Whitened) -> list[Array]:
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


def straightened(theta: Array, start: Array, basis: Basis, known: Marginals, coordinates: Whitened) -> Array:
    """``theta`` with every curve replaced by the line that is nearest to it, where ``known`` has the records.

    Not those of columns that act together: what they add is in their grid, too.
    """
    slopes = coordinates.rotation @ (theta - start)[1:]
    for curve, first in zip(basis.curves, basis.starts, strict=False):
        place = slice(first, first + len(curve.kept))
        if len(curve.knots) > 2 and curve.column not in basis.paired:
            centre, width = float(known.centre[curve.column]), float(known.scale[curve.column])
            onto = _onto_line(curve, coordinates.marginals.scale[place], centre, width)
            slopes[1:][place] = onto @ slopes[1:][place]
    moved = np.array(start)
    moved[1:] += coordinates.inverse.T @ slopes
    return moved


def _onto_line(curve: Curve, scale: Array, centre: float, width: float) -> Array:
    """The projection of standardised coefficients onto those of a line, for records around a centre."""
    points = np.linspace(curve.knots[0], curve.knots[-1], _POINTS)
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
