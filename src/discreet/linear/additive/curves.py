"""From histograms to curves: how many knots the noise allows, where they are, and what their hats weigh.

Post-processing of released numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.linear.additive.basis import Basis, Curve, hats
from discreet.linear.additive.histograms import Histograms
from discreet.linear.additive.knots import chosen_knots
from discreet.linear.glm.columns import Columns
from discreet.linear.glm.marginals import RARE, Marginals

Array = NDArray[np.float64]

_COLUMNS_PER_SIGNAL = 0.15  # encoded columns for each record over the noise of counting it
_MOST_PIECES = 8
_POINTS = (np.arange(8) + 0.5) / 8  # where hats are looked at in a bin


def pieces_for(signal: float, columns: Columns) -> int:
    """How many straight pieces each curve may have; 1 is a line."""
    room = _COLUMNS_PER_SIGNAL * signal / max(columns.numerics, 1)
    return int(min(max(room, 1), _MOST_PIECES))


def chosen_curves(
    columns: Columns, histograms: Histograms, marginals: Marginals, pieces: list[int], missing: dict[int, int]
) -> tuple[Curve, ...]:
    """A curve for every numeric column; the heaviest hat of each is left to the constant."""
    found = []
    for j in range(columns.numerics):
        limits = float(marginals.lower[j]), float(marginals.upper[j])
        counts, edges = histograms.counts[j], histograms.edges[j]
        knots = chosen_knots(counts, edges, histograms.noise, pieces[j], limits)
        means, _ = hat_moments(counts, edges, histograms.noise, knots)
        kept = np.delete(np.arange(len(knots)), int(np.argmax(means)))
        found.append(Curve(j, knots, kept, missing.get(j)))
    return tuple(found)


def hat_moments(counts: Array, edges: Array, noise: float, knots: Array) -> tuple[Array, Array]:
    """Mean and variance of the hats at all knots, as the histogram has it."""
    weights, values = _weighed(counts, edges, noise, knots)
    means = weights @ values
    return means, np.maximum(weights @ values**2 - means**2, 0.0)


def hat_covariance(histograms: Histograms, curve: Curve) -> Array:
    """The covariance of the hats of a curve that have a column."""
    counts, edges = histograms.counts[curve.column], histograms.edges[curve.column]
    weights, values = _weighed(counts, edges, histograms.noise, curve.knots)
    offsets = (values - weights @ values)[:, curve.kept]
    return np.asarray((offsets.T * weights) @ offsets)


def _weighed(counts: Array, edges: Array, noise: float, knots: Array) -> tuple[Array, Array]:
    """Points of the bins: the share of the records at each, and its hats."""
    mass = np.where(counts > noise, counts, 0.0)
    mass = mass + 1e-9 * max(float(mass.sum()), 1.0)
    points = edges[:-1, None] + np.diff(edges)[:, None] * _POINTS
    values = hats(points.ravel(), knots).astype(np.float64)
    weights = np.repeat(mass / mass.sum() / len(_POINTS), len(_POINTS))
    return weights, values


def curve_marginals(basis: Basis, histograms: Histograms, marginals: Marginals, count: float) -> Marginals:
    """Centre and scale of the encoded columns: of hats from the histograms, of categories as they were."""
    error = histograms.noise / count
    centres, variances = [], []
    for curve in basis.curves:
        known = histograms.counts[curve.column], histograms.edges[curve.column]
        means, spread = hat_moments(*known, histograms.noise, curve.knots)
        if len(curve.knots) == 2:  # a line, as the linear model has it
            j, width = curve.column, curve.knots[1] - curve.knots[0]
            centre = (np.clip(marginals.centre[j], *curve.knots) - curve.knots[0]) / width
            means = np.array([1 - centre, centre])
            spread = np.full(2, (marginals.scale[j] / width) ** 2) - error - RARE
        centres.append(means[curve.kept])
        variances.append(spread[curve.kept] + error + RARE)
    levels = basis.inputs.categories
    centres.append(marginals.centre[levels])
    variances.append(marginals.scale[levels] ** 2)
    for pair in basis.pairs:
        centres.append(pair.shares)
        variances.append(pair.shares * (1 - pair.shares) + error + RARE)
    centre = np.concatenate(centres)
    nothing = np.zeros(len(centre))
    return Marginals(centre, np.sqrt(np.concatenate(variances)), nothing, nothing + 1, marginals.released)


def roughness_of(basis: Basis, scale: Array) -> Array:
    """The sum of the squares of how far each knot is off the line through its neighbours, and of products.

    A quadratic form of the standardised coefficients, the constant first. It is 0 for lines and levels.
    """
    form = np.zeros((len(scale) + 1, len(scale) + 1))
    for curve, start in zip(basis.curves, basis.starts, strict=False):
        bends = _bends(curve.knots)[:, curve.kept] / scale[start : start + len(curve.kept)]
        part = slice(start + 1, start + 1 + len(curve.kept))
        form[part, part] = bends.T @ bends
    first = basis.starts[len(basis.curves) + len(basis.inputs.groups)]
    form[np.arange(first, len(scale)) + 1, np.arange(first, len(scale)) + 1] = 1 / scale[first:] ** 2
    return form


def _bends(knots: Array) -> Array:
    """The matrix from values at knots to how far each inner one is off the line through its neighbours."""
    bends = np.zeros((max(len(knots) - 2, 0), len(knots)))
    for i in range(len(bends)):
        whole = knots[i + 2] - knots[i]
        bends[i, i : i + 3] = -(knots[i + 2] - knots[i + 1]) / whole, 1.0, -(knots[i + 1] - knots[i]) / whole
    return bends
